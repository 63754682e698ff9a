//! Modules that parse, and errors of those that do not.

mod common;
use common::{HEAD, kernel};
use ptx_emulator::{Launch, LaunchError, Memory, Module, Options, ParseErrorKind, launch};

fn error(body: &str) -> String {
    Module::parse(&kernel(body)).expect_err(body).to_string()
}

#[test]
fn errors_name_the_line_and_the_text() {
    let cases = [
        ("add.s32 %r1, %r2, %nope;", "PTX line 11: unknown name %nope: `add.s32 %r1, %r2, %nope`"),
        ("bra NOWHERE;", "PTX line 11: unknown name NOWHERE: `NOWHERE`"),
        ("add.s32 %r1, %r2;", "PTX line 11: wrong number of operands: `add.s32 %r1, %r2`"),
        ("add.s32 %d1, %r2, %r3;", "PTX line 11: operand of the wrong width: `add.s32 %d1, %r2, %r3`"),
        ("add.s32 5, %r2, %r3;", "PTX line 11: operand of the wrong kind: `add.s32 5, %r2, %r3`"),
        ("add.s32 %r1, %r2, %r3", "PTX line 12: expected ; or ,: `ret`"),
        ("\n  mov.u32 %r1, ;", "PTX line 12: expected an operand: `;`"),
        (".frobnicate;", "PTX line 11: unsupported directive: `.frobnicate`"),
        ("@%r1 bra X; X:", "PTX line 11: expected a predicate: `bra X`"),
        (
            "ld.global.v2.b32 {%r1}, [%d1];",
            "PTX line 11: a vector of the wrong length: `ld.global.v2.b32 {%r1}, [%d1]`",
        ),
        (
            "cp.async.cg.shared.global [%r1], [%d1], 8;",
            "PTX line 11: cp.async copies 4, 8 or 16 bytes, .cg only 16: `cp.async.cg.shared.global [%r1], [%d1], 8`",
        ),
        ("X: X:", "PTX line 11: expected a label that is new in its scope: `X:`"),
    ];
    for (body, want) in cases {
        assert_eq!(error(body), want);
    }
}

#[test]
fn an_unknown_instruction_parses_and_refuses_to_launch() {
    let unknown = [
        "frobnicate.b32 %r1, %r2;",
        "add.rni.f64 %d1, %d2, %d3;",
        "add.cc.u16 %h1, %h2, %h3;",
        "addc.lo.u32 %r1, %r2, %r3;",
        "min.abs.f32 %r1, %r2, %r3;",
        "barrier.sync.aligned.aligned 0;",
        "ld.global.b32.unknown %r1, [%d1];",
        "ld.strange.b32 %r1, [%d1];",
        "mul.f32.hi %r1, %r2, %r3;",
        "setp.lt.ftz.u32 %p1, %r1, %r2;",
        "cvt.f32.u32 %r1, %r2;",
        "cvt.rn.u32.u64 %r1, %d2;",
        "shl.s32.wrap %r1, %r2, %r3;",
        "call (%r1), f, (%r2);",
        "tcgen05.fence::before_thread_sync;",
        "multimem.red.global.add.f32 [%d1], %r1;",
        "atom.global.add.b32 %r1, [%d1], 1;",
        "mma.sync.aligned.m8n8k4.row.col.f16.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4};",
        "mma.sp.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%r1}, {%r2}, {%r3}, {%r4}, %r5, 0;",
        "wmma.load.a.sync.aligned.col.m8n8k32.global.s4 {%r1}, [%d1], 32;",
        "wmma.mma.sync.aligned.row.col.m16n16k16.s32.s8.u8.s32 {%r1}, {%r2}, {%r3}, {%r4};",
        "bar.red.xor.pred %p1, 0, %p2;",
        "cp.async.bulk.shared::cluster.global.bulk_group [%r1], [%d1], 16;",
        "shfl.up.b32 %r1, %r2, 1, 0;",
    ];
    for statement in unknown {
        let module = Module::parse(&kernel(statement)).unwrap_or_else(|error| panic!("{error}"));
        let kernel = module.kernel("k").unwrap();
        assert_eq!(kernel.unsupported().len(), 1, "{statement}");
        let shape = Launch::new([1; 3], [1; 3], &[0; 8]);
        let Err(LaunchError::Unsupported { error, .. }) =
            launch(kernel, &Memory::new(), &shape, &Options::default())
        else {
            panic!("{statement} launches")
        };
        assert_eq!((error.line, error.kind), (11, ParseErrorKind::UnsupportedInstruction));
        assert_eq!(error.text, statement.trim_end_matches(';'));
    }
}

