//! `fattn sanitize --case` and `--save-case`: several launches, and files that hold all of a run.

mod command;

use command::{Directory, sanitized as answer};
use serde_json::{Value, json};

/// The path of a file that says what is launched.
fn case_file(folder: &Directory, case: &Value) -> String {
    folder.write("case.json", case.to_string())
}

/// `fill` stores `scale` times the index, or 7 beyond the end with `beyond`; `count` adds 1 to a variable and stores
/// the sum of it and each element of `from` in `to`.
const KERNELS: &str = "\
.version 8.0
.target sm_80
.address_size 64
.const .align 4 .b32 scale;
.global .align 4 .b32 runs;
.visible .entry fill(.param .u64 data, .param .u32 beyond) {
    .reg .b32 %r<6>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [data]; ld.param.u32 %r1, [beyond]; mov.u32 %r2, %tid.x; ld.const.b32 %r3, [scale];
    mul.lo.s32 %r3, %r3, %r2; add.s32 %r2, %r2, %r1; mul.wide.u32 %d2, %r2, 4; add.s64 %d1, %d1, %d2;
    st.global.b32 [%d1], %r3; ret; }
.visible .entry count(.param .u64 from, .param .u64 to) {
    .reg .pred %p; .reg .b32 %r<6>; .reg .b64 %d<4>;
    ld.param.u64 %d1, [from]; ld.param.u64 %d2, [to]; mov.u32 %r1, %tid.x; mul.wide.u32 %d3, %r1, 4;
    add.s64 %d1, %d1, %d3; add.s64 %d2, %d2, %d3; setp.eq.u32 %p, %r1, 0; ld.global.b32 %r2, [runs]; bar.sync 0;
    add.s32 %r2, %r2, 1; @%p st.global.b32 [runs], %r2; ld.global.b32 %r3, [%d1]; add.s32 %r3, %r3, %r2;
    st.global.b32 [%d2], %r3; ret; }
";

/// What the last of fill, count, count leaves in 8 elements with a scale of 5.
fn wanted() -> Vec<u8> {
    (0..8u32).flat_map(|index| (5 * index + 3).to_le_bytes()).collect()
}

fn fill_and_count(expect: &str) -> Value {
    json!({
        "modules": { "k": "kernels.ptx" },
        "buffers": { "x": "buf:u32:8:uninit", "y": format!("buf:u32:8:uninit,written,expect={expect}") },
        "symbols": { "scale": "u32:5" },
        "launches": [
            { "entry": "fill", "block": [8], "args": ["ref:x", "u32:0"] },
            { "entry": "count", "grid": [1], "block": [8], "args": ["ref:x", "ref:y"] },
            { "module": "k", "entry": "count", "block": [8, 1, 1], "args": ["ref:y", "ref:x"] },
        ],
    })
}

#[test]
fn launches_find_what_those_before_have_left() {
    let folder = Directory::new("launches");
    folder.write("kernels.ptx", KERNELS);
    folder.write("wanted", wanted());
    let mut case = fill_and_count("hex:");
    case["buffers"] =
        json!({ "x": "buf:u32:8:uninit,written,expect=wanted", "y": "buf:u32:8:uninit,written" });
    let text = answer(&["--case", &case_file(&folder, &case)], 0);
    assert!(
        text.starts_with("launch 1: kernel fill (sm_80), grid 1x1x1, block 8x1x1, 0 bytes"),
        "{text}"
    );
    assert!(
        text.contains("\nlaunch 3: kernel count (sm_80)") && text.ends_with("nothing found\n"),
        "{text}"
    );
    // Without the value of the variable, all elements but the first are others.
    case.as_object_mut().unwrap().remove("symbols");
    let text = answer(&["--case", &case_file(&folder, &case)], 1);
    assert!(text.contains("x: 8 u32: 0 never written, 7 not as expected (first: element 1)"), "{text}");
}

#[test]
fn findings_say_of_which_launch_they_are_and_none_runs_behind_a_fault() {
    let folder = Directory::new("fault");
    folder.write("kernels.ptx", KERNELS);
    let mut case = fill_and_count("hex:");
    case["buffers"] = json!({ "x": "buf:u32:8:uninit", "y": "buf:u32:8:uninit,out=y" });
    case["launches"][0]["args"] = json!(["ref:x", "u32:2"]);
    case["options"] = json!({ "schedule": "latest" });
    let path = case_file(&folder, &case);
    let text = answer(&["--case", &path], 1);
    assert!(
        text.contains("1. error: out-of-bounds global access") && text.contains("in launch 1 of 3"),
        "{text}"
    );
    assert!(
        text.contains("the last 2 launches did not run") && text.contains("\n1 schedule: latest\n"),
        "{text}"
    );
    // What the command says counts before.
    let report = answer(&["--case", &path, "--json", "--schedules", "3"], 1);
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["schedules"], json!(["eager", "latest", "random (seed 0)"]));
    assert_eq!((&report["findings"][0]["launch"], &report["not_run"]), (&json!(0), &json!(2)));
    assert_eq!(report["launches"][2]["kernel"], "count");
    // It is written where the case is.
    assert_eq!(std::fs::read(folder.file("y")).unwrap().len(), 32);
    // An uninitialised read of the second launch.
    case["launches"].as_array_mut().unwrap().remove(0);
    let text = answer(&["--case", &case_file(&folder, &case)], 1);
    assert!(
        text.contains("error: uninitialised global read") && text.contains("in launch 1 of 2"),
        "{text}"
    );
}

