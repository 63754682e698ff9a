//! The safe door on host slices.

mod support;

use finite_attention::attention::launch_forward_in;
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory as _};
use finite_attention::plan::plan_forward;
use finite_attention::problem::MAX_SCALE;
use finite_attention::{
    Arch, BackwardInputs, BackwardOutput, BackwardProblem, Device, Dtype, Element, Error, ForwardOutput,
    ForwardPointers, ForwardProblem, Layout, ScoreSlices, Stream, Workspace, backward_host,
    forward_host,
};
use half::{bf16, f16};
use support::{Fault, device};

#[test]
fn rows_behind_the_causal_diagonal_see_only_their_keys() {
    let layout = Layout::bshd([1, 3, 1, 2]);
    let (q, k) = ([0.0f32; 6], [1.0f32; 6]);
    let v = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    let problem = ForwardProblem::new(Dtype::F32, layout, layout, layout).causal();
    let output: ForwardOutput<f32> = forward_host(&device(Fault::None), &problem, &q, &k, &v).unwrap();
    assert_eq!(output.o, [1.0, 2.0, 2.0, 3.0, 3.0, 4.0]);
    assert_eq!(output.lse, [0.0, 2f32.ln(), 3f32.ln()]);
}

#[test]
fn gaps_of_the_output_are_zero_and_a_wider_output_is_f32() {
    let layout = Layout::bshd([1, 2, 1, 2]);
    let o = Layout { strides: [10, 5, 2, 1], ..layout };
    let problem = ForwardProblem::new(Dtype::F16, layout, layout, layout)
        .with_output(o)
        .with_output_dtype(Dtype::F32)
        .without_lse();
    let one = [f16::ONE; 4];
    let output: ForwardOutput<f32> =
        forward_host(&device(Fault::None), &problem, &one, &one, &one).unwrap();
    assert_eq!(output.o, [1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 1.0]);
    assert!(output.lse.is_empty());
}

#[test]
fn inputs_that_run_backwards_start_at_their_lowest_address() {
    let layout = Layout::bshd([1, 3, 1, 1]);
    let reversed = Layout { strides: [3, -1, 1, 1], ..layout };
    let problem = ForwardProblem::new(Dtype::F32, layout, layout, reversed).causal();
    let zero = [0.0f32; 3];
    let output: ForwardOutput<f32> =
        forward_host(&device(Fault::None), &problem, &zero, &zero, &[30.0, 20.0, 10.0]).unwrap();
    assert_eq!(output.o, [10.0, 15.0, 20.0]);
}

#[test]
fn nothing_in_gives_nothing_out_and_no_keys_give_dead_rows() {
    let (none, some) = (Layout::bshd([1, 0, 2, 4]), Layout::bshd([1, 3, 2, 4]));
    let device = device(Fault::None);
    let problem = ForwardProblem::new(Dtype::F32, none, some, some);
    let output: ForwardOutput<f32> =
        forward_host(&device, &problem, &[], &[1.0; 24], &[1.0; 24]).unwrap();
    assert_eq!(output, ForwardOutput { o: vec![], lse: vec![] });
    let problem = ForwardProblem::new(Dtype::F32, some, none, none);
    let output: ForwardOutput<f32> = forward_host(&device, &problem, &[1.0; 24], &[], &[]).unwrap();
    assert_eq!(output, ForwardOutput { o: vec![0.0; 24], lse: vec![f32::NEG_INFINITY; 6] });
}

