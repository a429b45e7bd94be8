//! The option `where`: a map of tests, or the text of a program.

use std::{fmt, sync::Arc};

use millstream_record::VALUE_NAMES;
use serde::{
    Deserialize, Deserializer,
    de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor},
};

use super::{
    glob,
    number::Number,
    test::{Constant, OneOf, Side, Test},
};
use crate::{record::FieldPath, ruby};

/// The operators that can be in the map after the name of a field or value.
const OPERATORS: [&str; 11] = [
    "eq", "ge", "gt", "le", "lt", "glob", "regex", "exists", "not", "any", "all",
];
/// The maximum number of parts of a field's path. Longer paths are refused, because paths are walked recursively.
const PARTS_MAX: usize = 64;

/// The option `where` of a processor.
///
/// ```yaml
/// where: { .level: [error, fatal], .ms: { gt: 500 } }     all of these; a list means any of its values
/// where: { any: [{ tag: "web.**" }, { not: { .user.id: { exists: true } } }] }
/// where: '.level == "error"'                              a VRL condition
/// ```
#[derive(Clone, Debug)]
pub enum Where {
    /// A map of tests, which are evaluated on the undecoded bytes.
    Map(Condition),
    /// The text of a VRL condition. This crate does not parse it.
    Program(String),
}

/// A map of tests. Clones share the tests.
#[derive(Clone, Debug)]
pub struct Condition {
    pub(super) tree: Arc<Tree>,
}

#[derive(Clone, Debug)]
pub(super) enum Tree {
    All(Vec<Tree>),
    Any(Vec<Tree>),
    Not(Box<Tree>),
    /// A test of a field, of the tag or of a value of the batch.
    Test(Subject, Test),
    /// The tag must match these patterns.
    Tag(Vec<String>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    Field(FieldPath),
    Tag,
    Value(String),
}

impl Condition {
    /// The names of the batch's values (such as `host`) that the condition tests. The tag is not among them.
    pub fn values(&self) -> Vec<&str> {
        let mut names = Vec::new();
        self.tree.each_test(&mut |subject| {
            if let Subject::Value(name) = subject {
                names.push(name.as_str());
            }
        });
        names
    }

    /// Whether the condition tests a field, so that records must be read.
    pub fn reads_records(&self) -> bool {
        let mut reads = false;
        let mut note = |subject: &Subject| reads |= matches!(subject, Subject::Field(_));
        self.tree.each_test(&mut note);
        reads
    }

    /// Returns a constant that is a text between slashes, such as `/error/`, if there is one. It was probably meant as
    /// a regular expression.
    pub fn slashed(&self) -> Option<String> {
        self.tree.slashed()
    }

    /// Returns why the condition is probably a mistake: a map or list in it has no test, so its answer is the same for
    /// every record. `None` if there is no such map or list.
    pub fn problem(&self) -> Option<&'static str> {
        self.tree.problem()
    }
}

impl Tree {
    fn each_test<'a>(&'a self, note: &mut impl FnMut(&'a Subject)) {
        match self {
            Self::All(trees) | Self::Any(trees) => {
                for tree in trees {
                    tree.each_test(note);
                }
            }
            Self::Not(tree) => tree.each_test(note),
            Self::Test(subject, _) => note(subject),
            Self::Tag(_) => note(&Subject::Tag),
        }
    }

    fn slashed(&self) -> Option<String> {
        match self {
            Self::All(trees) | Self::Any(trees) => trees.iter().find_map(Self::slashed),
            Self::Not(tree) => tree.slashed(),
            Self::Test(_, Test::OneOf(constants)) => constants.slashed(),
            Self::Test(..) | Self::Tag(_) => None,
        }
    }

    fn problem(&self) -> Option<&'static str> {
        match self {
            Self::All(trees) if trees.is_empty() => Some("a map without a test matches everything"),
            Self::Any(trees) if trees.is_empty() => Some("an empty list matches nothing"),
            Self::All(trees) | Self::Any(trees) => trees.iter().find_map(Self::problem),
            Self::Not(tree) => tree.problem(),
            Self::Test(..) | Self::Tag(_) => None,
        }
    }
}

impl<'de> Deserialize<'de> for Where {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MapOrText;
        impl<'de> Visitor<'de> for MapOrText {
            type Value = Where;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map such as `{ .level: error }`, or a text with a VRL condition")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Where, E> {
                Ok(Where::Program(text.to_owned()))
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Where, M::Error> {
                let tree = Arc::new(tests(map)?);
                Ok(Where::Map(Condition { tree }))
            }
        }
        deserializer.deserialize_any(MapOrText)
    }
}

