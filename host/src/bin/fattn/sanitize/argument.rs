//! The text of `--arg` and `--buffer`. [`SYNTAX`] is what the help says of it.

use super::buffer::Buffer;
use super::element::{Element, NAMES};
use super::error::{Result, expected};
use ptx_emulator::TensorMapSwizzle;
use std::fmt;

/// The language of arguments, for `--help` and the docs.
pub const SYNTAX: &str = r#"Arguments, one --arg per parameter of the kernel, in order:
  u32:5  i32:-1  u64:0x10  f32:0.5        a number: u8 to i64, f16, bf16, f32 or f64
  bytes:00ff12                            bytes, in hexadecimal
  buf:TYPE:COUNT:CONTENTS[,OPTION]...     the address of a new buffer of COUNT elements (8, or 64x1000)
  file:PATH[,OPTION]...                   the address of a new buffer with the bytes of a file
  file:PATH#TENSOR[,OPTION]...            the same with a tensor of a safetensors file
  ref:NAME[+BYTES]                        the address of a buffer that another option makes
  map:NAME,dtype=T,dims=64x1000,box=64x64[,strides=128][,swizzle=128][,offset=BYTES]
                                          a tensor map of a buffer, innermost dimension first; strides in
                                          bytes, of all dimensions but the innermost, dense by default;
                                          swizzle none, 32, 64 or 128; in a parameter of 128 bytes the map
                                          itself, in one of 8 its address
  pack:ARG;ARG;...                        a structure, laid out as C lays it out
Contents: zeros, uninit, nan, iota (0, 1, 2, ...), random:SEED (floats of -1 to 1, integers of all bits),
  fill:NUMBER, file:PATH, hex:DIGITS (two for each byte)
Options of a buffer:
  name=NAME     what ref, map and the report call it; by default as the parameter
  out=PATH      write its bytes to a file after the last schedule; not to one that is read
  dtype=TYPE    how to read the bytes of file:PATH; u8 by default
  expect=PATH   an element that ends otherwise than in this file, of raw bytes or PATH#TENSOR, is a finding;
                expect=hex:DIGITS has the bytes themselves;
                atol=X and rtol=X: unless it is within X + X * |expected|; NaN is as good as NaN
  finite        an element that ends as NaN or infinity is a finding
  written       an element that ends with bytes that nothing wrote is a finding
--buffer makes a buffer that no parameter points to: the text of buf or file, with a name.

A case, for --case, is a JSON file; paths in it start where it is:
  {"modules": {"a": "a.ptx"},                      texts of PTX by name, or {"a": {"text": "..."}}
   "buffers": {"x": "buf:f32:64:random:1", ...},   buffers by name
   "symbols": {"scale": "f32:2"},                  of variables; {"a.scale": ...} if there are several texts
   "launches": [{"module": "a", "entry": "k", "grid": [4], "block": [128, 1, 1], "cluster": [2],
                 "shared": 0, "regions": [], "args": ["ref:x", "u32:64"]}, ...],
   "options": {"schedule": "all", "schedules": 10, "seed": 0, "strict": false, "any_order": false,
               "step_limit": 1000000}}             unless the command says otherwise
Launches run one after the other and find in memory, and in variables, what those before have left. All but
modules, launches, block and args may be left out; module where there is one,
entry where the text has one kernel."#;

/// What a parameter is given.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// A number, or raw bytes, and where it may stand in a structure.
    Bytes { bytes: Vec<u8>, align: usize },
    /// The address of a new buffer.
    Buffer(Buffer),
    /// The address of a buffer, so many bytes on.
    Reference { name: String, offset: u64 },
    /// A tensor map.
    Map(Map),
    /// A structure.
    Pack(Vec<Argument>),
}

/// A tensor map of a buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Map {
    pub buffer: String,
    pub offset: u64,
    pub element: Element,
    pub dims: Vec<u64>,
    pub strides: Vec<u64>,
    pub box_dims: Vec<u32>,
    pub swizzle: TensorMapSwizzle,
}

const KINDS: &str = "bytes, buf, file, ref, map, pack, or a number such as u32:5";

impl Argument {
    /// Reads one argument; `option` is what errors call it.
    pub fn parse(option: &str, text: &str) -> Result<Self> {
        let Some((kind, rest)) = text.split_once(':') else {
            return Err(expected(option, format!("KIND:..., where KIND is {KINDS}"), text));
        };
        match kind {
            "buf" | "file" => Ok(Argument::Buffer(Buffer::parse(option, text)?)),
            "bytes" => Ok(Argument::Bytes { bytes: hexadecimal(option, rest)?, align: 1 }),
            "ref" => reference(option, rest),
            "map" => Ok(Argument::Map(Map::parse(option, rest)?)),
            "pack" => {
                let parts = rest.split(';').map(|part| Argument::parse(option, part.trim()));
                Ok(Argument::Pack(parts.collect::<Result<_>>()?))
            }
            _ => {
                let element = Element::named(kind)
                    .ok_or_else(|| expected(option, format!("{KINDS} (types: {NAMES})"), kind))?;
                let bytes = element.value(option, rest)?;
                Ok(Argument::Bytes { align: bytes.len(), bytes })
            }
        }
    }
}

