//! Calls: of functions with arguments and results in memory, by themselves, through pointers; `printf` and `assert`.

mod common;
use common::{HEAD, run_with, schedules, with_schedule, words};
use ptx_emulator::{FindingKind, Memory, Module, Options, Report, Space};

/// `f(a, b)`: a call of a function with two arguments of 32 bits and a result, from and to these registers.
fn call(function: &str, result: &str, arguments: [&str; 2], prototype: &str) -> String {
    let [a, b] = arguments;
    format!(
        "{{ .param .b32 param0; st.param.b32 [param0+0], {a}; .param .b32 param1; st.param.b32 [param1], {b};
         .param .b32 retval0; call (retval0), {function}, (param0, param1){prototype}; ld.param.b32 {result}, [retval0]; }}"
    )
}

/// A function of two arguments, `%r1` and `%r2`, whose body leaves its result in `%r3`.
fn function(name: &str, body: &str) -> String {
    format!(
        ".func (.param .b32 ret) {name}(.param .b32 a, .param .b32 b) {{ .reg .pred %p<8>; .reg .b32 %r<16>;
         .reg .b64 %d<8>; ld.param.b32 %r1, [a]; ld.param.b32 %r2, [b]; {body}
         st.param.b32 [ret], %r3; ret; }}\n"
    )
}

/// Runs a kernel whose body has `%tid` and stores `%r3` of each thread.
fn run(functions: &str, body: &str, threads: u32, options: &Options) -> (Vec<u32>, Report) {
    let text = format!(
        "{HEAD}{functions}.visible .entry k(.param .u64 data) {{ .reg .pred %p<8>; .reg .b32 %r<16>, %tid;
         .reg .b64 %d<8>, %mine; ld.param.u64 %mine, [data]; mov.u32 %tid, %tid.x; mul.wide.u32 %d1, %tid, 4;
         add.s64 %mine, %mine, %d1; {body} st.global.b32 [%mine], %r3; ret; }}"
    );
    let memory = Memory::new();
    let data = memory.allocate(1024);
    memory.write(data, &[0; 1024]).unwrap();
    let report = run_with(&text, &memory, 1, threads, 0, &data.to_le_bytes(), options);
    (words(&memory, data, threads as usize), report)
}

/// The same under every schedule, with nothing found: what the threads stored.
fn clean(functions: &str, body: &str, want: impl Fn(u32) -> u32) {
    for schedule in schedules() {
        let (got, report) = run(functions, body, 64, &with_schedule(schedule));
        assert!(report.is_clean(), "{}", report.findings[0]);
        assert_eq!(got, (0..64).map(&want).collect::<Vec<_>>());
    }
}

#[test]
fn arguments_and_results_are_passed() {
    let less = function("less", "sub.s32 %r3, %r1, %r2;");
    let twice = function("twice", &call("less", "%r3", ["%r1", "%r2"], "")) + &less;
    // Declared before it is defined, and called by lanes that have diverged.
    let declared = ".func (.param .b32 ret) twice(.param .b32 a, .param .b32 b);\n".to_string() + &twice;
    let body = format!(
        "setp.lt.u32 %p1, %tid, 7; mov.b32 %r3, 5; @%p1 bra END; {} END:",
        call("twice", "%r3", ["%tid", "7"], "")
    );
    clean(&declared, &body, |tid| if tid < 7 { 5 } else { tid - 7 });
    // Early returns, of which lanes come back one after the other.
    let early = function(
        "early",
        "setp.gt.u32 %p1, %r1, 20; mov.b32 %r3, 1; @%p1 bra OUT; setp.gt.u32 %p2, %r1, 10;
         @!%p2 bra LOOP; st.param.b32 [ret], 2; ret; LOOP: add.s32 %r3, %r3, %r2; sub.s32 %r2, %r2, 1;
         setp.ne.s32 %p3, %r2, 0; @%p3 bra LOOP; OUT:",
    );
    let body = format!(
        "and.b32 %r4, %tid, 3; add.s32 %r4, %r4, 1; {}",
        call("early", "%r3", ["%tid", "%r4"], "")
    );
    clean(&early, &body, |tid| match tid {
        21.. => 1,
        11..=20 => 2,
        _ => 1 + (1..=tid % 4 + 1).sum::<u32>(),
    });
    // A guarded call, and one by each lane alone.
    let guarded = call("less", "%r3", ["%tid", "1"], "").replace("call (", "@%p1 call (");
    let body =
        format!("setp.ge.u32 %p1, %tid, 40; mov.b32 %r3, 9; st.global.b32 [%mine], %r3; {guarded}");
    let (got, _) = run(&less, &body, 64, &Options::default());
    assert_eq!(got[40..], (39..63).collect::<Vec<u32>>());
}

