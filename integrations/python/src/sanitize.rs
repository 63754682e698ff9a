//! Any PTX in the emulator, under several schedules: the Rust half of `ptx_sanitizer`.

use crate::error::{Failure, Result};
use ptx_emulator::{
    Address, FindingKind, Kernel, Launch, Memory, Module, Options, Report, Schedule, Statistics, Survey,
    Surveyed, TensorMap, TensorMapElement, TensorMapSwizzle, are_spoiled, has_global_race, launch,
    weigh_races,
};
use pyo3::{PyResult, Python, pyfunction};
use serde_json::{Value, json};

/// Bytes of a tensor map.
const MAP_BYTES: usize = 128;

/// A buffer in global memory: its bytes, and whether they are there from the start; if not, it has their
/// length alone.
type BufferText = (Vec<u8>, bool);

/// A tensor map: type of the elements, buffer, bytes from its start on, sizes, strides in bytes of all but
/// the innermost dimension, sizes of the box, swizzle in bytes or 0.
type MapText = (String, usize, u64, Vec<u64>, Vec<u64>, Vec<u32>, u32);

/// A parameter: its bytes; or a buffer and bytes from its start on; or a tensor map.
type ArgumentText = (Option<Vec<u8>>, Option<(usize, u64)>, Option<MapText>);

/// Grid, block, cluster if the launch says one, and bytes of dynamic shared memory.
type Shape = ([u32; 3], [u32; 3], Option<[u32; 3]>, u32);

/// The bytes of a buffer after a run, and which of them something wrote.
type Left = (Vec<u8>, Vec<bool>);

/// The name of a kernel, and name and bytes of each of its parameters.
type KernelText = (String, Vec<(String, usize)>);

/// Every kernel of a text.
#[pyfunction]
pub fn ptx_kernels(ptx: &str) -> PyResult<Vec<KernelText>> {
    let module = parse(ptx)?;
    let parameters = |kernel: &Kernel| {
        kernel.parameters().iter().map(|parameter| (parameter.name.clone(), parameter.bytes)).collect()
    };
    Ok(module.kernels().map(|kernel| (kernel.name().to_owned(), parameters(kernel))).collect())
}

/// Runs a kernel under schedules, each on fresh buffers. Gives what was found as JSON, and what the last
/// schedule has left in the buffers.
#[pyfunction]
#[pyo3(signature = (ptx, entry, shape, buffers, arguments, *, schedules, seed, strict, step_limit))]
#[expect(clippy::too_many_arguments, reason = "they have names where it is called")]
pub fn ptx_run(
    py: Python<'_>,
    ptx: &str,
    entry: &str,
    shape: Shape,
    buffers: Vec<BufferText>,
    arguments: Vec<ArgumentText>,
    schedules: usize,
    seed: u64,
    strict: bool,
    step_limit: u64,
) -> PyResult<(String, Vec<Left>)> {
    let module = parse(ptx)?;
    let kernel = module.kernel(entry).ok_or_else(|| {
        let names: Vec<&str> = module.kernels().map(Kernel::name).collect();
        Failure::argument(format!("entry: expected one of {}, got `{entry}`", names.join(", ")))
    })?;
    let given = Given { kernel, shape, buffers, arguments };
    let options =
        Options { strict, step_limit: Some(step_limit), max_findings: usize::MAX, ..Options::default() };
    Ok(py.detach(|| survey(&given, Schedule::usual(seed).take(schedules), &options))?)
}

fn parse(ptx: &str) -> Result<Module> {
    Module::parse(ptx).map_err(|error| Failure::argument(format!("ptx: {error}")))
}

/// What is launched.
struct Given<'k> {
    kernel: &'k Kernel,
    shape: Shape,
    buffers: Vec<BufferText>,
    arguments: Vec<ArgumentText>,
}

/// A buffer of which two schedules left different bytes: its number, the first such byte, and the schedules.
type Difference = (usize, usize, [Schedule; 2]);

fn survey(
    given: &Given<'_>,
    schedules: impl Iterator<Item = Schedule>,
    options: &Options,
) -> Result<(String, Vec<Left>)> {
    let mut survey = Survey::default();
    let mut differences: Vec<Difference> = Vec::new();
    let mut last: Option<(Schedule, Report, Vec<Left>)> = None;
    for schedule in schedules {
        let options = Options { schedule, ..options.clone() };
        let (report, left) = given.run(&options)?;
        let mut reports = [report];
        if has_global_race(&reports) {
            let (acquired, _) = given.run(&Options { acquire_always: true, ..options })?;
            weigh_races(&mut reports, &[acquired]);
        }
        survey.add(schedule, &reports);
        let [report] = reports;
        if let Some((before, last, left_before)) = &last
            && !are_spoiled(std::slice::from_ref(last))
            && !are_spoiled(std::slice::from_ref(&report))
        {
            for (buffer, (one, other)) in left_before.iter().zip(&left).enumerate() {
                let byte = one.0.iter().zip(&other.0).position(|(one, other)| one != other);
                let is_known = differences.iter().any(|(known, ..)| *known == buffer);
                differences.extend(byte.filter(|_| !is_known).map(|b| (buffer, b, [*before, schedule])));
            }
        }
        let is_endless = report.findings.iter().any(|finding| finding.kind == FindingKind::StepLimit);
        last = Some((schedule, report, left));
        if is_endless {
            break;
        }
    }
    let (statistics, output, left) = match last {
        Some((_, report, left)) => (report.statistics, report.output, left),
        None => (Statistics::default(), String::new(), Vec::new()),
    };
    let found = |Surveyed { finding, schedule, schedules, .. }: &Surveyed| {
        json!({
            "severity": finding.severity(),
            "kind": finding.kind.to_string(),
            "message": finding.message,
            "block": finding.block,
            "thread": finding.thread,
            "ptx_line": finding.ptx_line,
            "ptx": finding.ptx,
            "source": finding.source,
            "occurrences": finding.occurrences,
            "schedules": schedules,
            "schedule": schedule.name(),
            "text": finding.to_string(),
        })
    };
    let difference = |(buffer, byte, schedules): &Difference| {
        let schedules = schedules.map(Schedule::name);
        json!({ "buffer": buffer, "byte": byte, "schedules": schedules })
    };
    let report = json!({
        "kernel": given.kernel.name(),
        "schedules": survey.schedules.iter().map(|schedule| schedule.name()).collect::<Vec<_>>(),
        "findings": survey.worst(usize::MAX).into_iter().map(found).collect::<Vec<Value>>(),
        "differences": differences.iter().map(difference).collect::<Vec<Value>>(),
        "output": output,
        "statistics": statistics,
    });
    Ok((report.to_string(), left))
}

