//! Parts of the texts of errors.

use std::fmt::Write as _;

/// `: detail`, or nothing.
pub(super) fn detail_text(detail: &str) -> String {
    if detail.is_empty() { String::new() } else { format!(": {detail}") }
}

/// `1 finding`, `3 findings`.
pub(super) fn count_text(findings: &[String]) -> String {
    format!("{} finding{}", findings.len(), plural(findings.len()))
}

/// Another size that is as good, behind a comma.
pub(super) fn comma(size: Option<usize>) -> String {
    size.map_or_else(String::new, |size| format!(", {size}"))
}

/// What follows a noun of which there are so many.
pub(super) fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

/// The findings, a line each.
pub(super) fn list_text(findings: &[String]) -> String {
    findings.iter().fold(String::new(), |mut text, finding| {
        // Writing to a String cannot fail.
        let _ = write!(text, "\n- {finding}");
        text
    })
}
