use axum::http::{Request, header};
use millstream_config::Node;

use super::*;

const ADMIN: &str = "Bearer admin-token-0123456789";
const READ: &str = "Bearer read-token-01234567890";

fn access(more: &str) -> Access {
    let text = format!(
        "{{ tokens: [{{ name: ops, token: admin-token-0123456789, role: admin }}, {{ name: eye, token: read-token-01234567890 }}], \
         certificates: [{{ name: alice, role: admin }}], open: [health]{more} }}"
    );
    Access::new(&Node::parse("t", &text).unwrap().read().unwrap(), "agg-1")
}

fn outside(names: &[&str]) -> Peer {
    let names: Vec<_> = names.iter().map(|&name| name.to_owned()).collect();
    Peer {
        address: "10.0.0.7:1".parse().unwrap(),
        certificate: (!names.is_empty()).then(|| Arc::new(names.into())),
        handling: Default::default(),
    }
}

fn here() -> Peer {
    Peer {
        address: "[::ffff:127.0.0.1]:1".parse().unwrap(),
        certificate: None,
        handling: Default::default(),
    }
}

fn ask(
    access: &Access,
    peer: &Peer,
    line: &str,
    headers: &[(&str, &str)],
) -> Result<Caller, Denied> {
    let (method, path) = line.split_once(' ').unwrap();
    let mut request = Request::builder().method(method).uri(path);
    if headers.iter().all(|(name, _)| *name != "host") {
        request = request.header(header::HOST, "agg-1:8687");
    }
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    access.admit(peer, &request.body(()).unwrap().into_parts().0)
}

fn code(access: &Access, peer: &Peer, line: &str, headers: &[(&str, &str)]) -> Result<Who, u16> {
    let asked = ask(access, peer, line, headers);
    asked
        .map(|caller| caller.who)
        .map_err(|denied| denied.code.as_u16())
}

#[test]
fn without_a_token_a_peer_on_another_machine_gets_only_open_pages() {
    let (access, peer) = (access(""), outside(&[]));
    for line in ["GET /health", "GET /ready", "HEAD /live"] {
        assert_eq!(code(&access, &peer, line, &[]), Ok(Who::Unknown), "{line}");
    }
    for line in [
        "GET /metrics",
        "GET /status",
        "GET /",
        "GET /tap/in",
        "GET /health/",
        "POST /health",
        "POST /reload",
        "OPTIONS /reload",
        "DELETE /x",
    ] {
        assert_eq!(code(&access, &peer, line, &[]), Err(401), "{line}");
    }
    let none = Access::new(&Api::default(), "agg-1");
    let denied = ask(&none, &peer, "GET /status", &[]).unwrap_err();
    assert_eq!(denied.code, 403);
    assert!(denied.why.contains("api: { tokens"), "{}", denied.why);
}

#[test]
fn a_token_gives_its_role_and_a_wrong_token_is_refused_on_this_machine_too() {
    let access = access("");
    let basic = |pair: &str| format!("Basic {}", STANDARD.encode(pair));
    let (ops, eye) = (Who::Token("ops".into()), Who::Token("eye".into()));
    for peer in [outside(&[]), here()] {
        let with =
            |line: &str, token: &str| code(&access, &peer, line, &[("authorization", token)]);
        assert_eq!(with("GET /status", READ), Ok(eye.clone()));
        assert_eq!(with("POST /reload", READ), Err(403));
        assert_eq!(with("POST /reload", ADMIN), Ok(ops.clone()));
        assert_eq!(
            with("POST /reload", &ADMIN.replace("Bearer", "bearer")),
            Ok(ops.clone())
        );
        assert_eq!(
            with("POST /reload", &basic("any:admin-token-0123456789")),
            Ok(ops.clone())
        );
        for wrong in [
            "Bearer admin-token-012345678",
            "Bearer admin-token-01234567890",
            "Bearer ",
            "Bearer",
            "",
            "Basic",
            "Basic !!!",
            "Digest admin-token-0123456789",
            "admin-token-0123456789",
            &basic("admin-token-0123456789"),
            &basic("admin-token-0123456789:"),
        ] {
            assert_eq!(with("GET /status", wrong), Err(401), "{wrong}");
        }
    }
}

#[test]
fn a_certificate_gives_the_role_of_its_name_and_an_unknown_one_is_refused_with_help() {
    let access = access("");
    let alice = Who::Certificate("alice".to_owned());
    let with = |names: &[&str]| ask(&access, &outside(names), "POST /reload", &[]);
    assert_eq!(with(&["Alice"]).unwrap().who, alice);
    assert_eq!(with(&["x", "alice"]).unwrap().who, alice);
    let denied = with(&["bob"]).unwrap_err();
    assert_eq!(denied.code, 403);
    assert!(
        denied.why.contains("api: { certificates: [{ name: \"bob\""),
        "{}",
        denied.why
    );
    // A token takes precedence over a certificate.
    let read = [("authorization", READ)];
    assert_eq!(
        code(&access, &outside(&["alice"]), "POST /reload", &read),
        Err(403)
    );
}

