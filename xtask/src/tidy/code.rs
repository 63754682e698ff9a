//! Rust text without what the compiler does not read as code.

/// Blanks comments and the insides of string and character literals; every line keeps its number and
/// length in characters.
pub fn only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match token(&chars, at) {
            Token::Comment(end) | Token::Literal(end) => end,
            Token::Code(end) => {
                out.extend(&chars[at..end]);
                at = end;
                continue;
            }
        };
        out.extend(chars[at..end].iter().map(|&c| if c == '\n' { '\n' } else { ' ' }));
        at = end;
    }
    out
}

/// What starts at a place, with the index behind it.
enum Token {
    Comment(usize),
    Literal(usize),
    Code(usize),
}

fn token(chars: &[char], at: usize) -> Token {
    let next = |offset: usize| chars.get(at + offset).copied().unwrap_or('\0');
    match (chars[at], next(1)) {
        ('/', '/') => Token::Comment(find(chars, at, "\n")),
        ('/', '*') => Token::Comment(block_comment(chars, at)),
        ('"', _) => Token::Literal(string(chars, at + 1)),
        ('r', '"' | '#') => raw_string(chars, at).map_or(Token::Code(at + 1), Token::Literal),
        ('\'', '\\') => Token::Literal((find(chars, at + 3, "'") + 1).min(chars.len())),
        ('\'', _) if next(2) == '\'' => Token::Literal(at + 3),
        (c, _) if is_word(c) => {
            // A whole word at once, so that the r of `for"` is not taken for a raw string. b"" and c""
            // are words followed by a string.
            let end = (at..chars.len()).find(|&i| !is_word(chars[i])).unwrap_or(chars.len());
            let raw = chars[end - 1] == 'r' && end - at == 2 && raw_string(chars, end - 1).is_some();
            Token::Code(if raw { end - 1 } else { end })
        }
        _ => Token::Code(at + 1),
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Index of `pattern` at or after `from`, or the end.
fn find(chars: &[char], from: usize, pattern: &str) -> usize {
    let pattern: Vec<char> = pattern.chars().collect();
    (from..chars.len()).find(|&i| chars[i..].starts_with(&pattern)).unwrap_or(chars.len())
}

fn block_comment(chars: &[char], at: usize) -> usize {
    let (mut depth, mut i) = (0, at);
    while i < chars.len() {
        if chars[i..].starts_with(&['/', '*']) {
            depth += 1;
            i += 2;
        } else if chars[i..].starts_with(&['*', '/']) {
            depth -= 1;
            i += 2;
            if depth == 0 {
                return i;
            }
        } else {
            i += 1;
        }
    }
    i
}

/// Index behind the closing quote of a string whose first character is at `i`.
fn string(chars: &[char], mut i: usize) -> usize {
    while i < chars.len() && chars[i] != '"' {
        i += if chars[i] == '\\' { 2 } else { 1 };
    }
    (i + 1).min(chars.len())
}

/// Index behind a raw string that starts with the `r` at `at`, or none when it is a word such as
/// `r#type`.
fn raw_string(chars: &[char], at: usize) -> Option<usize> {
    let hashes = chars[at + 1..].iter().take_while(|&&c| c == '#').count();
    let open = at + 1 + hashes;
    if chars.get(open) != Some(&'"') {
        return None;
    }
    let close = format!("\"{}", "#".repeat(hashes));
    Some((find(chars, open + 1, &close) + close.len()).min(chars.len()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, want: &str) {
        let got = only(text);
        assert_eq!(got.chars().count(), text.chars().count());
        assert_eq!(got.split_whitespace().collect::<Vec<_>>().join(" "), want);
    }

    #[test]
    fn comments_go() {
        check("a // b\nc /* d /* e */ f */ g", "a c g");
    }

    #[test]
    fn literals_go_and_lifetimes_stay() {
        check(r#"f("a // \" b", 'x', '\'', "c") + g"#, "f( , , , ) + g");
        check("fn f<'a>(x: &'a str)", "fn f<'a>(x: &'a str)");
        check("let x = r#\"a \" b\"#; br\"c\" b\"d\" r#type", "let x = ; b b r#type");
    }

    #[test]
    fn lines_stay_where_they_are() {
        let text = "a\n\"b\nc\"\n/* d\n */ e\n";
        assert_eq!(only(text).lines().count(), text.lines().count());
        assert!(only(text).lines().nth(4).unwrap().contains('e'));
    }
}
