//! The plan of a forward pass.

mod order;
mod params;

pub(super) use self::order::are_alike;
use self::order::{choose_hopper_wave, choose_wave};
use self::params::forward_params;
use super::operands::{self, OperandsPlan};
use super::row_heads::{self, TileRows};
use super::score::ScorePointers;
use super::split::{self, CombinePlan, Split};
use super::{
    Choice, Tensor, check_pointer, choose_access, choose_kernel, count_blocks, single_query, tensor_maps,
};
use crate::driver::{DevicePointer, DeviceProperties, L2Promotion, TensorMapDescription};
use crate::error::Result;
use crate::problem::ValidForward;
use kernels_gpu::abi::{
    Access, Arch, Dtype, Family, ForwardParams, KERNELS, KernelSpec, KernelVariant, OUTPUT_BOX_ROWS,
    WINDOW_OPEN,
};
use std::fmt;

/// Where the tensors of a forward pass stand in device memory: the addresses of their elements (0, 0, 0,
/// 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ForwardPointers {
    /// `[B, Sq, Hq, D]`.
    pub q: DevicePointer,
    /// `[B, Sk, Hk, D]`.
    pub k: DevicePointer,
    /// `[B, Sk, Hk, Dv]`.
    pub v: DevicePointer,
    /// `[B, Sq, Hq, Dv]`.
    pub o: DevicePointer,
    /// Dense f32 `[B, Hq, Sq]`, packed `[Hq, Tq]`; not looked at unless the problem wants lse.
    pub lse: DevicePointer,
    /// i32 `[B + 1]`; not looked at unless sequences are packed.
    pub cu_seqlens_q: DevicePointer,
    /// i32 `[B + 1]`; not looked at unless sequences are packed.
    pub cu_seqlens_k: DevicePointer,
    /// What scores have beside.
    pub score: ScorePointers,
}

impl ForwardPointers {
    /// Every tensor with elements has an address, and it is a multiple of the element size.
    fn check(&self, valid: &ValidForward) -> Result<()> {
        let lse_elements = if valid.problem.wants_lse { valid.lse_elements() } else { 0 };
        self.tensors(valid)[3].check()?;
        check_pointer("lse", self.lse, Dtype::F32, lse_elements as u128)?;
        self.check_inputs(valid)
    }

    /// The same of all but o and lse.
    pub(super) fn check_inputs(&self, valid: &ValidForward) -> Result<()> {
        self.tensors(valid)[..3].iter().try_for_each(Tensor::check)?;
        self.score.check(valid)?;
        check_offsets(valid, self.cu_seqlens_q, self.cu_seqlens_k)
    }

    fn tensors<'p>(&self, valid: &'p ValidForward) -> [Tensor<'p>; 4] {
        let problem = &valid.problem;
        [
            Tensor { argument: "q", layout: &problem.q, address: self.q, dtype: problem.dtype },
            Tensor { argument: "k", layout: &problem.k, address: self.k, dtype: problem.dtype },
            Tensor { argument: "v", layout: &problem.v, address: self.v, dtype: problem.dtype },
            Tensor { argument: "o", layout: &problem.o, address: self.o, dtype: problem.output_dtype },
        ]
    }
}

/// Packed sequences have offsets in device memory. They are as wide as an f32.
pub(super) fn check_offsets(
    valid: &ValidForward,
    cu_seqlens_q: DevicePointer,
    cu_seqlens_k: DevicePointer,
) -> Result<()> {
    let offsets = if valid.is_packed() { u128::from(valid.batches) + 1 } else { 0 };
    check_pointer("cu_seqlens_q", cu_seqlens_q, Dtype::F32, offsets)?;
    check_pointer("cu_seqlens_k", cu_seqlens_k, Dtype::F32, offsets)
}

/// Everything that launching a forward pass takes. Printable: `{}` is a line, with the reasons `{:#}`.
#[derive(Clone, Debug, PartialEq)]
pub struct ForwardPlan {
    /// The kernel and its switches.
    pub variant: KernelVariant,
    /// Blocks of the one-dimensional grid.
    pub blocks: u32,
    /// The kernel's parameter; of a kernel for Hopper, a part of it. Where keys are split, o and lse are
    /// addresses from the beginning of a workspace.
    pub params: ForwardParams,
    /// What else a kernel for Hopper takes.
    pub hopper: Option<HopperPlan>,
    /// The kernel that comes after it where keys are split.
    pub combine: Option<CombinePlan>,
    /// What comes before and behind it where f32 is multiplied in two parts. Its tensor maps of q, k and v,
    /// or without these its q, k and v, are then the parts, with addresses from the beginning of a workspace.
    pub operands: Option<OperandsPlan>,
    /// Why this kernel and this order, a sentence each.
    pub reasons: Vec<String>,
}

