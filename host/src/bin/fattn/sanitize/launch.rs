//! One launch of a kernel: its memory, its parameters, and what came of it.

use super::argument::{Argument, Map};
use super::buffer::Buffer;
use super::error::{Result, SanitizeError, expected};
use ptx_emulator::{
    Address, Kernel, Launch, Memory, Options, Parameter, Region, Report, TensorMap, launch,
};

/// Bytes of a tensor map.
const MAP_BYTES: usize = 128;

/// Everything that a launch needs and that does not change from schedule to schedule.
pub struct Setup<'k> {
    pub kernel: &'k Kernel,
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
    /// What stands where in dynamic shared memory.
    pub regions: Vec<Region>,
    /// All buffers: those of `--buffer` first, then those of the arguments.
    pub buffers: Vec<Buffer>,
    /// One per parameter, with the option's text.
    pub arguments: Vec<(String, Argument)>,
    /// What `.const` and `.global` variables hold: the option's text, the name, the value.
    pub symbols: Vec<(String, String, Argument)>,
}

/// Global memory before a launch, and where each buffer begins in it.
struct Prepared {
    memory: Memory,
    addresses: Vec<Address>,
}

/// What a launch left.
pub struct Ran {
    pub report: Report,
    /// The bytes of each buffer, and which of them something wrote.
    pub buffers: Vec<(Vec<u8>, Vec<bool>)>,
}

impl<'k> Setup<'k> {
    /// Reads the arguments and sees to it that they fit the kernel.
    pub fn new(kernel: &'k Kernel, arguments: &[String], buffers: &[String]) -> Result<Self> {
        let mut setup = Setup {
            kernel,
            grid: [1; 3],
            block: [1; 3],
            shared_bytes: 0,
            regions: Vec::new(),
            buffers: Vec::new(),
            arguments: Vec::new(),
            symbols: Vec::new(),
        };
        for text in buffers {
            let option = format!("--buffer `{text}`");
            let buffer = Buffer::parse(&option, text)?;
            if buffer.name.is_empty() {
                return Err(expected(&option, "name=NAME", "no name"));
            }
            setup.add(&option, buffer)?;
        }
        let parameters = kernel.parameters();
        if parameters.len() != arguments.len() {
            let describe =
                |parameter: &Parameter| format!("{}: {} bytes", parameter.name, parameter.bytes);
            return Err(SanitizeError::ArgumentCount {
                expected: parameters.len(),
                parameters: parameters.iter().map(describe).collect(),
                got: arguments.len(),
            });
        }
        for (text, parameter) in arguments.iter().zip(parameters) {
            let option = format!("--arg `{text}`");
            let argument = setup.named(&option, Argument::parse(&option, text)?, &parameter.name)?;
            setup.arguments.push((option, argument));
        }
        setup.params(&setup.prepare())?; // every name is there, every size fits
        Ok(setup)
    }

    /// Reads `--symbol NAME=VALUE` options: numbers, structures, or the contents of `buf` or `file`, in
    /// place.
    pub fn with_symbols(mut self, symbols: &[String]) -> Result<Self> {
        for text in symbols {
            let option = format!("--symbol `{text}`");
            let Some((name, value)) = text.split_once('=') else {
                return Err(expected(&option, "NAME=VALUE", text));
            };
            let Some((_, bytes)) = self.kernel.variables().find(|(known, _)| *known == name) else {
                let names: Vec<&str> = self.kernel.variables().map(|(name, _)| name).collect();
                return Err(expected(
                    &option,
                    format!("a variable of the text: {}", names.join(", ")),
                    name,
                ));
            };
            let value = Argument::parse(&option, value)?;
            self.symbols.push((option.clone(), name.to_owned(), value));
            let given = self.symbol_bytes(&self.prepare(), self.symbols.len() - 1)?;
            if given.len() > bytes {
                return Err(expected(
                    &option,
                    format!("at most the {bytes} bytes of {name}"),
                    given.len(),
                ));
            }
        }
        Ok(self)
    }

    /// The bytes of a symbol's value.
    fn symbol_bytes(&self, prepared: &Prepared, index: usize) -> Result<Vec<u8>> {
        let (option, _, value) = &self.symbols[index];
        match value {
            Argument::Buffer(Buffer { contents: Some(contents), .. }) => Ok(contents.clone()),
            Argument::Buffer(_) => Err(expected(option, "contents", "uninit")),
            other => Ok(self.bytes(option, other, prepared, true)?.0),
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

    /// The kernel's parameters.
    fn params(&self, prepared: &Prepared) -> Result<Vec<u8>> {
        let mut params = vec![0; self.kernel.parameter_bytes()];
        for ((option, argument), parameter) in self.arguments.iter().zip(self.kernel.parameters()) {
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

    /// Runs the kernel once, on buffers as they were given.
    pub fn run(&self, options: &Options) -> Result<Ran> {
        let prepared = self.prepare();
        let params = self.params(&prepared)?;
        for (index, (_, name, _)) in self.symbols.iter().enumerate() {
            let bytes = self.symbol_bytes(&prepared, index)?;
            if let Some(address) = prepared.memory.variable(self.kernel, name) {
                // Cannot fail: the variable has as many bytes.
                let _ = prepared.memory.write(address, &bytes);
            }
        }
        let Prepared { memory, addresses } = prepared;
        let Setup { grid, block, shared_bytes, ref regions, .. } = *self;
        let shape = Launch { grid, block, shared_bytes, regions, params: &params };
        let report = launch(self.kernel, &memory, &shape, options)?;
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
        Ok(Ran { report, buffers })
    }
}

/// An address as an argument, with its alignment.
fn pointer(address: Address) -> (Vec<u8>, usize) {
    (address.to_le_bytes().to_vec(), 8)
}
