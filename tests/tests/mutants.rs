//! The suite can fail: kernels whose PTX was changed in one way do not pass, and what is found is what
//! was broken.

use finite_attention::check::{Case, Inputs, run_case_with};
use finite_attention::driver::emulated::Options;
use finite_attention::{Error, KernelImages};
use finite_attention_tests::device::{emulated, emulated_arch};
use finite_attention_tests::ptx::{
    Ptx, Which, dropped, kernel_of, off_by_one, one_more, operand, spec, with_operand,
};
use finite_attention_tests::recorder::{small, with_room_for};
use finite_attention_tests::shapes::ragged;
use finite_attention_tests::zoo::VISIBLE_END;
use kernels_gpu::abi::Arch;

const ALIGNED: &str = "forward_bf16_d64_sm80";
const STRIDED: &str = "forward_bf16_d64_strided_sm80";
const F32: &str = "forward_f32_d64_sm80";
const BACKWARD: &str = "backward_bf16_d64_sm80";
const BACKWARD_F32: &str = "backward_f32_d64_sm80";

/// How a mutant gives itself away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caught {
    /// The emulator reports a finding of its own.
    ByTheEmulator,
    /// The results are wrong, or something else was written.
    ByTheResults,
}

/// How a case fails with these kernels; `None` when it passes. The device is planned for as a small one, so that blocks
/// of a backward work on several key tiles.
///
/// Panics if the kernel cannot be run at all: a text that is no PTX is not caught, it is no mutant.
fn failure(arch: Arch, kernel: &str, images: KernelImages, case: &Case) -> Option<(Caught, String)> {
    let device = with_room_for(&small(&emulated(arch, images, Options::default())), spec(kernel));
    match run_case_with(&device, case, Inputs::drawn) {
        Ok((outcome, _)) => {
            let ran = [outcome.kernel, outcome.backward_kernel];
            let is_planned = ran.iter().any(|ran| kernel_of(ran) == kernel);
            assert!(is_planned, "the case is planned for {ran:?}");
            outcome.failure.map(|failure| (Caught::ByTheResults, failure))
        }
        Err(Error::Findings { findings, .. }) => Some((Caught::ByTheEmulator, findings.join("\n"))),
        Err(error) => panic!("the mutant does not run: {error}"),
    }
}

/// The kernel that ships passes the case, its mutant fails it as expected. Nothing on a GPU, which
/// nobody checks.
fn caught(by: &[Caught], kernel: &str, case: &Case, mutant: impl FnOnce(&Ptx) -> Ptx) {
    if emulated_arch().is_none() {
        return;
    }
    // A mutant runs where its kernel is planned, whichever emulator the other tests use.
    let arch = spec(kernel).arch;
    let shipped = Ptx::shipped(kernel);
    let healthy = failure(arch, kernel, shipped.images(), case);
    assert!(healthy.is_none(), "the kernel that ships fails: {healthy:?}");
    match failure(arch, kernel, mutant(&shipped).images(), case) {
        None => panic!("the mutant passes"),
        Some((how, text)) => assert!(by.contains(&how), "expected {by:?}, got {how:?}: {text}"),
    }
}

const EMULATOR: &[Caught] = &[Caught::ByTheEmulator];
const RESULTS: &[Caught] = &[Caught::ByTheResults];
const EITHER: &[Caught] = &[Caught::ByTheEmulator, Caught::ByTheResults];

/// As [`ragged`], with a negative scale: then queries are changed in shared memory first, behind a
/// barrier of its own.
fn negative(kernel: &str) -> Case {
    Case { scale: Some(-0.2), ..ragged(kernel) }
}

/// Each instruction with this opcode is needed: without it, and with all others, the kernel fails.
fn each_is_needed(by: &[Caught], kernel: &str, opcode: &str) {
    for number in 0..Ptx::shipped(kernel).find(opcode, "").len() {
        let which = Which::Number(number);
        caught(by, kernel, &negative(kernel), |ptx| ptx.edited(opcode, "", which, dropped));
    }
}

#[test]
fn copies_that_are_not_waited_for() {
    each_is_needed(EMULATOR, ALIGNED, "cp.async.wait_group");
    each_is_needed(EMULATOR, F32, "cp.async.wait_group");
    for kernel in [BACKWARD, BACKWARD_F32] {
        caught(EMULATOR, kernel, &ragged(kernel), |ptx| {
            ptx.edited("cp.async.wait_group", "", Which::Last, dropped)
        });
    }
}

#[test]
fn copies_that_are_not_committed() {
    each_is_needed(EMULATOR, ALIGNED, "cp.async.commit_group");
    each_is_needed(EMULATOR, F32, "cp.async.commit_group");
    each_is_needed(EMULATOR, BACKWARD, "cp.async.commit_group");
    each_is_needed(EMULATOR, BACKWARD_F32, "cp.async.commit_group");
}

