//! What is declared in a module, outside its kernels.

use std::collections::HashMap;

/// A `.shared` variable of the module. Each kernel that names it has its own.
#[derive(Clone, Copy, Debug)]
pub struct SharedVariable {
    /// Bytes; 0 for the start of dynamic shared memory.
    pub bytes: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// A function of the module.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its results and parameters.
    pub results: Vec<Formal<'a>>,
    /// Its parameters.
    pub parameters: Vec<Formal<'a>>,
    /// Where its body starts among the tokens; of one that is only declared, nowhere.
    pub body: Option<usize>,
}

/// A result or a parameter of a function.
#[derive(Clone, Copy, Debug)]
pub struct Formal<'a> {
    /// Its name.
    pub name: &'a str,
    /// Bytes.
    pub bytes: u32,
    /// Alignment in bytes.
    pub align: u32,
}

/// What the bodies of a module can refer to.
pub struct Globals<'a> {
    /// `.shared` variables.
    pub shared: HashMap<&'a str, SharedVariable>,
    /// `.global` and `.const` variables, by index.
    pub variables: HashMap<&'a str, u32>,
    /// Functions, in the order in which they are first declared.
    pub functions: Vec<Function<'a>>,
    /// Functions by name.
    pub function_numbers: HashMap<&'a str, u32>,
    /// Whether to make register files small.
    pub compact: bool,
}
