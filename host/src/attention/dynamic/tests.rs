//! The keys that kernels choose, against a plain sort of each row.

use super::*;
use crate::problem::{DynamicRule, Layout, Mask, MaskShape, ScoreLayout, Sequences, lowest};
use crate::reference::{OverScores, Sizes, dynamic_mask};
use half::{bf16, f16};
use kernels_gpu::abi::{Arch, Dtype};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// A row of a bias, in a tensor that has one for each of `of`, or one for all.
#[derive(Debug)]
struct Case {
    dtype: Dtype,
    /// B, Hq, Hk, Sq, Sk; of packed sequences the most.
    sizes: [usize; 5],
    /// Queries and keys of each packed sequence.
    lengths: Option<Vec<[usize; 2]>>,
    causal: Mask,
    mask: DynamicMask,
    bias: [usize; 4],
    /// Elements from key to key, and after each row.
    step: usize,
    gap: usize,
    padding: Option<[usize; 3]>,
    /// Numbers that a bias has, so that many are equal; any if 0.
    few: usize,
    seed: u64,
}

impl Case {
    fn drawn(seed: u64) -> Self {
        let random = &mut StdRng::seed_from_u64(seed);
        let [batches, key_heads] = [random.random_range(1..=2), random.random_range(1..=2)];
        let query_heads = key_heads * random.random_range(1..=2);
        let queries = random.random_range(1..=5);
        // Rows of few words, of one, and of all that a team has in registers.
        let keys = match random.random_range(0..4) {
            0 => random.random_range(1..=40),
            1 => 32 * random.random_range(1..=12),
            _ => random.random_range(1..=700),
        };
        let lengths = random.random_bool(0.25).then(|| {
            let length = |most| random_length(most, seed);
            let mut lengths = vec![[queries, keys]; batches];
            lengths[0] = [length(queries), length(keys)];
            lengths
        });
        let has = |one: bool, size: usize| if one { size } else { 1 };
        let heads = [1, key_heads, query_heads][random.random_range(0..3)];
        let bias = [
            has(random.random_bool(0.7), batches),
            heads,
            has(random.random_bool(0.6), queries),
            has(random.random_bool(0.95), keys),
        ];
        let padding = random.random_bool(0.4).then(|| {
            let heads = [1, key_heads, query_heads][random.random_range(0..3)];
            [has(random.random_bool(0.7), batches), heads, has(random.random_bool(0.3), queries)]
        });
        let window = random.random_range(1..=keys + 3);
        let relu = random.random_bool(0.2);
        let rule = if relu { DynamicRule::Relu } else { DynamicRule::TopK { window } };
        let block_size = if random.random_bool(0.3) { random.random_range(2..=100) } else { 1 };
        let causal = match random.random_range(0..4) {
            0 => Mask::Full.and_causal(),
            1 => Mask::Causal(crate::CausalAlignment::TopLeft),
            2 => {
                Mask::Full.and_window(Some(random.random_range(0..200)), Some(random.random_range(0..9)))
            }
            _ => Mask::Full,
        };
        Case {
            dtype: [Dtype::Bf16, Dtype::F16, Dtype::F32][random.random_range(0..3)],
            sizes: [batches, query_heads, key_heads, queries, keys],
            lengths,
            causal,
            mask: DynamicMask { rule, block_size, way: None },
            bias,
            step: if random.random_bool(0.8) { 1 } else { 2 },
            gap: if random.random_bool(0.5) { 0 } else { random.random_range(1..4) },
            padding,
            few: [0, 3, 20][random.random_range(0..3)],
            seed,
        }
    }

    /// One row of so many keys.
    fn row(dtype: Dtype, keys: usize, window: usize, few: usize) -> Self {
        Case {
            dtype,
            sizes: [1, 1, 1, 1, keys],
            lengths: None,
            causal: Mask::Full,
            mask: DynamicMask::top_k(window),
            bias: [1, 1, 1, keys],
            step: 1,
            gap: 0,
            padding: None,
            few,
            seed: keys as u64,
        }
    }

    /// Where the elements of the bias stand.
    fn layout(&self) -> ScoreLayout {
        let [_, heads, queries, keys] = self.bias;
        let row = keys * self.step + self.gap;
        let strides = [heads * queries * row, queries * row, row, self.step].map(|stride| stride as i64);
        ScoreLayout { shape: self.bias, strides }
    }