impl Given<'_> {
    fn run(&self, options: &Options) -> Result<(Report, Vec<Left>)> {
        let memory = Memory::new();
        let allocate = |(bytes, is_there): &BufferText| {
            let address = memory.allocate(bytes.len());
            if *is_there {
                // Cannot fail: the allocation is as long.
                let _ = memory.write(address, bytes);
            }
            address
        };
        let addresses: Vec<Address> = self.buffers.iter().map(allocate).collect();
        let params = self.params(&memory, &addresses)?;
        let (grid, block, cluster, shared_bytes) = self.shape;
        let shape = Launch { grid, block, shared_bytes, regions: &[], cluster, params: &params };
        let report = launch(self.kernel, &memory, &shape, options)
            .map_err(|error| Failure::argument(error.to_string()))?;
        let left = |(&address, (bytes, _)): (&Address, &BufferText)| {
            let mut now = vec![0; bytes.len()];
            // Neither can fail: the ranges are those allocated.
            let _ = memory.read(address, &mut now);
            let all = memory.is_initialised(address, now.len()) == Ok(true);
            let is_written =
                |byte| all || memory.is_initialised(address.offset(byte as u64), 1) == Ok(true);
            let written = (0..now.len()).map(is_written).collect();
            (now, written)
        };
        Ok((report, addresses.iter().zip(&self.buffers).map(left).collect()))
    }

    fn params(&self, memory: &Memory, addresses: &[Address]) -> Result<Vec<u8>> {
        let parameters = self.kernel.parameters();
        if parameters.len() != self.arguments.len() {
            let names: Vec<String> = parameters
                .iter()
                .map(|parameter| format!("{}: {} bytes", parameter.name, parameter.bytes))
                .collect();
            return Err(Failure::argument(format!(
                "arguments: expected {} ({}), got {}",
                parameters.len(),
                names.join(", "),
                self.arguments.len()
            )));
        }
        let mut params = vec![0; self.kernel.parameter_bytes()];
        for (parameter, argument) in parameters.iter().zip(&self.arguments) {
            let mut bytes = match argument {
                (Some(bytes), ..) => bytes.clone(),
                (_, Some((buffer, offset)), _) => {
                    addresses[*buffer].offset(*offset).to_le_bytes().to_vec()
                }
                (.., Some(map)) => encode(map, addresses)?,
                _ => Vec::new(),
            };
            if bytes.len() == MAP_BYTES && parameter.bytes == 8 {
                let address = memory.allocate(MAP_BYTES);
                // Cannot fail: just allocated.
                let _ = memory.write(address, &bytes);
                bytes = address.to_le_bytes().to_vec();
            }
            if bytes.len() != parameter.bytes {
                return Err(Failure::argument(format!(
                    "{}: expected {} bytes, got {}",
                    parameter.name,
                    parameter.bytes,
                    bytes.len()
                )));
            }
            params[parameter.offset..][..bytes.len()].copy_from_slice(&bytes);
        }
        Ok(params)
    }
}

fn encode(map: &MapText, addresses: &[Address]) -> Result<Vec<u8>> {
    let (element, buffer, offset, dims, strides, box_dims, swizzle) = map;
    let element = match element.as_str() {
        "uint8" => TensorMapElement::U8,
        "uint16" => TensorMapElement::U16,
        "uint32" => TensorMapElement::U32,
        "int32" => TensorMapElement::I32,
        "uint64" => TensorMapElement::U64,
        "int64" => TensorMapElement::I64,
        "float16" => TensorMapElement::F16,
        "bfloat16" => TensorMapElement::Bf16,
        "float32" => TensorMapElement::F32,
        "float64" => TensorMapElement::F64,
        other => {
            let known =
                "uint8, uint16, uint32, int32, uint64, int64, float16, bfloat16, float32 or float64";
            return Err(Failure::argument(format!("TensorMap: expected {known}, got {other}")));
        }
    };
    let swizzle = match swizzle {
        0 => TensorMapSwizzle::None,
        32 => TensorMapSwizzle::B32,
        64 => TensorMapSwizzle::B64,
        128 => TensorMapSwizzle::B128,
        other => {
            return Err(Failure::argument(format!("swizzle: expected 0, 32, 64 or 128, got {other}")));
        }
    };
    let map = TensorMap {
        element,
        address: addresses[*buffer].offset(*offset).0,
        dims: dims.clone(),
        strides_bytes: strides.clone(),
        box_dims: box_dims.clone(),
        swizzle,
    };
    let words = map.encode().map_err(|error| Failure::argument(format!("TensorMap: {error}")))?;
    Ok(words.iter().flat_map(|word| word.to_le_bytes()).collect())
}
