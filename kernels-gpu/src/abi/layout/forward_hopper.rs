//! What stands where in the shared memory of the forward for Hopper.

use super::{
    BARRIER_BYTES, FORWARD_MESSAGE_WORDS, MOST_SHARED_BYTES, add_mailbox, add_stages, panel_columns,
};
use crate::abi::regions::Regions;

/// Bytes for barriers, messages and ranges of key tiles at the end of the shared memory.
const FORWARD_CONTROL_BYTES: u32 = 768;
/// Keys of a tile of the bias in the shared memory of the forward for Hopper.
pub const BIAS_TILE_KEYS: u32 = 128;
/// Bytes that a consumer warp of the forward for Hopper has for its range of key tiles.
pub const KEY_RANGE_BYTES: u32 = 32;
/// Consumer warps that it has at most.
const MOST_FORWARD_WARPS: u32 = 12;

/// Query tiles that the Hopper forward has room for: the next one is brought while one is used, unless
/// queries are moved to registers at once (head dims 80 to 128 with 128 rows) or there is no room.
pub const fn forward_sm90a_query_stages(head_dim: u32, query_rows: u32) -> u32 {
    if panel_columns(head_dim) == 64 || query_rows > 128 { 2 } else { 1 }
}

/// Whether output of the Hopper forward leaves through shared memory of its own: at head dim 64, where there
/// is room for it, and where queries are moved to registers, so that the next ones can come at once.
pub const fn forward_sm90a_keeps_output_apart(head_dim: u32, query_rows: u32) -> bool {
    match panel_columns(head_dim) {
        64 => query_rows > 128,
        128 => query_rows <= 128,
        _ => false,
    }
}

/// Bytes of shared memory that the Hopper forward has for a tile of the bias beside those of the output,
/// which are the other end of it: in kernels of up to 128 columns, with 128 keys a tile.
pub const fn forward_sm90a_bias_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    if key_rows != BIAS_TILE_KEYS || panel_columns(head_dim) > BIAS_TILE_KEYS {
        return 0;
    }
    let output = forward_sm90a_keeps_output_apart(head_dim, query_rows) as u32;
    query_rows * (BIAS_TILE_KEYS - output * panel_columns(head_dim)) * 2
}

/// Bytes of shared memory that the Hopper forward has for what slopes of ALiBi are multiplied by: four
/// numbers for each key of a tile, up to where tiles may begin. Tiles of keys come behind it: memcheck takes
/// an operand whose columns repeat for twice as long, which would end behind the block's memory.
pub const fn forward_sm90a_slope_bytes(key_rows: u32) -> u32 {
    (key_rows * 16).next_multiple_of(1024)
}

/// Key tiles and value tiles that the Hopper forward has on their way or in use: half of all that fit are of
/// either, of an odd number one more of values, which are used later than keys. Up to four.
pub const fn forward_sm90a_key_and_value_stages(
    head_dim: u32,
    query_rows: u32,
    key_rows: u32,
) -> [u32; 2] {
    let tiles = key_and_value_tiles(head_dim, query_rows, key_rows);
    let (keys, values) = (tiles / 2, tiles.div_ceil(2));
    [if keys < 4 { keys } else { 4 }, if values < 4 { values } else { 4 }]
}

/// How many tiles of keys or values the Hopper forward has room for.
const fn key_and_value_tiles(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    let row_bytes = panel_columns(head_dim) * 2;
    let output_tiles = forward_sm90a_keeps_output_apart(head_dim, query_rows) as u32;
    let tiles = forward_sm90a_query_stages(head_dim, query_rows) + output_tiles;
    let bias = forward_sm90a_bias_bytes(head_dim, query_rows, key_rows);
    let apart = FORWARD_CONTROL_BYTES + bias + forward_sm90a_slope_bytes(key_rows);
    let left = MOST_SHARED_BYTES - apart - tiles * query_rows * row_bytes;
    left / (key_rows * row_bytes)
}

/// The Hopper forward: query tiles, a tile of the bias, columns for slopes, stages of key tiles, then of
/// value tiles, messages and barriers. Bytes from the start of dynamic shared memory.
#[derive(Clone, Copy, Debug)]
pub struct ForwardHopperLayout {
    /// A tile of the bias, panels of 64 keys: of its own, then where output leaves through.
    pub bias: u32,
    /// Where output leaves through, a query tile's size: of its own or where the queries are.
    pub o: u32,
    /// Key tiles.
    pub k: u32,
    /// Value tiles.
    pub v: u32,
    /// What slopes of ALiBi are multiplied by.
    pub slope_columns: u32,
    /// The mailbox of orders.
    pub orders: u32,
    /// The range of key tiles of each consumer warp.
    pub key_ranges: u32,
    /// Barriers of query tiles.
    pub q_barriers: u32,
    /// Barriers of key tiles.
    pub k_barriers: u32,
    /// Barriers of value tiles.
    pub v_barriers: u32,
    /// Barriers of query tiles that have landed, where their tails are zeroed before use.
    pub landed_q: u32,
    /// The same of value tiles.
    pub landed_v: u32,
    /// All of it by name.
    pub regions: Regions,
}

impl ForwardHopperLayout {
    /// The layout of a kernel of this size.
    pub const fn new(head_dim: u32, query_rows: u32, key_rows: u32) -> Self {
        let query_stages = forward_sm90a_query_stages(head_dim, query_rows);
        let [key_stages, value_stages] =
            forward_sm90a_key_and_value_stages(head_dim, query_rows, key_rows);
        let row_bytes = panel_columns(head_dim) * 2;
        let mut regions = Regions::new();
        let mut o = regions.add("q", query_stages, query_rows * row_bytes);
        let mut bias = o + query_stages * query_rows * row_bytes;
        let bias_bytes = forward_sm90a_bias_bytes(head_dim, query_rows, key_rows);
        if bias_bytes > 0 {
            bias = regions.add("bias", 1, bias_bytes);
        }
        if forward_sm90a_keeps_output_apart(head_dim, query_rows) {
            o = regions.add("o", 1, query_rows * row_bytes);
        }
        let slope_columns = regions.add("slope columns", 1, forward_sm90a_slope_bytes(key_rows));
        let k = regions.add("k", key_stages, key_rows * row_bytes);
        let v = regions.add("v", value_stages, key_rows * row_bytes);
        let orders = add_mailbox(&mut regions, FORWARD_MESSAGE_WORDS);
        let key_ranges = regions.add("key ranges", MOST_FORWARD_WARPS, KEY_RANGE_BYTES);
        let q_barriers = add_stages(&mut regions, "q barriers", query_stages);
        let k_barriers = add_stages(&mut regions, "k barriers", key_stages);
        let v_barriers = add_stages(&mut regions, "v barriers", value_stages);
        let landed_q = regions.add("landed q barriers", 1, query_stages * BARRIER_BYTES);
        let landed_v = regions.add("landed v barriers", 1, value_stages * BARRIER_BYTES);
        regions.pad(orders + FORWARD_CONTROL_BYTES);
        ForwardHopperLayout {
            bias,
            o,
            k,
            v,
            slope_columns,
            orders,
            key_ranges,
            q_barriers,
            k_barriers,
            v_barriers,
            landed_q,
            landed_v,
            regions,
        }
    }
}
