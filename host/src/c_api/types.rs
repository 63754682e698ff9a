//! The structs of the C interface. `include/finite_attention.h` says more of their fields.

use super::{Failure, invalid};
use crate::attention::PreparedMask;
use kernels_gpu::abi::MSDA_MAX_LEVELS;
use std::mem::offset_of;
use std::ptr;

/// What the functions return.
#[repr(i32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// Done, or queued.
    Success = 0,
    /// An argument is wrong; nothing was done.
    InvalidArgument = 1,
    /// There is no such device.
    NoDevice = 2,
    /// The device, its driver or the emulator failed.
    DeviceFailed = 3,
    /// The library is at fault.
    Panicked = 4,
    /// The norm of gradients is not finite, and nothing was changed; or a tensor of a pass in anomaly mode.
    NonFinite = 5,
}

/// `fattn_tensor`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CTensor {
    /// Device address of element (0, 0, 0, 0).
    pub address: u64,
    /// `[batch, row, head, column]`.
    pub shape: [i64; 4],
    /// In elements.
    pub strides: [i64; 4],
}

/// `fattn_attention`: what forward and backward share.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CAttention {
    /// Of q, k, v and dO: 0 bf16, 1 f16, 2 f32.
    pub dtype: i32,
    /// Of o.
    pub output_dtype: i32,
    /// 0 full, 1 causal, 2 window, 3 causal and a window.
    pub mask: i32,
    /// 0 bottom right, 1 top left.
    pub alignment: i32,
    /// Keys that a window shows before the diagonal; -1 is all. 0 or -1 without a window.
    pub window_left: i64,
    /// Keys that a window shows after the diagonal; -1 is all. 0 or -1 without a window.
    pub window_right: i64,
    /// Softmax scale; NaN for the default.
    pub scale: f32,
    /// Cap of scores; 0 for none. It stands where 0 was asked for before there were caps.
    pub softcap: f32,
    /// `[B, Sq, Hq, D]`.
    pub q: CTensor,
    /// `[B, Sk, Hk, D]`.
    pub k: CTensor,
    /// `[B, Sk, Hk, Dv]`.
    pub v: CTensor,
    /// `[B, Sq, Hq, Dv]`.
    pub o: CTensor,
    /// Device address of dense f32 `[B, Hq, Sq]`, packed `[Hq, Tq]`.
    pub lse: u64,
    /// Device address of i32 `[sequences + 1]`; 0, as that of k, unless sequences are packed.
    pub cu_seqlens_q: u64,
    /// Device address of i32 `[sequences + 1]`.
    pub cu_seqlens_k: u64,
    /// How many sequences are packed.
    pub sequences: i64,
    /// No packed sequence of q is longer.
    pub max_query_rows: i64,
    /// No packed sequence of k is longer.
    pub max_key_rows: i64,
}

/// `fattn_scores`: what scores have beside q and k, as far as addresses are not 0.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct CScores {
    /// `[batch, head, query, key]` each of the problem or 1, with any strides.
    pub bias: CTensor,
    /// Of the bias: 0 bf16, 1 f16, 2 f32.
    pub bias_dtype: i32,
    /// Whether there are slopes for each batch.
    pub alibi_per_batch: i32,
    /// What `fattn_prepare_mask` made; null without a boolean mask.
    pub mask: *const PreparedMask,
    /// Device address of f32 `[Hq]`, or `[B, Hq]`.
    pub alibi_slopes: u64,
    /// Device address of f32 `[Hq]`.
    pub sinks: u64,
}

impl Default for CScores {
    fn default() -> Self {
        CScores {
            bias: CTensor::default(),
            bias_dtype: 0,
            alibi_per_batch: 0,
            mask: ptr::null(),
            alibi_slopes: 0,
            sinks: 0,
        }
    }
}

/// `fattn_dropout`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CDropout {
    /// The share of probabilities that is dropped; 0 for none.
    pub rate: f32,
    /// 0.
    pub reserved: u32,
    /// Seed of the numbers.
    pub seed: u64,
    /// Which numbers of the seed.
    pub offset: u64,
}

/// `fattn_forward_args`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CForwardArgs {
    /// Size of this struct.
    pub struct_bytes: u32,
    /// Ranges of keys; 0 for as many as pay off.
    pub num_splits: u32,
    /// 0 where it pays off, 1 where it can be done, 2 never.
    pub pack_gqa: i32,
    /// 0.
    pub reserved: u32,
    /// lse is not written if its address is 0.
    pub attention: CAttention,
    /// Where callers of the first version have nothing.
    pub scores: CScores,
    /// Where callers of the second version have nothing.
    pub dropout: CDropout,
    /// Of f32: 0 the faster one of both, 1 fast3, 2 fma. Where callers of the third version have nothing.
    pub precision: i32,
    /// 0.
    pub reserved_2: u32,
}

