//! Tensor maps that a kernel changes: `tensormap.replace`, `tensormap.cp_fenceproxy`.

use crate::exec::check::strong::Strength;
use crate::exec::check::window::{Want, addresses, own_shared, resolve};
use crate::exec::state::context::{Context, Flow, Stop};
use crate::exec::state::warp::Warp;
use crate::exec::state::window::Window;
use crate::exec::values::registers::{LANES, lanes};
use crate::isa::{FLAG_GENERIC, FLAG_SHARED, FLAG_WIDE_ADDRESS, Instruction};
use crate::report::FindingKind;
use crate::shadow::global::Touch;
use crate::space::Space;
use crate::tensor_map::{MAP_BYTES, MapField, replace as replace_field};
use crate::unaligned;

/// Bytes of an access that a lane makes at a time.
const PIECE: u32 = 16;

/// Checks that a lane may access a map, piece by piece, and calls `f` with the pointer to each.
fn pieces(
    c: &mut Context<'_>,
    w: &mut Warp,
    lane: usize,
    (space, address, store): (Space, u64, bool),
    mut f: impl FnMut(usize, *mut u8),
) -> Flow {
    let mut window = Window::new();
    for piece in 0..MAP_BYTES / PIECE as usize {
        let want = Want { space, bytes: PIECE, store, goes_on: false };
        let at = [address.wrapping_add(u64::from(PIECE) * piece as u64); LANES];
        resolve(c, w, want, &at, 1 << lane, &mut window)?;
        let touch = if store { Touch::Write } else { Touch::Read };
        c.region_access(w, &window, PIECE, if store { "store" } else { "load" });
        c.race_access(w, &window, PIECE, touch, Strength::default());
        c.global_access(w, &window, PIECE, touch, Strength::default());
        if !store {
            window.check_written(c, w, PIECE);
        }
        // SAFETY: the window was checked for the piece.
        f(piece, unsafe { window.data.add(window.offsets[lane] as usize) });
        if store {
            window.set_written(PIECE, false);
        }
    }
    Ok(())
}

/// Reads a map.
fn read(
    c: &mut Context<'_>,
    w: &mut Warp,
    lane: usize,
    space: Space,
    address: u64,
) -> Result<[u64; 16], Stop> {
    let mut words = [0; 16];
    pieces(c, w, lane, (space, address, false), |piece, at| {
        // SAFETY: two words lie at the piece.
        let [low, high]: [u64; 2] = unsafe { unaligned::read(at) };
        (words[2 * piece], words[2 * piece + 1]) = (low, high);
    })?;
    Ok(words)
}

/// Writes a map.
fn write(
    c: &mut Context<'_>,
    w: &mut Warp,
    lane: usize,
    (space, address): (Space, u64),
    words: &[u64; 16],
) -> Flow {
    pieces(c, w, lane, (space, address, true), |piece, at| {
        // SAFETY: two words lie at the piece.
        unsafe { unaligned::write(at, [words[2 * piece], words[2 * piece + 1]]) };
    })
}

/// `tensormap.replace`.
pub fn replace(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32) -> Flow {
    let addresses = addresses(w, i);
    for lane in lanes(m) {
        let generic = i.has(FLAG_GENERIC) && Space::of_address(addresses[lane]) == Some(Space::Shared);
        let (space, address) = match i.has(FLAG_SHARED) || generic {
            true => (Space::Shared, if generic { own_shared(addresses[lane]) } else { addresses[lane] }),
            false => (Space::Global, addresses[lane]),
        };
        let value = match i.count {
            2 => w.registers.row64(i.b)[lane],
            _ => u64::from(w.registers.row32(i.b)[lane]),
        };
        let mut words = read(c, w, lane, space, address)?;
        let field = MapField::ALL[i.e as usize % MapField::ALL.len()];
        if let Err(error) = replace_field(&mut words, field, i.c as usize, value) {
            c.report(FindingKind::InvalidTensorMap, w.pc, w.id, lane as u32, |_| error.to_string());
            return Err(Stop);
        }
        write(c, w, lane, (space, address), &words)?;
    }
    Ok(())
}

/// `tensormap.cp_fenceproxy`: by the whole warp, once.
pub fn copy(c: &mut Context<'_>, w: &mut Warp, i: &Instruction, m: u32) -> Flow {
    let lane = m.trailing_zeros() as usize & 31;
    let target = w.registers.row64(i.a)[lane].wrapping_add(i64::from(i.immediate) as u64);
    let offset = i64::from(i.e as i32) as u64;
    let source = match i.has(FLAG_WIDE_ADDRESS) {
        true => w.registers.row64(i.b)[lane].wrapping_add(offset),
        false => u64::from(w.registers.row32(i.b)[lane].wrapping_add(offset as u32)),
    };
    let words = read(c, w, lane, Space::Shared, source)?;
    write(c, w, lane, (Space::Global, target), &words)
}
