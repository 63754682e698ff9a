//! How much shared memory a block of each family of kernels needs.

/// Shared memory of the f32 backward: key and value tile, one query and output-gradient tile with their
/// row statistics, and the tile of dS.
pub const fn backward_fma_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    ((2 * key_rows + 2 * query_rows) * head_dim + key_rows * query_rows + 3 * query_rows) * 4
}

/// Shared memory of the tensor-core backward: key and value tile, two stages of a query and an
/// output-gradient tile with their row statistics, and the tile of dS.
pub const fn backward_mma_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    let tiles = (2 * key_rows + 2 * 2 * query_rows) * head_dim * 2;
    tiles + key_rows * query_rows * 2 + 2 * 3 * query_rows * 4
}

/// Shared memory of the tensor-core forward: the query tile, and two stages of a key tile and a value
/// tile.
pub const fn forward_mma_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    (query_rows + 2 * 2 * key_rows) * head_dim * 2
}

/// Bytes at the end of the Hopper forward's shared memory for barriers and messages.
const FORWARD_SM90A_CONTROL_BYTES: u32 = 512;

/// Query tiles that the Hopper forward has room for: the next one is brought while one is used, unless
/// queries are moved to registers at once (head dim 128) or there is no room.
pub const fn forward_sm90a_query_stages(head_dim: u32) -> u32 {
    if head_dim == 64 { 2 } else { 1 }
}

/// Key tiles, and as many value tiles, that the Hopper forward has on their way or in use: as many as fit, up
/// to four.
pub const fn forward_sm90a_key_stages(head_dim: u32) -> u32 {
    match head_dim {
        64 => 4,
        128 => 3,
        _ => 2,
    }
}

/// Shared memory of the Hopper forward: query tiles, stages of a key tile and a value tile.
pub const fn forward_sm90a_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    let queries = forward_sm90a_query_stages(head_dim) * query_rows;
    let keys = forward_sm90a_key_stages(head_dim) * key_rows;
    (queries + 2 * keys) * head_dim * 2 + FORWARD_SM90A_CONTROL_BYTES
}

/// Shared memory of the Hopper backward: key and value tile, two stages of a query and an output-gradient
/// tile with their row statistics, two tiles of dS, one of dQ in f32, and barriers.
pub const fn backward_sm90a_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    let tiles = (2 * key_rows + 2 * 2 * query_rows) * head_dim * 2;
    let results = 2 * query_rows * key_rows * 2 + query_rows * head_dim * 4;
    tiles + results + 2 * 3 * query_rows * 4 + BACKWARD_SM90A_BARRIER_BYTES
}

/// Output-gradient tiles that the Hopper backward has on their way or in use: as many as fit, up to two.
pub const fn backward_sm90a_d_o_stages(head_dim: u32) -> u32 {
    if head_dim <= 192 { 2 } else { 1 }
}

/// Shared memory of the Hopper backward for wide heads: key and value tile, two query tiles, stages of an
/// output-gradient tile, their row statistics, a tile of dS, 64 x 192 elements of dQ in f32, and barriers.
pub const fn backward_wide_sm90a_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    let query_tiles = 2 + backward_sm90a_d_o_stages(head_dim);
    let tiles = (2 * key_rows + query_tiles * query_rows) * head_dim * 2;
    let results = query_rows * key_rows * 2 + 64 * 192 * 4;
    tiles + results + 2 * 3 * query_rows * 4 + BACKWARD_SM90A_BARRIER_BYTES
}

/// Bytes at the end of the Hopper backward's shared memory for barriers and messages.
const BACKWARD_SM90A_BARRIER_BYTES: u32 = 512;

/// Shared memory of the f32 forward: one tile each of queries, keys, values and probabilities.
pub const fn forward_fma_shared_bytes(head_dim: u32, query_rows: u32, key_rows: u32) -> u32 {
    ((query_rows + 2 * key_rows) * head_dim + query_rows * key_rows) * 4
}

/// Of kernels without shared memory.
pub const fn no_shared(_head_dim: u32, _query_rows: u32, _key_rows: u32) -> u32 {
    0
}
