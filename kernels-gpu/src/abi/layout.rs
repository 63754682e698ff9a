//! What stands where in the dynamic shared memory of a block, by family of kernels.
//!
//! The kernels for Hopper compute their addresses with these offsets; those for sm_80 add up the same sizes
//! as they go. [`KernelSpec::regions`](super::KernelSpec::regions) gives the list to the host, whose emulator
//! holds every access of every kernel to it.

mod forward_hopper;

pub use forward_hopper::{
    BIAS_TILE_KEYS, ForwardHopperLayout, KEY_RANGE_BYTES, forward_sm90a_bias_bytes,
    forward_sm90a_keeps_output_apart, forward_sm90a_key_and_value_stages, forward_sm90a_query_stages,
    forward_sm90a_slope_bytes,
};

use super::regions::Regions;
use super::{
    COMBINE_WARPS, MSDA_POINT_BYTES, MSDA_SCAN_THREADS, MSDA_TABLE_BYTES, MsdaStage, SPLIT_RECORD_WORDS,
    SPLIT_THREADS,
};

/// Bytes of a memory barrier.
pub const BARRIER_BYTES: u32 = 8;
/// Messages of a mailbox.
pub const MESSAGES: u32 = 2;
/// Words of a message of the forward for Hopper.
pub const FORWARD_MESSAGE_WORDS: usize = 12;
/// Words of a message of the backward for Hopper.
pub const BACKWARD_MESSAGE_WORDS: usize = 20;

/// Dynamic shared memory that a block can have on Hopper.
const MOST_SHARED_BYTES: u32 = 227 * 1024;
/// Bytes for barriers and messages at the end of the shared memory of the backward for Hopper.
const BACKWARD_CONTROL_BYTES: u32 = 512;
/// Steps of the backward for Hopper that are told of under a boolean mask at a time: two that are on their
/// way or at the computing warps, and two that are at the writers.
pub const VISITED_STEPS: u32 = 4;
/// Threads that write dQ in the backward for Hopper.
pub const WRITERS: u32 = 2;

/// Columns of a tile for kernels for Hopper: whole panels of 64. Of those beyond the head dim, which arrive
/// as zeros, the forward multiplies none.
pub const fn panel_columns(head_dim: u32) -> u32 {
    head_dim.next_multiple_of(64)
}

/// Query tiles that the Hopper backward has on their way or in use. Three warpgroups drift apart; measured,
/// with 192 keys: with four 1 to 2 % faster than with two.
pub const fn backward_sm90a_query_stages(key_rows: u32) -> u32 {
    if key_rows <= 128 { 2 } else { 4 }
}

/// Output-gradient tiles that the Hopper backward has on their way or in use: as many as fit, up to two.
pub const fn backward_sm90a_d_o_stages(head_dim: u32) -> u32 {
    if head_dim <= 192 { 2 } else { 1 }
}

/// Warpgroups that compute in the Hopper backward: 64 keys each, or, of wide heads, two for 64 keys.
pub const fn backward_sm90a_warpgroups(key_rows: u32) -> u32 {
    if key_rows <= 128 { 2 } else { key_rows / 64 }
}

/// The Hopper backward: key and value tile, query and output-gradient tiles, dS, dQ in f32, statistics of
/// query rows, messages and barriers. Bytes from the start of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub struct BackwardHopperLayout {
    /// The value tile.
    pub v: u32,
    /// Query tiles.
    pub q: u32,
    /// Output-gradient tiles.
    pub d_o: u32,
    /// Tiles of dS.
    pub ds: u32,
    /// dQ, a part for each writer.
    pub dq: u32,
    /// lse, delta and norm of dO, as many of each as there are query tiles.
    pub statistics: u32,
    /// The mailbox of orders.
    pub orders: u32,
    /// Barriers of the key tile.
    pub k_barriers: u32,
    /// Barriers of the value tile.
    pub v_barriers: u32,
    /// Barriers of query tiles.
    pub q_barriers: u32,
    /// Barriers of output-gradient tiles.
    pub d_o_barriers: u32,
    /// Barriers of dQ, then those of tiles that wait for repair.
    pub barriers: u32,
    /// Steps that are visited, two words each.
    pub visited: u32,
    /// A word for each computing warp, then a factor and a word for each writer.
    pub scratch: u32,
    /// All of it by name.
    pub regions: Regions,
}

