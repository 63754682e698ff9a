//! Branches, exits, barriers and fences.

use super::builder::Patch;
use super::{Builder, Result, Statement, UNSUPPORTED, with_rows};
use crate::error::ParseErrorKind;
use crate::isa::{
    BarrierOp, FLAG_ACQUIRE, FLAG_ALIGNED, FLAG_BLOCK, FLAG_GLOBAL, FLAG_NEGATE_SOURCE, FLAG_OPTIONAL,
    FLAG_RELAXED, FLAG_RELEASE, FLAG_SHARED, IN_CLUSTER, Instruction, Op,
};
use crate::parse::operand::{Operand, Scalar};

/// Decodes the family.
pub fn decode<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    match (s.name(), s.modifiers()) {
        ("bra", [] | ["uni"]) => branch(s, b),
        ("brx", ["idx"] | ["idx", "uni"]) => branch_indexed(s, b),
        ("ret", [] | ["uni"]) if b.is_function() => Ok(Instruction::new(Op::Return)),
        ("ret", [] | ["uni"]) | ("exit", []) => Ok(Instruction::new(Op::Exit)),
        ("trap", []) => Ok(Instruction::new(Op::Trap)),
        ("bar", ["warp", "sync"]) => {
            s.expect_operands(1, 1)?;
            let members = b.source(s, 0, 32)?;
            Ok(with_rows(Op::WarpSync, 0, &[members, members]))
        }
        ("barrier", ["cluster", rest @ ..]) => cluster_barrier(s, rest),
        ("bar" | "barrier", modifiers) => barrier(s, b, modifiers),
        ("membar", [scope @ ("cta" | "gl" | "sys")]) => fence(&[scope]),
        ("fence", ["mbarrier_init", "release", "cluster"]) => Ok(Instruction::new(Op::MbarrierFence)),
        // Of one address under several names, and of a tensor map that is changed: the order of the accesses.
        ("fence" | "membar", ["proxy", "alias"]) => fence(&["acq_rel"]),
        ("fence", ["proxy", "tensormap::generic", rest @ ..]) => fence(rest),
        ("fence", modifiers) if modifiers.first() != Some(&"proxy") => fence(modifiers),
        ("fence", ["proxy", "async::generic", "acquire" | "release", space, "cluster"])
            if space.starts_with("sync_restrict::shared::") =>
        {
            Ok(Instruction { flags: FLAG_SHARED, ..Instruction::new(Op::ProxyFence) })
        }
        ("fence", ["proxy", "async", space @ ..]) => {
            let flags = match space {
                [] => FLAG_SHARED | FLAG_GLOBAL,
                ["shared::cta" | "shared::cluster"] => FLAG_SHARED,
                ["global"] => FLAG_GLOBAL,
                _ => return Err(UNSUPPORTED),
            };
            Ok(Instruction { flags, ..Instruction::new(Op::ProxyFence) })
        }
        ("setmaxnreg", [direction @ ("inc" | "dec"), "sync", "aligned", "u32"]) => {
            s.expect_operands(1, 1)?;
            let immediate = b.immediate(s, 0)?;
            let flags = FLAG_ALIGNED | if *direction == "inc" { FLAG_OPTIONAL } else { 0 };
            Ok(Instruction { flags, immediate, ..Instruction::new(Op::SetMaxRegisters) })
        }
        ("nanosleep", ["u32"]) | ("brkpt", []) => Ok(Instruction::new(Op::Nop)),
        ("griddepcontrol", ["wait"]) => Ok(Instruction::new(Op::AwaitGrid)),
        ("griddepcontrol", ["launch_dependents"]) => Ok(Instruction::new(Op::AllowNextGrid)),
        ("pmevent", _) => Ok(Instruction::new(Op::Nop)),
        _ => Err(UNSUPPORTED),
    }
}

/// `barrier.cluster.arrive{.release, .relaxed}{.aligned};` and `barrier.cluster.wait{.acquire}{.aligned};`
fn cluster_barrier(s: &Statement<'_>, modifiers: &[&str]) -> Result<Instruction> {
    s.expect_operands(0, 0)?;
    let (aligned, words): (Vec<&str>, Vec<&str>) =
        modifiers.iter().partition(|&&word| word == "aligned");
    let aligned = if aligned.is_empty() { 0 } else { FLAG_ALIGNED };
    let (op, flags) = match words[..] {
        ["arrive"] | ["arrive", "release"] => (Op::ClusterArrive, aligned),
        ["arrive", "relaxed"] => (Op::ClusterArrive, aligned | FLAG_RELAXED),
        ["wait"] | ["wait", "acquire"] => (Op::ClusterWait, aligned),
        _ => return Err(UNSUPPORTED),
    };
    Ok(Instruction { flags, ..Instruction::new(op) })
}

