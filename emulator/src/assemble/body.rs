//! The body of a kernel: scopes, declarations, labels and instructions.

use crate::decode;
use crate::decode::builder::{Builder, Place};
use crate::error::{ParseError, ParseErrorKind};
use crate::isa::allocate;
use crate::isa::control_flow::{self, Graph};
use crate::isa::{Code, Fill, Op, Touches, Watch, WgmmaOp, expected_loads, steps};
use crate::module::KernelData;
use crate::module::locations::Locations;
use crate::module::quote::quote;
use crate::parse::cursor::Cursor;
use crate::parse::lex::Kind;
use crate::parse::operand::{self, Operand, Scalar};
use crate::parse::scope::{Class, Symbol};
use crate::parse::statement::Statement;
use crate::parse::variable;

/// Reads a body from its `{` to its `}` into a kernel.
pub fn read<'a>(
    cursor: &mut Cursor<'a>,
    builder: &mut Builder<'a, '_>,
    kernel: &mut KernelData,
    locations: &mut Locations,
) -> Result<(), ParseError> {
    statements(cursor, builder, locations)?;
    while let Some((number, body)) = builder.next_function() {
        let behind = cursor.place();
        cursor.go_back(body);
        builder.begin_function(number);
        statements(cursor, builder, locations)?;
        cursor.go_back(behind);
    }
    builder.finish(kernel);
    analyse(builder, kernel);
    Ok(())
}

/// Reads the statements of a body from its `{` to its `}`.
fn statements<'a>(
    cursor: &mut Cursor<'a>,
    builder: &mut Builder<'a, '_>,
    locations: &mut Locations,
) -> Result<(), ParseError> {
    cursor.expect(b'{', "a body")?;
    let mut location = 0;
    loop {
        let token = cursor.peek();
        match token.kind {
            Kind::Mark(b'{') => builder.scopes.open(),
            Kind::Mark(b'}') if !builder.scopes.close() => break,
            Kind::Mark(b'}' | b';') | Kind::LocationComment => {}
            Kind::Mark(b'@') => {
                instruction(cursor, builder, location)?;
                continue;
            }
            Kind::Word => {
                word(cursor, builder, locations, &mut location)?;
                continue;
            }
            _ => return Err(cursor.expected("a statement")),
        }
        cursor.next();
    }
    cursor.next();
    builder.end_body()
}

/// Finds out what is known of a kernel before it runs.
fn analyse(builder: &Builder<'_, '_>, kernel: &mut KernelData) {
    kernel.code.meets_in_parts = meets_in_parts(&kernel.code);
    let graph = Graph::new(&kernel.code);
    control_flow::reconverge(&mut kernel.code, &graph);
    kernel.code.expected_loads = expected_loads(&kernel.code);
    let mut watch = Watch::new(&mut kernel.code, &graph);
    for register in &mut watch.registers {
        let name = builder.scopes.name_of(register.is_predicate, register.index);
        register.name = name.unwrap_or_else(|| "a register".to_string());
    }
    kernel.code.watch = watch;
    if builder.compacts() {
        allocate::compact(&mut kernel.code, &graph);
    }
    let code = &mut kernel.code;
    code.steps = code.instructions.iter().map(steps::beside).collect();
    let is = |test: fn(Op) -> bool| code.instructions.iter().any(|instruction| test(instruction.op));
    code.asynchronous = is(|op| matches!(op, Op::Mbarrier(_) | Op::Bulk(_) | Op::Wgmma(_)));
    if is(|op| op == Op::Wgmma(WgmmaOp::Multiply)) {
        code.touches = Touches::new(code);
    }
}

/// Whether a `bar.warp.sync` has another member mask than all lanes.
fn meets_in_parts(code: &Code) -> bool {
    let is_whole = |row: u32| code.fills.contains(&(row, Fill::Constant32(u32::MAX)));
    code.instructions.iter().any(|i| i.op == Op::WarpSync && !is_whole(i.a))
}