impl BackwardHopperLayout {
    /// The layout of a kernel of this size. 64 keys: of wide heads, where dQ leaves in panels of 64 x 64.
    /// More than 128: the writers take turns, and have room for a whole tile of dQ each.
    pub const fn new(head_dim: u32, query_rows: u32, key_rows: u32) -> Self {
        let is_wide = key_rows == 64;
        let query_stages = backward_sm90a_query_stages(key_rows);
        let d_o_stages = backward_sm90a_d_o_stages(head_dim);
        let warpgroups = backward_sm90a_warpgroups(key_rows);
        let (query_bytes, key_bytes) = (query_rows * head_dim * 2, key_rows * head_dim * 2);
        let dq_bytes = if is_wide {
            [2 * 64 * 64 * 4, 64 * 64 * 4]
        } else if warpgroups == WRITERS {
            [query_rows * head_dim * 4 / WRITERS; WRITERS as usize]
        } else {
            [query_rows * head_dim * 4; WRITERS as usize]
        };
        let mut regions = Regions::new();
        regions.add("k", 1, key_bytes);
        let v = regions.add("v", 1, key_bytes);
        let q = regions.add("q", query_stages, query_bytes);
        let d_o = regions.add("do", d_o_stages, query_bytes);
        let ds = regions.add("ds", if is_wide { 1 } else { warpgroups }, query_rows * key_rows * 2);
        let dq = regions.add_part("dq", Some(0), dq_bytes[0]);
        regions.add_part("dq", Some(1), dq_bytes[1]);
        let statistics = add_statistics(&mut regions, query_stages, query_rows);
        let orders = add_mailbox(&mut regions, BACKWARD_MESSAGE_WORDS);
        let k_barriers = add_stages(&mut regions, "k barriers", 1);
        let v_barriers = add_stages(&mut regions, "v barriers", 1);
        let q_barriers = add_stages(&mut regions, "q barriers", query_stages);
        let d_o_barriers = add_stages(&mut regions, "do barriers", d_o_stages);
        let barriers = regions.add("dq barriers", WRITERS, 2 * BARRIER_BYTES);
        regions.add("raw barriers", 1, (2 + query_stages + d_o_stages) * BARRIER_BYTES);
        let visited = regions.add("visited", VISITED_STEPS, 8);
        let scratch = regions.add("scratch", 1, 4 * warpgroups * 4);
        regions.add("factor", 1, 4);
        regions.add("allowed", WRITERS, 4);
        regions.pad(orders + BACKWARD_CONTROL_BYTES);
        BackwardHopperLayout {
            v,
            q,
            d_o,
            ds,
            dq,
            statistics,
            orders,
            k_barriers,
            v_barriers,
            q_barriers,
            d_o_barriers,
            barriers,
            visited,
            scratch,
            regions,
        }
    }
}

/// The tensor-core forward for sm_80: the query tile, and two stages of a key tile and a value tile.
pub const fn forward_mma(head_dim: u32, query_rows: u32, key_rows: u32) -> Regions {
    let mut regions = Regions::new();
    regions.add("q", 1, query_rows * head_dim * 2);
    add_pairs(&mut regions, ["k", "v"], 2, key_rows * head_dim * 2);
    regions
}

/// The f32 forward: one tile each of queries, probabilities, keys and values.
pub const fn forward_fma(head_dim: u32, query_rows: u32, key_rows: u32) -> Regions {
    let mut regions = Regions::new();
    regions.add("q", 1, query_rows * head_dim * 4);
    regions.add("p", 1, query_rows * key_rows * 4);
    regions.add("k", 1, key_rows * head_dim * 4);
    regions.add("v", 1, key_rows * head_dim * 4);
    regions
}

/// Whether the tile of dQ of a main kernel for Hopper is transposed: tensor cores multiply 64 rows at a time,
/// so these are columns where the queries are not a multiple of 64.
pub const fn dq_is_transposed(query_rows: u32) -> bool {
    !query_rows.is_multiple_of(64)
}

