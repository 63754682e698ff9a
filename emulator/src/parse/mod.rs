//! Text to statements: tokens, directives, scopes, operands.

pub mod body;
pub mod cursor;
pub mod lex;
pub mod location;
pub mod module;
pub mod number;
pub mod operand;
pub mod scope;
pub mod variable;