impl<'de> Deserialize<'de> for Condition {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let tree = Arc::new(Tree::deserialize(deserializer)?);
        Ok(Self { tree })
    }
}

impl<'de> Deserialize<'de> for Tree {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Tests;
        impl<'de> Visitor<'de> for Tests {
            type Value = Tree;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map such as `{ .level: error }`")
            }

            fn visit_map<M: MapAccess<'de>>(self, map: M) -> Result<Tree, M::Error> {
                tests(map)
            }
        }
        deserializer.deserialize_map(Tests)
    }
}

/// A key in a map of tests: the subject of a test, or an operator that combines conditions.
enum Name {
    Subject(Subject),
    All,
    Any,
    Not,
}

impl<'de> Deserialize<'de> for Name {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Ok(match name.as_str() {
            "all" => Self::All,
            "any" => Self::Any,
            "not" => Self::Not,
            "tag" => Self::Subject(Subject::Tag),
            path if path.starts_with('.') => Self::Subject(Subject::Field(field(path)?)),
            value if VALUE_NAMES.contains(&value) => Self::Subject(Subject::Value(name)),
            "time" => {
                return Err(de::Error::custom(
                    "times are not compared in a map; write the condition as a text in VRL",
                ));
            }
            other => {
                return Err(de::Error::custom(format!(
                    "neither `tag` nor a value that batches carry; a field of the record begins with a dot: `.{other}`"
                )));
            }
        })
    }
}

fn field<E: de::Error>(path: &str) -> Result<FieldPath, E> {
    let path: FieldPath = path.parse().map_err(E::custom)?;
    if path.parts().len() > PARTS_MAX {
        return Err(E::custom(format!(
            "a field can be at most {PARTS_MAX} maps deep"
        )));
    }
    Ok(path)
}

/// Reads the tests of a map. All of them must pass.
fn tests<'de, M: MapAccess<'de>>(mut map: M) -> Result<Tree, M::Error> {
    let mut trees = Vec::new();
    while let Some(name) = map.next_key::<Name>()? {
        trees.push(match name {
            Name::Subject(subject) => map.next_value_seed(TestOf(&subject))?,
            Name::All => Tree::All(map.next_value()?),
            Name::Any => Tree::Any(map.next_value()?),
            Name::Not => Tree::Not(Box::new(map.next_value()?)),
        });
    }
    Ok(one_or_all(trees))
}

fn one_or_all(mut trees: Vec<Tree>) -> Tree {
    match (trees.len(), trees.pop()) {
        (1, Some(tree)) => tree,
        (_, last) => {
            trees.extend(last);
            Tree::All(trees)
        }
    }
}

/// Reads the value after a name: a constant, a list of constants or a map of operators.
#[derive(Clone, Copy)]
struct TestOf<'a>(&'a Subject);

