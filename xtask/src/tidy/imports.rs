//! The paths in the code of a file: what it imports, and what it names in full.

/// A path, with the groups of a `use` taken apart: `use crate::{tile, arch::x}` holds two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path {
    /// Index of the line that it begins in.
    pub line: usize,
    /// Its segments. Those of `crate::tile::*` are `crate` and `tile`.
    pub segments: Vec<String>,
}

/// The paths that begin with a name, that one included: of `crate::tile::X` for `crate`, all three segments.
pub fn paths(code: &str, first: &str) -> Vec<Path> {
    starts(code, first).flat_map(|at| path_at(code, at)).collect()
}

/// The paths that a file reaches by `crate`, `super` and `self`, from the root of its crate on. `module`: the
/// file's own.
pub fn reached(code: &str, module: &[&str]) -> Vec<Path> {
    let mut found = Vec::new();
    for at in ["crate", "super", "self"].into_iter().flat_map(|first| starts(code, first)) {
        let own = module.iter().map(|name| (*name).to_owned()).chain(inline_modules(&code[..at]));
        let own: Vec<String> = own.collect();
        found.extend(path_at(code, at).into_iter().map(|path| resolve(path, &own)));
    }
    found.sort_by_key(|path| path.line);
    found
}

/// Where paths begin with a name.
fn starts(code: &str, first: &str) -> impl Iterator<Item = usize> {
    let pattern = format!("{first}::");
    let found: Vec<usize> = code.match_indices(&pattern).map(|(at, _)| at).collect();
    found.into_iter().filter(|&at| {
        // Inside a name, or inside a path; `::name` begins one.
        let before = code[..at].strip_suffix("::").unwrap_or(&code[..at]);
        !before.ends_with(|c: char| is_name(c) || c == '>')
    })
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The paths that begin at a place in the code: one, or those of a group.
fn path_at(code: &str, at: usize) -> Vec<Path> {
    let line = code[..at].matches('\n').count();
    let mut found = Vec::new();
    tree(&code[at..], &[], &mut found);
    found.into_iter().map(|segments| Path { line, segments }).collect()
}

/// The members of a `use` tree behind the segments before it.
fn tree(text: &str, before: &[String], found: &mut Vec<Vec<String>>) {
    let text = text.trim_start();
    if let Some(group) = text.strip_prefix('{') {
        members(group).into_iter().for_each(|member| tree(member, before, found));
        return;
    }
    let end = text.find(|c: char| !is_name(c)).unwrap_or(text.len());
    let mut segments = before.to_vec();
    // `self` in a group is what stands before it, and so is `*`.
    if end != 0 && (before.is_empty() || &text[..end] != "self") {
        segments.push(text[..end].to_owned());
    }
    match text[end..].trim_start().strip_prefix("::") {
        Some(rest) if end != 0 => tree(rest, &segments, found),
        _ => found.push(segments),
    }
}

/// The members of a group whose opening brace is already gone.
fn members(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut found) = (1, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if (c == ',' && depth == 1) || depth == 0 {
            found.push(&group[start..at]);
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    found.retain(|member| !member.trim().is_empty());
    found
}

/// The names of the `mod name { ... }` that are open at the end of a piece of code.
fn inline_modules(code: &str) -> Vec<String> {
    let mut open = Vec::new();
    for (at, c) in code.char_indices() {
        match c {
            '{' => {
                let before = code[..at].trim_end();
                let start = before.rfind(|c: char| !is_name(c)).map_or(0, |at| at + 1);
                let keyword = before[..start].trim_end();
                open.push(keyword.ends_with("mod").then(|| before[start..].to_owned()));
            }
            '}' => {
                open.pop();
            }
            _ => {}
        }
    }
    open.into_iter().flatten().collect()
}

/// A path from the root of the crate on, in a module.
fn resolve(path: Path, module: &[String]) -> Path {
    let mut from = module.to_vec();
    let mut segments = path.segments.as_slice();
    while let [first, rest @ ..] = segments {
        match first.as_str() {
            "crate" => from.clear(),
            "super" => {
                from.pop();
            }
            "self" => {}
            _ => break,
        }
        segments = rest;
    }
    from.extend_from_slice(segments);
    Path { segments: from, ..path }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(paths: Vec<Path>) -> Vec<(usize, String)> {
        paths.into_iter().map(|path| (path.line, path.segments.join("::"))).collect()
    }

    #[test]
    fn groups_are_taken_apart() {
        let code = "use crate::{a, b::{self, c, d::*},\n e as f};\nfn g() { crate::h::i::<u8>() }\n\
                    my_crate::x; x::crate::y; ::crate::z";
        let expected = ["crate::a", "crate::b", "crate::b::c", "crate::b::d", "crate::e"];
        let mut expected: Vec<_> = expected.map(|path| (0, path.to_owned())).into();
        expected.extend([(2, "crate::h::i".to_owned()), (3, "crate::z".to_owned())]);
        assert_eq!(joined(paths(code, "crate")), expected);
    }

    #[test]
    fn paths_are_followed_to_the_root() {
        let code = "use super::a;\nuse super::super::{b, c::d};\nuse self::e;\nuse crate::f;\n\
                    pub(super) mod x { fn g() { super::h() } }\nuse super::*;";
        let expected = ["m::a", "b", "c::d", "m::n::e", "f", "m::n::h", "m"];
        let found = joined(reached(code, &["m", "n"]));
        assert_eq!(found.into_iter().map(|(_, path)| path).collect::<Vec<_>>(), expected);
    }
}
