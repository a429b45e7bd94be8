//! Decides which requests the HTTP interface answers, by their header `Host`.
//!
//! A browser lets a web page read the answers from every address that the page's host name resolves to. An attacker can make this name
//! resolve to the address of the interface (DNS rebinding). Such a request carries the attacker's host name in `Host`. The interface
//! therefore answers a request only if its `Host` is an IP address, a name of this machine, or a name in `api.hosts`.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};

/// The names that the interface answers to, in lower case.
pub struct Hosts(Vec<String>);

impl Hosts {
    /// The names of this machine and those that the configuration adds.
    pub fn new(machine: &str, chosen: &[String]) -> Self {
        let system = rustix::system::uname();
        let system = system.nodename().to_string_lossy();
        let names = ["localhost", machine, &*system].map(str::to_owned);
        let names = names.into_iter().chain(chosen.iter().cloned());
        Self(names.map(|name| name.to_ascii_lowercase()).collect())
    }

    /// Checks every `Host` in these headers. If one is not admitted, returns it as the error. A request without `Host` (HTTP/1.0) is
    /// admitted, because it cannot come from a browser.
    pub fn admit(&self, headers: &HeaderMap) -> Result<(), String> {
        for value in headers.get_all(header::HOST) {
            let host = String::from_utf8_lossy(value.as_bytes());
            if !self.knows(name(&host)) {
                return Err(host.into_owned());
            }
        }
        Ok(())
    }

    fn knows(&self, host: &str) -> bool {
        let host = host.trim_end_matches('.').to_ascii_lowercase();
        let address = host
            .strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'));
        address.unwrap_or(&host).parse::<IpAddr>().is_ok() || self.0.contains(&host)
    }
}

/// `Host` without its port.
fn name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    #[test]
    fn only_addresses_and_known_names_are_answered() {
        let hosts = Hosts::new("Agg-1", &["logs.example".to_owned()]);
        let admits = |host: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(header::HOST, HeaderValue::from_static(host));
            hosts.admit(&headers).is_ok()
        };
        for host in [
            "localhost",
            "LOCALHOST:8687",
            "localhost.:1",
            "127.0.0.1:8687",
            "10.1.2.3",
            "[::1]:8687",
            "[fd00::1]",
            "agg-1:8687",
            "logs.example",
        ] {
            assert!(admits(host), "{host}");
        }
        for host in [
            "evil.example",
            "evil.example:8687",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "[::1].evil.example",
            "",
            ":8687",
            "localhost:evil",
        ] {
            assert!(!admits(host), "{host}");
        }
        assert!(hosts.admit(&HeaderMap::new()).is_ok());
    }

    #[test]
    fn a_second_host_header_is_checked_too() {
        let hosts = Hosts::new("agg-1", &[]);
        let mut headers = HeaderMap::new();
        headers.append(header::HOST, HeaderValue::from_static("localhost"));
        headers.append(header::HOST, HeaderValue::from_static("evil.example"));
        assert_eq!(hosts.admit(&headers), Err("evil.example".to_owned()));
    }
}