#[test]
fn each_of_several_kernels_has_an_error_of_its_own() {
    let ptx = format!(
        "{HEAD}.visible .entry first() {{ frobnicate %r1; ret; }}\n.visible .entry second() {{ mov.u32 %r1, %blah; ret; }}"
    );
    let module = Module::parse(&ptx).unwrap_or_else(|error| panic!("{error}"));
    for (name, line) in [("first", 4), ("second", 5)] {
        let error = module.kernel(name).and_then(|kernel| kernel.error()).expect("an error");
        assert_eq!(error.line, line, "{error}");
    }
}

#[test]
fn kernels_describe_themselves() {
    let ptx = format!(
        "{HEAD}.visible .entry first(.param .align 8 .b8 p[20]) .maxntid 128, 2 .minnctapersm 2 {{ ret; }}
         .weak .entry second() .reqntid 64 {{ .shared .align 16 .b8 tile[100]; .local .b8 depot[12]; ret; }}
         .func (.param .b32 r) helper(.param .b32 a) {{ ret; }}
         .section .debug_abbrev {{ .b8 1, 2 // comment }}
         .b8 3 }}"
    );
    let module = Module::parse(&ptx).unwrap();
    assert_eq!(module.target(), "sm_90");
    let names: Vec<&str> = module.kernels().map(|kernel| kernel.name()).collect();
    assert_eq!(names, ["first", "second"]);
    let first = module.kernel("first").unwrap();
    assert_eq!(
        (first.parameter_bytes(), first.max_threads(), first.instructions()),
        (20, Some([128, 2, 1]), 1)
    );
    let second = module.kernel("second").unwrap();
    assert_eq!((second.static_shared_bytes(), second.local_bytes()), (100, 12));
    assert!(module.kernel("helper").is_none());
}

#[test]
fn impossible_launches_are_refused() {
    let module = Module::parse(&format!(
        "{HEAD}.visible .entry k(.param .u64 p) .maxntid 64 {{ ret; }} .entry r() .reqntid 32 {{ ret; }}"
    ))
    .unwrap();
    let kernel = module.kernel("k").unwrap();
    let good = Launch::new([1; 3], [64, 1, 1], &[0; 8]);
    let try_launch = |shape: &Launch<'_>| launch(kernel, &Memory::new(), shape, &Options::default());
    assert!(try_launch(&good).is_ok());
    let text = |shape: Launch<'_>| try_launch(&shape).unwrap_err().to_string();
    assert_eq!(text(Launch { params: &[0; 4], ..good }), "k: expected 8 bytes of parameters, got 4");
    assert_eq!(
        text(Launch { block: [65, 1, 1], ..good }),
        "k: block [65, 1, 1] exceeds [64, 1, 1] threads"
    );
    assert_eq!(
        text(Launch { block: [0, 1, 1], ..good }),
        "k: block [0, 1, 1] exceeds [64, 1, 1] threads"
    );
    assert_eq!(text(Launch { grid: [1, 0, 1], ..good }), "k: grid [1, 0, 1] is empty or too large");
    assert_eq!(
        text(Launch { shared_bytes: 300_000, ..good }),
        "k: 300000 bytes of shared memory exceed the 232448 of sm_90"
    );
    for grid in [[1 << 31, 1, 1], [1, 65536, 1], [1, 1, 65536]] {
        assert_eq!(text(Launch { grid, ..good }), format!("k: grid {grid:?} is empty or too large"));
    }
    assert!(try_launch(&Launch { grid: [1, 65535, 1], ..good }).is_ok());
    assert!(try_launch(&Launch { block: [1, 1, 64], ..good }).is_ok());
    let free = Module::parse(&format!("{HEAD}.entry k() {{ ret; }}")).unwrap();
    let deep = Launch { block: [1, 1, 65], params: &[], ..good };
    assert_eq!(
        launch(free.kernel("k").unwrap(), &Memory::new(), &deep, &Options::default())
            .unwrap_err()
            .to_string(),
        "k: block [1, 1, 65] exceeds [1024, 1024, 64] threads"
    );
    let required = module.kernel("r").unwrap();
    let shape = Launch { params: &[], ..good };
    assert!(matches!(
        launch(required, &Memory::new(), &shape, &Options::default()),
        Err(LaunchError::Threads { .. })
    ));
}

