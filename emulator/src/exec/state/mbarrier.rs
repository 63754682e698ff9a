//! Memory barriers of a block: `mbarrier`.
//!
//! A barrier is an object at a shared address. A phase completes when the awaited arrivals have come and
//! as many bytes have landed as were announced; the next one begins at once. The emulator keeps the
//! objects apart from the bytes that they occupy, which belong to nobody else while they live.

use std::collections::BTreeMap;

/// Bytes of a barrier.
pub const MBARRIER_BYTES: u32 = 8;
/// Most arrivals of a phase.
const MAX_COUNT: u32 = (1 << 20) - 1;
/// Most bytes announced and not landed, or landed and not announced.
const MAX_TRANSACTIONS: i64 = (1 << 20) - 1;
/// Marks a token in its upper bits, so that a program's other numbers are none. Below them are the arrivals
/// that the phase awaited, in 20 bits, and its number.
const TOKEN: u64 = 0x6d6 << 52;
const TOKEN_MASK: u64 = 0xfff << 52;

/// One barrier.
#[derive(Clone, Copy, Debug)]
pub struct Mbarrier {
    /// Arrivals that each phase awaits.
    pub expected: u32,
    /// Arrivals that this phase still awaits.
    pub pending: u32,
    /// Bytes announced and not landed.
    pub transactions: i64,
    /// Phases completed.
    pub phase: u32,
}

/// The barriers of a block, by address.
#[derive(Debug, Default)]
pub struct Mbarriers {
    barriers: BTreeMap<u32, Mbarrier>,
    /// Barriers at which something happened, whose waiters must look again.
    pub woken: Vec<u32>,
}

/// What happened is not allowed; why.
pub type Misuse<T> = Result<T, String>;

impl Mbarriers {
    /// The barrier at an address.
    pub fn get(&self, address: u32) -> Option<&Mbarrier> {
        self.barriers.get(&address)
    }

