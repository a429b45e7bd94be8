//! Bounds the memory of operators and functions whose result can be much larger than the record.
//!
//! In VRL, `*` multiplies numbers and repeats texts. So with `.total = .price * .count`, one record with a text and a large number would
//! take all memory and end the process. The program that runs is therefore rewritten: each factor must be a number, except for a text
//! literal beside `*`, whose repetitions are limited. Some arguments of functions ([`ARGUMENTS`]) are checked, too. The rewritten nodes
//! keep their positions, which errors show.

use std::collections::BTreeSet;

use vrl::{
    compiler::{
        Context, Expression, Function, Resolved, TypeDef, TypeInfo, TypeState,
        codes::CompilerCode,
        function::{ArgumentList, Compiled, Example, FunctionCompileContext, Parameter},
        value::kind,
    },
    diagnostic::{DiagnosticList, Span},
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

/// The maximum length of a delimiter, which is repeated for each field.
const DELIMITER_MAX: usize = 256;

/// The arguments that are checked: function, name of the argument, check.
const ARGUMENTS: [(&str, &str, Check); 5] = [
    ("encode_key_value", "value", Check::Keys),
    ("encode_key_value", "key_value_delimiter", Check::Delimiter),
    ("encode_key_value", "field_delimiter", Check::Delimiter),
    ("encode_logfmt", "value", Check::Keys),
    ("format_number", "scale", Check::Scale),
];

/// The functions that a rewritten program calls. Programs of users cannot call them.
pub(crate) fn functions() -> impl Iterator<Item = Box<dyn Function>> {
    let all = [
        Check::Factor,
        Check::Repetitions,
        Check::Scale,
        Check::Delimiter,
        Check::Keys,
    ];
    all.into_iter()
        .map(|one| Box::new(one) as Box<dyn Function>)
}

/// The positions (start, end) of arguments.
pub(crate) type Positions = BTreeSet<(usize, usize)>;

/// Returns the positions of arguments that the compiler refuses because they may fail.
pub(crate) fn failing(errors: &DiagnosticList) -> Positions {
    let code = CompilerCode::FallibleArgument as usize;
    let errors = errors.iter().filter(|error| error.code == code);
    let labels = errors.flat_map(|error| &error.labels);
    labels
        .map(|label| (label.span.start(), label.span.end()))
        .collect()
}

/// Returns the program with bounded products and arguments, and whether there are any. `failing` has the positions of factors that
/// may fail, so that they cannot be arguments; the compiler finds them.
pub(crate) fn bounded(
    program: Program,
    functions: &[Box<dyn Function>],
    failing: &Positions,
) -> (Program, bool) {
    let mut rewrite = Rewrite {
        functions,
        failing,
        is_bounded: false,
    };
    let root = |node: Node<RootExpr>| {
        node.map(|root| match root {
            RootExpr::Expr(expr) => RootExpr::Expr(rewrite.expr(expr)),
            error @ RootExpr::Error(_) => error,
        })
    };
    let roots = program.0.into_iter().map(root).collect();
    (Program(roots), rewrite.is_bounded)
}

/// Walks through a program and rewrites its products and arguments.
struct Rewrite<'a> {
    functions: &'a [Box<dyn Function>],
    failing: &'a Positions,
    /// Whether a product or argument was rewritten.
    is_bounded: bool,
}

