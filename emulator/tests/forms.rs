//! Which forms of instructions the emulator takes: all that stand in `forms.txt`, and, where ptxas is at hand, that it
//! takes them too, so that the list does not grow stale.

use ptx_emulator::Module;
use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;

const HEAD: &str = ".version 9.0\n.target sm_90a\n.address_size 64\n.shared .align 128 .b8 room[256];\n\
    .visible .entry k(.param .u64 data) {\n.reg .pred %p<8>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .f32 %f<32>; \
    .reg .b64 %d<16>; .reg .f64 %g<16>; .reg .b128 %q<4>; ld.param.u64 %d1, [data]; mov.u32 %r20, room;\n";

/// The forms of a line: all ways to choose from the braces of its opcode.
fn expand(line: &str) -> Vec<String> {
    let (opcode, operands) = line.split_once(' ').unwrap_or((line, ""));
    let mut opcodes = vec![String::new()];
    let mut rest = opcode;
    while let Some(start) = rest.find('{') {
        let end = start + rest[start..].find('}').expect("a brace that is closed");
        let choices: Vec<&str> = rest[start + 1..end].split(',').collect();
        let prefix = &rest[..start];
        let with =
            |before: &String| choices.iter().map(|c| format!("{before}{prefix}{c}")).collect::<Vec<_>>();
        opcodes = opcodes.iter().flat_map(with).collect();
        rest = &rest[end + 1..];
    }
    opcodes
        .into_iter()
        .map(|opcode| format!("{opcode}{rest} {operands}").trim_end().to_string())
        .collect()
}

/// The forms that are taken, and those that are refused.
fn forms() -> (Vec<String>, Vec<String>) {
    let lines = include_str!("forms.txt").lines().map(str::trim);
    let lines: Vec<&str> = lines.filter(|line| !line.is_empty() && !line.starts_with('#')).collect();
    let (refused, taken): (Vec<&str>, Vec<&str>) = lines.iter().partition(|line| line.starts_with("- "));
    let refused = refused.iter().map(|line| line[2..].to_string()).collect();
    (taken.into_iter().flat_map(expand).collect(), refused)
}

/// Why the emulator refuses a form, if it does.
fn refusal(form: &str) -> Option<String> {
    match Module::parse(&format!("{HEAD}{form}\nret; }}\n")) {
        Ok(module) => module.kernel("k")?.error().map(|error| error.to_string()),
        Err(error) => Some(error.to_string()),
    }
}

#[test]
fn all_forms_of_the_list_are_taken() {
    let (taken, refused) = forms();
    assert!(taken.len() > 800, "{}", taken.len());
    let wrong: Vec<String> = taken.iter().filter_map(|form| refusal(form)).collect();
    assert!(wrong.is_empty(), "{} forms:\n{}", wrong.len(), wrong.join("\n"));
    // What runs meanwhile belongs above.
    let wrong: Vec<&String> = refused.iter().filter(|form| refusal(form).is_none()).collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// `$PTXAS`, or the one in the path.
fn ptxas() -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os("PTXAS").unwrap_or_else(|| "ptxas".into()));
    let answers =
        Command::new(&path).arg("--version").output().is_ok_and(|output| output.status.success());
    answers.then_some(path)
}

/// It says of every line of a text whether it is wrong, so that one text asks about all forms.
#[test]
fn ptxas_takes_all_forms_of_the_list() {
    let Some(ptxas) = ptxas() else {
        eprintln!("no ptxas at hand: set $PTXAS to one of CUDA 13.0 or newer");
        return;
    };
    let (taken, refused) = forms();
    let first = HEAD.lines().count() + 1;
    let all: Vec<&String> = taken.iter().chain(&refused).collect();
    let text = all.iter().fold(HEAD.to_string(), |text, form| text + form + "\n") + "ret; }\n";
    let file = std::env::temp_dir().join(format!("ptx-emulator-forms-{}.ptx", std::process::id()));
    std::fs::write(&file, text).unwrap();
    let output = Command::new(ptxas).args(["-arch=sm_90a", "-c", "-o", "/dev/null"]).arg(&file).output();
    let _ = std::fs::remove_file(&file);
    let text = String::from_utf8(output.unwrap().stderr).unwrap();
    let lines: BTreeSet<usize> = text
        .lines()
        .filter(|line| line.contains("error"))
        .filter_map(|line| line.split_once(", line ")?.1.split_once(';')?.0.trim().parse().ok())
        .collect();
    let wrong: Vec<&String> =
        lines.iter().filter_map(|&line| all.get(line.checked_sub(first)?).copied()).collect();
    assert!(wrong.is_empty(), "ptxas takes no\n{wrong:#?}\n{text}");
}
