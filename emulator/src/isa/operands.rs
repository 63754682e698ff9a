//! Which rows of the register file an instruction reads and writes.
//!
//! This is the one place that knows it; it has to agree with what `exec::ops` does.

use super::{
    AsyncCopyOp, AtomicType, BarrierOp, BulkOp, CarryOp, CompareType, FLAG_OPTIONAL, FLAG_SATURATE,
    FLAG_WIDE_ADDRESS, FloatOp, Fragments, Instruction, IntegerOp, MatrixOp, MbarrierOp, MoveOp, Op,
    VoltaShape, VoteOp, WGMMA_K, WgmmaOp, WgmmaShape, bulk_list,
};

/// How an instruction uses a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Its value matters.
    Read,
    /// It gets a new value.
    Write,
    /// Both.
    Update,
}

/// Calls `f` with every row operand of an instruction, how many rows it spans, and its role.
/// Operands in
/// lists are visited there. `f` may rename them.
pub fn visit(i: &mut Instruction, lists: &mut [u32], f: &mut impl FnMut(&mut u32, u32, Role)) {
    use Role::{Read, Write};
    match i.op {
        Op::Nop | Op::Branch | Op::Exit | Op::Return | Op::Trap | Op::Unsupported => {}
        Op::Predicate(_) => {}
        Op::Call | Op::CallBuiltin(_) => {
            if i.op == Op::Call && i.immediate < 0 {
                f(&mut i.a, 2, Read);
            }
            list(lists, i.d, usize::from(i.count) + i.e as usize, 1, Read, f);
        }
        Op::AllowNextGrid | Op::AwaitGrid | Op::ClusterArrive | Op::ClusterWait => {}
        Op::ProxyFence | Op::Fence | Op::MbarrierFence | Op::SetMaxRegisters => {}
        Op::Rare(op) => {
            let [d, a, b, c] = op.rows();
            all(i, [d, a, b, c, 0], f);
        }
        Op::IsConstant | Op::IsOwnShared => f(&mut i.a, 2, Read),
        Op::StackAllocate => {
            let rows = u32::from(i.count);
            all(i, [rows, rows, 0, 0, 0], f);
        }
        Op::StackSave => f(&mut i.d, u32::from(i.count), Write),
        Op::StackRestore => f(&mut i.a, u32::from(i.count), Read),
        Op::ReplaceInMap => {
            address(i, f);
            f(&mut i.b, u32::from(i.count), Read);
        }
        Op::CopyMap => {
            f(&mut i.a, 2, Read);
            let rows = if i.has(FLAG_WIDE_ADDRESS) { 2 } else { 1 };
            f(&mut i.b, rows, Read);
        }
        Op::BranchIndexed | Op::WarpSync => f(&mut i.a, 1, Read),
        Op::Barrier(op) => barrier(i, op, f),
        Op::Integer16(op) => integer(i, op, [1, 1], f),
        Op::Integer32(op) => integer(i, op, [1, 2], f),
        Op::Integer64(op) => integer(i, op, [2, 4], f),
        Op::Carry(op) => {
            let (rows, c) = (u32::from(i.count), !matches!(op, CarryOp::Add | CarryOp::Sub));
            all(i, [rows, rows, rows, if c { rows } else { 0 }, 0], f);
        }
        Op::Float32(op) | Op::Half(op) | Op::Bfloat(op) | Op::HalfPair(op) | Op::BfloatPair(op) => {
            float(i, op, 1, f);
        }
        Op::Float64(op) => float(i, op, 2, f),
        Op::Compare(ty) => {
            let wide = matches!(ty, CompareType::U64 | CompareType::S64 | CompareType::F64);
            f(&mut i.a, 1 + u32::from(wide), Read);
            f(&mut i.b, 1 + u32::from(wide), Read);
        }
        Op::Select32 | Op::ConvertPairBfloat | Op::ConvertPairHalf => all(i, [1, 1, 1, 0, 0], f),
        Op::Select64 => all(i, [2, 2, 2, 0, 0], f),
        Op::Move(op) => moves(i, op, lists, f),
        Op::Convert => {
            let (d, a) = (1 + (i.immediate as u32 & 1), 1 + (i.immediate as u32 >> 1 & 1));
            all(i, [d, a, 0, 0, 0], f);
        }
        Op::ConvertU32ToU64 | Op::ConvertS32ToS64 => all(i, [2, 1, 0, 0, 0], f),
        Op::ConvertU64ToU32 => all(i, [1, 2, 0, 0, 0], f),
        Op::ConvertU32ToU16 | Op::ConvertBfloatToF32 | Op::ConvertHalfToF32 | Op::ConvertTf32 => {
            all(i, [1, 1, 0, 0, 0], f)
        }
        Op::Load(_) | Op::Store(_) => access(i, lists, f),
        Op::Atomic(_) => atomic(i, lists, f),
        Op::Shuffle(_) => all(i, [1, 1, 1, 1, 1], f),
        Op::Vote(op) => {
            f(&mut i.b, 1, Read);
            if op == VoteOp::Ballot {
                f(&mut i.d, 1, Write);
            }
        }
        Op::MatchAny | Op::MatchAll => all(i, [1, u32::from(i.count), 1, 0, 0], f),
        Op::Redux(_) | Op::Elect => all(i, [1, 1, 1, 0, 0], f),
        Op::ActiveMask | Op::Clock32 => f(&mut i.d, 1, Write),
        Op::Clock64 => f(&mut i.d, 2, Write),
        Op::Matrix(op) => matrix(i, op, lists, f),
        Op::FragmentPlace => {
            let rows = if i.has(FLAG_WIDE_ADDRESS) { 2 } else { 1 };
            all(i, [rows, rows, 1, 0, 0], f);
        }
        Op::AsyncCopy(AsyncCopyOp::Copy) => {
            address(i, f);
            f(&mut i.b, 2, Read);
            if i.has(FLAG_OPTIONAL) {
                f(&mut i.c, 1, Read);
            }
        }
        Op::AsyncCopy(_) => {}
        Op::Mbarrier(op) => mbarrier(i, op, f),
        Op::Bulk(op) => bulk(i, op, lists, f),
        Op::Wgmma(op) => wgmma(i, op, lists, f),
        Op::MapAddress => all(i, [u32::from(i.count), u32::from(i.count), 1, 0, 0], f),
        Op::BlockRank => all(i, [1, u32::from(i.count), 0, 0, 0], f),
    }
}