#[test]
fn functions_call_themselves() {
    // fib(n) by the book, with a variable in memory that must outlive the inner calls.
    let inner = |register: &str, by: u32| {
        format!("sub.s32 %r4, %r1, {by}; {}", call("fib", register, ["%r4", "0"], ""))
    };
    let fib = function(
        "fib",
        &format!(
            ".local .align 4 .b8 kept[8]; mov.b32 %r3, %r1; setp.lt.s32 %p1, %r1, 2; @%p1 bra OUT; {}
             mov.u64 %d1, kept; st.local.b32 [%d1+4], %r5; {} ld.local.b32 %r7, [%d1+4]; add.s32 %r3, %r6, %r7; OUT:",
            inner("%r5", 1),
            inner("%r6", 2)
        ),
    );
    let body = format!("and.b32 %r1, %tid, 7; {}", call("fib", "%r3", ["%r1", "0"], ""));
    let numbers = [0, 1, 1, 2, 3, 5, 8, 13];
    clean(&fib, &body, |tid| numbers[tid as usize % 8]);
    // Without end it needs more memory than there is.
    let endless = function("endless", &call("endless", "%r3", ["%r1", "%r2"], ""));
    let body = call("endless", "%r3", ["%tid", "0"], "");
    let (_, report) = run(&endless, &body, 32, &Options::default());
    assert_eq!(report.findings[0].kind, FindingKind::OutOfBounds { space: Space::Local });
    assert!(report.findings[0].message.contains("endless nests too deep"), "{}", report.findings[0]);
}

#[test]
fn functions_are_called_through_pointers() {
    let functions = function("add", "add.s32 %r3, %r1, %r2;")
        + &function("times", "mul.lo.s32 %r3, %r1, %r2;")
        + ".global .align 8 .u64 table[2] = {add, times};\n";
    let indirect = call("%d4", "%r3", ["%tid", "5"], ", shape");
    let body = format!(
        "shape: .callprototype (.param .b32 _) _ (.param .b32 _, .param .b32 _);
         and.b32 %r1, %tid, 1; mul.wide.u32 %d2, %r1, 8; mov.u64 %d3, table; add.s64 %d3, %d3, %d2;
         ld.global.u64 %d4, [%d3]; {indirect}"
    );
    clean(&functions, &body, |tid| if tid % 2 == 0 { tid + 5 } else { tid * 5 });
    // What is no function.
    let wrong = format!("mov.b64 %d4, 4096; {indirect}").replace(", shape", "");
    let (_, report) = run(&functions, &wrong, 32, &Options::default());
    assert_eq!(report.findings[0].kind, FindingKind::InvalidOperand);
    assert!(report.findings[0].message.contains("0x1000"), "{}", report.findings[0]);
}

#[test]
fn a_stack_grows_and_shrinks() {
    let body = "stacksave.u64 %d2; mov.b32 %r3, 0; mov.b32 %r4, 0; LOOP: cvt.u64.u32 %d3, %tid; add.s64 %d3, %d3, 8;
         alloca.u64 %d4, %d3, 16; alloca.u64 %d5, 4; st.local.b32 [%d4], %r4; st.local.b32 [%d5], 100;
         ld.local.b32 %r5, [%d4]; add.s32 %r3, %r3, %r5; stackrestore.u64 %d2; add.s32 %r4, %r4, 1;
         setp.lt.u32 %p1, %r4, 300; @%p1 bra LOOP;";
    clean("", body, |_| (0..300).sum());
    let (_, report) = run("", &body.replace("stackrestore.u64 %d2;", ""), 64, &Options::default());
    assert_eq!(report.findings[0].kind, FindingKind::OutOfBounds { space: Space::Local });
}