impl Rewrite<'_> {
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
        node.map(|Op(left, opcode, right)| {
            let kinds = (Factor::of(&left), Factor::of(&right));
            let (left, right) = (self.expr(*left), self.expr(*right));
            let (left, right) = match (opcode.inner(), kinds) {
                // Only numbers can be multiplied by a float.
                (Opcode::Mul, (Factor::Float, _) | (_, Factor::Float)) => (left, right),
                (Opcode::Mul, (Factor::Text(bytes), _)) => (left, self.repetitions(right, bytes)),
                (Opcode::Mul, (_, Factor::Text(bytes))) => (self.repetitions(left, bytes), right),
                (Opcode::Mul, _) => (self.number(left), self.number(right)),
                _ => (left, right),
            };
            Op(Box::new(left), opcode, Box::new(right))
        })
    }

    /// Returns an expression that has the value of `node` if it is a number, and fails otherwise.
    fn number(&mut self, node: Node<Expr>) -> Node<Expr> {
        if self.is_number(&node) {
            return node;
        }
        self.is_bounded = true;
        match self.may_fail(&node) {
            // Only numbers can be subtracted.
            true => operation(Opcode::Sub, node, Literal::Integer(0)),
            false => call(Check::Factor, vec![node]),
        }
    }

    /// Returns an expression that has the value of `node`, and fails if a text of `bytes` bytes would be repeated too often.
    fn repetitions(&mut self, node: Node<Expr>, bytes: usize) -> Node<Expr> {
        self.is_bounded = true;
        let bytes = i64::try_from(bytes).unwrap_or(i64::MAX);
        let bytes = literal(node.span(), Literal::Integer(bytes));
        let node = match self.may_fail(&node) {
            // A text cannot be repeated null times.
            true => operation(Opcode::Err, node, Literal::Null),
            false => node,
        };
        call(Check::Repetitions, vec![node, bytes])
    }

    fn may_fail(&self, node: &Node<Expr>) -> bool {
        self.failing.contains(&(node.start(), node.end()))
    }

    /// Whether the value can only be a number: an integer in the program, the result of a function such as `int`, or an operation on
    /// such numbers.
    fn is_number(&self, node: &Node<Expr>) -> bool {
        match inner(node).inner() {
            Expr::Literal(literal) => {
                matches!(literal.inner(), Literal::Integer(_) | Literal::Float(_))
            }
            Expr::Op(op) => {
                let Op(left, opcode, right) = op.inner();
                let is_arithmetic = matches!(
                    opcode.inner(),
                    Opcode::Mul | Opcode::Div | Opcode::Add | Opcode::Sub
                );
                is_arithmetic && self.is_number(left) && self.is_number(right)
            }
            Expr::FunctionCall(call) => {
                let name = call.inner().ident.inner().clone().into_inner();
                let function = self.functions.iter().find(|one| one.identifier() == name);
                function.is_some_and(|one| one.return_kind() & !(kind::INTEGER | kind::FLOAT) == 0)
            }
            _ => false,
        }
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
        let function = self.functions.iter().find(|one| one.identifier() == name);
        let parameters = function.map_or(&[][..], |one| one.parameters());
        // As in the compiler: a name moves the position only if it is the name at that position.
        let mut position = 0;
        let mut argument = |node: Node<FunctionArgument>| {
            node.map(|FunctionArgument { ident, expr }| {
                let at_position = parameters.get(position).map(|one| one.keyword);
                let given = ident
                    .as_ref()
                    .map(|ident| ident.inner().clone().into_inner());
                if given.is_none() || given.as_deref() == at_position {
                    position += 1;
                }
                let given = given.as_deref().or(at_position);
                let expr = self.expr(expr);
                let mut checks = ARGUMENTS.iter();
                let check =
                    checks.find(|(of, argument, _)| *of == name && Some(*argument) == given);
                let expr = match check {
                    Some((.., check)) => {
                        self.is_bounded = true;
                        self::call(*check, vec![expr])
                    }
                    None => expr,
                };
                FunctionArgument { ident, expr }
            })
        };
        let mut arguments = Vec::with_capacity(call.arguments.len());
        for node in call.arguments {
            arguments.push(argument(node));
        }
        FunctionCall {
            ident: call.ident,
            abort_on_error: call.abort_on_error,
            arguments,
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

/// Returns the expression in the brackets of groups.
fn inner(node: &Node<Expr>) -> &Node<Expr> {
    match node.inner() {
        Expr::Container(container) => match container.inner() {
            Container::Group(group) => inner(&group.inner().0),
            _ => node,
        },
        _ => node,
    }
}

/// The kinds of factors.
enum Factor {
    Float,
    /// A literal text of this length.
    Text(usize),
    Other,
}

impl Factor {
    fn of(node: &Node<Expr>) -> Self {
        let Expr::Literal(literal) = inner(node).inner() else {
            return Self::Other;
        };
        match literal.inner() {
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

fn literal(span: Span, literal: Literal) -> Node<Expr> {
    Node::new(span, Expr::Literal(Node::new(span, literal)))
}

/// Returns an operation on `left` and a literal, with the position of `left`.
fn operation(opcode: Opcode, left: Node<Expr>, right: Literal) -> Node<Expr> {
    let span = left.span();
    let right = Box::new(literal(span, right));
    let operation = Op(Box::new(left), Node::new(span, opcode), right);
    Node::new(span, Expr::Op(Node::new(span, operation)))
}

/// Returns a call with these arguments; it has the position of the first one.
fn call(check: Check, arguments: Vec<Node<Expr>>) -> Node<Expr> {
    let span = arguments
        .first()
        .map_or_else(Span::default, |node| node.span());
    let argument =
        |expr: Node<Expr>| Node::new(expr.span(), FunctionArgument { ident: None, expr });
    let call = FunctionCall {
        ident: Node::new(span, Ident::new(check.identifier())),
        abort_on_error: false,
        arguments: arguments.into_iter().map(argument).collect(),
        closure: None,
    };
    Node::new(span, Expr::FunctionCall(Node::new(span, call)))
}

/// A function that returns its first argument unchanged, or fails. Its name is only shown in errors.
#[derive(Clone, Copy, Debug)]
enum Check {
    /// Fails if the value is not a number.
    Factor,
    /// Fails if this number of texts, whose length is the second argument, would have more than [`RESULT_MAX`] bytes.
    Repetitions,
    /// Fails if the number of digits is not between 0 and [`RESULT_MAX`].
    Scale,
    /// Fails if the text has more than [`DELIMITER_MAX`] bytes.
    Delimiter,
    /// Fails if the keys of the value would have more than [`RESULT_MAX`] bytes after flattening. Each flattened key contains all keys
    /// above it.
    Keys,
}

impl Check {
    /// Returns why the value is refused. `bytes` is the second argument.
    fn refuses(self, value: &Value, bytes: i64) -> Option<String> {
        let most = i64::try_from(RESULT_MAX).unwrap_or(i64::MAX);
        match (self, value) {
            (Self::Factor, Value::Integer(_) | Value::Float(_)) => None,
            (Self::Factor, _) => {
                Some("a factor must be a number, or a text literal beside `*`".to_owned())
            }
            (Self::Repetitions, Value::Integer(times)) => (times.saturating_mul(bytes) > most)
                .then(|| format!("the result would have more than {RESULT_MAX} bytes")),
            (Self::Scale, Value::Integer(digits)) => (!(0..=most).contains(digits))
                .then(|| format!("the scale must be between 0 and {RESULT_MAX} bytes")),
            (Self::Delimiter, value) => value
                .as_bytes()
                .is_some_and(|text| text.len() > DELIMITER_MAX)
                .then(|| format!("a delimiter may have {DELIMITER_MAX} bytes")),
            (Self::Keys, value) => (flat_keys(value, 0, 0) > RESULT_MAX)
                .then(|| format!("the flattened keys would have more than {RESULT_MAX} bytes")),
            (Self::Repetitions | Self::Scale, _) => None,
        }
    }
}

impl Function for Check {
    fn identifier(&self) -> &'static str {
        match self {
            Self::Factor => "*",
            Self::Repetitions => "* with a text",
            Self::Scale => "the argument `scale`",
            Self::Delimiter => "a delimiter",
            Self::Keys => "the argument `value`",
        }
    }

    fn usage(&self) -> &'static str {
        ""
    }

    fn category(&self) -> &'static str {
        "Type"
    }

    fn return_kind(&self) -> u16 {
        kind::ANY
    }

    fn examples(&self) -> &'static [Example] {
        &[]
    }

    fn parameters(&self) -> &'static [Parameter] {
        const VALUE: Parameter = Parameter::required("value", kind::ANY, "");
        const BYTES: Parameter = Parameter::optional("bytes", kind::INTEGER, "");
        &[VALUE, BYTES]
    }

    fn compile(
        &self,
        state: &TypeState,
        _: &mut FunctionCompileContext,
        arguments: ArgumentList,
    ) -> Compiled {
        let value = arguments.required("value");
        let bytes = arguments.optional("bytes");
        let bytes = bytes.and_then(|bytes| bytes.resolve_constant(state));
        let given = value.type_def(state);
        let numbers = Kind::integer().or_float();
        let result = match self {
            Self::Factor if numbers.is_superset(given.kind()).is_err() => {
                TypeDef::from(numbers).fallible()
            }
            _ => given,
        };
        Ok(Box::new(Checked {
            check: *self,
            value,
            bytes: bytes.and_then(|bytes| bytes.as_integer()).unwrap_or(0),
            result,
        }))
    }
}

/// A call of a [`Check`].
#[derive(Clone, Debug)]
struct Checked {
    check: Check,
    value: Box<dyn Expression>,
    bytes: i64,
    /// The type, which is kept because the compiler asks for it again at each level above.
    result: TypeDef,
}

impl Expression for Checked {
    fn resolve(&self, context: &mut Context<'_>) -> Resolved {
        let value = self.value.resolve(context)?;
        match self.check.refuses(&value, self.bytes) {
            Some(why) => Err(why.into()),
            None => Ok(value),
        }
    }

    fn resolve_constant(&self, state: &TypeState) -> Option<Value> {
        let value = self.value.resolve_constant(state)?;
        self.check
            .refuses(&value, self.bytes)
            .is_none()
            .then_some(value)
    }

    fn type_info(&self, state: &TypeState) -> TypeInfo {
        TypeInfo::new(state.clone(), self.result.clone())
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
