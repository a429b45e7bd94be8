//! Bounds the memory of operators and functions whose result can be much larger than the record.
//!
//! In VRL, `*` multiplies numbers and repeats texts. So with `.total = .price * .count`, one record with a text and a large number would
//! take all memory and end the process. The program that runs is therefore rewritten: each factor must be a number, except for a
//! literal text, whose repetitions are limited. Some arguments of functions ([`ARGUMENTS`]) are checked, too. The rewritten nodes keep
//! their positions, which errors show.

use std::ops::Range;

use vrl::{
    compiler::{
        Context, Expression, Function, FunctionExpression, Resolved, TypeDef, TypeState,
        function::{ArgumentList, Compiled, Example, FunctionCompileContext, Parameter},
        value::kind,
    },
    diagnostic::Span,
    parser::{
        ast::{
            Abort, Assignment, Block, Container, Expr, FunctionArgument, FunctionCall,
            FunctionClosure, Group, Ident, IfStatement, Literal, Node, Not, Op, Opcode, Predicate,
            Program, Query, QueryTarget, Return, RootExpr, Unary,
        },
        template_string::StringSegment,
    },
    value::{Kind, Value},
};

use crate::functions::RESULT_MAX;

/// The names of the functions in rewritten programs.
const FACTOR: &str = "factor";
const REPETITIONS: &str = "repetitions";
const NESTED_KEYS: &str = "nested_keys";

/// The arguments that are checked: function, name and index of the argument, and the function that checks it.
const ARGUMENTS: [(&str, &str, usize, &str); 4] = [
    // Each key of the result contains all keys above it.
    ("flatten", "value", 0, NESTED_KEYS),
    ("encode_key_value", "value", 0, NESTED_KEYS),
    ("encode_logfmt", "value", 0, NESTED_KEYS),
    // The number of digits.
    ("format_number", "scale", 1, REPETITIONS),
];

/// The functions that a rewritten program calls. Programs of users cannot call them.
pub(crate) fn functions() -> [Box<dyn Function>; 3] {
    [
        Box::new(Factor),
        Box::new(Repetitions),
        Box::new(NestedKeys),
    ]
}

/// Returns the program with bounded products and arguments, and the position of the first one.
pub(crate) fn bounded(program: Program) -> (Program, Option<Range<usize>>) {
    let mut rewrite = Rewrite { first: None };
    let root = |node: Node<RootExpr>| {
        node.map(|root| match root {
            RootExpr::Expr(expr) => RootExpr::Expr(rewrite.expr(expr)),
            error @ RootExpr::Error(_) => error,
        })
    };
    let roots = program.0.into_iter().map(root).collect();
    (Program(roots), rewrite.first)
}

/// Walks through a program and rewrites its products and arguments.
struct Rewrite {
    /// The position of the first product or argument that was found.
    first: Option<Range<usize>>,
}

impl Rewrite {
    fn expr(&mut self, node: Node<Expr>) -> Node<Expr> {
        node.map(|expr| match expr {
            Expr::Op(op) => Expr::Op(self.op(op)),
            Expr::Container(node) => Expr::Container(node.map(|node| self.container(node))),
            Expr::IfStatement(node) => Expr::IfStatement(node.map(|node| self.branches(node))),
            Expr::Assignment(node) => Expr::Assignment(node.map(|node| self.assignment(node))),
            Expr::Query(node) => Expr::Query(node.map(|node| self.query(node))),
            Expr::FunctionCall(node) => Expr::FunctionCall(node.map(|node| self.call(node))),
            Expr::Unary(node) => Expr::Unary(node.map(|node| self.unary(node))),
            Expr::Abort(node) => Expr::Abort(node.map(|Abort { message }| Abort {
                message: message.map(|message| self.boxed(message)),
            })),
            Expr::Return(node) => Expr::Return(node.map(|Return { expr }| Return {
                expr: self.boxed(expr),
            })),
            expr @ (Expr::Literal(_) | Expr::Variable(_) | Expr::Break(_)) => expr,
        })
    }

    fn boxed(&mut self, node: Box<Node<Expr>>) -> Box<Node<Expr>> {
        Box::new(self.expr(*node))
    }

    fn all<C: FromIterator<Node<Expr>>>(
        &mut self,
        nodes: impl IntoIterator<Item = Node<Expr>>,
    ) -> C {
        nodes.into_iter().map(|node| self.expr(node)).collect()
    }