#[test]
fn a_missing_barrier() {
    each_is_needed(EITHER, ALIGNED, "bar.sync");
    each_is_needed(EITHER, STRIDED, "bar.sync");
    each_is_needed(EITHER, F32, "bar.sync");
    each_is_needed(EITHER, BACKWARD, "bar.sync");
    each_is_needed(EITHER, BACKWARD_F32, "bar.sync");
}

#[test]
fn a_barrier_that_one_warp_skips() {
    caught(EMULATOR, ALIGNED, &ragged(ALIGNED), |ptx| {
        ptx.edited("bar.sync", "", Which::Last, |_| {
            "{ .reg .pred %skip; .reg .b32 %who; mov.u32 %who, %tid.x; setp.ge.u32 %skip, %who, 32; @%skip bar.sync 0; }"
                .to_owned()
        })
    });
}

#[test]
fn keys_and_values_read_past_the_end() {
    let case = Case { tight: true, ..ragged(ALIGNED) };
    let whole_chunks = |line: &str| with_operand(line, 3, "16");
    let file = "pipeline/key_value_ring.rs";
    caught(EITHER, ALIGNED, &case, |ptx| ptx.edited("cp.async.cg", file, Which::All, whole_chunks));
}

#[test]
fn elements_read_past_the_end() {
    let unconditional =
        |line: &str| line.split_once(' ').map_or_else(String::new, |(_, rest)| rest.to_owned());
    let case = Case { tight: true, ..ragged(STRIDED) };
    caught(EITHER, STRIDED, &case, |ptx| {
        ptx.edited("ld.global.nc.b16", "tile/shared_tile.rs", Which::All, unconditional)
    });
}

#[test]
fn rows_stored_past_the_end() {
    // `row >= rows` becomes false.
    let never = |line: &str| with_operand(&line.replacen(".ge.", ".ne.", 1), 2, operand(line, 1));
    caught(EITHER, ALIGNED, &ragged(ALIGNED), |ptx| {
        ptx.edited("setp.ge.s32", "tile/store.rs", Which::All, never)
    });
}

#[test]
fn columns_stored_past_the_end() {
    caught(EITHER, ALIGNED, &ragged(ALIGNED), |ptx| {
        ptx.edited("setp.ge.u32", "tile/store.rs", Which::All, off_by_one)
    });
}

#[test]
fn one_key_too_many_is_visible() {
    caught(RESULTS, ALIGNED, &ragged(ALIGNED), |ptx| {
        ptx.edited_at("sub.s32", &[VISIBLE_END], Which::All, one_more)
    });
}

#[test]
fn one_key_too_many_is_visible_in_f32() {
    caught(RESULTS, F32, &ragged(F32), |ptx| {
        ptx.edited("setp.gt.u32", "score/mask.rs", Which::All, off_by_one)
    });
}

#[test]
fn values_that_are_not_transposed() {
    let plain = |line: &str| line.replace(".trans", "");
    caught(RESULTS, ALIGNED, &ragged(ALIGNED), |ptx| {
        ptx.edited("ldmatrix.sync.aligned.m8n8.x4.trans", "", Which::All, plain)
    });
}

#[test]
fn a_product_that_is_left_out() {
    caught(RESULTS, ALIGNED, &ragged(ALIGNED), |ptx| ptx.edited("mma.sync", "", Which::Last, dropped));
}

#[test]
fn a_product_of_the_backward_that_is_left_out() {
    caught(RESULTS, BACKWARD, &ragged(BACKWARD), |ptx| ptx.edited("mma.sync", "", Which::Last, dropped));
}

#[test]
fn sums_over_half_the_lanes() {
    caught(RESULTS, ALIGNED, &ragged(ALIGNED), |ptx| {
        ptx.edited("shfl.sync.bfly", "attention/softmax.rs", Which::Last, |line| {
            with_operand(line, 2, "0")
        })
    });
}

#[test]
fn lse_in_base_two() {
    caught(RESULTS, ALIGNED, &ragged(ALIGNED), |ptx| ptx.replaced("0f3F317218", "0f3F800000")); // ln 2, 1
}

#[test]
fn a_maximum_that_is_never_followed() {
    // Without the largest score, 2 to the power of these is infinite.
    let case = Case { logit_shift: 200.0, ..ragged(ALIGNED) };
    caught(RESULTS, ALIGNED, &case, |ptx| {
        let infinity = |line: &str| with_operand(line, 2, "0f7F800000");
        ptx.edited("setp.gt.f32", "attention/softmax.rs", Which::All, infinity)
    });
}