/// The part of a plan that only kernels for Hopper have: tensors as tensor maps describe them, none where
/// there is nothing to describe.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HopperPlan {
    /// q.
    pub q: Option<TensorMapDescription>,
    /// k; none without keys.
    pub k: Option<TensorMapDescription>,
    /// v; none without keys.
    pub v: Option<TensorMapDescription>,
    /// o, where it can be described and rows of tiles are queries.
    pub o: Option<TensorMapDescription>,
}

impl fmt::Display for ForwardPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ForwardPlan { variant, blocks, .. } = self;
        let KernelSpec { threads, shared_bytes, .. } = variant.kernel;
        let wave = self.params.heads_per_wave;
        write!(f, "{variant}: {blocks} blocks of {threads} threads, {shared_bytes} shared bytes")?;
        write!(f, ", {wave} heads per wave")?;
        if let Some(CombinePlan { variant, blocks, workspace_bytes, .. }) = &self.combine {
            let ranges = self.params.splits;
            write!(f, ", {ranges} ranges of keys in {workspace_bytes} bytes of workspace")?;
            write!(f, "; {variant}: {blocks} blocks of {} threads", variant.kernel.threads)?;
        }
        if let Some(OperandsPlan { launches, exact, workspace_bytes, .. }) = &self.operands {
            let [first, second] = launches;
            write!(f, "; behind {} and {}", first.variant, second.variant)?;
            write!(f, ", {} blocks, {workspace_bytes} bytes of workspace", first.blocks)?;
            write!(f, "; where numbers need it {}: {} blocks", exact.variant, exact.blocks)?;
        }
        if f.alternate() {
            self.reasons.iter().try_for_each(|reason| write!(f, "\n  {reason}"))?;
        }
        Ok(())
    }
}

/// Plans a forward pass; `None` when o and lse have no elements and there is nothing to do.
///
/// A problem without keys (Sk = 0) is still launched: o must become 0 and lse minus infinity.
///
/// # Errors
/// [`NullPointer`](crate::Error::NullPointer), [`Misaligned`](crate::Error::Misaligned),
/// [`KernelMissing`](crate::Error::KernelMissing), [`GridTooLarge`](crate::Error::GridTooLarge).
pub fn plan_forward(
    valid: &ValidForward,
    device: &DeviceProperties,
    pointers: &ForwardPointers,
) -> Result<Option<ForwardPlan>> {
    pointers.check(valid)?;
    if valid.is_empty() {
        return Ok(None);
    }
    let mut reasons = Vec::new();
    let gathered = single_query::heads_as_rows(valid, pointers);
    if gathered.is_some() {
        reasons.push(format!(
            "a single query: {} heads that share keys are rows of a tile",
            valid.group_size
        ));
    }
    // Of queries as they are, as a backward has them.
    let of_parts = operands::kernel_for(valid, pointers, device, &mut reasons);
    let (valid, pointers) =
        gathered.as_ref().map_or((valid, pointers), |(valid, pointers)| (valid, pointers));
    if let Some(kernel) = of_parts {
        return plan_operands(valid, pointers, device, kernel, reasons).map(Some);
    }
    if split::may_split(valid)
        && let Some(plan) = plan_split(valid, pointers, device, &reasons)?
    {
        return Ok(Some(plan));
    }
    plan_at_once(valid, pointers, device, reasons).map(Some)
}

/// Plans a pass over all keys at once, that writes an output.
///
/// # Errors
/// As [`plan_forward`].
pub(super) fn plan_whole(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
    reasons: Vec<String>,
) -> Result<ForwardPlan> {
    pointers.check(valid)?;
    plan_at_once(valid, pointers, device, reasons)
}

fn plan_at_once(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
    mut reasons: Vec<String>,
) -> Result<ForwardPlan> {
    let tiles = if prefers_short_tiles(valid) { Tiles::Short } else { Tiles::Tall };
    let kernel = choose(valid, pointers, device, tiles, &mut reasons)?;
    plan_kernel(valid, pointers, device, kernel, 1, reasons)
}

/// Plans a pass of f32 by fused multiply-adds, over all keys at once, whose output is in a workspace.
///
/// # Errors
/// As [`plan_forward`].
pub(super) fn plan_again(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
) -> Result<ForwardPlan> {
    plan_at_once(valid, pointers, device, Vec::new())
}

