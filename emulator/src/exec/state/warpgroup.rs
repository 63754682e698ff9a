//! What four warps have to do alike: the steps of a warpgroup, and its share of the registers.

use crate::module::KernelData;
use std::collections::VecDeque;

/// Warps of a warpgroup.
pub const WARPS: u32 = 4;
/// Registers of a multiprocessor, per thread of a warp.
const REGISTERS: u32 = 65536 / 32;
/// Most registers of a thread.
const MAX_REGISTERS: u32 = 255;

/// An instruction that all warps of a warpgroup execute in the same order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    pub pc: u32,
    /// Operands that must agree.
    pub operands: [u64; 2],
    pub accumulates: bool,
}

/// The steps that not all warps of a warpgroup have executed.
#[derive(Clone, Debug, Default)]
struct Log {
    steps: VecDeque<Step>,
    /// The number of the first of them.
    first: u64,
    /// The number of each warp's next step.
    next: [u64; WARPS as usize],
}

/// The warpgroups of a cluster.
#[derive(Debug, Default)]
pub struct Warpgroups {
    logs: Vec<Log>,
    /// Registers of each warp's threads.
    registers: Vec<u32>,
    /// Registers that nobody has, of each block.
    free: Vec<u32>,
    /// Warps of a block.
    of_block: u32,
    /// Whether registers became free, so that those who wait must look again.
    pub woken: bool,
}

impl Warpgroups {
    /// Those of so many blocks, each of so many warps, whose numbers are so far from those of the next.
    pub fn new(kernel: &KernelData, warps: u32, (blocks, of_block): (u32, u32)) -> Self {
        let each = registers_at_start(kernel, warps);
        let warps = blocks * of_block;
        Warpgroups {
            logs: vec![Log::default(); warps.div_ceil(WARPS) as usize],
            registers: vec![each; warps as usize],
            free: vec![0; blocks as usize],
            of_block,
            woken: false,
        }
    }

    /// Notes a warp's step. An error is the step that another warp took in its place.
    pub fn step(&mut self, warp: u32, step: Step) -> Result<(), Step> {
        let log = &mut self.logs[(warp / WARPS) as usize];
        let next = log.next[(warp % WARPS) as usize];
        match log.steps.get((next - log.first) as usize) {
            Some(&other) if other != step => return Err(other),
            Some(_) => {}
            None => log.steps.push_back(step),
        }
        log.next[(warp % WARPS) as usize] += 1;
        let all = log.next.iter().copied().min().unwrap_or(0);
        while log.first < all {
            log.steps.pop_front();
            log.first += 1;
        }
        Ok(())
    }

    /// The first step that not all warps of a warpgroup took, and a warp that did not.
    pub fn unfinished(&self) -> Option<(Step, u32)> {
        self.logs.iter().enumerate().find_map(|(index, log)| {
            let step = *log.steps.front()?;
            let behind = log.next.iter().position(|&next| next == log.first)?;
            Some((step, index as u32 * WARPS + behind as u32))
        })
    }

    /// Changes the registers of a warp; false if there are too few for now.
    pub fn set_registers(&mut self, warp: u32, count: u32) -> bool {
        let now = self.registers[warp as usize];
        let free = &mut self.free[(warp / self.of_block) as usize];
        if count > now + *free {
            return false;
        }
        self.woken |= count < now;
        *free = *free + now - count;
        self.registers[warp as usize] = count;
        true
    }

    /// Registers of a warp's threads, and those that nobody has.
    pub fn registers(&self, warp: u32) -> (u32, u32) {
        (self.registers[warp as usize], self.free[(warp / self.of_block) as usize])
    }
}

/// Registers of each thread when a block of so many warps starts, in units of 8: `.maxnreg`, or else as
/// many as the largest block that may be launched can have, so often as the kernel says that it is to fit.
fn registers_at_start(kernel: &KernelData, warps: u32) -> u32 {
    let threads = |sizes: [u32; 3]| sizes.iter().fold(1u32, |all, &size| all.saturating_mul(size));
    let most = kernel.max_threads.map_or(warps, |sizes| threads(sizes).div_ceil(32)).max(warps).max(1);
    let blocks = kernel.min_blocks.unwrap_or(1).max(1);
    let fit = (REGISTERS / most.saturating_mul(blocks)).min(MAX_REGISTERS + 1);
    fit.min(kernel.max_registers.unwrap_or(fit)) / 8 * 8
}
