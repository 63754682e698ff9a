//! Collects the code of one kernel while its statements are read.

use crate::error::{ParseError, ParseErrorKind};
use crate::isa::{Code, FLAG_NEGATE_GUARD, Fill, Instruction, Op, ROW_SINK};
use crate::module::{KernelData, Unsupported};
use crate::parse::globals::Globals;
use crate::parse::scope::{Class, Register, Scopes, Symbol};
use crate::parse::statement::Statement;
use crate::space::{LOCAL_BASE, SHARED_BASE, Space};
use std::collections::HashMap;

/// Where an instruction stands.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// PTX line, from 1.
    pub line: u32,
    /// Range of the module's text.
    pub text: (u32, u32),
    /// Index into the module's locations.
    pub location: u32,
}

/// What a label will be written into.
#[derive(Clone, Copy, Debug)]
pub enum Patch {
    /// The `immediate` of an instruction.
    Immediate(usize),
    /// A place in the lists.
    List(usize),
}

struct Fixup<'a> {
    patch: Patch,
    label: &'a str,
    scope: usize,
    place: Place,
}

/// The code of one kernel in the making.
pub struct Builder<'a, 'm> {
    /// Names and registers.
    pub scopes: Scopes<'a>,
    globals: &'m Globals<'a>,
    code: Code,
    fills: HashMap<Fill, u32>,
    fixups: Vec<Fixup<'a>>,
    pending: Vec<(Patch, &'a str)>,
    targets: HashMap<&'a str, Vec<&'a str>>,
    carry: Option<u32>,
    unsupported: Vec<Unsupported>,
    /// The first argument or result of a call.
    argument: Option<Unsupported>,
    shared_bytes: u32,
    dynamic_align: u32,
    local_bytes: u32,
}

type Result<T> = std::result::Result<T, ParseErrorKind>;

impl<'a, 'm> Builder<'a, 'm> {
    /// An empty kernel in a module.
    pub fn new(globals: &'m Globals<'a>) -> Self {
        Builder {
            scopes: Scopes::new(),
            globals,
            code: Code::default(),
            fills: HashMap::new(),
            fixups: Vec::new(),
            pending: Vec::new(),
            targets: HashMap::new(),
            carry: None,
            unsupported: Vec::new(),
            argument: None,
            shared_bytes: 0,
            dynamic_align: 16,
            local_bytes: 0,
        }
    }

    /// Whether to make the register file small.
    pub fn compacts(&self) -> bool {
        self.globals.compact
    }

    /// The number that the next instruction will have.
    pub fn next_instruction(&self) -> u32 {
        self.code.instructions.len() as u32
    }

    /// Appends an instruction.
    pub fn push(&mut self, mut instruction: Instruction, statement: &Statement<'a>, place: Place) {
        if let Some((guard, negated)) = statement.guard {
            instruction.guard = guard;
            instruction.flags |= if negated { FLAG_NEGATE_GUARD } else { 0 };
        }
        let scope = self.scopes.current();
        for (patch, label) in self.pending.drain(..) {
            self.fixups.push(Fixup { patch, label, scope, place });
        }
        self.append(instruction, place);
    }

    /// Appends a placeholder for an instruction that the emulator does not know.
    pub fn push_unsupported(&mut self, text: String, place: Place) {
        self.pending.clear();
        self.unsupported.push(Unsupported { line: place.line, text });
        self.append(Instruction::new(Op::Unsupported), place);
    }

    fn append(&mut self, instruction: Instruction, place: Place) {
        self.code.instructions.push(instruction);
        self.code.lines.push(place.line);
        self.code.texts.push(place.text);
        self.code.locations.push(place.location);
    }

    /// A list of operands; its position.
    pub fn list(&mut self, rows: &[u32]) -> u32 {
        let at = self.code.lists.len() as u32;
        self.code.lists.extend_from_slice(rows);
        at
    }

    /// Has the label's instruction number written somewhere once it is known.
    pub fn patch_label(&mut self, patch: Patch, label: &'a str) {
        self.pending.push((patch, label));
    }

    /// Declares a table of branch targets.
    pub fn declare_targets(&mut self, name: &'a str, targets: Vec<&'a str>) {
        self.targets.insert(name, targets);
    }

    /// Declares an argument or result of a call; a kernel with any is unsupported, call or not.
    pub fn declare_argument(&mut self, name: &'a str, text: String, line: u32) {
        self.scopes.declare_symbol(name, Symbol::Argument);
        self.argument.get_or_insert(Unsupported { line, text });
    }

    /// A declared table of branch targets.
    pub fn targets(&self, name: &str) -> Option<Vec<&'a str>> {
        self.targets.get(name).cloned()
    }