#[test]
fn a_saved_case_needs_no_other_file_and_shows_the_same() {
    let folder = Directory::new("saved");
    let ptx = folder.write("kernels.ptx", KERNELS);
    let wanted = folder.write("wanted", wanted());
    let (first, second) = (folder.file("first.json"), folder.file("second.json"));
    // From options: one launch, with buffers of several kinds, a variable, a region, and a schedule.
    let buffer = format!("buf:u32:8:random:3,name=x,written,expect={wanted},atol=2");
    let from_options = [
        "--ptx",
        &ptx,
        "--entry",
        "fill",
        "--block",
        "8",
        "--shared",
        "64",
        "--region",
        "a=0x10:16",
        "--arg",
        &buffer,
        "--arg",
        "u32:0",
        "--symbol",
        "scale=u32:5",
        "--schedule",
        "random",
        "--seed",
        "4",
        "--strict",
    ];
    let run = |arguments: &[&str], code| {
        let text = answer(&[arguments, &["--json"]].concat(), code);
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let before = run(&[&from_options[..], &["--save-case", &first]].concat(), 1);
    // Off by 3 everywhere, which is more than 2.
    assert_eq!(before["buffers"][0]["wrong"], 8);
    for name in ["kernels.ptx", "wanted"] {
        std::fs::remove_file(folder.file(name)).unwrap();
    }
    let after = run(&["--case", &first, "--save-case", &second], 1);
    assert_eq!(before, after);
    let [first, second] = [first, second].map(|path| std::fs::read_to_string(path).unwrap());
    assert_eq!(first, second);
    let saved: Value = serde_json::from_str(&first).unwrap();
    assert_eq!(
        saved["options"],
        json!({ "schedule": "random", "seed": 4, "strict": true, "any_order": false })
    );
    // From a case.
    folder.write("kernels.ptx", KERNELS);
    let case = case_file(&folder, &fill_and_count(&format!("hex:{}", "00".repeat(32))));
    let (third, fourth) = (folder.file("third.json"), folder.file("fourth.json"));
    let before = run(&["--case", &case, "--save-case", &third], 1);
    std::fs::remove_file(folder.file("kernels.ptx")).unwrap();
    assert_eq!(before, run(&["--case", &third, "--save-case", &fourth], 1));
}

#[test]
fn what_is_no_case_is_refused_with_its_place() {
    let folder = Directory::new("refused");
    folder.write("kernels.ptx", KERNELS);
    folder.write("other.ptx", KERNELS);
    let refusal = |change: &dyn Fn(&mut Value)| {
        let mut case = fill_and_count("hex:");
        case["buffers"] = json!({ "x": "buf:u32:8:uninit", "y": "buf:u32:8:uninit" });
        change(&mut case);
        answer(&["--case", &case_file(&folder, &case)], 2)
    };
    for (change, message) in [
        (
            (&|case: &mut Value| case["launches"] = json!([])) as &dyn Fn(&mut Value),
            "fattn: --case: expected launches, got `none`",
        ),
        (
            &|case| case["launches"][1]["block"] = json!([8, 0]),
            "fattn: --case: launch 2: block: expected 1 to 3 numbers of at least 1, such as [4] or [4, 2, 1], got \
             `[8, 0]`",
        ),
        (
            &|case| case["launches"][1]["entry"] = json!("cuont"),
            "fattn: --case: launch 2: entry: expected a kernel of the text: fill, count, got `cuont`",
        ),
        (
            &|case| case["launches"][0]["args"] = json!(["ref:x"]),
            "fattn: --case: launch 1: arg: expected 2 (data: 8 bytes, beyond: 4 bytes), got 1",
        ),
        (
            &|case| case["launches"][0]["args"] = json!(["ref:z", "u32:0"]),
            "fattn: --case: launch 1: arg `ref:z`: expected the name of a buffer: x, y, got `z`",
        ),
        (
            &|case| case["modules"] = json!({ "k": "kernels.ptx", "o": "other.ptx" }),
            "fattn: --case: launch 1: module: expected one of k, o, got `none`",
        ),
        (
            &|case| case["symbols"] = json!({ "k.sclae": "u32:5" }),
            "fattn: --case: symbol k.sclae: expected a variable of the text: scale, runs, got `sclae`",
        ),
        (
            &|case| case["buffers"]["x"] = json!("buf:u32:8:hex:00"),
            "fattn: --case: buffer x: expected hex: of 32 bytes, got `1`",
        ),
    ] {
        let text = refusal(change);
        assert!(text.starts_with(message), "{text}");
    }
    let text = refusal(&|case| case["launches"][0]["blok"] = json!([8]));
    assert!(text.contains("case.json: unknown field `blok`, expected one of `module`"), "{text}");
    let text = refusal(&|case| case["modules"]["k"] = json!("nowhere.ptx"));
    assert!(text.starts_with("fattn: --case: module k: ") && text.contains("nowhere.ptx"), "{text}");
    let text = answer(&["--case", "x.json", "--ptx", "x.ptx"], 2);
    assert!(
        text.contains("'--case <FILE.json>' cannot be used with") && text.contains("--ptx"),
        "{text}"
    );
}