    fn block(&mut self, Block(nodes): Block) -> Block {
        Block(self.all(nodes))
    }

    fn op(&mut self, node: Node<Op>) -> Node<Op> {
        let range = node.start()..node.end();
        node.map(|Op(left, opcode, right)| {
            let (left, right) = match opcode.inner() {
                Opcode::Mul => {
                    self.first.get_or_insert(range.clone());
                    let kinds = (Kinds::of(&left), Kinds::of(&right));
                    let (left, right) = (self.expr(*left), self.expr(*right));
                    match kinds {
                        // Only numbers can be multiplied by a float.
                        (Kinds::Float, _) | (_, Kinds::Float) => (left, right),
                        (Kinds::Text(bytes), _) => (left, repetitions(right, bytes)),
                        (_, Kinds::Text(bytes)) => (repetitions(left, bytes), right),
                        _ => (number(left), number(right)),
                    }
                }
                _ => (self.expr(*left), self.expr(*right)),
            };
            Op(Box::new(left), opcode, Box::new(right))
        })
    }

    fn container(&mut self, container: Container) -> Container {
        match container {
            Container::Group(node) => {
                Container::Group(Box::new(node.map(|Group(inner)| Group(self.expr(inner)))))
            }
            Container::Block(node) => Container::Block(node.map(|block| self.block(block))),
            Container::Array(node) => Container::Array(node.map(|array| self.all(array))),
            Container::Object(node) => Container::Object(node.map(|object| {
                let pairs = object.into_iter();
                pairs.map(|(key, value)| (key, self.expr(value))).collect()
            })),
        }
    }

    fn branches(&mut self, statement: IfStatement) -> IfStatement {
        IfStatement {
            predicate: statement.predicate.map(|predicate| match predicate {
                Predicate::One(node) => Predicate::One(self.boxed(node)),
                Predicate::Many(nodes) => Predicate::Many(self.all(nodes)),
            }),
            if_node: statement.if_node.map(|block| self.block(block)),
            else_node: statement
                .else_node
                .map(|node| node.map(|block| self.block(block))),
        }
    }

    fn assignment(&mut self, assignment: Assignment) -> Assignment {
        match assignment {
            Assignment::Single { target, op, expr } => Assignment::Single {
                target,
                op,
                expr: self.boxed(expr),
            },
            Assignment::Infallible { ok, err, op, expr } => Assignment::Infallible {
                ok,
                err,
                op,
                expr: self.boxed(expr),
            },
        }
    }

    fn query(&mut self, query: Query) -> Query {
        Query {
            target: query.target.map(|target| match target {
                QueryTarget::FunctionCall(call) => QueryTarget::FunctionCall(self.call(call)),
                QueryTarget::Container(inner) => QueryTarget::Container(self.container(inner)),
                target @ (QueryTarget::Internal(_) | QueryTarget::External(_)) => target,
            }),
            path: query.path,
        }
    }

    fn call(&mut self, call: FunctionCall) -> FunctionCall {
        let name = call.ident.inner().clone().into_inner();
        let check = ARGUMENTS.iter().find(|(of, ..)| *of == name);
        let argument = |(index, node): (usize, Node<FunctionArgument>)| {
            node.map(|FunctionArgument { ident, expr }| {
                let given = ident
                    .as_ref()
                    .map(|ident| ident.inner().clone().into_inner());
                let is_checked = |(_, name, at, _): &&(&str, &str, usize, &str)| match &given {
                    Some(given) => given == name,
                    None => index == *at,
                };
                let expr = self.expr(expr);
                let check = check.filter(is_checked);
                if check.is_some() {
                    self.first.get_or_insert(expr.start()..expr.end());
                }
                let expr = match check {
                    Some((.., with)) if *with == REPETITIONS => repetitions(expr, 1),
                    Some((.., with)) => self::call(with, vec![expr]),
                    None => expr,
                };
                FunctionArgument { ident, expr }
            })
        };
        FunctionCall {
            ident: call.ident,
            abort_on_error: call.abort_on_error,
            arguments: call
                .arguments
                .into_iter()
                .enumerate()
                .map(argument)
                .collect(),
            closure: call.closure.map(|node| {
                node.map(|FunctionClosure { variables, block }| FunctionClosure {
                    variables,
                    block: block.map(|block| self.block(block)),
                })
            }),
        }
    }

