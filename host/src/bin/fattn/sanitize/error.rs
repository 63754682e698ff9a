//! What `fattn sanitize` refuses: the option, what was expected, and what came.

use std::path::PathBuf;

/// Short for a result of this command.
pub type Result<T, E = SanitizeError> = std::result::Result<T, E>;

/// An option that cannot be used. `option` is its name, with the text given where it can be given often:
/// ``--arg `u32:x` ``.
#[derive(Debug, thiserror::Error)]
pub enum SanitizeError {
    /// A piece of an option is not what can stand there.
    #[error("{option}: expected {expected}, got `{got}`")]
    Expected {
        /// The option.
        option: String,
        /// What can stand there.
        expected: String,
        /// What stands there.
        got: String,
    },
    /// An argument does not have the size of its parameter.
    #[error("{option}: expected {expected} bytes for the parameter {parameter}, got {got}")]
    ParameterSize {
        /// The option.
        option: String,
        /// The kernel's name of the parameter.
        parameter: String,
        /// Bytes that it has.
        expected: usize,
        /// Bytes of the argument.
        got: usize,
    },
    /// As many arguments as parameters are needed.
    #[error("{option}: expected {expected} ({}), got {got}", .parameters.join(", "))]
    ArgumentCount {
        /// The option.
        option: String,
        /// Parameters of the kernel.
        expected: usize,
        /// Their names and sizes.
        parameters: Vec<String>,
        /// Arguments given.
        got: usize,
    },
    /// Two buffers have one name.
    #[error("{option}: expected a name of its own, got {name}, which another buffer has")]
    NameTaken {
        /// The option.
        option: String,
        /// The name.
        name: String,
    },
    /// A tensor map that the driver would refuse.
    #[error("{option}: {error}")]
    TensorMap {
        /// The option.
        option: String,
        /// What is wrong with it.
        error: ptx_emulator::TensorMapError,
    },
    /// A file that cannot be read or written.
    #[error("{option}: {}: {error}", .path.display())]
    File {
        /// The option.
        option: String,
        /// The file.
        path: PathBuf,
        /// Why not.
        error: std::io::Error,
    },
    /// A file that is no safetensors file.
    #[error("{option}: {}: {error}", .path.display())]
    Safetensors {
        /// The option.
        option: String,
        /// The file.
        path: PathBuf,
        /// Why not.
        error: safetensors::SafeTensorError,
    },
    /// Text that is no PTX.
    #[error("{option} {}: {error}", .path.display())]
    Ptx {
        /// The option.
        option: String,
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: ptx_emulator::ParseError,
    },
    /// A file that is no case.
    #[error("--case {}: {error}", .path.display())]
    Case {
        /// The file.
        path: PathBuf,
        /// Where and why.
        error: serde_json::Error,
    },
    /// The launch is impossible.
    #[error(transparent)]
    Launch(#[from] ptx_emulator::LaunchError),
}

/// The error of a piece that is not what can stand there.
pub fn expected(option: &str, expected: impl Into<String>, got: impl ToString) -> SanitizeError {
    SanitizeError::Expected {
        option: option.to_owned(),
        expected: expected.into(),
        got: got.to_string(),
    }
}
