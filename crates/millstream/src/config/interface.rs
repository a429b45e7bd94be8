//! Checks the setting `api` (the HTTP interface): addresses, tokens, certificates, and the fields to hide.

use std::net::{SocketAddr, ToSocketAddrs};

use millstream_config::{Api, Node, Problem};
use millstream_net::{ServerTls, Tls};
use millstream_wire::record::FieldPath;

/// The smallest number of characters that a token may have. 16 random characters cannot be guessed.
const TOKEN_CHARS_MIN: usize = 16;

/// TLS of the interface. `api` is the setting as it is written.
pub fn tls(api: &Node) -> Result<Option<ServerTls>, Vec<Problem>> {
    let Some(block) = api.get("tls") else {
        return Ok(None);
    };
    ServerTls::check(&block.read::<Tls>()?, api)
}

/// The errors in the setting. `root` is the top-level map of the configuration file.
pub fn problems(api: &Api, root: &Node) -> Vec<Problem> {
    let mut problems = Vec::new();
    let at = |path: &str, message: String| root.problem_at(path, message);
    let has_access = !api.tokens.is_empty() || !api.certificates.is_empty();
    for address in &api.listen {
        let Some(sockets) = sockets(address) else {
            let message = format!("`{address}` is no address and port");
            problems
                .push(at("api.listen", message).help("such as `127.0.0.1:8687` or `[::1]:8687`"));
            continue;
        };
        if sockets.iter().all(|socket| socket.ip().is_loopback()) {
            continue;
        }
        if api.open.is_empty() && !has_access {
            let message = format!(
                "`{address}` can be reached from other machines, but no setting admits them"
            );
            let help = "add `tokens: [{ name: ops, token: \"${file:api.token}\", role: admin }]`, say what all of them may see \
                        (`open: [health, metrics]`), or listen on 127.0.0.1";
            problems.push(at("api.listen", message).help(help));
        }
        if api.tls.is_none() && !api.tokens.is_empty() {
            let message = format!("tokens for `{address}` are sent without encryption");
            let place = &at("api.tokens", String::new()).place;
            let help = "add `tls: { cert: FILE, key: FILE }` to `api`";
            problems.push(Problem::warning(place, message).help(help));
        }
    }
    if !api.certificates.is_empty() && api.tls.is_none() {
        let message = "certificates of clients need TLS".to_owned();
        let help = "add `tls: { cert: FILE, key: FILE, ca: FILE, client_auth: optional }` to `api`";
        problems.push(at("api.certificates", message).help(help));
    }
    problems.extend(wrong_tokens(api).map(|message| {
        at("api.tokens", message).help("`openssl rand -hex 32` makes a good token")
    }));
    for field in &api.redact {
        if let Err(wrong) = field.parse::<FieldPath>() {
            let message = format!("`{field}` is no field: {wrong}");
            problems.push(at("api.redact", message));
        }
    }
    problems
}

/// The errors in tokens. No message shows a token.
fn wrong_tokens(api: &Api) -> impl Iterator<Item = String> {
    api.tokens.iter().enumerate().filter_map(|(at, token)| {
        let (name, text) = (&token.name, token.token.expose());
        let mut others = api.tokens[..at].iter();
        if name.is_empty() {
            Some("a token has no name".to_owned())
        } else if text.chars().count() < TOKEN_CHARS_MIN {
            Some(format!(
                "the token `{name}` has fewer than {TOKEN_CHARS_MIN} characters"
            ))
        } else if text.chars().any(|c| c.is_control() || c.is_whitespace()) {
            Some(format!("the token `{name}` has spaces or line breaks"))
        } else if others.clone().any(|other| other.name == *name) {
            Some(format!("two tokens are called `{name}`"))
        } else if others.any(|other| other.token == token.token) {
            Some(format!("`{name}` is the same token as another one"))
        } else {
            None
        }
    })
}

/// Resolves `ADDRESS:PORT`. Names other than `localhost` are not resolved, because the result of a lookup could change
/// later.
fn sockets(address: &str) -> Option<Vec<SocketAddr>> {
    match address.strip_prefix("localhost:") {
        Some(_) => Some(address.to_socket_addrs().ok()?.collect()),
        None => Some(vec![address.parse().ok()?]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(text: &str) -> Vec<String> {
        let root = Node::parse("t.yaml", text).unwrap();
        let api: Api = root.get("api").unwrap().read().unwrap();
        let all = problems(&api, &root).into_iter();
        all.map(|problem| problem.message).collect()
    }

    #[test]
    fn an_address_for_other_machines_needs_a_setting_that_admits_them() {
        assert_eq!(
            messages("api: { listen: \"0.0.0.0:1\" }"),
            ["`0.0.0.0:1` can be reached from other machines, but no setting admits them"]
        );
        let none: [&str; 0] = [];
        assert_eq!(
            messages("api: { listen: \"0.0.0.0:1\", open: [health] }"),
            none
        );
        let token = "{ name: a, token: 0123456789abcdef }";
        let listen = "listen: [\"127.0.0.1:1\", \"0.0.0.0:1\"]";
        assert_eq!(
            messages(&format!("api: {{ {listen}, tokens: [{token}] }}")),
            ["tokens for `0.0.0.0:1` are sent without encryption"]
        );
        let tls = "tls: { cert: a, key: b }";
        assert_eq!(
            messages(&format!("api: {{ {listen}, {tls}, tokens: [{token}] }}")),
            none
        );
        assert_eq!(messages("api: { listen: here }").len(), 1);
    }

    #[test]
    fn weak_and_equal_tokens_are_refused_and_not_shown() {
        for (tokens, why) in [
            ("{ name: a, token: hunter2 }", "fewer than 16"),
            (
                "{ name: a, token: \"0123456789 abcdef\" }",
                "spaces or line breaks",
            ),
            ("{ name: \"\", token: 0123456789abcdef }", "no name"),
            (
                "{ name: a, token: 0123456789abcdef }, { name: a, token: 1123456789abcdef }",
                "two tokens",
            ),
            (
                "{ name: a, token: 0123456789abcdef }, { name: b, token: 0123456789abcdef }",
                "the same token",
            ),
        ] {
            let all = messages(&format!("api: {{ tokens: [{tokens}] }}"));
            assert_eq!(all.len(), 1, "{tokens}: {all:?}");
            assert!(all[0].contains(why), "{all:?}");
            assert!(
                !all[0].contains("hunter2") && !all[0].contains("456789"),
                "{all:?}"
            );
        }
    }

    #[test]
    fn certificates_need_tls_and_redacted_fields_must_be_valid_paths() {
        assert_eq!(
            messages("api: { certificates: [{ name: a }] }"),
            ["certificates of clients need TLS"]
        );
        let wrong = messages("api: { redact: [.a, \"..\", .user.email] }");
        assert!(
            wrong.len() == 1 && wrong[0].starts_with("`..` is no field"),
            "{wrong:?}"
        );
    }
}
