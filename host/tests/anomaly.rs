//! Passes under `AnomalyMode`: what is not finite is named, with its place and the stage that made it.

use finite_attention::attention::MaskSlice;
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory};
use finite_attention::problem::ScoreLayout;
use finite_attention::trace::{Cause, Part, Stage};
use finite_attention::training::{AnomalyMode, AnomalyReport};
use finite_attention::{
    Arch, BackwardPointers, BackwardProblem, Device, Dtype, Element, ForwardPointers, ForwardProblem,
    Layout, Sequences, Stream,
};
use half::{bf16, f16};

/// q, k, v and dO of a problem in device memory, and room for all results.
struct Pass<T> {
    device: Device,
    problem: ForwardProblem,
    inputs: [DeviceBuffer<T>; 4],
    outputs: [DeviceBuffer<T>; 4],
    lse: DeviceBuffer<f32>,
    offsets: Option<[DeviceBuffer<i32>; 2]>,
}

impl<T: Element> Pass<T> {
    /// `value` says what stands at an index of q, k, v or dO, all of which are dense.
    fn new(arch: Arch, problem: ForwardProblem, value: impl Fn(&str, [usize; 4]) -> f32) -> Self {
        let device = Device::emulated(arch).unwrap();
        let filled = |name: &str, layout: &Layout| {
            let mut elements = vec![T::from_f32(0.0); layout.span()];
            let [batches, rows, heads, columns] = layout.shape;
            for index in 0..batches * rows * heads * columns {
                let (line, column) = (index / columns, index % columns);
                let at = [line / heads / rows, line / heads % rows, line % heads, column];
                elements[layout.offset(at) as usize] = T::from_f32(value(name, at));
            }
            DeviceBuffer::from_slice(&device, &elements).unwrap()
        };
        let ForwardProblem { q, k, v, o, .. } = &problem;
        let inputs = [filled("q", q), filled("k", k), filled("v", v), filled("do", o)];
        let outputs =
            [o, q, k, v].map(|layout| DeviceBuffer::uninitialised(&device, layout.span()).unwrap());
        let lse =
            DeviceBuffer::uninitialised(&device, problem.validate().unwrap().lse_elements()).unwrap();
        Pass { device, problem, inputs, outputs, lse, offsets: None }
    }

    fn pointers(&self) -> ForwardPointers {
        let [q, k, v, _] = self.inputs.each_ref().map(|buffer| buffer.device_pointer());
        let [o, ..] = self.outputs.each_ref().map(|buffer| buffer.device_pointer());
        let [cu_seqlens_q, cu_seqlens_k] = self
            .offsets
            .as_ref()
            .map_or([0; 2], |offsets| offsets.each_ref().map(|offsets| offsets.device_pointer()));
        let lse = self.lse.device_pointer();
        ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, ..Default::default() }
    }

    fn forward(&self) -> AnomalyReport {
        let (mode, stream) = (AnomalyMode::new(&self.device), Stream::default());
        // SAFETY: every buffer is as long as its tensor, and used by nobody else.
        unsafe { mode.forward(&self.problem, &self.pointers(), stream) }.unwrap()
    }

    /// The backward of a forward that has run.
    fn backward(&self) -> AnomalyReport {
        let ForwardPointers { q, k, v, o, lse, cu_seqlens_q, cu_seqlens_k, score } = self.pointers();
        let [_, dq, dk, dv] = self.outputs.each_ref().map(|buffer| buffer.device_pointer());
        let d_o = self.inputs[3].device_pointer();
        let pointers = BackwardPointers {
            q,
            k,
            v,
            o,
            d_o,
            dq,
            dk,
            dv,
            lse,
            cu_seqlens_q,
            cu_seqlens_k,
            score,
            ..Default::default()
        };
        let (mode, stream) = (AnomalyMode::new(&self.device), Stream::default());
        // SAFETY: as above.
        unsafe { mode.backward(&BackwardProblem::new(self.problem), &pointers, stream) }.unwrap()
    }
}

fn problem<T: Element>(q: [usize; 4], k: [usize; 4]) -> ForwardProblem {
    let (q, k) = (Layout::bshd(q), Layout::bshd(k));
    ForwardProblem::new(T::DTYPE, q, k, k)
}

#[test]
fn passes_whose_tensors_are_finite_are_said_to_be_so_with_rows_that_see_no_key() {
    for arch in Arch::ALL {
        // The first three queries see no key.
        let problem = problem::<bf16>([2, 9, 4, 40], [2, 6, 2, 40]).causal();
        let pass = Pass::<bf16>::new(arch, problem, |_, at| (at[1] + at[3]) as f32 / 64.0);
        let report = pass.forward();
        assert!(report.is_finite() && report.first().is_none(), "{report}");
        assert_eq!(pass.lse.to_vec(Stream::default()).unwrap()[0], f32::NEG_INFINITY);
        let names: Vec<_> = report.tensors.iter().map(|tensor| tensor.name).collect();
        assert_eq!(names, ["q", "k", "v", "o", "lse"]);
        let report = pass.backward();
        assert!(report.is_finite(), "{report}");
        assert_eq!(report.to_string(), "all finite");
        assert_eq!(report.tensors.len(), 9);
    }
}