/// Plans a pass of f32 in two parts, over all keys at once.
fn plan_operands(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
    kernel: &'static KernelSpec,
    reasons: Vec<String>,
) -> Result<ForwardPlan> {
    let rows = TileRows::new(kernel, None);
    let variant = KernelVariant { kernel, switches: valid.switches() };
    let plan = plan_kernel(valid, pointers, device, (variant, rows), 1, reasons)?;
    let exact = plan_at_once(valid, pointers, device, Vec::new())?;
    operands::with_operands(valid, pointers, plan, exact)
}

/// Plans a pass over all keys at once that writes a part of an output, by a kernel that can.
///
/// # Errors
/// As [`plan_forward`].
pub(super) fn plan_alone(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
    mut reasons: Vec<String>,
) -> Result<ForwardPlan> {
    let kernel = choose(valid, pointers, device, Tiles::OfParts, &mut reasons)?;
    plan_kernel(valid, pointers, device, kernel, 1, reasons)
}

/// Plans a forward pass in ranges of keys; `None` if all keys are worked on at once.
fn plan_split(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
    reasons: &[String],
) -> Result<Option<ForwardPlan>> {
    let mut reasons = reasons.to_vec();
    // The outputs of ranges are dense, in any case.
    let whole = Split { ranges: 1, keys: valid.key_rows };
    let (alone, places) = split::parts(valid, pointers, &whole);
    let kernel = choose(&alone, &places, device, Tiles::Short, &mut reasons)?;
    let Some(split) = split::choose_split(valid, &kernel, device) else { return Ok(None) };
    let Split { ranges, keys } = split;
    let why = if valid.is_packed() { "few query tiles, or long sequences" } else { "few query tiles" };
    reasons.push(format!("{ranges} ranges of {keys} keys side by side: there are {why}"));
    let (parts, places) = split::parts(valid, pointers, &split);
    let mut plan = plan_kernel(&parts, &places, device, kernel, ranges, reasons)?;
    plan.combine = Some(split::combine(valid, pointers, &split, &mut plan, device)?);
    Ok(Some(plan))
}

/// Which of kernels that differ in their tiles alone.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tiles {
    /// The one with fewer query rows.
    Short,
    /// The one with more.
    Tall,
    /// One that can leave a part of an output to others: where none of those for Hopper runs on the device,
    /// one for sm_80.
    OfParts,
}

/// The kernel for a problem, with these tiles if there are several, and what the rows of its tiles are.
fn choose(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
    tiles: Tiles,
    reasons: &mut Vec<String>,
) -> Result<(KernelVariant, TileRows)> {
    let short_tiles = tiles != Tiles::Tall;
    let tensors = pointers.tensors(valid);
    let several = row_heads::several(valid, short_tiles).filter(|_| can_gather_heads(valid, reasons));
    let access = choose_access(&tensors, reasons);
    let choice = Choice {
        family: Family::Forward,
        dtype: valid.problem.dtype,
        head_dim: valid.head_dim.max(valid.value_dim),
        access,
        mappable: access == Access::Vector16
            && can_count_sequences(valid, reasons)
            && tensor_maps::can_describe(&tensors[..3], device, reasons),
        short_tiles,
        gathers_heads: several.is_some(),
        leaves_parts: tiles == Tiles::OfParts,
        switches: valid.switches(),
    };
    let variant = choose_kernel(device, &choice, reasons)?;
    Ok((variant, TileRows::new(variant.kernel, several)))
}

/// Whether rows of a tile can be several heads: a call of the numbers of dropout is for two queries of one
/// head, which a lane would not have.
fn can_gather_heads(valid: &ValidForward, reasons: &mut Vec<String>) -> bool {
    let can = valid.dropout().is_none();
    if !can {
        reasons.push("heads that share keys are worked on alone: each has numbers of its own".into());
    }
    can
}

/// Whether kernels for Hopper can say which batch or sequence a tile is of, if scores or dropout differ with
/// it: a message between their warps has 16 bits for it.
pub(super) fn can_count_sequences(valid: &ValidForward, reasons: &mut Vec<String>) -> bool {
    let can = valid.batches <= 1 << 16 || !valid.tells_batches_apart();
    if !can {
        reasons.push(format!(
            "no kernel for Hopper: each of {} batches has tensors over scores, or dropout, of its own",
            valid.batches
        ));
    }
    can
}