#[test]
fn memory_of_threads_is_their_own() {
    let body = |free: &str, at: u32| {
        format!(
            "{{ .param .b64 param0; st.param.b64 [param0], 16; .param .b64 retval0; call (retval0), malloc, (param0);
             ld.param.b64 %d2, [retval0]; }} st.b32 [%d2+{at}], %tid; ld.b32 %r3, [%d2+{at}];
             {{ .param .b64 param0; st.param.b64 [param0], %d2; call free, (param0); }} {free}"
        )
    };
    let functions =
        ".extern .func (.param .b64 ret) malloc(.param .b64 a);\n.extern .func free(.param .b64 a);\n";
    clean(functions, &body("", 12), |tid| tid);
    let found = |body: &str| run(functions, body, 32, &Options::default()).1.findings[0].clone();
    assert_eq!(found(&body("", 16)).kind, FindingKind::OutOfBounds { space: Space::Global });
    assert_eq!(found(&body("ld.b32 %r3, [%d2];", 0)).kind, FindingKind::UseAfterFree);
    let again = "{ .param .b64 param0; st.param.b64 [param0], %d2; call free, (param0); }";
    assert!(found(&body(again, 0)).message.contains("which was freed before"));
}

#[test]
fn printf_prints_and_assert_fails() {
    let format: Vec<String> = "%d of %s: %.2f%%\n\0".bytes().map(|byte| byte.to_string()).collect();
    let head = format!(
        ".extern .func (.param .b32 ret) vprintf(.param .b64 a, .param .b64 b);
         .extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
         .global .align 1 .b8 form[{}] = {{{}}};
         .global .align 1 .b8 name[4] = {{110, 62, 48, 0}};\n",
        format.len(),
        format.join(", ")
    );
    let print = "{ .local .align 8 .b8 room[24]; mov.u64 %d2, room; cvta.local.u64 %d3, %d2; st.local.b32 [%d2], %tid;
         mov.u64 %d4, name; st.local.b64 [%d2+8], %d4; mov.b64 %d5, 0d3FF8000000000000; st.local.b64 [%d2+16], %d5;
         mov.u64 %d6, form; .param .b64 param0; st.param.b64 [param0], %d6; .param .b64 param1;
         st.param.b64 [param1], %d3; .param .b32 retval0; call (retval0), vprintf, (param0, param1);
         ld.param.b32 %r3, [retval0]; }";
    let (got, report) = run(&head, print, 3, &Options::default());
    assert_eq!(report.output, "0 of n>0: 1.50%\n1 of n>0: 1.50%\n2 of n>0: 1.50%\n");
    assert!(report.is_clean() && got == [3; 3], "{got:?}");
    let limit = 10_000_000;
    let forever = Options { step_limit: Some(limit), ..Options::default() };
    let (_, report) = run(&head, &format!("FOREVER: {print} bra FOREVER;"), 32, &forever);
    assert_eq!(report.findings[0].kind, FindingKind::StepLimit);
    // What 32 lanes print takes as long as a thousand instructions.
    assert!(report.statistics.warp_instructions < limit / 50, "{:?}", report.statistics);
    let fails = "mov.b32 %r3, 0; setp.ne.u32 %p1, %tid, 2; @%p1 bra OUT; mov.u64 %d2, name; { .param .b64 a;
         st.param.b64 [a], %d2; .param .b64 b; st.param.b64 [b], %d2; .param .b32 c; st.param.b32 [c], 17;
         .param .b64 d; st.param.b64 [d], %d2; .param .b64 e; st.param.b64 [e], 1;
         call __assertfail, (a, b, c, d, e); } OUT:";
    let (_, report) = run(&head, fails, 32, &Options::default());
    assert_eq!((report.findings.len(), report.findings[0].thread), (1, [2, 0, 0]));
    assert_eq!(report.findings[0].kind, FindingKind::AssertionFailed);
    assert_eq!(report.findings[0].message, "`n>0` does not hold in n>0, n>0:17");
}

#[test]
fn what_cannot_be_called_is_said() {
    let unsupported = |functions: &str, call: &str| {
        let text = format!("{HEAD}{functions}.visible .entry k() {{ .reg .b32 %r<4>; {call} ret; }}");
        Module::parse(&text)
            .map(|module| module.kernel("k").unwrap().error().map(|error| error.to_string()))
    };
    let none = unsupported(".extern .func elsewhere();\n", "call elsewhere;").unwrap().unwrap();
    assert!(none.contains("unsupported instruction: `call elsewhere`"), "{none}");
    let few = unsupported(&function("f", "mov.b32 %r3, 0;"), "call f;").unwrap_err().to_string();
    assert!(few.contains("arguments and results that are not those of the function"), "{few}");
}
