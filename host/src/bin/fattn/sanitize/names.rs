//! Names of kernels as people write them: demangled, and shortened.

use cpp_demangle::{DemangleOptions, Symbol};

/// The longest name that is shown as it is.
const MAX_CHARACTERS: usize = 72;

/// `_Z6kernelIfLi4EEvPT_` as `kernel<float, 4>`; what is not mangled as it is.
pub fn readable(name: &str) -> String {
    if let Ok(rust) = rustc_demangle::try_demangle(name) {
        return shorten(&format!("{rust:#}"));
    }
    let options = DemangleOptions::new().no_params().no_return_type();
    match Symbol::new(name).ok().and_then(|symbol| symbol.demangle_with_options(&options).ok()) {
        Some(cpp) => shorten(&cpp),
        None => name.to_owned(),
    }
}

/// Without the arguments of inner templates, and, if that is not enough, of all.
fn shorten(name: &str) -> String {
    (0..=2usize)
        .rev()
        .map(|depth| elide(name, depth))
        .find(|short| short.chars().count() <= MAX_CHARACTERS)
        .unwrap_or_else(|| elide(name, 0))
}

/// What stands deeper in angle brackets than so many becomes dots.
fn elide(name: &str, depth: usize) -> String {
    let mut out = String::new();
    let mut now = 0usize;
    let mut before = ' ';
    for character in name.chars() {
        // Not those of `operator->`, `operator<<` and the like.
        let is_operator = out.ends_with("operator") || out.ends_with("operator<") || before == '-';
        match character {
            '<' if !is_operator => {
                now += 1;
                if now <= depth {
                    out.push('<');
                } else if now == depth + 1 {
                    out.push_str("<…>");
                }
            }
            '>' if !is_operator => {
                if now <= depth {
                    out.push('>');
                }
                now = now.saturating_sub(1);
            }
            _ if now <= depth => out.push(character),
            _ => {}
        }
        before = character;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_cpp_and_rust_are_readable() {
        assert_eq!(readable("_Z6kernelIfLi4EEvPT_"), "kernel<float, 4>");
        assert_eq!(
            readable("_ZN4core3fmt9Formatter9write_str17h0123456789abcdefE"),
            "core::fmt::Formatter::write_str"
        );
        assert_eq!(readable("forward_bf16_d128_sm90a"), "forward_bf16_d128_sm90a");
        assert_eq!(readable("_Znonsense"), "_Znonsense");
    }

    #[test]
    fn long_names_lose_the_arguments_of_templates() {
        let inner = "b<".repeat(30) + "int" + &">".repeat(30);
        assert_eq!(shorten(&format!("f<{inner}>")), "f<b<b<…>>>");
        let wide = ["a_rather_long_type"; 9].join(", ");
        assert_eq!(shorten(&format!("g<{wide}>::h")), "g<…>::h");
        assert_eq!(elide("x::operator<<<int>", 0), "x::operator<<<…>");
        assert_eq!(elide("x::operator->", 0), "x::operator->");
    }
}
