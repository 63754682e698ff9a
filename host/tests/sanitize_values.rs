//! `fattn sanitize`: expected contents, values of variables, severities and exit codes, SARIF, origins of NaN.

use serde_json::Value;
use std::path::PathBuf;
use std::process::Command;

/// A file of its own for each test, removed when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let name = format!("fattn-sanitize-values-{}-{name}", std::process::id());
        let file = File(std::env::temp_dir().join(name));
        std::fs::write(&file.0, bytes).unwrap();
        file
    }

    fn kernel(name: &str, head: &str, body: &str) -> Self {
        let text = format!(
            ".version 8.0\n.target sm_80\n.address_size 64\n{head}\n.visible .entry k(.param .u64 data) {{
            .reg .pred %p<4>; .reg .b32 %r<8>, %tid; .reg .b64 %d<4>, %data, %mine; .shared .align 4 .b32 word;
            ld.param.u64 %data, [data]; mov.u32 %tid, %tid.x; mul.wide.u32 %mine, %tid, 4;
            add.s64 %mine, %mine, %data;\n{body}\nret; }}\n"
        );
        File::new(&format!("{name}.ptx"), text)
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

/// The text of a run of a kernel with a buffer, which ends with this exit code.
#[track_caller]
fn answer(kernel: &File, buffer: &str, options: &[&str], code: i32) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fattn"));
    command.args(["sanitize", "--ptx", kernel.text(), "--block", "8", "--arg", buffer]).args(options);
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap() + &String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{text}");
    text
}

#[test]
fn buffers_are_compared_with_what_is_expected() {
    let kernel = File::kernel("expect", "", "cvt.rn.f32.u32 %r1, %tid; st.global.f32 [%mine], %r1;");
    let floats = |by: f32| (0..8).flat_map(|i| (i as f32 * by).to_le_bytes()).collect::<Vec<_>>();
    let (exact, near) = (File::new("exact", floats(1.0)), File::new("near", floats(1.001)));
    let buffer = |file: &File, more: &str| format!("buf:f32:8:uninit,expect={}{more}", file.text());
    answer(&kernel, &buffer(&exact, ""), &[], 0);
    let text = answer(&kernel, &buffer(&near, ""), &[], 1);
    assert!(
        text.contains("7 not as expected (first: element 1) -- not as expected\n1 error\n"),
        "{text}"
    );
    answer(&kernel, &buffer(&near, ",rtol=0.0011"), &[], 0);
    answer(&kernel, &buffer(&near, ",rtol=0.0009"), &[], 1);
    answer(&kernel, &buffer(&near, ",atol=0.008"), &[], 0);
    let short = File::new("short", [0; 8]);
    let text = answer(&kernel, &buffer(&short, ""), &[], 2);
    assert!(text.contains("expected 32 bytes to expect, as many as the buffer has, got `8`"), "{text}");
    let text = answer(&kernel, "buf:f32:8:zeros,atol=1", &[], 2);
    assert!(text.contains("expected expect=PATH with a tolerance, got `none`"), "{text}");
    let text = answer(&kernel, &buffer(&near, ",atol=-1"), &[], 2);
    assert!(text.contains("a number of at least 0 (atol), got `-1`"), "{text}");
}

#[test]
fn variables_have_the_values_that_they_are_given() {
    let kernel = File::kernel(
        "symbols",
        ".const .align 4 .b32 scale;\n.global .align 4 .b8 table[32];",
        "mov.u64 %d1, table; mul.wide.u32 %d2, %tid, 4; add.s64 %d1, %d1, %d2; ld.global.b32 %r1, [%d1];
         ld.const.b32 %r2, [scale]; mad.lo.s32 %r1, %r1, %r2, 0; st.global.b32 [%mine], %r1;",
    );
    let want: Vec<u8> = (0..8u32).flat_map(|i| (i * 5).to_le_bytes()).collect();
    let want = File::new("table", want);
    let buffer = format!("buf:u32:8:uninit,expect={}", want.text());
    answer(&kernel, &buffer, &["--symbol", "scale=u32:5", "--symbol", "table=buf:u32:8:iota"], 0);
    // Without values they are zeros.
    answer(&kernel, &buffer, &[], 1);
    let text = answer(&kernel, &buffer, &["--symbol", "tabel=u32:5"], 2);
    assert!(text.contains("expected a variable of the text: scale, table, got `tabel`"), "{text}");
    let text = answer(&kernel, &buffer, &["--symbol", "scale=u64:5"], 2);
    assert!(text.contains("expected at most the 4 bytes of scale, got `8`"), "{text}");
}

