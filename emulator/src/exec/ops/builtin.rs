//! Functions that CUDA's device runtime has, and the emulator provides: `vprintf`, `__assertfail`, `malloc`,
//! `free`.

use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::steps;
use crate::exec::state::warp::Warp;
use crate::exec::values::registers::lanes;
use crate::isa::{Builtin, Instruction};
use crate::memory::view::GlobalView;
use crate::report::FindingKind;
use crate::space::{LOCAL_BASE, LOCAL_WINDOW, Space};
use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

/// The longest text that is read for a message or a format.
const MAX_TEXT: u64 = 4096;
/// What of it is read at once.
const PIECE: u64 = 64;
/// Arguments of one `printf`.
const MAX_ARGUMENTS: u64 = 32;
/// A wider field is printed as it stands in the format.
const MAX_WIDTH: u32 = 1024;
/// What a conversion takes, as a text of so many bytes.
const CONVERSION: u64 = 64;
/// Bytes that a block prints; what is more is left out.
const MAX_OUTPUT: usize = 1 << 20;

/// Calls one of them, lane after lane.
pub fn run(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32, op: Builtin) -> Flow {
    let lists = &c.environment.kernel.data.code.lists;
    let rows = &lists[i.d as usize..][..usize::from(i.count) + i.e as usize];
    for lane in lanes(m) {
        c.more_steps += steps::CALL;
        let place =
            |index: usize| (w.registers.row32(rows[index])[lane].wrapping_sub(LOCAL_BASE)) as usize;
        let argument = |index: usize, bytes: usize| {
            let mut value = [0; 8];
            let known = w.local.read(lane, place(index), bytes).unwrap_or_default();
            value[..known.len()].copy_from_slice(known);
            u64::from_le_bytes(value)
        };
        match op {
            Builtin::Print => {
                let (format, arguments) = (argument(0, 8), argument(1, 8));
                let at = place(2);
                let printed = print(c, w, lane, format, arguments);
                w.local.write(lane, at, &printed.to_le_bytes());
            }
            Builtin::AssertFail => {
                let [expression, file, function] =
                    [0, 1, 3].map(|index| text(c, w, lane, argument(index, 8)));
                let line = argument(2, 4);
                c.report(FindingKind::AssertionFailed, w.pc, w.id, lane as u32, |_| {
                    format!("`{expression}` does not hold in {function}, {file}:{line}")
                });
                return Err(Stop);
            }
            Builtin::Allocate => {
                let (bytes, at) = (argument(0, 8), place(1));
                let address = c.environment.global.allocate(bytes);
                w.local.write(lane, at, &address.to_le_bytes());
            }
            Builtin::Free => {
                let address = argument(0, 8);
                if address != 0 && !c.environment.global.free(address) {
                    c.report(FindingKind::InvalidOperand, w.pc, w.id, lane as u32, |_| {
                        format!(
                            "free of {address:#x}, which malloc did not give, or which was freed before"
                        )
                    });
                    return Err(Stop);
                }
            }
        }
    }
    Ok(())
}

/// Bytes at a generic address in global or local memory: up to so many, and fewer if there are no more.
fn bytes(c: &Context<'_>, w: &Warp, lane: usize, address: u64, count: u64) -> Vec<u8> {
    match Space::of_address(address) {
        Some(Space::Local) => {
            let offset = (address - LOCAL_WINDOW).wrapping_sub(u64::from(LOCAL_BASE));
            let there = (w.local.bytes() as u64).saturating_sub(offset).min(count);
            w.local.read(lane, offset as usize, there as usize).map(<[u8]>::to_vec).unwrap_or_default()
        }
        Some(Space::Global) => {
            let Ok(view) = c.environment.global.get(address) else { return Vec::new() };
            let offset = GlobalView::offset(address);
            let there = view.bytes.saturating_sub(offset).min(count) as usize;
            // SAFETY: so many bytes exist from the offset on. Blocks that write them meanwhile race with this
            // one, and are read as they come.
            (0..there).map(|at| unsafe { view.data.add(offset as usize + at).read_volatile() }).collect()
        }
        _ => Vec::new(),
    }
}

/// The text at an address, up to its 0.
fn text(c: &Context<'_>, w: &Warp, lane: usize, address: u64) -> String {
    let mut text = Vec::new();
    while text.len() < MAX_TEXT as usize {
        let piece = bytes(c, w, lane, address.wrapping_add(text.len() as u64), PIECE);
        let end = piece.iter().position(|&byte| byte == 0);
        text.extend_from_slice(&piece[..end.unwrap_or(piece.len())]);
        if end.is_some() || piece.len() < PIECE as usize {
            break;
        }
    }
    String::from_utf8_lossy(&text).into_owned()
}