/// Fences of the generic proxy. They order what races are; values are seen in program order anyway.
fn fence(modifiers: &[&str]) -> Result<Instruction> {
    let (mut order, mut scope, mut e) = (FLAG_ACQUIRE | FLAG_RELEASE, 0, 0);
    for modifier in modifiers {
        match *modifier {
            "acquire" => order = FLAG_ACQUIRE,
            "release" => order = FLAG_RELEASE,
            "cta" => scope = FLAG_BLOCK,
            "cluster" => e = IN_CLUSTER,
            "sc" | "acq_rel" | "gpu" | "gl" | "sys" => {}
            // Of shared memory alone: the others are ordered, too.
            "sync_restrict::shared::cluster" | "sync_restrict::shared::cta" => {}
            _ => return Err(UNSUPPORTED),
        }
    }
    Ok(Instruction { flags: order | scope, e, ..Instruction::new(Op::Fence) })
}

fn label<'a>(s: &Statement<'a>, index: usize) -> Result<&'a str> {
    match s.operands.get(index) {
        Some(&Operand::Scalar(Scalar::Name(name))) => Ok(name),
        _ => Err(ParseErrorKind::Operand("expected a label")),
    }
}

fn branch<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    s.expect_operands(1, 1)?;
    let at = b.next_instruction() as usize;
    b.patch_label(Patch::Immediate(at), label(s, 0)?);
    Ok(Instruction::new(Op::Branch))
}

/// `brx.idx index, table;`
fn branch_indexed<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>) -> Result<Instruction> {
    s.expect_operands(2, 2)?;
    let index = b.source(s, 0, 32)?;
    let name = label(s, 1)?;
    let targets = b.targets(name).ok_or_else(|| ParseErrorKind::UnknownName(name.to_string()))?;
    let list = b.list(&vec![0; targets.len()]);
    for (position, &target) in targets.iter().enumerate() {
        b.patch_label(Patch::List(list as usize + position), target);
    }
    Ok(Instruction { e: targets.len() as u32, ..with_rows(Op::BranchIndexed, list, &[index]) })
}

/// `bar` is `barrier…aligned`; so is any form on targets before sm_70, which are not of interest.
fn barrier<'a>(s: &Statement<'a>, b: &mut Builder<'a, '_>, modifiers: &[&str]) -> Result<Instruction> {
    let modifiers = if let ["cta", rest @ ..] = modifiers { rest } else { modifiers };
    let names = modifiers.iter().copied().filter(|&word| word != "aligned");
    let names: Vec<&str> = names.collect();
    let aligned = match (s.name(), modifiers.len() - names.len()) {
        ("bar", 0) => true,
        ("barrier", count @ 0..=1) => count == 1,
        _ => return Err(UNSUPPORTED),
    };
    let flags = if aligned { FLAG_ALIGNED } else { 0 };
    let (op, operands) = match names[..] {
        ["sync"] => (BarrierOp::Sync, 1..=2),
        ["arrive"] => (BarrierOp::Arrive, 2..=2),
        ["red", "popc", "u32"] => (BarrierOp::ReducePopulation, 3..=4),
        ["red", "and", "pred"] => (BarrierOp::ReduceAnd, 3..=4),
        ["red", "or", "pred"] => (BarrierOp::ReduceOr, 3..=4),
        _ => return Err(UNSUPPORTED),
    };
    s.expect_operands(*operands.start(), *operands.end())?;
    let reduces = !matches!(op, BarrierOp::Sync | BarrierOp::Arrive);
    let first = usize::from(reduces);
    let mut instruction = Instruction { flags, ..Instruction::new(Op::Barrier(op)) };
    instruction.a = b.source(s, first, 32)?;
    if s.operands.len() == *operands.end() {
        instruction.b = b.source(s, first + 1, 32)?;
        instruction.flags |= FLAG_OPTIONAL;
    }
    if reduces {
        let (predicate, negated) = b.predicate_source(s, s.operands.len() - 1)?;
        instruction.c = predicate;
        instruction.flags |= if negated { FLAG_NEGATE_SOURCE } else { 0 };
        instruction.d = if op == BarrierOp::ReducePopulation {
            b.destination(s, 0, 32)?
        } else {
            let (result, _) = b.destination_pair(s, 0)?;
            b.predicate_destination(result)?
        };
    }
    Ok(instruction)
}
