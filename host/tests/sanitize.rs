//! `fattn sanitize`: what it finds in the example of the docs, what it refuses, and what it writes.

mod command;

use command::sanitized as answer;
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use std::path::PathBuf;

const EXAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/sanitize");

/// A file of its own for each test, removed when dropped.
struct File(PathBuf);

impl File {
    fn new(name: &str) -> Self {
        File(std::env::temp_dir().join(format!("fattn-sanitize-{}-{name}", std::process::id())))
    }

    fn with(name: &str, bytes: impl AsRef<[u8]>) -> Self {
        let file = File::new(name);
        std::fs::write(&file.0, bytes).unwrap();
        file
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

/// A kernel with one parameter `data` of 8 bytes in `%data`, and one `n` of 4 in `%n`.
fn kernel(name: &str, body: &str) -> File {
    let text = format!(
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 data, .param .u32 n) {{
        .reg .pred %p<4>; .reg .b32 %r<8>, %n, %tid; .reg .b64 %data, %mine; .shared .align 4 .b32 word;
        ld.param.u64 %data, [data]; ld.param.u32 %n, [n]; mov.u32 %tid, %tid.x;
        mul.wide.u32 %mine, %tid, 4; add.s64 %mine, %mine, %data;\n{body}\nret; }}\n"
    );
    File::with(&format!("{name}.ptx"), text)
}

/// The report of a run as JSON.
#[track_caller]
fn report(arguments: &[&str], code: i32) -> Value {
    serde_json::from_str(&answer(&[arguments, &["--json"]].concat(), code)).unwrap()
}

/// The example of the docs, with so many queries, 24 keys, and room for so many rows of dv.
fn example(name: &str, queries: usize, rows: usize) -> Vec<String> {
    let path = format!("{EXAMPLES}/{name}.ptx");
    let [p, d_o] = [format!("buf:f32:{queries}x24:random:1"), format!("buf:f32:{queries}x4:random:2")];
    let dv = format!("buf:f32:{rows}x4:uninit,finite,written");
    let mut arguments: Vec<String> =
        ["--ptx", &path, "--block", "64", "--shared", "4616"].map(str::to_owned).to_vec();
    for argument in [p, d_o, dv, format!("u32:{queries}"), "u32:24".to_owned()] {
        arguments.extend(["--arg".to_owned(), argument]);
    }
    arguments
}

fn texts(arguments: &[String]) -> Vec<&str> {
    arguments.iter().map(String::as_str).collect()
}

/// The line of the example's source that a finding names.
fn source_line(finding: &Value) -> String {
    let (file, line) =
        (finding["source"]["file"].as_str().unwrap(), finding["source"]["line"].as_u64().unwrap());
    let text = std::fs::read_to_string(format!("{EXAMPLES}/{file}")).unwrap();
    text.lines().nth(line as usize - 1).unwrap().trim().to_owned()
}

#[test]
fn the_broken_example_has_three_faults_each_with_its_line() {
    let report = report(&texts(&example("dv_broken", 20, 24)), 1);
    let findings = report["findings"].as_array().unwrap();
    let found = |kind: &str, line: &str| {
        findings.iter().any(|finding| finding["kind"] == kind && source_line(finding).starts_with(line))
    };
    assert!(found("uninitialised shared read", "float4 gradient = shared.d_o[row];"), "{report:#}");
    assert!(found("race in shared memory", "if (warp == 1) shared.sums[lane] = sum;"), "{report:#}");
    assert!(found("out-of-bounds global access", "dv[lane] = sum;"), "{report:#}");
    assert_eq!(report["schedules"].as_array().unwrap().len(), 10);
    assert_eq!((&report["kernel"], &report["target"]), (&"dv_broken".into(), &"sm_90a".into()));
}

/// With room for all lanes the store ends nothing, and the NaN of the rows that nobody cleared is seen.
#[test]
fn the_broken_example_makes_nan_of_finite_numbers() {
    let report = report(&texts(&example("dv_broken", 20, 32)), 1);
    let dv = &report["buffers"][2];
    assert_eq!((&dv["name"], &dv["nan"], &dv["first_nan"]), (&"dv".into(), &128.into(), &0.into()));
    assert_eq!(dv["broken"], serde_json::json!(["finite"]));
}

#[test]
fn the_fixed_example_is_clean_and_right() {
    for queries in [1, 20, 32, 40, 100] {
        let out = File::new(&format!("dv-{queries}"));
        let mut arguments = example("dv_fixed", queries, 24);
        let dv = arguments.iter().position(|argument| argument.contains(",finite")).unwrap();
        arguments[dv] += &format!(",out={}", out.text());
        let (p, d_o) = (File::new(&format!("p-{queries}")), File::new(&format!("do-{queries}")));
        arguments[dv - 4] += &format!(",out={}", p.text());
        arguments[dv - 2] += &format!(",out={}", d_o.text());
        let text = answer(&texts(&arguments), 0);
        assert!(text.ends_with("nothing found\n"), "{text}");
        let floats = |file: &File| -> Vec<f32> {
            bytemuck::allocation::pod_collect_to_vec(&std::fs::read(&file.0).unwrap())
        };
        let (p, d_o, dv) = (floats(&p), floats(&d_o), floats(&out));
        for (index, got) in dv.iter().enumerate() {
            let (key, column) = (index / 4, index % 4);
            let exact: f32 =
                (0..queries).map(|query| p[query * 24 + key] * d_o[query * 4 + column]).sum();
            assert!((got - exact).abs() < 1e-4, "{queries} queries, element {index}: {got}, {exact}");
        }
    }
}

/// The page of the docs shows what the command prints.
#[test]
fn the_page_of_the_docs_is_up_to_date() {
    let page = std::fs::read_to_string(format!("{EXAMPLES}.md")).unwrap();
    let broken = answer(&texts(&example("dv_broken", 20, 24)), 1);
    assert!(page.contains(&broken), "docs/sanitize.md does not show this:\n{broken}");
    let roomy = answer(&texts(&example("dv_broken", 20, 32)), 1);
    let dv = roomy.lines().find(|line| line.starts_with("dv: ")).unwrap();
    assert!(page.contains(dv), "docs/sanitize.md does not show this:\n{dv}");
    let fixed = answer(&texts(&example("dv_fixed", 20, 24)), 0);
    let (_, end) = fixed.split_once("\n\n").unwrap();
    assert!(page.contains(end), "docs/sanitize.md does not show this:\n{end}");
}

/// The buffers of the example, with so many bytes of d_o.
fn regions(d_o: &str) -> Vec<String> {
    let all = [d_o, "p=0x200:0x1000", "arrived=0x1200:8"];
    all.iter().flat_map(|&region| ["--region".to_owned(), region.to_owned()]).collect()
}

#[test]
fn findings_name_regions_that_were_given() {
    let page = std::fs::read_to_string(format!("{EXAMPLES}.md")).unwrap();
    let arguments = [example("dv_broken", 20, 24), regions("d_o=0:512")].concat();
    let text = answer(&texts(&arguments), 1);
    assert!(
        text.contains("\nregion d_o (bytes 0x0 to 0x200)\nregion p (bytes 0x200 to 0x1200)\n"),
        "{text}"
    );
    let race =
        text.lines().find(|line| line.contains(". error: race in shared memory: warp 1")).unwrap();
    assert!(page.contains(race), "docs/sanitize.md does not show this:\n{race}");
    let found = report(&texts(&arguments), 1);
    let region = serde_json::json!({ "name": "p", "offset": 0x200, "bytes": 0x1000 });
    assert_eq!(found["regions"][1], region);
    let names_region = |finding: &Value| finding["message"].as_str().unwrap().contains("(d_o + 0x1");
    assert!(found["findings"].as_array().unwrap().iter().any(names_region), "{found:#}");
    answer(&texts(&[example("dv_fixed", 20, 24), regions("d_o=0:512")].concat()), 0);
}

#[test]
fn accesses_beyond_a_region_are_found_at_their_line() {
    let report = report(&texts(&[example("dv_fixed", 20, 24), regions("d_o=0:320")].concat()), 1);
    let findings = report["findings"].as_array().unwrap();
    let stray = |finding: &Value| finding["kind"] == "out-of-region shared access";
    assert!(!findings.is_empty() && findings.iter().all(stray), "{report:#}");
    let read = findings.iter().find(|finding| source_line(finding).starts_with("float4 gradient"));
    let message = read.expect("rows that nobody brought are read")["message"].as_str().unwrap();
    let places = "shared addresses 0x540 to 0x550, touches no region, behind d_o (0x400 to 0x540)";
    assert!(message.contains(places), "{message}");
}

#[test]
fn regions_that_cannot_be_are_refused() {
    let refused = |region: &str| {
        let arguments = [example("dv_fixed", 20, 24), vec!["--region".to_owned(), region.to_owned()]];
        answer(&texts(&arguments.concat()), 2)
    };
    let form = "NAME=OFFSET:BYTES, such as k[0]=0:4096 or v=0x1000:0x800";
    for text in ["p", "p=", "p=12", "=0:4"] {
        assert_eq!(refused(text), format!("fattn: --region `{text}`: expected {form}, got `{text}`\n"));
    }
    for number in ["", "x", "-1", "0x", "5000000000"] {
        let expected = format!("expected a number of bytes below 4 GiB, got `{number}`\n");
        assert_eq!(
            refused(&format!("p={number}:4")),
            format!("fattn: --region `p={number}:4`: {expected}")
        );
        assert_eq!(
            refused(&format!("p=4:{number}")),
            format!("fattn: --region `p=4:{number}`: {expected}")
        );
    }
    assert_eq!(refused("p=0:0"), "fattn: --region `p=0:0`: expected at least 1 byte, got `0`\n");
    assert_eq!(
        refused("p=4600:17"),
        "fattn: dv_fixed: region p (bytes 0x11f8 to 0x1209) ends beyond the 4616 bytes of dynamic shared memory\n"
    );
    let twice = [example("dv_fixed", 20, 24), regions("d_o=0:513")].concat();
    assert_eq!(
        answer(&texts(&twice), 2),
        "fattn: dv_fixed: regions d_o (bytes 0x0 to 0x201) and p (bytes 0x200 to 0x1200) of dynamic shared memory overlap\n"
    );
}

/// Rows of the tile before are as finite as any: such a shape does not show the missing zeros, as the page says.
#[test]
fn the_broken_example_looks_better_with_two_tiles() {
    let report = report(&texts(&example("dv_broken", 40, 32)), 1);
    let findings = report["findings"].as_array().unwrap();
    assert!(findings.iter().all(|finding| finding["kind"] == "race in shared memory"), "{report:#}");
    assert_eq!(report["buffers"][2]["nan"], 0);
}

const STORE: &str = "st.global.b32 [%mine], %tid;";

#[test]
fn text_of_a_clean_run() {
    let ptx = kernel("clean", STORE);
    let arguments =
        ["--ptx", ptx.text(), "--block", "2", "--arg", "buf:u32:4:uninit,name=out", "--arg", "u32:0"];
    let text = answer(&[&arguments[..], &["--schedule", "eager"]].concat(), 0);
    expect_test::expect![[r#"
        kernel k (sm_80), grid 1x1x1, block 2x1x1, 0 bytes of dynamic shared memory
        1 schedule: eager

        out: 4 u32: 2 never written (first: element 2)
        nothing found
    "#]]
    .assert_eq(&text);
    let text = answer(&[&arguments[..], &["--schedule", "latest", "--grid", "1,1,1"]].concat(), 0);
    assert!(text.contains("1 schedule: latest"), "{text}");
}

#[test]
fn text_of_a_finding() {
    let ptx = kernel("bounds", STORE);
    let arguments = ["--ptx", ptx.text(), "--block", "8", "--arg", "buf:u32:4:zeros", "--arg", "u32:0"];
    let text = answer(&[&arguments[..], &["--schedule", "random", "--seed", "5"]].concat(), 1);
    expect_test::expect![[r#"
        kernel k (sm_80), grid 1x1x1, block 8x1x1, 0 bytes of dynamic shared memory
        1 schedule: random (seed 5)

        1. error: out-of-bounds global access: store of 4 bytes at global address 0x10000000010: offset 16 in an allocation of 16 bytes
          in k, block (0, 0, 0), thread (4, 0, 0), 4 times in all
          PTX line 8: st.global.b32 [%mine], %tid
          under 1 of 1 schedules, again with --schedule random --seed 5

        data: 4 u32: 0 never written
        1 error
    "#]]
    .assert_eq(&text);
}

/// Two warps write one word, and mean to; who comes last is chance.
#[test]
fn results_that_depend_on_the_schedule_are_a_finding_unless_allowed() {
    let ptx = kernel("order", "st.relaxed.gpu.global.b32 [%data], %tid;");
    let arguments = ["--ptx", ptx.text(), "--block", "64", "--arg", "buf:u32:1:zeros", "--arg", "u32:0"];
    let found = report(&arguments, 1);
    assert_eq!(found["differences"][0]["buffer"], "data");
    assert!(
        found["differences"][0]["replay"][1].as_str().unwrap().starts_with("--schedule random --seed ")
    );
    let text = answer(&arguments, 1);
    assert!(text.contains("data: depends on the schedule: element 0 is "), "{text}");
    assert!(text.contains("(--any-order if that is meant: "), "{text}");
    let allowed = report(&[&arguments[..], &["--any-order"]].concat(), 0);
    assert_eq!(allowed["differences"].as_array().unwrap().len(), 1);
}

/// Which of two warps stores first is chance, and one of them stops the block: the rest follows from that.
#[test]
fn results_of_blocks_that_stop_are_no_finding_of_their_own() {
    let body = "st.relaxed.gpu.global.b32 [%data], %tid; setp.eq.u32 %p1, %tid, 40; @%p1 trap;";
    let ptx = kernel("stop", body);
    let arguments = ["--ptx", ptx.text(), "--block", "64", "--arg", "buf:u32:1:zeros", "--arg", "u32:0"];
    let found = report(&arguments, 1);
    assert_eq!(found["findings"][0]["kind"], "trap");
    assert_eq!(found["differences"].as_array().unwrap().len(), 0);
}

#[test]
fn all_kinds_of_arguments_reach_the_kernel() {
    let tensors = File::new("tensors");
    let numbers = [1f32, 2.0, 3.0].map(f32::to_le_bytes).concat();
    let view = TensorView::new(Dtype::F32, vec![3], &numbers).unwrap();
    std::fs::write(&tensors.0, safetensors::serialize([("x", view)], None).unwrap()).unwrap();
    let raw = File::with("raw", [7u8, 0, 0, 0]);
    let ptx = File::with(
        "arguments.ptx",
        ".version 7.8\n.target sm_80\n.address_size 64\n.visible .entry k(.param .u64 x, .param .u64 raw,
        .param .align 8 .b8 pair[24], .param .u64 again, .param .f32 f) {
        .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %d<4>;
        ld.param.u64 %d0, [x]; ld.param.u64 %d1, [raw]; ld.param.u64 %d2, [pair+8]; ld.param.u64 %d3, [again];
        ld.param.u8 %r0, [pair]; ld.param.u16 %r1, [pair+16]; ld.param.f32 %f0, [f];
        ld.global.f32 %f1, [%d0+8]; ld.global.u32 %r2, [%d1]; ld.global.f32 %f2, [%d3];
        st.global.u32 [%d2], %r0; st.global.u32 [%d2+4], %r1; st.global.u32 [%d2+8], %r2;
        st.global.f32 [%d2+12], %f0; st.global.f32 [%d2+16], %f1; st.global.f32 [%d2+20], %f2; ret; }",
    );
    let out = File::new("out");
    let [x, raw] = [format!("file:{}#x", tensors.text()), format!("file:{},dtype=u32", raw.text())];
    let pair = format!("pack:u8:9;buf:u32:6:uninit,name=out,written,out={};u16:0x11", out.text());
    let args = ["--arg", &x, "--arg", &raw, "--arg", &pair, "--arg", "ref:x+4", "--arg", "f32:-0.5"];
    answer(&[&["--ptx", ptx.text(), "--block", "1"][..], &args].concat(), 0);
    let words: Vec<u32> = bytemuck::allocation::pod_collect_to_vec(&std::fs::read(&out.0).unwrap());
    assert_eq!(words, [9, 0x11, 7, (-0.5f32).to_bits(), 3f32.to_bits(), 2f32.to_bits()]);
    assert!(SafeTensors::deserialize(&std::fs::read(&tensors.0).unwrap()).is_ok());
}

/// A box of a tensor through a tensor map, by value and by address.
#[test]
fn tensor_maps_by_value_and_by_address() {
    let by_value = ".param .align 64 .b8 map[128]";
    let load = "mov.b64 %map, map; cvta.param.u64 %map, %map;";
    for (parameter, load) in [(by_value, load), (".param .u64 map", "ld.param.u64 %map, [map];")] {
        let ptx = File::with(
            "map.ptx",
            format!(
                ".version 8.0\n.target sm_90a\n.address_size 64\n.extern .shared .align 1024 .b8 tile[];
                .visible .entry k({parameter}, .param .u64 out) {{ .reg .pred %p<2>; .reg .b32 %r<8>; .reg .b64 %map, %d<4>;
                {load} ld.param.u64 %d0, [out]; mov.u32 %r0, tile; mov.u32 %r1, 2;
                mbarrier.init.shared.b64 [%r0+1024], 1; fence.mbarrier_init.release.cluster;
                mbarrier.arrive.expect_tx.shared.b64 _, [%r0+1024], 64;
                cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r0], [%map, {{%r1, %r1}}], [%r0+1024];
                W: mbarrier.try_wait.parity.shared.b64 %p0, [%r0+1024], 0; @!%p0 bra W;
                ld.shared.u32 %r2, [%r0]; st.global.u32 [%d0], %r2; ld.shared.u32 %r2, [%r0+32]; st.global.u32 [%d0+4], %r2; ret; }}"
            ),
        );
        let out = File::new("map-out");
        let text = format!("buf:u32:2:uninit,out={}", out.text());
        let arguments = [
            "--ptx",
            ptx.text(),
            "--block",
            "1",
            "--shared",
            "1032",
            "--buffer",
            "buf:u32:16x8:iota,name=t",
            "--arg",
            "map:t,dtype=u32,dims=16x8,box=8x2",
            "--arg",
            &text,
        ];
        answer(&arguments, 0);
        let words: Vec<u32> = bytemuck::allocation::pod_collect_to_vec(&std::fs::read(&out.0).unwrap());
        assert_eq!(words, [2 * 16 + 2, 3 * 16 + 2]);
        let refused = arguments.map(|text| {
            if text.starts_with("map:") { "map:t,dtype=u32,dims=16x8,box=3x2" } else { text }
        });
        assert_eq!(
            answer(&refused, 2),
            "fattn: --arg `map:t,dtype=u32,dims=16x8,box=3x2`: tensor map: box_dims[0]: expected a multiple of 16 bytes, got 12\n"
        );
    }
}

#[test]
fn what_cannot_be_run_is_refused_by_name() {
    let ptx = kernel("refused", STORE);
    let two = File::with(
        "two.ptx",
        ".version 7.8\n.target sm_80\n.address_size 64\n.entry a() { ret; }\n.entry b() { ret; }\n",
    );
    let garbage = File::with("garbage.ptx", "frobnicate;");
    let unknown = kernel("unknown", "frobnicate.u32 %r1;");
    let good = ["--ptx", ptx.text(), "--block", "1", "--arg", "buf:u32:1:zeros", "--arg", "u32:0"];
    answer(&good, 0);
    let without = |count: usize, more: &[&'static str]| answer(&[&good[..count], more].concat(), 2);
    assert_eq!(without(6, &[]), "fattn: --arg: expected 2 (data: 8 bytes, n: 4 bytes), got 1\n");
    assert_eq!(
        without(6, &["--arg", "u64:0"]),
        "fattn: --arg `u64:0`: expected 4 bytes for the parameter n, got 8\n"
    );
    assert_eq!(
        without(4, &["--arg", "ref:x", "--arg", "u32:0", "--buffer", "buf:u8:1:zeros,name=y"]),
        "fattn: --arg `ref:x`: expected the name of a buffer: y, got `x`\n"
    );
    assert_eq!(
        without(4, &["--arg", "ref:y+2", "--arg", "u32:0", "--buffer", "buf:u8:1:zeros,name=y"]),
        "fattn: --arg `ref:y+2`: expected at most the 1 bytes of y, got `2`\n"
    );
    assert_eq!(
        without(8, &["--buffer", "buf:u8:1:zeros,name=data"]),
        "fattn: --arg `buf:u32:1:zeros`: expected a name of its own, got data, which another buffer has\n"
    );
    assert_eq!(
        without(8, &["--buffer", "buf:u8:1:zeros"]),
        "fattn: --buffer `buf:u8:1:zeros`: expected name=NAME, got `no name`\n"
    );
    assert_eq!(
        without(8, &["--grid", "1,0"]),
        "fattn: --grid: expected 1 to 3 numbers of at least 1, such as 4 or 4,2,1, got `1,0`\n"
    );
    assert_eq!(
        without(8, &["--schedule", "eager", "--schedules", "2"]),
        "fattn: --schedules: expected 1 of a schedule that is the same every time, got `2`\n"
    );
    assert_eq!(without(8, &["--schedules", "0"]), "fattn: --schedules: expected at least 1, got `0`\n");
    assert_eq!(
        without(8, &["--entry", "l"]),
        "fattn: --entry: expected a kernel of the text: k, got `l`\n"
    );
    let of = |file: &File| answer(&["--ptx", file.text(), "--block", "1"], 2);
    assert_eq!(of(&two), "fattn: --entry: expected one of a, b, got `none`\n");
    assert!(
        of(&garbage).starts_with(&format!("fattn: --ptx {}: PTX line 1: ", garbage.text())),
        "{}",
        of(&garbage)
    );
    let launch = ["--ptx", unknown.text(), "--block", "1", "--arg", "u64:0", "--arg", "u32:0"];
    assert_eq!(
        answer(&launch, 2),
        "fattn: k: PTX line 8: unsupported instruction: `frobnicate.u32 %r1`\n"
    );
    let block = good.map(|text| if text == "1" { "2000" } else { text });
    assert_eq!(answer(&block, 2), "fattn: k: block [2000, 1, 1] exceeds [1024, 1, 1] threads\n");
    assert_eq!(answer(&["--ptx", "nowhere.ptx", "--block", "1"], 2).split(':').nth(1), Some(" --ptx"));
}