/// Calls `f` with every predicate of an instruction, its guard left out, and its role.
pub fn visit_predicates(i: &Instruction, f: &mut impl FnMut(u32, Role)) {
    use Role::{Read, Write};
    match i.op {
        Op::Compare(_) => {
            if i.immediate != 0 {
                f(i.c, Read);
            }
            f(i.d, Write);
            f(i.e, Write);
        }
        Op::Select32 | Op::Select64 | Op::Wgmma(WgmmaOp::Multiply) => f(i.c, Read),
        Op::Predicate(_) => {
            f(i.a, Read);
            f(i.b, Read);
            f(i.d, Write);
        }
        Op::Vote(op) => {
            f(i.a, Read);
            if op != VoteOp::Ballot {
                f(i.d, Write);
            }
        }
        Op::Barrier(op) => {
            f(i.c, Read);
            if matches!(op, BarrierOp::ReduceAnd | BarrierOp::ReduceOr) {
                f(i.d, Write);
            }
        }
        Op::Carry(_) => {
            if i.has(FLAG_OPTIONAL) {
                f(i.e, Read);
            }
            if i.has(FLAG_SATURATE) {
                f(i.e, Write);
            }
        }
        Op::Shuffle(_) => f(i.immediate as u32, Write),
        Op::MatchAll | Op::Elect => f(i.e, Write),
        Op::Move(MoveOp::IsSpace) | Op::IsConstant | Op::IsOwnShared => f(i.d, Write),
        Op::Mbarrier(op) if op.polls() => f(i.d, Write),
        _ => {}
    }
}

/// Reads of `a`, `b`, `c`, `e` and a write of `d`, of so many rows each, `d` first; 0: no operand.
fn all(i: &mut Instruction, [d, a, b, c, e]: [u32; 5], f: &mut impl FnMut(&mut u32, u32, Role)) {
    for (row, rows) in [(&mut i.a, a), (&mut i.b, b), (&mut i.c, c), (&mut i.e, e)] {
        if rows != 0 {
            f(row, rows, Role::Read);
        }
    }
    if d != 0 {
        f(&mut i.d, d, Role::Write);
    }
}

fn address(i: &mut Instruction, f: &mut impl FnMut(&mut u32, u32, Role)) {
    let rows = if i.has(FLAG_WIDE_ADDRESS) { 2 } else { 1 };
    f(&mut i.a, rows, Role::Read);
}

fn list(
    lists: &mut [u32],
    at: u32,
    count: usize,
    rows: u32,
    role: Role,
    f: &mut impl FnMut(&mut u32, u32, Role),
) {
    for row in &mut lists[at as usize..at as usize + count] {
        f(row, rows, role);
    }
}

fn rows_of(bytes: u32) -> u32 {
    bytes.div_ceil(4)
}