impl TestOf<'_> {
    fn test(self, test: Test) -> Tree {
        Tree::Test(self.0.clone(), test)
    }

    /// The subject must equal one of the constants. If the subject is the tag, the constants are patterns.
    fn equal<E: de::Error>(self, constants: Vec<Constant>) -> Result<Tree, E> {
        let texts = constants.iter().filter_map(|constant| match constant {
            Constant::Text(text) => Some(text.clone()),
            _ => None,
        });
        match self.0 {
            _ if constants.is_empty() => Ok(Tree::Any(Vec::new())),
            Subject::Tag => Ok(Tree::Tag(texts.collect())),
            _ => Ok(self.test(Test::OneOf(OneOf::new(constants)))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for TestOf<'_> {
    type Value = Tree;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Tree, D::Error> {
        deserializer.deserialize_any(self)
    }
}

/// One method for each type of scalar: the subject must equal the scalar.
macro_rules! equal_to {
    ($($method:ident($($value:ident: $type:ty)?))*) => {$(
        fn $method<E: de::Error>(self, $($value: $type)?) -> Result<Tree, E> {
            let constant = ConstantOf(self.0).$method($($value)?)?;
            self.equal(vec![constant])
        }
    )*};
}

impl<'de> Visitor<'de> for TestOf<'_> {
    type Value = Tree;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a value, a list of values, or operators such as `{ gt: 500 }`")
    }

    equal_to! {
        visit_unit() visit_bool(value: bool) visit_u64(value: u64) visit_i64(value: i64) visit_i128(value: i128)
        visit_f64(value: f64) visit_str(value: &str)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Tree, S::Error> {
        let mut constants = Vec::new();
        while let Some(constant) = list.next_element_seed(ConstantOf(self.0))? {
            constants.push(constant);
        }
        self.equal(constants)
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<Tree, M::Error> {
        let mut trees = Vec::new();
        while let Some(operator) = map.next_key::<Operator>()? {
            trees.push(self.operator(operator, &mut map)?);
        }
        Ok(one_or_all(trees))
    }
}

impl TestOf<'_> {
    fn operator<'de, M: MapAccess<'de>>(
        self,
        operator: Operator,
        map: &mut M,
    ) -> Result<Tree, M::Error> {
        Ok(match operator {
            Operator::Eq => {
                let constants = map.next_value_seed(SomeOf(ConstantOf(self.0)))?;
                self.test(Test::OneOf(OneOf::new(constants)))
            }
            Operator::Beside(side) => match map.next_value_seed(ConstantOf(self.0))? {
                Constant::Number(bound) => self.test(Test::Number(side, bound)),
                Constant::Text(bound) => self.test(Test::Text(side, bound.into_bytes().into())),
                Constant::Nil | Constant::Bool(_) => {
                    return Err(de::Error::custom("only numbers and texts have an order"));
                }
            },
            // Globs of tags always have the syntax and meaning of the option `tags`.
            Operator::Glob if *self.0 == Subject::Tag => {
                let Texts(patterns) = map.next_value()?;
                Tree::Tag(patterns)
            }
            Operator::Glob => {
                let Globs(globs) = map.next_value()?;
                self.any(globs)
            }
            Operator::Regex => {
                let Regexes(regexes) = map.next_value()?;
                self.any(regexes)
            }
            Operator::Exists => match map.next_value::<bool>()? {
                true => self.test(Test::Exists),
                false => Tree::Not(Box::new(self.test(Test::Exists))),
            },
            Operator::Not => Tree::Not(Box::new(map.next_value_seed(self)?)),
            Operator::Any => Tree::Any(map.next_value_seed(ListOf(self))?),
            Operator::All => Tree::All(map.next_value_seed(ListOf(self))?),
        })
    }

    fn any(self, regexes: Vec<regex::bytes::Regex>) -> Tree {
        let tests = regexes
            .into_iter()
            .map(|regex| self.test(Test::Found(regex)));
        Tree::Any(tests.collect())
    }
}

/// An operator of a field or value.
enum Operator {
    Eq,
    Beside(Side),
    Glob,
    Regex,
    Exists,
    Not,
    Any,
    All,
}

impl<'de> Deserialize<'de> for Operator {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = String::deserialize(deserializer)?;
        Ok(match name.as_str() {
            "eq" => Self::Eq,
            "ge" => Self::Beside(Side::AboveOrEqual),
            "gt" => Self::Beside(Side::Above),
            "le" => Self::Beside(Side::BelowOrEqual),
            "lt" => Self::Beside(Side::Below),
            "glob" => Self::Glob,
            "regex" => Self::Regex,
            "exists" => Self::Exists,
            "not" => Self::Not,
            "any" => Self::Any,
            "all" => Self::All,
            field if field.starts_with('.') => {
                return Err(de::Error::custom(
                    "a field below another one is written with its whole path, such as `.user.id`",
                ));
            }
            other => return Err(de::Error::unknown_field(other, &OPERATORS)),
        })
    }
}

/// Reads a constant with which a subject is compared.
#[derive(Clone, Copy)]
struct ConstantOf<'a>(&'a Subject);

impl ConstantOf<'_> {
    fn check<E: de::Error>(self, constant: Constant) -> Result<Constant, E> {
        match (self.0, &constant) {
            (Subject::Field(_), _) | (_, Constant::Text(_)) => Ok(constant),
            _ => Err(E::custom(
                "the values of a batch are texts; put this in quotes",
            )),
        }
    }
}

