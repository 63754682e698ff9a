//! Stage 2: tell LLVM which inline assembly is convergent.
//!
//! A convergent operation (a barrier, a shuffle, an `mma`) may not be made to depend on more conditions
//! than the source says, so no pass may copy it into two branches or sink it into one. Clang marks all
//! inline assembly so on GPU targets; rustc marks the functions but not the `asm!` in them, and LLVM
//! then duplicates barriers: two `bar.sync` between branches of lane 0 come out as three. This stage
//! adds the attribute to the IR text, to every `asm` call except those whose instructions are all known
//! to concern one thread only.

use anyhow::{Result, anyhow, bail};

/// Instructions of one thread: moving and computing registers, plain loads and stores. Everything else
/// is convergent.
const THREAD_LOCAL: &[&str] = &[
    "abs", "add", "and", "bfe", "bfi", "clz", "copysign", "cvt", "cvta", "ex2", "fma", "isspacep", "ld",
    "lg2", "lop3", "mad", "max", "min", "mov", "mul", "neg", "not", "or", "popc", "prefetch", "prmt",
    "rcp", "rsqrt", "selp", "set", "setp", "shf", "shl", "shr", "slct", "sqrt", "st", "sub", "tanh",
    "xor",
];

/// Returns the IR with every `asm` call that is not thread-local marked convergent.
///
/// # Errors
/// When an `asm` call has a form that this stage does not know, or a function is not convergent although
/// rustc makes all functions convergent on this target: either would let LLVM move barriers unseen.
pub fn mark(ir: &str) -> Result<String> {
    let mut marked = String::with_capacity(ir.len() + ir.len() / 64);
    for line in ir.lines() {
        match asm_call(line) {
            None => marked.push_str(line),
            Some(call) => {
                let call =
                    call.ok_or_else(|| anyhow!("cannot read this asm call in the IR:\n{line}"))?;
                let (head, tail) = line.split_at(call.attributes);
                marked.push_str(head);
                if !is_thread_local(call.template) {
                    marked.push_str(" convergent");
                }
                marked.push_str(tail);
            }
        }
        marked.push('\n');
    }
    check_functions(ir)?;
    Ok(marked)
}

/// An `asm` call in a line of IR: its template and where its attributes start.
struct AsmCall<'a> {
    template: &'a str,
    attributes: usize,
}

/// `None`: not an asm call. `Some(None)`: one in an unknown form.
fn asm_call(line: &str) -> Option<Option<AsmCall<'_>>> {
    let before_text = &line[..line.find('"').unwrap_or(line.len())];
    let asm = before_text.find(" asm ")?;
    if before_text.starts_with("module ") || before_text.starts_with(';') {
        return None;
    }
    let statement = before_text.trim_start();
    let statement = statement.split_once(" = ").map_or(statement, |(_, call)| call);
    let statement = statement.strip_prefix("tail ").unwrap_or(statement);
    if !statement.starts_with("call ") {
        return Some(None);
    }
    Some(parse_asm(line, asm))
}

/// Reads `asm [sideeffect ...] "template", "constraints"(arguments)` from `start` on.
fn parse_asm(line: &str, start: usize) -> Option<AsmCall<'_>> {
    let template = start + line[start..].find('"')? + 1;
    let template_end = template + line[template..].find('"')?;
    let constraints = template_end + line[template_end..].find(", \"")? + 3;
    let constraints_end = constraints + line[constraints..].find('"')?;
    let mut depth = 0usize;
    for (at, c) in line[constraints_end + 1..].char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.checked_sub(1)?,
            _ if depth == 0 => return None,
            _ => {}
        }
        if depth == 0 {
            let attributes = constraints_end + 1 + at + 1;
            return Some(AsmCall { template: &line[template..template_end], attributes });
        }
    }
    None
}

fn is_thread_local(template: &str) -> bool {
    let text = template.replace("\\0A", ";").replace("\\09", " ");
    text.split([';', '{', '}']).all(|statement| {
        let mut words = statement.split_whitespace().peekable();
        words.next_if(|word| word.starts_with('@'));
        // Text between the braces of an operand such as ${0:h} or of a vector is no instruction.
        words.next().is_none_or(|word| {
            let opcode = word.split('.').next().unwrap_or_default();
            let is_operand = !word.starts_with(|c: char| c.is_ascii_lowercase());
            is_operand || THREAD_LOCAL.contains(&opcode)
        })
    })
}

/// Every function that is defined must be convergent before the first pass: its body may hold a barrier.
fn check_functions(ir: &str) -> Result<()> {
    let convergent: Vec<&str> = ir
        .lines()
        .filter_map(|line| line.strip_prefix("attributes ")?.split_once(" = "))
        .filter(|(_, attributes)| attributes.split_whitespace().any(|word| word == "convergent"))
        .map(|(group, _)| group)
        .collect();
    for line in ir.lines().filter(|line| line.starts_with("define ")) {
        if !line.split_whitespace().any(|word| convergent.contains(&word)) {
            bail!("rustc did not make this function convergent:\n{line}");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark_line(line: &str) -> String {
        mark(line).unwrap().trim_end().to_owned()
    }

    #[test]
    fn a_barrier_becomes_convergent() {
        let line = r#"  call void asm sideeffect "bar.sync 0;", "~{memory}"(), !dbg !3, !srcloc !4"#;
        let want =
            r#"  call void asm sideeffect "bar.sync 0;", "~{memory}"() convergent, !dbg !3, !srcloc !4"#;
        assert_eq!(mark_line(line), want);
    }

    #[test]
    fn existing_attributes_stay() {
        let line =
            r#"  %1 = tail call { i32, i32 } asm "shfl.sync $0|p, $1;", "=&r,r"(i32 %x) #23, !dbg !3"#;
        assert!(mark_line(line).contains(r#""=&r,r"(i32 %x) convergent #23, !dbg"#));
    }

    #[test]
    fn registers_of_one_thread_stay_free_to_move() {
        for template in [
            "mov.u32 ${0}, %tid.x;",
            "ex2.approx.ftz.f32 $0, $1;",
            "@p st.shared.v4.b32 [$0], {$1, $2};",
        ] {
            let line = format!(r#"  call void asm sideeffect "{template}", "r"(i32 %x)"#);
            assert_eq!(mark_line(&line), line);
        }
    }

    #[test]
    fn one_convergent_instruction_among_others_is_enough() {
        let line = r#"  call void asm "mov.u32 $0, 1;\0A@p bar.warp.sync $1;", "=r,r"(i32 %x)"#;
        assert!(mark_line(line).ends_with("(i32 %x) convergent"));
    }

    #[test]
    fn what_cannot_be_read_is_refused() {
        assert!(mark(r#"  callbr void asm "bar.sync 0;", ""() to label %a [label %b]"#).is_err());
        assert!(mark("define void @f() #0 {\nattributes #0 = { nounwind }").is_err());
        assert!(mark("define void @f() #0 {\nattributes #0 = { convergent nounwind }").is_ok());
    }

    #[test]
    fn module_assembly_and_other_lines_are_left_alone() {
        let ir = "module asm \".extern .shared .align 16 .b8 dynamic[];\"\n; call asm \"x\"\n";
        assert_eq!(mark(ir).unwrap(), ir);
    }
}