fn barrier(i: &mut Instruction, op: BarrierOp, f: &mut impl FnMut(&mut u32, u32, Role)) {
    f(&mut i.a, 1, Role::Read);
    if i.has(FLAG_OPTIONAL) {
        f(&mut i.b, 1, Role::Read);
    }
    if op == BarrierOp::ReducePopulation {
        f(&mut i.d, 1, Role::Write);
    }
}

/// `rows` of a value of the operation's width and of twice the width.
fn integer(
    i: &mut Instruction,
    op: IntegerOp,
    [one, two]: [u32; 2],
    f: &mut impl FnMut(&mut u32, u32, Role),
) {
    use IntegerOp as I;
    let operands = match op {
        I::Not | I::LogicalNot | I::Neg | I::Abs | I::ReverseBits => [one, one, 0, 0, 0],
        I::PopulationCount | I::LeadingZeros | I::FindHighUnsigned | I::FindHighSigned => {
            [1, one, 0, 0, 0]
        }
        I::ShiftToHighUnsigned | I::ShiftToHighSigned => [1, one, 0, 0, 0],
        I::ShiftLeft | I::ShiftRightUnsigned | I::ShiftRightSigned => [one, one, 1, 0, 0],
        I::MulWideUnsigned | I::MulWideSigned => [two, one, one, 0, 0],
        I::MadWideUnsigned | I::MadWideSigned => [two, one, one, two, 0],
        I::Mad | I::MadHighUnsigned | I::MadHighSigned | I::MadHighSaturating => [one, one, one, one, 0],
        I::SadUnsigned | I::SadSigned => [one, one, one, one, 0],
        I::FieldExtractUnsigned | I::FieldExtractSigned => [one, one, 1, 1, 0],
        I::FieldInsert => [one, one, one, 1, 1],
        I::SelectBySign | I::SelectByFloat => [one, one, one, 1, 0],
        I::Permute | I::PermuteByTable | I::Logic3 | I::DotBytes | I::DotHalves => [1, 1, 1, 1, 0],
        I::Mad24Unsigned | I::Mad24Signed | I::Mad24HighUnsigned | I::Mad24HighSigned => [1, 1, 1, 1, 0],
        I::Mad24HighSaturating => [1, 1, 1, 1, 0],
        I::FunnelLeftWrap | I::FunnelLeftClamp | I::FunnelRightWrap | I::FunnelRightClamp => {
            [1, 1, 1, 1, 0]
        }
        _ => [one, one, one, 0, 0],
    };
    all(i, operands, f);
}

fn float(i: &mut Instruction, op: FloatOp, rows: u32, f: &mut impl FnMut(&mut u32, u32, Role)) {
    let operands = match op {
        FloatOp::Fma => [rows, rows, rows, rows, 0],
        FloatOp::Add | FloatOp::Sub | FloatOp::Mul | FloatOp::Div => [rows, rows, rows, 0, 0],
        FloatOp::Min | FloatOp::Max | FloatOp::CopySign => [rows, rows, rows, 0, 0],
        _ => [rows, rows, 0, 0, 0],
    };
    all(i, operands, f);
}

fn moves(i: &mut Instruction, op: MoveOp, lists: &mut [u32], f: &mut impl FnMut(&mut u32, u32, Role)) {
    let (element, whole, count) = (rows_of(i.b), rows_of(i.c), usize::from(i.count));
    match op {
        MoveOp::Bits32 => all(i, [1, 1, 0, 0, 0], f),
        MoveOp::Bits64 => all(i, [2, 2, 0, 0, 0], f),
        MoveOp::Bits128 => all(i, [4, 4, 0, 0, 0], f),
        MoveOp::ToGeneric | MoveOp::FromGeneric => all(i, [2, 2, 2, 0, 0], f),
        MoveOp::IsSpace => f(&mut i.a, 2, Role::Read),
        MoveOp::Pack => {
            list(lists, i.a, count, element, Role::Read, f);
            f(&mut i.d, whole, Role::Write);
        }
        MoveOp::Unpack => {
            f(&mut i.a, whole, Role::Read);
            list(lists, i.d, count, element, Role::Write, f);
        }
    }
}

fn access(i: &mut Instruction, lists: &mut [u32], f: &mut impl FnMut(&mut u32, u32, Role)) {
    if !i.has(FLAG_OPTIONAL) {
        address(i, f);
    }
    let rows = if i.c != 0 { 2 } else { rows_of(i.b) };
    let role = if matches!(i.op, Op::Load(_)) { Role::Write } else { Role::Read };
    list(lists, i.d, usize::from(i.count), rows, role, f);
}