    /// Finds room for a `.shared` variable; its address.
    pub fn place_shared(&mut self, bytes: u32, align: u32) -> u32 {
        let offset = self.shared_bytes.next_multiple_of(align);
        self.shared_bytes = offset.saturating_add(bytes).min(1 << 30);
        SHARED_BASE + offset
    }

    /// Finds room for a `.local` variable; its offset.
    pub fn place_local(&mut self, bytes: u32, align: u32) -> u32 {
        let offset = self.local_bytes.next_multiple_of(align);
        self.local_bytes = offset.saturating_add(bytes).min(1 << 30);
        LOCAL_BASE + offset
    }

    /// The row that holds a constant, symbol or special register.
    pub fn fill(&mut self, fill: Fill, wide: bool) -> Result<u32> {
        if let Some(&row) = self.fills.get(&fill) {
            return Ok(row);
        }
        let row = self.register(if wide { Class::Bits64 } else { Class::Bits32 })?.index;
        self.fills.insert(fill, row);
        self.code.fills.push((row, fill));
        Ok(row)
    }

    /// A register without a name.
    pub fn register(&mut self, class: Class) -> Result<Register> {
        self.scopes.allocate(class, 1).ok_or(ParseErrorKind::Limit("the number of registers"))
    }

    /// The predicate that holds the carry.
    pub fn carry(&mut self) -> Result<u32> {
        if let Some(carry) = self.carry {
            return Ok(carry);
        }
        let carry = self.register(Class::Predicate)?.index;
        self.carry = Some(carry);
        Ok(carry)
    }

    /// The variable of a name; a module's `.shared` variable gets its place in the kernel here.
    pub fn symbol(&mut self, name: &'a str) -> Option<Symbol> {
        if let Some(symbol) = self.scopes.symbol(name) {
            return Some(symbol);
        }
        if let Some(&index) = self.globals.variables.get(name) {
            return Some(Symbol::Variable(index));
        }
        let shared = *self.globals.shared.get(name)?;
        let symbol = if shared.bytes == 0 {
            self.dynamic_align = self.dynamic_align.max(shared.align);
            Symbol::DynamicShared
        } else {
            Symbol::Shared(self.place_shared(shared.bytes, shared.align))
        };
        self.scopes.declare_outer_symbol(name, symbol);
        Some(symbol)
    }

    /// The row that holds a variable's address, plus a constant.
    ///
    /// A parameter's address counts as generic; the others are addresses in their own space.
    pub fn address_of(&mut self, symbol: Symbol, offset: i64, wide: bool) -> Result<u32> {
        let constant = match symbol {
            Symbol::Param(at) => Space::Param.window() + u64::from(at),
            Symbol::Local(at) | Symbol::Shared(at) => u64::from(at),
            Symbol::DynamicShared if offset == 0 => {
                return self.fill(Fill::DynamicShared { wide }, wide);
            }
            Symbol::DynamicShared | Symbol::Argument => {
                return Err(ParseErrorKind::UnsupportedInstruction);
            }
            Symbol::Variable(index) => return self.fill(Fill::Variable { index, offset, wide }, wide),
        };
        self.constant(constant.wrapping_add(offset as u64), wide)
    }

    /// The row that holds a constant.
    pub fn constant(&mut self, value: u64, wide: bool) -> Result<u32> {
        let fill = if wide { Fill::Constant64(value) } else { Fill::Constant32(value as u32) };
        self.fill(fill, wide)
    }

    /// Ends the kernel: resolves labels and moves everything into it.
    pub fn finish(&mut self, kernel: &mut KernelData) -> std::result::Result<(), ParseError> {
        self.append(Instruction::new(Op::Exit), Place { line: 0, text: (0, 0), location: 0 });
        for fixup in &self.fixups {
            let Some(target) = self.scopes.label(fixup.label, fixup.scope) else {
                let kind = ParseErrorKind::UnknownName(fixup.label.to_string());
                return Err(ParseError { line: fixup.place.line, text: fixup.label.to_string(), kind });
            };
            match fixup.patch {
                Patch::Immediate(index) => self.code.instructions[index].immediate = target as i32,
                Patch::List(index) => self.code.lists[index] = target,
            }
        }
        debug_assert_eq!(ROW_SINK, 0);
        (self.code.rows, self.code.predicates) = self.scopes.sizes();
        kernel.code = std::mem::take(&mut self.code);
        kernel.unsupported = std::mem::take(&mut self.unsupported);
        if kernel.unsupported.is_empty() {
            kernel.unsupported.extend(self.argument.take());
        }
        kernel.static_shared_bytes = self.shared_bytes;
        kernel.dynamic_shared_align = self.dynamic_align;
        kernel.local_bytes = self.local_bytes;
        Ok(())
    }
}
