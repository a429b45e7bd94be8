//! Turns error responses of a store into messages: the request, the root cause, and the next step.

use std::error::Error as _;

use millstream_pipeline::failure::Failure;
use object_store::{Error, path::Path};

/// Maximum number of characters of a response in a message: some stores send pages of XML.
const ANSWER_CHARS_MAX: usize = 400;

/// Returns the failure of a request to the store at `url`.
pub(super) fn trouble(url: &str, verb: &str, path: &Path, error: &Error) -> Failure {
    let mut text = format!("{url}: cannot {verb} {path}: {}", short(error));
    let cause = cause(error);
    if let Some(cause) = &cause {
        text.push_str(&format!(": {cause}"));
    }
    if let Some(advice) = advice(error, &cause.unwrap_or_default()) {
        text.push_str(&format!(" ({advice})"));
    }
    match error {
        Error::NotSupported { .. } | Error::NotImplemented { .. } => {
            Failure::peer(text).never_again()
        }
        _ => Failure::peer(text),
    }
}

/// Returns the error as one line, shortened if it is long.
fn short(error: &Error) -> String {
    let text = error.to_string();
    let mut line: String = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(ANSWER_CHARS_MAX) {
        line.truncate(end);
        line.push_str("...");
    }
    line
}

/// Returns the last cause of the error, unless the error's text contains it. The first cause only states that a connection failed;
/// the last one states why.
fn cause(error: &Error) -> Option<String> {
    let mut last = error.source()?;
    while let Some(deeper) = last.source() {
        last = deeper;
    }
    let cause = last.to_string();
    (!error.to_string().contains(&cause)).then_some(cause)
}

/// Returns the next step for the operator, or None if waiting may help. If the crate object_store has no specific error, the text
/// of the response decides.
fn advice(error: &Error, cause: &str) -> Option<&'static str> {
    let text = error.to_string();
    let says = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if says(&["NoSuchBucket", "ContainerNotFound"]) {
        return Some("there is no such bucket: make it, or name another in `url`");
    }
    if cause.contains("UnknownIssuer") {
        return Some(
            "the server's certificate is not signed by a trusted authority: name its authority in `tls: { ca: FILE }`",
        );
    }
    let denied = matches!(
        error,
        Error::Unauthenticated { .. } | Error::PermissionDenied { .. }
    );
    // XAdminUserNotFound is the response of versitygw to an unknown key, with status 404.
    let refused = ["401 Unauthorized", "403 Forbidden", "XAdminUserNotFound"];
    (denied || says(&refused)).then_some(
        "it denies access: `auth`, or the environment, has to name a key of this store that may list, get, put and delete \
         objects in this bucket",
    )
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug)]
    struct Outer(io::Error);

    impl std::fmt::Display for Outer {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.write_str("error sending\n request")
        }
    }

    impl std::error::Error for Outer {
        fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
            Some(&self.0)
        }
    }

    fn generic(text: &str) -> Error {
        let source = Box::new(Outer(io::Error::other(text.to_owned())));
        Error::Generic {
            store: "S3",
            source,
        }
    }

    #[test]
    fn a_message_has_the_cause_and_the_next_step_in_one_line() {
        let told =
            |error: &Error| trouble("s3://lake/a", "list", &Path::from("a/b"), error).message;
        assert_eq!(
            told(&generic("refused")),
            "s3://lake/a: cannot list a/b: Generic S3 error: error sending request: refused"
        );
        assert!(told(&generic("certificate: UnknownIssuer")).contains("`tls: { ca: FILE }`"));
        let answer = |text: String| Error::Generic {
            store: "S3",
            source: text.into(),
        };
        // The advice also considers the part of the response that is not shown.
        let far = format!("{}<Code>NoSuchBucket</Code>", " page".repeat(100));
        assert!(told(&answer(far)).contains("make it"));
        for refused in ["403 Forbidden", "404 <Code>XAdminUserNotFound</Code>"] {
            assert!(told(&answer(refused.into())).contains("`auth`"));
        }
        let denied = Error::PermissionDenied {
            path: "a/b".into(),
            source: "Forbidden".into(),
        };
        assert!(told(&denied).contains("`auth`"), "{}", told(&denied));
        let long = told(&answer("ä\n".repeat(900)));
        assert!(long.len() < 1000 && !long.contains('\n'), "{long}");
    }
}