/// Queries that stand together in a transposed tile of dQ, before the next ones: in the last tile of a
/// sequence those past its end are left out.
pub const DQ_TRANSPOSED_ROWS: u32 = 8;

/// Columns of o and dO that the delta kernel has room for in shared memory: two steps of 64 columns of one
/// tile of query rows, or two tiles of narrower rows.
pub const DELTA_COLUMNS: u32 = 128;

/// How many tiles of query rows a block of the delta kernel takes, where rows of o have `value_dim` columns
/// and dO has elements of `element_bytes`: with tensor cores, as many as there is room for.
pub const fn backward_delta_tiles(element_bytes: u32, value_dim: u32) -> u32 {
    if element_bytes == 2 && value_dim <= DELTA_COLUMNS / 2 { 2 } else { 1 }
}

/// The kernels that make two parts of f32: a record of each warp.
pub const fn measure_operands() -> Regions {
    let mut regions = Regions::new();
    regions.add("records", SPLIT_THREADS / 32, SPLIT_RECORD_WORDS * 4);
    regions
}

/// The kernel that combines ranges of keys: where a block has one row, sums of each of its warps.
pub const fn forward_combine(head_dim: u32, query_rows: u32) -> Regions {
    let mut regions = Regions::new();
    if query_rows == 1 {
        regions.add("sums", 1, COMBINE_WARPS * head_dim * 4);
    }
    regions
}

/// Kernels of multi-scale deformable attention: a point of each thread, and the table of levels; for the
/// scan, a sum of each warp.
pub const fn msda(stage: MsdaStage) -> Regions {
    let mut regions = Regions::new();
    match stage {
        MsdaStage::Forward | MsdaStage::Backward => {
            regions.add("points", 1, stage.threads() * MSDA_POINT_BYTES[0]);
            regions.add("cells", 1, stage.threads() * MSDA_POINT_BYTES[1]);
            regions.add("levels", 1, MSDA_TABLE_BYTES);
        }
        MsdaStage::Count | MsdaStage::Fill | MsdaStage::Gather => {
            regions.add("levels", 1, MSDA_TABLE_BYTES);
        }
        MsdaStage::Scan => {
            regions.add("sums", 1, MSDA_SCAN_THREADS / 32 * 4);
        }
        MsdaStage::Zero | MsdaStage::Convert => {}
    }
    regions
}

/// The delta kernel with tensor cores: tiles of o and dO.
pub const fn backward_delta(query_rows: u32) -> Regions {
    let mut regions = Regions::new();
    add_pairs(&mut regions, ["o", "do"], 1, backward_delta_tile_bytes(query_rows));
    regions
}

/// Bytes of one of them.
pub const fn backward_delta_tile_bytes(query_rows: u32) -> u32 {
    query_rows * DELTA_COLUMNS * 2
}

/// The gradient of the sinks: a sum for each warp.
pub const fn sink_gradient() -> Regions {
    let mut regions = Regions::new();
    regions.add("sums", 1, super::SINK_GRADIENT_THREADS / 32 * 4);
    regions
}

/// The map of a boolean mask: two words for each warp.
pub const fn mask_map() -> Regions {
    let mut regions = Regions::new();
    regions.add("seen", 1, super::MASK_BITS_THREADS / 32 * 8);
    regions
}

/// The kernels that scan a tensor: a record for each warp.
pub const fn scan() -> Regions {
    let mut regions = Regions::new();
    regions.add("records", 1, super::SCAN_THREADS / 32 * size_of::<super::ScanRecord>() as u32);
    regions
}

/// Dynamic masks: of rows that a whole block works on, two words for each warp, as sums of one may begin
/// before all have read those of the other.
pub const fn dynamic(stage: super::DynamicStage, threads: u32, rows: u32) -> Regions {
    let mut regions = Regions::new();
    let is_of_block = match stage {
        super::DynamicStage::Select => rows == 1,
        stage => matches!(stage, super::DynamicStage::Positions),
    };
    if is_of_block {
        regions.add("sums", 2, 4 * threads / 32);
    }
    regions
}

