//! Collects the code of one kernel while its statements are read.

use crate::error::{ParseError, ParseErrorKind};
use crate::isa::{
    Code, FLAG_NEGATE_GUARD, FUNCTION_BASE, FUNCTION_BYTES, Fill, FramePlace, FunctionCode, Instruction,
    Op, ROW_SINK, STACK_BYTES,
};
use crate::module::{KernelData, Unsupported};
use crate::parse::globals::{Formal, Globals};
use crate::parse::scope::{Class, Register, Scopes, Symbol};
use crate::parse::statement::Statement;
use crate::space::{LOCAL_BASE, SHARED_BASE, SYSTEM_SHARED_BYTES, Space};
use std::collections::{HashMap, HashSet};

/// Alignment of a call's part of local memory.
const FRAME_ALIGN: u32 = 16;
/// Alignment of the system's part of shared memory.
const SYSTEM_SHARED_ALIGN: u32 = 128;

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
    /// Instructions that come before the one being decoded, and whether they have its guard.
    before: Vec<(Instruction, bool)>,
    targets: HashMap<&'a str, Vec<&'a str>>,
    carry: Option<u32>,
    unsupported: Vec<Unsupported>,
    /// The function whose body is being read, and bytes of its part of local memory so far.
    function: Option<u32>,
    frame_bytes: u32,
    /// The function's first row.
    first_row: u32,
    /// Functions that are called, of which bodies have yet to be read from the back on; and who calls whom.
    needed: Vec<u32>,
    calls: Vec<(Option<u32>, u32)>,
    calls_any: bool,
    shared_bytes: u32,
    system_shared: Option<u32>,
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
            before: Vec::new(),
            targets: HashMap::new(),
            carry: None,
            unsupported: Vec::new(),
            function: None,
            frame_bytes: 0,
            first_row: 0,
            needed: Vec::new(),
            calls: Vec::new(),
            calls_any: false,
            shared_bytes: 0,
            system_shared: None,
            dynamic_align: 16,
            local_bytes: 0,
        }
    }

    /// Whether to make the register file small. Rows of functions must not be those of their callers.
    pub fn compacts(&self) -> bool {
        self.globals.compact && self.needed.is_empty()
    }

    /// The number that the next instruction will have.
    pub fn next_instruction(&self) -> u32 {
        self.code.instructions.len() as u32
    }

    /// Appends an instruction.
    pub fn push(&mut self, mut instruction: Instruction, statement: &Statement<'a>, place: Place) {
        let guarded = |instruction: &mut Instruction| {
            if let Some((guard, negated)) = statement.guard {
                instruction.guard = guard;
                instruction.flags |= if negated { FLAG_NEGATE_GUARD } else { 0 };
            }
        };
        for (mut first, has_guard) in std::mem::take(&mut self.before) {
            if has_guard {
                guarded(&mut first);
            }
            self.append(first, place);
        }
        guarded(&mut instruction);
        let scope = self.scopes.current();
        for (patch, label) in self.pending.drain(..) {
            self.fixups.push(Fixup { patch, label, scope, place });
        }
        self.append(instruction, place);
    }

    /// Appends a placeholder for an instruction that the emulator does not know.
    pub fn push_unsupported(&mut self, text: String, place: Place) {
        self.pending.clear();
        self.before.clear();
        self.unsupported.push(Unsupported { line: place.line, text });
        self.append(Instruction::new(Op::Unsupported), place);
    }

    fn append(&mut self, instruction: Instruction, place: Place) {
        self.code.instructions.push(instruction);
        self.code.lines.push(place.line);
        self.code.texts.push(place.text);
        self.code.locations.push(place.location);
    }

    /// Has an instruction come before the one being decoded, for all lanes: it writes nothing but registers
    /// without a name.
    pub fn emit(&mut self, instruction: Instruction) {
        self.before.push((instruction, false));
    }

    /// Has an instruction come before the one being decoded, under its guard.
    pub fn emit_guarded(&mut self, instruction: Instruction) {
        self.before.push((instruction, true));
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

    /// Declares an argument or result of a call, in local memory.
    pub fn declare_argument(&mut self, name: &'a str, bytes: u32, align: u32) {
        let symbol = match self.place_local(bytes, align) {
            Symbol::Frame(offset) => Symbol::FrameArgument(offset),
            Symbol::Local(offset) => Symbol::Argument(offset),
            other => other,
        };
        self.scopes.declare_symbol(name, symbol);
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

    /// Where the system's part of shared memory is. On a GPU it stands before all variables, here among them.
    pub fn system_shared(&mut self) -> u32 {
        if let Some(address) = self.system_shared {
            return address;
        }
        let address = self.place_shared(SYSTEM_SHARED_BYTES, SYSTEM_SHARED_ALIGN);
        self.system_shared = Some(address);
        address
    }

    /// Finds room for a `.local` variable.
    pub fn place_local(&mut self, bytes: u32, align: u32) -> Symbol {
        let used = if self.is_function() { &mut self.frame_bytes } else { &mut self.local_bytes };
        let offset = used.next_multiple_of(align);
        *used = offset.saturating_add(bytes).min(1 << 30);
        if self.is_function() { Symbol::Frame(offset) } else { Symbol::Local(LOCAL_BASE + offset) }
    }

    /// Whether the body being read is that of a function.
    pub fn is_function(&self) -> bool {
        self.function.is_some()
    }

    /// The number of a function.
    pub fn function(&self, name: &str) -> Option<u32> {
        self.globals.function_numbers.get(name).copied()
    }

    /// Whether the text has the body of a function.
    pub fn has_body(&self, number: u32) -> bool {
        self.globals.functions[number as usize].body.is_some()
    }

    /// Whether a function takes so many arguments and has so many results.
    pub fn takes(&self, number: u32, arguments: usize, results: usize) -> bool {
        let function = &self.globals.functions[number as usize];
        (function.parameters.len(), function.results.len()) == (arguments, results)
    }

    /// A function is called here.
    pub fn need_function(&mut self, number: u32) {
        self.calls.push((self.function, number));
        if !self.needed.contains(&number) {
            self.needed.push(number);
        }
    }

    /// Any function may be called here.
    pub fn need_all_functions(&mut self) {
        self.calls_any = true;
        for number in 0..self.globals.functions.len() as u32 {
            if self.has_body(number) {
                self.need_function(number);
            }
        }
    }

    /// Where the body of the next function stands that is called and has not been read.
    pub fn next_function(&mut self) -> Option<(u32, usize)> {
        let number = *self.needed.get(self.code.functions.len())?;
        Some((number, self.globals.functions[number as usize].body?))
    }

    /// Begins the body of a function.
    pub fn begin_function(&mut self, number: u32) {
        self.scopes.restart();
        (self.function, self.frame_bytes) = (Some(number), 0);
        let function = self.globals.functions[number as usize].clone();
        let mut place = |formals: &[Formal<'a>]| -> Vec<FramePlace> {
            let mut places = Vec::with_capacity(formals.len());
            for &Formal { name, bytes, align } in formals {
                let Symbol::Frame(offset) = self.place_local(bytes, align) else { continue };
                self.scopes.declare_symbol(name, Symbol::FrameArgument(offset));
                places.push(FramePlace { offset, bytes });
            }
            places
        };
        let (results, parameters) = (place(&function.results), place(&function.parameters));
        let (rows, predicates) = self.scopes.sizes();
        self.first_row = rows;
        self.code.functions.push(FunctionCode {
            number,
            name: function.name.to_string(),
            entry: self.next_instruction(),
            parameters,
            results,
            frame_bytes: 0,
            registers: Vec::new(),
            predicates: predicates..predicates,
            recurses: false,
        });
    }

    /// Ends the body of a kernel or a function: it returns, and its labels are resolved.
    pub fn end_body(&mut self) -> std::result::Result<(), ParseError> {
        let op = if self.is_function() { Op::Return } else { Op::Exit };
        self.append(Instruction::new(op), Place { line: 0, text: (0, 0), location: 0 });
        for fixup in std::mem::take(&mut self.fixups) {
            let Some(target) = self.scopes.label(fixup.label, fixup.scope) else {
                let kind = ParseErrorKind::UnknownName(fixup.label.to_string());
                return Err(ParseError { line: fixup.place.line, text: fixup.label.to_string(), kind });
            };
            match fixup.patch {
                Patch::Immediate(index) => self.code.instructions[index].immediate = target as i32,
                Patch::List(index) => self.code.lists[index] = target,
            }
        }
        self.targets.clear();
        self.carry = None;
        let (_, predicates) = self.scopes.sizes();
        if let Some(function) = self.code.functions.last_mut() {
            function.registers = self.scopes.registers_from(self.first_row);
            function.predicates.end = predicates;
            function.frame_bytes = self.frame_bytes.next_multiple_of(FRAME_ALIGN);
        }
        Ok(())
    }

    /// Local memory has a stack.
    pub fn need_stack(&mut self) {
        self.code.has_stack = true;
    }

    /// Whether a function can be reached from itself.
    fn recurses(&self, number: u32) -> bool {
        let (mut seen, mut work) = (HashSet::new(), vec![number]);
        while let Some(next) = work.pop() {
            for &(_, callee) in self.calls.iter().filter(|(caller, _)| *caller == Some(next)) {
                if callee == number {
                    return true;
                }
                if seen.insert(callee) {
                    work.push(callee);
                }
            }
        }
        false
    }

    /// Bytes of local memory for calls: all functions once, or, if calls may nest deeper, what CUDA gives a
    /// thread for them, or more.
    fn stack_bytes(&self) -> u32 {
        let once = self.code.functions.iter().map(|function| function.frame_bytes);
        let once = once.fold(0, u32::saturating_add);
        let nests = self.code.functions.iter().any(|function| function.recurses);
        let more =
            if nests { STACK_BYTES } else { 0 } + if self.code.has_stack { STACK_BYTES } else { 0 };
        once.saturating_add(more)
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
        if let Some(&number) = self.globals.function_numbers.get(name) {
            return Some(Symbol::Function(number));
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
            Symbol::Local(at) | Symbol::Argument(at) => u64::from(at),
            Symbol::Shared(at) => {
                let address = u64::from(at).wrapping_add(offset as u64);
                return self.fill(Fill::Shared { address, wide }, wide);
            }
            Symbol::Function(number) => FUNCTION_BASE + u64::from(number) * FUNCTION_BYTES,
            Symbol::Frame(at) | Symbol::FrameArgument(at) => {
                let function = self.function.ok_or(ParseErrorKind::UnsupportedInstruction)?;
                let offset = at.wrapping_add(offset as u32);
                return self.fill(Fill::Frame { function, offset, wide }, wide);
            }
            Symbol::DynamicShared if offset == 0 => {
                return self.fill(Fill::DynamicShared { wide }, wide);
            }
            Symbol::DynamicShared => return Err(ParseErrorKind::UnsupportedInstruction),
            Symbol::Variable(index) => return self.fill(Fill::Variable { index, offset, wide }, wide),
        };
        self.constant(constant.wrapping_add(offset as u64), wide)
    }

    /// The row that holds a constant.
    pub fn constant(&mut self, value: u64, wide: bool) -> Result<u32> {
        let fill = if wide { Fill::Constant64(value) } else { Fill::Constant32(value as u32) };
        self.fill(fill, wide)
    }

    /// Ends the kernel: moves everything into it.
    pub fn finish(&mut self, kernel: &mut KernelData) {
        debug_assert_eq!(ROW_SINK, 0);
        for index in 0..self.code.functions.len() {
            let number = self.code.functions[index].number;
            self.code.functions[index].recurses = self.recurses(number);
        }
        let goes_on = !self.needed.is_empty() || self.code.has_stack;
        let local_bytes = self.local_bytes.next_multiple_of(if goes_on { FRAME_ALIGN } else { 1 });
        kernel.frame_bytes = local_bytes;
        kernel.local_bytes = local_bytes.saturating_add(self.stack_bytes()).min(1 << 30);
        (self.code.rows, self.code.predicates) = self.scopes.sizes();
        kernel.code = std::mem::take(&mut self.code);
        kernel.unsupported = std::mem::take(&mut self.unsupported);
        kernel.static_shared_bytes = self.shared_bytes;
        kernel.system_shared = self.system_shared.map(|address| address - SHARED_BASE);
        kernel.dynamic_shared_align = self.dynamic_align;
    }
}
