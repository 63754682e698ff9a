//! Launches of kernels, one after the other: their memory, their parameters, and what came of them.

use super::argument::{Argument, Map};
use super::buffer::Buffer;
use super::error::{Result, SanitizeError, expected};
use super::source::Source;
use ptx_emulator::{
    Address, Finding, Kernel, Launch, Memory, Options, Parameter, Region, Report, TensorMap, launch,
};

/// Bytes of a tensor map.
const MAP_BYTES: usize = 128;

/// The shape of a launch.
pub struct Shape {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// If the launch says it.
    pub cluster: Option<[u32; 3]>,
    pub shared_bytes: u32,
    /// What stands where in dynamic shared memory.
    pub regions: Vec<Region>,
}

/// One launch: a kernel, its shape and its arguments.
pub struct Step<'k> {
    pub source: &'k Source,
    pub kernel: &'k Kernel,
    pub shape: Shape,
    /// One per parameter, with the option's text.
    pub arguments: Vec<(String, Argument)>,
}

/// The value of a `.const` or `.global` variable.
pub struct Symbol<'k> {
    /// The option's text.
    option: String,
    pub source: &'k Source,
    /// A kernel of the module that has it.
    kernel: &'k Kernel,
    pub name: String,
    pub value: Argument,
}

/// Everything that launches need and that does not change from schedule to schedule.
#[derive(Default)]
pub struct Setup<'k> {
    /// One after the other; what one leaves in memory the next one finds.
    pub launches: Vec<Step<'k>>,
    /// All buffers: those of `--buffer` first, then those of the arguments.
    pub buffers: Vec<Buffer>,
    pub symbols: Vec<Symbol<'k>>,
}

/// Global memory before the first launch, and where each buffer begins in it.
struct Prepared {
    memory: Memory,
    addresses: Vec<Address>,
}

/// What launches left.
pub struct Ran {
    /// One for each launch that ran. None runs behind one whose results are spoiled.
    pub reports: Vec<Report>,
    /// The bytes of each buffer, and which of them something wrote.
    pub buffers: Vec<(Vec<u8>, Vec<bool>)>,
}

impl Ran {
    /// What was found, launch after launch.
    pub fn findings(&self) -> impl Iterator<Item = &Finding> {
        self.reports.iter().flat_map(|report| &report.findings)
    }
}

impl<'k> Setup<'k> {
    /// Adds a buffer that has a name of its own.
    pub fn with_buffer(&mut self, option: &str, text: &str) -> Result<()> {
        let buffer = Buffer::parse(option, text)?;
        if buffer.name.is_empty() {
            return Err(expected(option, "name=NAME", "no name"));
        }
        self.add(option, buffer)
    }

    /// Adds a launch that has no arguments yet, and these; sees to it that they fit the kernel. `option` is
    /// what errors call them.
    pub fn with_launch(&mut self, mut step: Step<'k>, arguments: &[String], option: &str) -> Result<()> {
        let parameters = step.kernel.parameters();
        if parameters.len() != arguments.len() {
            let describe =
                |parameter: &Parameter| format!("{}: {} bytes", parameter.name, parameter.bytes);
            return Err(SanitizeError::ArgumentCount {
                option: option.to_owned(),
                expected: parameters.len(),
                parameters: parameters.iter().map(describe).collect(),
                got: arguments.len(),
            });
        }
        for (text, parameter) in arguments.iter().zip(parameters) {
            let option = format!("{option} `{text}`");
            let argument = self.named(&option, Argument::parse(&option, text)?, &parameter.name)?;
            step.arguments.push((option, argument));
        }
        self.params(&step, &self.prepare())?; // every name is there, every size fits
        self.launches.push(step);
        Ok(())
    }

