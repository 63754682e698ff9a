//! Pieces of a module's text, for errors and findings.

/// The longest text quoted in an error or a finding.
const QUOTED_BYTES: usize = 120;

/// A piece of the source on one line, cut to a readable length.
pub fn quote(source: &str, start: u32, end: u32) -> String {
    let text = source.get(start as usize..end as usize).unwrap_or_default();
    let mut out = String::new();
    for word in text.split_whitespace() {
        if out.len() + word.len() > QUOTED_BYTES {
            out.extend(word.chars().take(QUOTED_BYTES.saturating_sub(out.len())));
            out.push('…');
            break;
        }
        if !out.is_empty() {
            out.push(' ');
        }
        out.push_str(word);
    }
    out
}
