//! How long instructions take the emulator, in steps: what it does in some 30 ns with all checks.

use super::{
    AtomicType, FLAG_OPTIONAL, FloatOp, Instruction, IntegerOp, MatrixOp, MatrixShape, MbarrierOp, Op,
    RareOp, Rounding, WgmmaOp, WgmmaShape,
};

/// Products of a matrix instruction, of any type but those for which there are vectors, for each step: such
/// are made one after the other.
const PRODUCTS: usize = 2;
/// The same of one by a warpgroup, which reads its operands once for all columns.
const WARPGROUP_PRODUCTS: usize = 6;

/// What an instruction counts for beside one step, whatever its operands are.
pub fn beside(i: &Instruction) -> u16 {
    match i.op {
        Op::Float32(FloatOp::Sin | FloatOp::Cos | FloatOp::Tanh | FloatOp::Lg2) => 8,
        Op::Float32(op) | Op::Float64(op) if i.count != Rounding::NearestEven as u8 => match op {
            FloatOp::Sqrt | FloatOp::Div | FloatOp::Rcp => 40,
            _ => 28,
        },
        Op::Float32(FloatOp::Min | FloatOp::Max) if i.flags != 0 => 3,
        Op::Integer32(
            IntegerOp::Logic3
            | IntegerOp::Permute
            | IntegerOp::PermuteByTable
            | IntegerOp::DotBytes
            | IntegerOp::DotHalves,
        ) => 4,
        Op::Integer64(
            IntegerOp::DivUnsigned
            | IntegerOp::DivSigned
            | IntegerOp::RemUnsigned
            | IntegerOp::RemSigned,
        ) => 2,
        Op::Half(_) | Op::Bfloat(_) | Op::HalfPair(_) | Op::BfloatPair(_) => 48,
        Op::Convert => 8,
        // The nearest numbers have a loop of their own.
        Op::ConvertPairHalf | Op::ConvertPairBfloat if i.flags != 0 || i.count != 0 => 12,
        Op::Rare(RareOp::Fp8FromSingles | RareOp::Fp8FromHalves) => 192,
        Op::Rare(_) => 64,
        Op::Carry(_) | Op::MapAddress | Op::BlockRank | Op::IsOwnShared | Op::IsConstant => 4,
        Op::StackAllocate | Op::StackSave | Op::StackRestore => 4,
        Op::ReplaceInMap | Op::CopyMap => 64,
        Op::Load(_) | Op::Store(_) => {
            let of_element = if i.b < 4 { 16 } else { 4 };
            of_element * u16::from(i.count.max(1))
        }
        Op::Atomic(_) => {
            let elements = if i.has(FLAG_OPTIONAL) { i.c & 0xffff } else { 1 };
            let of_element = match AtomicType::ALL.get(usize::from(i.count)) {
                Some(AtomicType::F16 | AtomicType::Bf16 | AtomicType::F16x2 | AtomicType::Bf16x2) => 48,
                _ => 16,
            };
            of_element * elements as u16
        }
        Op::Shuffle(_) | Op::AsyncCopy(_) => 4,
        Op::Fence | Op::ProxyFence | Op::MbarrierFence => 12,
        Op::MatchAny => 24,
        Op::Matrix(op) => of_matrix(i, op),
        Op::Wgmma(WgmmaOp::Multiply) => of_warpgroup(i),
        Op::Mbarrier(MbarrierOp::Init | MbarrierOp::Invalidate) => 4,
        Op::Mbarrier(_) => 16,
        Op::Barrier(_) | Op::ClusterArrive | Op::ClusterWait | Op::BranchIndexed => 8,
        Op::Call | Op::Return => 8,
        Op::CallBuiltin(_) => 32,
        _ => 0,
    }
}

/// A matrix instruction of a warp.
fn of_matrix(i: &Instruction, op: MatrixOp) -> u16 {
    match op {
        MatrixOp::M16N8K16Bf16
        | MatrixOp::M16N8K16F16
        | MatrixOp::M16N8K8Bf16
        | MatrixOp::M16N8K8F16
        | MatrixOp::M16N8K8Tf32
        | MatrixOp::M16N8K4Tf32
        | MatrixOp::MoveTransposed
        | MatrixOp::CheckFragment => 4,
        MatrixOp::LoadMatrix | MatrixOp::StoreMatrix => 16,
        MatrixOp::M16N8K32Bytes | MatrixOp::M16N8K16Bytes | MatrixOp::M8N8K16Bytes => 64,
        MatrixOp::MultiplyVolta => 96,
        MatrixOp::Multiply | MatrixOp::MultiplySparse => {
            let shape = MatrixShape::decode(i.immediate);
            // Half of the values of a sparse A are not there.
            let k = if op == MatrixOp::MultiplySparse { shape.k / 2 } else { shape.k };
            limited(shape.rows * 8 * k / PRODUCTS)
        }
    }
}

/// A warp's part of a matrix instruction of a warpgroup.
fn of_warpgroup(i: &Instruction) -> u16 {
    let shape = WgmmaShape::decode(i.e);
    let columns = shape.columns as usize;
    if shape.is_usual() {
        return limited(4 + columns);
    }
    let kept = if shape.selector.is_none() { shape.k() } else { shape.k() / 2 };
    limited(4 + 16 * columns * kept / WARPGROUP_PRODUCTS)
}

fn limited(steps: usize) -> u16 {
    steps.try_into().unwrap_or(u16::MAX)
}
