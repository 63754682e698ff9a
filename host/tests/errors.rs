//! The text of every error, and that bad input is an error and never a panic.

mod support;

use finite_attention::buffer::DeviceBuffer;
use finite_attention::device::DeviceName;
use finite_attention::problem::{MAX_SCALE, common_dtype};
use finite_attention::{
    Arch, Device, Dtype, Error, ForwardOutput, ForwardPointers, ForwardProblem, Layout, Stream, forward,
    forward_host,
};
use half::bf16;
use kernels_gpu::abi::MAX_ROWS;
use support::{Fault, device, device_with};

fn problem() -> ForwardProblem {
    let kv = Layout::bshd([2, 9, 2, 128]);
    ForwardProblem::new(Dtype::Bf16, Layout::bshd([2, 5, 4, 128]), kv, kv)
}

fn pointers() -> ForwardPointers {
    ForwardPointers { q: 0x1000, k: 0x2000, v: 0x3000, o: 0x4000, lse: 0x5000, ..Default::default() }
}

/// The text of what is wrong with a problem.
fn refused(change: impl FnOnce(&mut ForwardProblem)) -> String {
    let mut problem = problem();
    change(&mut problem);
    problem.validate().unwrap_err().to_string()
}

/// The text of what is wrong with a launch.
fn launch_refused(device: &Device, problem: &ForwardProblem, pointers: ForwardPointers) -> String {
    // SAFETY: the call fails before anything is launched, which is what the tests look at.
    unsafe { forward(device, problem, &pointers, Stream::default()) }.unwrap_err().to_string()
}

#[test]
fn ranks() {
    let text = |shape: &[usize], strides: &[i64]| {
        Layout::from_slices("k", shape, strides).unwrap_err().to_string()
    };
    assert_eq!(
        text(&[2, 9, 128], &[1; 3]),
        "k: expected 4 dimensions [batch, row, head, column], got 3"
    );
    assert_eq!(
        text(&[2, 9, 1, 128], &[1; 5]),
        "k: expected 4 dimensions [batch, row, head, column], got 5"
    );
    assert_eq!(text(&[], &[]), "k: expected 4 dimensions [batch, row, head, column], got 0");
}

#[test]
fn shapes_that_do_not_fit_together() {
    assert_eq!(refused(|p| p.k.shape[3] = 64), "k: expected head_dim 128 like q, got 64");
    assert_eq!(refused(|p| p.k.shape[0] = 3), "k: expected batch 2 like q, got 3");
    assert_eq!(refused(|p| p.v.shape[0] = 1), "v: expected batch 2 like q, got 1");
    assert_eq!(refused(|p| p.o.shape[0] = 1), "o: expected batch 2 like q, got 1");
    assert_eq!(refused(|p| p.v.shape[1] = 8), "v: expected rows 9 like k, got 8");
    assert_eq!(refused(|p| p.v.shape[2] = 4), "v: expected heads 2 like k, got 4");
    assert_eq!(refused(|p| p.o.shape[1] = 9), "o: expected rows 5 like q, got 9");
    assert_eq!(refused(|p| p.o.shape[2] = 2), "o: expected heads 4 like q, got 2");
    assert_eq!(refused(|p| p.o.shape[3] = 64), "o: expected head_dim 128 like v, got 64");
}

#[test]
fn heads_that_cannot_be_shared_out() {
    let heads = |query_heads, key_heads| {
        refused(|p| {
            (p.q.shape[2], p.o.shape[2]) = (query_heads, query_heads);
            (p.k.shape[2], p.v.shape[2]) = (key_heads, key_heads);
        })
    };
    assert_eq!(heads(6, 4), "q: expected heads to be a multiple of the 4 of k, got 6");
    assert_eq!(heads(2, 4), "q: expected heads to be a multiple of the 4 of k, got 2");
    assert_eq!(heads(2, 0), "q: expected heads to be a multiple of the 0 of k, got 2");
}

#[test]
fn sizes_out_of_range() {
    let head_dim = |dim| {
        refused(|p| {
            [&mut p.q, &mut p.k, &mut p.v, &mut p.o].map(|t| t.shape[3] = dim).into_iter().collect()
        })
    };
    assert_eq!(head_dim(0), "q: expected head_dim 1..=256, got 0");
    assert_eq!(head_dim(257), "q: expected head_dim 1..=256, got 257");
    assert_eq!(
        refused(|p| (p.v.shape[3], p.o.shape[3]) = (300, 300)),
        "v: expected head_dim 1..=256, got 300"
    );
    assert_eq!(
        refused(|p| (p.k.shape[1], p.v.shape[1]) = (1 << 31, 1 << 31)),
        format!("k: expected rows 0..={MAX_ROWS}, got 2147483648")
    );
    assert_eq!(
        refused(|p| (p.q.shape[1], p.o.shape[1]) = (usize::MAX, usize::MAX)),
        format!("q: expected rows 0..={MAX_ROWS}, got 18446744073709551615")
    );
}

