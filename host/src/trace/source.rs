//! The functions of the kernels' source, by line: what line tables do not say.

use kernels_gpu::packs::SOURCE;
use ptx_emulator::SourceLocation;

/// Where the source lies, in line tables.
const ROOT: &str = "kernels-gpu/src/";

/// A function in a chain of calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    /// Its file below `kernels-gpu/src`.
    pub file: &'static str,
    /// Its name.
    pub function: &'static str,
    /// The text of the line, of some lines.
    pub text: &'static str,
}

/// The functions of ours that an instruction is in, the kernel first and the innermost last.
pub fn frames(location: Option<&SourceLocation>) -> Vec<Frame> {
    let places = std::iter::successors(location, |place| place.inlined_at.as_deref());
    let mut frames: Vec<Frame> = places.filter_map(frame).collect();
    frames.reverse();
    frames
}

/// The file of the kernel that an instruction is in, below `kernels-gpu/src`: also of instructions that stand
/// in no line, as those that the compiler made of several do.
pub fn kernel_file(location: Option<&SourceLocation>) -> Option<&str> {
    let places = std::iter::successors(location, |place| place.inlined_at.as_deref());
    places.last()?.file.strip_prefix(ROOT)
}

fn frame(place: &SourceLocation) -> Option<Frame> {
    let path = place.file.strip_prefix(ROOT)?;
    let &(file, functions, lines) = SOURCE.iter().find(|(file, ..)| *file == path)?;
    let &(_, function) = functions.iter().rfind(|(line, _)| *line <= place.line)?;
    let text = lines.iter().find(|(line, _)| *line == place.line).map_or("", |(_, text)| text);
    Some(Frame { file, function, text })
}