    /// Gives a variable of a kernel's module a value: a number, a structure, or the contents of `buf` or
    /// `file`, in place.
    pub fn with_symbol(
        &mut self,
        option: String,
        source: &'k Source,
        (name, value): (&str, &str),
    ) -> Result<()> {
        let kernel = source.module.kernels().next();
        let variable = kernel.and_then(|kernel| {
            let (_, bytes) = kernel.variables().find(|(known, _)| *known == name)?;
            Some((kernel, bytes))
        });
        let Some((kernel, bytes)) = variable else {
            let names: Vec<&str> =
                kernel.iter().flat_map(|kernel| kernel.variables()).map(|(name, _)| name).collect();
            let what = format!("a variable of the text: {}", names.join(", "));
            return Err(expected(&option, what, name));
        };
        let value = Argument::parse(&option, value)?;
        let symbol = Symbol { option, source, kernel, name: name.to_owned(), value };
        let given = self.symbol_bytes(&self.prepare(), &symbol)?.len();
        if given > bytes {
            let what = format!("at most the {bytes} bytes of {name}");
            return Err(expected(&symbol.option, what, given));
        }
        self.symbols.push(symbol);
        Ok(())
    }

    /// The bytes of a symbol's value.
    fn symbol_bytes(&self, prepared: &Prepared, symbol: &Symbol<'_>) -> Result<Vec<u8>> {
        match &symbol.value {
            Argument::Buffer(Buffer { contents: Some(contents), .. }) => Ok(contents.clone()),
            Argument::Buffer(_) => Err(expected(&symbol.option, "contents", "uninit")),
            other => Ok(self.bytes(&symbol.option, other, prepared, true)?.0),
        }
    }

    fn add(&mut self, option: &str, buffer: Buffer) -> Result<()> {
        if self.buffers.iter().any(|other| other.name == buffer.name) {
            return Err(SanitizeError::NameTaken { option: option.to_owned(), name: buffer.name });
        }
        self.buffers.push(buffer);
        Ok(())
    }

    /// Keeps the buffers of an argument, under the parameter's name if they have none, and refers to them.
    fn named(&mut self, option: &str, argument: Argument, parameter: &str) -> Result<Argument> {
        Ok(match argument {
            Argument::Buffer(mut buffer) => {
                if buffer.name.is_empty() {
                    parameter.clone_into(&mut buffer.name);
                }
                let name = buffer.name.clone();
                self.add(option, buffer)?;
                Argument::Reference { name, offset: 0 }
            }
            Argument::Pack(parts) => {
                let place = |index| format!("{parameter}.{index}");
                let parts = parts.into_iter().enumerate();
                let named = parts.map(|(index, part)| self.named(option, part, &place(index)));
                Argument::Pack(named.collect::<Result<_>>()?)
            }
            other => other,
        })
    }

    /// A memory with all buffers, as they are before the launch.
    fn prepare(&self) -> Prepared {
        let memory = Memory::new();
        let allocate = |buffer: &Buffer| {
            let address = memory.allocate(buffer.bytes);
            if let Some(contents) = &buffer.contents {
                // Cannot fail: the allocation is as long as the contents.
                let _ = memory.write(address, contents);
            }
            address
        };
        let addresses = self.buffers.iter().map(allocate).collect();
        Prepared { memory, addresses }
    }