/// Bytes as two digits each.
pub fn digits(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of pairs of digits.
pub fn hexadecimal(option: &str, text: &str) -> Result<Vec<u8>> {
    let wrong = || expected(option, "pairs of hexadecimal digits", text);
    if text.is_empty() || !text.len().is_multiple_of(2) || !text.bytes().all(|c| c.is_ascii_hexdigit()) {
        return Err(wrong());
    }
    (0..text.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| wrong()))
        .collect()
}

fn reference(option: &str, text: &str) -> Result<Argument> {
    let (name, offset) = text.split_once('+').unwrap_or((text, "0"));
    if name.is_empty() {
        return Err(expected(option, "the name of a buffer", text));
    }
    Ok(Argument::Reference { name: name.to_owned(), offset: number(option, "bytes after `+`", offset)? })
}

impl fmt::Display for Argument {
    /// The text that [`Argument::parse`] reads it from, with numbers in hexadecimal.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // As aligned as it is long, and as such an integer is.
            Argument::Bytes { bytes, align } if *align > 1 => {
                let value: Vec<u8> = bytes.iter().rev().copied().collect();
                write!(f, "u{}:0x{}", 8 * bytes.len(), digits(&value))
            }
            Argument::Bytes { bytes, .. } => write!(f, "bytes:{}", digits(bytes)),
            Argument::Buffer(buffer) => write!(f, "{buffer}"),
            Argument::Reference { name, offset: 0 } => write!(f, "ref:{name}"),
            Argument::Reference { name, offset } => write!(f, "ref:{name}+{offset}"),
            Argument::Map(map) => write!(f, "{map}"),
            Argument::Pack(parts) => {
                let parts: Vec<String> = parts.iter().map(ToString::to_string).collect();
                write!(f, "pack:{}", parts.join(";"))
            }
        }
    }
}

impl fmt::Display for Map {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fn sizes<T: ToString>(sizes: &[T]) -> String {
            sizes.iter().map(T::to_string).collect::<Vec<_>>().join("x")
        }
        let Map { buffer, offset, element, dims, strides, box_dims, swizzle } = self;
        write!(f, "map:{buffer},dtype={},dims={}", element.name(), sizes(dims))?;
        write!(f, ",box={}", sizes(box_dims))?;
        if !strides.is_empty() {
            write!(f, ",strides={}", sizes(strides))?;
        }
        let swizzle = match swizzle {
            TensorMapSwizzle::None => "none",
            TensorMapSwizzle::B32 => "32",
            TensorMapSwizzle::B64 => "64",
            TensorMapSwizzle::B128 => "128",
        };
        write!(f, ",swizzle={swizzle},offset={offset}")
    }
}

/// A number that counts something.
pub fn number<T: std::str::FromStr>(option: &str, what: &str, text: &str) -> Result<T> {
    text.parse().map_err(|_| expected(option, format!("a number ({what})"), text))
}

/// `64x1000`.
pub fn sizes<T: std::str::FromStr>(option: &str, what: &str, text: &str) -> Result<Vec<T>> {
    text.split('x')
        .map(|size| {
            size.parse().map_err(|_| expected(option, format!("numbers such as 64x1000 ({what})"), text))
        })
        .collect()
}

impl Map {
    fn parse(option: &str, text: &str) -> Result<Self> {
        let mut fields = text.split(',');
        let buffer = fields.next().unwrap_or_default().to_owned();
        let (mut element, mut dims, mut box_dims) = (None, None, None);
        let (mut strides, mut swizzle, mut offset) = (None, TensorMapSwizzle::None, 0);
        for field in fields {
            let (key, value) = field.split_once('=').unwrap_or((field, ""));
            match key {
                "dtype" => element = Some(Element::parse(option, value)?),
                "dims" => dims = Some(sizes(option, "dims", value)?),
                "box" => box_dims = Some(sizes(option, "box", value)?),
                "strides" => strides = Some(sizes(option, "strides", value)?),
                "offset" => offset = number(option, "offset", value)?,
                "swizzle" => {
                    swizzle = match value {
                        "none" => TensorMapSwizzle::None,
                        "32" => TensorMapSwizzle::B32,
                        "64" => TensorMapSwizzle::B64,
                        "128" => TensorMapSwizzle::B128,
                        _ => return Err(expected(option, "swizzle none, 32, 64 or 128", value)),
                    }
                }
                _ => {
                    let keys = "dtype=, dims=, box=, strides=, swizzle= or offset=";
                    return Err(expected(option, keys, field));
                }
            }
        }
        let missing = |key: &str| expected(option, format!("{key}= in the map"), text);
        let element = element.ok_or_else(|| missing("dtype"))?;
        let dims: Vec<u64> = dims.ok_or_else(|| missing("dims"))?;
        let box_dims = box_dims.ok_or_else(|| missing("box"))?;
        let strides = strides.unwrap_or_else(|| dense(element, &dims));
        Ok(Map { buffer, offset, element, dims, strides, box_dims, swizzle })
    }
}

