//! The backward for Hopper.

mod overlap;
mod q80;
mod range;
mod shares;
mod softcap;
mod stretches;
mod three;

use super::{Family, LSE, Mutant, STATISTIC, VISIBLE_END, features, moved, other_parity, result_is};
use crate::ptx::{Which, dropped, one_more, operand, with_operand};
use crate::shapes::{cases, many_key_tiles, nothing_to_repair, ragged};
use crate::sweep::no_wait;
use finite_attention::check::{Case, Gradients};
use finite_attention::{CausalAlignment, Mask, Mode};

const KERNEL: &str = "backward_bf16_d128_sm90a";
const F16: &str = "backward_f16_d64_sm90a";

pub(super) const FAMILY: Family = Family { kernels: &[KERNEL, F16], cases, mutants };

fn mutant(name: &'static str) -> Mutant {
    Mutant::new(name, KERNEL, ragged(KERNEL))
}

/// A load of a pair of columns as that of the pair before.
fn two_before(load: &str) -> String {
    load.replace("]", "+-8]")
}

fn packed(name: &'static str) -> Mutant {
    Mutant::new(name, KERNEL, Case { packed: true, batches: 4, seed: 3, ..ragged(KERNEL) })
}

const WINDOW: Mask =
    Mask::Window { left: Some(20), right: Some(3), alignment: CausalAlignment::TopLeft };
const IN_FLIGHT: &str = "asynchronous copy in flight";
const RACE: &str = "race in shared memory";
const NO_FENCE: &str = "missing proxy fence";
const REGISTER: &str = "register in flight";
const QUERIES: &str = "consumer.rs: room.queries.wait(stages);";
const FENCE: &str = "consumer.rs: bulk_copy::fence();";
const SCORES: &str = "E::start_scores::<KeyTile<K>>(keys";
const PRODUCT_WITH_D_O: &str = "E::start_scores::<KeyTile<K>>(values";
const DQ: &str = "E::start_dq::";
const BARRIER: &str = "barrier::sync_constant::<MEET, CONSUMERS>();";
const DEADLOCK: &str = "deadlock";
const MISUSE: &str = "misuse of an mbarrier";
const OUT_OF_REGION: &str = "out-of-region shared access";
const UNINITIALISED: &str = "uninitialised shared read";
/// Where the producer stands when consumers are stuck.
const STUCK: &str = "self.queries.acquire(stages);";
const WRITER: &str = "bulk_copy::add_f32(";
const FIRST_WRITER: &str = "bulk_copy::store_bytes(";

