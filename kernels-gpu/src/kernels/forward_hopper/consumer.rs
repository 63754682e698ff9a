//! A consumer warpgroup of the Hopper forward: the mainloop, and what is around it for each work tile.

use super::epilogue::{add_previous, finalize, write_dead, write_output};
use super::key_range::KeyRange;
use super::pipelines::{Pipelines, lane_and_row};
use super::tile::{ForwardKernel, KeyTiles, OutputPath, QueryStages, QueryTile, WARPGROUP_ROWS};
use super::work::{Accumulators, Last, Next, Turn, first_probabilities};
use crate::abi::ForwardParams;
use crate::arch::{barrier, bulk_copy, specialize};
use crate::attention::query_block::{QueryTiles, is_split};
use crate::attention::score::Scale;
use crate::attention::softmax::OnlineSoftmax;
use crate::geometry::visible::TileRange;
use crate::pipeline::stages::Cursor;
use crate::pipeline::warp_scheduler::WarpSchedulerBarrier;
use crate::tile::fragment::MmaFragment;
use crate::tile::store;
use crate::tile::warpgroup::{Output, Queries, Scores, Units, Wait, WarpgroupElement};

/// A warp of a consumer warpgroup: its pipelines, and what does not change. Registers per thread: `A` of
/// queries (0: they stay in shared memory), `S` of scores, `P` of packed probabilities, `O` of output.
pub(super) struct Consumer<
    'a,
    K: ForwardKernel<Element: WarpgroupElement<A, S, P, O>>,
    const A: usize,
    const S: usize,
    const P: usize,
    const O: usize,
> {
    pipelines: Pipelines<K>,
    p: &'a ForwardParams,
    o_map: u64,
    warpgroup: u32,
    lane: u32,
    scale: Scale,
    key_range: KeyRange,
    scheduler: WarpSchedulerBarrier<QueryTile<K>>,
    units: <K::Element as WarpgroupElement<A, S, P, O>>::Units,
}

impl<'a, E, K, const A: usize, const S: usize, const P: usize, const O: usize>
    Consumer<'a, K, A, S, P, O>
