//! Reading PTX text, as far as counting instructions needs it.

/// The opcodes of all instructions in the entry, in order, each with its modifiers: `ld.global.v4.b32`.
pub fn opcodes(ptx: &str) -> Vec<&str> {
    let mut opcodes = Vec::new();
    let (mut depth, mut inside_statement) = (0, false);
    for line in ptx.lines().skip_while(|line| !line.starts_with('{')) {
        let code = line.split("//").next().unwrap_or_default().trim();
        if [".loc", ".file", ".pragma"].iter().any(|directive| code.starts_with(directive)) {
            continue;
        }
        for (i, part) in code.split(';').enumerate() {
            // A statement that began on an earlier line goes on until the first semicolon.
            if i > 0 || !inside_statement {
                opcodes.extend(opcode(part));
            }
        }
        let rest = code.rsplit(';').next().unwrap_or_default();
        inside_statement = match code.contains(';') {
            true => is_open(rest),
            false => inside_statement || is_open(rest),
        };
        // Blocks of inline assembly and vectors have braces of their own.
        depth += code.matches('{').count();
        depth = depth.saturating_sub(code.matches('}').count());
        if depth == 0 {
            break;
        }
    }
    opcodes
}

/// Whether text after the last semicolon of a line is the start of a statement, not a label or a brace.
fn is_open(rest: &str) -> bool {
    let rest = rest.trim().trim_start_matches(['{', '}']).trim();
    !rest.is_empty() && !rest.ends_with(':')
}

/// The opcode that a statement starts with, past labels, braces and the predicate; none for directives.
fn opcode(statement: &str) -> Option<&str> {
    let mut rest = statement.trim_start_matches(|c: char| c.is_whitespace() || c == '{' || c == '}');
    loop {
        let word = rest.split_whitespace().next()?;
        if word.ends_with(':') || word.starts_with('@') {
            rest = rest[word.len()..]
                .trim_start_matches(|c: char| c.is_whitespace() || c == '{' || c == '}');
        } else {
            return word.starts_with(|c: char| c.is_ascii_lowercase()).then_some(word);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_are_found_in_every_layout_that_llc_and_asm_blocks_use() {
        let ptx = "\
.version 8.0
.visible .entry k(
)
.maxntid 128, 1, 1
{
\t.reg .pred \t%p<2>;
\t.loc\t1 2 3 // a.rs:2:3
$L__BB0_1: // loop
\t@%p1 bra \t$L__BB0_2;
\t// begin inline asm
\t{
.reg .pred p; setp.ne.b32 p, %r1, 0; @!p bar.sync 0;
}
\tmma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%r1, %r2},
\t\t{%r3, %r4},
\t\t{%r5};
\tWAIT: mbarrier.try_wait.b64 p, [%r1]; @!p bra WAIT;
\t// end inline asm
\tret;
}
";
        let want = [
            "bra",
            "setp.ne.b32",
            "bar.sync",
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
            "mbarrier.try_wait.b64",
            "bra",
            "ret",
        ];
        assert_eq!(opcodes(ptx), want);
    }
}
