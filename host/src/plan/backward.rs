//! The plan of a backward pass: up to six kernels, one after the other, with a workspace between them; of f32
//! in two parts more ([`BackwardOperands`], [`ForwardAgain`]).
//!
//! 1. delta: per query row lse and delta, and zeroed accumulators of dq or, for Hopper, notes
//! 2. main: dk and dv, and dq added up in f32
//! 3. convert: dq
//! 4. sum: dk and dv of key tiles that the main kernel has divided, if there are any
//! 5. the gradient of the bias, if it is wanted
//! 6. the gradient of the sinks, if it is wanted
//!
//! A kernel with nothing to do is left out: with no queries dk and dv still become 0 (main alone), with
//! no keys dq does (delta and convert).

mod again;
mod params;
mod parts;
mod scores;

pub use again::ForwardAgain;
pub use parts::BackwardOperands;

use self::scores::{bias_gradient, sink_gradient};
use super::dq::{dq_order, split};
use super::forward::check_offsets;
use super::score::ScorePointers;
use super::stretches::Stretches;
use super::waves::choose_wave;
use super::workspace::{delta_rows, dq_gap, padded_rows, workspace_rows};
use super::{
    Choice, Tensor, check_pointer, choose_access, choose_kernel, count_blocks, operands, steps,
    tensor_maps,
};
use crate::driver::{DevicePointer, DeviceProperties, TensorMapDescription};
use crate::error::{Error, Result};
use crate::problem::{Bias, ValidBackward};
use kernels_gpu::abi::{
    Access, Arch, BackwardParams, Dtype, Family, KERNELS, KernelSpec, KernelVariant, NOTE_ROWS,
    backward_statistics,
};
use std::fmt;

/// Where the tensors of a backward pass stand in device memory: the addresses of their elements (0, 0, 0, 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BackwardPointers {
    /// `[B, Sq, Hq, D]`.
    pub q: DevicePointer,
    /// `[B, Sk, Hk, D]`.
    pub k: DevicePointer,
    /// `[B, Sk, Hk, Dv]`.
    pub v: DevicePointer,
    /// `[B, Sq, Hq, Dv]`, what the forward gave.
    pub o: DevicePointer,
    /// `[B, Sq, Hq, Dv]`.
    pub d_o: DevicePointer,
    /// `[B, Sq, Hq, D]`, written.
    pub dq: DevicePointer,
    /// `[B, Sk, Hk, D]`, written.
    pub dk: DevicePointer,
    /// `[B, Sk, Hk, Dv]`, written.
    pub dv: DevicePointer,
    /// Dense f32 `[B, Hq, Sq]`, packed `[Hq, Tq]`, what the forward gave.
    pub lse: DevicePointer,
    /// f32 like lse; not looked at unless the problem has it.
    pub d_lse: DevicePointer,
    /// i32 `[B + 1]`; not looked at unless sequences are packed.
    pub cu_seqlens_q: DevicePointer,
    /// i32 `[B + 1]`; not looked at unless sequences are packed.
    pub cu_seqlens_k: DevicePointer,
    /// What scores have beside.
    pub score: ScorePointers,
    /// The gradient of the bias, written; not looked at unless it is wanted.
    pub d_bias: DevicePointer,
    /// The gradient of the sinks, f32 `[Hq]`, written; not looked at unless it is wanted.
    pub d_sinks: DevicePointer,
}

impl BackwardPointers {
    /// Every tensor with elements has an address, and it is a multiple of the element size.
    fn check(&self, valid: &ValidBackward, dq_dtype: Dtype) -> Result<()> {
        let problem = &valid.problem.forward;
        let o =
            Tensor { argument: "o", layout: &problem.o, address: self.o, dtype: problem.output_dtype };
        self.tensors(valid, dq_dtype).iter().chain([&o]).try_for_each(Tensor::check)?;
        let lse_elements = valid.forward.lse_elements() as u128;
        check_pointer("lse", self.lse, Dtype::F32, lse_elements)?;
        let d_lse_elements = if valid.problem.has_d_lse { lse_elements } else { 0 };
        check_pointer("dlse", self.d_lse, Dtype::F32, d_lse_elements)?;
        self.score.check(&valid.forward)?;
        if let Some(Bias { layout, dtype }) = valid.problem.d_bias {
            check_pointer("dbias", self.d_bias, dtype, layout.elements())?;
        }
        let d_sinks = if valid.problem.wants_d_sinks { valid.forward.query_heads } else { 0 };
        check_pointer("dsinks", self.d_sinks, Dtype::F32, d_sinks.into())?;
        check_offsets(&valid.forward, self.cu_seqlens_q, self.cu_seqlens_k)
    }

