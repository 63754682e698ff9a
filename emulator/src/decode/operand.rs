//! Operands to rows and predicates.

use super::{Builder, Result, Statement, UNSUPPORTED};
use crate::error::ParseErrorKind;
use crate::isa::{
    Fill, PREDICATE_CLUSTERS, PREDICATE_FALSE, PREDICATE_SINK, PREDICATE_TRUE, ROW_SINK, Special,
};
use crate::parse::operand::{Operand, Scalar};
use crate::parse::scope::{Class, Register, Symbol};

const KIND: ParseErrorKind = ParseErrorKind::Operand("operand of the wrong kind");
const WIDTH: ParseErrorKind = ParseErrorKind::Operand("operand of the wrong width");

/// Whether a register can hold a value of so many bits; 16-bit values also live in 32-bit registers.
fn fits(class: Class, bits: u32) -> bool {
    match class {
        Class::Predicate => false,
        Class::Bits16 | Class::Bits32 => bits <= 32,
        Class::Bits64 => bits == 64,
        Class::Bits128 => bits == 128,
    }
}

/// Whether a special register is one of so many.
fn is_numbered(name: &str, family: &str, count: u32) -> bool {
    let number = name.strip_prefix(family).and_then(|number| number.parse().ok());
    number.is_some_and(|number: u32| number < count)
}

/// `%pm0_64` to `%pm7_64`.
fn is_counter64(name: &str) -> bool {
    name.strip_suffix("_64").is_some_and(|name| is_numbered(name, "%pm", 8))
}

/// The value of a special register.
fn special(name: &str) -> Option<Special> {
    let (name, dimension) = match name.split_once('.') {
        Some((name, "x")) => (name, 0),
        Some((name, "y")) => (name, 1),
        Some((name, "z")) => (name, 2),
        Some(_) => return None,
        None => (name, 3),
    };
    Some(match (name, dimension) {
        ("%tid", 0..=2) => Special::Thread(dimension),
        ("%ntid", 0..=2) => Special::Threads(dimension),
        ("%ctaid", 0..=2) => Special::Block(dimension),
        ("%nctaid", 0..=2) => Special::Blocks(dimension),
        ("%cluster_ctaid", 0..=2) => Special::BlockInCluster(dimension),
        ("%cluster_nctaid", 0..=2) => Special::BlocksOfCluster(dimension),
        ("%clusterid", 0..=2) => Special::Cluster(dimension),
        ("%nclusterid", 0..=2) => Special::Clusters(dimension),
        ("%cluster_ctarank", 3) => Special::ClusterRank,
        ("%cluster_nctarank", 3) => Special::ClusterSize,
        ("%laneid", 3) => Special::Lane,
        ("%warpid", 3) => Special::Warp,
        ("%nwarpid", 3) => Special::Warps,
        ("%lanemask_eq", 3) => Special::LaneMaskEq,
        ("%lanemask_lt", 3) => Special::LaneMaskLt,
        ("%lanemask_le", 3) => Special::LaneMaskLe,
        ("%lanemask_gt", 3) => Special::LaneMaskGt,
        ("%lanemask_ge", 3) => Special::LaneMaskGe,
        ("%dynamic_smem_size", 3) => Special::DynamicSharedBytes,
        ("%total_smem_size" | "%aggr_smem_size", 3) => Special::TotalSharedBytes,
        ("%smid" | "%gridid", 3) => Special::Zero,
        // Where the variables of shared memory start.
        ("%reserved_smem_offset_end" | "%reserved_smem_offset_cap", 3) => Special::SystemSharedBytes,
        // A workspace of the grid, which cooperative launches have.
        ("%envreg1", 3) => Special::Workspace { high: true },
        ("%envreg2", 3) => Special::Workspace { high: false },
        // Nobody has set or started these.
        (name, 3) if is_numbered(name, "%envreg", 32) || is_numbered(name, "%pm", 8) => Special::Zero,
        // The clocks, which count instructions, do not get that far.
        ("%clock_hi" | "%globaltimer_hi", 3) => Special::Zero,
        ("%nsmid", 3) => Special::One,
        _ => return None,
    })
}