    fn problem(&self) -> ForwardProblem {
        let [batches, query_heads, key_heads, queries, keys] = self.sizes;
        let rows = |side: usize, most: usize| match &self.lengths {
            None => [batches, most],
            Some(lengths) => [1, lengths.iter().map(|length| length[side]).sum()],
        };
        let layout = |[batches, rows]: [usize; 2], heads| Layout::bshd([batches, rows, heads, 8]);
        let (q, k) = (layout(rows(0, queries), query_heads), layout(rows(1, keys), key_heads));
        let dtype = if self.dtype == Dtype::F16 { Dtype::F16 } else { Dtype::Bf16 };
        let problem = ForwardProblem::new(dtype, q, k, k)
            .with_mask(self.causal)
            .with_bias(Bias { layout: self.layout(), dtype: self.dtype });
        let packed = Sequences::Packed { count: batches, max_query_rows: queries, max_key_rows: keys };
        let problem = if self.lengths.is_some() { problem.with_sequences(packed) } else { problem };
        match self.padding {
            None => problem,
            Some([batches, heads, queries]) => {
                problem.with_attn_mask(MaskShape { batches, heads, queries, keys })
            }
        }
    }

    /// Numbers of the bias, in logical order: some of them special.
    fn numbers(&self) -> Vec<f32> {
        let random = &mut StdRng::seed_from_u64(self.seed ^ 1);
        let special = [
            0.0,
            -0.0,
            f32::NAN,
            -f32::NAN,
            f32::INFINITY,
            f32::NEG_INFINITY,
            lowest(self.dtype),
            1e-40,
        ];
        let specials = random.random_bool(0.5);
        let number = |_| {
            let number: f32 = random.random_range(-2.0..2.0);
            let number = if self.few == 0 { number } else { (number * self.few as f32).round() / 8.0 };
            let is_special = specials && random.random_bool(0.15);
            let number =
                if is_special { special[random.random_range(0..special.len())] } else { number };
            match self.dtype {
                Dtype::Bf16 => bf16::from_f32(number).to_f32(),
                Dtype::F16 => f16::from_f32(number).to_f32(),
                Dtype::F32 => number,
            }
        };
        (0..self.bias.iter().product()).map(number).collect()
    }

    /// The bytes of the bias where they stand; NaN in gaps.
    fn bytes(&self, numbers: &[f32]) -> Vec<u8> {
        let layout = self.layout();
        let mut placed = vec![f32::NAN; layout.span()];
        for (at, &number) in numbers.iter().enumerate() {
            let [_, heads, queries, keys] = self.bias;
            let (row, key) = (at / keys, at % keys);
            let index = [row / queries / heads, row / queries % heads, row % queries, key];
            placed[layout.offset(index) as usize] = number;
        }
        let of_16 = |bits: fn(f32) -> u16| {
            placed.iter().flat_map(|&number| bits(number).to_le_bytes()).collect()
        };
        match self.dtype {
            Dtype::Bf16 => of_16(|number| bf16::from_f32(number).to_bits()),
            Dtype::F16 => of_16(|number| f16::from_f32(number).to_bits()),
            Dtype::F32 => placed.iter().flat_map(|number| number.to_le_bytes()).collect(),
        }
    }

    fn shown(&self) -> Vec<bool> {
        let random = &mut StdRng::seed_from_u64(self.seed ^ 2);
        let rows: usize = self.padding.map_or(0, |shape| shape.iter().product());
        (0..rows * self.sizes[4]).map(|_| random.random_bool(0.7)).collect()
    }