/// `fattn_backward_args`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CBackwardArgs {
    /// Size of this struct.
    pub struct_bytes: u32,
    /// 0.
    pub reserved: u32,
    /// o and lse are what the forward pass gave.
    pub attention: CAttention,
    /// Whether the gradients must be the same bits from run to run.
    pub deterministic: i32,
    /// Whether dq, dk and dv are f32, whatever q is.
    pub gradients_f32: i32,
    /// `[B, Sq, Hq, Dv]`.
    pub d_o: CTensor,
    /// `[B, Sq, Hq, D]`, written.
    pub dq: CTensor,
    /// `[B, Sk, Hk, D]`, written.
    pub dk: CTensor,
    /// `[B, Sk, Hk, Dv]`, written.
    pub dv: CTensor,
    /// Device address of f32 like lse, or 0.
    pub d_lse: u64,
    /// Device address of the workspace.
    pub workspace: u64,
    /// Its size.
    pub workspace_bytes: u64,
    /// As in the forward pass; where callers of the first version have nothing.
    pub scores: CScores,
    /// In the bias's shape, written; not wanted if its address is 0.
    pub d_bias: CTensor,
    /// Whether dBias is f32, whatever the bias is.
    pub d_bias_f32: i32,
    /// 0.
    pub reserved_2: u32,
    /// Device address of f32 `[Hq]`, written, or 0.
    pub d_sinks: u64,
    /// That of the forward pass; where callers of the second version have nothing.
    pub dropout: CDropout,
    /// As in the forward pass; where callers of the third version have nothing.
    pub precision: i32,
    /// 0.
    pub reserved_3: u32,
}

/// `fattn_msda`: what forward and backward of multi-scale deformable attention share.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CMsda {
    /// Of value, o and dO: 0 bf16, 1 f16, 2 f32.
    pub dtype: i32,
    /// Of locations: that of value, or f32.
    pub locations_dtype: i32,
    /// Of weights: that of value, or f32.
    pub weights_dtype: i32,
    /// 0 zeros, 1 border.
    pub padding: i32,
    /// Whether corners are aligned.
    pub align_corners: i32,
    /// L.
    pub levels: i32,
    /// P.
    pub level_points: i64,
    /// Height and width of each level.
    pub shapes: [[i64; 2]; MSDA_MAX_LEVELS],
    /// `[B, cells, H, C]`.
    pub value: CTensor,
    /// `[B, N, H, L * P * 2]`.
    pub locations: CTensor,
    /// `[B, N, H, L * P]`.
    pub weights: CTensor,
}

/// `fattn_msda_forward_args`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CMsdaForwardArgs {
    /// Size of this struct.
    pub struct_bytes: u32,
    /// 0.
    pub reserved: u32,
    /// What is sampled.
    pub msda: CMsda,
    /// `[B, N, H, C]`, written.
    pub o: CTensor,
}

/// `fattn_msda_backward_args`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CMsdaBackwardArgs {
    /// Size of this struct.
    pub struct_bytes: u32,
    /// Whether the gradients must be the same bits from run to run.
    pub deterministic: i32,
    /// What was sampled.
    pub msda: CMsda,
    /// `[B, N, H, C]`.
    pub d_o: CTensor,
    /// `[B, cells, H, C]`, written.
    pub d_value: CTensor,
    /// `[B, N, H, L * P * 2]`, written.
    pub d_locations: CTensor,
    /// `[B, N, H, L * P]`, written.
    pub d_weights: CTensor,
    /// Device address of the workspace.
    pub workspace: u64,
    /// Its size.
    pub workspace_bytes: u64,
}

/// Arguments that start with their own size. Later versions have more fields behind those of earlier ones,
/// which mean nothing where they are 0.
///
/// # Safety
/// `repr(C)`, the first field is `struct_bytes: u32`, and bytes that callers gave, with zeros behind them,
/// are a value.
pub(super) unsafe trait Versioned: Copy + Default {
    /// Sizes of earlier versions.
    const EARLIER: &'static [usize];

    /// The size of a caller's struct, if it is that of this version or of an earlier one.
    fn known_size(function: &str, struct_bytes: u32) -> Result<usize, Failure> {
        let (expected, got) = (size_of::<Self>(), struct_bytes as usize);
        if got == expected || Self::EARLIER.contains(&got) {
            return Ok(got);
        }
        Err(invalid(format!("{function}: expected struct_bytes {expected}, got {got}")))
    }