impl<'a> Builder<'a, '_> {
    /// The row of a source value of so many bits.
    pub fn source_scalar(&mut self, scalar: Scalar<'a>, bits: u32) -> Result<u32> {
        let wide = bits == 64;
        match scalar {
            Scalar::Register(r) if fits(r.class, bits) => Ok(r.index),
            Scalar::Register(_) => Err(WIDTH),
            _ if bits > 64 => Err(KIND),
            Scalar::Integer(value) => self.constant(value, wide),
            Scalar::Single(value) if wide => {
                self.constant(f64::from(f32::from_bits(value)).to_bits(), true)
            }
            Scalar::Single(value) => self.constant(u64::from(value), false),
            Scalar::Double(value) if wide => self.constant(value, true),
            Scalar::Double(value) => {
                self.constant(u64::from((f64::from_bits(value) as f32).to_bits()), false)
            }
            Scalar::Name(
                "%reserved_smem_offset_begin" | "%reserved_smem_offset_0" | "%reserved_smem_offset_1",
            ) if !wide => {
                let address = u64::from(self.system_shared());
                self.fill(Fill::Shared { address, wide }, wide)
            }
            Scalar::Name(name) if name.starts_with('%') => match special(name) {
                Some(value) if !wide => self.fill(Fill::Special(value), false),
                Some(Special::Zero) if name == "%gridid" => self.constant(0, true),
                // Nobody has started these counters, or the graph.
                None if wide && (name == "%current_graph_exec" || is_counter64(name)) => {
                    self.constant(0, true)
                }
                _ => Err(ParseErrorKind::UnknownName(name.to_string())),
            },
            Scalar::Name(name) => self.symbol_address(name, 0, wide),
            Scalar::NamePlus(name, offset) => self.symbol_address(name, offset, wide),
            Scalar::Sink => Err(KIND),
        }
    }

    fn symbol_address(&mut self, name: &'a str, offset: i64, wide: bool) -> Result<u32> {
        let Some(symbol) = self.symbol(name) else {
            return Err(ParseErrorKind::UnknownName(name.to_string()));
        };
        self.address_of(symbol, offset, wide)
    }

    /// The row of a destination of so many bits.
    pub fn destination_scalar(&mut self, scalar: Scalar<'a>, bits: u32) -> Result<u32> {
        match scalar {
            Scalar::Register(r) if fits(r.class, bits) => Ok(r.index),
            Scalar::Register(_) => Err(WIDTH),
            Scalar::Sink => Ok(ROW_SINK),
            Scalar::Name(name) => Err(ParseErrorKind::UnknownName(name.to_string())),
            _ => Err(KIND),
        }
    }

    /// The row of source operand `index`.
    pub fn source(&mut self, s: &Statement<'a>, index: usize, bits: u32) -> Result<u32> {
        match s.operands.get(index) {
            Some(&Operand::Scalar(scalar)) => self.source_scalar(scalar, bits),
            _ => Err(KIND),
        }
    }

    /// The row of destination operand `index`.
    pub fn destination(&mut self, s: &Statement<'a>, index: usize, bits: u32) -> Result<u32> {
        match s.operands.get(index) {
            Some(&Operand::Scalar(scalar)) => self.destination_scalar(scalar, bits),
            _ => Err(KIND),
        }
    }

    /// The register of operand `index`, whatever its class.
    pub fn any_register(&self, s: &Statement<'a>, index: usize) -> Result<Register> {
        match s.operands.get(index) {
            Some(&Operand::Scalar(Scalar::Register(register))) => Ok(register),
            Some(Operand::Scalar(Scalar::Name(name))) => {
                Err(ParseErrorKind::UnknownName(name.to_string()))
            }
            _ => Err(KIND),
        }
    }

    /// The predicate of a source, and whether it is negated.
    pub fn predicate_source(&mut self, s: &Statement<'a>, index: usize) -> Result<(u32, bool)> {
        match s.operands.get(index) {
            Some(&Operand::Scalar(Scalar::Register(r))) if r.class == Class::Predicate => {
                Ok((r.index, false))
            }
            Some(&Operand::Negated(Scalar::Register(r))) if r.class == Class::Predicate => {
                Ok((r.index, true))
            }
            Some(&Operand::Scalar(Scalar::Integer(0))) => Ok((PREDICATE_FALSE, false)),
            Some(&Operand::Scalar(Scalar::Name("%is_explicit_cluster"))) => {
                Ok((PREDICATE_CLUSTERS, false))
            }
            Some(&Operand::Scalar(Scalar::Integer(_))) => Ok((PREDICATE_TRUE, false)),
            _ => Err(KIND),
        }
    }

    /// The predicate that a result goes to.
    pub fn predicate_destination(&mut self, scalar: Scalar<'a>) -> Result<u32> {
        match scalar {
            Scalar::Register(r) if r.class == Class::Predicate => Ok(r.index),
            Scalar::Sink => Ok(PREDICATE_SINK),
            Scalar::Name(name) => Err(ParseErrorKind::UnknownName(name.to_string())),
            _ => Err(KIND),
        }
    }

    /// `d` or `d|p`: the destination and the predicate that goes with it.
    pub fn destination_pair(
        &self,
        s: &Statement<'a>,
        index: usize,
    ) -> Result<(Scalar<'a>, Option<Scalar<'a>>)> {
        match s.operands.get(index) {
            Some(&Operand::Scalar(scalar)) => Ok((scalar, None)),
            Some(&Operand::Pair(first, second)) => Ok((first, Some(second))),
            _ => Err(KIND),
        }
    }

    /// The elements of a vector operand; a scalar counts as one.
    pub fn elements(&self, s: &Statement<'a>, index: usize) -> Result<Vec<Scalar<'a>>> {
        match s.operands.get(index) {
            Some(&Operand::Scalar(scalar)) => Ok(vec![scalar]),
            Some(Operand::Vector(elements)) => Ok(elements.clone()),
            _ => Err(KIND),
        }
    }

    /// The value of an immediate operand.
    pub fn immediate(&self, s: &Statement<'a>, index: usize) -> Result<i32> {
        match s.operands.get(index) {
            Some(&Operand::Scalar(Scalar::Integer(value))) => Ok(value as i32),
            _ => Err(ParseErrorKind::Operand("expected an immediate")),
        }
    }

    /// An address operand: the row of its base, its offset, and whether the row is 64 bits wide.
    pub fn address(&mut self, s: &Statement<'a>, index: usize) -> Result<(u32, i32, bool)> {
        let Some(&Operand::Address(base, offset)) = s.operands.get(index) else {
            return Err(KIND);
        };
        let offset = i32::try_from(offset).map_err(|_| ParseErrorKind::Limit("an address offset"))?;
        match base {
            Scalar::Register(r) if r.class == Class::Bits64 => Ok((r.index, offset, true)),
            Scalar::Register(r) if r.class == Class::Bits32 => Ok((r.index, offset, false)),
            Scalar::Integer(value) => Ok((self.constant(value, true)?, offset, true)),
            Scalar::Name(name) => Ok((self.symbol_address(name, 0, true)?, offset, true)),
            _ => Err(WIDTH),
        }
    }

    /// Whether an address operand names an argument or a result of a call.
    pub fn is_argument(&mut self, s: &Statement<'a>, index: usize) -> bool {
        match s.operands.get(index) {
            Some(&Operand::Address(Scalar::Name(name), _)) => {
                matches!(self.symbol(name), Some(Symbol::Argument(_) | Symbol::FrameArgument(_)))
            }
            _ => false,
        }
    }

    /// The parameter that an address operand names, if it names one, and the offset in the buffer.
    pub fn parameter_address(&mut self, s: &Statement<'a>, index: usize) -> Option<i64> {
        match s.operands.get(index) {
            Some(&Operand::Address(Scalar::Name(name), offset)) => match self.symbol(name) {
                Some(Symbol::Param(at)) => Some(i64::from(at).saturating_add(offset)),
                _ => None,
            },
            _ => None,
        }
    }
}

/// The bits of a type of the untyped, integer and float kinds.
pub fn type_bits(name: &str) -> Result<u32> {
    Ok(match name {
        "b8" | "u8" | "s8" => 8,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 16,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" | "tf32" => 32,
        "b64" | "u64" | "s64" | "f64" => 64,
        "b128" => 128,
        _ => return Err(UNSUPPORTED),
    })
}