#[test]
fn dtypes() {
    let mix = [("q", Dtype::Bf16), ("k", Dtype::F16), ("v", Dtype::Bf16)];
    assert_eq!(common_dtype(&mix).unwrap_err().to_string(), "k: expected dtype bf16 like q, got f16");
    assert!(common_dtype(&[]).is_err());
    assert_eq!(
        refused(|p| p.output_dtype = Dtype::F16),
        "o: expected dtype bf16 like q, or f32, got f16"
    );
    let inputs = [0f32; 2 * 9 * 4 * 128];
    let as_f32: Result<ForwardOutput<f32>, _> =
        forward_host(&device(Fault::None), &problem(), &inputs, &inputs, &inputs);
    assert_eq!(as_f32.unwrap_err().to_string(), "q: expected dtype bf16 like problem, got f32");
    let inputs = [bf16::ZERO; 2 * 9 * 4 * 128];
    let as_f32: Result<ForwardOutput<f32>, _> =
        forward_host(&device(Fault::None), &problem(), &inputs, &inputs, &inputs);
    assert_eq!(as_f32.unwrap_err().to_string(), "o: expected dtype bf16 like problem, got f32");
}

#[test]
fn strides() {
    assert_eq!(
        refused(|p| p.k.strides[3] = 2),
        "k: expected contiguous columns (stride 1), got stride 2"
    );
    assert_eq!(
        refused(|p| p.o.strides[3] = -1),
        "o: expected contiguous columns (stride 1), got stride -1"
    );
    assert_eq!(
        refused(|p| p.o.strides[1] = -512),
        "o: expected a positive stride of rows, got -512: outputs are written once"
    );
    assert_eq!(
        refused(|p| p.o.strides[0] = 0),
        "o: expected a positive stride of batch, got 0: outputs are written once"
    );
    assert_eq!(
        refused(|p| p.o.strides[2] = 127),
        "o: expected a stride of heads of at least 128, so that no two elements share an address, got 127"
    );
    assert_eq!(
        refused(|p| p.v.strides[1] = i64::MAX),
        "v: expected a tensor of less than 2^63 bytes, got shape [2, 9, 2, 128] with strides \
         [2304, 9223372036854775807, 128, 1]"
    );
}

#[test]
fn softcaps() {
    let range = "softcap: expected a number above 0 and of at most 1.1793287e38";
    for (cap, got) in [
        (f32::NAN, "NaN"),
        (0.0, "0e0"),
        (-0.0, "-0e0"),
        (-30.0, "-3e1"),
        (f32::INFINITY, "inf"),
        (2.4e38, "2.4e38"),
    ] {
        assert_eq!(refused(|p| p.softcap = Some(cap)), format!("{range}, got {got}"));
    }
    // What products are multiplied by would be infinite, or lose bits that the scale has.
    let times = "softcap: expected a number that the scale";
    let sizes = "is from 1.1754944e-38 to 3.4028235e38 times in size";
    for (scale, cap, texts) in [
        (2.0, 1e-39, ["2e0", "1e-39"]),
        (-1e-9, 1e30, ["-1e-9", "1e30"]),
        (1e-40, 1.0, ["1e-40", "1e0"]),
    ] {
        let [scale_text, got] = texts;
        assert_eq!(
            refused(|p| (p.scale, p.softcap) = (Some(scale), Some(cap))),
            format!("{times} {scale_text} {sizes}, got {got}")
        );
    }
    for (scale, cap) in [(0.0, 1e-44), (0.0, MAX_SCALE), (-1.0, 30.0), (1.0, 1e37), (MAX_SCALE, 1.0)] {
        let valid = problem().with_scale(scale).with_softcap(cap).validate().unwrap();
        let softcap = valid.softcap.unwrap();
        assert_eq!((softcap.cap, softcap.factor), (cap, (f64::from(scale) / f64::from(cap)) as f32));
    }
    assert_eq!(problem().validate().unwrap().softcap, None);
}

