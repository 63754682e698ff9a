//! Running single instructions and small kernels.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod cluster;
pub mod hopper;

use ptx_emulator::{
    Address, Checks, Finding, Launch, Memory, Module, Options, Report, Schedule, launch,
};

/// The head of every module.
pub const HEAD: &str = ".version 7.8\n.target sm_90\n.address_size 64\n";

/// Words at the edges of what their bytes, halves and all of them hold.
pub const EDGES_OF_PARTS: [u64; 12] =
    [0, 1, 0x7f, 0x80, 0xff, 0x7fff, 0x8000, 0xffff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x80ff_7f01];

/// A source of pseudo-random numbers.
pub struct Random(pub u64);

impl Random {
    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// A value type of the instruction under test: `p` is a predicate.
fn register(bits: u32, index: usize) -> String {
    match bits {
        1 => format!("%p{index}"),
        16 => format!("%h{index}"),
        32 => format!("%r{index}"),
        _ => format!("%d{index}"),
    }
}

/// Evaluates an instruction on columns of sources. In the template, `{d}` is the destination and
/// `{a}`, `{b}`, `{c}`, `{e}` the sources; `bits` are 1 (a predicate), 16, 32 or 64.
pub fn evaluate(template: &str, result_bits: u32, sources: &[(u32, Vec<u64>)]) -> Vec<u64> {
    let count = sources[0].1.len();
    let threads = count.next_multiple_of(32);
    let mut text = template.replace("{d}", &register(result_bits, 7));
    let mut loads = String::new();
    for (index, (bits, _)) in sources.iter().enumerate() {
        let name = register(*bits, index);
        text = text.replace(["{a}", "{b}", "{c}", "{e}"][index], &name);
        loads += &format!("ld.param.u64 %a{index}, [in{index}];\nadd.s64 %a{index}, %a{index}, %a9;\n");
        loads += &match bits {
            1 => format!("ld.global.b32 %r9, [%a{index}];\nsetp.ne.b32 {name}, %r9, 0;\n"),
            16 | 32 | 64 => format!("ld.global.b{bits} {name}, [%a{index}];\n"),
            _ => panic!("{bits} bits"),
        };
    }
    let result = register(result_bits, 7);
    let store = match result_bits {
        1 => format!("selp.b32 %r9, 1, 0, {result};\nst.global.b32 [%a8], %r9;"),
        bits => format!("st.global.b{bits} [%a8], {result};"),
    };
    let ptx = format!(
        "{HEAD}.visible .entry t(.param .u64 in0, .param .u64 in1, .param .u64 in2, .param .u64 in3,
        .param .u64 out) {{
        .reg .pred %p<10>; .reg .b16 %h<10>; .reg .b32 %r<10>; .reg .b64 %d<10>; .reg .b64 %a<10>;
        mov.u32 %r8, %ctaid.x; mov.u32 %r9, %tid.x; mad.lo.s32 %r8, %r8, 32, %r9;
        mul.wide.u32 %a9, %r8, 8;
        {loads}
        {text}
        ld.param.u64 %a8, [out]; add.s64 %a8, %a8, %a9;
        {store}
        ret; }}"
    );
    let memory = Memory::new();
    let mut params = Vec::new();
    for index in 0..4 {
        let empty = (32, Vec::new());
        let (_, column) = sources.get(index).unwrap_or(&empty);
        let address = memory.allocate(threads * 8);
        let mut bytes: Vec<u8> = column.iter().flat_map(|value| value.to_le_bytes()).collect();
        bytes.resize(threads * 8, 0);
        memory.write(address, &bytes).unwrap();
        params.extend(address.to_le_bytes());
    }
    let out = memory.allocate(threads * 8);
    memory.write(out, &vec![0; threads * 8]).unwrap();
    params.extend(out.to_le_bytes());
    let report = run_with(&ptx, &memory, (threads / 32) as u32, 32, 0, &params, &Options::default());
    assert!(report.is_clean(), "{template}: {}", report.findings[0]);
    let mut bytes = vec![0; count * 8];
    memory.read(out, &mut bytes).unwrap();
    bytes.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// Launches the first kernel of a module in one dimension.
pub fn run_with(
    ptx: &str,
    memory: &Memory,
    blocks: u32,
    threads: u32,
    shared_bytes: u32,
    params: &[u8],
    options: &Options,
) -> Report {
    let module = Module::parse(ptx).unwrap_or_else(|error| panic!("{error}\n{ptx}"));
    let kernel = module.kernels().next().expect("a kernel");
    let shape = Launch { shared_bytes, ..Launch::new([blocks, 1, 1], [threads, 1, 1], params) };
    launch(kernel, memory, &shape, options).unwrap_or_else(|error| panic!("{error}\n{ptx}"))
}

/// A kernel around a body, with one parameter `data` loaded to `%data` and `%tid.x` in `%tid`.
pub fn kernel(body: &str) -> String {
    format!(
        "{HEAD}.extern .shared .align 16 .b8 dynamic[];
.visible .entry k(.param .u64 data) {{
.reg .pred %p<16>; .reg .b16 %h<16>; .reg .b32 %r<32>; .reg .b64 %d<32>;
.reg .b64 %data, %mine; .reg .b32 %tid;
ld.param.u64 %data, [data];
mov.u32 %tid, %tid.x;
mul.wide.u32 %mine, %tid, 4; add.s64 %mine, %mine, %data;
{body}
ret; }}"
    )
}

/// What a body left in 4096 bytes of global memory, which starts as zeros, and what was found.
pub struct Outcome {
    /// The memory as words.
    pub words: Vec<u32>,
    /// The findings.
    pub report: Report,
}

/// Runs a [`kernel`] body in one block with 4096 bytes of zeros as `data` and 1024 of dynamic shared memory.
pub fn run_body(body: &str, threads: u32, options: &Options) -> Outcome {
    let memory = Memory::new();
    let data = memory.allocate(4096);
    memory.write(data, &[0; 4096]).unwrap();
    let report = run_with(&kernel(body), &memory, 1, threads, 1024, &data.to_le_bytes(), options);
    Outcome { words: words(&memory, data, 1024), report }
}

/// Runs a body that must be clean under every schedule, and gives the words of the last run.
pub fn run_clean(body: &str, threads: u32) -> Vec<u32> {
    let mut result = Vec::new();
    for schedule in schedules() {
        let outcome = run_body(body, threads, &with_schedule(schedule));
        assert!(outcome.report.is_clean(), "{schedule:?}: {}", outcome.report.findings[0]);
        result = outcome.words;
    }
    result
}

/// Words of global memory.
pub fn words(memory: &Memory, address: Address, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    memory.read(address, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|chunk| u32::from_le_bytes(chunk.try_into().unwrap())).collect()
}

/// A few schedules of each kind.
pub fn schedules() -> Vec<Schedule> {
    let random = (0..6).map(Schedule::Random);
    [Schedule::Eager, Schedule::Latest].into_iter().chain(random).collect()
}

/// All checks under a schedule.
pub fn with_schedule(schedule: Schedule) -> Options {
    Options { schedule, checks: Checks::all(), ..Options::default() }
}

/// The only finding of a body, under one schedule.
pub fn only_finding(body: &str, threads: u32, options: &Options) -> Finding {
    let mut findings = run_body(body, threads, options).report.findings;
    assert_eq!(findings.len(), 1, "{findings:#?}");
    findings.remove(0)
}

/// The line of the only line of a body's kernel that contains a text.
pub fn line_of(body: &str, text: &str) -> u32 {
    let source = kernel(body);
    let mut lines = source.lines().enumerate().filter(|(_, line)| line.contains(text));
    let (line, _) = lines.next().expect("the text is there");
    assert!(lines.next().is_none(), "{text} is there twice");
    line as u32 + 1
}