    /// The first field that must be 0 and is not.
    fn reserved(&self) -> Option<(&'static str, u32)>;
}

// SAFETY: as the struct says.
unsafe impl Versioned for CForwardArgs {
    const EARLIER: &'static [usize] = &[
        offset_of!(CForwardArgs, scores),
        offset_of!(CForwardArgs, dropout),
        offset_of!(CForwardArgs, precision),
    ];

    fn reserved(&self) -> Option<(&'static str, u32)> {
        let all = [
            ("reserved", self.reserved),
            ("reserved_2", self.reserved_2),
            ("dropout.reserved", self.dropout.reserved),
        ];
        all.into_iter().find(|&(_, got)| got != 0)
    }
}

// SAFETY: as the struct says.
unsafe impl Versioned for CBackwardArgs {
    const EARLIER: &'static [usize] = &[
        offset_of!(CBackwardArgs, scores),
        offset_of!(CBackwardArgs, dropout),
        offset_of!(CBackwardArgs, precision),
    ];

    fn reserved(&self) -> Option<(&'static str, u32)> {
        let all = [
            ("reserved", self.reserved),
            ("reserved_2", self.reserved_2),
            ("reserved_3", self.reserved_3),
            ("dropout.reserved", self.dropout.reserved),
        ];
        all.into_iter().find(|&(_, got)| got != 0)
    }
}

// SAFETY: as the struct says.
unsafe impl Versioned for CMsdaForwardArgs {
    const EARLIER: &'static [usize] = &[];

    fn reserved(&self) -> Option<(&'static str, u32)> {
        (self.reserved != 0).then_some(("reserved", self.reserved))
    }
}

// SAFETY: as the struct says.
unsafe impl Versioned for CMsdaBackwardArgs {
    const EARLIER: &'static [usize] = &[];

    fn reserved(&self) -> Option<(&'static str, u32)> {
        None
    }
}

/// `fattn_dynamic_mask`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CDynamicMask {
    /// How many keys of a row are kept; 0: those above 0.
    pub window: i64,
    /// Keys that are kept or dropped together; 0 and 1: each for itself.
    pub block_size: i64,
    /// `fattn_dynamic_way`.
    pub way: i32,
    /// 0.
    pub reserved: u32,
}

/// `fattn_partial`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct CPartial {
    /// Address of what passes leave to each other.
    pub state: u64,
    /// Whether it is the first pass.
    pub is_first: u32,
    /// Whether it is the last pass.
    pub is_last: u32,
    /// Keys in all passes; of forward passes.
    pub total_keys: u32,
    /// Whether dk and dv are added to what is there; of backward passes.
    pub adds_to_keys: u32,
    /// Whether dq is f32; of backward passes.
    pub dq_f32: u32,
    /// 0.
    pub reserved: u32,
}

// The sizes that callers in other languages count on: no padding anywhere.
const _: () = assert!(size_of::<CTensor>() == 72);
const _: () = assert!(size_of::<CAttention>() == 40 + 4 * 72 + 6 * 8);
const _: () = assert!(size_of::<CScores>() == 72 + 8 + 3 * 8);
const _: () = assert!(size_of::<CDropout>() == 8 + 2 * 8);
const _: () = assert!(size_of::<CDynamicMask>() == 2 * 8 + 8);
const _: () = assert!(size_of::<CPartial>() == 8 + 6 * 4);
const _: () = assert!(offset_of!(CForwardArgs, scores) == 16 + size_of::<CAttention>());
const _: () =
    assert!(offset_of!(CBackwardArgs, scores) == 16 + size_of::<CAttention>() + 4 * 72 + 3 * 8);
const _: () = {
    let forward = offset_of!(CForwardArgs, scores) + size_of::<CScores>();
    assert!(offset_of!(CForwardArgs, dropout) == forward);
    assert!(offset_of!(CForwardArgs, precision) == forward + size_of::<CDropout>());
    assert!(size_of::<CForwardArgs>() == offset_of!(CForwardArgs, precision) + 8);
    let backward = offset_of!(CBackwardArgs, scores) + size_of::<CScores>() + 72 + 16;
    assert!(offset_of!(CBackwardArgs, dropout) == backward);
    assert!(offset_of!(CBackwardArgs, precision) == backward + size_of::<CDropout>());
    assert!(size_of::<CBackwardArgs>() == offset_of!(CBackwardArgs, precision) + 8);
};
const _: () = assert!(size_of::<CMsda>() == 32 + 16 * MSDA_MAX_LEVELS + 3 * 72);
const _: () = assert!(size_of::<CMsdaForwardArgs>() == 8 + size_of::<CMsda>() + 72);
const _: () = assert!(size_of::<CMsdaBackwardArgs>() == 8 + size_of::<CMsda>() + 4 * 72 + 2 * 8);
