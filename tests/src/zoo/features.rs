//! Bias, boolean masks, slopes, sinks and dropout, in the kernels of other families.

use super::{Mutant, moved, result_is};
use crate::ptx::{Which, dropped, operand, with_operand};
use crate::shapes::{featured, featured_in_f32, featured_in_several_tiles, of_blocks, sloped};
use finite_attention::Mode;
use finite_attention::check::{Case, Gradients};

const BIAS_PAIR: &str = "bias.rs: let (even, odd) = B::load_pair(address);";
const BIAS_COPY: &str = "bias_tile.rs: async_copy::copy16_or_zeros(";
const BIAS_ELEMENT: &str = "bias_tile.rs: global::load_u16_if(low.address, left > 0)";
const BIAS_WAIT: &str = "bias_tile.rs: async_copy::wait_all();";
const SENT_WAIT: &str = "scores.rs: bulk_copy::wait_read::<0>();";
const BIAS: &str = "bias.rs: let value = B::load_if(address, is_there);";
const MASK: &str = "features.rs: global::load_u32_if(bits.key(keys / MASK_BITS), is_there)";
const MASK_TRANSPOSED: &str = "features.rs: word = global::load_u16_if(bits.query(";
const MAP: &str = "mask_map.rs: shown = shown.and(global::load_u32x2(address), at.bits);";
const VISITED: &str = "visited.rs: tile: (word >> 2) as i32,";
const PENALTY: &str = "features.rs: None => math::fma(-slope, distance.abs(), score),";
const SLOPE_ROWS: &str =
    "slopes.rs: let value = rows.slopes[i] * math::fma(rows.factor, behind as f32, rows.offsets[i]);";
const SLOPE_PARTS: &str = "slopes.rs: (step.rows[i], step.rows[2 + i]) = (high.to_bits(), ";
const NUMBERS: &str = "philox.rs: x0 = (second >> 32) as u32 ^ x1 ^ k0;";
const TAKEN: &str = "dropout.rs: let taken = [warp::exchange(";
const SINK: &str = "finish.rs: let total = of_keys + of_sink;";

/// A load, of one or two registers, from so many bytes further on.
fn bytes_on(bytes: i64) -> impl Fn(&str) -> String {
    move |line| moved(line, if line.contains(".v2.") { 2 } else { 1 }, "u64", bytes)
}

/// Those of a kernel for Hopper whose producer tells which tiles are visited, of a case of [`of_blocks`].
pub(super) fn told(kernel: &'static str, wrong: &'static str) -> Vec<Mutant> {
    let mutant =
        Mutant::new("tiles are taken for those of half their number", kernel, of_blocks(kernel));
    vec![mutant.edit("shr.u32", &[VISITED], Which::All, |line| with_operand(line, 2, "3")).wrong(wrong)]
}

/// Those of a kernel for Hopper that makes gradients in order.
pub(super) fn visited_in_order(kernel: &'static str) -> Vec<Mutant> {
    let case = of_blocks(kernel);
    let gradients = case.gradients.map(|of| Gradients { mode: Mode::Deterministic, ..of });
    let mutant = |name| Mutant::new(name, kernel, Case { gradients, ..case.clone() });
    vec![
        mutant("a key tile adds behind one that skips the query tile")
            .edit("ld.global", &[MAP, "block.next_visitor("], Which::All, bytes_on(8))
            .wrong("dq")
            .finding("deadlock", &[]),
    ]
}

/// Those of a kernel for Hopper to which a bias of its elements comes through shared memory, whose results
/// begin with `wrong`.
pub(super) fn staged(kernel: &'static str, wrong: &'static str) -> Vec<Mutant> {
    let mutant = |name| Mutant::new(name, kernel, featured(kernel));
    vec![
        mutant("chunks of the bias are those of the next eight keys")
            .edit("cp.async.cg", &[BIAS_COPY], Which::All, |line| moved(line, 1, "u64", 16))
            .wrong(wrong)
            .finding("uninitialised global read", &[BIAS_COPY])
            .finding("out-of-bounds global access", &[BIAS_COPY]),
        mutant("bias at the end of the keys is that of the next key")
            .edit("ld.global", &[BIAS_ELEMENT], Which::All, bytes_on(2))
            .wrong(wrong)
            .finding("uninitialised global read", &[BIAS_ELEMENT])
            .finding("out-of-bounds global access", &[BIAS_ELEMENT]),
        mutant("the bias is added before it has come")
            .edit("cp.async.wait_all", &[BIAS_WAIT], Which::All, dropped)
            .finding("asynchronous copy in flight", &["bias_tile.rs: "])
            .finding("uninitialised shared read", &["bias_tile.rs: "]),
    ]
}

