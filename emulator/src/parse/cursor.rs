//! Reading tokens one after the other.

use super::lex::{Kind, Token};
use crate::error::{ParseError, ParseErrorKind};
use crate::module::quote::quote;

/// A position in the tokens of a module.
pub struct Cursor<'a> {
    source: &'a str,
    tokens: Vec<Token>,
    at: usize,
}

impl<'a> Cursor<'a> {
    /// At the start of a module.
    pub fn new(source: &'a str) -> Self {
        Cursor { source, tokens: super::lex::tokens(source), at: 0 }
    }

    /// The token here, without moving on. At the end of the text it is the end.
    pub fn peek(&self) -> Token {
        self.peek_ahead(0)
    }

    /// The token so many places ahead.
    pub fn peek_ahead(&self, places: usize) -> Token {
        let last = self.tokens.len() - 1;
        self.tokens[(self.at + places).min(last)]
    }

    /// The token here; moves on.
    pub fn next(&mut self) -> Token {
        let token = self.peek();
        self.at += 1;
        token
    }

    /// The token before this one.
    pub fn behind(&self) -> Token {
        self.tokens[self.at.saturating_sub(1).min(self.tokens.len() - 1)]
    }

    /// The text of the module.
    pub fn source(&self) -> &'a str {
        self.source
    }

    /// The text of a token.
    pub fn text(&self, token: Token) -> &'a str {
        self.source.get(token.start as usize..token.end as usize).unwrap_or_default()
    }

    /// Whether the token here is a certain mark.
    pub fn is_mark(&self, mark: u8) -> bool {
        self.peek().kind == Kind::Mark(mark)
    }

    /// Moves past a mark if it is here.
    pub fn accept(&mut self, mark: u8) -> bool {
        let here = self.is_mark(mark);
        self.at += usize::from(here);
        here
    }

    /// Moves past a mark that must be here.
    pub fn expect(&mut self, mark: u8, name: &'static str) -> Result<(), ParseError> {
        if self.accept(mark) { Ok(()) } else { Err(self.expected(name)) }
    }

    /// The text of a word that must be here.
    pub fn word(&mut self, name: &'static str) -> Result<&'a str, ParseError> {
        if self.peek().kind == Kind::Word {
            let token = self.next();
            Ok(self.text(token))
        } else {
            Err(self.expected(name))
        }
    }

    /// An unsigned integer that must be here.
    pub fn unsigned(&mut self, name: &'static str) -> Result<u64, ParseError> {
        let token = self.peek();
        let value = super::number::parse(self.text(token)).and_then(super::number::Number::integer);
        match value {
            Some(value) if token.kind == Kind::Number => {
                self.at += 1;
                Ok(value)
            }
            _ => Err(self.expected(name)),
        }
    }

    /// Skips from here to the end of the line.
    pub fn skip_line(&mut self) {
        let line = self.peek().line;
        while self.peek().line == line && self.peek().kind != Kind::End {
            self.at += 1;
        }
    }

    /// Skips to behind the mark that closes the `{` or `(` here; inner pairs of the same kind nest.
    pub fn skip_group(&mut self, open: u8, close: u8) -> Result<(), ParseError> {
        let mut depth = 0usize;
        loop {
            match self.peek().kind {
                Kind::Mark(mark) if mark == open => depth += 1,
                Kind::Mark(mark) if mark == close => depth = depth.saturating_sub(1),
                Kind::End => return Err(self.expected("a closing bracket")),
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Ok(());
            }
        }
    }

    /// Where it is, for [`Cursor::go_back`].
    pub fn place(&self) -> usize {
        self.at
    }

    /// Moves to where it was.
    pub fn go_back(&mut self, place: usize) {
        self.at = place;
    }

    /// Skips to behind the next body in braces.
    ///
    /// # Errors
    ///
    /// There is none.
    pub fn skip_body(&mut self) -> Result<(), ParseError> {
        loop {
            match self.peek().kind {
                Kind::Mark(b'{') => return self.skip_group(b'{', b'}'),
                Kind::End => return Err(self.expected("a body")),
                _ => {
                    self.next();
                }
            }
        }
    }

    /// Skips to behind the next `;`, or to a `}` or the end.
    pub fn skip_statement(&mut self) {
        while !matches!(self.peek().kind, Kind::End | Kind::Mark(b'}')) {
            if self.next().kind == Kind::Mark(b';') {
                return;
            }
        }
    }

    /// An error at the token here.
    pub fn expected(&self, what: &'static str) -> ParseError {
        self.error_here(ParseErrorKind::Expected(what))
    }

    /// An error at the token here.
    pub fn error_here(&self, kind: ParseErrorKind) -> ParseError {
        let token = self.peek();
        self.error(token.line, token.start, self.statement_end(), kind)
    }

    /// An error at the token before this one.
    pub fn error_behind(&self, kind: ParseErrorKind) -> ParseError {
        let token = self.behind();
        self.error(token.line, token.start, token.end, kind)
    }

    /// An error about a piece of the text.
    pub fn error(&self, line: u32, start: u32, end: u32, kind: ParseErrorKind) -> ParseError {
        ParseError { line, text: quote(self.source, start, end), kind }
    }

    /// The end of the statement here, not beyond its line.
    fn statement_end(&self) -> u32 {
        let first = self.peek();
        let mut end = first.end;
        for token in &self.tokens[self.at.min(self.tokens.len() - 1)..] {
            if token.kind == Kind::Mark(b';') || token.line != first.line {
                break;
            }
            end = token.end;
        }
        end
    }
}
