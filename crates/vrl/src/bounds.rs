//! Bounds operators and functions that could take memory, stack or time out of proportion to the record.
//!
//! In VRL, `*` multiplies numbers and repeats texts. So with `.total = .price * .count`, one record with a text and a large number would
//! take all memory and end the process. The program that runs is therefore rewritten: each factor must be a number, except for a text
//! literal beside `*`, whose repetitions are limited. Some arguments of functions ([`ARGUMENTS`]) are checked, too. The rewritten nodes
//! keep their positions, which errors show.
//!
//! A closure runs for each element of the record, so what it keeps in a variable or a field could double, or nest a level deeper, with
//! each element: `x = [x, x]`. To grow a value, a closure must read it. So in closures, all variables and fields that are read are
//! checked ([`Check::Read`]). Programs without closures have no such checks.

use std::collections::BTreeSet;

use vrl::{
    compiler::{Function, codes::CompilerCode, value::kind},
    diagnostic::{DiagnosticList, Span},
    parser::{
        ast::{
            Abort, Assignment, AssignmentOp, AssignmentTarget, Block, Container, Expr,
            FunctionArgument, FunctionCall, FunctionClosure, Group, Ident, IfStatement, Literal,
            Node, Not, Op, Opcode, Predicate, Program, Query, QueryTarget, Return, RootExpr, Unary,
        },
        template_string::StringSegment,
    },
};

use crate::checks::Check;

/// The arguments that are checked: function, name of the argument, check.
const ARGUMENTS: [(&str, &str, Check); 21] = [
    ("chunks", "value", Check::Parts),
    ("encode_key_value", "value", Check::Keys),
    ("encode_key_value", "key_value_delimiter", Check::Delimiter),
    ("encode_key_value", "field_delimiter", Check::Delimiter),
    ("encode_logfmt", "value", Check::Keys),
    ("format_number", "scale", Check::Scale),
    ("parse_cbor", "value", Check::Cbor),
    ("parse_cef", "value", Check::Cef),
    ("parse_csv", "value", Check::Parts),
    ("parse_duration", "value", Check::Duration),
    ("parse_influxdb", "value", Check::InfluxDb),
    ("parse_json", "value", Check::Json),
    ("parse_key_value", "value", Check::KeyValue),
    ("parse_logfmt", "value", Check::KeyValue),
    ("parse_query_string", "value", Check::Parts),
    ("parse_ruby_hash", "value", Check::RubyHash),
    ("parse_tokens", "value", Check::Parts),
    ("parse_xml", "value", Check::Xml),
    ("parse_yaml", "value", Check::Yaml),
    ("tag_types_externally", "value", Check::Tags),
    ("to_entries", "value", Check::Entries),
];

/// Functions that take a path instead of a value.
const OF_PATHS: [&str; 3] = [DEL, "exists", "unnest"];
/// The function that moves a value out of its path, so that no other expression reads it.
const DEL: &str = "del";

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

/// Returns the program with bounded products, arguments and closures, and whether there are any. `failing` has the positions of factors that
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
        is_looped: false,
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

/// Walks through a program and rewrites its products, arguments and closures.
struct Rewrite<'a> {
    functions: &'a [Box<dyn Function>],
    failing: &'a Positions,
    /// Whether a part of the program was rewritten.
    is_bounded: bool,
    /// Whether the current part of the program is in a closure.
    is_looped: bool,
}

impl Rewrite<'_> {
    fn expr(&mut self, node: Node<Expr>) -> Node<Expr> {
        if !self.is_looped {
            return self.parts(node);
        }
        let node = without_template(node);
        let is_read = reads(&node);
        let node = self.parts(node);
        match is_read {
            true => {
                self.is_bounded = true;
                call(Check::Read, vec![node])
            }
            false => node,
        }
    }

    /// Rewrites the parts of an expression.
    fn parts(&mut self, node: Node<Expr>) -> Node<Expr> {
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
            Assignment::Single { target, op, expr } => {
                let (op, expr) = self.assigned(&target, op, expr);
                Assignment::Single { target, op, expr }
            }
            Assignment::Infallible { ok, err, op, expr } => {
                let (op, expr) = self.assigned(&ok, op, expr);
                Assignment::Infallible { ok, err, op, expr }
            }
        }
    }

    /// Rewrites an assigned expression. In a closure, `x |= y` becomes `x = x | y`, so that the read of `x` is checked.
    fn assigned(
        &mut self,
        target: &Node<AssignmentTarget>,
        op: AssignmentOp,
        expr: Box<Node<Expr>>,
    ) -> (AssignmentOp, Box<Node<Expr>>) {
        if !self.is_looped || op == AssignmentOp::Assign {
            return (op, self.boxed(expr));
        }
        let span = expr.span();
        let old = Node::new(target.span(), target.inner().to_expr(span));
        let merge = Node::new(span, Opcode::Merge);
        let merged = Node::new(span, Op(Box::new(old), merge, expr));
        let merged = self.expr(Node::new(span, Expr::Op(merged)));
        (AssignmentOp::Assign, Box::new(merged))
    }

    fn query(&mut self, query: Query) -> Query {
        let span = query.target.span();
        Query {
            target: query.target.map(|target| match target {
                QueryTarget::FunctionCall(call) if self.is_looped && is_del(&call) => {
                    let call = Expr::FunctionCall(Node::new(span, call));
                    let group = Group(self.expr(Node::new(span, call)));
                    QueryTarget::Container(Container::Group(Box::new(Node::new(span, group))))
                }
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
                let expr = match OF_PATHS.contains(&name.as_str()) {
                    true => self.parts(expr),
                    false => self.expr(expr),
                };
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
                let is_inner = std::mem::replace(&mut self.is_looped, true);
                let closure = node.map(|FunctionClosure { variables, block }| FunctionClosure {
                    variables,
                    block: block.map(|block| self.block(block)),
                });
                self.is_looped = is_inner;
                closure
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

/// Whether the expression is the value of a variable or a field.
fn reads(node: &Node<Expr>) -> bool {
    match node.inner() {
        Expr::Variable(_) => true,
        Expr::Query(query) => matches!(
            query.inner().target.inner(),
            QueryTarget::Internal(_) | QueryTarget::External(_)
        ),
        Expr::FunctionCall(call) => is_del(call.inner()),
        _ => false,
    }
}

fn is_del(call: &FunctionCall) -> bool {
    &**call.ident.inner() == DEL
}

/// Turns a text with variables in it into a sum of texts, as the compiler does.
fn without_template(node: Node<Expr>) -> Node<Expr> {
    node.map(|expr| match &expr {
        Expr::Literal(literal) => match literal.inner() {
            Literal::String(text) if text.as_literal_string().is_none() => {
                text.rewrite_to_concatenated_strings()
            }
            _ => expr,
        },
        _ => expr,
    })
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
