//! Strips: the channels of a lane, as they stand in memory and as f32.

use crate::arch::{convert, global, math};
use crate::tile::element;

/// The element types and how wide lanes read them, by the names that tables of kernels have for it.
pub trait Strips {
    /// 16 bytes.
    type Vector16: Strip;
    /// As many as are 16 bytes in f32: neighbouring lanes then add to neighbouring sums, 16 bytes each.
    type Four: Strip;
    /// One element.
    type Element: Strip;
}

impl Strips for element::F32 {
    type Vector16 = F32x4;
    type Four = F32x4;
    type Element = F32x1;
}

impl Strips for element::Bf16 {
    type Vector16 = Bf16x8;
    type Four = Bf16x4;
    type Element = Bf16x1;
}

impl Strips for element::F16 {
    type Vector16 = F16x8;
    type Four = F16x4;
    type Element = F16x1;
}

/// What products with corners are in units of: differences of differences of what f32 holds are in its range
/// so.
pub const DOT_UNIT: f32 = 0.25;

/// Consecutive channels of a row.
pub trait Strip {
    /// Bytes of an element.
    const ELEMENT_BYTES: u32;
    /// How many channels.
    const CHANNELS: u32;
    /// They as they stand in memory.
    type Raw: Copy;
    /// They as f32.
    type Values: Copy;
    /// Zeros.
    const ZEROS: Self::Values;

    /// Reads a strip where `condition` holds; else zeros, and nothing is touched.
    ///
    /// # Safety
    /// If `condition`: the strip is readable, aligned to its size, and not written during the kernel.
    unsafe fn load_if(address: u64, condition: bool) -> Self::Raw;

    /// To f32, exactly.
    fn values(raw: Self::Raw) -> Self::Values;

    /// `sum += weight * raw`.
    fn add(sum: &mut Self::Values, weight: f32, raw: Self::Raw);

    /// Products with `g` of the corners `[v00, v01, v10, v11]`: of `v00`, `v01 - v00`, `v10 - v00` and
    /// `v11 - v10`, each times [`DOT_UNIT`], added to `sums`.
    fn dots(sums: &mut [f32; 4], g: &Self::Values, corners: [Self::Raw; 4]);

    /// Writes a strip, rounded.
    ///
    /// # Safety
    /// It is writable and aligned to its size.
    unsafe fn store(address: u64, values: &Self::Values);

    /// Reads channels from `address` on, those below `end`, spread over the lanes of a group so that
    /// neighbours in memory are those of neighbouring lanes; 0 for others.
    ///
    /// # Safety
    /// Those are readable, and not written during the kernel.
    unsafe fn load_spread(address: u64, group: Group, end: u32) -> Self::Values;

    /// Adds `weight * g` to f32 in global memory from `address` on, in no order: channels that are spread as
    /// in [`Strip::load_spread`] or, with `WIDE`, the lane's own, of which there are four; those below `end`.
    ///
    /// # Safety
    /// They are writable and aligned to 4, with `WIDE` to 16.
    unsafe fn add_spread<const WIDE: bool>(
        address: u64,
        group: Group,
        end: u32,
        weight: f32,
        g: &Self::Values,
    );
}

/// The lanes of a query, and which of them this is.
#[derive(Clone, Copy)]
pub struct Group {
    /// How many.
    pub lanes: u32,
    /// Its number.
    pub slot: u32,
}

/// The channel that is the `index`-th of a lane where lanes add to memory: neighbours in memory are those of
/// neighbouring lanes, one by one or, with `WIDE`, four by four. So an instruction of a warp meets whole
/// sectors, each once.
#[inline(always)]
fn spread<const WIDE: bool>(group: Group, index: u32) -> u32 {
    if WIDE { group.slot * 4 + index } else { index * group.lanes + group.slot }
}