    /// The parameters of a launch.
    fn params(&self, step: &Step<'_>, prepared: &Prepared) -> Result<Vec<u8>> {
        let mut params = vec![0; step.kernel.parameter_bytes()];
        for ((option, argument), parameter) in step.arguments.iter().zip(step.kernel.parameters()) {
            let is_pointer = parameter.bytes < MAP_BYTES;
            let (bytes, _) = self.bytes(option, argument, prepared, is_pointer)?;
            if bytes.len() != parameter.bytes {
                return Err(SanitizeError::ParameterSize {
                    option: option.clone(),
                    parameter: parameter.name.clone(),
                    expected: parameter.bytes,
                    got: bytes.len(),
                });
            }
            params[parameter.offset..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(params)
    }

    /// The bytes of an argument and their alignment. A tensor map becomes its address where `by_pointer`.
    fn bytes(
        &self,
        option: &str,
        argument: &Argument,
        prepared: &Prepared,
        by_pointer: bool,
    ) -> Result<(Vec<u8>, usize)> {
        Ok(match argument {
            Argument::Bytes { bytes, align } => (bytes.clone(), *align),
            Argument::Buffer(Buffer { name, .. }) => pointer(self.address(option, name, 0, prepared)?),
            Argument::Reference { name, offset } => {
                pointer(self.address(option, name, *offset, prepared)?)
            }
            Argument::Map(map) => {
                let encoded = self.encode(option, map, prepared)?;
                if !by_pointer {
                    return Ok((encoded, 64));
                }
                let address = prepared.memory.allocate(MAP_BYTES);
                // Cannot fail: just allocated.
                let _ = prepared.memory.write(address, &encoded);
                pointer(address)
            }
            Argument::Pack(parts) => {
                let (mut whole, mut most) = (Vec::new(), 1);
                for part in parts {
                    let (bytes, align) = self.bytes(option, part, prepared, false)?;
                    whole.resize(usize::next_multiple_of(whole.len(), align), 0);
                    whole.extend(bytes);
                    most = most.max(align);
                }
                whole.resize(usize::next_multiple_of(whole.len(), most), 0);
                (whole, most)
            }
        })
    }

    fn address(&self, option: &str, name: &str, offset: u64, prepared: &Prepared) -> Result<Address> {
        let found = self.buffers.iter().position(|buffer| buffer.name == name);
        let Some(index) = found else {
            let names: Vec<&str> = self.buffers.iter().map(|buffer| buffer.name.as_str()).collect();
            return Err(expected(option, format!("the name of a buffer: {}", names.join(", ")), name));
        };
        if offset > self.buffers[index].bytes as u64 {
            let what = format!("at most the {} bytes of {name}", self.buffers[index].bytes);
            return Err(expected(option, what, offset));
        }
        Ok(prepared.addresses[index].offset(offset))
    }

    fn encode(&self, option: &str, map: &Map, prepared: &Prepared) -> Result<Vec<u8>> {
        let element = map.element.in_tensor_map().ok_or_else(|| {
            expected(option, "u8, u16, u32, i32, u64, i64, f16, bf16, f32 or f64", map.element.name())
        })?;
        let map = TensorMap {
            element,
            address: self.address(option, &map.buffer, map.offset, prepared)?.0,
            dims: map.dims.clone(),
            strides_bytes: map.strides.clone(),
            box_dims: map.box_dims.clone(),
            swizzle: map.swizzle,
        };
        let words = map
            .encode()
            .map_err(|error| SanitizeError::TensorMap { option: option.to_owned(), error })?;
        Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
    }

    /// Blocks of all launches.
    pub fn blocks(&self) -> u64 {
        self.launches
            .iter()
            .map(|step| step.shape.grid.iter().map(|&n| u64::from(n)).product::<u64>())
            .sum()
    }

    /// Runs all launches once, on buffers as they were given.
    pub fn run(&self, options: &Options) -> Result<Ran> {
        let prepared = self.prepare();
        for symbol in &self.symbols {
            let bytes = self.symbol_bytes(&prepared, symbol)?;
            if let Some(address) = prepared.memory.variable(symbol.kernel, &symbol.name) {
                // Cannot fail: the variable has as many bytes.
                let _ = prepared.memory.write(address, &bytes);
            }
        }
        let mut reports = Vec::new();
        for step in &self.launches {
            let params = self.params(step, &prepared)?;
            let Shape { grid, block, cluster, shared_bytes, ref regions } = step.shape;
            let shape = Launch { grid, block, shared_bytes, regions, cluster, params: &params };
            let report = launch(step.kernel, &prepared.memory, &shape, options)?;
            let is_spoiled = report.findings.iter().any(|finding| finding.kind.spoils_results());
            reports.push(report);
            if is_spoiled {
                break;
            }
        }
        let Prepared { memory, addresses } = prepared;
        let left = |(buffer, &address): (&Buffer, &Address)| {
            let mut bytes = vec![0; buffer.bytes];
            // Neither can fail: the ranges are those allocated.
            let _ = memory.read(address, &mut bytes);
            let is_written =
                |byte: usize| memory.is_initialised(address.offset(byte as u64), 1) == Ok(true);
            let all = memory.is_initialised(address, buffer.bytes) == Ok(true);
            let written = (0..buffer.bytes).map(|byte| all || is_written(byte)).collect();
            (bytes, written)
        };
        let buffers = self.buffers.iter().zip(&addresses).map(left).collect();
        Ok(Ran { reports, buffers })
    }
}

/// An address as an argument, with its alignment.
fn pointer(address: Address) -> (Vec<u8>, usize) {
    (address.to_le_bytes().to_vec(), 8)
}