/// `printf`: how many arguments it took, as CUDA has it; -1 without a format.
fn print(c: &mut Context<'_>, w: &Warp, lane: usize, format: u64, arguments: u64) -> i32 {
    let format = text(c, w, lane, format);
    if format.is_empty() {
        return -1;
    }
    let buffer = bytes(c, w, lane, arguments, MAX_ARGUMENTS * 8);
    let mut taken = Arguments { buffer: &buffer, at: 0, count: 0 };
    let mut out = String::new();
    let read = Cell::new(0);
    let mut rest = format.as_str();
    while let Some(start) = rest.find('%') {
        out.push_str(&rest[..start]);
        let piece = &rest[start..];
        let end = piece[1..].find(|c: char| !(c.is_ascii_digit() || "-+ #0.hlLqjzt".contains(c)));
        let Some(end) = end.map(|end| end + 2).filter(|&end| piece.is_char_boundary(end)) else { break };
        let one = &piece[..end];
        let strings = |address: u64| {
            let text = text(c, w, lane, address);
            read.set(read.get() + text.len() as u64);
            text
        };
        out.push_str(&formatted(one, &mut taken, strings).unwrap_or_else(|| one.to_string()));
        read.set(read.get() + CONVERSION);
        rest = &piece[end..];
    }
    out.push_str(rest);
    c.more_steps += (read.get() + (format.len() + buffer.len() + out.len()) as u64) / steps::CALL_BYTES;
    if c.output.len() + out.len() <= MAX_OUTPUT {
        c.output.push_str(&out);
    }
    taken.count
}

/// Arguments of a `printf`, each aligned to its size.
struct Arguments<'a> {
    buffer: &'a [u8],
    at: usize,
    count: i32,
}

impl Arguments<'_> {
    /// The next one, of so many bytes; 0 beyond the buffer.
    fn next(&mut self, bytes: usize) -> u64 {
        let at = self.at.next_multiple_of(bytes);
        self.at = at + bytes;
        self.count += 1;
        let mut value = [0; 8];
        if let Some(found) = self.buffer.get(at..at + bytes) {
            value[..bytes].copy_from_slice(found);
        }
        u64::from_le_bytes(value)
    }
}

/// An argument as the host's `snprintf` takes it.
enum Value {
    Integer(i64),
    Character(c_int),
    Pointer(*const c_void),
    Float(f64),
    Text(CString),
}

/// What becomes of one conversion, such as `%-8.3f`; nothing if it is none. CUDA's driver leaves formatting
/// to the host's C library, too.
fn formatted(one: &str, arguments: &mut Arguments<'_>, text: impl Fn(u64) -> String) -> Option<String> {
    let conversion = one.chars().last()?;
    if conversion == '%' {
        return Some("%".to_string());
    }
    let lengths = one.trim_end_matches(conversion).trim_start_matches(|c| !"hlLqjzt".contains(c));
    let mut flags: String = one.chars().filter(|c| !"hlLqjzt".contains(*c)).collect();
    flags.pop();
    let without_digits = |text: &str| text.trim_start_matches(|c: char| c.is_ascii_digit()).to_string();
    let rest = without_digits(flags.strip_prefix('%')?.trim_start_matches(|c| "-+ #0".contains(c)));
    if !rest.is_empty() && !without_digits(rest.strip_prefix('.')?).is_empty() {
        return None;
    }
    let widths = flags.split(|c: char| !c.is_ascii_digit()).filter(|digits| !digits.is_empty());
    let fits = widths.map(str::parse::<u32>).all(|width| width.is_ok_and(|width| width <= MAX_WIDTH));
    let bytes = if matches!(lengths, "" | "h" | "hh") { 4 } else { 8 };
    let (length, value) = match conversion {
        'd' | 'i' => {
            let value = arguments.next(bytes) as i64;
            let value = match lengths {
                "hh" => i64::from(value as i8),
                "h" => i64::from(value as i16),
                "" => i64::from(value as i32),
                _ => value,
            };
            ("ll", Value::Integer(value))
        }
        'u' | 'x' | 'X' | 'o' => {
            let value = arguments.next(bytes);
            let value = match lengths {
                "hh" => value & 0xff,
                "h" => value & 0xffff,
                _ => value,
            };
            ("ll", Value::Integer(value as i64))
        }
        'c' => ("", Value::Character(arguments.next(4) as c_int)),
        'p' => ("", Value::Pointer(ptr::without_provenance(arguments.next(8) as usize))),
        'f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'a' | 'A' => {
            ("", Value::Float(f64::from_bits(arguments.next(8))))
        }
        's' => ("", Value::Text(CString::new(text(arguments.next(8))).ok()?)),
        _ => return None,
    };
    fits.then(|| of_host(&format!("{flags}{length}{conversion}"), &value)).flatten()
}