/// Plans a kernel that was chosen, and what the rows of its query tiles are, for so many ranges of keys.
fn plan_kernel(
    valid: &ValidForward,
    pointers: &ForwardPointers,
    device: &DeviceProperties,
    (variant, rows): (KernelVariant, TileRows),
    ranges: u32,
    mut reasons: Vec<String>,
) -> Result<ForwardPlan> {
    let (tensors, kernel) = (pointers.tensors(valid), variant.kernel);
    if rows.heads > 1 {
        let TileRows { heads, queries } = rows;
        reasons.push(format!("tiles of {queries} queries of {heads} heads, which share keys"));
    } else if ranges == 1 && KERNELS.iter().any(|other| other.is_alternative_to(kernel)) {
        reasons.push(match kernel.query_rows {
            0..=128 => "tiles of 128 query rows: of 192 more would be computed for nothing".into(),
            rows => {
                format!("tiles of {rows} query rows: keys and values are read less often than with 128")
            }
        });
    }
    let hopper = kernel.arch == Arch::Sm90a;
    let tiles = count_tiles(valid, &rows, hopper, ranges)?;
    let (blocks, heads_per_wave) = if hopper {
        // Blocks stay, one on each multiprocessor, and take tiles until there are none left.
        (
            tiles.min(device.multiprocessors.max(1)),
            choose_hopper_wave(valid, &rows, device, &mut reasons),
        )
    } else {
        (tiles, choose_wave(valid, device, &mut reasons))
    };
    // Maps of parts are described with them: these may be of tensors for which there are none.
    let has_maps = hopper && !kernel.multiplies_parts;
    let hopper = has_maps.then(|| hopper_plan(valid, &tensors, kernel, &rows, &mut reasons));
    let mut params = forward_params(valid, variant, pointers, &rows, heads_per_wave);
    params.o_is_mapped = u32::from(hopper.is_some_and(|maps| maps.o.is_some()));
    Ok(ForwardPlan { variant, blocks, params, hopper, combine: None, operands: None, reasons })
}

/// Tiles of query rows. Blocks of Hopper's kernels, which stay, count those of packed sequences that there
/// are; others have a block for each that there could be.
fn count_tiles(valid: &ValidForward, rows: &TileRows, hopper: bool, ranges: u32) -> Result<u32> {
    let (heads, queries) = (valid.query_heads / rows.heads, rows.queries);
    let what = if ranges == 1 { String::new() } else { format!(" x {ranges} ranges of keys") };
    let what = format!("tiles of {queries} query rows{what}");
    if hopper && valid.is_packed() {
        let most = (valid.problem.q.shape[1] as u32 / queries).saturating_add(valid.batches);
        return count_blocks(most, &what, heads, ranges);
    }
    let batches = valid.batches.saturating_mul(ranges);
    count_blocks(rows.tiles(valid.query_rows), &what, heads, batches)
}

