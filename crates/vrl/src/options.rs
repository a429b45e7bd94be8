//! Settings of the compiler.

/// How a program is compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The time zone of times without a zone: a name of the tz database, such as `Europe/Berlin`.
    pub timezone: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timezone: "UTC".to_owned(),
        }
    }
}
