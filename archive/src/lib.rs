//! Many kernels in one small file, of which any can be read without the others.
//!
//! Kernels of a family are much alike: a file for each, compressed by itself, is three times as large as all
//! of them in one. An [`Archive`] holds members, by name, in blocks that are compressed one by one: those
//! that are most alike share a block, and a reader expands the block of what it reads. [`Texts`] is an
//! archive of PTX, which is first taken apart into lines and numbers (`text`).
//!
//! What [`pack`] and [`pack_texts`] write depends on the members and their order alone: no times, no names of
//! machines.

mod block;
mod bytes;
mod container;
mod lines;
mod recent;
mod text;

#[cfg(feature = "write")]
pub use container::pack;
pub use container::{Archive, Error};
pub use text::Texts;
#[cfg(feature = "write")]
pub use text::pack_texts;