/// Of zeros, forward and backward, in the emulator.
fn zeros_scaled<T: Element>(arch: Arch, scale: f32) {
    let layout = Layout::bshd([1, 3, 1, 8]);
    let device = Device::emulated(arch).unwrap();
    let problem = ForwardProblem::new(T::DTYPE, layout, layout, layout).with_scale(scale);
    let zeros = &[T::zeroed(); 24][..];
    let ForwardOutput::<T> { o, lse } = forward_host(&device, &problem, zeros, zeros, zeros).unwrap();
    let (q, k, v, d_o, o, lse) = (zeros, zeros, zeros, zeros, &o[..], &lse[..]);
    let (d_lse, cu_seqlens_q, cu_seqlens_k) = (&[][..], &[][..], &[][..]);
    let scores = ScoreSlices::default();
    let inputs = BackwardInputs { q, k, v, o, lse, d_o, d_lse, scores, cu_seqlens_q, cu_seqlens_k };
    let BackwardOutput::<T> { dq, dk, dv, .. } =
        backward_host(&device, &BackwardProblem::new(problem), &inputs).unwrap();
    for gradients in [o, &dq, &dk, &dv] {
        assert!(
            gradients.iter().all(|&number| number.to_f32() == 0.0),
            "{arch:?} {scale} {:?}",
            T::DTYPE
        );
    }
    assert!(lse.iter().all(|&number| (number - 3f32.ln()).abs() < 1e-5), "{arch:?} {scale} {lse:?}");
}

#[test]
fn the_largest_scale_of_zeros_gives_zeros() {
    for (arch, scale) in Arch::ALL.into_iter().flat_map(|arch| [(arch, MAX_SCALE), (arch, -MAX_SCALE)]) {
        zeros_scaled::<bf16>(arch, scale);
        zeros_scaled::<f16>(arch, scale);
        zeros_scaled::<f32>(arch, scale);
    }
}

/// Keys that are split in the caller's memory give what they give in the library's, and too little memory is
/// refused.
#[test]
fn a_forward_runs_in_a_workspace_of_the_caller() {
    let (device, stream) = (Device::emulated(Arch::Sm80).unwrap(), Stream::default());
    let (q, kv) = (Layout::bshd([1, 2, 2, 16]), Layout::bshd([1, 400, 1, 16]));
    let problem = ForwardProblem::new(Dtype::F32, q, kv, kv).with_num_splits(3);
    let numbers = |count: usize, step: f32| -> Vec<f32> {
        (0..count).map(|index| (index as f32 * step).sin()).collect()
    };
    let [q, k, v] = [numbers(64, 0.7), numbers(6400, 0.3), numbers(6400, 0.2)];
    let expected: ForwardOutput<f32> = forward_host(&device, &problem, &q, &k, &v).unwrap();
    let [q, k, v] = [q, k, v].map(|slice| DeviceBuffer::from_slice(&device, &slice).unwrap());
    let o = DeviceBuffer::<f32>::uninitialised(&device, 64).unwrap();
    let lse = DeviceBuffer::<f32>::uninitialised(&device, 4).unwrap();
    let pointers = ForwardPointers {
        q: q.device_pointer(),
        k: k.device_pointer(),
        v: v.device_pointer(),
        o: o.device_pointer(),
        lse: lse.device_pointer(),
        ..ForwardPointers::default()
    };
    let valid = problem.validate().unwrap();
    let plan = plan_forward(&valid, device.properties(), &pointers).unwrap().unwrap();
    let bytes = plan.workspace_bytes();
    assert!(bytes > 0);
    let memory = DeviceBuffer::<u8>::uninitialised(&device, bytes as usize).unwrap();
    let pointer = memory.device_pointer();
    let launch = |pointer, bytes| {
        // SAFETY: all tensors and the workspace are this test's, and the emulator is done when it returns.
        unsafe { launch_forward_in(&device, &plan, Workspace { pointer, bytes }, stream) }
    };
    assert_eq!(
        launch(pointer, bytes - 1),
        Err(Error::WorkspaceTooSmall { expected: bytes, got: bytes - 1 })
    );
    assert!(matches!(launch(0, bytes), Err(Error::NullPointer { argument: "workspace", .. })));
    assert!(matches!(launch(pointer + 16, bytes), Err(Error::Misaligned { argument: "workspace", .. })));
    launch(pointer, bytes).unwrap();
    assert_eq!((o.to_vec(stream).unwrap(), lse.to_vec(stream).unwrap()), (expected.o, expected.lse));
}
