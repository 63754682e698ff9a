//! The compiled kernels, and the functions of their source by line: tables that the build script writes.

/// A file below `src`; where functions begin, and their names; some lines and their text.
pub type SourceFile = (&'static str, &'static [(u32, &'static str)], &'static [(u32, &'static str)]);

/// File name and contents of each pack of kernels, sorted: PTX in `*.ptx.pack`, assembled kernels in
/// `*.cubin.pack`. `kernel-archive` reads them. There is at least one of PTX.
pub static PACKS: &[(&str, &[u8])] = include!(concat!(env!("OUT_DIR"), "/packs_table.rs"));

/// Every file of the kernels' source, sorted.
pub static SOURCE: &[SourceFile] = include!(concat!(env!("OUT_DIR"), "/source_table.rs"));
