//! Tensor maps: what a bulk tensor copy knows about the tensor in global memory.
//!
//! The driver's `cuTensorMapEncodeTiled` makes 128 opaque bytes out of a description; so does
//! [`TensorMap::encode`], under the same rules, in a format of the emulator's own. A kernel takes the
//! bytes by value (aligned to 64) or finds them in global memory. Bytes that do not come from here are
//! refused when a copy uses them.

use thiserror::Error;

/// Most dimensions of a tensor.
pub const MAX_RANK: usize = 5;
/// Bytes of an encoded map.
pub const MAP_BYTES: usize = 128;

/// Marks the first word of an encoded map.
const MAGIC: u64 = 0x5054_585f_544d_4150;
const MAX_BOX: u32 = 256;
/// Most bytes that a box takes: the shared memory of a block.
const MAX_BOX_BYTES: u64 = 227 * 1024;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum TensorMapElement {
    U8,
    U16,
    U32,
    I32,
    U64,
    I64,
    F16,
    Bf16,
    F32,
    F64,
}

impl TensorMapElement {
    const ALL: [TensorMapElement; 10] = [
        TensorMapElement::U8,
        TensorMapElement::U16,
        TensorMapElement::U32,
        TensorMapElement::I32,
        TensorMapElement::U64,
        TensorMapElement::I64,
        TensorMapElement::F16,
        TensorMapElement::Bf16,
        TensorMapElement::F32,
        TensorMapElement::F64,
    ];

    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            TensorMapElement::U8 => 1,
            TensorMapElement::U16 | TensorMapElement::F16 | TensorMapElement::Bf16 => 2,
            TensorMapElement::U32 | TensorMapElement::I32 | TensorMapElement::F32 => 4,
            TensorMapElement::U64 | TensorMapElement::I64 | TensorMapElement::F64 => 8,
        }
    }
}

/// How 16-byte pieces of a box are exchanged in shared memory, so that columns miss each other's banks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TensorMapSwizzle {
    /// Rows lie as they are.
    #[default]
    None,
    /// Within spans of 32 bytes.
    B32,
    /// Within spans of 64 bytes.
    B64,
    /// Within spans of 128 bytes.
    B128,
}

impl TensorMapSwizzle {
    const ALL: [TensorMapSwizzle; 4] =
        [TensorMapSwizzle::None, TensorMapSwizzle::B32, TensorMapSwizzle::B64, TensorMapSwizzle::B128];

    /// Bytes of a span; `None` without a swizzle.
    pub const fn span_bytes(self) -> Option<u32> {
        match self {
            TensorMapSwizzle::None => None,
            TensorMapSwizzle::B32 => Some(32),
            TensorMapSwizzle::B64 => Some(64),
            TensorMapSwizzle::B128 => Some(128),
        }
    }

    /// Where a byte of shared memory really lies: bits of the 128-byte line's number, from bit 7 on, are
    /// added without carry to the number of the 16-byte piece, from bit 4 on.
    pub const fn apply(self, address: u32) -> u32 {
        match self {
            TensorMapSwizzle::None => address,
            TensorMapSwizzle::B32 => address ^ (address >> 3 & 0x10),
            TensorMapSwizzle::B64 => address ^ (address >> 3 & 0x30),
            TensorMapSwizzle::B128 => address ^ (address >> 3 & 0x70),
        }
    }
}

/// A tensor in global memory and the box of it that one copy moves.
///
/// ```
/// use ptx_emulator::{TensorMap, TensorMapElement, TensorMapSwizzle};
///
/// let map = TensorMap {
///     element: TensorMapElement::Bf16,
///     address: 1 << 40,
///     dims: vec![64, 1000],
///     strides_bytes: vec![128],
///     box_dims: vec![64, 128],
///     swizzle: TensorMapSwizzle::B128,
/// };
/// assert_eq!(TensorMap::decode(&map.encode()?)?, map);
/// let wide = TensorMap { box_dims: vec![128, 128], ..map };
/// let error = wide.encode().unwrap_err().to_string();
/// assert_eq!(error, "tensor map: box_dims[0]: expected at most 128 bytes, the swizzle's span, got 256");
/// # Ok::<(), ptx_emulator::TensorMapError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct TensorMap {
    /// Type of the elements.
    pub element: TensorMapElement,
    /// Address of the first element, a multiple of 16.
    pub address: u64,
    /// Elements in each dimension, innermost first: 1 to 5 dimensions of up to 2^32.
    pub dims: Vec<u64>,
    /// Bytes from one element to the next, for each dimension but the innermost: multiples of 16 below
    /// 2^40.
    pub strides_bytes: Vec<u64>,
    /// Elements of the box in each dimension: 1 to 256.
    pub box_dims: Vec<u32>,
    /// Arrangement in shared memory.
    pub swizzle: TensorMapSwizzle,
}

