//! Logs every change that is made over the HTTP interface, and refused requests.

use axum::http::{Method, StatusCode};
use millstream_config::Role;
use millstream_pipeline::report::Reporter;

use super::access::{Caller, Denied};
use crate::visible::visible;

/// The maximum number of characters of a request's target in the log.
const TARGET_CHARS: usize = 200;

/// A handler's description of its result, for the log. The handler adds it to the answer as an extension.
#[derive(Clone, Debug)]
pub struct Said(pub String);

/// Logs a change with its result. The rate limit of the log does not apply, so that no change is missing.
pub fn changed(
    reporter: &Reporter,
    caller: &Caller,
    (method, target): (&Method, &str),
    code: StatusCode,
    said: &str,
) {
    let role = match caller.role {
        Some(Role::Admin) => "admin",
        Some(Role::Read) => "read",
        None => "none",
    };
    let (peer, who, target) = (caller.peer, &caller.who, shown(target));
    let said = match said {
        "" => String::new(),
        said => format!(": {said}"),
    };
    reporter.apart().info(
        "change",
        format_args!(
            "{peer} ({who}, role {role}): {method} {target}: {}{said}",
            code.as_u16()
        ),
    );
}

/// Logs a refused request. At most one refusal in ten seconds is logged, because any peer can send such requests.
pub fn refused(
    reporter: &Reporter,
    peer: std::net::SocketAddr,
    method: &Method,
    target: &str,
    denied: &Denied,
) {
    let (code, target) = (denied.code.as_u16(), shown(target));
    reporter.warn(
        "denied",
        format_args!("{peer}: {method} {target}: {code}: {}", denied.why),
    );
}

/// Returns the target of a request on one line, truncated after [`TARGET_CHARS`] characters.
fn shown(target: &str) -> String {
    match target.char_indices().nth(TARGET_CHARS) {
        Some((end, _)) => format!("{}...", visible(&target[..end])),
        None => visible(target).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn a_target_has_no_line_breaks_and_a_bounded_length() {
        assert_eq!(shown("/reload\n\u{1b}"), "/reload\\n\\u001b");
        let long = shown(&"é".repeat(500));
        assert_eq!(long.chars().count(), 203);
    }
}