#[test]
fn source_locations_follow_the_line_tables() {
    let body = "\n.loc 1 10 5\nmov.u32 %r1, dynamic;
.loc\t2 7 3, function_name $L__info_string0, inlined_at 1 20 9\nld.shared.b32 %r2, [%r1]; st.global.b32 [%data], %r2;
.loc 1 30 1 // src/x.rs:30:1 @[ src/y.rs:4:2 ]\nld.shared.b32 %r3, [%r1+4]; st.global.b32 [%data], %r3;\n.pragma \"nounroll\";\n$L__tmp3:";
    let ptx = kernel(body)
        + "\n.file 1 \"src/a.rs\"\n.file 2 \"src/b.rs\", 12, 34\n.section .debug_loc { .b8 1 }\n";
    let memory = Memory::new();
    let data = memory.allocate(4096);
    let report = common::run_with(&ptx, &memory, 1, 1, 64, &data.to_le_bytes(), &Options::default());
    let place = |index: usize| report.findings[index].source.clone().unwrap();
    assert_eq!(place(0).to_string(), "src/b.rs:7:3");
    assert_eq!(place(0).inlined_at.unwrap().to_string(), "src/a.rs:20:9");
    assert_eq!(place(1).to_string(), "src/x.rs:30:1");
    let text = report.findings[1].to_string();
    assert!(text.contains("at src/x.rs:30:1") && text.contains("inlined at src/y.rs:4:2"), "{text}");
}

#[test]
fn local_memory_has_a_limit() {
    let error = |bytes: u32| {
        let text = format!("{HEAD}.entry k() {{ .local .b8 x[{bytes}]; ret; }}");
        let module = Module::parse(&text).unwrap();
        let shape = Launch::new([1; 3], [1; 3], &[]);
        let kernel = module.kernel("k").unwrap();
        launch(kernel, &Memory::new(), &shape, &Options::default())
            .map_err(|error| error.to_string())
            .err()
    };
    assert_eq!(error(512 * 1024), None);
    let message = |bytes| Some(format!("k: {bytes} bytes of local memory exceed 524288"));
    assert_eq!(error(512 * 1024 + 1), message(512 * 1024 + 1));
    assert_eq!(error(1 << 28), message(1 << 28));
}

/// Products and sums of what stands in the text do not overflow.
#[test]
fn absurd_numbers_are_refused() {
    for cluster in ["65536, 65536", "4294967295, 4294967295", "2", "0"] {
        let text = format!("{HEAD}.entry k() .reqnctapercluster {cluster} {{ ret; }}");
        let shape = Launch::new([1; 3], [1; 3], &[]);
        let module = Module::parse(&text).unwrap();
        let kernel = module.kernel("k").unwrap();
        let error = launch(kernel, &Memory::new(), &shape, &Options::default()).unwrap_err().to_string();
        assert!(error.starts_with("k: cluster [") || error.starts_with("k: grid ["), "{error}");
    }
    let text = format!(
        "{HEAD}.entry k(.param .u64 a, .param .u64 b) {{ .reg .b32 %r<2>;
         ld.param.u32 %r1, [b+9223372036854775807]; ret; }}"
    );
    let error = Module::parse(&text).unwrap_err().to_string();
    assert!(error.contains("an address offset"), "{error}");
}