#[test]
fn an_input_that_is_not_finite_is_named_with_its_place() {
    let planted = |name: &str, at: [usize; 4]| {
        if (name, at) == ("k", [1, 2, 0, 5]) { f32::NEG_INFINITY } else { 0.5 }
    };
    let pass = Pass::<f16>::new(Arch::Sm80, problem::<f16>([2, 3, 2, 8], [2, 4, 1, 8]), planted);
    let report = pass.forward();
    assert!(matches!(report.cause, Cause::Input), "{report}");
    let first = report.first().unwrap();
    assert_eq!((first.name, first.is_input, first.first()), ("k", true, Some(vec![1, 2, 0, 5])));
    assert_eq!(first.found.negative_infinity, 1);
    assert!(report.to_string().starts_with("k: 0 NaN, 0 +inf, 1 -inf, the first at [1, 2, 0, 5]\n"));
}

/// Query 70 of head 1 and key 3 of its key head: 1e30 squared is too large, whatever the scale.
fn large(name: &str, at: [usize; 4]) -> f32 {
    match (name, at) {
        ("q", [1, 70, 1, 20]) | ("k", [1, 3, 0, 20]) => 1e30,
        ("q", _) => 0.5,
        ("k", _) => 0.25,
        _ => 1.0,
    }
}

#[test]
fn a_score_that_overflows_is_traced_in_the_row_that_shows_it() {
    for arch in Arch::ALL {
        let (q, k) = ([2, 80, 2, 64], [2, 90, 1, 64]);
        for layout in [Layout::bshd, Layout::bhsd] {
            let [q, k] = [layout(q), layout(k)];
            let problem = ForwardProblem::new(Dtype::Bf16, q, k, k).causal();
            let report = Pass::<bf16>::new(arch, problem, large).forward();
            assert_eq!(report.stage(), Some(Stage::Scores), "{report}");
            let Cause::Instruction { part, .. } = &report.cause else { panic!("{report}") };
            let expected =
                Part { batch: 1, queries: 70..71, query_heads: 1..2, keys: 0..81, key_head: 0 };
            assert_eq!(*part, expected);
            let first = report.first().unwrap();
            assert_eq!((first.name, first.first()), ("o", Some(vec![1, 70, 1, 0])));
        }
    }
}

#[test]
fn packed_sequences_are_traced_in_the_one_that_shows_it() {
    let (rows, keys) = (Layout::packed([100, 2, 64]), Layout::packed([110, 1, 64]));
    let offsets = [[0, 20, 20, 100], [0, 20, 20, 110]];
    let problem = ForwardProblem::new(Dtype::Bf16, rows, keys, keys).causal();
    let problem = ForwardProblem {
        sequences: Sequences::from_offsets(&offsets[0], &offsets[1]).unwrap(),
        ..problem
    };
    let planted = |name: &str, [_, row, head, column]: [usize; 4]| match row {
        20.. => large(name, [1, row - 20, head, column]),
        _ => large(name, [0, row, head, column]),
    };
    let mut pass = Pass::<bf16>::new(Arch::Sm90a, problem, planted);
    let copied = offsets.map(|offsets| DeviceBuffer::from_slice(&pass.device, &offsets).unwrap());
    pass.offsets = Some(copied);
    let report = pass.forward();
    assert_eq!(report.stage(), Some(Stage::Scores), "{report}");
    let Cause::Instruction { part, .. } = &report.cause else { panic!("{report}") };
    assert_eq!((part.batch, &part.queries, &part.keys), (2, &(70..71), &(0..81)));
    assert_eq!(report.first().unwrap().first(), Some(vec![90, 1, 0]));
}

/// A key whose gradient is too large is looked at by itself, with the queries that see it.
#[test]
fn a_gradient_of_a_key_is_traced_with_the_queries_that_see_it() {
    for arch in Arch::ALL {
        // All gradients of o, which are nearly too large for f16, add up in some key.
        let value = |name: &str, at: [usize; 4]| match (name, at[1]) {
            ("q", _) => 8.0,
            ("k", 30) => 8.0,
            ("k", _) => -8.0,
            ("v", _) => 0.0,
            _ => 40000.0,
        };
        let problem = problem::<f16>([1, 70, 1, 16], [1, 70, 1, 16]).causal();
        let pass = Pass::<f16>::new(arch, problem, value);
        assert!(pass.forward().is_finite());
        let report = pass.backward();
        assert_eq!(report.stage(), Some(Stage::Dv), "{report}");
        let first = report.first().unwrap();
        assert_eq!(first.name, "dv");
        assert_eq!(first.found.positive_infinity, first.found.count(), "{report}");
        let Cause::Instruction { part, .. } = &report.cause else { panic!("{report}") };
        let key = first.first().unwrap()[1];
        assert_eq!((&part.keys, &part.queries), (&(key..key + 1), &(key..70)), "{report}");
    }
}

