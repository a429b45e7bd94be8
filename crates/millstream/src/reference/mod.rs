//! The reference of the components, for people and editors: options from their schemas, READMEs as text, the JSON
//! Schema of the whole configuration. Everything follows from the lists of components; nothing is written twice.

pub mod options;
pub mod pages;
pub mod readme;
pub mod schema;
#[cfg(test)]
mod tests;
