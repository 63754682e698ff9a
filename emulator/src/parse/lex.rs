//! Text to tokens.

/// Kinds of token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A name, opcode, register or directive: `ld.global.nc`, `%rd4`, `.reg`, `$L__BB0_1`.
    Word,
    /// A number in any base, or a float literal.
    Number,
    /// A quoted string, quotes included.
    Text,
    /// A single byte of punctuation.
    Mark(u8),
    /// The comment behind a `.loc`, in which LLVM writes the whole inlining chain.
    LocationComment,
    /// A character that PTX has no use for.
    Foreign,
    /// End of the text.
    End,
}

/// A token: its kind, where it stands, and its line.
#[derive(Clone, Copy, Debug)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// First byte.
    pub start: u32,
    /// Byte after the last.
    pub end: u32,
    /// Line, from 1.
    pub line: u32,
}

fn is_word_start(byte: u8) -> bool {
    byte.is_ascii_alphabetic() || matches!(byte, b'_' | b'$' | b'%' | b'.')
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'$' | b'.')
}

struct Lexer<'a> {
    bytes: &'a [u8],
    at: usize,
    line: u32,
    /// Line of the last `.loc`, whose comment is worth keeping.
    location_line: u32,
    tokens: Vec<Token>,
}

/// Splits a module's text into tokens, ending with one [`Kind::End`].
///
/// Texts of 4 GiB and more are cut: positions are 32 bits wide.
pub fn tokens(source: &str) -> Vec<Token> {
    let bytes = source.as_bytes();
    let bytes = &bytes[..bytes.len().min(u32::MAX as usize)];
    let mut lexer =
        Lexer { bytes, at: 0, line: 1, location_line: 0, tokens: Vec::with_capacity(bytes.len() / 5) };
    lexer.run();
    lexer.tokens
}

impl Lexer<'_> {
    fn run(&mut self) {
        while let Some(&byte) = self.bytes.get(self.at) {
            match byte {
                b'\n' => {
                    self.line += 1;
                    self.at += 1;
                }
                b' ' | b'\t' | b'\r' => self.at += 1,
                b'/' if self.peek(1) == b'/' => self.line_comment(),
                b'/' if self.peek(1) == b'*' => self.block_comment(),
                b'"' => self.text(),
                _ if is_word_start(byte) => self.word(),
                _ if byte.is_ascii_digit() => {
                    let end = self.number(self.span(self.at, is_word));
                    self.push(Kind::Number, end);
                }
                _ if byte.is_ascii_graphic() => self.push(Kind::Mark(byte), self.at + 1),
                _ if byte.is_ascii() => self.at += 1,
                _ => {
                    let end = self.span(self.at, |b| !b.is_ascii());
                    self.push(Kind::Foreign, end);
                }
            }
        }
        self.push(Kind::End, self.at);
    }

    fn peek(&self, ahead: usize) -> u8 {
        self.bytes.get(self.at + ahead).copied().unwrap_or(0)
    }

    fn span(&self, from: usize, belongs: impl Fn(u8) -> bool) -> usize {
        from + self.bytes[from..].iter().take_while(|&&b| belongs(b)).count()
    }

    /// The end of a number whose digits end here: `1.5e` may go on with a sign.
    fn number(&self, end: usize) -> usize {
        let is_exponent = match &self.bytes[self.at..end] {
            [digits @ .., b'e' | b'E'] => digits.iter().all(|&b| b.is_ascii_digit() || b == b'.'),
            _ => false,
        };
        match self.bytes.get(end..end + 2) {
            Some([b'+' | b'-', digit]) if is_exponent && digit.is_ascii_digit() => {
                self.span(end + 1, is_word)
            }
            _ => end,
        }
    }

    fn push(&mut self, kind: Kind, end: usize) {
        self.tokens.push(Token { kind, start: self.at as u32, end: end as u32, line: self.line });
        self.at = end;
    }

    fn word(&mut self) {
        let mut end = self.span(self.at + 1, is_word);
        // `::` belongs to an opcode (`.shared::cta`); a single colon ends a label.
        while self.bytes.get(end..end + 2) == Some(b"::") {
            end = self.span(end + 2, is_word);
        }
        if &self.bytes[self.at..end] == b".loc" {
            self.location_line = self.line;
        }
        self.push(Kind::Word, end);
    }

    fn text(&mut self) {
        let close = self.span(self.at + 1, |b| b != b'"' && b != b'\n');
        let end = if self.bytes.get(close) == Some(&b'"') { close + 1 } else { close };
        self.push(Kind::Text, end);
    }

    fn line_comment(&mut self) {
        let end = self.span(self.at, |b| b != b'\n');
        if self.location_line == self.line {
            self.push(Kind::LocationComment, end);
        }
        self.at = end;
    }

    fn block_comment(&mut self) {
        self.at += 2;
        while self.at < self.bytes.len() && !(self.peek(0) == b'*' && self.peek(1) == b'/') {
            self.line += u32::from(self.bytes[self.at] == b'\n');
            self.at += 1;
        }
        self.at = (self.at + 2).min(self.bytes.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(source: &str) -> Vec<&str> {
        tokens(source).iter().map(|t| &source[t.start as usize..t.end as usize]).collect()
    }

    #[test]
    fn labels_opcodes_and_marks_are_told_apart() {
        assert_eq!(
            words("LAB: ld.shared::cta.b32 %r1, [%r2+-8]; @!%p bra LAB;"),
            [
                "LAB",
                ":",
                "ld.shared::cta.b32",
                "%r1",
                ",",
                "[",
                "%r2",
                "+",
                "-",
                "8",
                "]",
                ";",
                "@",
                "!",
                "%p",
                "bra",
                "LAB",
                ";",
                ""
            ]
        );
    }

    #[test]
    fn exponents_have_signs() {
        let expected = ["1.5e-3", ",", "2E+1", ",", "0x1e", "-", "3", ",", "1e", "-", "x", ""];
        assert_eq!(words("1.5e-3, 2E+1, 0x1e-3, 1e-x"), expected);
    }

    #[test]
    fn comments_vanish_but_count_lines() {
        let source = "a // b\n/* c\n d */ e";
        assert_eq!(words(source), ["a", "e", ""]);
        assert_eq!(tokens(source)[1].line, 3);
    }

    #[test]
    fn the_comment_of_a_location_stays() {
        assert_eq!(words(".loc 1 2 3 // f.rs:2:3"), [".loc", "1", "2", "3", "// f.rs:2:3", ""]);
    }
}
