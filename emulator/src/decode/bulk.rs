//! Bulk and tensor copies: `cp.async.bulk`, `cp.reduce.async.bulk`.

use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{
    BulkOp, FLAG_CLUSTER, FLAG_GENERIC, FLAG_OPTIONAL, FLAG_SHARED, FLAG_WIDE_ADDRESS, Instruction, Op,
    Reduction, bulk_list, map_field,
};
use crate::parse::operand::{Operand, Scalar};
use crate::parse::scope::Class;

/// What the modifiers of a copy say.
#[derive(Default)]
struct Modifiers<'a> {
    rank: Option<usize>,
    to_shared: bool,
    /// From there, too.
    from_shared: bool,
    /// To that of any block of the cluster.
    to_cluster: bool,
    grouped: bool,
    hint: bool,
    multicast: bool,
    /// `cp.reduce`, which says how.
    reduces: bool,
    reduction: Vec<&'a str>,
}

/// Decodes an instruction whose opcode continues with `async.bulk`.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    let reduces = s.modifiers().first() == Some(&"reduce");
    let words = &s.modifiers()[2 + usize::from(reduces)..];
    match words {
        ["commit_group"] => {
            s.expect_operands(0, 0)?;
            return Ok(Instruction::new(Op::Bulk(BulkOp::Commit)));
        }
        ["wait_group"] => return wait(s, b, BulkOp::WaitGroup),
        ["wait_group", "read"] => return wait(s, b, BulkOp::WaitGroupRead),
        ["prefetch", ..] => return Ok(Instruction::new(Op::Nop)),
        _ => {}
    }
    let modifiers = Modifiers { reduces, ..read_modifiers(words)? };
    match modifiers.to_shared {
        true if !reduces || modifiers.from_shared => load(s, b, &modifiers),
        false if modifiers.grouped => store(s, b, &modifiers),
        _ => Err(UNSUPPORTED),
    }
}

/// `tensormap.replace.tile.field.space.b1024.type [a]{, dimension}, value;` and `tensormap.cp_fenceproxy`.
pub fn tensor_map<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match s.modifiers() {
        ["replace", "tile", field, space @ .., "b1024", ty] => {
            let (field, has_dimension) = map_field(field).ok_or(UNSUPPORTED)?;
            let space = match space {
                ["global"] => 0,
                ["shared::cta"] => FLAG_SHARED,
                [] => FLAG_GENERIC,
                _ => return Err(UNSUPPORTED),
            };
            let bits = match *ty {
                "b32" => 32,
                "b64" => 64,
                _ => return Err(UNSUPPORTED),
            };
            let operands = 2 + usize::from(has_dimension);
            s.expect_operands(operands, operands)?;
            let dimension = if has_dimension { b.immediate(s, 1)?.max(0) } else { 0 };
            let value = b.source(s, operands - 1, bits)?;
            let (address, immediate, wide) = b.address(s, 0)?;
            let flags = space | if wide { FLAG_WIDE_ADDRESS } else { 0 };
            let rows = with_rows(Op::ReplaceInMap, 0, &[address, value, dimension as u32, field]);
            Ok(Instruction { flags, immediate, count: (bits / 32) as u8, ..rows })
        }
        [
            "cp_fenceproxy",
            "global",
            "shared::cta",
            "tensormap::generic",
            "release",
            _,
            "sync",
            "aligned",
        ] => {
            s.expect_operands(3, 3)?;
            if b.immediate(s, 2)? != 128 {
                return Err(ParseErrorKind::Operand("a tensor map has 128 bytes"));
            }
            let (global, immediate, wide) = b.address(s, 0)?;
            if !wide {
                return Err(ParseErrorKind::Operand("operand of the wrong width"));
            }
            let (shared, offset, shared_wide) = b.address(s, 1)?;
            let flags = if shared_wide { FLAG_WIDE_ADDRESS } else { 0 };
            let rows = with_rows(Op::CopyMap, 0, &[global, shared, 0, offset as u32]);
            Ok(Instruction { flags, immediate, ..rows })
        }
        _ => Err(UNSUPPORTED),
    }
}

fn wait<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>, op: BulkOp) -> Result<Instruction> {
    s.expect_operands(1, 1)?;
    let groups = b.immediate(s, 0)?.max(0);
    Ok(Instruction { immediate: groups, ..Instruction::new(Op::Bulk(op)) })
}

fn read_modifiers<'a>(words: &[&'a str]) -> Result<Modifiers<'a>> {
    let mut modifiers = Modifiers::default();
    let mut spaces = Vec::new();
    let mut completes = false;
    for &word in words {
        match word {
            "tensor" => modifiers.rank = Some(0),
            "1d" | "2d" | "3d" | "4d" | "5d" if modifiers.rank == Some(0) => {
                modifiers.rank = Some(usize::from(word.as_bytes()[0] - b'0'));
            }
            "shared::cluster" | "shared::cta" | "global" => spaces.push(word),
            "mbarrier::complete_tx::bytes" => completes = true,
            "bulk_group" => modifiers.grouped = true,
            "tile" => {}
            "L2::cache_hint" => modifiers.hint = true,
            "multicast::cluster" => modifiers.multicast = true,
            "add" | "min" | "max" | "inc" | "dec" | "and" | "or" | "xor" | "noftz" | "b32" | "b64"
            | "f32" | "f64" | "u32" | "s32" | "u64" | "s64" | "f16" | "bf16" => {
                modifiers.reduction.push(word)
            }
            _ => return Err(UNSUPPORTED),
        }
    }
    (modifiers.to_shared, modifiers.from_shared) = match spaces[..] {
        ["shared::cluster" | "shared::cta", "global"] => (true, false),
        ["shared::cluster", "shared::cta"] if modifiers.rank.is_none() && !modifiers.multicast => {
            (true, true)
        }
        ["global", "shared::cta"] => (false, false),
        _ => return Err(UNSUPPORTED),
    };
    modifiers.to_cluster = spaces.first() == Some(&"shared::cluster");
    if modifiers.to_shared != completes || modifiers.to_shared == modifiers.grouped {
        return Err(UNSUPPORTED);
    }
    Ok(modifiers)
}