where
    K: ForwardKernel<Element = E>,
    E: WarpgroupElement<A, S, P, O>,
    [f32; S]: Wait,
    [f32; O]: Wait,
{
    const QUERY_TILES: QueryTiles = K::TILE.query_tiles();
    const OUTPUT: OutputPath = K::TILE.output();
    const KEY_TILES: KeyTiles = K::TILE.key_tiles();
    const LOOKS_AHEAD: bool = K::TILE.looks_ahead();
    const SENDS_OUTPUT: bool = K::TILE.sends_output(O);
    /// Whether the last product with values comes before the next work tile's first scores.
    const VALUES_FIRST: bool = matches!(Self::OUTPUT, OutputPath::OwnRows);
    const KEEPS_QUERIES: bool = matches!(Self::OUTPUT, OutputPath::QueryTile);
    const HAS_RANGE: bool = !matches!(Self::KEY_TILES, KeyTiles::All);
    const MAY_BE_IDLE: bool = matches!(Self::KEY_TILES, KeyTiles::OwnRangeOrNone);

    /// This warp, of consumer warpgroup `warpgroup`, before its first work tile.
    ///
    /// # Safety
    /// All threads of all consumer warpgroups call it, once.
    #[inline(always)]
    pub unsafe fn new(
        pipelines: Pipelines<K>,
        p: &'a ForwardParams,
        o_map: u64,
        warpgroup: u32,
        units: E::Units,
    ) -> Self {
        Consumer {
            pipelines,
            p,
            o_map,
            warpgroup,
            lane: pipelines.lane,
            scale: Scale::new::<E>(p),
            scheduler: WarpSchedulerBarrier::new(warpgroup),
            key_range: KeyRange::of_this_warp(pipelines.storage.key_ranges),
            units,
        }
    }

    /// Computes work tiles until there are none left.
    ///
    /// # Safety
    /// All threads of the warpgroup call it together.
    #[inline(always)]
    pub unsafe fn consume(&mut self) {
        let mut next = Next::Unknown;
        loop {
            while next != Next::Work {
                if next == Next::End {
                    return;
                }
                if next == Next::Idle {
                    self.pipelines.skip_work_tile();
                }
                next = self.next_work_tile();
            }
            let mut tile = self.first_scores();
            // Whether the output of the work tile before is still being sent.
            let mut is_sending = false;
            loop {
                let last = self.mainloop(&mut tile, is_sending);
                next = self.last_step(&mut tile);
                self.epilogue(&mut tile, last, next);
                if !Self::LOOKS_AHEAD || next != Next::Work {
                    break;
                }
                is_sending = true;
            }
            if Self::LOOKS_AHEAD && !Self::MAY_BE_IDLE {
                return;
            }
        }
    }

    /// Waits for the next work tile with a key tile; those without one are written here.
    #[inline(always)]
    unsafe fn next_work_tile(&mut self) -> Next {
        loop {
            let work_tile = self.pipelines.wait_for_work_tile();
            // The last message has none.
            let tiles = work_tile.tiles();
            if tiles.begin < tiles.end {
                let is_idle = Self::MAY_BE_IDLE && !work_tile.has_row(WARPGROUP_ROWS * self.warpgroup);
                return if is_idle { Next::Idle } else { Next::Work };
            }
            if work_tile.is_end() {
                return Next::End;
            }
            let place = lane_and_row();
            let block = work_tile.block(self.p, Self::QUERY_TILES);
            let is_split = is_split(self.p, K::QUERIES);
            write_dead::<E, O>(self.p, is_split, &self.scale, &block, place);
            self.pipelines.discard_work_tile(place.0);
        }
    }

    /// Waits for a query tile, and for the first of its key tiles that this warpgroup sees.
    #[inline(always)]
    unsafe fn receive(&mut self) -> Queries<A> {
        let work_tile = self.pipelines.work_tile();
        let q = self.pipelines.wait_for_queries(self.warpgroup);
        if self.has_range() {
            let first_row = WARPGROUP_ROWS * self.warpgroup;
            let range = work_tile.tiles_of_rows(
                self.p,
                Self::QUERY_TILES,
                first_row,
                K::KEYS,
                const { K::TILE.most_trailing() },
            );
            self.key_range.keep(range, self.lane);
            self.pipelines.skip_keys(self.key_range.leading(work_tile));
        }
        self.pipelines.wait_for_keys();
        q
    }

    /// The first scores of a work tile for which nothing was started before: `s = q k(last)^T`.
    #[inline(always)]
    unsafe fn first_scores(&mut self) -> Accumulators<E::Scores, E::Output, A, P> {
        let q = self.receive();
        let mut scores =
            E::start_scores::<QueryTile<K>>(&q, self.pipelines.key(), &self.pipelines.no_slopes());
        self.pipelines.release_loaded_queries::<A>(self.lane == 0);
        scores.finish::<0>();
        self.pipelines.release_keys(self.lane == 0);
        self.pipelines.keys.advance();
        Accumulators { q, scores, probabilities: [0; P], output: E::Output::new() }
    }

    /// The softmax of the first key tile, whose scores are there, then the other key tiles, in their order:
    /// the products of one run beside the softmax of the one before.
    #[inline(always)]
    unsafe fn mainloop(
        &mut self,
        t: &mut Accumulators<E::Scores, E::Output, A, P>,
        is_sending: bool,
    ) -> Last<K> {
        let range = self.key_tiles();
        let mut tile = self.first_key_tile(&range);
        let (mut first, mut shows_all) = (range.begin, false);
        if self.pipelines.skips_key_tiles() {
            let visited = self.pipelines.first_visited();
            (first, shows_all) = (visited.last(), visited.shows_all);
        }
        let turn = Turn::new(&range, tile);
        t.output.restart();
        self.pipelines.open_bias(self.p, Self::SENDS_OUTPUT);
        self.pipelines.fetch_bias(self.p, tile);
        let mut softmax = OnlineSoftmax::<2>::new(self.p.is_exact());
        self.keep_unit();
        let mut slopes = self.pipelines.slope_rows(self.p);
        self.apply(t.scores.values(), tile, &range, shows_all, false);
        let estimates = K::TILE.estimates_row_max();
        t.probabilities =
            first_probabilities::<E, S, P>(estimates, &mut softmax, t.scores.values(), &self.scale);
        self.pipelines.drop::<S, P>(self.p, &mut t.probabilities, tile);
        if Self::SENDS_OUTPUT && Self::KEEPS_QUERIES {
            // Nobody waits for this now: beside the exponentials its rows have been read.
            let sent = self.pipelines.queries.previous();
            self.pipelines.release_sent_queries(&sent, self.lane == 0 && is_sending);
        }
        self.skip_leading_values();
        if E::OUTPUT_FIRST && !turn.is_last(tile, first) {
            self.add_output(t);
        }
        while !turn.is_last(tile, first) {
            tile = turn.next(tile);
            if self.pipelines.skips_key_tiles() {
                let visited = self.pipelines.wait_for_visited();
                (tile, first, shows_all) = (visited.tile, visited.last(), visited.shows_all);
            } else {
                self.pipelines.wait_for_keys();
            }
            self.pipelines.fetch_bias(self.p, tile);
            let (mut step, mut has_slopes) = (self.pipelines.no_slopes(), false);
            if self.pipelines.multiplies_slopes() {
                (step, has_slopes) = self.pipelines.slopes(self.p, &mut slopes, tile);
            }
            if !E::OUTPUT_FIRST {
                self.scheduler.wait();
            }
            t.scores = E::start_scores::<QueryTile<K>>(&t.q, self.pipelines.key(), &step);
            if !E::OUTPUT_FIRST {
                self.start_output(t);
            }
            self.scheduler.pass();
            let range = self.key_tiles();
            if !self.pipelines.skips_key_tiles() {
                first = range.begin;
            }
            if E::OUTPUT_FIRST {
                t.scores.finish::<0>();
            } else {
                t.scores.finish::<1>();
            }
            self.pipelines.release_keys(self.lane == 0);
            self.pipelines.keys.advance();
            self.apply(t.scores.values(), tile, &range, shows_all, has_slopes);

            if !E::OUTPUT_FIRST {
                self.finish_output(t);
            }
            let rescale;
            (t.probabilities, rescale) =
                softmax.probabilities::<MmaFragment, E, S, P>(t.scores.values(), &self.scale);
            self.pipelines.drop::<S, P>(self.p, &mut t.probabilities, tile);
            rescale.apply::<MmaFragment, O>(t.output.values());
            // At the end of a round: the assembler would put it off behind the scores otherwise.
            if E::OUTPUT_FIRST && !turn.is_last(tile, first) {
                self.add_output(t);
            }
        }
        self.leave(first, softmax)
    }

    /// Computes `o += p v` of the key tile before, and keeps the turn for the scores of the next one.
    #[inline(always)]
    unsafe fn add_output(&mut self, t: &mut Accumulators<E::Scores, E::Output, A, P>) {
        self.scheduler.wait();
        self.start_output(t);
        self.finish_output(t);
    }

    /// Starts `o += p v` of the key tile before.
    #[inline(always)]
    unsafe fn start_output(&self, t: &mut Accumulators<E::Scores, E::Output, A, P>) {
        self.pipelines.wait_for_values();
        E::start_output(&mut t.output, &t.probabilities, self.pipelines.value());
    }

    /// Waits for it, and releases its values.
    #[inline(always)]
    unsafe fn finish_output(&mut self, t: &mut Accumulators<E::Scores, E::Output, A, P>) {
        E::finish_output::<0>(&mut t.output);
        self.pipelines.release_values(self.lane == 0);
        self.pipelines.values.advance();
    }

    /// Skips the values of leading key tiles, and the turns of their products.
    #[inline(always)]
    unsafe fn skip_leading_values(&mut self) {
        if self.has_range() {
            let leading = self.key_range.leading(self.pipelines.work_tile());
            self.pipelines.skip_values(leading, self.lane);
            self.scheduler.skip(leading);
        }
    }

    /// Scores of the products of key tile `tile`, of which the boolean mask may show all, and which may have
    /// their penalties of ALiBi.
    #[inline(always)]
    unsafe fn apply(
        &self,
        scores: &mut [f32; S],
        tile: i32,
        range: &TileRange,
        shows_all: bool,
        has_slopes: bool,
    ) {
        E::Units::apply(E::Units::load(self.key_range.unit()), scores);
        let hides = (range.is_masked(tile), shows_all);
        self.pipelines.apply((self.p, &self.scale), scores, tile, hides, has_slopes);
    }

    /// Keeps what scores of the work tile are in units of.
    #[inline(always)]
    unsafe fn keep_unit(&self) {
        let block = || self.pipelines.work_tile().block(self.p, Self::QUERY_TILES);
        let unit = self.units.of_scores(|| (block().sequence.batch, block().head));
        E::Units::keep(unit, self.key_range.unit(), self.lane);
    }

    /// Takes leave of a work tile's message, and of its queries, unless its output leaves through them.
    /// `first` is the last key tile that was visited.
    #[inline(always)]
    unsafe fn leave(&mut self, first: i32, softmax: OnlineSoftmax<2>) -> Last<K> {
        let work_tile = self.pipelines.work_tile();
        if !Self::KEEPS_QUERIES {
            self.pipelines.release_shared_queries::<A>(self.lane == 0);
        }
        let query = self.pipelines.queries;
        self.pipelines.queries.advance();
        let block = work_tile.block(self.p, Self::QUERY_TILES);
        if self.has_range() {
            self.key_range.keep_trailing(work_tile, first, self.lane);
        }
        if Self::SENDS_OUTPUT && Self::VALUES_FIRST && self.lane == 0 {
            // What left through the rows that this output will leave through.
            bulk_copy::wait_read::<0>();
        }
        self.pipelines.discard_work_tile(self.lane);
        Last { block, query, softmax }
    }

    /// Starts `o += p v(first)`, and `s = q' k'(last)^T` of the next work tile, of which it gives what comes.
    #[inline(always)]
    unsafe fn last_step(&mut self, t: &mut Accumulators<E::Scores, E::Output, A, P>) -> Next {
        let mut next = Next::Unknown;
        if const { K::TILE.waits_for_values_first() } {
            self.pipelines.wait_for_values();
        }
        if Self::VALUES_FIRST {
            E::start_output(&mut t.output, &t.probabilities, self.pipelines.value());
        }
        if self.has_range() {
            let trailing = self.key_range.trailing();
            self.pipelines.skip_keys(trailing);
            self.scheduler.skip(trailing);
        }
        if Self::LOOKS_AHEAD {
            next = self.next_work_tile();
            if next == Next::Work {
                t.q = self.receive();
            }
            self.scheduler.wait();
            // Without a next work tile: any product, of no consequence, of a tile that nobody writes to. A
            // branch around it would make the assembler wait for each product.
            let tile = if next == Next::Work {
                self.pipelines.key()
            } else if Self::MAY_BE_IDLE {
                self.pipelines.value()
            } else {
                self.pipelines.storage.key(0).descriptor(0)
            };
            if next != Next::Work && !Self::KEEPS_QUERIES {
                t.q.leave(tile);
            }
            t.scores = E::start_scores::<QueryTile<K>>(&t.q, tile, &self.pipelines.no_slopes());
        }
        if const { !K::TILE.waits_for_values_first() } {
            self.pipelines.wait_for_values();
        }
        if !Self::VALUES_FIRST {
            E::start_output(&mut t.output, &t.probabilities, self.pipelines.value());
        }
        if Self::LOOKS_AHEAD {
            self.scheduler.pass();
            self.pipelines.release_loaded_queries::<A>(self.lane == 0 && next == Next::Work);
        }
        next
    }

    /// Writes lse and output of a work tile, and waits for the next one's first scores.
    #[inline(always)]
    unsafe fn epilogue(
        &mut self,
        t: &mut Accumulators<E::Scores, E::Output, A, P>,
        last: Last<K>,
        next: Next,
    ) {
        let (lane, row) = lane_and_row();
        let is_split = is_split(self.p, K::QUERIES);
        let finished =
            finalize::<E, O>(self.p, is_split, &last.softmax, &self.scale, &last.block, (lane, row));
        let target = last.block.o_of_heads::<2>(self.p).now();
        // Scores that are still on their way use one of the two tiles.
        if Self::VALUES_FIRST {
            E::finish_output::<1>(&mut t.output);
        } else {
            E::finish_output::<0>(&mut t.output);
        }
        self.pipelines.release_values(lane == 0 && (!Self::VALUES_FIRST || next == Next::Work));
        if Self::LOOKS_AHEAD && !Self::VALUES_FIRST {
            t.scores.finish::<0>();
            self.pipelines.release_keys(lane == 0 && next == Next::Work);
        }
        let output = t.output.values();
        self.units.tell_loss(|| last.softmax.has_lost::<MmaFragment, O>(output));
        finished.normalisation.apply::<MmaFragment, O>(output);
        let key_head = || (last.block.sequence.batch, last.block.score_place(self.p).key_head);
        E::Units::apply(self.units.of_output(key_head), output);
        add_previous(self.p, &last.block, (lane, row), output, &finished.of_previous);
        if E::BYTES == 4 || self.p.output_f32 != 0 {
            let target = last.block.o_of_heads::<4>(self.p);
            store::store_pairs::<E, O, true>(lane, output, row, 0, &target, true);
        } else if self.p.value_dim % 8 != 0 {
            store::store_pairs::<E, O, true>(lane, output, row, 0, &target, false);
        } else if const { !matches!(Self::OUTPUT, OutputPath::Registers) } {
            // The warp has met since it read what was there: when it discarded the message. Products of the
            // queries that stand there are those of all four warps.
            if Self::KEEPS_QUERIES {
                barrier::sync(1 + self.warpgroup, 128);
            }
            let (rows, sends) = (self.pipelines.output_rows(&last.query), Self::SENDS_OUTPUT);
            let place = (lane, row);
            let (p, map, block) = (self.p, self.o_map, &last.block);
            write_output::<E, _, O>(p, map, sends, block, place, output, rows, &target);
        } else {
            store::store_exchanged::<E, O>(lane, output, row, &target);
        }
        if Self::VALUES_FIRST {
            t.scores.finish::<0>();
            if next == Next::Work {
                self.pipelines.release_keys(lane == 0);
            } else {
                self.pipelines.release_last_values(lane == 0);
            }
        }
        self.release_output(&last.query, next, lane == 0);
        self.pipelines.values.advance();
        if self.has_range() {
            self.pipelines.skip_values(self.key_range.trailing(), lane);
        }
        // Two warpgroups never go on behind another message than work: without a condition the assembler
        // sees that stages are uniform.
        if Self::LOOKS_AHEAD && (!Self::MAY_BE_IDLE || next == Next::Work) {
            self.pipelines.keys.advance();
        }
    }

    /// Releases the query tile that an output left through; one that is being sent beside the next work tile
    /// only when that has begun.
    #[inline(always)]
    unsafe fn release_output(&self, query: &Cursor<QueryStages<K>>, next: Next, by_this_lane: bool) {
        if Self::SENDS_OUTPUT {
            if next != Next::Work && by_this_lane {
                bulk_copy::wait_read::<0>();
                if Self::KEEPS_QUERIES {
                    self.pipelines.storage.queries.release(query);
                }
            }
        } else if Self::KEEPS_QUERIES {
            self.pipelines.release_written_queries(query, by_this_lane);
        }
    }

    /// Whether this warpgroup has a range of key tiles of its own. Where some are skipped it visits all that
    /// the producer brings.
    #[inline(always)]
    fn has_range(&self) -> bool {
        Self::HAS_RANGE && !self.pipelines.skips_key_tiles()
    }

    /// The one of `range`, its key tiles, that comes first.
    #[inline(always)]
    unsafe fn first_key_tile(&self, range: &TileRange) -> i32 {
        if !specialize::alibi() || self.pipelines.skips_key_tiles() {
            return range.end - 1;
        }
        let block = self.pipelines.work_tile().block(self.p, Self::QUERY_TILES);
        block.first_key_tile(self.p, K::QUERIES, K::KEYS, range)
    }

    /// The key tiles of this warpgroup.
    #[inline(always)]
    unsafe fn key_tiles(&self) -> TileRange {
        if self.has_range() { self.key_range.load() } else { self.pipelines.work_tile().tiles() }
    }
}