#[test]
fn a_peer_on_this_machine_has_the_role_that_local_gives() {
    for (local, read, change) in [
        ("admin", true, true),
        ("read", true, false),
        ("none", false, false),
    ] {
        let access = access(&format!(", local: {local}"));
        let may = |line: &str| ask(&access, &here(), line, &[]).is_ok();
        assert_eq!(
            (may("GET /status"), may("POST /reload")),
            (read, change),
            "{local}"
        );
    }
}

#[test]
fn programs_and_the_page_of_the_interface_may_ask_for_everything() {
    let access = access("");
    let own = ("origin", "http://agg-1:8687");
    let custom = ("x-millstream", "1");
    let json = ("content-type", "application/json; charset=utf-8");
    let same = ("sec-fetch-site", "same-origin");
    let allowed: [(&str, &[(&str, &str)]); 8] = [
        ("POST /reload", &[]),
        ("POST /reload", &[own, custom]),
        ("POST /reload", &[own, json]),
        ("POST /reload", &[own, same, custom]),
        ("POST /reload", &[("origin", "https://AGG-1:8687"), custom]),
        ("GET /status", &[same]),
        (
            "GET /",
            &[("sec-fetch-site", "none"), ("sec-fetch-mode", "navigate")],
        ),
        (
            "GET /",
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
            ],
        ),
    ];
    for (line, headers) in allowed {
        assert!(
            ask(&access, &here(), line, headers).is_ok(),
            "{line} {headers:?}"
        );
    }
}

#[test]
fn a_page_of_another_origin_can_neither_read_nor_change_anything() {
    let access = access("");
    let own = ("origin", "http://agg-1:8687");
    let custom = ("x-millstream", "1");
    let json = ("content-type", "application/json; charset=utf-8");
    let same = ("sec-fetch-site", "same-origin");
    let refused: [(&str, &[(&str, &str)]); 12] = [
        ("POST /reload", &[own]),
        ("POST /reload", &[same]),
        ("POST /reload", &[own, ("content-type", "text/plain")]),
        ("POST /reload", &[("origin", "http://evil.example"), custom]),
        ("POST /reload", &[("origin", "null"), custom]),
        ("POST /reload", &[("origin", "http://agg-1:8688"), custom]),
        ("POST /reload", &[("origin", "ftp://agg-1:8687"), custom]),
        (
            "POST /reload",
            &[("origin", "http://agg-1:8687.evil.example"), custom],
        ),
        (
            "POST /reload",
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "navigate"),
                json,
            ],
        ),
        ("GET /status", &[("origin", "http://evil.example")]),
        (
            "GET /tap/in",
            &[
                ("sec-fetch-site", "cross-site"),
                ("sec-fetch-mode", "no-cors"),
            ],
        ),
        (
            "GET /tap/in",
            &[("sec-fetch-site", "same-site"), ("sec-fetch-mode", "cors")],
        ),
    ];
    for (line, headers) in refused {
        for peer in [here(), outside(&["alice"])] {
            let with_token = [headers, &[("authorization", ADMIN)]].concat();
            assert_eq!(
                code(&access, &peer, line, &with_token),
                Err(403),
                "{line} {headers:?}"
            );
        }
    }
    // If the interface uses TLS, a page that was loaded without TLS has another origin.
    let secured = outside(&["alice"]);
    assert_eq!(
        code(&access, &secured, "POST /reload", &[own, custom]),
        Err(403)
    );
    let host = [("host", "evil.example"), ("authorization", ADMIN)];
    assert_eq!(code(&access, &here(), "GET /status", &host), Err(421));
}

#[test]
fn a_browser_that_shows_a_page_is_asked_for_a_token_and_no_answer_contains_a_token() {
    let (access, peer) = (access(""), outside(&[]));
    let page = ("accept", "text/html,application/xhtml+xml");
    let asked = ask(&access, &peer, "GET /", &[page]).unwrap_err();
    assert!(asked.asks);
    let program = ask(&access, &peer, "GET /", &[("accept", "*/*")]).unwrap_err();
    assert!(!program.asks);
    let wrong = [("authorization", "Bearer guess-of-a-token-1")];
    for denied in [
        asked,
        program,
        ask(&access, &peer, "GET /", &wrong).unwrap_err(),
    ] {
        for secret in ["admin-token", "read-token", "guess", "ops", "eye"] {
            let why = denied.why.replace("ops, token: \"${file", "");
            assert!(!why.contains(secret), "{why}");
        }
    }
}
