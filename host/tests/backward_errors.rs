//! The text of every error of a backward pass and of packed sequences.

mod support;

use finite_attention::plan::plan_backward;
use finite_attention::{
    BackwardInputs, BackwardPointers, BackwardProblem, Dtype, Error, ForwardOutput, ForwardPointers,
    ForwardProblem, Layout, ScoreSlices, Sequences, Stream, Workspace, backward, backward_host, forward,
    forward_host, forward_packed_host,
};
use half::{bf16, f16};
use kernels_gpu::abi::MAX_ROWS;
use support::{Fault, device, device_with};

fn problem() -> BackwardProblem {
    let kv = Layout::bshd([2, 9, 2, 128]);
    BackwardProblem::new(ForwardProblem::new(Dtype::Bf16, Layout::bshd([2, 5, 4, 128]), kv, kv))
}

fn pointers() -> BackwardPointers {
    let [q, k, v, o, d_o] = [0x1000, 0x2000, 0x3000, 0x4000, 0x5000];
    let [dq, dk, dv, lse, d_lse] = [0x6000, 0x7000, 0x8000, 0x9000, 0xa000];
    BackwardPointers { q, k, v, o, d_o, dq, dk, dv, lse, d_lse, ..Default::default() }
}

/// The text of what is wrong with a problem.
fn refused(change: impl FnOnce(&mut BackwardProblem)) -> String {
    let mut problem = problem();
    change(&mut problem);
    problem.validate().unwrap_err().to_string()
}

/// The text of what is wrong with a launch.
fn launch_refused(
    problem: &BackwardProblem,
    pointers: BackwardPointers,
    workspace: Workspace,
) -> String {
    let device = device(Fault::None);
    // SAFETY: the call fails before anything is launched, which is what the tests look at.
    unsafe { backward(&device, problem, &pointers, workspace, Stream::default()) }
        .unwrap_err()
        .to_string()
}

#[test]
fn shapes_dtypes_and_strides_of_gradients() {
    assert_eq!(refused(|p| p.d_o.shape[1] = 4), "do: expected rows 5 like o, got 4");
    assert_eq!(refused(|p| p.dq.shape[3] = 64), "dq: expected head_dim 128 like q, got 64");
    assert_eq!(refused(|p| p.dk.shape[2] = 4), "dk: expected heads 2 like k, got 4");
    assert_eq!(refused(|p| p.dv.shape[0] = 1), "dv: expected batch 2 like v, got 1");
    assert_eq!(
        refused(|p| p.d_o.strides[3] = 2),
        "do: expected contiguous columns (stride 1), got stride 2"
    );
    assert_eq!(
        refused(|p| p.dk.strides[1] = -256),
        "dk: expected a positive stride of rows, got -256: outputs are written once"
    );
    assert_eq!(
        refused(|p| p.dv.strides[2] = 127),
        "dv: expected a stride of heads of at least 128, so that no two elements share an address, got 127"
    );
    assert_eq!(
        refused(|p| p.gradient_dtype = Dtype::F16),
        "dq, dk, dv: expected dtype bf16 like q, or f32, got f16"
    );
    assert_eq!(refused(|p| p.forward.v.shape[1] = 8), "v: expected rows 9 like k, got 8");
}

#[test]
fn addresses_and_workspaces() {
    let problem = problem().with_d_lse();
    let device = device(Fault::None);
    let plan = plan_backward(&problem.validate().unwrap(), device.properties(), &pointers()).unwrap();
    let bytes = plan.workspace_bytes();
    assert_eq!(bytes, 4 * (4 * 4 * 128 + 4 * 128 * 128));
    let enough = Workspace { pointer: 0x10000, bytes };
    let text = |pointers| launch_refused(&problem, pointers, enough);
    let null = |pointers: &dyn Fn(&mut BackwardPointers)| {
        let mut changed = self::pointers();
        pointers(&mut changed);
        text(changed)
    };
    assert_eq!(null(&|p| p.d_o = 0), "do: expected a device pointer, got null for 5120 elements");
    assert_eq!(null(&|p| p.o = 0), "o: expected a device pointer, got null for 5120 elements");
    assert_eq!(null(&|p| p.dk = 0), "dk: expected a device pointer, got null for 4608 elements");
    assert_eq!(null(&|p| p.lse = 0), "lse: expected a device pointer, got null for 40 elements");
    assert_eq!(null(&|p| p.d_lse = 0), "dlse: expected a device pointer, got null for 40 elements");
    assert_eq!(
        null(&|p| p.dv += 1),
        "dv: expected an address that is a multiple of 2 bytes, got 0x8001"
    );
    let workspace = |pointer, bytes| launch_refused(&problem, pointers(), Workspace { pointer, bytes });
    assert_eq!(workspace(0x10000, 7), format!("workspace: expected at least {bytes} bytes, got 7"));
    assert_eq!(
        workspace(0, bytes),
        format!("workspace: expected a device pointer, got null for {} elements", bytes / 4)
    );
    assert_eq!(
        workspace(0x10010, bytes),
        "workspace: expected an address that is a multiple of 256 bytes, got 0x10010"
    );
}