    /// The barriers in the order of their addresses.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Mbarrier)> {
        self.barriers.iter().map(|(&address, barrier)| (address, barrier))
    }

    fn find(&mut self, address: u32) -> Misuse<&mut Mbarrier> {
        let barrier = self.barriers.get_mut(&address);
        barrier.ok_or_else(|| format!("there is no mbarrier at {address:#x}: it was not initialised"))
    }

    /// Makes a barrier.
    pub fn init(&mut self, address: u32, count: u32) -> Misuse<()> {
        if !(1..=MAX_COUNT).contains(&count) {
            return Err(format!("an mbarrier awaits 1 to {MAX_COUNT} arrivals, not {count}"));
        }
        let near = self.barriers.range(address.saturating_sub(MBARRIER_BYTES - 1)..).next();
        if let Some((&other, _)) = near.filter(|(other, _)| **other < address + MBARRIER_BYTES) {
            return Err(format!("the mbarrier at {other:#x} was not invalidated"));
        }
        let barrier = Mbarrier { expected: count, pending: count, transactions: 0, phase: 0 };
        self.barriers.insert(address, barrier);
        Ok(())
    }

    /// Ends a barrier.
    pub fn invalidate(&mut self, address: u32) -> Misuse<()> {
        self.find(address)?;
        self.barriers.remove(&address);
        Ok(())
    }

    /// Announces bytes.
    pub fn expect(&mut self, address: u32, bytes: u32) -> Misuse<()> {
        let barrier = self.find(address)?;
        barrier.transactions += i64::from(bytes);
        if barrier.transactions > MAX_TRANSACTIONS {
            let bytes = barrier.transactions;
            return Err(format!("{bytes} bytes are awaited at once, more than {MAX_TRANSACTIONS}"));
        }
        self.settle(address)
    }

    /// Counts bytes as landed.
    pub fn complete(&mut self, address: u32, bytes: u32) -> Misuse<()> {
        let barrier = self.find(address)?;
        barrier.transactions -= i64::from(bytes);
        if barrier.transactions < -MAX_TRANSACTIONS {
            let bytes = -barrier.transactions;
            return Err(format!("{bytes} bytes landed that were not announced"));
        }
        self.settle(address)
    }

    /// Counts arrivals; the token of their phase. `drop`: later phases await as many less.
    pub fn arrive(&mut self, address: u32, count: u32, drop: bool) -> Misuse<u64> {
        let barrier = self.find(address)?;
        if count == 0 || count > barrier.pending {
            let Mbarrier { pending, phase, transactions, .. } = *barrier;
            return Err(format!(
                "{count} arrivals at {address:#x}, where phase {phase} awaits {pending} more \
                 and {transactions} bytes"
            ));
        }
        let token = TOKEN | u64::from(barrier.pending) << 32 | u64::from(barrier.phase);
        barrier.pending -= count;
        if drop {
            barrier.expected -= count;
        }
        self.settle(address)?;
        Ok(token)
    }

    /// The phase awaits one arrival more.
    pub fn await_more(&mut self, address: u32) -> Misuse<()> {
        let barrier = self.find(address)?;
        if barrier.pending == MAX_COUNT {
            return Err(format!("a phase awaits no more than {MAX_COUNT} arrivals"));
        }
        barrier.pending += 1;
        Ok(())
    }

    /// Looks for the barrier, at which nothing changes.
    pub fn touch(&mut self, address: u32) -> Misuse<()> {
        self.find(address).map(|_| ())
    }

    fn settle(&mut self, address: u32) -> Misuse<()> {
        let barrier = self.find(address)?;
        if barrier.pending == 0 && barrier.transactions == 0 {
            barrier.phase += 1;
            barrier.pending = barrier.expected;
        }
        self.woken.push(address);
        Ok(())
    }

    /// Whether the current or the last phase, whichever has this parity, is complete.
    pub fn parity_complete(&mut self, address: u32, parity: u32) -> Misuse<bool> {
        if parity > 1 {
            return Err(format!("a phase has parity 0 or 1, not {parity}"));
        }
        Ok(self.find(address)?.phase & 1 != parity)
    }

    /// Whether the phase of a token is complete.
    pub fn token_complete(&mut self, address: u32, token: u64) -> Misuse<bool> {
        let phase = self.find(address)?.phase;
        if token & TOKEN_MASK != TOKEN || ![phase, phase.wrapping_sub(1)].contains(&(token as u32)) {
            return Err(format!("{token:#x} is no token of the current or the last phase, {phase}"));
        }
        Ok(phase != token as u32)
    }

    /// Whether the current phase lacks nothing but bytes.
    pub fn awaits_bytes(&self, address: u32) -> bool {
        self.barriers.get(&address).is_some_and(|barrier| barrier.pending == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_completes_with_the_last_arrival_and_the_last_byte() {
        let mut all = Mbarriers::default();
        all.init(1024, 2).unwrap();
        let token = all.arrive(1024, 1, false).unwrap();
        all.expect(1024, 16).unwrap();
        all.arrive(1024, 1, false).unwrap();
        assert!(!all.token_complete(1024, token).unwrap());
        assert!(all.awaits_bytes(1024));
        assert!(all.arrive(1024, 1, false).is_err());
        all.complete(1024, 16).unwrap();
        assert!(all.token_complete(1024, token).unwrap());
        assert!(all.parity_complete(1024, 0).unwrap());
        assert!(!all.parity_complete(1024, 1).unwrap());
        all.arrive(1024, 2, false).unwrap();
        assert!(all.token_complete(1024, token).is_err());
    }

    #[test]
    fn barriers_do_not_overlap() {
        let mut all = Mbarriers::default();
        all.init(1032, 1).unwrap();
        assert!(all.init(1032, 1).is_err());
        assert!(all.init(1028, 1).is_err());
        all.init(1040, 1).unwrap();
        all.init(1024, 1).unwrap();
        all.invalidate(1032).unwrap();
        assert!(all.invalidate(1032).is_err());
        all.init(1032, 1).unwrap();
        assert!(all.init(1048, 0).is_err());
    }
}