/// What nvcc makes of printf and of a call through a pointer: the kernel is unsupported, and no other.
#[test]
fn calls_concern_their_kernel_alone() {
    let text = format!(
        "{HEAD}.extern .func (.param .b32 func_retval0) elsewhere (.param .b64 elsewhere_param_0, .param .b64 elsewhere_param_1);
.global .align 1 .b8 $str[4] = {{37, 100, 10, 0}};
.visible .entry prints() {{ .local .align 8 .b8 __local_depot0[8]; .reg .b32 %r<5>; .reg .b64 %rd<5>;
{{ // callseq 0, 0
.param .b64 param0;
st.param.b64 [param0+0], %rd3;
.param .b64 param1;
st.param.b64 [param1+0], %rd1;
.param .align 8 .b8 retval0[16];
call.uni (retval0),
elsewhere,
(
param0,
param1
);
ld.param.v2.b64 {{%rd1, %rd2}}, [retval0+0];
}} // callseq 0
ret; }}
.visible .entry points() {{ .reg .b64 %rd<5>; .reg .b32 %r<5>;
prototype_0 : .callprototype (.param .b32 _) _ (.param .b64 _);
{{ .param .b32 retval0; call (retval0), %rd1, (%rd2), prototype_0; ld.param.b32 %r1, [retval0]; }}
ret; }}
.visible .entry fine() {{ ret; }}"
    );
    let module = Module::parse(&text).unwrap_or_else(|error| panic!("{error}"));
    let unsupported = |name: &str| module.kernel(name).unwrap().unsupported().to_vec();
    let texts = |name: &str| unsupported(name).into_iter().map(|one| one.text).collect::<Vec<_>>();
    assert_eq!(texts("prints"), ["call.uni (retval0), elsewhere, ( param0, param1 )"]);
    assert_eq!(texts("points"), ["call (retval0), %rd1, (%rd2), prototype_0"]);
    assert_eq!(unsupported("fine"), []);
}

#[test]
fn what_is_wrong_with_one_kernel_is_no_others_affair() {
    let one = |name: &str, body: &str| format!(".visible .entry {name}(.param .u64 p) {{ {body} }}\n");
    let good = one("good", ".reg .b32 %r<2>; mov.b32 %r1, 1; ret;");
    let wrong = [
        ".reg .b32 %r<2>; mov.u32 %r1, %unknown_special; ret;",
        ".reg .b32 %r<2>; { add.s32 %r1, %nope, 1; } ret;",
        ".reg .b32 %r<2> add.s32 %r1, %r1, 1; ret;",
        "bra NOWHERE; ret;",
    ];
    for body in wrong {
        let text = format!("{HEAD}{}{good}{}", one("first", body), one("last", body));
        let module = Module::parse(&text).expect(body);
        let names: Vec<_> = module.kernels().map(|kernel| kernel.name().to_owned()).collect();
        assert_eq!(names, ["first", "good", "last"]);
        let run = |name: &str| {
            let kernel = module.kernel(name).unwrap();
            let shape = Launch::new([1; 3], [1; 3], &[0; 8]);
            launch(kernel, &Memory::new(), &shape, &Options::default()).map(|report| report.is_clean())
        };
        assert_eq!(run("good"), Ok(true));
        let alone = Module::parse(&format!("{HEAD}{}", one("first", body))).expect_err(body);
        assert_eq!(
            run("first"),
            Err(LaunchError::Unsupported { kernel: "first".to_owned(), error: alone })
        );
        assert!(run("last").is_err());
        let last = module.kernel("last").unwrap();
        assert_eq!((last.instructions(), last.parameters().len()), (0, 1));
    }
}

#[test]
fn a_block_is_as_large_as_the_kernel_demands() {
    let text = format!("{HEAD}.visible .entry k() .reqntid 128 {{ ret; }}");
    let module = Module::parse(&text).unwrap();
    let run = |threads: u32| {
        let block = [threads, 1, 1];
        let shape = Launch::new([1; 3], block, &[]);
        launch(module.kernel("k").unwrap(), &Memory::new(), &shape, &Options::default()).map(drop)
    };
    assert_eq!(run(128), Ok(()));
    let (kernel, expected, got) = ("k".to_owned(), [128, 1, 1], [64, 1, 1]);
    let error = LaunchError::RequiredThreads { kernel, expected, got };
    let message = "k: block: expected [128, 1, 1] threads, which .reqntid demands, got [64, 1, 1]";
    assert_eq!(error.to_string(), message);
    assert_eq!(run(64), Err(error));
}
