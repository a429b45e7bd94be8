//! The paths that accept JSON lines (option `path`).
//!
//! Any other path is refused. Other protocols (`/_bulk` of Elasticsearch, `/loki/api/v1/push`, `/services/collector/event`) also send
//! JSON by POST, and an answer of 200 would tell their senders that the records arrived.

use millstream_config::{Node, OneOrMany, Problem};

/// The path of OTLP logs.
pub(super) const LOGS: &str = "/v1/logs";
/// The path if the option is not set.
const ROOT: &str = "/";

/// The paths: each is exact, or ends with `*`, which stands for any text.
#[derive(Clone, Debug)]
pub(super) struct Paths(Vec<String>);

impl Paths {
    /// Checks the option.
    pub(super) fn of(paths: Option<&OneOrMany<String>>, options: &Node) -> Result<Self, Problem> {
        let wrong = |text: &str| Err(options.problem_at("path", text));
        let Some(OneOrMany(paths)) = paths else {
            return Ok(Self(vec![ROOT.to_owned()]));
        };
        if paths.is_empty() {
            return wrong("`path` is empty: name at least one path, such as `/`");
        }
        for path in paths {
            if !path.starts_with('/') {
                return wrong("`path` must begin with `/`");
            }
            if path.trim_end_matches('*').contains('*') || path.ends_with("**") {
                return wrong("`path` may have one `*`, at its end, such as `/app/*`");
            }
        }
        Ok(Self(paths.clone()))
    }

    /// Whether this path accepts JSON lines.
    pub(super) fn take(&self, path: &str) -> bool {
        self.0.iter().any(|one| match one.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == one,
        })
    }

    /// Says which paths there are, and what to configure for `path`.
    pub(super) fn unknown(&self, path: &str) -> String {
        let all: Vec<String> = self.0.iter().map(|path| format!("`{path}`")).collect();
        let all = all.join(", ");
        format!(
            "{path} accepts nothing: this source takes JSON lines at {all} and OTLP logs at `{LOGS}`; to take JSON lines at \
             other paths, name them in the option `path` (`/*`: any path)"
        )
    }
}