    /// The tensors whose rows decide how memory is accessed. That of o does not: only the first kernel
    /// reads it, which takes any strides.
    fn tensors<'p>(&self, valid: &'p ValidBackward, dq_dtype: Dtype) -> [Tensor<'p>; 7] {
        let (problem, forward) = (&valid.problem, &valid.problem.forward);
        let (dtype, gradient) = (forward.dtype, problem.gradient_dtype);
        [
            Tensor { argument: "q", layout: &forward.q, address: self.q, dtype },
            Tensor { argument: "k", layout: &forward.k, address: self.k, dtype },
            Tensor { argument: "v", layout: &forward.v, address: self.v, dtype },
            Tensor { argument: "do", layout: &problem.d_o, address: self.d_o, dtype },
            Tensor { argument: "dq", layout: &problem.dq, address: self.dq, dtype: dq_dtype },
            Tensor { argument: "dk", layout: &problem.dk, address: self.dk, dtype: gradient },
            Tensor { argument: "dv", layout: &problem.dv, address: self.dv, dtype: gradient },
        ]
    }
}

/// One kernel and its grid.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KernelLaunch {
    /// The kernel and its switches.
    pub variant: KernelVariant,
    /// Blocks of the one-dimensional grid; not 0.
    pub blocks: u32,
}

/// `forward_bf16_d64_sm80: 4 blocks of 128 threads, 49152 shared bytes`.
impl fmt::Display for KernelLaunch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let KernelLaunch { variant, blocks } = self;
        let KernelSpec { threads, shared_bytes, .. } = variant.kernel;
        write!(f, "{variant}: {blocks} blocks of {threads} threads, {shared_bytes} shared bytes")
    }
}

/// A line for each.
pub(super) fn write_launches(f: &mut fmt::Formatter<'_>, launches: &[KernelLaunch]) -> fmt::Result {
    launches.iter().enumerate().try_for_each(|(index, launch)| {
        let line = if index == 0 { "" } else { "\n" };
        write!(f, "{line}{launch}")
    })
}

/// The part of a plan that only kernels for Hopper have: tensors as tensor maps describe them, none where
/// there is nothing to describe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperBackward {
    /// q.
    pub q: Option<TensorMapDescription>,
    /// k.
    pub k: Option<TensorMapDescription>,
    /// v.
    pub v: Option<TensorMapDescription>,
    /// dO.
    pub d_o: Option<TensorMapDescription>,
}

/// Everything that launching a backward pass takes, except the workspace. Printable: `{}` is a line per
/// kernel, with the reasons `{:#}`.
#[derive(Clone, Debug, PartialEq)]
pub struct BackwardPlan {
    /// The kernels in their order; none when there is nothing to compute.
    pub launches: Vec<KernelLaunch>,
    /// The parameter of all of them (of a kernel for Hopper that takes maps, a part of it); the addresses of
    /// the workspace are 0.
    pub params: BackwardParams,
    /// What else a main kernel for Hopper takes.
    pub hopper: Option<HopperBackward>,
    /// What else a kernel for Hopper takes that makes the gradient of the bias.
    pub hopper_bias: Option<HopperBackward>,
    /// What else a pass of f32 in two parts has.
    pub operands: Option<BackwardOperands>,
    /// What takes the place of the given o and lse where scores of f32 are not made as the forward made them.
    pub again: Option<ForwardAgain>,
    /// How it divides key tiles.
    pub(super) stretches: Stretches,
    /// Why these kernels and this order, a sentence each.
    pub reasons: Vec<String>,
}

impl BackwardPlan {
    /// What the address of the workspace must be a multiple of.
    pub const WORKSPACE_ALIGNMENT: u32 = 256;

    /// Device memory that the kernels need between them. Its contents do not matter before or after.
    pub fn workspace_bytes(&self) -> u64 {
        let again = self.again.as_ref();
        again.map_or(self.operands_end(), |again| self.again_begin() + again.workspace_bytes)
    }

    /// Where statistics, accumulators and notes end: the first part of the workspace.
    fn sums_end(&self) -> u64 {
        self.statistics_bytes() + self.accumulator_bytes() + self.slot_bytes() + self.note_bytes()
    }

