//! Emulated devices that do what is queued late, in any order that streams and marks allow: what must come
//! before something else, and has nothing that says so, sooner or later comes after it.

use super::emulated::EmulatedDriver;
use super::{
    DevicePointer, DeviceProperties, Driver, Mark, Queued, RowsOf, Stream, TensorMapDescription,
};
use crate::error::{Error, Result};
use crate::images::KernelImages;
use kernels_gpu::abi::{Arch, KernelVariant, TensorMap};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

/// What is queued on all devices of a group.
struct Work {
    operations: Vec<Operation>,
    /// Streams of devices whose operations mostly come before those of others: those of large numbers.
    haste: HashMap<(usize, usize), u32>,
    random: StdRng,
    streams: usize,
}

struct Operation {
    device: usize,
    stream: usize,
    /// Those that it waits for.
    behind: Vec<usize>,
    /// What it does; none once it is done.
    work: Option<Box<dyn FnOnce() -> Result<()> + Send>>,
}

/// One of several emulated devices.
pub struct DeferredDriver {
    index: usize,
    properties: DeviceProperties,
    inner: Arc<EmulatedDriver>,
    work: Arc<Mutex<Work>>,
    /// For each stream, what the next operation waits for.
    ends: Mutex<HashMap<usize, Vec<usize>>>,
}

/// A point: the operations that it is behind.
struct Point(Vec<usize>);

impl DeferredDriver {
    /// So many devices of a target, whose order is drawn by `seed`.
    pub fn create(count: usize, arch: Arch, seed: u64) -> Vec<Arc<Self>> {
        let random = StdRng::seed_from_u64(seed);
        let work = Arc::new(Mutex::new(Work {
            operations: Vec::new(),
            haste: HashMap::new(),
            random,
            streams: 0,
        }));
        (0..count)
            .map(|index| {
                let inner = Arc::new(EmulatedDriver::new(arch, KernelImages::embedded()).unwrap());
                let properties = inner.properties().clone();
                let (work, ends) = (work.clone(), Mutex::default());
                Arc::new(DeferredDriver { index, properties, inner, work, ends })
            })
            .collect()
    }

    fn work(&self) -> MutexGuard<'_, Work> {
        self.work.lock().expect("no test goes on behind a panic")
    }

    fn end_of(&self, stream: Stream) -> Vec<usize> {
        self.ends.lock().unwrap().get(&stream.0).cloned().unwrap_or_default()
    }

    fn queue(&self, stream: Stream, work: impl FnOnce() -> Result<()> + Send + 'static) {
        let mut all = self.work();
        let behind = self.end_of(stream);
        let number = all.operations.len();
        let (device, stream_of) = (self.index, stream.0);
        let drawn = all.random.random();
        all.haste.entry((device, stream_of)).or_insert(drawn);
        let work: Option<Box<dyn FnOnce() -> Result<()> + Send>> = Some(Box::new(work));
        all.operations.push(Operation { device, stream: stream_of, behind, work });
        self.ends.lock().unwrap().insert(stream.0, vec![number]);
    }
}

impl Work {
    /// Does what is queued, whatever may come next, until all of `wanted` is done.
    fn run_until(&mut self, wanted: &[usize]) -> Result<()> {
        while wanted.iter().any(|&number| self.operations[number].work.is_some()) {
            let is_done = |number: &usize| self.operations[*number].work.is_none();
            let may_run = |number: &usize| {
                let operation = &self.operations[*number];
                operation.work.is_some() && operation.behind.iter().all(is_done)
            };
            let ready: Vec<usize> = (0..self.operations.len()).filter(may_run).collect();
            // An operation waits only for earlier ones: the earliest that is left may run.
            let mut next = ready[self.random.random_range(0..ready.len())];
            // One stream far ahead of another is rare where each next operation is drawn.
            if self.random.random_range(0..8) > 0 {
                let haste = |number: &&usize| {
                    let Operation { device, stream, .. } = self.operations[**number];
                    self.haste[&(device, stream)]
                };
                next = *ready.iter().max_by_key(haste).expect("there is one");
            }
            let work = self.operations[next].work.take().expect("it is left");
            work()?;
        }
        Ok(())
    }
}