fn atomic(i: &mut Instruction, lists: &mut [u32], f: &mut impl FnMut(&mut u32, u32, Role)) {
    let ty = AtomicType::ALL[usize::from(i.count)];
    let rows = match ty {
        AtomicType::B64 | AtomicType::U64 | AtomicType::S64 | AtomicType::F64 => 2,
        AtomicType::B128 => 4,
        _ => 1,
    };
    address(i, f);
    if i.has(FLAG_OPTIONAL) {
        // A vector: `b` is a list of `c` rows, and behind them of as many results, if there are any.
        let (count, returns) = (i.c as usize & 0xffff, i.c >> 16 != 0);
        list(lists, i.b, count, 1, Role::Read, f);
        return list(lists, i.b + count as u32, if returns { count } else { 0 }, 1, Role::Write, f);
    } else {
        f(&mut i.b, rows, Role::Read);
        f(&mut i.c, rows, Role::Read);
    }
    f(&mut i.d, rows, Role::Write);
}

fn matrix(
    i: &mut Instruction,
    op: MatrixOp,
    lists: &mut [u32],
    f: &mut impl FnMut(&mut u32, u32, Role),
) {
    match op {
        MatrixOp::LoadMatrix | MatrixOp::StoreMatrix => {
            address(i, f);
            let role = if op == MatrixOp::LoadMatrix { Role::Write } else { Role::Read };
            list(lists, i.d, usize::from(i.count), 1, role, f);
        }
        MatrixOp::MoveTransposed => all(i, [1, 1, 0, 0, 0], f),
        MatrixOp::MultiplyVolta => {
            let shape = VoltaShape::decode(i.immediate);
            list(lists, i.a, VoltaShape::FACTOR, 1, Role::Read, f);
            list(lists, i.b, VoltaShape::FACTOR, 1, Role::Read, f);
            list(lists, i.c, shape.sums(), 1, Role::Read, f);
            list(lists, i.d, shape.results(), 1, Role::Write, f);
        }
        MatrixOp::CheckFragment => {
            address(i, f);
            f(&mut i.b, 1, Role::Read);
        }
        _ => {
            let Some(Fragments { a, b, d, value_rows, .. }) = Fragments::of_instruction(i) else {
                return;
            };
            list(lists, i.a, a, value_rows, Role::Read, f);
            list(lists, i.b, b, value_rows, Role::Read, f);
            list(lists, i.c, d, value_rows, Role::Read, f);
            if op == MatrixOp::MultiplySparse {
                f(&mut i.e, 1, Role::Read);
            }
            list(lists, i.d, d, value_rows, Role::Write, f);
        }
    }
}

fn mbarrier(i: &mut Instruction, op: MbarrierOp, f: &mut impl FnMut(&mut u32, u32, Role)) {
    address(i, f);
    if i.has(FLAG_OPTIONAL) {
        f(&mut i.b, if op.takes_token() { 2 } else { 1 }, Role::Read);
    }
    if op.gives_token() {
        f(&mut i.d, 2, Role::Write);
    }
}

fn bulk(i: &mut Instruction, op: BulkOp, lists: &mut [u32], f: &mut impl FnMut(&mut u32, u32, Role)) {
    if matches!(op, BulkOp::Commit | BulkOp::WaitGroup | BulkOp::WaitGroupRead) {
        return;
    }
    address(i, f);
    f(&mut i.b, 2, Role::Read);
    if matches!(op, BulkOp::LoadTensor | BulkOp::Load | BulkOp::LoadShared) {
        let wide = lists[i.d as usize + bulk_list::BARRIER_WIDE] & 1;
        f(&mut i.c, 1 + wide, Role::Read);
    }
    let count = usize::from(i.count) + usize::from(i.has(FLAG_OPTIONAL));
    list(lists, i.d + bulk_list::ROWS as u32, count, 1, Role::Read, f);
}

fn wgmma(i: &mut Instruction, op: WgmmaOp, lists: &mut [u32], f: &mut impl FnMut(&mut u32, u32, Role)) {
    if op != WgmmaOp::Multiply {
        return;
    }
    let shape = WgmmaShape::decode(i.e);
    let accumulators = shape.accumulators();
    if i.has(FLAG_OPTIONAL) {
        list(lists, i.a, WGMMA_K / 4, 1, Role::Read, f);
    } else {
        f(&mut i.a, 2, Role::Read);
    }
    f(&mut i.b, 2, Role::Read);
    list(lists, i.d, accumulators, 1, Role::Update, f);
    if shape.selector.is_some() {
        list(lists, i.d + accumulators as u32, 1, 1, Role::Read, f);
    }
}
