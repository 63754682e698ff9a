//! A small program, how it runs on a device, and what counts as equal.

use finite_attention::device::DeviceName;
use finite_attention::driver::emulated::{Options, Schedule};
use finite_attention::driver::{L2Promotion, Stream, TensorMapDescription};
use finite_attention::{Device, KernelImages, Result};
use finite_attention_tests::device::{emulated, open_with};
use finite_attention_tests::ptx::spec;
use kernels_gpu::abi::{Arch, KernelSpec};

/// Rows of input, and of output: one for each thread of an expression.
pub const ROWS: usize = 1024;
/// Bytes of input: four columns of 8 bytes. As many of output follow.
pub const INPUT_BYTES: usize = 4 * 8 * ROWS;

/// What counts as equal.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Tolerance {
    /// The same bits.
    Bits,
    /// The same bits in slots of 8 bytes, or two f64 that are NaN.
    NanF64,
    /// f32 in slots of 4 bytes: so many units in the last place, or so much.
    F32 { ulps: f64, absolute: f64 },
}

/// A program.
#[derive(Clone, Debug)]
pub struct Program {
    pub name: String,
    pub arch: Arch,
    pub body: String,
    /// A whole module with an entry `program`, in place of `body`.
    pub module: Option<&'static str>,
    pub blocks: u32,
    pub threads: u32,
    pub input: Vec<u8>,
    pub tolerance: Tolerance,
}

impl Program {
    /// A body on one block of random words.
    pub fn new(name: &str, arch: Arch, threads: u32, body: &str) -> Self {
        let mut random = Random::named(name);
        let input = (0..INPUT_BYTES).map(|_| random.next() as u8).collect();
        let (name, body, tolerance) = (name.to_owned(), body.to_owned(), Tolerance::Bits);
        Program { name, arch, body, module: None, blocks: 1, threads, input, tolerance }
    }

    pub fn within(self, ulps: f64, absolute: f64) -> Self {
        Program { tolerance: Tolerance::F32 { ulps, absolute }, ..self }
    }

    /// The input in words.
    pub fn words(&self) -> Vec<u32> {
        let (words, _) = self.input.as_chunks();
        words.iter().copied().map(u32::from_le_bytes).collect()
    }

    /// Input words, by their index.
    pub fn on_words(self, word: impl Fn(u32) -> u32) -> Self {
        let words = 0..INPUT_BYTES as u32 / 4;
        Program { input: words.flat_map(|index| word(index).to_le_bytes()).collect(), ..self }
    }

    /// The module. `%data` is the input, `%in` and `%out` this thread's row of 8 bytes, `%mine` its word of the
    /// output, `%base` 32 KiB of shared memory, `%map` a tensor map of the input: rows of 64 elements of 16 bits.
    pub fn ptx(&self) -> String {
        if let Some(module) = self.module {
            return module.to_owned();
        }
        let (target, body) = (self.arch.name(), &self.body);
        format!(
            ".version 8.2\n.target {target}\n.address_size 64\n.extern .shared .align 1024 .b8 tile[];\n\
             .visible .entry program(.param .align 64 .b8 parameters[192])\n{{\n\
             .reg .pred %p<16>, %first; .reg .b16 %h<16>; .reg .b32 %r<64>, %thread, %row, %lane, %warp, %base;\n\
             .reg .b64 %d<32>, %data, %in, %out, %mine, %map; .reg .f32 %f<160>;\n\
             ld.param.u64 %data, [parameters+128]; mov.b64 %map, parameters; cvta.param.u64 %map, %map;\n\
             mov.u32 %thread, %tid.x; mov.u32 %row, %ctaid.x; mov.u32 %r0, %ntid.x;\n\
             mad.lo.u32 %row, %row, %r0, %thread; mul.wide.u32 %in, %row, 8; add.u64 %in, %in, %data;\n\
             add.u64 %out, %in, {INPUT_BYTES}; mul.wide.u32 %mine, %thread, 4; add.u64 %mine, %mine, %data;\n\
             add.u64 %mine, %mine, {INPUT_BYTES}; mov.u32 %base, tile; mov.u32 %lane, %laneid;\n\
             shr.u32 %warp, %thread, 5; setp.eq.u32 %first, %thread, 0;\n{body}\nret;\n}}\n"
        )
    }