    /// Chooses on an emulator, and compares with the sort.
    fn check(&self, arch: Arch) {
        let device = Device::emulated(arch).unwrap();
        let stream = Stream::default();
        let (numbers, shown) = (self.numbers(), self.shown());
        let keys = self.sizes[4];
        let bias = DeviceBuffer::from_slice(&device, &self.bytes(&numbers)).unwrap();
        let bytes: Vec<u8> = shown.iter().map(|&shown| u8::from(shown)).collect();
        let tensor = DeviceBuffer::from_slice(&device, &bytes).unwrap();
        let padding_shape =
            self.padding.map(|[batches, heads, queries]| [batches, heads, queries, keys]);
        let padding = padding_shape.map(|shape| {
            let layout = ScoreLayout::dense(shape);
            // SAFETY: the buffer holds the layout, and lives until the words are read.
            unsafe { PreparedMask::new(&device, &layout, keys, tensor.device_pointer(), stream) }
                .unwrap()
        });
        let offsets = [0, 1].map(|side| {
            let mut offsets = vec![0i32];
            for length in self.lengths.iter().flatten() {
                offsets.push(offsets[offsets.len() - 1] + length[side] as i32);
            }
            DeviceBuffer::from_slice(&device, &offsets).unwrap()
        });
        let score = ScorePointers {
            bias: bias.device_pointer(),
            mask_bits: padding.as_ref().map_or(0, |mask| mask.device_pointer()),
            ..ScorePointers::default()
        };
        let [cu_seqlens_q, cu_seqlens_k] = offsets.each_ref().map(|offsets| offsets.device_pointer());
        let pointers =
            ForwardPointers { score, cu_seqlens_q, cu_seqlens_k, ..ForwardPointers::default() };
        let problem = self.problem();
        // SAFETY: the buffers hold bias, padding mask and offsets, and live until the words are read.
        let chosen = unsafe { PreparedMask::dynamic(&device, &problem, &self.mask, &pointers, stream) };
        let chosen = chosen.unwrap_or_else(|error| panic!("{self:?}: {error}"));
        if problem.validate().unwrap().is_empty() {
            return;
        }
        let words = chosen.words(stream).unwrap();
        let MaskShape { batches, heads, queries, .. } = chosen.shape();
        let bias = OverScores { shape: self.bias, values: &numbers };
        let padding = padding_shape.map(|shape| OverScores { shape, values: &shown });
        for batch in 0..batches {
            let [query_rows, key_rows] =
                self.lengths.as_ref().map_or([self.sizes[3], keys], |lengths| lengths[batch]);
            let sizes = self.reference_sizes(query_rows, key_rows);
            let (bias, padding) =
                (of_batch(&bias, batch), padding.map(|padding| of_batch(&padding, batch)));
            let (shape, kept) =
                dynamic_mask(&sizes, &self.mask, &bias, lowest(self.dtype), padding.as_ref());
            assert_eq!(shape[1..3], [heads, queries], "{self:?}");
            for (row, kept) in kept.chunks(key_rows.max(1)).enumerate() {
                if queries > 1 && row % queries >= query_rows {
                    continue;
                }
                let row_words = chosen.shape().row_words();
                let start = (batch * heads * queries + row) * row_words;
                let got: Vec<bool> = (0..row_words * 32)
                    .map(|key| words[start + key / 32] >> (key % 32) & 1 == 1)
                    .collect();
                let at = || format!("{self:?}: batch {batch}, row {row}");
                assert_eq!(&got[..key_rows], kept, "{}", at());
                assert!(got[key_rows..].iter().all(|&kept| !kept), "{}", at());
            }
        }
    }

    fn reference_sizes(&self, query_rows: usize, key_rows: usize) -> Sizes {
        let [_, query_heads, key_heads, ..] = self.sizes;
        Sizes {
            batches: 1,
            query_rows,
            key_rows,
            query_heads,
            key_heads,
            head_dim: 8,
            value_dim: 8,
            scale: 1.0,
            softcap: None,
            mask: self.causal,
        }
    }
}

fn random_length(most: usize, seed: u64) -> usize {
    StdRng::seed_from_u64(seed ^ 3).random_range(0..=most)
}

/// One batch of a tensor over scores.
fn of_batch<'t, T>(tensor: &OverScores<'t, T>, batch: usize) -> OverScores<'t, T> {
    let [batches, heads, queries, keys] = tensor.shape;
    let size = heads * queries * keys;
    let first = if batches == 1 { 0 } else { batch * size };
    OverScores { shape: [1, heads, queries, keys], values: &tensor.values[first..first + size] }
}

#[test]
fn kernels_choose_what_a_sort_does() {
    for seed in 0..400 {
        let arch = if seed % 2 == 0 { Arch::Sm80 } else { Arch::Sm90a };
        Case::drawn(seed).check(arch);
    }
}

/// One row for each of the three kernels of a type, and rows that are too long for registers.
#[test]
fn long_rows_are_chosen_from_by_every_kernel() {
    for (dtype, longest) in [(Dtype::Bf16, 65536), (Dtype::F16, 65536), (Dtype::F32, 32768)] {
        for keys in [longest / 16 - 1, longest / 16 + 1, longest / 4 + 32, longest + 1, 2 * longest + 77]
        {
            for few in [0, 5] {
                Case::row(dtype, keys, keys / 3, few).check(Arch::Sm80);
            }
        }
    }
}

/// As many rows as keep a device busy: a warp has one, in all of its registers.
#[test]
fn a_warp_chooses_from_a_row_that_fills_its_registers() {
    for (dtype, keys) in [(Dtype::Bf16, 4096), (Dtype::F32, 2048)] {
        let rows = 540;
        let case = Case::row(dtype, keys, keys / 4, 20);
        Case { sizes: [1, 1, 1, rows, keys], bias: [1, 1, rows, keys], ..case }.check(Arch::Sm90a);
    }
}

#[test]
fn long_rows_of_relu_and_few_candidates() {
    let long = Case::row(Dtype::F32, 33000, 17, 0);
    let relu = Case { mask: DynamicMask::relu(), ..Case::row(Dtype::F32, 33000, 1, 40) };
    let window = Mask::Full.and_window(Some(9), None);
    // Ten keys are seen, which is fewer than the window.
    let few = Case { causal: window, ..Case::row(Dtype::Bf16, 70000, 17, 0) };
    for case in [long, relu, few] {
        case.check(Arch::Sm90a);
    }
}
