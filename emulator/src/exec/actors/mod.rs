//! Asynchronous actors: copies and multiplications, from their issue until they happen.

pub mod async_copy;
pub mod bulk;
pub mod reduce;
pub mod wgmma;
