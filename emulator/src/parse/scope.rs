//! Lexical scopes: registers, variables and labels.
//!
//! A `{` in a body opens a scope. Names of an inner scope hide those of the outer ones; labels may be
//! used before they stand in the text. Inline assembly relies on both: it repeats names freely.

use crate::isa::{PREDICATES_RESERVED, ROWS_RESERVED, RegisterRow};
use std::collections::HashMap;

/// Width classes of registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// One bit per lane.
    Predicate,
    /// 8 or 16 bits, kept in 32-bit lanes.
    Bits16,
    /// 32 bits.
    Bits32,
    /// 64 bits: two rows.
    Bits64,
    /// 128 bits: four rows, as two 64-bit halves.
    Bits128,
}

impl Class {
    /// The class of a register declared with a type.
    pub fn of_type(name: &str) -> Option<Class> {
        Some(match name {
            ".pred" => Class::Predicate,
            ".b8" | ".u8" | ".s8" | ".b16" | ".u16" | ".s16" | ".f16" | ".bf16" => Class::Bits16,
            ".b32" | ".u32" | ".s32" | ".f32" | ".f16x2" | ".bf16x2" => Class::Bits32,
            ".b64" | ".u64" | ".s64" | ".f64" => Class::Bits64,
            ".b128" => Class::Bits128,
            _ => return None,
        })
    }

    /// Rows that a register takes; 0 for a predicate.
    pub fn rows(self) -> u32 {
        match self {
            Class::Predicate => 0,
            Class::Bits16 | Class::Bits32 => 1,
            Class::Bits64 => 2,
            Class::Bits128 => 4,
        }
    }
}

/// A register: its class, and its first row or its predicate number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register {
    /// Width class.
    pub class: Class,
    /// First row, or number of the predicate.
    pub index: u32,
}

/// A variable that a body can name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Symbol {
    /// A kernel parameter at an offset.
    Param(u32),
    /// A `.local` variable at an offset from the start of the thread's local memory.
    Local(u32),
    /// A `.shared` variable at a shared address.
    Shared(u32),
    /// The start of dynamic shared memory.
    DynamicShared,
    /// A `.global` or `.const` variable of the module, by index.
    Variable(u32),
    /// A variable of a function, or an argument or result of a call, at an offset in the function's part of
    /// the thread's local memory.
    Frame(u32),
    /// An argument or result of a call that a kernel makes, at an offset in local memory.
    Argument(u32),
    /// The same of a call that a function makes, or of the function itself, at an offset in its part.
    FrameArgument(u32),
    /// A function of the module, by number.
    Function(u32),
}

#[derive(Default)]
struct Scope<'a> {
    parent: Option<usize>,
    registers: HashMap<&'a str, Register>,
    /// `%r<10>`: prefix to class, first index, length.
    ranges: HashMap<&'a str, (Class, u32, u32)>,
    symbols: HashMap<&'a str, Symbol>,
    labels: HashMap<&'a str, u32>,
}

/// More rows make a register file of over 100 MB per warp.
const MAX_ROWS: u32 = 1 << 20;

/// The scopes of one kernel and the registers given out in it.
pub struct Scopes<'a> {
    scopes: Vec<Scope<'a>>,
    current: usize,
    /// The outermost scope of the body that is being read.
    root: usize,
    rows: u32,
    predicates: u32,
    /// All rows given out: class, first row, how many registers.
    given: Vec<(Class, u32, u32)>,
}

impl<'a> Scopes<'a> {
    /// One empty scope.
    pub fn new() -> Self {
        Scopes {
            scopes: vec![Scope::default()],
            current: 0,
            root: 0,
            rows: ROWS_RESERVED,
            predicates: PREDICATES_RESERVED,
            given: Vec::new(),
        }
    }

    /// The scope that new names belong to.
    pub fn current(&self) -> usize {
        self.current
    }

    /// Rows and predicates given out.
    pub fn sizes(&self) -> (u32, u32) {
        (self.rows, self.predicates)
    }

    /// Begins another body, whose registers are apart from those before.
    pub fn restart(&mut self) {
        self.scopes.push(Scope::default());
        self.root = self.scopes.len() - 1;
        self.current = self.root;
        self.rows = self.rows.next_multiple_of(4);
    }

    /// The registers given out from a row on, by their rows.
    pub fn registers_from(&self, first: u32) -> Vec<RegisterRow> {
        let given =
            self.given.iter().filter(|(class, row, _)| *class != Class::Predicate && *row >= first);
        let rows = given.flat_map(|&(class, row, count)| {
            (row..row + class.rows() * count).step_by(class.rows().min(2) as usize).map(move |row| {
                match class {
                    Class::Bits64 | Class::Bits128 => RegisterRow::Wide(row),
                    _ => RegisterRow::Narrow(row),
                }
            })
        });
        rows.collect()
    }

