//! The environment of a configuration: variables, and files with secrets.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::whole::read_file;

/// The maximum size in bytes of a file that `${file:PATH}` inserts: a password, a key or a certificate.
const FILE_MAX: u64 = 1 << 20;

/// Variables and the directory of credentials.
#[derive(Clone, Default)]
pub struct Environment {
    variables: BTreeMap<String, String>,
    credentials: Option<PathBuf>,
}

impl Environment {
    /// An environment without variables.
    #[must_use]
    pub fn empty() -> Self {
        Self::default()
    }

    /// The environment of this process, with the credentials directory that systemd passes in `$CREDENTIALS_DIRECTORY`.
    ///
    /// Variables that are not UTF-8 count as unset.
    #[must_use]
    pub fn of_process() -> Self {
        let variables = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        Self {
            variables,
            credentials: std::env::var_os("CREDENTIALS_DIRECTORY").map(PathBuf::from),
        }
    }

    /// Adds a variable.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Sets the directory of credentials.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn with_credentials(mut self, directory: impl Into<PathBuf>) -> Self {
        self.credentials = Some(directory.into());
        self
    }

    /// Returns the value of a variable; `None` if it is not set.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.variables.get(name).map(String::as_str)
    }

    /// The names of all variables.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.variables.keys().map(String::as_str)
    }

    /// Reads a file and removes a final line end. Reads `path` in the credentials directory if that file exists, and otherwise `path`
    /// relative to `directory`. The error names the file and the reason.
    pub(crate) fn file(&self, path: &str, directory: &Path) -> Result<String, String> {
        let credential = self.credentials.as_ref().map(|dir| dir.join(path));
        let path = credential
            .filter(|path| path.is_file())
            .unwrap_or_else(|| directory.join(path));
        let wrong = |why: String| format!("cannot read {}: {why}", path.display());
        let bytes = read_file(&path, FILE_MAX).map_err(|error| wrong(error.to_string()))?;
        let text = String::from_utf8(bytes);
        let mut text = text.map_err(|_| wrong("it is not UTF-8".to_owned()))?;
        if text.ends_with('\n') {
            text.pop();
            if text.ends_with('\r') {
                text.pop();
            }
        }
        Ok(text)
    }
}

// Values are often secrets, so they stay out of debug output.
impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Environment({} variables)", self.variables.len())
    }
}