impl<'de> DeserializeSeed<'de> for ConstantOf<'_> {
    type Value = Constant;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Constant, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ConstantOf<'_> {
    type Value = Constant;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, `true`, `false` or `null`")
    }

    fn visit_unit<E: de::Error>(self) -> Result<Constant, E> {
        self.check(Constant::Nil)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Constant, E> {
        self.check(Constant::Bool(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Constant, E> {
        self.check(Constant::Number(Number::Integer(value.into())))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Constant, E> {
        self.check(Constant::Number(Number::Integer(value.into())))
    }

    fn visit_i128<E: de::Error>(self, _: i128) -> Result<Constant, E> {
        Err(E::custom("no record holds an integer of more than 64 bits"))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Constant, E> {
        if value.is_nan() {
            return Err(E::custom(
                "nothing is equal to `.nan`, or above or below it",
            ));
        }
        self.check(Constant::Number(Number::Float(value)))
    }

    fn visit_str<E: de::Error>(self, text: &str) -> Result<Constant, E> {
        self.check(Constant::Text(text.to_owned()))
    }
}

/// Reads one constant or a list of constants.
struct SomeOf<'a>(ConstantOf<'a>);

impl<'de> DeserializeSeed<'de> for SomeOf<'_> {
    type Value = Vec<Constant>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

macro_rules! one_of {
    ($($method:ident($($value:ident: $type:ty)?))*) => {$(
        fn $method<E: de::Error>(self, $($value: $type)?) -> Result<Self::Value, E> {
            Ok(vec![self.0.$method($($value)?)?])
        }
    )*};
}

impl<'de> Visitor<'de> for SomeOf<'_> {
    type Value = Vec<Constant>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, `true`, `false`, `null`, or a list of these")
    }

    one_of! {
        visit_unit() visit_bool(value: bool) visit_u64(value: u64) visit_i64(value: i64) visit_i128(value: i128)
        visit_f64(value: f64) visit_str(value: &str)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Self::Value, S::Error> {
        let mut constants = Vec::new();
        while let Some(constant) = list.next_element_seed(self.0)? {
            constants.push(constant);
        }
        Ok(constants)
    }
}

/// Reads a list of tests of one subject.
struct ListOf<'a>(TestOf<'a>);

impl<'de> DeserializeSeed<'de> for ListOf<'_> {
    type Value = Vec<Tree>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Tree>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for ListOf<'_> {
    type Value = Vec<Tree>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a sequence")
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<Vec<Tree>, S::Error> {
        let mut trees = Vec::new();
        while let Some(tree) = list.next_element_seed(self.0)? {
            trees.push(tree);
        }
        Ok(trees)
    }
}

/// Reads one text or a list of texts. Each text is checked while it is read, so that an error points to it.
macro_rules! texts {
    ($(#[$doc:meta])* $name:ident, $type:ty, $what:literal, $read:expr) => {
        $(#[$doc])*
        struct $name(Vec<$type>);

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct One($type);
                impl<'de> Deserialize<'de> for One {
                    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                        let text = String::deserialize(deserializer)?;
                        $read(&text).map(One).map_err(de::Error::custom)
                    }
                }
                struct OneOrMany;
                impl<'de> Visitor<'de> for OneOrMany {
                    type Value = $name;

                    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                        f.write_str($what)
                    }

                    fn visit_str<E: de::Error>(self, text: &str) -> Result<$name, E> {
                        $read(text).map(|one| $name(vec![one])).map_err(E::custom)
                    }

                    fn visit_seq<S: SeqAccess<'de>>(self, mut list: S) -> Result<$name, S::Error> {
                        let mut all = Vec::new();
                        while let Some(One(one)) = list.next_element()? {
                            all.push(one);
                        }
                        Ok($name(all))
                    }
                }
                deserializer.deserialize_any(OneOrMany)
            }
        }
    };
}

texts! { Texts, String, "a pattern such as `web.**`, or a list of them", |text: &str| Ok::<_, String>(text.to_owned()) }
texts! { Globs, regex::bytes::Regex, "a glob such as `/api/*`, or a list of them", glob::compile }
texts! { Regexes, regex::bytes::Regex, "a regular expression, or a list of them", regex }

fn regex(text: &str) -> Result<regex::bytes::Regex, String> {
    let pattern = ruby::without_slashes(text)?;
    regex::bytes::Regex::new(&pattern).map_err(|error| {
        // The last line of a syntax error describes the mistake; the lines before it only mark its place in the
        // pattern.
        let error = error.to_string();
        let why = error.lines().last().unwrap_or_default();
        let why = why.strip_prefix("error: ").unwrap_or(why);
        format!("`{text}` is not a regular expression: {why}")
    })
}
