//! Tensor cores of a warp: `ldmatrix` and `mma.sync`. Fragment maps stand in
//! [`crate::geometry::fragment`].

use core::arch::asm;

/// Reads four 8 x 8 matrices of 16-bit elements; lane `8 i + r` gives the address of row `r` of matrix
/// `i`. PTX: `ldmatrix.sync.aligned.m8n8.x4.shared.b16`. sm_75.
///
/// # Safety
/// All 32 lanes call it together; each address is aligned to 16 and its 16 bytes are written and
/// visible.
#[inline(always)]
pub unsafe fn load_matrix_x4(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    asm!("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {{{}, {}, {}, {}}}, [{}];", out(reg32) a, out(reg32) b,
        out(reg32) c, out(reg32) d, in(reg32) address, options(nostack));
    [a, b, c, d]
}

/// As [`load_matrix_x4`], each matrix transposed on the way. PTX: `ldmatrix...x4.trans`. sm_75.
///
/// # Safety
/// As [`load_matrix_x4`].
#[inline(always)]
pub unsafe fn load_matrix_x4_transposed(address: u32) -> [u32; 4] {
    let (a, b, c, d): (u32, u32, u32, u32);
    asm!("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {{{}, {}, {}, {}}}, [{}];", out(reg32) a,
        out(reg32) b,
        out(reg32) c, out(reg32) d, in(reg32) address, options(nostack));
    [a, b, c, d]
}

/// Writes four 8 x 8 matrices of 16-bit elements; lane `8 i + r` gives the address of row `r` of matrix `i`.
/// PTX: `stmatrix.sync.aligned.m8n8.x4.shared.b16`. sm_90.
///
/// # Safety
/// As [`store_matrix_x4_transposed`].
#[inline(always)]
pub unsafe fn store_matrix_x4(address: u32, four: [u32; 4]) {
    asm!("stmatrix.sync.aligned.m8n8.x4.shared.b16 [{}], {{{}, {}, {}, {}}};", in(reg32) address,
        in(reg32) four[0], in(reg32) four[1], in(reg32) four[2], in(reg32) four[3], options(nostack));
}

/// Writes four 8 x 8 matrices of 16-bit elements, each transposed on the way: lane `8 i + r` gives the
/// address of what becomes row `r` of matrix `i`. sm_90.
/// PTX: `stmatrix.sync.aligned.m8n8.x4.trans.shared.b16`.
///
/// # Safety
/// All 32 lanes call it together; each address is aligned to 16 and no other thread uses its 16 bytes.
#[inline(always)]
pub unsafe fn store_matrix_x4_transposed(address: u32, four: [u32; 4]) {
    asm!("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [{}], {{{}, {}, {}, {}}};", in(reg32) address,
        in(reg32) four[0], in(reg32) four[1], in(reg32) four[2], in(reg32) four[3], options(nostack));
}

macro_rules! mma_m16n8k16 {
    ($(#[$doc:meta])* $name:ident, $instruction:literal) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// All 32 lanes call it together.
        #[inline(always)]
        pub unsafe fn $name(c: &mut [f32; 4], a: [u32; 4], b: [u32; 2]) {
            asm!(
                concat!(
                    $instruction,
                    " {{{0}, {1}, {2}, {3}}}, {{{4}, {5}, {6}, {7}}}, {{{8}, {9}}},",
                    " {{{0}, {1}, {2}, {3}}};"
                ),
                inout(reg32) c[0], inout(reg32) c[1], inout(reg32) c[2], inout(reg32) c[3],
                in(reg32) a[0], in(reg32) a[1], in(reg32) a[2], in(reg32) a[3], in(reg32) b[0],
                    in(reg32) b[1],
                options(pure, nomem, nostack));
        }
    };
}

mma_m16n8k16!(
    /// `c += a b`, 16 x 16 by 16 x 8 in bf16, sums in f32. PTX: `mma.sync.aligned.m16n8k16...bf16`. sm_80.
    mma_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"
);
mma_m16n8k16!(
    /// `c += a b`, 16 x 16 by 16 x 8 in f16, sums in f32. PTX: `mma.sync.aligned.m16n8k16...f16`. sm_80.
    mma_f16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32"
);
