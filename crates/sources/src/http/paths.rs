//! The paths that accept JSON lines, or OTLP logs behind a prefix (option `path`).
//!
//! Any other path is refused. Other protocols (`/_bulk` of Elasticsearch, `/loki/api/v1/push`, `/services/collector/event`) also send
//! JSON by POST, and an answer of 200 would tell their senders that the records arrived.

use millstream_config::{Node, OneOrMany, Problem};

/// The path of OTLP logs.
pub(super) const LOGS: &str = "/v1/logs";
/// The ends of the paths of other OTLP signals. They are refused, because their JSON would
/// otherwise be accepted as records.
const OTHER_SIGNALS: [&str; 3] = ["/v1/traces", "/v1/metrics", "/v1development/profiles"];
/// The path if the option is not set.
const ROOT: &str = "/";

/// The kind of requests that a path accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Accepts {
    Lines,
    Logs,
    Nothing,
}

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

    /// The kind of requests that this path accepts. A path of the option that ends like the one of OTLP
    /// (`/otlp/v1/logs`, `/v1/logs/`, also by way of `/*`) is one of OTLP: as a JSON line, a whole
    /// request would become one record.
    pub(super) fn accepts(&self, path: &str) -> Accepts {
        let end = path.trim_end_matches('/');
        if path == LOGS {
            Accepts::Logs
        } else if !self.take(path) || OTHER_SIGNALS.iter().any(|other| end.ends_with(other)) {
            Accepts::Nothing
        } else if end.ends_with(LOGS) {
            Accepts::Logs
        } else {
            Accepts::Lines
        }
    }

    fn take(&self, path: &str) -> bool {
        self.0.iter().any(|one| match one.strip_suffix('*') {
            Some(prefix) => path.starts_with(prefix),
            None => path == one,
        })
    }

    /// Says which paths there are, and what to configure for `path`.
    pub(super) fn unknown(&self, path: &str) -> String {
        let all: Vec<String> = self.0.iter().map(|path| format!("`{path}`")).collect();
        let all = all.join(", ");
        if path.trim_end_matches('/').ends_with(LOGS) {
            return format!(
                "{path} accepts nothing: send OTLP logs to `{LOGS}`, or name {path} in the option `path`"
            );
        }
        format!(
            "{path} accepts nothing: this source takes JSON lines at {all} and OTLP logs at `{LOGS}`; to take JSON lines at \
             other paths, name them in the option `path` (`/*`: any path)"
        )
    }
}