    /// f32 `[splits, Hq, accumulator_rows, padded_dim]`.
    pub(super) fn accumulator_bytes(&self) -> u64 {
        let params = &self.params;
        let accumulators =
            params.query_heads as u64 * params.accumulator_rows as u64 * params.padded_dim as u64;
        4 * accumulators * u64::from(params.splits)
    }

    /// f32 `[slots, 2, tile_keys, padded_dim]`.
    fn slot_bytes(&self) -> u64 {
        let BackwardParams { tile_keys, padded_dim, .. } = self.params;
        4 * u64::from(self.stretches.slots()) * 2 * u64::from(tile_keys) * u64::from(padded_dim)
    }

    /// Counters, and u32 `[Hq, workspace_rows / NOTE_ROWS]`, for a main kernel for Hopper that others run
    /// before.
    fn note_bytes(&self) -> u64 {
        let params = &self.params;
        if self.hopper.is_none() || params.workspace_rows == 0 {
            return 0;
        }
        let notes = u64::from(params.query_heads) * u64::from(params.workspace_rows / NOTE_ROWS);
        self.counter_bytes() + 4 * notes
    }

    /// u32 `[1 + B Hk]`: see [`BackwardParams::counter`].
    fn counter_bytes(&self) -> u64 {
        let params = &self.params;
        4 * (1 + u64::from(params.batches) * u64::from(params.query_heads / params.group_size))
    }

    /// f32 `[statistics, Hq, workspace_rows]`.
    fn statistics_bytes(&self) -> u64 {
        let mut kernels = self.launches.iter().map(|launch| launch.variant.kernel);
        let delta = kernels.find(|kernel| kernel.family == Family::BackwardDelta);
        let statistics = delta.map_or(0, |kernel| backward_statistics(kernel.dtype));
        4 * u64::from(statistics)
            * u64::from(self.params.query_heads)
            * u64::from(self.params.workspace_rows)
    }

    /// The main kernel, unless there is nothing for it to do.
    pub fn main_kernel(&self) -> Option<KernelVariant> {
        let mut variants = self.launches.iter().map(|launch| launch.variant);
        variants.find(|variant| variant.kernel.family == Family::Backward)
    }

    /// The parameter of the kernels, with a workspace of this many bytes at this address.
    ///
    /// # Errors
    /// [`Error::WorkspaceTooSmall`], [`Error::NullPointer`], [`Error::Misaligned`].
    pub fn params_with(&self, workspace: DevicePointer, bytes: u64) -> Result<BackwardParams> {
        let (expected, alignment) = (self.workspace_bytes(), BackwardPlan::WORKSPACE_ALIGNMENT);
        if expected == 0 {
            return Ok(self.params);
        }
        if bytes < expected {
            return Err(Error::WorkspaceTooSmall { expected, got: bytes });
        }
        if workspace == 0 {
            return Err(Error::NullPointer {
                argument: "workspace",
                elements: u128::from(expected) / 4,
            });
        }
        if !workspace.is_multiple_of(u64::from(alignment)) {
            return Err(Error::Misaligned { argument: "workspace", alignment, address: workspace });
        }
        let dq_accumulator = workspace + self.statistics_bytes();
        let slots = dq_accumulator + self.accumulator_bytes();
        let stretch_sums = if self.slot_bytes() > 0 { slots } else { 0 };
        let (mut counter, mut dq_notes) = (0, 0);
        if self.note_bytes() > 0 {
            counter = slots + self.slot_bytes();
            dq_notes = counter + self.counter_bytes();
        }
        let mut params = self.params;
        params.statistics = workspace;
        params.dq_accumulator = dq_accumulator;
        params.dq_notes = dq_notes;
        params.counter = counter;
        params.stretch_sums = stretch_sums;
        if let Some(again) = &self.again {
            again.tell(&mut params, workspace + self.again_begin());
        }
        Ok(params)
    }
}

impl fmt::Display for BackwardPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_launches(f, &self.launches)?;
        if f.alternate() {
            write!(f, "\n  {} bytes of workspace", self.workspace_bytes())?;
            self.reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))?;
        }
        Ok(())
    }
}

/// Plans a backward pass.
///
/// # Errors
/// [`Error::NullPointer`], [`Error::Misaligned`], [`Error::KernelMissing`], [`Error::GridTooLarge`],
/// [`Error::WorkspaceRows`].
pub fn plan_backward(
    valid: &ValidBackward,
    device: &DeviceProperties,
    pointers: &BackwardPointers,
) -> Result<BackwardPlan> {
    plan_backward_into(valid, device, pointers, valid.problem.gradient_dtype, Vec::new())
}

