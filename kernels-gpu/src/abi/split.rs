//! Parameters of the kernels that make two f16 parts of f32, and of those that multiply them.

use super::{BackwardParams, ForwardHopperParams, ForwardParams, TensorView};

/// Threads of a block of the kernels that measure and split operands.
pub const SPLIT_THREADS: u32 = 256;
/// Rows of one head that a block of them takes.
pub const SPLIT_ROWS: u32 = 128;
/// Columns that they know.
pub const SPLIT_COLUMNS: u32 = 128;
/// Words of a [record](SplitTensor::records).
pub const SPLIT_RECORD_WORDS: u32 = 2 + SPLIT_COLUMNS;
/// Operands of a launch: q, k and v, and dO, which a forward has not.
pub const SPLIT_TENSORS: usize = 4;

/// The exponent field, as f32 has it, that the largest number of a head is brought to: 2^14, so that every
/// number is below 2^15.
pub const SPLIT_EXPONENT: u32 = 127 + 14;
/// The smallest exponent field of the largest number of a head that is split: 2^-100. What it is multiplied
/// by is then a normal number.
pub const SPLIT_LEAST_EXPONENT: u32 = 127 - 100;
/// How far, in powers of two, the least of the largest numbers of rows of v and the least of those of its
/// columns, both together, may be below the largest number of the head: numbers down to 2^-17 of that are as
/// exact as f32, and a row of the output has some in 2^-3 of the largest.
pub const SPLIT_SPREAD: u32 = 14;
/// The largest bound of dp, `Dv max|dO| max|v|` of a head, for which operands of a backward are split: 2^120.
pub const SPLIT_MOST_DP: f32 = (1u128 << 120) as f32;
/// The largest bound of scores, `|scale| D max|q| max|k|` of a head, for which operands are split. Parts are
/// off by up to 2^-24 of a number, and a product by 2^-23 of the largest one of its head: less than f32
/// rounds a sum of many products of a size by, and more than it does one that is a single large product.
/// Logits that are normally distributed, of a deviation of 30, are below the bound.
pub const SPLIT_MOST_SCORE: f32 = 10_000.0;

/// An operand that is split: `[B, rows, heads, columns]`, f32.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SplitTensor {
    /// The tensor.
    pub tensor: TensorView,
    /// Device address of its parts, f16 `[B, heads, rows, 2, padded columns]`, aligned to 16: of each row the
    /// high parts, then the low ones, each times the factor of the head; 0 in columns that the tensor lacks.
    pub parts: u64,
    /// Device address of u32 `[B, heads, chunks, SPLIT_RECORD_WORDS]`: of [`SPLIT_ROWS`] rows each the bits
    /// of the largest size, the complement of those of the least of the largest sizes of rows that are not
    /// all 0 (0 without such a row), and the bits of the largest size in each column.
    pub records: u64,
    /// Rows.
    pub rows: u32,
    /// Heads.
    pub heads: u32,
    /// Columns.
    pub columns: u32,
    /// Blocks of a head: rows by [`SPLIT_ROWS`], rounded up.
    pub chunks: u32,
    /// The first block of the tensor.
    pub first_block: u32,
    /// Nothing.
    pub reserved: u32,
}

/// Parameters of both kernels of a split, passed by value as the only kernel parameter: the first one
/// measures, the second one splits.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SplitParams {
    /// q, k and v; of a backward dO, of a forward one without blocks.
    pub tensors: [SplitTensor; SPLIT_TENSORS],
    /// Device address of f32 `[B, Hq]`: what makes scores of products of parts.
    pub score_factors: u64,
    /// Device address of f32 `[B, Hk]`: what makes output of products of probabilities and parts.
    pub value_factors: u64,
    /// Of a backward, device address of f32 `[B, Hq, 2, 4]`, aligned to 16, else 0: what makes scores of
    /// products of parts, and what a number of dO is in units of; what makes dp of products of parts, and
    /// what a number of q, and one of k, is in units of. What is left is nothing. Other factors are those of
    /// a forward, and 0 here.
    pub gradient_units: u64,
    /// Device address of two u32, aligned to 8: how often it was seen that parts of operands are not as
    /// exact as f32 is, and how often, by the kernel that multiplies them, that the output is not. The
    /// first kernel sets both to 0.
    pub turn: u64,
    /// Columns of parts, those of a kernel that multiplies them: 64 or 128.
    pub padded_columns: u32,
    /// Hq / Hk.
    pub group_size: u32,
    /// The largest `max|q| max|k|` of a head: [`SPLIT_MOST_SCORE`] over `|scale| D`; infinity where the
    /// scale is 0.
    pub most_product: f32,
    /// Of a backward, the largest `max|dO| max|v|` of a head: dp and its sums are far from the end of f32.
    pub most_gradient_product: f32,
}

/// What the kernels that multiply parts are told of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SplitFactors {
    /// As [`SplitParams::score_factors`].
    pub score_factors: u64,
    /// As [`SplitParams::value_factors`].
    pub value_factors: u64,
    /// As [`SplitParams::turn`]: the first number not 0, and the kernel does nothing.
    pub turn: u64,
    /// Hq.
    pub query_heads: u32,
    /// Hk.
    pub key_heads: u32,
}

/// Parameters of the Hopper forward of f32 in two parts, passed by value as the only kernel parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardSplitParams {
    /// Those of the Hopper forward. The maps of q, k and v are of their parts, `2 padded columns` f16 to a
    /// row.
    pub hopper: ForwardHopperParams,
    /// Factors of parts.
    pub split: SplitFactors,
}

/// Parameters of the sm_80 forward of f32 in two parts, passed by value as the only kernel parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardMmaSplitParams {
    /// Those of a forward; q, k and v are their parts, `2 padded columns` f16 to a row.
    pub forward: ForwardParams,
    /// Factors of parts.
    pub split: SplitFactors,
}

/// Parameters of the true-f32 forward, passed by value as the only kernel parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ForwardFmaParams {
    /// Those of a forward.
    pub forward: ForwardParams,
    /// [`SplitParams::turn`]: both numbers 0, and the kernel does nothing. 0: it computes in any case.
    pub turn: u64,
}

/// Parameters of the sm_80 backward of f32 in two parts and of the kernel that ends it, passed by value as
/// the only kernel parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardPartsParams {
    /// Those of a backward; q, k, v and dO are their parts, `2 padded columns` f16 to a row.
    pub backward: BackwardParams,
    /// As [`SplitParams::gradient_units`].
    pub units: u64,
    /// As [`SplitParams::turn`]: the first number not 0, and the kernel does nothing.
    pub turn: u64,
}

/// Parameters of the true-f32 backward and of the kernel that ends it, passed by value as the only kernel
/// parameter.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct BackwardFmaParams {
    /// Those of a backward.
    pub backward: BackwardParams,
    /// [`SplitParams::turn`]: the first number 0, and the kernel does nothing. 0: it computes in any case.
    pub turn: u64,
}