    fn unary(&mut self, Unary::Not(node): Unary) -> Unary {
        Unary::Not(node.map(|not| {
            let (sign, inner) = not.take();
            Not::new(sign.span(), self.expr(*inner))
        }))
    }
}

/// The kinds of factors.
enum Kinds {
    Integer,
    Float,
    /// A literal text of this length.
    Text(usize),
    Other,
}

impl Kinds {
    fn of(node: &Node<Expr>) -> Self {
        let Expr::Literal(literal) = node.inner() else {
            return Self::Other;
        };
        match literal.inner() {
            Literal::Integer(_) => Self::Integer,
            Literal::Float(_) => Self::Float,
            Literal::RawString(text) => Self::Text(text.len()),
            Literal::String(text) => {
                let length = |part: &StringSegment| match part {
                    StringSegment::Literal(text, _) => Some(text.len()),
                    StringSegment::Template(..) => None,
                };
                let lengths: Option<Vec<usize>> = text.0.iter().map(length).collect();
                lengths.map_or(Self::Other, |all| Self::Text(all.iter().sum()))
            }
            _ => Self::Other,
        }
    }
}

/// Returns an expression that has the value of `node` if it is a number, and fails otherwise.
fn number(node: Node<Expr>) -> Node<Expr> {
    let span = node.span();
    match node.inner() {
        Expr::Literal(literal) if matches!(literal.inner(), Literal::Integer(_)) => node,
        Expr::Variable(_) | Expr::Query(_) | Expr::FunctionCall(_) if never_fails(&node) => {
            call(FACTOR, vec![node])
        }
        // The argument of a function must not fail, but an operand may.
        _ => Node::new(
            span,
            Expr::Op(Node::new(
                span,
                Op(
                    Box::new(node),
                    Node::new(span, Opcode::Sub),
                    Box::new(integer(span, 0)),
                ),
            )),
        ),
    }
}

/// Whether an expression cannot fail. Some expressions that cannot fail are not recognized.
fn never_fails(node: &Node<Expr>) -> bool {
    match node.inner() {
        Expr::Variable(_) => true,
        Expr::FunctionCall(call) => call.inner().abort_on_error,
        Expr::Query(query) => match query.inner().target.inner() {
            QueryTarget::Internal(_) | QueryTarget::External(_) => true,
            QueryTarget::FunctionCall(call) => call.abort_on_error,
            QueryTarget::Container(_) => false,
        },
        _ => false,
    }
}

/// Returns an expression that has the value of `node`, and fails if a text of `bytes` bytes would be repeated too often.
fn repetitions(node: Node<Expr>, bytes: usize) -> Node<Expr> {
    let bytes = integer(node.span(), i64::try_from(bytes).unwrap_or(i64::MAX));
    call(REPETITIONS, vec![node, bytes])
}

fn integer(span: Span, value: i64) -> Node<Expr> {
    Node::new(
        span,
        Expr::Literal(Node::new(span, Literal::Integer(value))),
    )
}

/// Returns a call with these arguments; it has the position of the first one.
fn call(name: &str, arguments: Vec<Node<Expr>>) -> Node<Expr> {
    let span = arguments
        .first()
        .map_or_else(Span::default, |node| node.span());
    let argument =
        |expr: Node<Expr>| Node::new(expr.span(), FunctionArgument { ident: None, expr });
    let call = FunctionCall {
        ident: Node::new(span, Ident::new(name)),
        abort_on_error: false,
        arguments: arguments.into_iter().map(argument).collect(),
        closure: None,
    };
    Node::new(span, Expr::FunctionCall(Node::new(span, call)))
}

/// The function `factor(value)`: returns a number unchanged, and fails for any other value.
#[derive(Clone, Copy, Debug)]
struct Factor;

/// The function `repetitions(count, bytes)`: returns `count` unchanged, and fails if this number of texts of `bytes` bytes would have
/// more than [`RESULT_MAX`] bytes.
#[derive(Clone, Copy, Debug)]
struct Repetitions;

const VALUE: Parameter = Parameter::required("value", kind::ANY, "");
const BYTES: Parameter = Parameter::required("bytes", kind::INTEGER, "");

impl Function for Factor {
    fn identifier(&self) -> &'static str {
        FACTOR
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn category(&self) -> &'static str {
        "Number"
    }

    fn return_kind(&self) -> u16 {
        kind::INTEGER | kind::FLOAT
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[VALUE]
    }

    fn compile(
        &self,
        _: &TypeState,
        _: &mut FunctionCompileContext,
        arguments: ArgumentList,
    ) -> Compiled {
        let value = arguments.required("value");
        Ok(NumberOnly { value }.as_expr())
    }
}

