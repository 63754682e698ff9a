//! Cases: launches in a JSON file, as somebody writes them, or with all texts and bytes in it, as
//! `--save-case` does.

use super::argument::Argument;
use super::error::{Result, SanitizeError, expected};
use super::launch::{Setup, Step, Symbol};
use super::options::RunOptions;
use super::source::Source;
use super::{Shape, region};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Case {
    /// Texts of PTX by name.
    modules: BTreeMap<String, ModuleText>,
    /// The text of `--buffer` by name, without the name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    buffers: BTreeMap<String, String>,
    /// Values of variables by name, or by `module.name`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    symbols: BTreeMap<String, String>,
    launches: Vec<LaunchText>,
    #[serde(default)]
    pub options: RunOptions,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ModuleText {
    Path(PathBuf),
    Whole {
        text: String,
        /// Where it came from, for reports.
        path: Option<PathBuf>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct LaunchText {
    /// Which module; the only one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    module: Option<String>,
    /// Which kernel; the only one if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    entry: Option<String>,
    /// 1 to 3 numbers.
    #[serde(default = "one")]
    grid: Vec<u32>,
    /// 1 to 3 numbers.
    block: Vec<u32>,
    /// 1 to 3 numbers; as the kernel demands, or no clusters, if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cluster: Option<Vec<u32>>,
    #[serde(default)]
    shared: u32,
    /// As `--region`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    regions: Vec<String>,
    /// As `--arg`, which may refer to `buffers`.
    #[serde(default)]
    args: Vec<String>,
}

fn one() -> Vec<u32> {
    vec![1]
}

impl Case {
    /// Reads the file, and the texts that it names.
    pub fn read(path: &Path) -> Result<(Self, Vec<Source>)> {
        let refused =
            |error| SanitizeError::File { option: "--case".to_owned(), path: path.to_owned(), error };
        let text = std::fs::read_to_string(path).map_err(refused)?;
        let mut case: Case = serde_json::from_str(&text)
            .map_err(|error| SanitizeError::Case { path: path.to_owned(), error })?;
        let base = path.parent().unwrap_or(Path::new(""));
        for text in case.buffers.values_mut().chain(case.symbols.values_mut()) {
            *text = based(text, base);
        }
        for text in case.launches.iter_mut().flat_map(|launch| &mut launch.args) {
            *text = based(text, base);
        }
        let source = |(name, text): (&String, &ModuleText)| {
            let option = format!("--case: module {name}");
            match text {
                ModuleText::Path(path) => Source::read(&option, name.clone(), &base.join(path)),
                ModuleText::Whole { text, path: from } => {
                    let from = from.as_deref().unwrap_or(path);
                    Source::parse(&option, name.clone(), from.to_owned(), text.clone())
                }
            }
        };
        let sources = case.modules.iter().map(source).collect::<Result<_>>()?;
        Ok((case, sources))
    }

    /// What is launched.
    pub fn setup<'k>(&self, sources: &'k [Source]) -> Result<Setup<'k>> {
        let mut setup = Setup::default();
        for (name, text) in &self.buffers {
            let option = format!("--case: buffer {name}");
            setup.with_buffer(&option, &format!("{text},name={name}"))?;
        }
        if self.launches.is_empty() {
            return Err(expected("--case", "launches", "none"));
        }
        for (number, launch) in self.launches.iter().enumerate() {
            let option = |what: &str| format!("--case: launch {}: {what}", number + 1);
            let source = module(&option("module"), launch.module.as_deref(), sources)?;
            let kernel = source.kernel(&option("module"), &option("entry"), launch.entry.as_deref())?;
            let step = Step {
                source,
                kernel,
                shape: Shape {
                    grid: size(&option("grid"), &launch.grid)?,
                    block: size(&option("block"), &launch.block)?,
                    cluster: (launch.cluster.as_ref())
                        .map(|sizes| size(&option("cluster"), sizes))
                        .transpose()?,
                    shared_bytes: launch.shared,
                    regions: (launch.regions.iter())
                        .map(|text| region(&option("region"), text))
                        .collect::<Result<_>>()?,
                },
                arguments: Vec::new(),
            };
            setup.with_launch(step, &launch.args, &option("arg"))?;
        }
        for (name, value) in &self.symbols {
            let option = format!("--case: symbol {name}");
            let (source, name) = match name.split_once('.') {
                Some((of, name)) => (module(&option, Some(of), sources)?, name),
                None => (module(&option, None, sources)?, name.as_str()),
            };
            setup.with_symbol(option, source, (name, value))?;
        }
        Ok(setup)
    }

    /// A case that needs no other file.
    pub fn of(setup: &Setup<'_>, options: RunOptions) -> Self {
        let texts = setup.launches.iter().map(|step| step.source).map(|source| {
            let Source { name, path, text, .. } = source;
            (name.clone(), ModuleText::Whole { text: text.clone(), path: Some(path.clone()) })
        });
        let buffers = setup.buffers.iter().map(|buffer| {
            let nameless = super::Buffer { name: String::new(), ..buffer.clone() };
            (buffer.name.clone(), nameless.to_string())
        });
        let symbol = |symbol: &Symbol<'_>| {
            let Symbol { source, name, value, .. } = symbol;
            (format!("{}.{name}", source.name), value.to_string())
        };
        let launch = |step: &Step<'_>| LaunchText {
            module: Some(step.source.name.clone()),
            entry: Some(step.kernel.name().to_owned()),
            grid: step.shape.grid.to_vec(),
            block: step.shape.block.to_vec(),
            cluster: step.shape.cluster.map(|sizes| sizes.to_vec()),
            shared: step.shape.shared_bytes,
            regions: step
                .shape
                .regions
                .iter()
                .map(|region| format!("{}={}:{}", region.name, region.offset, region.bytes))
                .collect(),
            args: step
                .arguments
                .iter()
                .map(|(_, argument): &(_, Argument)| argument.to_string())
                .collect(),
        };
        Case {
            modules: texts.collect(),
            buffers: buffers.collect(),
            symbols: setup.symbols.iter().map(symbol).collect(),
            launches: setup.launches.iter().map(launch).collect(),
            options,
        }
    }
}

