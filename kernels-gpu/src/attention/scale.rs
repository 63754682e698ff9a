//! The softmax scale, ready for use.

/// `scale` as the kernels use it: a positive factor for scores in powers of two, and a factor -1, 0 or 1
/// for q.
///
/// The online maximum is taken of unscaled scores, which is right for positive scales only.
#[derive(Clone, Copy)]
pub struct Scale {
    /// `|scale|`, or 1 when scale is 0.
    pub natural: f32,
    /// The same times `log2(e)`.
    pub log2: f32,
    /// What q is multiplied by, exactly.
    pub q_factor: f32,
}

impl Scale {
    /// Splits `scale`, which is finite.
    #[inline(always)]
    pub fn new(scale: f32) -> Self {
        let (natural, q_factor) = if scale > 0.0 {
            (scale, 1.0)
        } else if scale < 0.0 {
            (-scale, -1.0)
        } else {
            (1.0, 0.0)
        };
        Scale { natural, log2: natural * core::f32::consts::LOG2_E, q_factor }
    }
}