/// The same with a dq of this type.
///
/// # Errors
/// As [`plan_backward`].
pub(super) fn plan_backward_into(
    valid: &ValidBackward,
    device: &DeviceProperties,
    pointers: &BackwardPointers,
    dq_dtype: Dtype,
    mut reasons: Vec<String>,
) -> Result<BackwardPlan> {
    pointers.check(valid, dq_dtype)?;
    let tensors = pointers.tensors(valid, dq_dtype);
    let access = choose_access(&tensors, &mut reasons);
    let mode = valid.problem.mode;
    let forward = &valid.forward;
    let (dtype, head_dim) = (forward.problem.dtype, forward.head_dim.max(forward.value_dim));
    let choice = Choice {
        family: Family::Backward,
        dtype,
        head_dim,
        access,
        mappable: access == Access::Vector16
            && tensor_maps::can_describe(&tensors[..4], device, &mut reasons),
        short_tiles: steps::are_short(forward, head_dim, device),
        gathers_heads: false,
        leaves_parts: false,
        switches: forward.backward_switches(),
    };
    let variant = choose_kernel(device, &choice, &mut reasons)?;
    let main = variant.kernel;
    match (main.key_rows, main.query_rows) {
        (_, 80) => {
            reasons.push("80 queries a step: so many fewer steps than with 64 that it is faster".into())
        }
        (192, _) => {
            reasons.push("192 keys by 64 queries a step: less to do than with 128 by 128".into())
        }
        _ => {}
    }
    let delta = sibling(main, Family::BackwardDelta)?;
    let padded_rows = padded_rows(forward, main, delta);
    let workspace_rows = workspace_rows(forward, padded_rows)?;
    let dq_gap = dq_gap(forward, main, padded_rows);
    let mut params = params::of_tensors(valid, pointers);
    params.dq_f32 = u32::from(dq_dtype == Dtype::F32);
    params.heads_per_wave = choose_wave(forward, main, mode, device, &mut reasons);
    if forward.is_empty() {
        let pairs = params.batches.saturating_mul(params.query_heads);
        params.heads_per_wave = params.heads_per_wave.min(pairs).max(1);
    } else {
        params.padded_rows = padded_rows as u32;
    }
    (params.workspace_rows, params.dq_gap) = (workspace_rows, dq_gap);
    params.accumulator_rows = workspace_rows - forward.batches * dq_gap;
    (params.padded_dim, params.tile_keys) = (main.head_dim, main.key_rows);
    let of_forward = (dtype == Dtype::F32).then(|| parts::forward_kernel(forward, pointers, device));
    let is_behind_parts = matches!(of_forward, Some(Ok(_))) && !forward.is_empty();
    let of_parts = of_forward.and_then(|of_forward| {
        let kernel = parts::kernel_for(valid, of_forward, main, device);
        operands::with_reason(kernel, &mut reasons)
    });
    let key_tiles = params.key_rows.div_ceil(main.key_rows);
    split(mode, key_tiles, main, device, &mut params, &mut reasons);
    let operands = of_parts.map(|kernel| parts::operands(valid, pointers, kernel, &params));
    let operands = operands.transpose()?;
    let (mut hopper, mut stretches) = (None, Stretches::NONE);
    if main.arch == Arch::Sm90a {
        hopper = Some(tensors_of(main, &tensors));
        if !forward.is_empty() {
            params.dq_order = dq_order(mode, forward, main, &params, &mut reasons);
            stretches = Stretches::choose(forward, mode, main, device, &mut reasons);
        }
        stretches.tell(&mut params);
    }
    let mut launches = launches(delta, variant, device, &params, &stretches)?;
    let again = if is_behind_parts { again::plan(valid, pointers, device)? } else { None };
    if let Some((_, again)) = &again {
        launches = if let (Some(kernel), Some((operands, blocks))) = (of_parts, &operands) {
            let variant = KernelVariant { kernel, ..variant };
            parts::launches(&launches, variant, (operands, *blocks), again, &params)?
        } else {
            reasons.push("o and lse again by fma: those of the forward are of parts".to_owned());
            [again.forward].into_iter().chain(launches).collect()
        };
    }
    let operands = operands.map(|(operands, _)| operands);
    let d_bias = bias_gradient(valid, &params, device, &tensors, &mut reasons)?;
    if let (Some(_), Some(_), Some((_, again))) = (&d_bias, of_parts, &again) {
        reasons.push("o and lse again by fma for dbias: those of the forward are of parts".to_owned());
        launches.extend(again.statistics(&launches));
    }
    let is_hopper = |launch: &KernelLaunch| launch.variant.kernel.arch == Arch::Sm90a;
    let hopper_bias = d_bias.filter(is_hopper).map(|launch| tensors_of(launch.variant.kernel, &tensors));
    launches.extend(d_bias);
    launches.extend(sink_gradient(valid, device)?);
    let again = again.map(|(again, _)| again);
    Ok(BackwardPlan { launches, params, hopper, hopper_bias, operands, again, stretches, reasons })
}