/// Tiles and statistics that come.
fn arrivals() -> Vec<Mutant> {
    vec![
        mutant("keys are multiplied before they have come")
            .edit("mbarrier.try_wait", &["room.keys.wait(&orders.in_step());"], Which::All, no_wait)
            .finding(IN_FLIGHT, &[SCORES]),
        mutant("values are multiplied before they have come")
            .edit("mbarrier.try_wait", &["room.values.wait(&orders.in_step());"], Which::All, no_wait)
            .finding(IN_FLIGHT, &[PRODUCT_WITH_D_O]),
        mutant("queries are multiplied before they have come")
            .edit("mbarrier.try_wait", &[QUERIES], Which::All, no_wait)
            .finding(IN_FLIGHT, &[SCORES]),
        mutant("dO is multiplied before it has come")
            .edit("mbarrier.try_wait", &["room.d_os.counted_by().wait(stages);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &[PRODUCT_WITH_D_O]),
        mutant("queries are waited for with the other parity")
            .edit("mbarrier.try_wait", &[QUERIES], Which::All, other_parity)
            .finding(IN_FLIGHT, &[SCORES])
            .finding(DEADLOCK, &[QUERIES]),
        mutant("queries are overwritten while they are multiplied")
            .edit("mbarrier.try_wait", &["self.queries.acquire(stages);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &["self.query(stage).request"])
            .finding(MISUSE, &["Self::QUERY_BYTES + Self::STATISTIC_BYTES);"]),
        mutant("keys are overwritten while they are multiplied")
            .edit("mbarrier.try_wait", &["self.keys.acquire(turn);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &["self.key.request"])
            .finding(MISUSE, &["Self::KEY_BYTES);"]),
        mutant("queries are never released")
            .edit("mbarrier.arrive.shared", &["room.queries.release(&stages);"], Which::All, dropped)
            .finding(DEADLOCK, &["self.queries.acquire(stages);"]),
        mutant("values are never released")
            .edit(
                "mbarrier.arrive.shared",
                &["self.values.release(&orders.in_step());"],
                Which::All,
                dropped,
            )
            .finding(DEADLOCK, &["self.values.acquire(turn);"]),
        mutant("queries are released while dk is multiplied")
            .edit("wgmma.wait_group", &["dk.wait::<0>();"], Which::All, dropped)
            .finding(IN_FLIGHT, &["self.query(stage).request"])
            .finding(REGISTER, &["store_gradient"]),
        mutant("fewer bytes are announced than come: lse is left out")
            .edit(
                "mbarrier.arrive.expect_tx",
                &["Self::QUERY_BYTES + Self::STATISTIC_BYTES);"],
                Which::All,
                |line| moved(line, 2, "s32", -256),
            )
            .finding(UNINITIALISED, &[STATISTIC])
            .finding(IN_FLIGHT, &[STATISTIC]),
        mutant("more bytes are announced than come")
            .edit(
                "mbarrier.arrive.expect_tx",
                &["Self::QUERY_BYTES + statistics);"],
                Which::All,
                |line| moved(line, 2, "s32", 256),
            )
            .finding(DEADLOCK, &[STUCK]),
        mutant("a stage is released by one warp too few")
            .edit(
                "mbarrier.init",
                &["self.queries.init(1, 4 * K::WARPGROUPS);", "self.empty(stage)"],
                Which::All,
                |line| with_operand(line, 1, "7"),
            )
            .finding(MISUSE, &["room.queries.release(&stages);"])
            .finding(IN_FLIGHT, &["self.query(stage).request"]),
        mutant("lse is brought for the first tiles alone")
            .edit("cp.async.bulk.shared", &["self.lse(stage), source.lse"], Which::Last, dropped)
            .edit(
                "mbarrier.arrive.expect_tx",
                &["Self::QUERY_BYTES + Self::STATISTIC_BYTES);"],
                Which::Last,
                |line| moved(line, 2, "s32", -256),
            )
            .wrong("dq")
            .finding(UNINITIALISED, &[STATISTIC]),
        mutant("lse is that of the other stage")
            .edit("ld.shared.v2", &[LSE], Which::All, |line| {
                let address = operand(line, 2).trim_matches(['[', ']']);
                let load = with_operand(line, 2, "[%other]");
                format!("{{ .reg .b32 %other; xor.b32 %other, {address}, 256; {load} }}")
            })
            .wrong("dq")
            .finding(IN_FLIGHT, &[LSE])
            .finding(UNINITIALISED, &[LSE]),
        mutant("delta is that of two queries before")
            .edit("ld.shared.v2", &["load_delta"], Which::All, two_before)
            .edit("ld.shared.v2", &["subtract_loaded_delta"], Which::All, two_before)
            .finding(IN_FLIGHT, &["load_delta"])
            .wrong("dq"),
        mutant("keys are one row off")
            .edit("cp.async.bulk.tensor", &["self.key.request"], Which::All, |line| {
                moved(line, 3, "s32", 1)
            })
            .wrong("dq"),
    ]
}

/// What stands where in shared memory.
fn layout() -> Vec<Mutant> {
    vec![
        mutant("ds begins 1 KiB too late: its last rows are those of dq")
            .edit(
                "add.s32",
                &["room.rs: SharedTileOf::at(self.first_ds + stage * Self::DS_BYTES)"],
                Which::Number(0),
                |line| format!("{line} add.s32 {0}, {0}, 1024;", operand(line, 0)),
            )
            .finding(OUT_OF_REGION, &[DQ]),
        mutant("more of dq is added up than there is")
            .edit("cp.reduce.async.bulk", &[WRITER], Which::All, |line| moved(line, 2, "s32", 1024))
            .finding(OUT_OF_REGION, &[WRITER]),
        mutant("lse comes 16 bytes too far on")
            .edit("cp.async.bulk.shared", &["self.lse(stage), source.lse"], Which::All, |line| {
                moved(line, 0, "s32", 16)
            })
            .finding(OUT_OF_REGION, &["self.lse(stage), source.lse"]),
    ]
}

/// Scores, their gradients and the products with them.
fn products() -> Vec<Mutant> {
    vec![
        mutant("scores are read before they are there")
            .edit("wgmma.wait_group", &["scores.wait::<0>();"], Which::All, dropped)
            .finding(REGISTER, &[LSE]),
        mutant("dp is read before it is there")
            .edit("wgmma.wait_group", &["dp.wait::<0>();"], Which::All, |line| {
                line.replacen(" 0", " 1", 1)
            })
            .finding(REGISTER, &["subtract_loaded_delta"]),
        mutant("dq is read before it is there")
            .edit("wgmma.wait_group", &["dq.wait::<1>();"], Which::All, |line| {
                line.replacen(" 1", " 2", 1)
            })
            .finding(REGISTER, &["consumer.rs: shared::store_u32x4("]),
        mutant("the product with p belongs to no group")
            .edit("wgmma.commit_group", &["E::start_scores::<KeyTile<K>>(values"], Which::All, dropped)
            .finding(REGISTER, &["subtract_loaded_delta"]),
        mutant("ds is multiplied without a fence behind its making")
            .edit("wgmma.fence", &[], Which::All, dropped)
            .finding("missing wgmma fence", &["E::start_"]),
        mutant("ds of the other warpgroup is multiplied before it is there")
            .edit("bar.sync 1", &[BARRIER], Which::All, dropped)
            .finding(IN_FLIGHT, &["store_transposed"])
            .finding(RACE, &[DQ])
            .finding(UNINITIALISED, &[DQ]),
        mutant("the warpgroups do not meet: each counts its own threads")
            .edit("bar.sync 1", &[BARRIER], Which::All, |line| line.replace("256", "128"))
            .finding(IN_FLIGHT, &["store_transposed"])
            .finding(RACE, &[DQ])
            .finding(UNINITIALISED, &[DQ]),
        mutant("the warpgroups wait for helpers too")
            .edit("bar.sync 1", &[BARRIER], Which::All, |line| line.replace("256", "384"))
            .finding(DEADLOCK, &[STUCK]),
        mutant("ds is not fenced from the product with keys")
            .edit("fence.proxy.async", &[FENCE], Which::Number(0), dropped)
            .finding(NO_FENCE, &[DQ]),
        mutant("ds is written where it is read: one stage for all")
            .edit("shl.b32", &["room.rs: self.first_ds + stage"], Which::All, |line| {
                result_is(line, "0")
            })
            .finding(RACE, &["store_transposed"])
            .finding(IN_FLIGHT, &["store_transposed"]),
        mutant("ds is not transposed")
            .edit("stmatrix", &[], Which::All, |line| line.replace(".trans", ""))
            .wrong("dq"),
        mutant("dv starts from what is left in its registers")
            .edit("setp.ne.b32 %fresh", &[SCORES], Which::All, |line| line.replacen(".ne.", ".eq.", 1))
            .wrong("dq")
            .finding("uninitialised register", &[SCORES]),
        Mutant::new("one query too many sees a key", KERNEL, Case { mask: WINDOW, ..ragged(KERNEL) })
            .edit("sub.s32", &[VISIBLE_END], Which::All, one_more)
            .wrong("dq"),
        mutant("tiles that are partly visible are taken as a whole")
            .edit("or.pred", &["consumer.rs: .probabilities_of_either::<E"], Which::All, |line| {
                line.replacen("or.", "and.", 1)
            })
            .wrong("dq"),
        mutant("dq is handed over before it is there")
            .edit("wgmma.wait_group", &["dq.wait::<1>();"], Which::All, dropped)
            .finding(REGISTER, &["consumer.rs: shared::store_u32x4("]),
        Mutant::new(
            "ds is multiplied in turn before the other warpgroup has written it",
            F16,
            ragged(F16),
        )
        .edit("bar.sync 2", &["meet_in_turn"], Which::All, dropped)
        .finding(IN_FLIGHT, &["store_transposed"])
        .finding(RACE, &[DQ])
        .finding(UNINITIALISED, &[DQ]),
        Mutant::new("nobody says that ds is there for the other's turn", F16, ragged(F16))
            .edit("bar.arrive", &["meet_in_turn"], Which::All, dropped)
            .finding(DEADLOCK, &[STUCK]),
        Mutant::new("there is one barrier for both turns", F16, ragged(F16))
            .edit("bar.sync 2", &["meet_in_turn"], Which::All, |line| line.replace(" 2,", " 1,"))
            .edit("bar.arrive 2", &["meet_in_turn"], Which::All, |line| line.replace(" 2,", " 1,"))
            .finding(IN_FLIGHT, &["store_transposed"])
            .finding(RACE, &[DQ])
            .finding(UNINITIALISED, &[DQ]),
        Mutant::new("the largest value is that of one warp", F16, ragged(F16))
            .edit("bar.sync 1", &["block_max::<THREADS>"], Which::All, dropped)
            .finding(RACE, &["block_max"])
            .finding(UNINITIALISED, &["block_max"]),
        Mutant::new("norms are used before they have come", F16, ragged(F16))
            .edit("mbarrier.try_wait", &["room.d_os.counted_by().wait(stages);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &["range_factor"]),
    ]
}

/// dq on its way to the accumulator.
fn accumulator() -> Vec<Mutant> {
    vec![
        mutant("dq is overwritten while it is added")
            .edit("mbarrier.try_wait", &["consumer.rs: stage.acquire(&turn);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &["consumer.rs: shared::store_u32x4("])
            .finding(RACE, &["consumer.rs: shared::store_u32x4("]),
        mutant("dq is added before it is written")
            .edit("mbarrier.try_wait", &["writer.rs: stage.wait(turns);"], Which::All, no_wait)
            .finding(IN_FLIGHT, &["consumer.rs: shared::store_u32x4("])
            .finding(UNINITIALISED, &[FIRST_WRITER]),
        mutant("dq is waited for with the other parity")
            .edit("mbarrier.try_wait", &["writer.rs: stage.wait(turns);"], Which::All, other_parity)
            .finding(UNINITIALISED, &[FIRST_WRITER])
            .finding(DEADLOCK, &[STUCK]),
        mutant("dq is not fenced from its adding")
            .edit("fence.proxy.async", &[FENCE], Which::Last, dropped)
            .finding(NO_FENCE, &[WRITER]),
        mutant("a warp does not say that its dq is there")
            .edit("mbarrier.arrive.shared", &["stage.fill(turn);"], Which::All, dropped)
            .finding(DEADLOCK, &[STUCK]),
        mutant("dq is added when three of four warps have written it")
            .edit(
                "mbarrier.init",
                &["self.dq_stage(writer).init(4, 1);", "self.full(stage)"],
                Which::All,
                |line| with_operand(line, 1, "3"),
            )
            .finding(DEADLOCK, &["self.keys.acquire(turn);"])
            .finding(MISUSE, &["stage.fill(turn);"]),
        mutant("dq is released before it is read")
            .edit("cp.async.bulk.wait_group.read 0", &[], Which::All, dropped)
            .finding(IN_FLIGHT, &["consumer.rs: shared::store_u32x4("]),
        mutant("one addition too few has been read when dq is released")
            .edit("cp.async.bulk.wait_group.read 0", &[], Which::All, |line| line.replace(" 0", " 1"))
            .finding(IN_FLIGHT, &["consumer.rs: shared::store_u32x4("]),
        mutant("additions of dq belong to no group")
            .edit("cp.async.bulk.commit_group", &[], Which::All, dropped)
            .finding(IN_FLIGHT, &["consumer.rs: shared::store_u32x4("]),
        mutant("dq is never released")
            .edit("mbarrier.arrive.shared", &["writer.rs: stage.release(turns);"], Which::All, dropped)
            .finding(DEADLOCK, &[STUCK]),
        mutant("half of dq is never added")
            .edit("cp.reduce.async.bulk", &[WRITER], Which::All, |line| moved(line, 2, "s32", -8192))
            .wrong("dq"),
        mutant("dq is added to the rows behind its own")
            .edit("cp.reduce.async.bulk", &[WRITER], Which::All, |line| moved(line, 0, "s64", 8192))
            .finding("out-of-bounds global access", &[WRITER])
            .wrong("dq"),
        mutant("more of dq is added than there is")
            .edit("cp.reduce.async.bulk", &[WRITER], Which::All, |line| moved(line, 2, "s32", 16384))
            .finding("out-of-bounds shared access", &[WRITER])
            .finding("out-of-bounds global access", &[WRITER])
            .finding(RACE, &[WRITER])
            .finding(IN_FLIGHT, &[WRITER]),
    ]
}

/// In deterministic mode key tiles add to dq in their order, whichever blocks they are on.
fn in_order() -> Vec<Mutant> {
    let gradients =
        ragged(KERNEL).gradients.map(|gradients| Gradients { mode: Mode::Deterministic, ..gradients });
    let case = Case { gradients, mask: Mask::Full, key_rows: 400, ..ragged(KERNEL) };
    let mutant = |name| Mutant::new(name, KERNEL, case.clone()).blocks(3);
    vec![
        mutant("a turn is never passed on")
            .edit("st.release", &["shares.publish(note);"], Which::All, dropped)
            .finding("deadlock", &["global::wait_for_u32(note"]),
        mutant("a turn is passed on twice over")
            .edit("st.release", &["shares.publish(note);"], Which::All, |line| moved(line, 1, "s32", 1))
            .finding("deadlock", &["global::wait_for_u32(note"]),
        Mutant::new("every other key tile is left out", KERNEL, many_key_tiles(KERNEL))
            .blocks(2)
            .edit(
                "atom.global.add",
                &["tile_queue.rs: thread::grid_dim_x() + global"],
                Which::All,
                |line| with_operand(line, 2, "2"),
            )
            .wrong("d"),
    ]
}

/// The queue of key tiles, and rows of the next packed sequence.
fn helpers() -> Vec<Mutant> {
    vec![
        mutant("an order is read before it is there")
            .edit("mbarrier.try_wait", &[".orders.wait(&orders);"], Which::All, no_wait)
            .finding(UNINITIALISED, &["KeyOrder::read"])
            .finding(RACE, &["KeyOrder::read"]),
        Mutant::new("an order is overwritten while it is read", KERNEL, many_key_tiles(KERNEL))
            .edit(
                "mbarrier.try_wait",
                &["mailbox.rs: self.stages.acquire(cursor);"],
                Which::All,
                no_wait,
            )
            .finding(RACE, &["mailbox.rs: "])
            .finding(MISUSE, &["self.orders.begin(&progress"]),
        Mutant::new("one reader of orders too few is waited for", KERNEL, many_key_tiles(KERNEL))
            .edit(
                "mbarrier.init",
                &["self.orders.init(4 * K::WARPGROUPS + WRITERS", "self.empty(stage)"],
                Which::All,
                |line| moved(line, 1, "s32", -1),
            )
            .finding(MISUSE, &["self.orders.discard"])
            .finding(RACE, &["mailbox.rs: "]),
        Mutant::new(
            "the repairer lets an order go that its lanes still read",
            KERNEL,
            nothing_to_repair(KERNEL),
        )
        .blocks(1)
        .edit(
            "bar.warp.sync",
            &["self.orders.discard(&mut orders, lane);", "self.repair("],
            Which::All,
            dropped,
        )
        .finding(RACE, &["mailbox.rs: "])
        .finding(RACE, &["KeyOrder::read"]),
        mutant("an order is never discarded")
            .edit("mbarrier.arrive.shared", &["key_tile.rs: self.orders.discard"], Which::All, dropped)
            .finding(DEADLOCK, &["self.orders.begin(&progress"]),
        mutant("nobody says that there is no more work")
            .edit(
                "mbarrier.arrive.shared",
                &["helpers.rs: self.orders.end(&mut progress.orders);"],
                Which::Last,
                dropped,
            )
            .finding(DEADLOCK, &[".orders.wait(&orders)"]),
        mutant("every lane of the producer brings tiles")
            .edit("elect.sync", &["helpers.rs: if warp::elect() {"], Which::Number(0), |line| {
                let predicate = operand(line, 0).split('|').next_back().unwrap_or_default().to_owned();
                format!("setp.eq.u32 {predicate}, 0, 0;")
            })
            .finding(MISUSE, &["self.bring(p, maps, &turn"])
            .finding(MISUSE, &["Self::QUERY_BYTES + Self::STATISTIC_BYTES);"]),
        mutant("registers are taken that nobody gave")
            .edit("setmaxnreg.dec", &[], Which::All, dropped)
            .finding(DEADLOCK, &[]),
        mutant("gradients of keys past the end are stored")
            .on(Case { head_dim: 128, value_dim: 128, ..ragged(KERNEL) })
            .edit("setp.ge.s32", &["store.rs: ", "key_tile.rs: store_exchanged"], Which::All, |line| {
                with_operand(&line.replacen(".ge.", ".ne.", 1), 2, operand(line, 1))
            })
            .finding("out-of-bounds global access", &["store_exchanged"]),
        packed("queries of the next sequence are not cleared")
            .edit("st.shared.v4", &["self.query(stage).clear_rows(lane, rows);"], Which::All, dropped)
            .wrong("dk"),
        packed("dO of the next sequence is not cleared")
            .edit("st.shared.v4", &["self.d_o(stage).clear_rows(lane, rows);"], Which::All, dropped)
            .wrong("d"),
        packed("keys of the next sequence are not cleared")
            .edit("st.shared.v4", &["self.key.clear_rows(lane, key_rows);"], Which::All, dropped)
            .wrong("dq"),
        packed("values of the next sequence are not cleared")
            .edit("st.shared.v4", &["self.value.clear_rows(lane, key_rows);"], Which::All, dropped)
            .wrong("dq"),
        packed("zeros are not fenced from the products")
            .edit("fence.proxy.async", &["helpers.rs: bulk_copy::fence();"], Which::All, dropped)
            .finding(NO_FENCE, &["E::start_"]),
        packed("dO is repaired before it has come")
            .edit("mbarrier.try_wait", &["mbarrier::wait(self.raw_d_o(stage), "], Which::All, no_wait)
            .finding(IN_FLIGHT, &["self.d_o(stage).clear_rows"]),
        packed("keys are repaired with the parity of the first")
            .edit(
                "mbarrier.try_wait",
                &["mbarrier::wait(self.raw_key(), key_parity);"],
                Which::All,
                |line| with_operand(line, 2, "0"),
            )
            .finding(IN_FLIGHT, &["self.key.clear_rows"]),
        packed("nobody says that queries are repaired")
            .edit(
                "mbarrier.arrive.shared",
                &["repaired(self.queries.full(stage));"],
                Which::All,
                dropped,
            )
            .finding(DEADLOCK, &["self.keys.acquire(turn);"])
            .finding(DEADLOCK, &[STUCK]),
        packed("tiles that need repair are handed out at once")
            .edit("selp.b32", &["let barrier = if raw { self.raw_query(stage)"], Which::All, |line| {
                with_operand(line, 1, operand(line, 2))
            })
            .finding(DEADLOCK, &[])
            .finding(MISUSE, &[]),
        packed("four rows of the next sequence are cleared and no more")
            .edit(
                "setp.lt.u32",
                &["while offset < S::ROWS * 128", "self.d_o(stage).clear_rows"],
                Which::All,
                |line| with_operand(line, 2, "0"),
            )
            .wrong("d"),
    ]
}

fn mutants() -> Vec<Mutant> {
    let parts =
        [arrivals(), layout(), products(), accumulator(), shares::mutants(), in_order(), helpers()];
    let files = [overlap::mutants(), q80::mutants(), stretches::mutants(), three::mutants()];
    parts
        .into_iter()
        .chain(files)
        .chain([
            softcap::mutants(),
            range::mutants(),
            features::backward(KERNEL),
            features::staged(KERNEL, "d"),
        ])
        .chain([features::told(KERNEL, "d"), features::visited_in_order(KERNEL)])
        .flatten()
        .collect()
}
