//! Markers: the lines of a PTX text in which a switch is off or on, read and written.

use core::fmt;

/// What comes before the name of the switch, behind a value that the code asks for.
const COMMENT: &str = "// specialize ";
const OPCODE: &str = "mov.b32 ";
/// The same behind a line that is code only where the switch is on, and what it begins with where it is off.
const LINE_COMMENT: &str = "// only with ";
const NO_CODE: &str = "// ";

/// A marker: a value, such as `mov.b32 %r12, 0; // specialize softcap` (see `arch::specialize`), or a line,
/// such as `// wgmma.fence.sync.aligned; // only with alibi`. It displays as its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marker<'t> {
    form: Form<'t>,
    /// Whether the switch is on.
    pub is_on: bool,
    /// Name of the switch: [`Switch::name`](super::Switch::name) if it is a known one.
    pub switch: &'t str,
}

/// What a switch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form<'t> {
    /// The value behind this part of the line.
    Value(&'t str),
    /// Whether this, behind white space, is code.
    Line { indent: &'t str, code: &'t str },
}

/// The comment of a marker behind code that is none: the switch cannot be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadMarker<'t> {
    /// Name of the switch.
    pub switch: &'t str,
    /// The code.
    pub code: &'t str,
}

impl<'t> Marker<'t> {
    /// The marker that a line of PTX is, if it is one.
    ///
    /// # Errors
    /// [`BadMarker`] if a line has the comment of a value, and its code is not
    /// `mov.b32 <register>, 0;` or `mov.b32 <register>, 1;`.
    pub fn of_line(line: &'t str) -> Result<Option<Self>, BadMarker<'t>> {
        let Some((code, switch)) = line.split_once(COMMENT) else { return Ok(Self::of_code(line)) };
        let (code, switch) = (code.trim_end(), switch.trim_end());
        let of_value = |value: &str, is_on| {
            let head = code.strip_suffix(value)?;
            let register = head.trim_start().strip_prefix(OPCODE)?.strip_suffix(", ")?;
            let is_register = register.starts_with('%') && !register.contains([' ', ',', ';']);
            is_register.then_some(Marker { form: Form::Value(head), is_on, switch })
        };
        match of_value("0;", false).or_else(|| of_value("1;", true)) {
            None => Err(BadMarker { switch, code: code.trim_start() }),
            found => Ok(found),
        }
    }

    /// The same of a line that is code or not.
    fn of_code(line: &'t str) -> Option<Self> {
        let (code, switch) = line.split_once(LINE_COMMENT)?;
        let rest = code.trim_start();
        let indent = &code[..code.len() - rest.len()];
        let off = rest.strip_prefix(NO_CODE);
        let form = Form::Line { indent, code: off.unwrap_or(rest).trim_end() };
        Some(Marker { form, is_on: off.is_none(), switch: switch.trim_end() })
    }

    /// The same with its switch on or off.
    #[must_use]
    pub const fn set(self, is_on: bool) -> Self {
        Marker { is_on, ..self }
    }
}

impl fmt::Display for Marker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Marker { form, is_on, switch } = self;
        match form {
            Form::Value(head) => write!(f, "{head}{}; {COMMENT}{switch}", u32::from(*is_on)),
            Form::Line { indent, code } => {
                let no_code = if *is_on { "" } else { NO_CODE };
                write!(f, "{indent}{no_code}{code} {LINE_COMMENT}{switch}")
            }
        }
    }
}

impl fmt::Display for BadMarker<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadMarker { switch, code } = self;
        write!(f, "expected `{OPCODE}<register>, 0;` before `{COMMENT}{switch}`, got `{code}`")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    extern crate std;
    use std::string::ToString as _;

    #[test]
    fn a_marker_is_read_and_set() {
        let line = "\tmov.b32 %r442, 0; // specialize softcap";
        let marker = Marker::of_line(line).unwrap().unwrap();
        assert_eq!((marker.switch, marker.is_on, marker.to_string()), ("softcap", false, line.into()));
        let on = marker.set(true).to_string();
        assert_eq!(on, "\tmov.b32 %r442, 1; // specialize softcap");
        assert_eq!(Marker::of_line(&on), Ok(Some(marker.set(true))));
    }

    #[test]
    fn a_line_that_is_code_only_with_a_switch_is_read_and_set() {
        let line = "\t// wgmma.fence.sync.aligned; // only with alibi";
        let marker = Marker::of_line(line).unwrap().unwrap();
        assert_eq!((marker.switch, marker.is_on, marker.to_string()), ("alibi", false, line.into()));
        let on = marker.set(true).to_string();
        assert_eq!(on, "\twgmma.fence.sync.aligned; // only with alibi");
        assert_eq!(Marker::of_line(&on), Ok(Some(marker.set(true))));
    }

    #[test]
    fn other_lines_are_none() {
        for line in ["", "\tmov.b32 %r1, 0;", "\t.loc 1 2 3 // src/arch/specialize.rs:28", "// mov.b32"]
        {
            assert_eq!(Marker::of_line(line), Ok(None), "{line}");
        }
    }

    #[test]
    fn a_comment_behind_other_code_is_an_error() {
        for code in ["", "mov.b32 %r1, 2;", "mov.b64 %rd1, 0;", "mov.b32 , 0;", "mov.b32 %r1, %r0;"] {
            let line = std::format!("\t{code} // specialize softcap");
            assert_eq!(Marker::of_line(&line), Err(BadMarker { switch: "softcap", code }), "{line}");
        }
        let text = Marker::of_line("add.s32; // specialize x").unwrap_err().to_string();
        assert_eq!(text, "expected `mov.b32 <register>, 0;` before `// specialize x`, got `add.s32;`");
    }
}
