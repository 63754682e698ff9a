//! Ranks as threads: who talks to whom, and what becomes of those who wait in vain.

use super::{Communicator, LocalCommunicator, Message};
use crate::buffer::{DeviceBuffer, InDeviceMemory as _};
use crate::device::Device;
use crate::driver::Stream;
use crate::error::{Error, Result};
use kernels_gpu::abi::Arch;
use std::thread;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(20);

/// What each rank returns.
fn run<T: Send>(
    ranks: Vec<LocalCommunicator>,
    body: impl Fn(LocalCommunicator) -> Result<T> + Sync,
) -> Vec<Result<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = ranks.into_iter().map(|own| scope.spawn(|| body(own))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// Sends three numbers round until they are back.
fn ring(own: &LocalCommunicator) -> Result<Vec<f32>> {
    let device = Device::emulated(Arch::Sm80)?;
    let (rank, ranks) = (own.rank(), own.ranks());
    let mut here = DeviceBuffer::from_slice(&device, &[rank as f32; 3])?;
    for _ in 0..ranks {
        let next = DeviceBuffer::<f32>::uninitialised(&device, 3)?;
        let send = Message { peer: (rank + 1) % ranks, pointer: here.device_pointer(), bytes: 12 };
        let receive =
            Message { peer: (rank + ranks - 1) % ranks, pointer: next.device_pointer(), bytes: 12 };
        // SAFETY: both buffers live until the exchange is done.
        unsafe { own.exchange(&device, &[send], &[receive], Stream::default()) }?;
        here = next;
    }
    here.to_vec(Stream::default())
}

#[test]
fn what_goes_round_comes_back_whoever_runs_first() {
    for ranks in 1..=5 {
        for seed in 0..20 {
            let results = run(LocalCommunicator::in_turns(ranks, LIMIT, seed), |own| ring(&own));
            for (rank, result) in results.into_iter().enumerate() {
                assert_eq!(result, Ok(vec![rank as f32; 3]));
            }
        }
        let results = run(LocalCommunicator::create(ranks, LIMIT), |own| ring(&own));
        assert!(
            results.into_iter().enumerate().all(|(rank, result)| result == Ok(vec![rank as f32; 3]))
        );
    }
}

fn is_peer<T>(result: &Result<T>, peer: usize, part: &str) -> bool {
    matches!(result, Err(Error::Peer { peer: got, reason, .. }) if *got == peer && reason.contains(part))
}

#[test]
fn a_rank_that_fails_is_an_error_of_every_other_at_once() {
    for scheduled in [false, true] {
        let ranks = if scheduled {
            LocalCommunicator::in_turns(4, LIMIT, 7)
        } else {
            LocalCommunicator::create(4, LIMIT)
        };
        let start = Instant::now();
        let results = run(ranks, |own| {
            own.all_gather(&[1])?;
            if own.rank() == 2 {
                return Err(Error::OutOfMemory { device: "here".to_owned(), bytes: 1 });
            }
            ring(&own).map(|_| ())
        });
        assert!(start.elapsed() < LIMIT / 2);
        assert!(results.iter().all(Result::is_err));
        assert!(is_peer(&results[3], 2, "has failed or ended"), "{results:?}");
        let text = results[3].as_ref().unwrap_err().to_string();
        assert_eq!(text, "rank 3: rank 2 has failed or ended");
    }
}

#[test]
fn a_rank_that_never_comes_is_an_error_within_the_limit() {
    let mut ranks = LocalCommunicator::create(2, Duration::from_millis(50));
    // It is there, and does nothing.
    let _idle = ranks.pop();
    let start = Instant::now();
    let result = ranks[0].all_gather(&[]);
    assert!(is_peer(&result, 1, "has not come within 50ms"), "{result:?}");
    assert!(start.elapsed() < Duration::from_secs(10));
}

#[test]
fn ranks_that_all_wait_are_told_so() {
    let results = run(LocalCommunicator::in_turns(2, LIMIT, 1), |own| {
        let device = Device::emulated(Arch::Sm80)?;
        let memory = DeviceBuffer::<f32>::uninitialised(&device, 1)?;
        let receive = Message { peer: 1 - own.rank(), pointer: memory.device_pointer(), bytes: 4 };
        // SAFETY: the buffer lives until the exchange is done.
        unsafe { own.exchange(&device, &[], &[receive], Stream::default()) }
    });
    assert!(
        results.iter().any(|result| matches!(
            result, Err(Error::Peer { reason, .. }) if reason == "waits, and so does every other rank"
        )),
        "{results:?}"
    );
    assert!(results.iter().all(Result::is_err));
}

#[test]
fn messages_of_other_sizes_and_other_calls_are_refused() {
    let results = run(LocalCommunicator::create(2, LIMIT), |own| {
        let device = Device::emulated(Arch::Sm80)?;
        let memory = DeviceBuffer::from_slice(&device, &[0_f32; 4])?;
        let (peer, pointer) = (1 - own.rank(), memory.device_pointer());
        if own.rank() == 0 {
            let send = Message { peer, pointer, bytes: 8 };
            // SAFETY: the buffer lives until the exchange is done.
            unsafe { own.exchange(&device, &[send], &[], Stream::default()) }
        } else {
            let receive = Message { peer, pointer, bytes: 16 };
            // SAFETY: as above.
            unsafe { own.exchange(&device, &[], &[receive], Stream::default()) }
        }
    });
    assert!(is_peer(&results[1], 0, "sends 8 bytes, expected 16"), "{results:?}");
    assert!(is_peer(&results[0], 1, "has failed or ended"), "{results:?}");
}
