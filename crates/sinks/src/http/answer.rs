//! Interprets an answer: whether the request is done, retried or refused, and when to retry it.
//!
//! | Status | Outcome |
//! |---|---|
//! | 2xx | done (`bulk`: item by item) |
//! | 307, 308 to another path on the same server | sent to that path, unchanged |
//! | 2xx that the option `success` excludes | retried unchanged, or refused |
//! | a status in `success.status` | done |
//! | other 3xx, 5xx, the statuses in the option `again` | retried unchanged |
//! | other 4xx | refused; if no single record causes them (404), retried for a while first |

use std::time::Duration;

use bytes::Bytes;
use hyper::{
    HeaderMap, StatusCode,
    header::{LOCATION, RETRY_AFTER},
};
use jiff::{Timestamp, fmt::rfc2822::DateTimeParser};
use millstream_record::Time;

use super::success::{Otherwise, Success};

/// Longest `Retry-After` that the sink honors. A longer one is shortened to this time.
const RETRY_AFTER_MAX: Duration = Duration::from_secs(3600);
/// Maximum number of bytes of an answer's body that a message shows.
const SHOWN_BYTES: usize = 300;

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    /// Whether `body` is the whole body. The client reads a limited number of bytes.
    pub(super) whole: bool,
}

/// The meaning of an answer.
#[derive(Debug, PartialEq)]
pub(super) enum Verdict {
    Done,
    /// Retry, after this time at the earliest. The text says why.
    Again(Option<Duration>, String),
    /// Redirected to this `Location`, which may be on another server.
    Moved(String),
    /// Refused. `parts` is `true` if the server may accept some of the records when they are sent separately.
    Refused {
        why: String,
        parts: bool,
    },
}

impl Answer {
    pub(super) fn verdict(&self, again: &[u16], success: &Success) -> Verdict {
        let status = self.status;
        match success.verdict(status, &self.headers, &self.body) {
            Some(Ok(())) => return Verdict::Done,
            Some(Err(why)) => {
                let why = format!("{why}: {}", self.summary());
                return match success.otherwise() {
                    Otherwise::Retry => Verdict::Again(self.retry_after(), why),
                    Otherwise::Reject => Verdict::Refused { why, parts: true },
                };
            }
            None => {}
        }
        let moved = matches!(status.as_u16(), 307 | 308);
        if let (true, Some(location)) = (moved, self.text(LOCATION.as_str())) {
            return Verdict::Moved(location.to_owned());
        }
        let why = self.summary();
        if status.is_server_error() || again.contains(&status.as_u16()) {
            return Verdict::Again(self.retry_after(), why);
        }
        if status.is_redirection() {
            let to = self.text(LOCATION.as_str()).unwrap_or("nowhere");
            let text = format!("{why} (redirect to {to}, not followed; change `url`)");
            return Verdict::Again(None, text);
        }
        // Only these statuses can be caused by single records.
        let parts = matches!(status.as_u16(), 400 | 413 | 422);
        Verdict::Refused { why, parts }
    }

    /// The status of an answer that is retried, if a single record may have caused it. The statuses of a server or gateway that is not
    /// available, or that asks to wait, are left out.
    pub(super) fn suspicious_status(&self) -> Option<u16> {
        let status = self.status.as_u16();
        let is_fault = is_suspicious(status) || self.status.is_success();
        (is_fault && self.retry_after().is_none()).then_some(status)
    }

    /// Status and start of the body, for messages.
    pub(super) fn summary(&self) -> String {
        let start = self.body.get(..SHOWN_BYTES).unwrap_or(&self.body);
        let text = String::from_utf8_lossy(start);
        let text: Vec<&str> = text.split_whitespace().collect();
        match text.join(" ") {
            empty if empty.is_empty() => self.status.to_string(),
            text => format!("{}: {text}", self.status),
        }
    }

    /// Returns the wait that the server asks for, in seconds or by a date. `None`: the answer has no valid `Retry-After`.
    pub(super) fn retry_after(&self) -> Option<Duration> {
        retry_after(self.text(RETRY_AFTER.as_str())?, Time::now())
    }

    fn text(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// Whether a record may be the cause of this status, which usually means that the server has failed.
pub(super) fn is_suspicious(status: u16) -> bool {
    status >= 500 && !matches!(status, 502..=504)
}

fn retry_after(text: &str, now: Time) -> Option<Duration> {
    let text = text.trim();
    let wait = match text.parse::<u64>() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let parser = DateTimeParser::new();
            let when: Timestamp = parser.parse_timestamp(text).ok()?;
            let left = when.as_nanosecond() - i128::from(now.0);
            Duration::from_nanos(u64::try_from(left).unwrap_or(0))
        }
    };
    Some(wait.min(RETRY_AFTER_MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(status: u16, headers: &[(&'static str, &str)]) -> Verdict {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, value.parse().unwrap());
        }
        let answer = Answer {
            status: StatusCode::from_u16(status).unwrap(),
            headers: map,
            body: Bytes::from_static(b"no  such\nthing"),
            whole: true,
        };
        answer.verdict(&[401, 408, 429], &Success::default())
    }

    #[test]
    fn statuses_mean_done_retry_or_refused() {
        for status in [200, 201, 202, 204] {
            assert_eq!(verdict(status, &[]), Verdict::Done);
        }
        for status in [401, 408, 429, 500, 502, 503, 599, 301, 302, 307] {
            assert!(
                matches!(verdict(status, &[]), Verdict::Again(None, _)),
                "{status}"
            );
        }
        let moved = verdict(308, &[("location", "/b")]);
        assert_eq!(moved, Verdict::Moved("/b".to_owned()));
        let why = "404 Not Found: no such thing".to_owned();
        assert_eq!(verdict(404, &[]), Verdict::Refused { why, parts: false });
        for status in [400, 413, 422] {
            assert!(matches!(
                verdict(status, &[]),
                Verdict::Refused { parts: true, .. }
            ));
        }
    }

    #[test]
    fn a_record_may_cause_a_500_but_not_a_server_that_is_unavailable() {
        let of = |status: u16, wait: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(wait) = wait {
                headers.insert(RETRY_AFTER, wait.parse().unwrap());
            }
            let answer = Answer {
                status: StatusCode::from_u16(status).unwrap(),
                headers,
                body: Bytes::new(),
                whole: true,
            };
            answer.suspicious_status()
        };
        for status in [200, 500, 501, 507, 520] {
            assert_eq!(of(status, None), Some(status));
            assert_eq!(of(status, Some("5")), None);
        }
        for status in [302, 401, 408, 429, 502, 503, 504] {
            assert_eq!(of(status, None), None);
        }
    }

    #[test]
    fn retry_after_is_read_as_seconds_or_as_a_date() {
        let seconds = Duration::from_secs;
        // Sun, 06 Nov 1994 08:49:37 GMT
        let now = Time(784_111_777_000_000_000);
        assert_eq!(retry_after("120", now), Some(seconds(120)));
        assert_eq!(retry_after(" 0 ", now), Some(seconds(0)));
        assert_eq!(
            retry_after("Sun, 06 Nov 1994 08:51:37 GMT", now),
            Some(seconds(120))
        );
        assert_eq!(
            retry_after("Sun, 06 Nov 1994 08:00:00 GMT", now),
            Some(seconds(0))
        );
        assert_eq!(retry_after("31536000", now), Some(RETRY_AFTER_MAX));
        assert_eq!(retry_after("soon", now), None);
        assert!(matches!(
            verdict(503, &[("retry-after", "7")]),
            Verdict::Again(Some(wait), _) if wait == seconds(7)
        ));
    }
}
