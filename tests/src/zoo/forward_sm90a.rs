//! The forward for Hopper.

use super::{ARE_NEAR, Family, Mutant, features, moved, never, other_parity};
use crate::ptx::{Which, dropped, operand, with_operand};
use crate::shapes::{cases, ragged, several_tiles};
use crate::sweep::no_wait;
use finite_attention::Mask;
use finite_attention::check::Case;

/// Two warpgroups, which take turns, with queries in registers.
const KERNEL: &str = "forward_bf16_d128_q128_sm90a";
/// Three warpgroups, which see different key tiles.
const D64: &str = "forward_bf16_d64_sm90a";
/// The same, with output that leaves through the rows of its query tile.
const TALL: &str = "forward_bf16_d128_sm90a";
/// As [`TALL`], with output that threads copy from there.
const D96: &str = "forward_bf16_d96_sm90a";

pub(super) const FAMILY: Family = Family { kernels: &[KERNEL, TALL], cases, mutants };

fn mutant(name: &'static str) -> Mutant {
    Mutant::new(name, KERNEL, ragged(KERNEL))
}

/// Scores that come near a cap, and beyond it.
fn capped(name: &'static str, kernel: &'static str) -> Mutant {
    let case = if kernel == KERNEL { ragged(kernel) } else { several_tiles(kernel) };
    Mutant::new(name, kernel, Case { softcap: Some(0.5), ..case })
}

/// As many rows as make whole tiles: those are tall then.
fn unseen(name: &'static str) -> Mutant {
    Mutant::new(name, D64, Case { query_rows: 768, key_rows: 700, ..ragged(D64) })
}

/// Query tiles with rows for the first of the warpgroups only, before and behind others.
fn idle(name: &'static str) -> Mutant {
    Mutant::new(name, D64, several_tiles(D64))
}

/// Whole chunks of 16 bytes, so that the output leaves through shared memory.
fn tall(name: &'static str) -> Mutant {
    let full = Case { head_dim: 120, value_dim: 120, key_rows: 200, ..several_tiles(TALL) };
    Mutant::new(name, TALL, full)
}

/// Output through shared memory, of several query tiles for each block.
fn staged(name: &'static str, kernel: &'static str) -> Mutant {
    let value_dim = several_tiles(kernel).value_dim / 8 * 8;
    Mutant::new(name, kernel, Case { value_dim, ..several_tiles(kernel) })
}

/// As [`staged`], with nobody who waits until output has left through the rows that the next one leaves through.
fn resent(name: &'static str, kernel: &'static str) -> Mutant {
    staged(name, kernel)
        .edit(
            "cp.async.bulk.wait_group.read",
            &["consumer.rs: bulk_copy::wait_read"],
            Which::All,
            dropped,
        )
        .finding("asynchronous copy in flight", &["store_rows"])
}

/// Packed sequences: tails of tiles that end in another sequence are zeroed.
fn packed(name: &'static str) -> Mutant {
    Mutant::new(name, KERNEL, Case { packed: true, batches: 4, seed: 3, ..ragged(KERNEL) })
}

const LOOP: &str = "self.mainloop(&mut tile";
const KEYS: &str = "self.pipelines.wait_for_keys();";
const VALUES: &str = "self.pipelines.wait_for_values();";