/// A strip of `$count` elements in `$raw`, each of which is an `$element` by itself; `$unpack` gives its
/// values, `$store` writes them.
macro_rules! strip {
    ($(#[$doc:meta])* $name:ident of $element:ident, $bytes:literal, $count:literal, $raw:ty, $load:path,
        $unpack:expr, $store:expr) => {
        $(#[$doc])*
        pub struct $name;

        impl Strip for $name {
            const ELEMENT_BYTES: u32 = $bytes;
            const CHANNELS: u32 = $count;
            type Raw = $raw;
            type Values = [f32; $count];
            const ZEROS: Self::Values = [0.0; $count];

            #[inline(always)]
            unsafe fn load_if(address: u64, condition: bool) -> Self::Raw {
                $load(address, condition)
            }

            #[inline(always)]
            fn values(raw: Self::Raw) -> Self::Values {
                $unpack(raw)
            }

            #[inline(always)]
            fn add(sum: &mut Self::Values, weight: f32, raw: Self::Raw) {
                let values = Self::values(raw);
                let mut i = 0;
                while i < $count {
                    sum[i] = math::fma(weight, values[i], sum[i]);
                    i += 1;
                }
            }

            #[inline(always)]
            fn dots(sums: &mut [f32; 4], g: &Self::Values, corners: [Self::Raw; 4]) {
                let [v00, v01, v10, v11] = corners.map(Self::values);
                let mut i = 0;
                while i < $count {
                    let [corner, below] = [v00[i] * DOT_UNIT, v10[i] * DOT_UNIT];
                    sums[0] = math::fma(g[i], corner, sums[0]);
                    sums[1] = math::fma(g[i], math::fma(v01[i], DOT_UNIT, -corner), sums[1]);
                    sums[2] = math::fma(g[i], below - corner, sums[2]);
                    sums[3] = math::fma(g[i], math::fma(v11[i], DOT_UNIT, -below), sums[3]);
                    i += 1;
                }
            }

            #[inline(always)]
            unsafe fn store(address: u64, values: &Self::Values) {
                $store(address, *values)
            }

            #[inline(always)]
            unsafe fn load_spread(address: u64, group: Group, end: u32) -> Self::Values {
                let mut values = Self::ZEROS;
                let mut i = 0;
                while i < $count {
                    let channel = spread::<false>(group, i as u32);
                    let at = address.wrapping_add((channel * $bytes) as u64);
                    values[i] = $element::values($element::load_if(at, channel < end))[0];
                    i += 1;
                }
                values
            }

            #[inline(always)]
            unsafe fn add_spread<const WIDE: bool>(
                address: u64,
                group: Group,
                end: u32,
                weight: f32,
                g: &Self::Values,
            ) {
                let mut i = 0;
                while i < $count {
                    let channel = spread::<WIDE>(group, i as u32);
                    let at = address.wrapping_add((4 * channel) as u64);
                    let step = if WIDE && $count >= 4 { 4 } else { 1 };
                    if channel < end {
                        if step == 4 {
                            let four = [g[i], g[i + 1], g[i + 2], g[i + 3]];
                            global::add_f32x4(at, four.map(|g| weight * g));
                        } else {
                            global::add_f32(at, weight * g[i]);
                        }
                    }
                    i += step;
                }
            }
        }
    };
}

/// The eight values of 16 bytes.
#[inline(always)]
fn eight(words: [u32; 4], unpack: impl Fn(u32) -> (f32, f32)) -> [f32; 8] {
    let [a, b, c, d] = words.map(unpack);
    [a.0, a.1, b.0, b.1, c.0, c.1, d.0, d.1]
}

/// The four values of 8 bytes.
#[inline(always)]
fn four(words: [u32; 2], unpack: impl Fn(u32) -> (f32, f32)) -> [f32; 4] {
    let [a, b] = words.map(unpack);
    [a.0, a.1, b.0, b.1]
}

/// Eight values in 16 bytes.
#[inline(always)]
fn packed(v: [f32; 8], pack: impl Fn(f32, f32) -> u32) -> [u32; 4] {
    [pack(v[0], v[1]), pack(v[2], v[3]), pack(v[4], v[5]), pack(v[6], v[7])]
}

strip!(
    /// 4 f32.
    F32x4 of F32x1, 4, 4, [u32; 4], global::load_u32x4_if,
    |raw: [u32; 4]| raw.map(f32::from_bits),
    |address, v: [f32; 4]| global::store_u32x4(address, v.map(f32::to_bits))
);
strip!(
    /// 8 bf16.
    Bf16x8 of Bf16x1, 2, 8, [u32; 4], global::load_u32x4_if,
    |raw| eight(raw, convert::unpack_bf16),
    |address, v| global::store_u32x4(address, packed(v, convert::pack_bf16))
);
strip!(
    /// 8 f16.
    F16x8 of F16x1, 2, 8, [u32; 4], global::load_u32x4_if,
    |raw| eight(raw, convert::unpack_f16),
    |address, v| global::store_u32x4(address, packed(v, convert::pack_f16))
);
strip!(
    /// 4 bf16.
    Bf16x4 of Bf16x1, 2, 4, [u32; 2], global::load_u32x2_if,
    |raw| four(raw, convert::unpack_bf16),
    |address, v: [f32; 4]| {
        global::store_u32x2(address, [convert::pack_bf16(v[0], v[1]), convert::pack_bf16(v[2], v[3])])
    }
);
strip!(
    /// 4 f16.
    F16x4 of F16x1, 2, 4, [u32; 2], global::load_u32x2_if,
    |raw| four(raw, convert::unpack_f16),
    |address, v: [f32; 4]| {
        global::store_u32x2(address, [convert::pack_f16(v[0], v[1]), convert::pack_f16(v[2], v[3])])
    }
);
strip!(
    /// An f32.
    F32x1 of F32x1, 4, 1, u32, global::load_u32_if,
    |raw| [f32::from_bits(raw)],
    |address, v: [f32; 1]| global::store_f32(address, v[0])
);
strip!(
    /// A bf16.
    Bf16x1 of Bf16x1, 2, 1, u16, global::load_u16_if,
    |raw| [convert::unpack_bf16(raw as u32).0],
    |address, v: [f32; 1]| global::store_u16(address, convert::pack_bf16(v[0], 0.0) as u16)
);
strip!(
    /// An f16.
    F16x1 of F16x1, 2, 1, u16, global::load_u16_if,
    |raw| [convert::unpack_f16(raw as u32).0],
    |address, v: [f32; 1]| global::store_u16(address, convert::pack_f16(v[0], 0.0) as u16)
);