/// What `tensormap.replace` replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum MapField {
    Address,
    Rank,
    BoxDim,
    Dim,
    Stride,
    ElementStride,
    Element,
    Interleave,
    Swizzle,
    Fill,
}

impl MapField {
    /// Every field, in the order of their discriminants.
    pub const ALL: [MapField; 10] = [
        MapField::Address,
        MapField::Rank,
        MapField::BoxDim,
        MapField::Dim,
        MapField::Stride,
        MapField::ElementStride,
        MapField::Element,
        MapField::Interleave,
        MapField::Swizzle,
        MapField::Fill,
    ];
}

/// Replaces a field of an encoded map. Whether the whole is a map is looked at when a copy uses it.
pub fn replace(
    words: &mut [u64; 16],
    field: MapField,
    dimension: usize,
    value: u64,
) -> Result<(), TensorMapError> {
    require(words[0] == MAGIC, "map", "bytes of a tensor map", words[0])?;
    require(words[15] == checksum(words), "map", "bytes of a tensor map that is whole", words[15])?;
    require(dimension < MAX_RANK, "dimension", "0 to 4", dimension as u64)?;
    let low = |word: &mut u64, shift: u32, value: u64| *word = *word & !(0xff << shift) | value << shift;
    match field {
        MapField::Address => words[2] = value,
        // One less than there are dimensions, as the instruction has it.
        MapField::Rank => {
            require(value < MAX_RANK as u64, "rank", "0 to 4", value)?;
            low(&mut words[1], 16, value + 1);
        }
        MapField::BoxDim => {
            require((1..=u64::from(MAX_BOX)).contains(&value), "box_dim", "1 to 256", value)?;
            let (word, shift) = (12 + dimension / 3, dimension % 3 * 16);
            words[word] = words[word] & !(0xffff << shift) | value << shift;
        }
        MapField::Dim => words[3 + dimension] = value,
        MapField::Stride => {
            require(dimension < MAX_RANK - 1, "dimension", "0 to 3", dimension as u64)?;
            words[8 + dimension] = value;
        }
        MapField::ElementStride => require(value == 1, "element_stride", "1", value)?,
        MapField::Element => {
            use TensorMapElement::{Bf16, F16, F32, F64, I32, I64, U8, U16, U32, U64};
            let types = [U8, U16, U32, I32, U64, I64, F16, F32, F32, F64, Bf16];
            let element = types.get(value as usize).filter(|_| value != 8);
            require(element.is_some(), "elemtype", "0 to 7, 9 or 10", value)?;
            low(&mut words[1], 0, element.map_or(0, |&element| element as u64));
        }
        MapField::Interleave => require(value == 0, "interleave_layout", "0, which is none", value)?,
        MapField::Swizzle => {
            require(value < 4, "swizzle_mode", "0 to 3", value)?;
            low(&mut words[1], 8, value);
        }
        MapField::Fill => require(value == 0, "fill_mode", "0, which is zeros", value)?,
    }
    words[15] = checksum(words);
    Ok(())
}

/// A tensor map that the driver would refuse, or bytes that are none.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("tensor map: {field}: expected {expected}, got {got}")]
pub struct TensorMapError {
    /// The field, with its dimension.
    pub field: String,
    /// What it may be.
    pub expected: String,
    /// What it is.
    pub got: u64,
}

fn require(holds: bool, field: &str, expected: &str, got: u64) -> Result<(), TensorMapError> {
    if holds {
        return Ok(());
    }
    Err(TensorMapError { field: field.to_string(), expected: expected.to_string(), got })
}

impl TensorMap {
    /// Bytes of the box, which is what a copy reports to its barrier; `u32::MAX` if there are more.
    pub fn box_bytes(&self) -> u32 {
        let sizes = self.box_dims.iter().map(|&size| u64::from(size));
        let bytes = sizes.fold(u64::from(self.element.bytes()), u64::saturating_mul);
        bytes.min(u64::from(u32::MAX)) as u32
    }

    /// Bytes from one row of the box to the next in shared memory.
    pub(crate) fn row_pitch(&self) -> u32 {
        self.swizzle.span_bytes().unwrap_or(self.box_dims[0] * self.element.bytes())
    }

    /// Bytes of shared memory that the box takes. A map that passed [`TensorMap::check`] has few.
    pub(crate) fn shared_bytes(&self) -> u32 {
        self.rows() as u32 * self.row_pitch()
    }

