//! Text to statements: tokens, scopes, operands, declarations.

pub mod cursor;
pub mod globals;
pub mod lex;
pub mod location;
pub mod number;
pub mod operand;
pub mod scope;
pub mod statement;
pub mod variable;