#[test]
fn parts_that_are_too_large_for_the_emulator_are_left_out() {
    let pass = Pass::<bf16>::new(Arch::Sm80, problem::<bf16>([2, 80, 2, 64], [2, 90, 1, 64]), large);
    let mode = AnomalyMode::new(&pass.device).with_most_pairs(80);
    // SAFETY: every buffer is as long as its tensor, and used by nobody else.
    let report = unsafe { mode.forward(&pass.problem, &pass.pointers(), Stream::default()) }.unwrap();
    let Cause::NotReproduced { parts } = &report.cause else { panic!("{report}") };
    assert!(parts.is_empty() && report.first().unwrap().name == "o");
}

/// The bits of a mask come back from the device: a row that the mask hides everything from is no finding.
#[test]
fn rows_that_a_mask_hides_everything_from_are_no_finding() {
    use finite_attention::attention::PreparedMask;
    let problem = problem::<f32>([1, 5, 2, 8], [1, 40, 1, 8]);
    let layout = ScoreLayout::dense([1, 1, 5, 40]);
    let shown: Vec<bool> = (0..200).map(|at| at / 40 != 3 && at % 3 != 0).collect();
    let slice = MaskSlice { layout, elements: &shown };
    let problem = problem.with_attn_mask(slice.shape(40).unwrap());
    let pass = Pass::<f32>::new(Arch::Sm80, problem, |_, at| at[3] as f32);
    let bytes: Vec<u8> = shown.iter().map(|&shown| u8::from(shown)).collect();
    let mask = DeviceBuffer::from_slice(&pass.device, &bytes).unwrap();
    let (at, stream) = (mask.device_pointer(), Stream::default());
    // SAFETY: the buffer holds all of the mask, and lives to the end.
    let bits = unsafe { PreparedMask::new(&pass.device, &layout, 40, at, stream) }.unwrap();
    let mut pointers = pass.pointers();
    pointers.score.mask_bits = bits.device_pointer();
    // SAFETY: every buffer is as long as its tensor, and used by nobody else.
    let report = unsafe { AnomalyMode::new(&pass.device).forward(&pass.problem, &pointers, stream) };
    assert!(report.unwrap().is_finite());
    let lse = pass.lse.to_vec(stream).unwrap();
    assert!(lse[3] == f32::NEG_INFINITY && lse[8] == f32::NEG_INFINITY && lse[2].is_finite());
}

/// What the first stage is for gradients of two queries and one key of so many columns, with these numbers in q, k, v
/// and dO.
fn backward_stage<T: Element>(
    arch: Arch,
    columns: usize,
    [q, k, v, d_o]: [f32; 4],
) -> (&'static str, Option<Stage>) {
    let value = move |name: &str, _: [usize; 4]| match name {
        "q" => q,
        "k" => k,
        "v" => v,
        _ => d_o,
    };
    let pass = Pass::<T>::new(arch, problem::<T>([1, 2, 1, columns], [1, 1, 1, columns]), value);
    assert!(pass.forward().is_finite());
    let report = pass.backward();
    (report.first().unwrap().name, report.stage())
}

#[test]
fn stages_of_the_backward_are_told_apart_on_every_target() {
    for arch in Arch::ALL {
        // dv is the sum of two gradients of 40000 each: more than f16 holds.
        for columns in [40, 64, 128, 256] {
            let stage = backward_stage::<f16>(arch, columns, [0.1, 0.1, 1.0, 40000.0]);
            assert_eq!(stage, ("dv", Some(Stage::Dv)), "{arch:?} {columns}");
        }
        // The sum of 64 products of 1e20 and 1e20: too large for f32.
        let (_, stage) = backward_stage::<bf16>(arch, 64, [1.0, 1.0, 1e20, 1e20]);
        assert_eq!(stage, Some(Stage::Delta), "{arch:?}");
        let (_, stage) = backward_stage::<f32>(arch, 64, [1.0, 1.0, 1e20, 1e20]);
        assert_eq!(stage, Some(Stage::Delta), "{arch:?}");
        let stage = backward_stage::<f32>(arch, 64, [1.0, 1.0, 1e-20, 3e38]);
        assert_eq!(stage, ("dv", Some(Stage::Dv)), "{arch:?}");
    }
}