#[test]
fn scales() {
    let range = "scale: expected a number from -1.1793287e38 to 1.1793287e38";
    // Kernels multiply by log2(e): of the last two nothing finite would come.
    for (scale, got) in [
        (f32::NAN, "NaN"),
        (f32::INFINITY, "inf"),
        (f32::NEG_INFINITY, "-inf"),
        (2.4e38, "2.4e38"),
        (-3e38, "-3e38"),
    ] {
        assert_eq!(refused(|p| p.scale = Some(scale)), format!("{range}, got {got}"));
    }
    for scale in [0.0, -1.0, MAX_SCALE, -MAX_SCALE] {
        assert!(problem().with_scale(scale).validate().is_ok(), "{scale}");
    }
    assert!((MAX_SCALE * 2.0 * std::f32::consts::LOG2_E).is_finite());
    assert!((MAX_SCALE.next_up() * 2.0 * std::f32::consts::LOG2_E).is_infinite());
}

#[test]
fn addresses() {
    let text = |pointers| launch_refused(&device(Fault::None), &problem(), pointers);
    assert_eq!(
        text(ForwardPointers { v: 0, ..pointers() }),
        "v: expected a device pointer, got null for 4608 elements"
    );
    assert_eq!(
        text(ForwardPointers { lse: 0, ..pointers() }),
        "lse: expected a device pointer, got null for 40 elements"
    );
    assert_eq!(
        text(ForwardPointers { q: 0x1001, ..pointers() }),
        "q: expected an address that is a multiple of 2 bytes, got 0x1001"
    );
    assert_eq!(
        text(ForwardPointers { lse: 0x5002, ..pointers() }),
        "lse: expected an address that is a multiple of 4 bytes, got 0x5002"
    );
    let wide = problem().with_output_dtype(Dtype::F32);
    assert_eq!(
        launch_refused(&device(Fault::None), &wide, ForwardPointers { o: 0x4002, ..pointers() }),
        "o: expected an address that is a multiple of 4 bytes, got 0x4002"
    );
}

#[test]
fn slices_that_are_too_short() {
    let (long, short) = ([bf16::ZERO; 5120], [bf16::ZERO; 4607]);
    let error =
        |q, k, v| forward_host::<bf16, bf16>(&device(Fault::None), &problem(), q, k, v).unwrap_err();
    assert_eq!(
        error(&long, &long[..4608], &short).to_string(),
        "v: expected 4608 elements for shape [2, 9, 2, 128], got 4607"
    );
    assert!(error(&[], &[], &[]).to_string().starts_with("q: expected 5120 elements"));
}

#[test]
fn slices_that_are_too_long() {
    let long = [bf16::ZERO; 5121];
    let error = |q, k, v| {
        let error = forward_host::<bf16, bf16>(&device(Fault::None), &problem(), q, k, v).unwrap_err();
        error.to_string()
    };
    let (q, k) = (&long[..5120], &long[..4608]);
    assert_eq!(error(&long, k, k), "q: expected 5120 elements for shape [2, 5, 4, 128], got 5121");
    assert_eq!(error(q, q, k), "k: expected 4608 elements for shape [2, 9, 2, 128], got 5120");
    assert_eq!(error(q, k, q), "v: expected 4608 elements for shape [2, 9, 2, 128], got 5120");
}

#[test]
fn a_device_buffer_takes_exactly_the_elements_that_it_holds() {
    let device = Device::emulated(Arch::Sm80).unwrap();
    let stream = Stream::default();
    let mut buffer = DeviceBuffer::<f32>::zeroed(&device, 3).unwrap();
    assert_eq!(buffer.to_vec(stream).unwrap(), [0.0; 3]);
    buffer.copy_from_slice(&[1.0, 2.0, 3.0], stream).unwrap();
    for wrong in [&[5.0; 2][..], &[5.0; 4]] {
        assert_eq!(
            buffer.copy_from_slice(wrong, stream).unwrap_err().to_string(),
            format!("elements: expected 3 elements for shape [3], got {}", wrong.len())
        );
    }
    assert_eq!(buffer.to_vec(stream).unwrap(), [1.0, 2.0, 3.0]);
    let mut none = DeviceBuffer::<f32>::zeroed(&device, 0).unwrap();
    none.copy_from_slice(&[], stream).unwrap();
    assert!(none.is_empty());
    let error = DeviceBuffer::<f32>::zeroed(&device, usize::MAX).unwrap_err().to_string();
    assert!(error.contains("out of memory"), "{error}");
}