impl Function for Repetitions {
    fn identifier(&self) -> &'static str {
        REPETITIONS
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn category(&self) -> &'static str {
        "Number"
    }

    fn return_kind(&self) -> u16 {
        kind::ANY
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[VALUE, BYTES]
    }

    fn compile(
        &self,
        state: &TypeState,
        _: &mut FunctionCompileContext,
        arguments: ArgumentList,
    ) -> Compiled {
        let bytes = arguments.required("bytes").resolve_constant(state);
        let bytes = bytes
            .and_then(|bytes| bytes.as_integer())
            .unwrap_or(i64::MAX);
        let count = arguments.required("value");
        Ok(Limited { count, bytes }.as_expr())
    }
}

const NO_NUMBER: &str = "a factor must be a number, or a text that is written in the program";

#[derive(Clone, Debug)]
struct NumberOnly {
    value: Box<dyn Expression>,
}

impl FunctionExpression for NumberOnly {
    fn resolve(&self, context: &mut Context<'_>) -> Resolved {
        match self.value.resolve(context)? {
            number @ (Value::Integer(_) | Value::Float(_)) => Ok(number),
            _ => Err(NO_NUMBER.into()),
        }
    }

    fn type_def(&self, state: &TypeState) -> TypeDef {
        let numbers = Kind::integer().or_float();
        let given = self.value.type_def(state);
        match numbers.is_superset(given.kind()) {
            Ok(()) => given,
            Err(_) => TypeDef::from(numbers).fallible(),
        }
    }
}

#[derive(Clone, Debug)]
struct Limited {
    count: Box<dyn Expression>,
    bytes: i64,
}

impl FunctionExpression for Limited {
    fn resolve(&self, context: &mut Context<'_>) -> Resolved {
        let count = self.count.resolve(context)?;
        match count {
            Value::Integer(times) if times.saturating_mul(self.bytes) > RESULT_MAX as i64 => {
                Err(format!("the repeated text would have more than {RESULT_MAX} bytes").into())
            }
            count => Ok(count),
        }
    }

    fn type_def(&self, state: &TypeState) -> TypeDef {
        self.count.type_def(state)
    }
}

/// The function `nested_keys(value)`: returns the value unchanged, and fails if its keys would have more than [`RESULT_MAX`] bytes after
/// flattening.
#[derive(Clone, Copy, Debug)]
struct NestedKeys;

impl Function for NestedKeys {
    fn identifier(&self) -> &'static str {
        NESTED_KEYS
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn category(&self) -> &'static str {
        "Object"
    }

    fn return_kind(&self) -> u16 {
        kind::ANY
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn parameters(&self) -> &'static [Parameter] {
        &[VALUE]
    }

    fn compile(
        &self,
        _: &TypeState,
        _: &mut FunctionCompileContext,
        arguments: ArgumentList,
    ) -> Compiled {
        let value = arguments.required("value");
        Ok(Flattened { value }.as_expr())
    }
}

#[derive(Clone, Debug)]
struct Flattened {
    value: Box<dyn Expression>,
}

impl FunctionExpression for Flattened {
    fn resolve(&self, context: &mut Context<'_>) -> Resolved {
        let value = self.value.resolve(context)?;
        match flat_keys(&value, 0, 0) > RESULT_MAX {
            true => {
                Err(format!("the flattened keys would have more than {RESULT_MAX} bytes").into())
            }
            false => Ok(value),
        }
    }

    fn type_def(&self, state: &TypeState) -> TypeDef {
        self.value.type_def(state)
    }
}

/// Adds the bytes of the keys that `value` has after flattening to `sum`. `above` is the length of the key of `value`. May stop as soon as
/// the sum exceeds [`RESULT_MAX`].
fn flat_keys(value: &Value, above: usize, sum: usize) -> usize {
    // The decimal digits of an index, without the separator.
    const INDEX_BYTES: usize = 8;
    if sum > RESULT_MAX {
        return sum;
    }
    match value {
        Value::Object(map) => map.iter().fold(sum, |sum, (key, value)| {
            flat_keys(value, above + 1 + key.len(), sum)
        }),
        Value::Array(items) => items.iter().fold(sum, |sum, item| {
            flat_keys(item, above + 1 + INDEX_BYTES, sum)
        }),
        _ => sum + above,
    }
}