/// Tensor maps.
///
/// Keys and values that a single query tile reads are fetched by 128 bytes, each of which is then read from
/// memory once. By 256, every fourth sector was asked for twice (measured, H200, a query of 4096 to 131072
/// keys: 4 to 11 % slower, at head dim 72 18 %). Where several tiles read them it makes no difference, but
/// for head dim 128 at S 4096 causal, 1 % faster by 256, and for rows that do not start on sectors (head dim
/// 72: 0.3 to 3 % slower by 256, 8 % with 128 queries of eight heads).
fn hopper_plan(
    valid: &ValidForward,
    [q, k, v, o]: &[Tensor<'_>; 4],
    kernel: &KernelSpec,
    rows: &TileRows,
    reasons: &mut Vec<String>,
) -> HopperPlan {
    let obstacle = tensor_maps::obstacle(o);
    let sends_output = obstacle.is_none() && rows.heads == 1;
    if let Some(obstacle) = obstacle.as_ref().filter(|_| o.address != 0) {
        reasons.push(format!("o is not stored by the tensor memory accelerator: {obstacle}"));
    }
    let are_read_once = rows.tiles(valid.query_rows) == 1 && rows.group_size(valid) == 1;
    let l2_promotion = if are_read_once || !starts_on_sectors(valid) {
        let why = if are_read_once { "one query tile reads them" } else { "rows start between sectors" };
        reasons.push(format!("keys and values by 128 bytes: {why}"));
        L2Promotion::Bytes128
    } else {
        L2Promotion::Bytes256
    };
    let describe_keys = |tensor| {
        let map = tensor_maps::describe(tensor, kernel.key_rows)?;
        Some(TensorMapDescription { l2_promotion, ..map })
    };
    HopperPlan {
        q: if kernel.gathers_heads {
            tensor_maps::describe_heads(q, rows.heads, rows.queries)
        } else {
            tensor_maps::describe(q, kernel.query_rows)
        },
        k: describe_keys(k),
        v: describe_keys(v),
        o: if sends_output { tensor_maps::describe(o, OUTPUT_BOX_ROWS) } else { None },
    }
}

/// Keys that a query sees in a window, from which on tiles of 192 query rows are faster than those of 128 at
/// head dim 128.
const WIDE_WINDOW: i32 = 1024;

/// Whether tiles of 128 query rows take less time than those of 192, or there are no others.
///
/// Tall tiles read keys and values less often, which is what counts the more of them there are; but they
/// have more rows that do not exist, and under a mask more keys that few of their rows see. Measured
/// (H200), rate of tall over that of short ones:
///
/// | | head dims 65 to 96 | 97 to 128 |
/// |--|--|--|
/// | full, S 1536, 2048, 4096, 16384 | 1.05, 1.04, 1.08, 1.11 | 1.05, 1.04, 1.05, 1.08 |
/// | full with 13 % more rows, S 512, 1024 | 0.93, 0.95 | 0.96, 0.99 |
/// | causal, S 1024, 1536, 2048, 4096 | 0.94, 0.99, 1.00, 1.04 | 0.98, 1.005, 1.02, 1.05 |
/// | packed, 33 to 4096 rows: full, causal | 1.07, 1.00 | 1.10, 1.02 |
/// | window of 1024, S 1024, 2048, 4096, 16384 | 0.94, 0.97, 0.97, 0.97 | 0.98, 1.025, 1.02, 1.02 |
/// | window of 256, of 128, S 4096 | | 0.955, 0.91 |
///
/// Where rows do not start on sectors, tall ones are faster in all of these: full 1.07 (S 512) to 1.23
/// (4096), causal 1.02 to 1.20, packed 1.19 and 1.11, in a window 1.04.
///
/// At head dim 64 tall tiles are faster also where they have 13 or 20 % more rows: causal S 512, 640 and 1024
/// 6, 4 and 8 %, in a window of 1024 at S 1024 7 %, of 256 at S 640 2 %.
///
/// Under a boolean mask short ones, with 128 keys a step mostly: blocks of masks are of 64 or 128 queries and
/// keys, and tiles of other sizes reach into more of them than they must. With a bias of 16 bits beyond head
/// dim 64, too: they have room for it in shared memory.
fn prefers_short_tiles(valid: &ValidForward) -> bool {
    let rows = valid.query_rows;
    let columns = valid.head_dim.max(valid.value_dim);
    if rows <= 128 || columns > 128 || valid.problem.attn_mask.is_some() {
        return true;
    }
    if columns > 64 && valid.problem.bias.is_some_and(|bias| bias.dtype == valid.problem.dtype) {
        return true;
    }
    let is_full = valid.sees_all();
    let has_window = valid.window_left != WINDOW_OPEN;
    let is_wide = valid.window_right != WINDOW_OPEN
        && valid.window_left.saturating_add(valid.window_right) >= WIDE_WINDOW - 1;
    let padded = |tile: u32| u64::from(rows.div_ceil(tile)) * u64::from(tile);
    let wastes = |percent: u64| padded(192) * 100 > padded(128) * (100 + percent);
    if columns <= 64 {
        return !is_full && if valid.is_packed() { rows <= 2048 } else { wastes(25) };
    }
    if !starts_on_sectors(valid) {
        return false;
    }
    let least = match columns {
        _ if is_full => 0,
        _ if has_window && !is_wide => u32::MAX,
        ..=96 if has_window || valid.is_packed() => u32::MAX,
        ..=96 => 2560,
        _ => 1536,
    };
    rows < least || if valid.is_packed() { rows <= 2048 } else { wastes(6) }
}

/// Whether all rows of k and v start on sectors of 32 bytes if the first one does. If not, the tensor memory
/// accelerator reads them in pieces of 16 bytes: measured at head dim 72, twice the requests of head dim 80.
fn starts_on_sectors(valid: &ValidForward) -> bool {
    let problem = &valid.problem;
    [&problem.k, &problem.v].iter().all(|layout| {
        let mut strided = (0..3).filter(|&dimension| layout.shape[dimension] > 1);
        strided.all(|dimension| layout.strides[dimension] % (32 / i64::from(problem.dtype.bytes())) == 0)
    })
}