/// `[map, {x, y}]`: the row of the map's address, and the coordinates.
fn tensor<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    index: usize,
    rank: usize,
) -> Result<(u32, Vec<u32>)> {
    let Some(Operand::Tensor(map, coordinates)) = s.operands.get(index) else {
        return Err(ParseErrorKind::Operand("expected a tensor map and coordinates"));
    };
    if coordinates.len() != rank {
        return Err(ParseErrorKind::Operand("a vector of the wrong length"));
    }
    let (map, coordinates): (Scalar<'a>, Vec<Scalar<'a>>) = (*map, coordinates.clone());
    let map = b.source_scalar(map, 64)?;
    let rows: Result<Vec<u32>> =
        coordinates.into_iter().map(|scalar| b.source_scalar(scalar, 32)).collect();
    Ok((map, rows?))
}

/// Operands behind the required ones: a mask of blocks and a cache policy.
fn extras<'a>(
    s: &Statement<'a>,
    b: &mut Builder<'a, '_>,
    modifiers: &Modifiers<'_>,
    required: usize,
) -> Result<Option<u32>> {
    let count = required + usize::from(modifiers.multicast) + usize::from(modifiers.hint);
    s.expect_operands(count, count)?;
    if modifiers.hint {
        b.source(s, count - 1, 64)?;
    }
    if modifiers.multicast { b.source(s, required, 16).map(Some) } else { Ok(None) }
}

/// What a copy does with the value before.
fn reduction(m: &Modifiers<'_>) -> Result<u32> {
    let reduction = match (m.reduces, &m.reduction[..]) {
        (false, []) => None,
        (true, words) => {
            let found = Reduction::of_words(words, m.to_shared);
            // The elements of a tensor say what they are.
            Some(found.filter(|found| found.ty.is_none() == m.rank.is_some()).ok_or(UNSUPPORTED)?)
        }
        (false, _) => return Err(UNSUPPORTED),
    };
    Ok(Reduction::encode(reduction))
}

/// A load's operands: shared address, source, barrier, with the size of a plain copy before the barrier.
fn load<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>, m: &Modifiers<'_>) -> Result<Instruction> {
    let reduction = reduction(m)?;
    let (shared, offset, wide) = b.address(s, 0)?;
    let (op, barrier_at, global, global_offset, rows) = match m.rank {
        Some(rank) => {
            let (map, rows) = tensor(s, b, 1, rank)?;
            (BulkOp::LoadTensor, 2, map, 0, rows)
        }
        None => {
            let (source, offset, wide) = b.address(s, 1)?;
            let (op, source) = match (m.from_shared, wide) {
                (true, true) => (BulkOp::LoadShared, source),
                (true, false) => {
                    let row = b.register(Class::Bits64)?.index;
                    b.emit(with_rows(Op::ConvertU32ToU64, row, &[source]));
                    (BulkOp::LoadShared, row)
                }
                (false, true) => (BulkOp::Load, source),
                (false, false) => return Err(ParseErrorKind::Operand("operand of the wrong width")),
            };
            (op, 3, source, offset, vec![b.source(s, 2, 32)?])
        }
    };
    let mask = extras(s, b, m, barrier_at + 1)?;
    let (barrier, barrier_offset, barrier_wide) = b.address(s, barrier_at)?;
    let mut list = vec![barrier_offset as u32, u32::from(barrier_wide) | reduction << 1];
    debug_assert_eq!(list.len(), bulk_list::ROWS);
    list.extend(&rows);
    list.extend(mask);
    let at = b.list(&list);
    let instruction = with_rows(Op::Bulk(op), at, &[shared, global, barrier, global_offset as u32]);
    let flags = if wide { FLAG_WIDE_ADDRESS } else { 0 };
    let flags = flags | if mask.is_some() { FLAG_OPTIONAL } else { 0 };
    let flags = flags | if m.to_cluster { FLAG_CLUSTER } else { 0 };
    Ok(Instruction { flags, count: rows.len() as u8, immediate: offset, ..instruction })
}

/// A store's operands: target, shared address, and the size of a plain copy.
fn store<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>, m: &Modifiers<'_>) -> Result<Instruction> {
    let reduction = reduction(m)?;
    let (op, global, global_offset, rows) = match m.rank {
        Some(rank) => {
            let (map, rows) = tensor(s, b, 0, rank)?;
            extras(s, b, m, 2)?;
            (BulkOp::StoreTensor, map, 0, rows)
        }
        None => {
            let (global, offset, wide) = b.address(s, 0)?;
            if !wide {
                return Err(ParseErrorKind::Operand("operand of the wrong width"));
            }
            extras(s, b, m, 3)?;
            (BulkOp::Store, global, offset, vec![b.source(s, 2, 32)?])
        }
    };
    let (shared, offset, wide) = b.address(s, 1)?;
    let mut list = vec![reduction, 0];
    list.extend(&rows);
    let at = b.list(&list);
    let instruction = with_rows(Op::Bulk(op), at, &[shared, global, 0, global_offset as u32]);
    let flags = if wide { FLAG_WIDE_ADDRESS } else { 0 };
    Ok(Instruction { flags, count: rows.len() as u8, immediate: offset, ..instruction })
}
