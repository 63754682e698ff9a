//! How far the warps of other blocks are known to have come.

use std::sync::Arc;

/// The clocks of actors, in their order. Copies share it: they are made at every barrier.
#[derive(Clone, Debug, Default)]
pub struct Knowledge(Option<Arc<Vec<(u32, u32)>>>);

impl Knowledge {
    /// The clock of an actor; 0 if nothing is known.
    pub fn get(&self, actor: u32) -> u32 {
        let Some(known) = &self.0 else { return 0 };
        known.binary_search_by_key(&actor, |entry| entry.0).map_or(0, |place| known[place].1)
    }

    /// Those of which something is known.
    pub fn iter(&self) -> impl Iterator<Item = (u32, u32)> {
        self.0.iter().flat_map(|known| known.iter().copied())
    }

    /// An actor is known to have come so far.
    pub fn raise(&mut self, actor: u32, clock: u32) {
        let known = Arc::make_mut(self.0.get_or_insert_default());
        match known.binary_search_by_key(&actor, |entry| entry.0) {
            Ok(place) => known[place].1 = clock.max(known[place].1),
            Err(place) => known.insert(place, (actor, clock)),
        }
    }

    /// Knows what another one knows; whether that is more than before.
    pub fn join(&mut self, other: &Knowledge) -> bool {
        let Some(theirs) = &other.0 else { return false };
        let Some(mine) = &self.0 else {
            self.0 = Some(theirs.clone());
            return true;
        };
        if Arc::ptr_eq(mine, theirs) {
            return false;
        }
        let joined = merge(mine, theirs);
        if joined == **mine {
            return false;
        }
        self.0 = Some(if joined == **theirs { theirs.clone() } else { Arc::new(joined) });
        true
    }
}

/// What somebody knows of a launch: for accesses of threads, and for those of the asynchronous proxy.
#[derive(Clone, Debug, Default)]
pub struct Foreign {
    /// The first actor whose grid is not known to have ended.
    pub ended: u32,
    /// For accesses of threads.
    pub threads: Knowledge,
    /// For accesses of the asynchronous proxy.
    pub proxy: Knowledge,
}

impl Foreign {
    /// Knows what another one knows; whether that is more than before.
    pub fn join(&mut self, other: &Foreign) -> bool {
        let more = other.ended > self.ended;
        self.ended = self.ended.max(other.ended);
        more | self.threads.join(&other.threads) | self.proxy.join(&other.proxy)
    }
}

fn merge(a: &[(u32, u32)], b: &[(u32, u32)]) -> Vec<(u32, u32)> {
    let mut merged = Vec::with_capacity(a.len().max(b.len()));
    let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
    loop {
        let next = match (a.peek().copied(), b.peek().copied()) {
            (Some((actor, mine)), Some((other, theirs))) if actor == other => {
                b.next();
                a.next();
                (actor, mine.max(theirs))
            }
            (Some(mine), Some(theirs)) if mine.0 < theirs.0 => a.next().unwrap_or(mine),
            (_, Some(theirs)) => b.next().unwrap_or(theirs),
            (Some(mine), None) => a.next().unwrap_or(mine),
            (None, None) => return merged,
        };
        merged.push(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(known: &[(u32, u32)]) -> Knowledge {
        let mut all = Knowledge::default();
        known.iter().for_each(|&(actor, clock)| all.raise(actor, clock));
        all
    }

    #[test]
    fn a_join_knows_the_most_of_each() {
        let mut mine = of(&[(5, 2), (1, 7)]);
        assert!(mine.join(&of(&[(3, 1), (5, 4), (1, 6)])));
        assert_eq!(mine.iter().collect::<Vec<_>>(), [(1, 7), (3, 1), (5, 4)]);
        assert_eq!((mine.get(5), mine.get(4)), (4, 0));
        assert!(!mine.join(&of(&[(3, 1)])) && !mine.join(&Knowledge::default()));
    }

    #[test]
    fn a_join_knows_all_grids_that_either_knows_to_have_ended() {
        let known = |ended| Foreign { ended, ..Foreign::default() };
        let mut mine = known(3);
        assert!(mine.join(&known(5)) && !mine.join(&known(4)));
        assert_eq!(mine.ended, 5);
    }
}