/// Strides of a tensor without gaps.
fn dense(element: Element, dims: &[u64]) -> Vec<u64> {
    let mut stride = element.bytes() as u64;
    let all_but_last = &dims[..dims.len().saturating_sub(1)];
    let next = |size: &u64| {
        stride = stride.saturating_mul(*size);
        stride
    };
    all_but_last.iter().map(next).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Argument {
        Argument::parse("--arg", text).unwrap()
    }

    fn refusal(text: &str) -> String {
        Argument::parse("--arg", text).unwrap_err().to_string()
    }

    #[test]
    fn numbers_bytes_references_and_structures() {
        assert_eq!(parse("i32:-1"), Argument::Bytes { bytes: vec![0xff; 4], align: 4 });
        assert_eq!(parse("bytes:00ff"), Argument::Bytes { bytes: vec![0, 255], align: 1 });
        assert_eq!(parse("ref:k+128"), Argument::Reference { name: "k".into(), offset: 128 });
        let Argument::Pack(parts) = parse("pack:u8:1; ref:k") else { panic!("no structure") };
        assert_eq!(parts, [parse("u8:1"), parse("ref:k")]);
    }

    #[test]
    fn maps_are_dense_unless_strides_are_given() {
        let Argument::Map(map) = parse("map:k,dtype=bf16,dims=64x10x3,box=64x8x1,swizzle=128") else {
            panic!("no map")
        };
        assert_eq!((map.buffer.as_str(), map.offset, map.strides), ("k", 0, vec![128, 1280]));
        assert_eq!((map.box_dims, map.swizzle), (vec![64, 8, 1], TensorMapSwizzle::B128));
        let Argument::Map(map) = parse("map:k,dtype=f32,dims=4x4,box=4x4,strides=32,offset=16") else {
            panic!("no map")
        };
        assert_eq!((map.strides, map.offset, map.swizzle), (vec![32], 16, TensorMapSwizzle::None));
    }

    #[test]
    fn arguments_are_written_as_they_are_read() {
        for text in [
            "u32:5",
            "i64:-7",
            "f64:0.1",
            "u8:9",
            "bytes:00ff12",
            "ref:k",
            "ref:k+128",
            "map:k,dtype=bf16,dims=64x10x3,box=64x8x1,swizzle=128",
            "map:k,dtype=f32,dims=4,box=4,offset=16",
            "pack:u8:1;ref:k;f32:0.5",
            "buf:f32:2x3:random:7,name=x,finite,written",
            "buf:u16:3:uninit",
            "buf:u8:2:zeros,expect=hex:00ff,atol=1",
        ] {
            let argument = parse(text);
            assert_eq!(parse(&argument.to_string()), argument, "{text} as {argument}");
        }
    }

    #[test]
    fn what_is_no_argument_is_refused_with_what_could_stand_there() {
        assert_eq!(refusal("5"), format!("--arg: expected KIND:..., where KIND is {KINDS}, got `5`"));
        assert_eq!(refusal("int:5"), format!("--arg: expected {KINDS} (types: {NAMES}), got `int`"));
        assert_eq!(refusal("bytes:abc"), "--arg: expected pairs of hexadecimal digits, got `abc`");
        assert_eq!(refusal("ref:"), "--arg: expected the name of a buffer, got ``");
        assert_eq!(refusal("ref:k+x"), "--arg: expected a number (bytes after `+`), got `x`");
        assert_eq!(
            refusal("map:k,dtype=f32,box=4"),
            "--arg: expected dims= in the map, got `k,dtype=f32,box=4`"
        );
        assert_eq!(
            refusal("map:k,dims=4y4"),
            "--arg: expected numbers such as 64x1000 (dims), got `4y4`"
        );
        assert_eq!(refusal("map:k,swizzle=16"), "--arg: expected swizzle none, 32, 64 or 128, got `16`");
        assert_eq!(
            refusal("map:k,rank=2"),
            "--arg: expected dtype=, dims=, box=, strides=, swizzle= or offset=, got `rank=2`"
        );
    }
}