/// The module of this name, or the only one.
fn module<'k>(option: &str, name: Option<&str>, sources: &'k [Source]) -> Result<&'k Source> {
    let names = || sources.iter().map(|source| source.name.as_str()).collect::<Vec<_>>().join(", ");
    match (name, sources) {
        (None, [only]) => Ok(only),
        (None, _) => Err(expected(option, format!("one of {}", names()), "none")),
        (Some(name), _) => sources
            .iter()
            .find(|source| source.name == name)
            .ok_or_else(|| expected(option, format!("one of {}", names()), name)),
    }
}

fn size(option: &str, numbers: &[u32]) -> Result<[u32; 3]> {
    if numbers.is_empty() || numbers.len() > 3 || numbers.contains(&0) {
        let what = "1 to 3 numbers of at least 1, such as [4] or [4, 2, 1]";
        return Err(expected(option, what, format!("{numbers:?}")));
    }
    let mut size = [1; 3];
    size[..numbers.len()].copy_from_slice(numbers);
    Ok(size)
}

/// The text of an argument whose paths start in the folder `base`.
fn based(text: &str, base: &Path) -> String {
    let join = |path: &str| base.join(path).display().to_string();
    let field = |field: &str| {
        let is_buffer = field.starts_with("buf:");
        match (field.strip_prefix("file:"), field.split_once(":file:"), field.split_once('=')) {
            (Some(path), ..) => format!("file:{}", join(path)),
            (_, Some((head, path)), _) if is_buffer => format!("{head}:file:{}", join(path)),
            (.., Some((key @ ("expect" | "out"), path))) if !path.starts_with("hex:") => {
                format!("{key}={}", join(path))
            }
            _ => field.to_owned(),
        }
    };
    let part = |part: &str| part.split(',').map(field).collect::<Vec<_>>().join(",");
    match text.strip_prefix("pack:") {
        Some(parts) => {
            let parts: Vec<String> = parts.split(';').map(|text| part(text.trim())).collect();
            format!("pack:{}", parts.join(";"))
        }
        None => part(text),
    }
}

#[cfg(test)]
mod tests {
    use super::based;
    use std::path::Path;

    #[test]
    fn paths_start_where_the_case_is() {
        let based = |text: &str| based(text, Path::new("d"));
        for (text, want) in [
            ("file:x.bin", "file:d/x.bin"),
            ("file:/x.safetensors#t,dtype=f32", "file:/x.safetensors#t,dtype=f32"),
            ("buf:f32:4:file:x.bin,expect=y.bin,atol=1", "buf:f32:4:file:d/x.bin,expect=d/y.bin,atol=1"),
            ("buf:f32:4:zeros,expect=hex:00,out=o", "buf:f32:4:zeros,expect=hex:00,out=d/o"),
            ("pack:ref:k; file:x", "pack:ref:k;file:d/x"),
            ("u32:5", "u32:5"),
        ] {
            assert_eq!(based(text), want);
        }
    }
}