impl Driver for DeferredDriver {
    fn properties(&self) -> &DeviceProperties {
        &self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<DevicePointer> {
        self.inner.allocate(bytes)
    }

    unsafe fn free(&self, pointer: DevicePointer) -> Result<()> {
        let is_used = |operation: &Operation| operation.device == self.index && operation.work.is_some();
        if self.work().operations.iter().any(is_used) && !std::thread::panicking() {
            let reason = "memory is freed before all that is queued is done".to_owned();
            return Err(Error::Emulator { reason });
        }
        // SAFETY: passed on to the caller.
        unsafe { self.inner.free(pointer) }
    }

    fn copy_to_device(&self, destination: DevicePointer, source: &[u8]) -> Result<()> {
        self.inner.copy_to_device(destination, source)
    }

    fn copy_to_host(&self, destination: &mut [u8], source: DevicePointer, stream: Stream) -> Result<()> {
        self.synchronize(stream)?;
        self.inner.copy_to_host(destination, source, stream)
    }

    unsafe fn launch(
        &self,
        variant: KernelVariant,
        blocks: u32,
        params: &[u8],
        stream: Stream,
    ) -> Result<()> {
        // SAFETY: passed on to the caller.
        unsafe { self.launch_in_order(&[Queued { variant, blocks, params }], stream) }
    }

    unsafe fn launch_in_order(&self, queue: &[Queued<'_>], stream: Stream) -> Result<()> {
        let inner = self.inner.clone();
        let owned: Vec<(KernelVariant, u32, Vec<u8>)> =
            queue.iter().map(|queued| (queued.variant, queued.blocks, queued.params.to_vec())).collect();
        self.queue(stream, move || {
            let queue: Vec<Queued<'_>> = owned
                .iter()
                .map(|(variant, blocks, params)| Queued { variant: *variant, blocks: *blocks, params })
                .collect();
            // SAFETY: the caller of `launch_in_order` vouches for memory until it is done.
            unsafe { inner.launch_in_order(&queue, stream) }
        });
        Ok(())
    }

    fn encode_tensor_map(&self, description: &TensorMapDescription) -> Result<TensorMap> {
        self.inner.encode_tensor_map(description)
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        let end = self.end_of(stream);
        self.work().run_until(&end)
    }

    fn create_stream(&self) -> Result<Stream> {
        let mut all = self.work();
        all.streams += 1;
        Ok(Stream(all.streams))
    }

    fn create_stream_of_kernels(&self) -> Result<Stream> {
        self.create_stream()
    }

    fn mark(&self, stream: Stream) -> Result<Mark> {
        Ok(Mark(Some(Arc::new(Point(self.end_of(stream))))))
    }

    fn wait_for_mark(&self, stream: Stream, mark: &Mark) -> Result<()> {
        let point = mark.0.as_ref().and_then(|point| point.downcast_ref::<Point>());
        let Point(behind) = point.expect("a mark of these devices");
        let mut ends = self.ends.lock().unwrap();
        let end = ends.entry(stream.0).or_default();
        end.extend(behind);
        end.sort_unstable();
        end.dedup();
        Ok(())
    }

    unsafe fn copy_from_peer(
        &self,
        destination: DevicePointer,
        (peer, source): (&dyn Driver, DevicePointer),
        bytes: usize,
        stream: Stream,
    ) -> Result<()> {
        let theirs = peer.as_deferred().expect("a device of the same group").inner.clone();
        let own = self.inner.clone();
        self.queue(stream, move || {
            let mut copied = vec![0; bytes];
            theirs.copy_to_host(&mut copied, source, Stream::default())?;
            own.copy_to_device(destination, &copied)
        });
        Ok(())
    }

    unsafe fn copy_rows(
        &self,
        destination: RowsOf,
        source: RowsOf,
        size: [usize; 2],
        stream: Stream,
    ) -> Result<()> {
        let own = self.inner.clone();
        self.queue(stream, move || {
            // SAFETY: passed on to the caller.
            unsafe { own.copy_rows(destination, source, size, Stream::default()) }
        });
        Ok(())
    }

    fn as_deferred(&self) -> Option<&DeferredDriver> {
        Some(self)
    }
}
