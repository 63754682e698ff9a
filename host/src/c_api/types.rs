//! The structs of the C interface. `include/finite_attention.h` says more of their fields.

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
}

/// Arguments that start with their own size.
///
/// # Safety
/// `repr(C)`, the first field is `struct_bytes: u32`, and any bytes are a value.
pub(super) unsafe trait Versioned: Copy {
    /// What must be 0.
    fn reserved(&self) -> u32;
}

// SAFETY: as the struct says.
unsafe impl Versioned for CForwardArgs {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

// SAFETY: as the struct says.
unsafe impl Versioned for CBackwardArgs {
    fn reserved(&self) -> u32 {
        self.reserved
    }
}

// The sizes that callers in other languages count on: no padding anywhere.
const _: () = assert!(size_of::<CTensor>() == 72);
const _: () = assert!(size_of::<CAttention>() == 40 + 4 * 72 + 6 * 8);
const _: () = assert!(size_of::<CForwardArgs>() == 16 + size_of::<CAttention>());
const _: () = assert!(size_of::<CBackwardArgs>() == 16 + size_of::<CAttention>() + 4 * 72 + 3 * 8);
