//! The cap of scores.

use super::MAX_SCALE;
use crate::error::{Error, Result};

/// A softcap as the kernels use it: `s = cap tanh(factor q . k)`, which is `cap tanh(scale q . k / cap)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Softcap {
    /// The cap, above 0, of at most [`MAX_SCALE`].
    pub cap: f32,
    /// `scale / cap`, with its sign, rounded once: 0 only where the scale is, else a normal number.
    pub factor: f32,
}

impl Softcap {
    /// The cap of scores `scale q . k`.
    ///
    /// # Errors
    /// [`Error::Softcap`], [`Error::SoftcapFactor`].
    pub(super) fn new(cap: f32, scale: f32) -> Result<Self> {
        if cap.is_nan() || cap <= 0.0 || cap > MAX_SCALE {
            return Err(Error::Softcap { got: cap });
        }
        let factor = (f64::from(scale) / f64::from(cap)) as f32;
        if scale == 0.0 || factor.is_normal() {
            Ok(Softcap { cap, factor })
        } else {
            Err(Error::SoftcapFactor { scale, got: cap })
        }
    }
}
