//! The last kernel of a backward on Hopper starts with the heads whose dQ is complete, which it sees by counters:
//! afterwards these say of every head that all of its key tiles are done.

use finite_attention::attention::launch_backward;
use finite_attention::buffer::{DeviceBuffer, InDeviceMemory as _};
use finite_attention::driver::emulated::Options;
use finite_attention::plan::plan_backward;
use finite_attention::{
    BackwardPointers, BackwardProblem, Dtype, ForwardProblem, KernelImages, Layout, Mode, Sequences,
    Stream, Workspace,
};
use finite_attention_tests::device::emulated;
use finite_attention_tests::recorder::of_size;
use kernels_gpu::abi::{Arch, KernelSpec};

/// Halves of key tiles that are counted for each (batch, key head), and the main kernel, of a backward of zeros on a
/// device of two multiprocessors.
fn counted(problem: &BackwardProblem, [cu_q, cu_k]: [&[i32]; 2]) -> (Vec<u32>, &'static KernelSpec) {
    let device = of_size(&emulated(Arch::Sm90a, KernelImages::embedded(), Options::default()), 2);
    let ForwardProblem { q, k, v, .. } = problem.forward;
    let zeros = |layout: Layout| {
        let elements = layout.shape.iter().product();
        DeviceBuffer::from_slice(&device, &vec![half::bf16::ZERO; elements]).unwrap()
    };
    let offsets = [cu_q, cu_k].map(|offsets| DeviceBuffer::from_slice(&device, offsets).unwrap());
    let rows = q.shape[0] * q.shape[1] * q.shape[2];
    let lse = DeviceBuffer::from_slice(&device, &vec![0f32; rows]).unwrap();
    let o_layout = Layout::bshd([q.shape[0], q.shape[1], q.shape[2], v.shape[3]]);
    let [q, k, v, o, d_o, dq, dk, dv] = [q, k, v, o_layout, o_layout, q, k, v].map(zeros);
    let pointers = BackwardPointers {
        q: q.device_pointer(),
        k: k.device_pointer(),
        v: v.device_pointer(),
        o: o.device_pointer(),
        d_o: d_o.device_pointer(),
        dq: dq.device_pointer(),
        dk: dk.device_pointer(),
        dv: dv.device_pointer(),
        lse: lse.device_pointer(),
        cu_seqlens_q: offsets[0].device_pointer(),
        cu_seqlens_k: offsets[1].device_pointer(),
        ..BackwardPointers::default()
    };
    let plan = plan_backward(&problem.validate().unwrap(), device.properties(), &pointers).unwrap();
    let bytes = plan.workspace_bytes();
    // What was there before is no count.
    let memory = DeviceBuffer::from_slice(&device, &vec![2i32; (bytes / 4) as usize]).unwrap();
    let workspace = Workspace { pointer: memory.device_pointer(), bytes };
    let stream = Stream::default();
    // SAFETY: every tensor is as large as its layout, and lives past `synchronize`.
    unsafe { launch_backward(&device, &plan, workspace, stream) }.unwrap();
    device.synchronize(stream).unwrap();
    let params = plan.params_with(workspace.pointer, bytes).unwrap();
    let first = ((params.counter - workspace.pointer) / 4) as usize + 1;
    let pairs = (params.batches * params.query_heads / params.group_size) as usize;
    let words = memory.to_vec(stream).unwrap();
    let counts = words[first..first + pairs].iter().map(|&count| count as u32).collect();
    (counts, plan.main_kernel().unwrap().kernel)
}

#[test]
fn every_key_tile_of_a_head_is_counted_twice() {
    let mut kernels = Vec::new();
    for (head_dim, query_rows, key_rows) in
        [(64, 130, 300), (64, 128, 256), (128, 100, 257), (128, 240, 128), (192, 70, 129), (256, 65, 64)]
    {
        for (mode, causal) in [(Mode::Fast, true), (Mode::Fast, false), (Mode::Deterministic, true)] {
            let query = Layout::bshd([2, query_rows, 4, head_dim]);
            let key = Layout::bshd([2, key_rows, 2, head_dim]);
            let mut forward = ForwardProblem::new(Dtype::Bf16, query, key, key);
            if causal {
                forward = forward.causal();
            }
            let problem = BackwardProblem::new(forward).with_mode(mode);
            let (counts, main) = counted(&problem, [&[], &[]]);
            let halves = 2 * (key_rows as u32).div_ceil(main.key_rows);
            assert_eq!(counts, vec![halves; 4], "{}, {mode:?}, causal: {causal}", main.name);
            kernels.push(main.name);
        }
    }
    kernels.sort_unstable();
    kernels.dedup();
    assert_eq!(kernels.len(), 6, "{kernels:?}");
}

#[test]
fn sequences_are_counted_apart_whatever_their_lengths() {
    // No queries, no keys, more keys than queries, and fewer.
    let offsets = [[0, 0, 100, 130, 290], [0, 40, 40, 300, 429]];
    let sequences = Sequences::from_offsets(&offsets[0], &offsets[1]).unwrap();
    for (head_dim, keys) in [(64, 192), (128, 128), (256, 64)] {
        let (query, key) = (Layout::packed([290, 4, head_dim]), Layout::packed([429, 2, head_dim]));
        let forward = ForwardProblem::new(Dtype::Bf16, query, key, key).with_sequences(sequences);
        let (counts, main) = counted(&BackwardProblem::new(forward), [&offsets[0], &offsets[1]]);
        assert_eq!(main.key_rows, keys);
        let halves = offsets[1].windows(2).map(|pair| 2 * ((pair[1] - pair[0]) as u32).div_ceil(keys));
        let expected: Vec<u32> = halves.flat_map(|halves| [halves; 2]).collect();
        assert_eq!(counts, expected, "{}", main.name);
    }
}