fn tensors_of(kernel: &KernelSpec, [q, k, v, d_o, ..]: &[Tensor<'_>; 7]) -> HopperBackward {
    HopperBackward {
        q: tensor_maps::describe(q, kernel.query_rows),
        k: tensor_maps::describe(k, kernel.key_rows),
        v: tensor_maps::describe(v, kernel.key_rows),
        d_o: tensor_maps::describe(d_o, kernel.query_rows),
    }
}

/// The kernels with something to do.
fn launches(
    delta: &'static KernelSpec,
    variant: KernelVariant,
    device: &DeviceProperties,
    params: &BackwardParams,
    stretches: &Stretches,
) -> Result<Vec<KernelLaunch>> {
    let main = variant.kernel;
    let &BackwardParams { batches, query_heads, query_rows, key_rows, .. } = params;
    let key_heads = query_heads / params.group_size;
    let key_blocks = if key_rows == 0 { 0 } else { params.key_blocks };
    let delta_rows = delta_rows(delta, params.value_dim);
    let delta_blocks = params.padded_rows / delta_rows;
    let what = format!("groups of {delta_rows} query rows");
    let delta_blocks = count_blocks(delta_blocks, &what, query_heads, batches)?;
    let what = format!("groups of tiles of {} keys", main.key_rows);
    let mut main_blocks = count_blocks(key_blocks, &what, key_heads, batches)?;
    if main.arch == Arch::Sm90a {
        if stretches.divided_tiles > 0 {
            main_blocks = stretches.turns();
        }
        // Blocks stay, one on each multiprocessor, and take key tiles until there are none left; where there
        // is no workspace for the counter that they take them from, each takes one.
        if params.workspace_rows > 0 {
            main_blocks = main_blocks.min(device.multiprocessors.max(1));
        }
    }
    let what = format!("tiles of {} query rows", main.query_rows);
    let convert_blocks =
        count_blocks(query_rows.div_ceil(main.query_rows), &what, query_heads, batches)?;
    let mut launches = vec![
        KernelLaunch { variant: delta.into(), blocks: delta_blocks },
        KernelLaunch { variant, blocks: main_blocks },
        KernelLaunch { variant: sibling(main, Family::BackwardConvert)?.into(), blocks: convert_blocks },
    ];
    if stretches.divided_tiles > 0 {
        let kernel = sibling(main, Family::BackwardSum)?;
        let what = format!("groups of {} keys of divided tiles", kernel.key_rows);
        let groups = stretches.divided_tiles * (main.key_rows / kernel.key_rows);
        let blocks = count_blocks(groups, &what, 2, 1)?;
        launches.push(KernelLaunch { variant: kernel.into(), blocks });
    }
    launches.retain(|launch| launch.blocks > 0);
    Ok(launches)
}

/// The kernel before or after the main one. The first is the same for every device, head dimension and
/// access.
fn sibling(main: &KernelSpec, family: Family) -> Result<&'static KernelSpec> {
    let key = |spec: &KernelSpec| {
        let (arch, head_dim, access, query_rows, parts) = match family {
            Family::BackwardConvert => {
                (spec.arch, spec.head_dim, spec.access, spec.query_rows, spec.multiplies_parts)
            }
            Family::BackwardSum => (spec.arch, 0, Access::Element, 0, false),
            _ => (Arch::Sm80, 0, Access::Element, 0, false),
        };
        (arch, spec.dtype, head_dim, access, query_rows, parts)
    };
    let found = KERNELS.iter().find(|spec| spec.family == family && key(spec) == key(main));
    found.ok_or_else(|| Error::KernelMissing {
        device: "any".into(),
        family: "backward",
        dtype: main.dtype.name(),
        head_dim: main.head_dim,
        reason: format!("nothing goes with {}", main.name),
    })
}
