//! What is wrong with a pass over some of the keys.

/// Why one of several passes over some of the keys cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PartialError {
    /// Something that scores can have, but not where keys are taken apart: it goes by positions in the whole.
    #[error("{argument}: expected none, since this pass sees some of the keys only, got one")]
    Positions {
        /// Which tensor or option.
        argument: &'static str,
    },
    /// Gradients of keys that are to be added to what is there are not f32.
    #[error("{argument}: expected f32, since it is added to what is there, got {got}")]
    NotAdded {
        /// Which gradient.
        argument: &'static str,
        /// Its dtype.
        got: &'static str,
    },
    /// There are fewer keys in all passes together than in one of them.
    #[error("total_keys: expected {expected} at least, those of this pass, got {got}")]
    TotalKeys {
        /// Keys of a pass.
        expected: u32,
        /// Keys of all of them.
        got: u32,
    },
}
