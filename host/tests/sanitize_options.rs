//! `fattn sanitize`: options and texts that it has to refuse, and what limits its report.

mod command;

use command::sanitized as answer;
use serde_json::Value;
use std::path::PathBuf;

/// A file of its own for each test, removed when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, text: &str) -> Self {
        let name = format!("fattn-sanitize-options-{}-{name}.ptx", std::process::id());
        let file = File(std::env::temp_dir().join(name));
        std::fs::write(&file.0, text).unwrap();
        file
    }

    /// A kernel without parameters.
    fn kernel(name: &str, target: &str, body: &str) -> Self {
        let head = format!(".version 8.0\n.target {target}\n.address_size 64\n");
        File::new(name, &format!("{head}.visible .entry k() {{\n{body}\nret; }}\n"))
    }

    fn text(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// The broken kernel of the README, and this option. `demands`: what is asked of dv, with a comma before it.
fn broken<'a>(demands: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    let ptx = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sanitize/dv_broken.ptx");
    let mut all = vec!["--ptx", ptx, "--block", "64", "--shared", "4616"];
    for argument in ["buf:f32:20x24:random:1", "buf:f32:20x4:random:2", demands, "u32:20", "u32:24"] {
        all.extend(["--arg", argument]);
    }
    [all.as_slice(), options].concat()
}

#[test]
fn findings_beyond_those_printed_are_counted() {
    let plain = "buf:f32:24x4:uninit";
    let run = |options: &[&str]| answer(&broken(plain, options), 1);
    let numbered = |text: &str| {
        text.lines().filter(|line| line.contains(". ") && line.as_bytes()[0].is_ascii_digit()).count()
    };
    let all = run(&[]);
    assert!(all.ends_with("\n4 errors\n") && numbered(&all) == 4, "{all}");
    for (most, end) in [
        ("1", "\n4 errors; 3 of them not shown\n"),
        ("3", "\n4 errors; 1 of them not shown\n"),
        ("4", "\n4 errors\n"),
    ] {
        let text = run(&["--max-findings", most]);
        assert!(text.ends_with(end) && numbered(&text).to_string() == most, "{text}");
    }
    let report: Value = serde_json::from_str(&run(&["--max-findings", "1", "--json"])).unwrap();
    assert_eq!((&report["count"], &report["shown"]), (&4.into(), &1.into()));
    assert_eq!(report["findings"].as_array().unwrap().len(), 1);
    // What is wrong with a buffer is printed in any case.
    let text = answer(&broken("buf:f32:24x4:uninit,finite", &["--max-findings", "1"]), 1);
    assert!(text.ends_with(" -- not finite\n5 errors; 3 of them not shown\n"), "{text}");
    assert_eq!(
        answer(&broken(plain, &["--max-findings", "0"]), 2),
        "fattn: --max-findings: expected at least 1, got `0`\n"
    );
}

#[test]
fn threads_are_at_least_one_and_not_more_than_there_can_be() {
    let ptx = File::kernel("threads", "sm_80", "");
    let run =
        |threads: &str, code| answer(&["--ptx", ptx.text(), "--block", "1", "--threads", threads], code);
    for threads in ["0", "1025", "99999999"] {
        assert_eq!(run(threads, 2), format!("fattn: --threads: expected 1 to 1024, got `{threads}`\n"));
    }
    run("1", 0);
    run("1024", 0);
}

#[test]
fn a_block_may_take_a_step() {
    let ptx = File::kernel("steps", "sm_80", "");
    let run =
        |limit: &str, code| answer(&["--ptx", ptx.text(), "--block", "1", "--step-limit", limit], code);
    assert_eq!(run("0", 2), "fattn: --step-limit: expected at least 1, got `0`\n");
    run("100", 0);
}

/// Others would take as long, and show the same.
#[test]
fn no_schedule_follows_one_that_does_not_end() {
    let ptx = File::kernel("endless", "sm_80", "AGAIN: bra AGAIN;");
    let text = answer(&["--ptx", ptx.text(), "--block", "1", "--step-limit", "1000"], 1);
    assert!(
        text.contains("1 schedule: eager\n") && text.contains("1. error: step limit reached"),
        "{text}"
    );
    assert!(text.contains("under 1 of 1 schedules"), "{text}");
}

/// Without an option it takes seconds, not an hour.
#[test]
fn an_endless_kernel_ends_by_itself() {
    let ptx = File::kernel("endless-default", "sm_80", "AGAIN: bra AGAIN;");
    let text = answer(&["--ptx", ptx.text(), "--block", "1"], 1);
    assert!(text.contains("1. error: step limit reached: 134217728 steps\n"), "{text}");
    assert!(text.contains("1 schedule: eager\n"), "{text}");
}

