//! The reference of the components, for users and editors: options from their schemas, READMEs as text, the JSON Schema of the
//! whole configuration. Everything is derived from the lists of components.

pub mod options;
pub mod pages;
pub mod readme;
pub mod schema;
#[cfg(test)]
mod tests;
