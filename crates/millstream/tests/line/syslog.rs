//! Real syslog daemons: rsyslog (plain, octet counting, UDP, TLS, RELP, RELP under TLS) and syslog-ng. Every record that they
//! send arrives in a file, field for field. (`faults/restarts.rs` kills the receiver of RELP; `syslog_senders.rs` has other senders.)
//!
//! `make deps` installs both daemons. It installs syslog-ng into `target/clients`, because only one of the two Debian
//! packages can be installed at a time.

use std::path::Path;

use super::syslog_ways::{MESSAGES, records, start, text, way};
use crate::peers::syslog_daemons::{certificates, feed, rsyslogd, syslog_ng};
use crate::program::{Program, free_port};
use serde_json::{Value, json};

/// The timestamp of all messages that carry one.
const TIME: &str = "2026-11-20T06:40:30.123456";

/// Asserts that the records of the source `name` are those of `expected`.
fn compare(directory: &Path, program: &Program, name: &str, expected: impl Fn(usize) -> Value) {
    let mut got = records(directory, program, name, MESSAGES);
    assert_eq!(got.len(), MESSAGES, "{name}");
    // Datagrams may overtake each other.
    let number = |record: &Value| -> usize {
        let text = record["message"].as_str().unwrap();
        text.split(' ').nth(1).unwrap().parse().unwrap()
    };
    got.sort_by_key(number);
    for (n, record) in got.into_iter().enumerate() {
        assert_eq!(record, expected(n), "{name}, message {n}");
    }
}

/// Message `n` in RFC 5424, for the daemons to forward.
fn message(n: usize) -> String {
    format!(
        "<{}>1 {TIME}Z web-1 app 77 ID{n} [x@1 k=\"v\\\"{n}\"][y@1] {}\n",
        8 + n % 8,
        text(n)
    )
}

/// The record of a message with all parts of RFC 5424.
fn whole(n: usize) -> Value {
    json!({
        "time": format!("{TIME}000Z"),
        "facility": "user",
        "severity": severity(n),
        "host": "web-1",
        "app": "app",
        "procid": "77",
        "msgid": format!("ID{n}"),
        "structured_data": {"x@1": {"k": format!("v\"{n}")}, "y@1": {}},
        "message": text(n),
    })
}

/// The record of [`whole`], with the peer's address. A source adds this address to records that arrive over UDP.
fn with_peer(n: usize) -> Value {
    let mut record = whole(n);
    record["peer"] = "127.0.0.1".into();
    record
}

/// The record of a message in the older format, which has no id and no structured data.
fn older(n: usize) -> Value {
    let mut record = whole(n);
    let fields = record.as_object_mut().unwrap();
    fields.shift_remove("msgid");
    fields.shift_remove("structured_data");
    record
}

fn severity(n: usize) -> &'static str {
    [
        "emerg", "alert", "crit", "err", "warning", "notice", "info", "debug",
    ][n % 8]
}