/// They are made one by one: the first one ends this run.
#[test]
fn schedules_may_be_as_many_as_there_are_seeds() {
    let ptx = File::kernel("schedules", "sm_80", "");
    for schedule in ["all", "random"] {
        let arguments = [
            "--ptx",
            ptx.text(),
            "--block",
            "2000",
            "--schedule",
            schedule,
            "--schedules",
            "18446744073709551615",
        ];
        assert_eq!(answer(&arguments, 2), "fattn: k: block [2000, 1, 1] exceeds [1024, 1, 1] threads\n");
    }
}

/// Not that it has other parameters than it is given: those of its text may be what is wrong.
#[test]
fn a_kernel_whose_text_is_wrong_is_refused_for_that_beside_a_good_one() {
    let good = ".visible .entry good(.param .u64 p) { ret; }\n";
    for (bad, wrong) in [
        ("(.param .u64 p) { .reg .b32 %r<2>; mov.u32 %r1, %nope; ret; }", "unknown name %nope"),
        ("(.param .u64 p, u32 n) { ret; }", "expected .param"),
    ] {
        let head = ".version 7.8\n.target sm_80\n.address_size 64\n";
        let ptx = File::new("two.ptx", &format!("{head}.visible .entry bad{bad}\n{good}"));
        let run = |entry: &str, code| {
            let arguments = ["--ptx", ptx.text(), "--entry", entry, "--block", "1"];
            answer(&[&arguments[..], &["--arg", "buf:u32:1:zeros"]].concat(), code)
        };
        let text = run("bad", 2);
        assert!(text.starts_with("fattn: bad: PTX line 4: ") && text.contains(wrong), "{text}");
        assert!(run("good", 0).ends_with("nothing found\n"));
    }
}

#[test]
fn text_that_is_no_ptx_is_quoted() {
    let ptx = File::new("hello", "hello");
    assert_eq!(
        answer(&["--ptx", ptx.text(), "--block", "1"], 2),
        format!("fattn: --ptx {}: PTX line 1: unsupported directive: `hello`\n", ptx.text())
    );
}

#[test]
fn targets_are_those_from_sm_70_to_sm_90a() {
    for target in ["sm_61", "sm_62", "sm_100a"] {
        let ptx = File::kernel(&format!("target-{target}"), target, "");
        let known = "sm_70, sm_72, sm_75, sm_80, sm_86, sm_87, sm_88, sm_89, sm_90, sm_90a";
        assert_eq!(
            answer(&["--ptx", ptx.text(), "--block", "1"], 2),
            format!("fattn: k: .target: expected one of {known}, got `{target}`\n")
        );
    }
}

#[test]
fn instructions_are_those_of_the_target() {
    for (target, code) in [("sm_80", 2), ("sm_86", 2), ("sm_89", 2), ("sm_90", 2), ("sm_90a", 0)] {
        let ptx = File::kernel(&format!("wgmma-{target}"), target, "wgmma.fence.sync.aligned;");
        let text = answer(&["--ptx", ptx.text(), "--block", "128"], code);
        let refused = format!(
            "fattn: k: PTX line 5: `wgmma.fence.sync.aligned`: expected .target sm_90a, got {target}\n"
        );
        assert!(if code == 0 { text.ends_with("nothing found\n") } else { text == refused }, "{text}");
    }
    let ptx = File::kernel("elect", "sm_89", ".reg .b32 %r; .reg .pred %p; elect.sync %r|%p, -1;");
    assert_eq!(
        answer(&["--ptx", ptx.text(), "--block", "32"], 2),
        "fattn: k: PTX line 5: `elect.sync %r|%p, -1`: expected .target sm_90 or newer, got sm_89\n"
    );
}

#[test]
fn shared_memory_is_that_of_the_target() {
    for (target, limit) in [
        ("sm_70", 96),
        ("sm_75", 64),
        ("sm_80", 163),
        ("sm_86", 99),
        ("sm_87", 163),
        ("sm_89", 99),
        ("sm_90", 227),
    ] {
        let ptx = File::kernel(&format!("shared-{target}"), target, "");
        let run = |bytes: u32, code| {
            answer(&["--ptx", ptx.text(), "--block", "1", "--shared", &bytes.to_string()], code)
        };
        let limit = limit * 1024;
        run(limit, 0);
        assert_eq!(
            run(limit + 1, 2),
            format!("fattn: k: {} bytes of shared memory exceed the {limit} of {target}\n", limit + 1)
        );
    }
}