/// What `snprintf` makes of one conversion that fits its value.
fn of_host(conversion: &str, value: &Value) -> Option<String> {
    let format = CString::new(conversion).ok()?;
    let print = |buffer: *mut c_char, bytes: usize| {
        let format = format.as_ptr();
        // SAFETY: the buffer has so many bytes, or none and is null; the format has one conversion, of this
        // argument's type: `long long`, `int` of %c, a pointer that nobody follows, `double`, or a text that
        // ends with 0.
        unsafe {
            match value {
                Value::Integer(value) => libc::snprintf(buffer, bytes, format, *value),
                Value::Character(value) => libc::snprintf(buffer, bytes, format, *value),
                Value::Pointer(value) => libc::snprintf(buffer, bytes, format, *value),
                Value::Float(value) => libc::snprintf(buffer, bytes, format, *value),
                Value::Text(text) => libc::snprintf(buffer, bytes, format, text.as_ptr()),
            }
        }
    };
    let length = usize::try_from(print(ptr::null_mut(), 0)).ok()?;
    let mut text = vec![0; length + 1];
    print(text.as_mut_ptr().cast(), text.len());
    text.truncate(length);
    Some(String::from_utf8_lossy(&text).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(one: &str, buffer: &[u8]) -> String {
        let mut arguments = Arguments { buffer, at: 0, count: 0 };
        formatted(one, &mut arguments, |address| format!("text {address}"))
            .unwrap_or_else(|| one.to_string())
    }

    #[test]
    fn conversions_are_those_of_c() {
        let bytes = |value: i64| value.to_le_bytes();
        assert_eq!(run("%d", &bytes(-7)), "-7");
        assert_eq!(run("%5i|".trim_end_matches('|'), &bytes(42)), "   42");
        assert_eq!(run("%-5d", &bytes(42)), "42   ");
        assert_eq!(run("%05d", &bytes(-42)), "-0042");
        assert_eq!(run("%u", &bytes(-1)), "4294967295");
        assert_eq!(run("%lld", &bytes(i64::MIN)), "-9223372036854775808");
        assert_eq!(run("%lu", &bytes(-1)), "18446744073709551615");
        assert_eq!(run("%#x", &bytes(255)), "0xff");
        assert_eq!(run("%c", &bytes(65)), "A");
        assert_eq!(run("%.2f", &0.126f64.to_le_bytes()), "0.13");
        for (format, value, text) in [
            ("%g", 1e10, "1e+10"),
            ("%#g", 1.0, "1.00000"),
            ("%G", 1e20, "1E+20"),
            ("%g", 5e-324, "4.94066e-324"),
            ("%.0g", 0.5, "0.5"),
            ("%a", 1.5, "0x1.8p+0"),
            ("%5.1f", f64::NEG_INFINITY, " -inf"),
        ] {
            assert_eq!(run(format, &f64::to_le_bytes(value)), text);
        }
        assert_eq!(run("%hd", &bytes(70000)), "4464");
        assert_eq!(run("%hhu", &bytes(300)), "44");
        assert_eq!(run("%hhd", &bytes(200)), "-56");
        assert_eq!(run("%p", &bytes(0x1234)), "0x1234");
        assert_eq!(run("%s", &bytes(3)), "text 3");
        assert_eq!(run("%%", &[]), "%");
        // Which CUDA does not know either: a width that is an argument.
        assert_eq!(run("%*d", &[5, 0, 0, 0, 7, 0, 0, 0]), "%*d");
        // What is no conversion, or would fill memory, stays as it stands.
        assert_eq!(run("%k", &[]), "%k");
        assert_eq!(run("%1.2.3f", &[0; 8]), "%1.2.3f");
        assert_eq!(run("%5-d", &bytes(1)), "%5-d");
        assert_eq!(run("%999999999d", &bytes(1)), "%999999999d");
    }
}