#[test]
fn a_strict_run_reports_loads_of_which_nothing_comes() {
    let kernel = File::kernel("strict", "", "ld.global.b32 %r1, [%mine]; st.global.b32 [%mine], %tid;");
    answer(&kernel, "buf:u32:8:uninit,written", &[], 0);
    let text = answer(&kernel, "buf:u32:8:uninit,written", &["--strict"], 1);
    assert!(text.contains("1. error: uninitialised global read: byte 0 of 4 bytes read"), "{text}");
    answer(&kernel, "buf:u32:8:zeros", &["--strict"], 0);
}

#[test]
fn notes_are_no_failure_unless_they_are_denied() {
    let kernel = File::kernel("note", "", "st.shared.b32 [word], 7;");
    let options = ["--block", "64"];
    let run = |more: &[&str], code| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fattn"));
        command
            .args(["sanitize", "--ptx", kernel.text(), "--arg", "buf:u32:64:zeros"])
            .args(options)
            .args(more);
        let output = command.output().unwrap();
        assert_eq!(output.status.code(), Some(code));
        String::from_utf8(output.stdout).unwrap()
    };
    let text = run(&[], 0);
    assert!(text.contains("1. note: writes of one value that nothing orders: "), "{text}");
    assert!(text.ends_with("\n1 note\n"), "{text}");
    run(&["--deny", "warnings"], 0);
    run(&["--deny", "notes"], 1);
    let report: Value = serde_json::from_str(&run(&["--json"], 0)).unwrap();
    assert_eq!((&report["errors"], &report["notes"]), (&0.into(), &1.into()));
    assert_eq!(report["findings"][0]["severity"], "note");
}

/// The first error is printed, however many notes were met before.
#[test]
fn errors_come_before_notes() {
    let notes: String = (0..5).map(|_| "st.shared.b32 [word], 7; bar.sync 0;\n").collect();
    let kernel = File::kernel("order", "", &format!("{notes} st.global.b32 [%data+4096], 1;"));
    let mut command = Command::new(env!("CARGO_BIN_EXE_fattn"));
    command.args(["sanitize", "--ptx", kernel.text(), "--block", "64", "--arg", "buf:u32:64:zeros"]);
    let output = command.args(["--max-findings", "1"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("\n1. error: out-of-bounds global access"), "{text}");
    assert!(text.ends_with("1 error, 5 notes; 5 of them not shown\n"), "{text}");
}

#[test]
fn findings_are_written_in_sarif() {
    let body = ".loc 1 12 5\nst.global.b32 [%mine+16], %tid;";
    let kernel = File::kernel("sarif", ".file 1 \"src/k.cu\"", body);
    let file = File::new("findings.sarif", "");
    answer(&kernel, "buf:u32:8:zeros", &["--sarif", file.text()], 1);
    let sarif: Value = serde_json::from_slice(&std::fs::read(&file.0).unwrap()).unwrap();
    assert_eq!(sarif["version"], "2.1.0");
    let result = &sarif["runs"][0]["results"][0];
    assert_eq!(
        (&result["ruleId"], &result["level"]),
        (&"outOfBoundsGlobalAccess".into(), &"error".into())
    );
    let place = &result["locations"][0]["physicalLocation"];
    assert_eq!(place["artifactLocation"]["uri"], "src/k.cu");
    assert_eq!(place["region"], serde_json::json!({ "startLine": 12, "startColumn": 5 }));
    let related = &result["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"];
    assert_eq!(related, kernel.text());
}

#[test]
fn the_first_value_that_is_not_finite_is_traced() {
    let kernel = File::kernel(
        "nan",
        "",
        "cvt.rn.f32.u32 %r1, %tid; sub.f32 %r2, %r1, %r1; div.rn.f32 %r3, %r2, %r2;\nst.global.f32 [%mine], %r3;",
    );
    let text = answer(&kernel, "buf:f32:8:uninit", &["--trace-nonfinite"], 0);
    assert!(text.contains("first value that is not finite: invalid operation: NaN"), "{text}");
    assert!(text.contains("div.rn.f32 %r3, %r2, %r2"), "{text}");
}
