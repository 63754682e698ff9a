//! Edits that show in nothing, and why.

use super::Edit;
use crate::sources::goes_through;

/// An edit that changes nothing, and so shows in nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The kernel, if that of others does show.
    pub kernel: Option<&'static str>,
    /// The instruction that is taken away.
    pub opcode: &'static str,
    /// Source lines that it comes from.
    pub through: &'static [&'static str],
    /// Why the kernel is as good without it.
    pub why: &'static str,
}

/// All that are known. Edits that show have no place here: tests pass over these.
pub const EXPLANATIONS: &[Explanation] = &[
    Explanation {
        kernel: None,
        opcode: "bar.warp.sync",
        through: &["forward_mma.rs: store::store_staged"],
        why: "a barrier of the block stands between the last reads of these bytes and what is staged in them",
    },
    Explanation {
        kernel: None,
        opcode: "bar.warp.sync",
        through: &["query_rows.rs: warp::warp_sync();"],
        why: "the barrier of the block that shows the first keys stands between scaled queries and their use",
    },
    Explanation {
        kernel: Some("forward_bf16_d128_sm90a"),
        opcode: "bar.warp.sync",
        through: &["softmax/finish.rs: warp::warp_sync();"],
        why: "of passes the last one alone is of this kernel, whose lse does not stand where references and sums are read",
    },
    Explanation {
        kernel: None,
        opcode: "ld.global.v2",
        through: &[
            "query_block.rs: let [reference, sum] = global::load_written_f32x2_if(address, true);",
        ],
        why: "its condition always holds",
    },
    Explanation {
        kernel: None,
        opcode: "bra",
        through: &["query_block.rs: if statistics == 0 || !self.has_row(row) {"],
        why: "of a row that is not there nothing is written, and o of the state stands behind the numbers of the last one",
    },
    Explanation {
        kernel: None,
        opcode: "bra",
        through: &["key_value_ring.rs: if next.tile < end {"],
        why: "tiles past the last one are requested in vain: their rows are not there or not seen, and nobody waits for them",
    },
    Explanation {
        kernel: None,
        opcode: "bar.warp.sync",
        through: &["repaired(self.keys.full(0));"],
        why: "keys and values are waited for together, and values are repaired behind the keys by the same lanes",
    },
    Explanation {
        kernel: None,
        opcode: "fence.proxy.async.shared",
        through: &["repaired(self.keys.full(0));"],
        why: "keys and values are waited for together, and values are repaired behind the keys by the same lanes",
    },
    Explanation {
        kernel: None,
        opcode: "bar.warp.sync",
        through: &["forward_hopper.rs: storage.produce"],
        why: "it brings the lanes together before the next tile; what they tell each other passes through shuffles",
    },
    Explanation {
        kernel: None,
        opcode: "bra",
        through: &["key_range.rs: if lane == 0 {"],
        why: "all lanes of the warp would keep the same",
    },
    Explanation {
        kernel: None,
        opcode: "fence.",
        through: &["shared_storage.rs: mbarrier::fence_init();"],
        why: "two fences stand here, and either shows new barriers to the async proxy",
    },
    Explanation {
        kernel: None,
        opcode: "bra",
        through: &["shared_storage.rs: if K::Element::BYTES == 2 && specialize::alibi() {"],
        why: "without slopes nobody reads what is written, and nothing else stands there",
    },
    Explanation {
        kernel: None,
        opcode: "fence.",
        through: &["room.rs: mbarrier::fence_init();"],
        why: "two fences stand here, and either shows new barriers to the async proxy",
    },
    Explanation {
        kernel: None,
        opcode: "wgmma.fence",
        through: &["E::start_output"],
        why: "nothing touches the registers of the second product between the fence of the first and this one",
    },
    Explanation {
        kernel: None,
        opcode: "wgmma.fence",
        through: &["E::start_scores::<KeyTile<K>>(values"],
        why: "nothing touches the registers of the second product between the fence of the first and this one",
    },
    Explanation {
        kernel: None,
        opcode: "wgmma.fence",
        through: &["E::start_dq"],
        why: "nothing touches the registers of dq between the fence of the product of dv and this one",
    },
    Explanation {
        kernel: None,
        opcode: "wgmma.fence",
        through: &["E::start_gradient(dk, ds, query)"],
        why: "ds and dk are last touched before the fence of the product of dv",
    },
    Explanation {
        kernel: None,
        opcode: "wgmma.commit_group",
        through: &["E::start_gradient(&mut dv"],
        why: "the product of dq is committed right behind it, and both are waited for together",
    },
    Explanation {
        kernel: None,
        opcode: "wgmma.wait_group",
        through: &["dv.wait::<0>();"],
        why: "the wait for dk at the end of every step waits for all products",
    },
    Explanation {
        kernel: None,
        opcode: "mbarrier.try_wait",
        through: &["self.d_os.acquire(&turn);"],
        why: "every warp releases dO before the queries of the same stage, which the producer has acquired just before",
    },
    Explanation {
        kernel: None,
        opcode: "mbarrier.try_wait",
        through: &["self.values.acquire(turn);"],
        why: "every warp releases keys behind its last use of both, and the producer has acquired the keys just before",
    },
    Explanation {
        kernel: None,
        opcode: "wgmma.commit_group",
        through: &["E::start_scores"],
        why: "the second product is committed right behind it, and both are waited for together",
    },
    Explanation {
        kernel: None,
        opcode: "wgmma.wait_group",
        through: &["consumer.rs: t.scores.finish::<0>();"],
        why: "the wait for the output, just before, waits for all products",
    },
    Explanation {
        kernel: Some("forward_bf16_d128_heads_sm90a"),
        opcode: "fence.proxy.async.shared",
        through: &["hand_over(self.queries.full(stage), lane);"],
        why: "threads move these queries to registers, and hand them back behind a fence of their own",
    },
    Explanation {
        kernel: None,
        opcode: "bar.warp.sync",
        through: &["self.release_written_queries(&self.queries, by_this_lane);"],
        why: "the first product with queries in registers brings the lanes together behind their loads",
    },
    Explanation {
        kernel: None,
        opcode: "bra",
        through: &["score/backward.rs: if self.references.are_needed {"],
        why: "all rows have references, and those of rows that are not steep are 0",
    },
    Explanation {
        kernel: Some("forward_bf16_d128_sm90a"),
        opcode: "ld.global",
        through: &["score/features.rs: global::load_u32_if(bits.key(keys / MASK_BITS), is_there)"],
        why: "where there is a boolean mask plans take the kernel with tiles of 128 rows",
    },
    Explanation {
        kernel: Some("backward_bf16_d128_sm90a"),
        opcode: "mbarrier.try_wait",
        through: &["helpers.rs: self.queries.acquire(&progress.stages);"],
        why: "the stage is acquired again right behind, and the ring of visited steps is twice as long as the stages",
    },
    Explanation {
        kernel: Some("backward_bf16_d128_sm90a"),
        opcode: "mbarrier.try_wait",
        through: &[
            "helpers.rs: self.queries.acquire(stages);",
            "helpers.rs: self.bring_queries(p, maps, &mut progress.stages",
        ],
        why: "the stage has been acquired just before, to write which step it is for",
    },
    Explanation {
        kernel: None,
        opcode: "mbarrier.try_wait",
        through: &[
            "producer.rs: self.keys.acquire(keys);",
            "producer.rs: self.bring_keys(maps, &mut states.keys, block, key.tile);",
        ],
        why: "the stage has been acquired just before, to write which tile it is for",
    },
    Explanation {
        kernel: None,
        opcode: "mbarrier.try_wait",
        through: &[
            "mailbox.rs: self.stages.acquire(cursor);",
            "producer.rs: zeroes = self.announce(p, maps, states, block, &seen);",
        ],
        why: "the message has been begun before, to write which key tile is the first",
    },
    Explanation {
        kernel: None,
        opcode: "bar.warp.sync",
        through: &[
            "pipelines.rs: warp::warp_sync();",
            "consumer.rs: let visited = self.pipelines.wait_for_visited();",
        ],
        why: "products with these keys bring the lanes together before one of them lets go of the stage",
    },
    Explanation {
        kernel: None,
        opcode: "bra",
        through: &["score/backward.rs: if specialize::attn_mask() && !self.shows_all {"],
        why: "the bits of a tile that the map shows whole hide nothing",
    },
    Explanation {
        kernel: None,
        opcode: "fence.proxy.async.shared",
        through: &["helpers.rs: self.produce(p, maps);", "helpers.rs: bulk_copy::fence();"],
        why: "the async proxy has no part in the message: the fences keep its parts from being computed together",
    },
    Explanation {
        kernel: None,
        opcode: "bar.warp.sync",
        through: &["bias_tile.rs: warp::warp_sync();", "key_tile.rs: bias.fetch"],
        why: "products with the dS that stood there bring the lanes together between its last use and this copy",
    },
    Explanation {
        kernel: Some("backward_bf16_d128_sm90a"),
        opcode: "bar.warp.sync",
        through: &["part.let_go();"],
        why: "the wait for the product of dO and values brings the lanes together before dS is written there",
    },
    Explanation {
        kernel: Some("forward_bf16_d128_heads_sm90a"),
        opcode: "bra",
        through: &[
            "query_block.rs: Some(self.index_of_row(row, ",
            "epilogue.rs: block.store_statistics(p, is_split, row + lane, 0.0, lse);",
        ],
        why: "ranges of keys leave f32, for which the kernel has another copy of this, and that one shows",
    },
    Explanation {
        kernel: None,
        opcode: "mbarrier.arrive",
        through: &["self.pipelines.release_last_values(lane == 0);"],
        why: "two warpgroups are at their end here",
    },
];

/// Why an edit changes nothing, if it is known that it does not.
pub fn explanation(kernel: &str, edit: &Edit) -> Option<&'static Explanation> {
    EXPLANATIONS.iter().find(|known| {
        known.kernel.is_none_or(|known| known == kernel)
            && edit.site.instruction().starts_with(known.opcode)
            && goes_through(&edit.site.places, known.through)
    })
}
