//! Directives of a module.

use super::body;
use crate::decode::builder::Builder;
use crate::error::{ParseError, ParseErrorKind};
use crate::isa::{FUNCTION_BASE, FUNCTION_BYTES};
use crate::module::locations::Locations;
use crate::module::{Kernel, KernelData, Module, ModuleData, Parameter, Variable};
use crate::parse::cursor::Cursor;
use crate::parse::globals::{Formal, Function, Globals, SharedVariable};
use crate::parse::lex::Kind;
use crate::parse::scope::Symbol;
use crate::parse::variable::{self, Declaration, Value};
use std::collections::HashMap;
use std::sync::Arc;

/// A function's name, results and parameters.
type Signature<'a> = (&'a str, Vec<Formal<'a>>, Vec<Formal<'a>>);

struct ModuleParser<'a> {
    cursor: Cursor<'a>,
    globals: Globals<'a>,
    locations: Locations,
    target: String,
    variables: Vec<Variable>,
    /// Initial values that are addresses: variable, offset, name, addend.
    addresses: Vec<(usize, u32, &'a str, i64)>,
    kernels: Vec<KernelData>,
    /// Names of entries, and where their texts start: they are read when all functions are known.
    entries: Vec<(&'a str, usize)>,
}

impl Module {
    /// Parses PTX text.
    ///
    /// A kernel that holds an instruction which the emulator does not know still parses
    /// ([`Kernel::unsupported`]) and refuses to launch; so does one whose text is wrong ([`Kernel::error`]),
    /// beside others.
    ///
    /// # Errors
    ///
    /// Text that does not follow the grammar, with its line: outside of kernels, or in all of them.
    pub fn parse(source: &str) -> Result<Module, ParseError> {
        parse(source, true)
    }
}

/// Parses a module. `compact`: registers that are never alive together share rows.
pub fn parse(source: &str, compact: bool) -> Result<Module, ParseError> {
    let globals = Globals {
        shared: HashMap::new(),
        variables: HashMap::new(),
        functions: Vec::new(),
        function_numbers: HashMap::new(),
        compact,
    };
    let mut parser = ModuleParser {
        cursor: Cursor::new(source),
        globals,
        locations: Locations::new(),
        target: String::new(),
        variables: Vec::new(),
        addresses: Vec::new(),
        kernels: Vec::new(),
        entries: Vec::new(),
    };
    while parser.cursor.peek().kind != Kind::End {
        parser.directive()?;
    }
    parser.entries();
    parser.finish(source)
}

impl<'a> ModuleParser<'a> {
    fn directive(&mut self) -> Result<(), ParseError> {
        if self.cursor.accept(b';') {
            return Ok(());
        }
        if self.cursor.peek().kind == Kind::LocationComment {
            self.cursor.next();
            return Ok(());
        }
        match self.cursor.word("a directive")? {
            ".version" | ".address_size" => self.cursor.skip_line(),
            ".target" => self.target()?,
            ".visible" | ".extern" | ".weak" | ".common" => {}
            ".file" => self.locations.read_file(&mut self.cursor)?,
            ".loc" => {
                self.locations.read_location(&mut self.cursor)?;
            }
            ".pragma" | ".alias" => self.cursor.skip_statement(),
            ".section" => self.section()?,
            ".shared" => self.shared()?,
            ".global" => self.variable(false)?,
            ".const" => self.variable(true)?,
            ".entry" => self.entry()?,
            ".func" => self.function()?,
            _ => return Err(self.cursor.error_behind(ParseErrorKind::UnsupportedDirective)),
        }
        Ok(())
    }

    fn target(&mut self) -> Result<(), ParseError> {
        self.target = self.cursor.word("a target")?.to_string();
        while self.cursor.accept(b',') {
            self.cursor.word("a target")?;
        }
        Ok(())
    }

    fn section(&mut self) -> Result<(), ParseError> {
        self.cursor.word("a section name")?;
        if self.cursor.is_mark(b'{') { self.cursor.skip_group(b'{', b'}') } else { Ok(()) }
    }

    /// Reads a declaration up to its `;`.
    fn declaration(&mut self) -> Result<Declaration<'a>, ParseError> {
        let declaration = variable::read(&mut self.cursor)?;
        self.cursor.expect(b';', ";")?;
        Ok(declaration)
    }

    fn shared(&mut self) -> Result<(), ParseError> {
        let one = self.declaration()?;
        let variable = SharedVariable { bytes: one.bytes(), align: one.align };
        self.globals.shared.insert(one.name, variable);
        Ok(())
    }

    fn variable(&mut self, read_only: bool) -> Result<(), ParseError> {
        let one = self.declaration()?;
        let index = self.variables.len();
        let element = one.element as usize;
        let mut bytes = vec![0; one.bytes() as usize];
        for (at, value) in one.values.iter().enumerate() {
            let offset = at * element;
            let Some(place) = bytes.get_mut(offset..offset + element) else {
                return Err(self.cursor.expected("fewer initial values"));
            };
            match *value {
                Value::Bits(bits) if element <= 8 => {
                    place.copy_from_slice(&bits.to_le_bytes()[..element]);
                }
                Value::Address(name, addend) if element == 8 => {
                    self.addresses.push((index, offset as u32, name, addend));
                }
                _ => return Err(self.cursor.expected("a value of the variable's type")),
            }
        }
        self.globals.variables.insert(one.name, index as u32);
        let name = one.name.to_string();
        self.variables.push(Variable { name, bytes, read_only, addresses: Vec::new() });
        Ok(())
    }

    /// `.func {(results)} name {(parameters)} {attributes}` and its body, which is read where it is called,
    /// or a `;`. One whose results or parameters are no memory cannot be called.
    fn function(&mut self) -> Result<(), ParseError> {
        let start = self.cursor.place();
        let signature = self.signature();
        let (name, results, parameters) = match signature {
            Ok(signature) => signature,
            Err(_) => {
                self.cursor.go_back(start);
                return self.skip_function();
            }
        };
        while !matches!(self.cursor.peek().kind, Kind::Mark(b'{' | b';') | Kind::End) {
            self.cursor.next();
        }
        let body = self.cursor.is_mark(b'{').then(|| self.cursor.place());
        self.skip_function()?;
        let new = Function { name, results, parameters, body };
        let functions = &mut self.globals.functions;
        match self.globals.function_numbers.get(name) {
            Some(&number) if functions[number as usize].body.is_none() => {
                functions[number as usize] = new
            }
            Some(_) => {}
            None => {
                self.globals.function_numbers.insert(name, functions.len() as u32);
                functions.push(new);
            }
        }
        Ok(())
    }

    /// Skips to behind a function's body, or its `;`.
    fn skip_function(&mut self) -> Result<(), ParseError> {
        loop {
            match self.cursor.peek().kind {
                Kind::Mark(b'(') => self.cursor.skip_group(b'(', b')')?,
                Kind::Mark(b'{') => return self.cursor.skip_group(b'{', b'}'),
                Kind::Mark(b';') => {
                    self.cursor.next();
                    return Ok(());
                }
                Kind::End => return Err(self.cursor.expected("a function body")),
                _ => {
                    self.cursor.next();
                }
            }
        }
    }

    fn signature(&mut self) -> Result<Signature<'a>, ParseError> {
        let results = self.formals()?;
        let name = self.cursor.word("a function name")?;
        Ok((name, results, self.formals()?))
    }

    /// `(.param .b32 a, .param .b64 b)`, if it is here.
    fn formals(&mut self) -> Result<Vec<Formal<'a>>, ParseError> {
        let mut formals = Vec::new();
        if !self.cursor.accept(b'(') {
            return Ok(formals);
        }
        while !self.cursor.accept(b')') {
            if !formals.is_empty() {
                self.cursor.expect(b',', ", or )")?;
            }
            if self.cursor.word("a parameter")? != ".param" {
                return Err(self.cursor.expected(".param"));
            }
            let one = variable::read(&mut self.cursor)?;
            formals.push(Formal { name: one.name, bytes: one.bytes(), align: one.align });
        }
        Ok(formals)
    }

    fn entry(&mut self) -> Result<(), ParseError> {
        let name = self.cursor.word("a kernel name")?;
        let start = self.cursor.place();
        self.entries.push((name, start));
        if let Err(error) = self.cursor.skip_body() {
            // What is wrong with it, if it has no end.
            self.cursor.go_back(start);
            return Err(self.entry_text(&mut KernelData::default()).err().unwrap_or(error));
        }
        Ok(())
    }

    /// Reads the kernels. What is wrong with one is no other's affair.
    fn entries(&mut self) {
        for (name, start) in std::mem::take(&mut self.entries) {
            let mut kernel = KernelData { name: name.to_string(), ..KernelData::default() };
            self.cursor.go_back(start);
            kernel.error = self.entry_text(&mut kernel).err();
            self.kernels.push(kernel);
        }
    }

    fn entry_text(&mut self, kernel: &mut KernelData) -> Result<(), ParseError> {
        let mut symbols = Vec::new();
        if self.cursor.accept(b'(') {
            while !self.cursor.accept(b')') {
                if !symbols.is_empty() {
                    self.cursor.expect(b',', ", or )")?;
                }
                symbols.push(self.parameter(kernel)?);
            }
        }
        self.attributes(kernel)?;
        let mut builder = Builder::new(&self.globals);
        for (name, offset) in symbols {
            builder.scopes.declare_symbol(name, Symbol::Param(offset));
        }
        body::read(&mut self.cursor, &mut builder, kernel, &mut self.locations)
    }

    fn parameter(&mut self, kernel: &mut KernelData) -> Result<(&'a str, u32), ParseError> {
        if self.cursor.word("a parameter")? != ".param" {
            return Err(self.cursor.expected(".param"));
        }
        let one = variable::read(&mut self.cursor)?;
        let offset = kernel.parameter_bytes.next_multiple_of(one.align as usize);
        let bytes = one.bytes() as usize;
        if offset + bytes > 1 << 16 {
            return Err(self.cursor.error_here(ParseErrorKind::Limit("the size of the parameters")));
        }
        kernel.parameter_bytes = offset + bytes;
        let name = one.name.to_string();
        kernel.parameters.push(Parameter { name, offset, bytes, align: one.align as usize });
        Ok((one.name, offset as u32))
    }

    fn attributes(&mut self, kernel: &mut KernelData) -> Result<(), ParseError> {
        while self.cursor.peek().kind == Kind::Word {
            match self.cursor.word("an attribute")? {
                ".maxntid" => kernel.max_threads = Some(self.triple()?),
                ".reqntid" => {
                    let threads = self.triple()?;
                    kernel.max_threads = Some(threads);
                    kernel.required_threads = Some(threads);
                }
                ".reqnctapercluster" => kernel.required_cluster = Some(self.triple()?),
                ".maxnreg" => kernel.max_registers = Some(self.number()?),
                ".minnctapersm" | ".maxnctapersm" => kernel.min_blocks = Some(self.number()?),
                ".maxclusterrank" => kernel.max_cluster = Some(self.number()?),
                ".explicitcluster" => kernel.explicit_cluster = true,
                ".noreturn" => {}
                ".pragma" => self.cursor.skip_statement(),
                _ => return Err(self.cursor.error_behind(ParseErrorKind::UnsupportedDirective)),
            }
        }
        Ok(())
    }

    fn number(&mut self) -> Result<u32, ParseError> {
        Ok(self.cursor.unsigned("a number")?.min(u64::from(u32::MAX)) as u32)
    }

    fn triple(&mut self) -> Result<[u32; 3], ParseError> {
        let mut sizes = [1; 3];
        for (index, size) in sizes.iter_mut().enumerate() {
            if index == 0 || self.cursor.accept(b',') {
                *size = self.cursor.unsigned("a number of threads")?.min(u64::from(u32::MAX)) as u32;
            }
        }
        Ok(sizes)
    }

    fn finish(mut self, source: &str) -> Result<Module, ParseError> {
        // Of several, each has its own.
        if let [kernel] = &mut self.kernels[..]
            && let Some(error) = kernel.error.take()
        {
            return Err(error);
        }
        for (variable, offset, name, addend) in self.addresses {
            if let Some(&number) = self.globals.function_numbers.get(name) {
                let address = FUNCTION_BASE + u64::from(number) * FUNCTION_BYTES;
                let place = &mut self.variables[variable].bytes[offset as usize..][..8];
                place.copy_from_slice(&address.wrapping_add(addend as u64).to_le_bytes());
                continue;
            }
            let Some(&target) = self.globals.variables.get(name) else {
                let kind = ParseErrorKind::UnknownName(name.to_string());
                return Err(ParseError { line: 0, text: name.to_string(), kind });
            };
            self.variables[variable].addresses.push((offset, target, addend));
        }
        let shared = Arc::new(ModuleData {
            id: ModuleData::fresh_id(),
            source: source.to_string(),
            target: self.target,
            locations: self.locations,
            variables: self.variables,
        });
        let kernels =
            self.kernels.into_iter().map(|data| Kernel { data, module: Arc::clone(&shared) }).collect();
        Ok(Module { shared, kernels })
    }
}