    /// Rows of the box. The sizes must be in range.
    fn rows(&self) -> u64 {
        self.box_dims[1..].iter().map(|&size| u64::from(size)).product()
    }

    fn check(&self) -> Result<(), TensorMapError> {
        let rank = self.dims.len();
        require((1..=MAX_RANK).contains(&rank), "dims", "1 to 5 dimensions", rank as u64)?;
        let strides = self.strides_bytes.len();
        let expected = format!("{} strides, one less than dimensions", rank - 1);
        require(strides == rank - 1, "strides_bytes", &expected, strides as u64)?;
        let boxes = self.box_dims.len();
        require(boxes == rank, "box_dims", &format!("{rank} dimensions like dims"), boxes as u64)?;
        require(self.address.is_multiple_of(16), "address", "a multiple of 16", self.address)?;
        for (index, &size) in self.dims.iter().enumerate() {
            require((1..=1 << 32).contains(&size), &format!("dims[{index}]"), "1 to 2^32", size)?;
        }
        for (index, &stride) in self.strides_bytes.iter().enumerate() {
            let field = format!("strides_bytes[{index}]");
            require(stride.is_multiple_of(16), &field, "a multiple of 16", stride)?;
            require(stride < 1 << 40, &field, "less than 2^40", stride)?;
        }
        for (index, &size) in self.box_dims.iter().enumerate() {
            let field = format!("box_dims[{index}]");
            require((1..=MAX_BOX).contains(&size), &field, "1 to 256", u64::from(size))?;
        }
        let inner = self.box_dims[0] * self.element.bytes();
        require(inner.is_multiple_of(16), "box_dims[0]", "a multiple of 16 bytes", u64::from(inner))?;
        let span = self.swizzle.span_bytes().unwrap_or(u32::MAX);
        let expected = format!("at most {span} bytes, the swizzle's span");
        require(inner <= span, "box_dims[0]", &expected, u64::from(inner))?;
        let bytes = self.rows() * u64::from(self.row_pitch());
        let expected = format!("at most {MAX_BOX_BYTES} bytes, the shared memory of a block");
        require(bytes <= MAX_BOX_BYTES, "box_dims", &expected, bytes)
    }

    /// The 128 bytes that a kernel is given, as words in the machine's order.
    ///
    /// # Errors
    ///
    /// The description breaks a rule of `cuTensorMapEncodeTiled`: the field, what it may be, and what it
    /// is.
    pub fn encode(&self) -> Result<[u64; 16], TensorMapError> {
        self.check()?;
        let mut words = [0; 16];
        words[0] = MAGIC;
        words[1] = self.element as u64 | (self.swizzle as u64) << 8 | (self.dims.len() as u64) << 16;
        words[2] = self.address;
        words[3..3 + self.dims.len()].copy_from_slice(&self.dims);
        words[8..8 + self.strides_bytes.len()].copy_from_slice(&self.strides_bytes);
        for (index, &size) in self.box_dims.iter().enumerate() {
            words[12 + index / 3] |= u64::from(size) << (index % 3 * 16);
        }
        words[15] = checksum(&words);
        Ok(words)
    }

    /// The description that 128 bytes stand for.
    ///
    /// # Errors
    ///
    /// The bytes are not those of an encoded map.
    pub fn decode(words: &[u64; 16]) -> Result<Self, TensorMapError> {
        require(words[0] == MAGIC, "bytes", "an encoded tensor map", words[0])?;
        require(words[15] == checksum(words), "bytes", "an unchanged tensor map", words[15])?;
        let rank = (words[1] >> 16 & 0xff) as usize;
        require((1..=MAX_RANK).contains(&rank), "dims", "1 to 5 dimensions", rank as u64)?;
        let element = TensorMapElement::ALL.get((words[1] & 0xff) as usize);
        let swizzle = TensorMapSwizzle::ALL.get((words[1] >> 8 & 0xff) as usize);
        let (Some(&element), Some(&swizzle)) = (element, swizzle) else {
            return Err(require(false, "bytes", "an element type and a swizzle", words[1]).unwrap_err());
        };
        let size = |index: usize| (words[12 + index / 3] >> (index % 3 * 16) & 0xffff) as u32;
        let map = TensorMap {
            element,
            address: words[2],
            dims: words[3..3 + rank].to_vec(),
            strides_bytes: words[8..8 + rank - 1].to_vec(),
            box_dims: (0..rank).map(size).collect(),
            swizzle,
        };
        map.check()?;
        Ok(map)
    }
}

/// Tells a map from bytes that were changed after it was made.
fn checksum(words: &[u64; 16]) -> u64 {
    let mix = |sum: u64, &word: &u64| (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    words[..15].iter().fold(1, mix)
}