#[test]
fn kernels_and_workspaces_that_are_not_there() {
    let valid = problem().validate().unwrap();
    let old = device_with(Fault::None, (7, 5));
    assert_eq!(
        plan_backward(&valid, old.properties(), &pointers()).unwrap_err().to_string(),
        "device mock: no backward kernel for bf16 with head_dim 128: backward_bf16_d256_sm80 needs sm_80 \
         and 135936 bytes of shared memory per block, the device has compute capability 7.5 and 232448 bytes"
    );
    // Every stride is 0 or spans little, so only the number of padded rows is wrong.
    let batches = 1 << 25;
    let input = Layout { shape: [batches, 1, 1, 8], strides: [0, 0, 0, 1] };
    let o = Layout::bshd(input.shape);
    let many = ForwardProblem::new(Dtype::F16, input, input, input).with_output(o);
    let text = launch_refused(&BackwardProblem::new(many), pointers(), Workspace::default());
    assert_eq!(text, "workspace: expected at most 2147483647 rows per head, got 4294967296");
}

#[test]
fn slices_of_the_wrong_type_or_length() {
    let (wide, narrow) = ([bf16::ZERO; 5120], [0f32; 40]);
    let inputs = BackwardInputs {
        q: &wide,
        k: &wide[..4608],
        v: &wide[..4608],
        o: &wide,
        lse: &narrow,
        d_o: &wide,
        d_lse: &[],
        scores: ScoreSlices::default(),
        cu_seqlens_q: &[],
        cu_seqlens_k: &[],
    };
    let device = device(Fault::None);
    let short = BackwardInputs { lse: &narrow[1..], ..inputs };
    assert_eq!(
        backward_host::<_, _, bf16>(&device, &problem(), &short).unwrap_err().to_string(),
        "lse: expected 40 elements for shape [2, 4, 5], got 39"
    );
    let short = BackwardInputs { d_o: &wide[1..], ..inputs };
    assert_eq!(
        backward_host::<_, _, bf16>(&device, &problem(), &short).unwrap_err().to_string(),
        "do: expected 5120 elements for shape [2, 5, 4, 128], got 5119"
    );
    let long = BackwardInputs { k: &wide, ..inputs };
    assert_eq!(
        backward_host::<_, _, bf16>(&device, &problem(), &long).unwrap_err().to_string(),
        "k: expected 4608 elements for shape [2, 9, 2, 128], got 5120"
    );
    assert_eq!(
        backward_host::<_, _, bf16>(&device, &problem().with_d_lse(), &inputs).unwrap_err().to_string(),
        "dlse: expected 40 elements for shape [2, 4, 5], got 0"
    );
    assert_eq!(
        backward_host::<_, _, f16>(&device, &problem(), &inputs).unwrap_err().to_string(),
        "dq: expected dtype bf16 like problem, got f16"
    );
    assert!(backward_host::<_, _, bf16>(&device, &problem(), &inputs).is_ok());
    let stray = BackwardInputs { d_lse: &narrow, ..inputs };
    assert_eq!(
        backward_host::<_, _, bf16>(&device, &problem(), &stray).unwrap_err().to_string(),
        "dlse: expected no elements, as the problem has no dlse, got 40"
    );
}

/// 7 rows of q and 9 of k, in three sequences of at most 4 and 9.
fn packed() -> ForwardProblem {
    let (q, k) = (Layout::packed([7, 1, 8]), Layout::packed([9, 1, 8]));
    let sequences = Sequences::Packed { count: 3, max_query_rows: 4, max_key_rows: 9 };
    ForwardProblem::new(Dtype::F32, q, k, k).with_sequences(sequences)
}

