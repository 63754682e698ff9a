//! Which accesses to shared memory are ordered: the hooks of the race shadow.

use super::bulk::{Issuer, Transfer};
use super::context::Context;
use super::warp::Warp;

impl Context<'_> {
    pub fn race_release_to_mbarrier(&mut self, _warp: u32, _address: u32) {}
    pub fn race_acquire_from_mbarrier(&mut self, _warp: u32, _address: u32) {}
    pub fn race_mbarrier_begins(&mut self, _w: &Warp, _lane: u32, _address: u32) {}
    pub fn race_mbarrier_ends(&mut self, _w: &Warp, _lane: u32, _address: u32) {}
    pub fn race_bulk_complete(&mut self, _issuer: Issuer, _left: u32) {}
    pub fn race_bulk_load(&mut self, _transfer: &Transfer, _barrier: u32) {}
    pub fn race_bulk_store(&mut self, _transfer: &Transfer, _group: u32) {}
    pub fn race_wgmma_reads(&mut self, _w: &Warp, _left: Option<usize>, _right: usize, _group: u32) {}
    pub fn race_wgmma_done(&mut self, _w: &Warp, _group: u32) {}
    pub fn race_proxy_fence(&mut self, _warp: u32) {}
}