    /// Opens a scope.
    pub fn open(&mut self) {
        self.scopes.push(Scope { parent: Some(self.current), ..Scope::default() });
        self.current = self.scopes.len() - 1;
    }

    /// Closes a scope; false if it was the outermost.
    pub fn close(&mut self) -> bool {
        match self.scopes[self.current].parent {
            Some(parent) => {
                self.current = parent;
                true
            }
            None => false,
        }
    }

    /// A new register without a name; `None` beyond the limit.
    pub fn allocate(&mut self, class: Class, count: u32) -> Option<Register> {
        let (counter, step) = match class {
            Class::Predicate => (&mut self.predicates, 1),
            // 64-bit rows start on an even row, so that they stay aligned.
            _ => (&mut self.rows, class.rows()),
        };
        if step > 1 {
            *counter = counter.next_multiple_of(2);
        }
        let index = *counter;
        let end = step.checked_mul(count).and_then(|rows| index.checked_add(rows))?;
        if end > MAX_ROWS {
            return None;
        }
        *counter = end;
        self.given.push((class, index, count));
        Some(Register { class, index })
    }

    /// Declares one register.
    pub fn declare(&mut self, name: &'a str, class: Class) -> Option<()> {
        let register = self.allocate(class, 1)?;
        self.scopes[self.current].registers.insert(name, register);
        Some(())
    }

    /// Declares `prefix0` to `prefix{count - 1}`.
    pub fn declare_range(&mut self, prefix: &'a str, class: Class, count: u32) -> Option<()> {
        let first = self.allocate(class, count)?;
        self.scopes[self.current].ranges.insert(prefix, (class, first.index, count));
        Some(())
    }

    /// Declares a variable in the current scope.
    pub fn declare_symbol(&mut self, name: &'a str, symbol: Symbol) {
        self.scopes[self.current].symbols.insert(name, symbol);
    }

    /// Declares a variable that the whole kernel sees.
    pub fn declare_outer_symbol(&mut self, name: &'a str, symbol: Symbol) {
        self.scopes[self.root].symbols.insert(name, symbol);
    }

    /// Puts a label at an instruction of the current scope; false if it is there already.
    pub fn declare_label(&mut self, name: &'a str, instruction: u32) -> bool {
        self.scopes[self.current].labels.insert(name, instruction).is_none()
    }

    fn outward(&self, from: usize) -> impl Iterator<Item = &Scope<'a>> {
        let mut next = Some(from);
        std::iter::from_fn(move || {
            let scope = &self.scopes[next?];
            next = scope.parent;
            Some(scope)
        })
    }

    /// The register of a name, seen from the current scope.
    pub fn register(&self, name: &str) -> Option<Register> {
        let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
        let (prefix, number) = name.split_at(name.len() - digits);
        let number: Option<u32> = number.parse().ok();
        self.outward(self.current).find_map(|scope| {
            if let Some(&register) = scope.registers.get(name) {
                return Some(register);
            }
            let &(class, first, count) = scope.ranges.get(prefix)?;
            let number = number.filter(|&n| n < count)?;
            let step = class.rows().max(1);
            Some(Register { class, index: first + number * step })
        })
    }

    /// The name of a register, by its first row or its number among the predicates.
    pub fn name_of(&self, is_predicate: bool, index: u32) -> Option<String> {
        let same = |class: Class| (class == Class::Predicate) == is_predicate;
        self.scopes.iter().find_map(|scope| {
            let single = scope.registers.iter().find(|(_, r)| same(r.class) && r.index == index);
            if let Some((name, _)) = single {
                return Some((*name).to_string());
            }
            let holds = |&(class, first, count): &(Class, u32, u32)| {
                same(class) && index >= first && (index - first) / class.rows().max(1) < count
            };
            let (prefix, &(class, first, _)) = scope.ranges.iter().find(|(_, range)| holds(range))?;
            Some(format!("{prefix}{}", (index - first) / class.rows().max(1)))
        })
    }

    /// The variable of a name, seen from the current scope.
    pub fn symbol(&self, name: &str) -> Option<Symbol> {
        self.outward(self.current).find_map(|scope| scope.symbols.get(name).copied())
    }

    /// The instruction of a label, seen from a scope.
    pub fn label(&self, name: &str, from: usize) -> Option<u32> {
        self.outward(from).find_map(|scope| scope.labels.get(name).copied())
    }
}