#[test]
fn packed_problems_that_cannot_be() {
    let refused = |change: &dyn Fn(&mut ForwardProblem)| {
        let mut problem = packed();
        change(&mut problem);
        problem.validate().unwrap_err().to_string()
    };
    let sequences = |count, max_query_rows, max_key_rows| {
        refused(&|p| p.sequences = Sequences::Packed { count, max_query_rows, max_key_rows })
    };
    assert_eq!(sequences(3, 2, 9), "q: expected at most 3 sequences of 2 rows, got 7 rows");
    assert_eq!(sequences(3, 4, 2), "k: expected at most 3 sequences of 2 rows, got 9 rows");
    assert_eq!(sequences(0, 4, 9), "q: expected at most 0 sequences of 4 rows, got 7 rows");
    let most = MAX_ROWS as usize;
    assert_eq!(
        sequences(3, most + 1, 9),
        "max_query_rows: expected rows 0..=1073741568, got 1073741569"
    );
    assert_eq!(
        sequences(3, 4, usize::MAX),
        "max_key_rows: expected rows 0..=1073741568, got 18446744073709551615"
    );
    assert!(
        packed()
            .with_sequences(Sequences::Packed { count: 3, max_query_rows: most, max_key_rows: most })
            .validate()
            .is_ok()
    );
    assert_eq!(sequences(1 << 32, 4, 9), "cu_seqlens_q: expected batch 0..=4294967295, got 4294967296");
    let batches =
        |p: &mut ForwardProblem| [&mut p.q, &mut p.k, &mut p.v, &mut p.o].map(|l| l.shape[0] = 2);
    assert_eq!(
        refused(&|p| (batches(p), p.o = Layout::bshd([2, 7, 1, 8])).1),
        "q: expected batch 1 like packed sequences, got 2"
    );
}

#[test]
fn offsets_that_do_not_fit() {
    let device = device(Fault::None);
    let (q, k) = ([0f32; 56], [0f32; 72]);
    let error = |q_offsets: &[i32], k_offsets: &[i32]| {
        forward_packed_host::<f32, f32>(&device, &packed(), [&q, &k, &k], q_offsets, k_offsets)
            .unwrap_err()
            .to_string()
    };
    let k_offsets = [0, 0, 9, 9];
    assert_eq!(error(&[], &k_offsets), "cu_seqlens_q: expected 4 offsets, got 0");
    assert_eq!(error(&[0, 4, 4, 7], &[0, 9]), "cu_seqlens_k: expected 4 offsets, got 2");
    assert_eq!(error(&[1, 4, 4, 7], &k_offsets), "cu_seqlens_q: expected offset 0 to be 0, got 1");
    assert_eq!(
        error(&[0, 4, 3, 7], &k_offsets),
        "cu_seqlens_q: expected offset 2 to be at least 4, the one before, got 3"
    );
    assert_eq!(
        error(&[0, 4, 4, 6], &k_offsets),
        "cu_seqlens_q: expected offset 3 to be 7 like the rows that are there, got 6"
    );
    assert_eq!(
        error(&[0, 1, 6, 7], &k_offsets),
        "cu_seqlens_q: expected at most 4 rows per sequence, got 5 in sequence 1"
    );
    assert_eq!(
        forward_host::<f32, f32>(&device, &packed(), &q, &k, &k).unwrap_err().to_string(),
        "cu_seqlens_q: expected 4 offsets, got 0"
    );
    let strided = packed().with_sequences(Sequences::Strided);
    let given: Result<ForwardOutput<f32>, Error> =
        forward_packed_host(&device, &strided, [&q, &k, &k], &[0, 7], &[0, 9]);
    assert_eq!(given.unwrap_err().to_string(), "cu_seqlens_q: expected 0 offsets, got 2");
    assert!(Sequences::from_offsets(&[], &[]).is_err());
    let most = Sequences::Packed { count: usize::MAX, max_query_rows: 0, max_key_rows: 0 };
    assert_eq!(
        most.check_offsets(0, 0, &[], &[]).unwrap_err().to_string(),
        format!("cu_seqlens_q: expected {} offsets, got 0", usize::MAX)
    );
    // One sequence of 6 rows, and 7 rows of q: it is the offsets that do not fit.
    let short = Sequences::from_offsets(&[0, 6], &[0, 9]).unwrap();
    let given: Result<ForwardOutput<f32>, Error> =
        forward_packed_host(&device, &packed().with_sequences(short), [&q, &k, &k], &[0, 6], &[0, 9]);
    assert_eq!(
        given.unwrap_err().to_string(),
        "cu_seqlens_q: expected offset 1 to be 7 like the rows that are there, got 6"
    );
    assert_eq!(
        Sequences::from_offsets(&[0, 4], &[0, -1]).unwrap_err().to_string(),
        "cu_seqlens_k: expected offset 1 to be at least 0, the one before, got -1"
    );
}

#[test]
fn packed_sequences_without_offsets_in_device_memory() {
    let pointers = ForwardPointers { q: 64, k: 64, v: 64, o: 64, lse: 64, ..Default::default() };
    let device = device(Fault::None);
    // SAFETY: the call fails before anything is launched.
    let error = unsafe { forward(&device, &packed(), &pointers, Stream::default()) }.unwrap_err();
    assert_eq!(error.to_string(), "cu_seqlens_q: expected a device pointer, got null for 4 elements");
}