fn word<'a>(
    cursor: &mut Cursor<'a>,
    builder: &mut Builder<'a, '_>,
    locations: &mut Locations,
    location: &mut u32,
) -> Result<(), ParseError> {
    let name = cursor.text(cursor.peek());
    if cursor.peek_ahead(1).kind == Kind::Mark(b':') {
        return label(cursor, builder, name);
    }
    if !name.starts_with('.') {
        return instruction(cursor, builder, *location);
    }
    cursor.next();
    match name {
        ".loc" => *location = locations.read_location(cursor)?,
        ".reg" => registers(cursor, builder)?,
        ".local" | ".shared" => variable(cursor, builder, name == ".shared")?,
        ".param" => {
            let one = variable::read(cursor)?;
            builder.declare_argument(one.name, one.bytes(), one.align);
            cursor.expect(b';', ";")?;
        }
        ".pragma" => cursor.skip_statement(),
        _ => return Err(cursor.error_behind(ParseErrorKind::UnsupportedDirective)),
    }
    Ok(())
}

fn label<'a>(
    cursor: &mut Cursor<'a>,
    builder: &mut Builder<'a, '_>,
    name: &'a str,
) -> Result<(), ParseError> {
    if !builder.scopes.declare_label(name, builder.next_instruction()) {
        return Err(cursor.expected("a label that is new in its scope"));
    }
    cursor.next();
    cursor.next();
    if matches!(cursor.text(cursor.peek()), ".callprototype" | ".calltargets") {
        // Of indirect calls, which find out by themselves.
        cursor.skip_statement();
    }
    if cursor.text(cursor.peek()) == ".branchtargets" {
        cursor.next();
        let mut targets = vec![cursor.word("a label")?];
        while cursor.accept(b',') {
            targets.push(cursor.word("a label")?);
        }
        cursor.expect(b';', ";")?;
        builder.declare_targets(name, targets);
    }
    Ok(())
}

fn registers<'a>(cursor: &mut Cursor<'a>, builder: &mut Builder<'a, '_>) -> Result<(), ParseError> {
    let limit = ParseErrorKind::Limit("the number of registers");
    let class = Class::of_type(cursor.word("a register type")?);
    let class = class.ok_or_else(|| cursor.expected("a register type"))?;
    loop {
        let name = cursor.word("a register name")?;
        let declared = if cursor.accept(b'<') {
            let count = cursor.unsigned("a number of registers")?;
            cursor.expect(b'>', ">")?;
            u32::try_from(count).ok().and_then(|count| builder.scopes.declare_range(name, class, count))
        } else {
            builder.scopes.declare(name, class)
        };
        declared.ok_or_else(|| cursor.error_here(limit.clone()))?;
        if !cursor.accept(b',') {
            return cursor.expect(b';', ";");
        }
    }
}

fn variable<'a>(
    cursor: &mut Cursor<'a>,
    builder: &mut Builder<'a, '_>,
    shared: bool,
) -> Result<(), ParseError> {
    let one = variable::read(cursor)?;
    let symbol = if shared {
        Symbol::Shared(builder.place_shared(one.bytes(), one.align))
    } else {
        builder.place_local(one.bytes(), one.align)
    };
    builder.scopes.declare_symbol(one.name, symbol);
    cursor.expect(b';', ";")
}

fn instruction<'a>(
    cursor: &mut Cursor<'a>,
    builder: &mut Builder<'a, '_>,
    location: u32,
) -> Result<(), ParseError> {
    let first = cursor.peek();
    let guard = if cursor.accept(b'@') {
        let negated = cursor.accept(b'!');
        match operand::read(cursor, &builder.scopes)? {
            Operand::Scalar(Scalar::Register(r)) if r.class == Class::Predicate => {
                Some((r.index, negated))
            }
            _ => return Err(cursor.expected("a predicate")),
        }
    } else {
        None
    };
    let opcode = cursor.word("an instruction")?;
    let mut statement = Statement::new(opcode, guard);
    let end = statement.read_operands(cursor, &builder.scopes)?;
    let place = Place { line: first.line, text: (first.start, end.end), location };
    match decode::decode(&statement, builder) {
        Ok(instruction) => builder.push(instruction, &statement, place),
        Err(ParseErrorKind::UnsupportedInstruction) => {
            let text = quote(cursor.source(), first.start, end.end);
            builder.push_unsupported(text, place);
        }
        Err(kind) => return Err(cursor.error(first.line, first.start, end.end, kind)),
    }
    Ok(())
}
