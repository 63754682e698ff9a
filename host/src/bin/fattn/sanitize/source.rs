//! A text of PTX, and what it is called.

use super::error::{Result, SanitizeError, expected};
use ptx_emulator::{Kernel, LaunchError, Module};
use std::path::{Path, PathBuf};

/// A text that has been parsed.
pub struct Source {
    /// What a case calls it.
    pub name: String,
    /// Where it comes from.
    pub path: PathBuf,
    pub text: String,
    pub module: Module,
}

impl Source {
    /// The text of a file. `option` is what errors call it.
    pub fn read(option: &str, name: String, path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).map_err(|error| SanitizeError::File {
            option: option.to_owned(),
            path: path.to_owned(),
            error,
        })?;
        Source::parse(option, name, path.to_owned(), text)
    }

    /// A text that was found in this file.
    pub fn parse(option: &str, name: String, path: PathBuf, text: String) -> Result<Self> {
        match Module::parse(&text) {
            Ok(module) => Ok(Source { name, path, text, module }),
            Err(error) => Err(SanitizeError::Ptx { option: option.to_owned(), path, error }),
        }
    }

    /// The kernel of this name, or the only one. `option` is what errors call the text, and `entry` the name.
    pub fn kernel(&self, option: &str, entry: &str, name: Option<&str>) -> Result<&Kernel> {
        let names = || self.module.kernels().map(Kernel::name).collect::<Vec<_>>().join(", ");
        let mut kernels = self.module.kernels();
        let kernel = match (name, kernels.next(), kernels.next()) {
            (Some(name), ..) => self
                .module
                .kernel(name)
                .ok_or_else(|| expected(entry, format!("a kernel of the text: {}", names()), name))?,
            (None, Some(only), None) => only,
            (None, None, _) => return Err(expected(option, "a text with an .entry", "none")),
            _ => return Err(expected(entry, format!("one of {}", names()), "none")),
        };
        match kernel.error() {
            // Before anything is said about arguments: its parameters may be what is wrong.
            Some(error) => {
                Err(LaunchError::Unsupported { kernel: kernel.name().to_owned(), error }.into())
            }
            None => Ok(kernel),
        }
    }
}