/// Every buffer that a layout asks for is refused where there is no memory for it.
#[test]
fn outputs_that_no_memory_has_room_for() {
    // One element per megabyte, all apart: 2 PiB.
    let input = Layout { shape: [1, 1 << 29, 1, 1], strides: [0, 0, 0, 1] };
    let key = Layout::bshd([1, 1, 1, 1]);
    let o = Layout { shape: input.shape, strides: [1, 1 << 20, 1, 1] };
    let gapped = ForwardProblem::new(Dtype::F32, input, key, key).with_output(o);
    let emulated = Device::emulated(Arch::Sm80).unwrap();
    let error = forward_host::<f32, f32>(&emulated, &gapped, &[0.0], &[0.0], &[0.0]).unwrap_err();
    assert!(matches!(error, Error::OutOfMemory { .. }), "{error}");
    // A device that gives everything: what the host has decides.
    let error =
        forward_host::<f32, f32>(&device(Fault::GivesAddressesOnly), &gapped, &[0.0], &[0.0], &[0.0]);
    let bytes = ((1u64 << 20) * ((1 << 29) - 1) + 1) * 4;
    assert_eq!(
        error.unwrap_err().to_string(),
        format!("device host: out of memory: could not allocate {bytes} bytes")
    );
}

#[test]
fn grids_that_are_too_large() {
    // Every stride is 0 or spans little, so only the number of blocks is wrong.
    let input = |rows| Layout { shape: [1 << 18, rows, 1 << 10, 8], strides: [0, 0, 0, 1] };
    let o = Layout::bshd([1 << 18, 1 << 10, 1 << 10, 8]);
    let large = ForwardProblem::new(Dtype::F16, input(1 << 10), input(1), input(1)).with_output(o);
    let text = launch_refused(&device(Fault::None), &large, pointers());
    assert!(text.starts_with("grid: expected at most 2147483647 blocks, got "), "{text}");
    assert!(text.contains(" query rows x 1024 heads x 262144 batches)"), "{text}");
}

#[test]
fn devices() {
    for text in ["metal", "cuda:", "cuda:x", "cuda:-1", "emulated:sm_10", ""] {
        assert_eq!(
            text.parse::<DeviceName>().unwrap_err().to_string(),
            format!(
                "device: expected cuda, cuda:N, cuda:N:sm_80, emulated, emulated:sm_80 or emulated:sm_90a, got `{text}`"
            )
        );
    }
    let no_device = Error::NoDevice { device: "cuda:3".into(), reason: "no driver".into() };
    assert_eq!(no_device.to_string(), "device cuda:3: not available: no driver");
    assert_eq!(
        launch_refused(&device_with(Fault::None, (7, 5)), &problem(), pointers()),
        "device mock: no forward kernel for bf16 with head_dim 128: forward_bf16_d128_strided_sm80 needs \
         sm_80 and 81920 bytes of shared memory per block, the device has compute capability 7.5 and 232448 bytes"
    );
}

#[test]
fn device_failures() {
    let inputs = [bf16::ONE; 5120];
    let text = |fault| {
        let device = device(fault);
        forward_host::<bf16, bf16>(&device, &problem(), &inputs, &inputs[..4608], &inputs[..4608])
            .unwrap_err()
            .to_string()
    };
    assert_eq!(text(Fault::OutOfMemory), "device mock: out of memory: could not allocate 10240 bytes");
    assert_eq!(
        text(Fault::Launch),
        "kernel forward_bf16_d128_sm80: the emulator reports 2 findings\n- first\n- second"
    );
    let findings = Error::Findings { kernel: "f".into(), findings: vec!["only".into()] };
    assert_eq!(findings.to_string(), "kernel f: the emulator reports 1 finding\n- only");
    let emulator = Error::Emulator { reason: "PTX line 3: unsupported instruction".into() };
    assert_eq!(emulator.to_string(), "emulator: PTX line 3: unsupported instruction");
}

#[test]
fn cuda_failures() {
    let error = |detail: &str| Error::Cuda {
        call: "cuLaunchKernel",
        code: 700,
        name: "CUDA_ERROR_ILLEGAL_ADDRESS".into(),
        detail: detail.into(),
    };
    assert_eq!(error("").to_string(), "CUDA: cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS (700)");
    assert_eq!(
        error("in forward").to_string(),
        "CUDA: cuLaunchKernel failed: CUDA_ERROR_ILLEGAL_ADDRESS (700): in forward"
    );
}
