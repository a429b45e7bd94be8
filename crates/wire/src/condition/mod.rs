//! Conditions on records: the option `where` as a map, tested on the undecoded bytes.
//!
//! ```yaml
//! where:
//!   .level: [error, fatal]            equal to one of these
//!   .ms: { gt: 500 }                  eq, ge, gt, le, lt, glob, regex, exists; several in one map must all pass
//!   .user.id: { not: 0 }              also `any: [..]` and `all: [..]` after a field
//!   tag: "web.**"                     a pattern, as in the option `tags`
//!   host: web-1                       a value that all records of the batch share, set by the source
//!   any: [{ .status: { ge: 500 } }, { not: { .path: { glob: "/health*" } } }]
//! ```
//!
//! All tests of a map must pass. Texts are compared with texts, and numbers with numbers by their exact values, whether
//! they are integers or floats. A field of another type fails the test. A missing field fails every test except
//! `exists: false`; `not` inverts the result, so a missing field passes `{ not: 0 }`. `null` matches only an existing
//! field that is null. If a key is repeated, its first occurrence counts. A line is tested as `{"message": line}`.
//!
//! - [`Where`]: the option, as components read it. An error points to the name or value that is wrong.
//! - [`Matcher`]: several conditions, compiled. One walk over a record finds the fields of all conditions, and skips all
//!   other values without recursion. Nothing is allocated per record. Tests of the tag and of the values of the batch
//!   are decided once per batch.

mod find;
mod glob;
mod matcher;
pub(crate) mod named;
mod number;
mod option;
mod schema;
mod start;
mod test;

#[cfg(test)]
mod tests;

pub use matcher::{Matcher, Run, TagTest};
pub use option::{Condition, Where};