/// The gradient of the bias: a tile each of q, k, dO and v, of `rows` rows.
pub const fn bias_gradient(element_bytes: u32, head_dim: u32, rows: u32) -> Regions {
    let mut regions = Regions::new();
    regions.add("q", 1, rows * head_dim * element_bytes);
    regions.add("k", 1, rows * head_dim * element_bytes);
    regions.add("do", 1, rows * head_dim * element_bytes);
    regions.add("v", 1, rows * head_dim * element_bytes);
    regions
}

/// The gradient of the bias for Hopper: pairs of tiles, of queries and of keys, a tile of the bias, barriers.
#[derive(Clone, Copy, Debug)]
pub struct BiasGradientHopperLayout {
    /// The tile of the bias.
    pub bias: u32,
    /// Barriers of pairs.
    pub barriers: u32,
    /// All of it by name.
    pub regions: Regions,
}

impl BiasGradientHopperLayout {
    /// The layout of a kernel of this size, with as many keys as queries: as many pairs as there is room for.
    pub const fn new(head_dim: u32, rows: u32) -> Self {
        let pairs = 384 / head_dim;
        let mut regions = Regions::new();
        add_pairs(&mut regions, ["q or do", "k or v"], pairs, rows * head_dim * 2);
        let bias = regions.add("bias", 1, rows * rows * 2);
        let barriers = add_stages(&mut regions, "barriers", pairs);
        BiasGradientHopperLayout { bias, barriers, regions }
    }
}

/// The tensor-core backward for sm_80: key and value tile, the tile of dS (and of p, as it passes between
/// warps), two stages of a query and an output-gradient tile, and of their row statistics.
pub const fn backward_mma(head_dim: u32, query_rows: u32, key_rows: u32) -> Regions {
    backward_sm80(2, 2, head_dim, query_rows, key_rows)
}

/// The f32 backward, with one stage.
pub const fn backward_fma(head_dim: u32, query_rows: u32, key_rows: u32) -> Regions {
    backward_sm80(1, 4, head_dim, query_rows, key_rows)
}

/// The backward of f32 in two parts: as [`backward_mma`]; instead of norms, units of sums of dq.
pub const fn backward_parts(head_dim: u32, query_rows: u32, key_rows: u32) -> Regions {
    backward_sm80(2, 4, head_dim, query_rows, key_rows)
}

const fn backward_sm80(
    stages: u32,
    element_bytes: u32,
    head_dim: u32,
    query_rows: u32,
    key_rows: u32,
) -> Regions {
    let mut regions = Regions::new();
    regions.add("k", 1, key_rows * head_dim * element_bytes);
    regions.add("v", 1, key_rows * head_dim * element_bytes);
    regions.add("ds", 1, key_rows * query_rows * element_bytes);
    add_pairs(&mut regions, ["q", "do"], stages, query_rows * head_dim * element_bytes);
    let mut stage = 0;
    while stage < stages {
        let index = if stages > 1 { Some(stage) } else { None };
        regions.add_part("lse", index, query_rows * 4);
        regions.add_part("delta", index, query_rows * 4);
        regions.add_part("norm", index, query_rows * 4);
        stage += 1;
    }
    regions
}

/// Stages of two tiles each.
const fn add_pairs(regions: &mut Regions, names: [&'static str; 2], stages: u32, bytes: u32) {
    let mut stage = 0;
    while stage < stages {
        let index = if stages > 1 { Some(stage) } else { None };
        regions.add_part(names[0], index, bytes);
        regions.add_part(names[1], index, bytes);
        stage += 1;
    }
}

/// Statistics of query rows, one kind after the other.
const fn add_statistics(regions: &mut Regions, stages: u32, query_rows: u32) -> u32 {
    let first = regions.add("lse", stages, query_rows * 4);
    regions.add("delta", stages, query_rows * 4);
    regions.add("norm", stages, query_rows * 4);
    first
}

/// Messages of so many words, and their barriers.
const fn add_mailbox(regions: &mut Regions, words: usize) -> u32 {
    let first = regions.add("orders", MESSAGES, 4 * words as u32);
    add_stages(regions, "order barriers", MESSAGES);
    first
}

/// The full and the empty barriers of so many stages.
const fn add_stages(regions: &mut Regions, name: &'static str, count: u32) -> u32 {
    regions.add(name, 1, 2 * count * BARRIER_BYTES)
}