/// Those of a forward kernel for Hopper to which the bias comes through memory that output is sent from.
pub(super) fn staged_beside_output(kernel: &'static str) -> Vec<Mutant> {
    let case = featured_in_several_tiles(kernel);
    let mutant =
        Mutant::new("the bias is copied to where output is still being sent from", kernel, case);
    vec![
        mutant
            .edit("cp.async.bulk.wait_group.read 0", &[SENT_WAIT], Which::All, dropped)
            .finding("asynchronous copy in flight", &["self.pipelines.fetch_bias(self.p, tile)"]),
    ]
}

/// Those of a forward kernel for Hopper whose products add the penalties of slopes.
pub(super) fn multiplied_slopes(kernel: &'static str) -> Vec<Mutant> {
    let mutant = |name| Mutant::new(name, kernel, sloped(kernel));
    vec![
        mutant("penalties of a tile are those of its distance from the first diagonal key")
            .edit("fma.rn.f32", &[SLOPE_ROWS], Which::All, |line| result_is(line, operand(line, 3)))
            .wrong("o"),
        mutant("the second parts of rows are left out")
            .edit("sub.rn.f32", &[SLOPE_PARTS], Which::All, |line| result_is(line, "0f00000000"))
            .wrong("lse"),
        mutant("what slopes are multiplied by is not fenced from the products")
            .edit("fence.proxy.async", &["slopes.rs: bulk_copy::fence();"], Which::All, dropped)
            .finding("missing proxy fence", &["E::start_scores"]),
    ]
}

/// Those of a forward kernel that reads a bias of its elements from global memory.
pub(super) fn forward_bias(kernel: &'static str) -> Vec<Mutant> {
    let mutant = Mutant::new("bias is that of the next two keys", kernel, featured(kernel));
    vec![mutant.edit("ld.global", &[BIAS_PAIR], Which::All, bytes_on(4)).wrong("o")]
}

/// The same of a backward kernel.
pub(super) fn backward_bias(kernel: &'static str) -> Vec<Mutant> {
    let mutant = Mutant::new("bias is that of the next key", kernel, featured(kernel));
    vec![
        mutant
            .edit("ld.global", &[BIAS], Which::All, bytes_on(2))
            .wrong("d")
            .finding("out-of-bounds global access", &[BIAS]),
    ]
}

/// Those of a forward kernel for 16-bit elements.
pub(super) fn forward(kernel: &'static str) -> Vec<Mutant> {
    let mutant = |name| Mutant::new(name, kernel, featured(kernel));
    let in_f32 = |name| Mutant::new(name, kernel, featured_in_f32(kernel));
    let of_blocks = |name| Mutant::new(name, kernel, of_blocks(kernel));
    vec![
        in_f32("bias in f32 is that of the next query")
            .edit("ld.global", &[BIAS], Which::All, bytes_on(4))
            .wrong("o")
            .finding("out-of-bounds global access", &[BIAS]),
        mutant("the boolean mask is that of the next 32 keys")
            .edit("ld.global", &[MASK], Which::All, bytes_on(4))
            .finding("uninitialised global read", &[MASK]),
        of_blocks("the map of the mask's tiles is that of the next 64 queries")
            .edit("ld.global", &[MAP], Which::All, bytes_on(8))
            .wrong("o"),
        in_f32("slopes are left out")
            .edit("fma.rn.f32", &[PENALTY], Which::All, |line| result_is(line, operand(line, 3)))
            .wrong("o"),
        in_f32("the sink is not counted")
            .edit("add.rn.f32", &[SINK], Which::All, |line| result_is(line, operand(line, 1)))
            .wrong("o"),
        in_f32("a round of dropout's numbers lacks its key")
            .edit("xor.b32", &[NUMBERS], Which::Number(1), |line| result_is(line, operand(line, 1)))
            .wrong("o"),
    ]
}

/// Those of a backward kernel for 16-bit elements.
pub(super) fn backward(kernel: &'static str) -> Vec<Mutant> {
    let mutant = |name| Mutant::new(name, kernel, featured(kernel));
    let in_f32 = |name| Mutant::new(name, kernel, featured_in_f32(kernel));
    let of_blocks = |name| Mutant::new(name, kernel, of_blocks(kernel));
    vec![
        mutant("the boolean mask is that of the next 16 keys")
            .edit("ld.global", &[MASK_TRANSPOSED], Which::All, bytes_on(2))
            .wrong("d")
            .finding("out-of-bounds global access", &[MASK_TRANSPOSED]),
        of_blocks("the map of the mask's tiles is that of the next 64 queries")
            .edit("ld.global", &[MAP], Which::All, bytes_on(8))
            .wrong("d"),
        in_f32("slopes are left out")
            .edit("fma.rn.f32", &[PENALTY], Which::All, |line| result_is(line, operand(line, 3)))
            .wrong("d"),
        in_f32("whether a pair is kept is what the neighbouring key's lane knows of its own")
            .edit("shfl.sync.bfly", &[TAKEN], Which::All, |line| with_operand(line, 2, "0"))
            .wrong("d"),
    ]
}