    fn images(&self) -> KernelImages {
        KernelImages::with_override(&self.ptx()).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    /// The output in the emulator, which must find nothing.
    pub fn emulated(&self, schedule: Schedule) -> Vec<u8> {
        let options = Options { schedule, ..Options::default() };
        self.run(&emulated(self.arch, self.images(), options))
    }

    /// The output on a GPU, if it knows the program's instructions.
    pub fn on_gpu(&self, name: DeviceName) -> Option<Vec<u8>> {
        let name = match name {
            DeviceName::CudaAs(ordinal, _) => DeviceName::Cuda(ordinal),
            name => name,
        };
        let device = open_with(name, self.images());
        let (has, needs) = (device.properties().compute_capability, self.arch.compute_capability());
        let runs = if self.arch == Arch::Sm90a { has == needs } else { has >= needs };
        runs.then(|| self.run(&device))
    }

    /// The output on any device, or what went wrong there.
    pub fn outcome(&self, name: DeviceName) -> Result<Vec<u8>> {
        self.try_run(&open_with(name, self.images()))
    }

    fn run(&self, device: &Device) -> Vec<u8> {
        self.try_run(device).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn try_run(&self, device: &Device) -> Result<Vec<u8>> {
        let driver = device.driver();
        let data = driver.allocate(2 * INPUT_BYTES)?;
        let mut memory = self.input.clone();
        memory.resize(2 * INPUT_BYTES, 0);
        driver.copy_to_device(data, &memory)?;
        let map = TensorMapDescription {
            address: data,
            dims: [64, 60, 2, 1],
            strides_bytes: [128, 128 * 128, 2 * 128 * 128],
            box_dims: [64, 32, 1, 1],
            l2_promotion: L2Promotion::Bytes256,
        };
        let map = match self.arch {
            Arch::Sm80 => [0; 16],
            Arch::Sm90a => driver.encode_tensor_map(&map)?,
        };
        let mut params: Vec<u8> = map.iter().flat_map(|word| word.to_ne_bytes()).collect();
        params.extend(data.to_le_bytes());
        params.resize(192, 0);
        // Named for as long as the process lives, as the kernels of the table are.
        let kernel: &KernelSpec = Box::leak(Box::new(KernelSpec {
            name: "program",
            arch: self.arch,
            threads: self.threads,
            shared_bytes: 32768,
            ..*spec("forward_bf16_d64_sm80")
        }));
        let stream = Stream::default();
        // SAFETY: the only pointer is that of the memory above, which lives until it is freed below.
        unsafe { driver.launch(kernel.into(), self.blocks, &params, stream) }?;
        let mut output = vec![0; INPUT_BYTES];
        driver.copy_to_host(&mut output, data + INPUT_BYTES as u64, stream)?;
        // SAFETY: allocated above, and the launch is done.
        unsafe { driver.free(data) }?;
        Ok(output)
    }

    /// The first difference beyond the tolerance.
    pub fn difference(&self, emulated: &[u8], cuda: &[u8]) -> Option<String> {
        let size = if self.tolerance == Tolerance::NanF64 { 8 } else { 4 };
        let number =
            |bytes: &[u8]| bytes.iter().rev().fold(0u64, |sum, &byte| sum << 8 | u64::from(byte));
        let mut pairs = emulated.chunks(size).zip(cuda.chunks(size)).enumerate();
        let (at, (left, right)) =
            pairs.find(|(_, (left, right))| !self.equal(number(left), number(right)))?;
        let count =
            emulated.chunks(size).zip(cuda.chunks(size)).filter(|(left, right)| left != right).count();
        let (left, right) = (number(left), number(right));
        Some(format!(
            "slot {at}: {left:#x} in the emulator, {right:#x} on the GPU; {count} slots differ in bits"
        ))
    }

    fn equal(&self, left: u64, right: u64) -> bool {
        if left == right {
            return true;
        }
        match self.tolerance {
            Tolerance::Bits => false,
            Tolerance::NanF64 => f64::from_bits(left).is_nan() && f64::from_bits(right).is_nan(),
            Tolerance::F32 { ulps, absolute } => {
                let [left, right] = [left, right].map(|bits| f32::from_bits(bits as u32));
                let unit = f64::from(right.abs().max(f32::MIN_POSITIVE)) * 2f64.powi(-23);
                left.is_nan() && right.is_nan()
                    || (f64::from(left) - f64::from(right)).abs() <= absolute.max(ulps * unit)
            }
        }
    }
}

/// A source of pseudo-random numbers.
pub struct Random(pub u64);

impl Random {
    /// Numbers that depend on a text.
    pub fn named(text: &str) -> Self {
        Random(text.bytes().fold(7, |sum: u64, byte| sum.wrapping_mul(31).wrapping_add(byte.into())) | 1)
    }

    /// The next one.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11
    }
}

#[test]
fn equality_is_as_tolerant_as_it_says() {
    let program = Program::new("equality", Arch::Sm80, 32, "");
    let bits = |value: f32| u64::from(value.to_bits());
    assert!(!program.equal(bits(1.0), bits(1.0000001)));
    assert!(!program.equal(bits(0.0), bits(-0.0)));
    let close = program.clone().within(2.0, 1e-9);
    assert!(close.equal(bits(1.0), bits(1.0000001)) && !close.equal(bits(1.0), bits(1.000001)));
    assert!(close.equal(bits(f32::NAN), bits(-f32::NAN)) && !close.equal(bits(f32::NAN), bits(1.0)));
    assert!(close.equal(bits(f32::INFINITY), bits(f32::INFINITY)));
    assert!(!close.equal(bits(f32::INFINITY), bits(f32::MAX)));
    let nan = Program { tolerance: Tolerance::NanF64, ..program.clone() };
    assert!(nan.equal(f64::NAN.to_bits(), (-f64::NAN).to_bits()) && !nan.equal(0, 1));
    assert_eq!(program.difference(&[0; 8], &[0; 8]), None);
    let text = program.difference(&[0; 8], &[0, 0, 0, 0, 5, 0, 0, 0]).unwrap_or_default();
    assert_eq!(text, "slot 1: 0x0 in the emulator, 0x5 on the GPU; 1 slots differ in bits");
}