fn mutants() -> Vec<Mutant> {
    let own = vec![
        mutant("keys are multiplied before they have come")
            .edit("mbarrier.try_wait", &[LOOP, KEYS], Which::All, no_wait)
            .finding("asynchronous copy in flight", &["start_scores"]),
        mutant("values are multiplied before they have come")
            .edit("mbarrier.try_wait", &[VALUES], Which::All, no_wait)
            .finding("asynchronous copy in flight", &["start_output"]),
        mutant("queries are loaded before they have come")
            .edit(
                "mbarrier.try_wait",
                &["self.storage.queries.wait(&self.queries);"],
                Which::All,
                no_wait,
            )
            .finding("asynchronous copy in flight", &["Queries::<A>::load("]),
        mutant("keys are waited for with the other parity")
            .edit("mbarrier.try_wait", &[LOOP, KEYS], Which::All, other_parity)
            .finding("asynchronous copy in flight", &["start_scores"])
            .finding("deadlock", &[LOOP, KEYS]),
        mutant("keys are overwritten while they are multiplied")
            .edit("mbarrier.try_wait", &["producer.rs: self.keys.acquire(keys);"], Which::All, no_wait)
            .finding("asynchronous copy in flight", &["self.key(keys.stage()).request"])
            .finding("misuse of an mbarrier", &["mbarrier::arrive_expect(barrier, Self::KEY_BYTES);"]),
        mutant("key tiles stand 1 KiB too far on: the last reaches into values")
            .edit("cp.async.bulk.tensor", &["self.key(keys.stage()).request"], Which::All, |line| {
                moved(line, 0, "s32", 1024)
            })
            .finding("out-of-region shared access", &["self.key(keys.stage()).request"]),
        mutant("keys are never released")
            .edit(
                "mbarrier.arrive.shared",
                &["self.storage.keys.release(&self.keys);"],
                Which::All,
                dropped,
            )
            .finding("deadlock", &["self.keys.acquire(keys);"]),
        unseen("keys that are passed are not released")
            .edit(
                "mbarrier.arrive.shared",
                &["self.pipelines.skip_keys(self.key_range.leading(work_tile))"],
                Which::All,
                dropped,
            )
            .finding("deadlock", &["self.keys.acquire(keys);"]),
        idle("values that are passed are released before they have come")
            .edit("mbarrier.try_wait", &["self.skip_values(1, self.lane);"], Which::All, no_wait)
            .finding("asynchronous copy in flight", &["self.value(stage).request"]),
        idle("key tiles of a query tile that is gone past are not released")
            .edit("mbarrier.arrive.shared", &["self.skip_keys(1);"], Which::All, dropped)
            .finding("deadlock", &["self.keys.acquire(keys);"]),
        idle("the query tile that is gone past is not released")
            .edit(
                "mbarrier.arrive.shared",
                &["self.storage.queries.pass(&mut self.queries, 1"],
                Which::All,
                dropped,
            )
            .finding("deadlock", &["self.queries.acquire(queries);"]),
        unseen("scores of the next query tile are taken before they are there")
            .edit("wgmma.wait_group", &["scores.finish::<0>();"], Which::All, |line| {
                line.replacen(" 0", " 1", 1)
            })
            .finding("register in flight", &["mask::apply_mask"]),
        mutant("keys are released before they are multiplied")
            .edit("wgmma.wait_group", &["scores.finish::<1>();"], Which::All, dropped)
            .finding("asynchronous copy in flight", &["self.key(keys.stage()).request"])
            .finding("register in flight", &["mask::apply_mask"]),
        mutant("one product too few is waited for")
            .edit("wgmma.wait_group", &["E::finish_output::<0>("], Which::All, |line| {
                line.replacen(" 0", " 1", 1)
            })
            .finding("register in flight", &["softmax.probabilities"])
            .finding("register in flight", &["rescale.apply"]),
        mutant("scores are read before they are there")
            .edit("wgmma.wait_group", &["scores.finish::<1>();"], Which::All, |line| {
                line.replacen(" 1", " 2", 1)
            })
            .finding("asynchronous copy in flight", &["self.key(keys.stage()).request"])
            .finding("register in flight", &["mask::apply_mask"]),
        Mutant::new(
            "scores that outgrow the reference go unnoticed",
            KERNEL,
            Case { amplitude: 30.0, ..ragged(KERNEL) },
        )
        .edit("setp.ltu.f32", &["softmax.rs: outgrown |="], Which::All, |line| {
            with_operand(line, 1, "0f7F800000") // no limit
        })
        .wrong("o"),
        mutant("scores start from what is left in their registers")
            .edit("setp.ne.b32 %fresh", &["start_scores"], Which::All, |line| {
                line.replacen(".ne.", ".eq.", 1)
            })
            .finding("uninitialised register", &["start_scores"])
            .wrong("o"),
        mutant("a sum starts from what the one before left")
            .edit("setp.ne.b32 %first", &["start_output"], Which::All, |line| {
                line.replacen(".ne.", ".eq.", 1)
            })
            .wrong("o"),
        mutant("a warp's output leaves through the rows of the next warp")
            .on(Case { value_dim: 120, ..ragged(KERNEL) })
            .edit("stmatrix", &["store_rows"], Which::All, |line| moved(line, 0, "s32", 16 * 128))
            .finding("asynchronous copy in flight", &["staging.send"])
            .wrong("o"),
        staged("output is staged where keys are", KERNEL)
            .edit("stmatrix", &["store_rows"], Which::All, |line| moved(line, 0, "s32", 128 * 256))
            .finding("asynchronous copy in flight", &["store_rows"]),
        staged("output is sent without a fence behind its staging", KERNEL)
            .edit(
                "fence.proxy.async",
                &["epilogue.rs: bulk_copy::fence();", "write_output::<E"],
                Which::All,
                dropped,
            )
            .finding("missing proxy fence", &["staging.send"]),
        staged("output is sent before all lanes have staged it", KERNEL)
            .edit("bar.warp.sync", &["write_output::<E"], Which::All, dropped)
            .finding("race in shared memory", &["staging.send"]),
        resent("a tile of output is staged in rows that are still being sent", KERNEL),
        resent("output is staged in rows that are still being sent", D64),
        mutant("queries are handed back without a fence behind their loading")
            .on(several_tiles(KERNEL))
            .edit("fence.proxy.async", &["self.pipelines.release_loaded_queries"], Which::All, dropped)
            .finding("missing proxy fence", &["self.query(stage).request"]),
        packed("rows past the end of a sequence are sent with the others")
            .on(Case { packed: true, batches: 4, seed: 3, value_dim: 120, ..ragged(KERNEL) })
            .edit("redux.sync.or", &["epilogue.rs: let is_whole"], Which::All, |line| {
                format!("mov.u32 {}, 1;", operand(line, 0))
            })
            .finding("race in global memory", &["staging.send"])
            .wrong("o"),
        mutant("products belong to no group")
            .edit("wgmma.commit_group", &["start_scores"], Which::All, dropped)
            .finding("register in flight", &["mask::apply_mask"]),
        mutant("probabilities are multiplied without a fence behind their making")
            .edit("wgmma.fence", &[], Which::All, dropped)
            .finding("missing wgmma fence", &["start_scores"]),
        mutant("fewer bytes are announced than come")
            .edit("mbarrier.arrive.expect_tx", &["Self::query_bytes(&p.forward)"], Which::All, |line| {
                with_operand(line, 2, "16384")
            })
            .finding("uninitialised shared read", &["Queries::<A>::load("]),
        mutant("more bytes are announced than come")
            .edit("mbarrier.arrive.expect_tx", &["Self::query_bytes(&p.forward)"], Which::All, |line| {
                with_operand(line, 2, "65536")
            })
            .finding("deadlock", &["self.keys.acquire(keys);"]),
        mutant("barriers are used before they are made")
            .edit("bar.sync", &["shared_storage.rs: block_sync();"], Which::All, dropped)
            .finding("misuse of an mbarrier", &["self.storage.work_tiles.wait(&self.work_tiles)"]),
        mutant("a stage waits for one warp too many")
            .edit(
                "mbarrier.init",
                &["self.keys.init(1, Self::CONSUMER_WARPS);", "mbarrier::init(self.empty(stage)"],
                Which::All,
                |line| with_operand(line, 1, "9"),
            )
            .finding("deadlock", &["self.keys.acquire(keys);"]),
        mutant("a stage waits for one warp too few")
            .edit(
                "mbarrier.init",
                &["self.keys.init(1, Self::CONSUMER_WARPS);", "mbarrier::init(self.empty(stage)"],
                Which::All,
                |line| with_operand(line, 1, "7"),
            )
            .finding("misuse of an mbarrier", &["self.storage.keys.release(&self.keys);"])
            .finding("asynchronous copy in flight", &["self.key(keys.stage()).request"]),
        mutant("every lane of the producer brings a tile")
            .edit("elect.sync", &["producer.rs: if warp::elect() {"], Which::All, |line| {
                let predicate = operand(line, 0).split('|').next_back().unwrap_or_default().to_owned();
                format!("setp.eq.u32 {predicate}, 0, 0;")
            })
            .finding("misuse of an mbarrier", &["Self::query_bytes(&p.forward)"]),
        packed("rows of the next sequence stay in the last tile of values")
            .edit(
                "st.shared.v4",
                &["self.value(stage).clear_rows(lane, rows as u32);"],
                Which::All,
                dropped,
            )
            .wrong("o"),
        packed("zeros in values are not fenced from the products")
            .edit("fence.proxy.async", &["producer.rs: bulk_copy::fence();"], Which::All, dropped)
            .finding("missing proxy fence", &["start_output"]),
        packed("tails of values are zeroed before these have come")
            .edit(
                "mbarrier.try_wait",
                &["producer.rs: mbarrier::wait(self.landed_value(stage)"],
                Which::All,
                no_wait,
            )
            .finding("asynchronous copy in flight", &["clear_rows"]),
        packed("one row too few is cleared")
            .edit(
                "shl.b32",
                &["bulk.rs: let mut offset = first * 128", "self.value(stage).clear_rows"],
                Which::All,
                |line| {
                    let [to, from] = [0, 1].map(|index| operand(line, index));
                    format!("{{ .reg .b32 %more; add.u32 %more, {from}, 1; shl.b32 {to}, %more, 7; }}")
                },
            )
            .wrong("o"),
        Mutant::new(
            "an order is overwritten while it is read",
            KERNEL,
            Case { query_heads: 4, key_rows: 100, mask: Mask::Full, ..ragged(KERNEL) },
        )
        .edit("mbarrier.try_wait", &["mailbox.rs: self.stages.acquire(cursor);"], Which::All, no_wait)
        .finding("race in shared memory", &["mailbox.rs: "]),
        mutant("the swizzle of products is not that of copies")
            .edit("or.b64", &["descriptor.rs: "], Which::All, |line| {
                with_operand(line, 2, "9223372311799790592") // 64 bytes instead of 128
            })
            .finding("out-of-bounds shared access", &["start_scores"]),
        mutant("values are brought on top of each other")
            .edit(
                "shl.b32",
                &["first_value.address + stage", "producer.rs: self.value(stage).request"],
                Which::All,
                |line| {
                    with_operand(line, 2, "14") // tiles are 2^15 bytes
                },
            )
            .finding("asynchronous copy in flight", &["start_output"])
            .wrong("o"),
        mutant("a tile of keys is one row off")
            .edit("cp.async.bulk.tensor", &["self.key(keys.stage()).request"], Which::All, |line| {
                moved(line, 3, "s32", 1)
            })
            .wrong("o"),
        Mutant::new("a turn is not passed on", KERNEL, Case { mask: Mask::Full, ..ragged(KERNEL) })
            .edit("bar.arrive", &["self.scheduler.pass();"], Which::All, dropped)
            .finding("deadlock", &["self.keys.acquire(keys);"]),
        mutant("registers are taken that nobody gave")
            .edit("setmaxnreg.dec", &[], Which::All, dropped)
            .finding("deadlock", &["self.keys.acquire(keys);"]),
        mutant("lse of rows past the end is stored")
            .on(several_tiles(KERNEL))
            .edit(
                "bra",
                &["query_block.rs: if p.lse == 0", "block.store_statistics(p, "],
                Which::All,
                dropped,
            )
            .finding("out-of-bounds global access", &["block.store_statistics(p, "]),
        mutant("rows that see no key are not written")
            .on(Case { query_rows: 411, key_rows: 5, ..ragged(KERNEL) })
            .edit("st.global", &["store.rs: ", "write_dead::<E"], Which::All, dropped)
            .wrong("o"),
        mutant("rows past the end are stored")
            .on(Case { value_dim: 120, ..ragged(KERNEL) })
            .edit("setp.ge.s32", &["store.rs: ", "store::copy_staged"], Which::All, |line| {
                with_operand(&line.replacen(".ge.", ".ne.", 1), 2, operand(line, 1))
            })
            .finding("out-of-bounds global access", &["store::copy_staged"]),
        tall("output is staged in rows that other warps still multiply")
            .edit("bar.sync", &["barrier::sync(1 + self.warpgroup, 128);"], Which::All, dropped)
            .finding("asynchronous copy in flight", &["start_scores"]),
        staged("a query tile that output left through is handed back without a fence", D96)
            .edit("fence.proxy.async", &["self.release_output(&last.query"], Which::All, dropped)
            .finding("missing proxy fence", &["self.query(stage).request"]),
        tall("a query tile is handed back while output is sent from its own rows")
            .edit(
                "cp.async.bulk.wait_group.read",
                &["self.pipelines.release_sent_queries"],
                Which::All,
                dropped,
            )
            .finding("asynchronous copy in flight", &["self.query(stage).request"]),
        tall("the query tile that output left through is not handed back")
            .edit(
                "mbarrier.arrive.shared",
                &["self.pipelines.release_sent_queries"],
                Which::All,
                dropped,
            )
            .finding("deadlock", &["self.queries.acquire(queries);"]),
        tall("a product of no consequence reads values before they have come")
            .edit("mbarrier.try_wait", &["self.last_step(&mut tile", VALUES], Which::Last, no_wait)
            .finding("asynchronous copy in flight", &["start_"]),
        tall("key tiles that are gone past are not waited for")
            .on(Case { head_dim: 120, value_dim: 120, key_rows: 230, ..several_tiles(TALL) })
            .edit("mbarrier.try_wait", &["self.skip_keys(1);"], Which::All, no_wait)
            .finding("asynchronous copy in flight", &["start_scores"])
            .finding("deadlock", &["self.keys.acquire(keys);"]),
        capped("scores far from 0 are taken for near ones", TALL)
            .edit("setp.geu.f32", &[ARE_NEAR], Which::All, never)
            .wrong("o"),
    ];
    own.into_iter()
        .chain(features::forward(KERNEL))
        .chain(features::staged(KERNEL, "o"))
        .chain(features::staged_beside_output(KERNEL))
        .chain(features::multiplied_slopes(KERNEL))
        .chain(features::told(KERNEL, "o"))
        .collect()
}