#[test]
fn rsyslog_delivers_every_message_over_each_transport() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let certificates = certificates(place);
    let ports: Vec<u16> = (0..7).map(|_| free_port()).collect();
    let at = |scheme: &str, number: usize| format!("{scheme}://127.0.0.1:{}", ports[number]);
    let tls = format!(
        ", tls: {{ cert: {0}/server.pem, key: {0}/server.key, ca: {0}/ca.pem }}",
        certificates.display()
    );
    let ways = [
        way("lines", at("tcp", 0), ""),
        way("octets", at("tcp", 1), ", framing: octets"),
        way("udp", at("udp", 2), ""),
        way("relp", at("relp", 3), ""),
        way("gnutls", at("tcp", 4), &tls),
        way("relp_tls", at("relp", 5), &tls),
    ];
    let program = start(place, &ways, ports[0]);
    let own = certificates.display();
    let relp_tls = format!(
        "tls=\"on\" tls.caCert=\"{own}/ca.pem\" tls.myCert=\"{own}/client.pem\" tls.myPrivKey=\"{own}/client.key\" \
         tls.authMode=\"name\" tls.permittedPeer=[\"localhost\"]"
    );
    let newer = "template=\"RSYSLOG_SyslogProtocol23Format\"";
    let to = |number: usize| format!("target=\"127.0.0.1\" port=\"{}\"", ports[number]);
    let config = format!(
        "global(workDirectory=\"{place}\" defaultNetstreamDriverCAFile=\"{own}/ca.pem\" \
         defaultNetstreamDriverCertFile=\"{own}/client.pem\" defaultNetstreamDriverKeyFile=\"{own}/client.key\")\n\
         module(load=\"imptcp\")\nmodule(load=\"omrelp\")\n\
         input(type=\"imptcp\" address=\"127.0.0.1\" port=\"{}\")\n\
         action(type=\"omfwd\" {} protocol=\"tcp\" template=\"RSYSLOG_ForwardFormat\")\n\
         action(type=\"omfwd\" {} protocol=\"tcp\" tcp_framing=\"octet-counted\" {newer})\n\
         action(type=\"omfwd\" {} protocol=\"udp\" {newer})\n\
         action(type=\"omrelp\" {} {newer})\n\
         action(type=\"omfwd\" {} protocol=\"tcp\" streamDriver=\"gtls\" streamDriverMode=\"1\" streamDriverAuthMode=\"x509/name\" \
         streamDriverPermittedPeers=\"localhost\" {newer})\n\
         action(type=\"omrelp\" {} {relp_tls} {newer})\n",
        ports[6],
        to(0),
        to(1),
        to(2),
        to(3),
        to(4),
        to(5),
        place = place.display(),
    );
    let daemon = rsyslogd(place, &config, ports[6]);
    feed(ports[6], (0..MESSAGES).map(message));
    compare(place, &program, "lines", older);
    compare(place, &program, "udp", with_peer);
    for name in ["octets", "relp", "gnutls", "relp_tls"] {
        compare(place, &program, name, whole);
    }
    drop(daemon);
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn rsyslog_delivers_through_openssl() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let certificates = certificates(place);
    let (port, input) = (free_port(), free_port());
    let own = certificates.display();
    let tls = format!(", tls: {{ cert: {own}/server.pem, key: {own}/server.key }}");
    let ways = [way("openssl", format!("tcp://127.0.0.1:{port}"), &tls)];
    let program = start(place, &ways, port);
    let config = format!(
        "global(workDirectory=\"{}\" defaultNetstreamDriverCAFile=\"{own}/ca.pem\")\n\
         module(load=\"imptcp\")\ninput(type=\"imptcp\" address=\"127.0.0.1\" port=\"{input}\")\n\
         action(type=\"omfwd\" target=\"127.0.0.1\" port=\"{port}\" protocol=\"tcp\" streamDriver=\"ossl\" streamDriverMode=\"1\" \
         streamDriverAuthMode=\"x509/certvalid\" template=\"RSYSLOG_SyslogProtocol23Format\")\n",
        place.display()
    );
    let daemon = rsyslogd(place, &config, input);
    feed(input, (0..MESSAGES).map(message));
    compare(place, &program, "openssl", whole);
    drop(daemon);
    assert_eq!(program.stop(), Some(0));
}

#[test]
fn syslog_ng_delivers_every_message_over_each_transport() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let certificates = certificates(place);
    let own = certificates.display();
    let ports: Vec<u16> = (0..5).map(|_| free_port()).collect();
    let at = |scheme: &str, number: usize| format!("{scheme}://127.0.0.1:{}", ports[number]);
    let tls =
        format!(", tls: {{ cert: {own}/server.pem, key: {own}/server.key, ca: {own}/ca.pem }}");
    let ways = [
        way("lines", at("tcp", 0), ""),
        way("octets", at("tcp", 1), ""),
        way("udp", at("udp", 2), ""),
        way("tls", at("tcp", 3), &tls),
    ];
    let program = start(place, &ways, ports[0]);
    let config = format!(
        "@version: 3.38\noptions {{ keep-hostname(yes); ts-format(iso); frac-digits(6); time-zone(\"UTC\"); }};\n\
         source s {{ syslog(ip(127.0.0.1) port({}) transport(tcp)); }};\n\
         destination lines {{ network(\"127.0.0.1\" port({}) transport(tcp)); }};\n\
         destination octets {{ syslog(\"127.0.0.1\" port({}) transport(tcp)); }};\n\
         destination udp {{ syslog(\"127.0.0.1\" port({}) transport(udp)); }};\n\
         destination tls {{ syslog(\"127.0.0.1\" port({}) transport(tls) tls(ca-file(\"{own}/ca.pem\") cert-file(\"{own}/client.pem\") \
         key-file(\"{own}/client.key\") peer-verify(required-untrusted))); }};\n\
         log {{ source(s); destination(lines); destination(octets); destination(udp); destination(tls); }};\n",
        ports[4], ports[0], ports[1], ports[2], ports[3]
    );
    let daemon = syslog_ng(place, &config, ports[4]);
    // The input of syslog-ng reads RFC 5424 with octet counting.
    feed(
        ports[4],
        (0..MESSAGES).map(|n| {
            let message = message(n);
            let message = message.trim_end();
            format!("{} {message}", message.len())
        }),
    );
    compare(place, &program, "lines", older);
    for name in ["octets", "tls"] {
        compare(place, &program, name, whole);
    }
    compare(place, &program, "udp", with_peer);
    drop(daemon);
    assert_eq!(program.stop(), Some(0));
}
