//! Properties that hold for any input.

use proptest::prelude::*;

use super::*;

/// Random bytes that resemble syslog, so that they reach all parts of the parser.
fn input() -> impl Strategy<Value = Vec<u8>> {
    let part = prop_oneof![
        prop::sample::select(vec![
            "<13>",
            "<34>1 ",
            "<999>",
            "\n",
            "\n<",
            "\r\n",
            "\0",
            "\0<14>",
            "12 <13>abc",
            "5 ab",
            "0 ",
            "99999 <",
            "Oct 11 22:14:15 ",
            "Feb 30 22:14:15 ",
            "2003-10-11T22:14:15.003Z ",
            "host ",
            "su[12]: ",
            "su: ",
            "- ",
            "[a b=\"c\"",
            "]",
            "[",
            "\\\"",
            "\\",
            "\" ",
            "b=\"",
            "[x@1 ip=\"1\" ip=\"2\"]",
            "\u{feff}",
            "é",
            ": %ASA-1: ",
            "*",
            "29: ",
            " UTC: %",
        ])
        .prop_map(|text| text.as_bytes().to_vec()),
        prop::collection::vec(any::<u8>(), 0..6),
        (1_usize..90, any::<u8>()).prop_map(|(count, byte)| vec![byte; count]),
    ];
    prop::collection::vec(part, 0..40).prop_map(|parts| parts.concat())
}

fn framing() -> impl Strategy<Value = Framing> {
    prop::sample::select(vec![Framing::Auto, Framing::Octets, Framing::Lines])
}

fn too_long() -> impl Strategy<Value = TooLong> {
    prop::sample::select(vec![TooLong::Split, TooLong::Truncate, TooLong::Reject])
}

/// A message that is made from a few parts, so that consecutive messages often share some parts. Sometimes one byte is changed.
fn message() -> impl Strategy<Value = Vec<u8>> {
    let start = prop::sample::select(vec!["<13>", "<34>", "<13>1 ", ""]);
    let time = prop::sample::select(vec![
        "Nov 21 06:40:31 ",
        "Nov 21 06:40:07 ",
        "Nov 21 06:40:60 ",
        "Nov  1 06:40:31 ",
        "Nov 21 06:40:31.5 ",
        "Nov 21 06:40:31: ",
        "Dec 31 23:59:59 ",
        "2026-11-21T06:40:31.123456Z ",
        "2026-11-21T06:40:07.12345678Z ",
        "2026-11-21T06:40:60.1Z ",
        "2026-11-21T06:40:31,9+01:00 ",
        "2026-11-21T06:40:31 ",
        "2200-01-01T00:00:00Z ",
    ]);
    let words = prop::sample::select(vec![
        "web-1 su[12]: ",
        "web-1 su: ",
        "web-1 su[12]:",
        "web-1 su",
        "2024 su: ",
        "UTC: ",
        "fe80:: su: ",
        "é su[1]: ",
        "web-1 app 1 ID - ",
        "web-1 app 1 ID -",
        "- app 1 ID - ",
        "web-1 app 1 ID [a b=\"c\"] ",
        "web-1 app 1 ID [a b=\"c\" b=\"d\"][e f=\"\\\"\"] ",
        "web-1 app 1 ID [a b=\"c\"]",
        "web-1 app 1 ID [a b=\"c\"",
        "a-host-with-a-long-name.of.a.long.domain.example.net a-program-with-one-too[1]: ",
    ]);
    let text = prop::sample::select(vec![
        "",
        "x",
        "%x",
        "2024 ",
        "\u{feff}é",
        ": x",
        "[a b=\"c\"] ",
    ]);
    let other = prop::option::weighted(0.2, (any::<prop::sample::Index>(), any::<u8>()));
    let parts = (start, time, words, text, 0_usize..80, other);
    parts.prop_map(|(start, time, words, text, more, other)| {
        let text = [start, time, words, text, &"y".repeat(more)].concat();
        let mut bytes = text.into_bytes();
        if let Some((at, byte)) = other.filter(|_| !bytes.is_empty()) {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_split_of_a_stream_gives_the_same_records(
        input in input(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        framing in framing(),
        too_long in too_long(),
        strict in any::<bool>(),
        bytes_max in prop::sample::select(vec![1_usize, 2, 20, 64, 1 << 20]),
    ) {
        let settings = Settings { framing, too_long, strict, bytes_max, ..settings() };
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
        cuts.sort_unstable();
        cuts.push(input.len());
        let mut from = 0;
        let pieces: Vec<&[u8]> = cuts.into_iter().map(|to| &input[std::mem::replace(&mut from, to)..to]).collect();
        let whole = read(&settings, [&input[..]]);
        prop_assert_eq!(&read(&settings, pieces), &whole);
        prop_assert_eq!(&read(&settings, input.chunks(1)), &whole);
    }

    #[test]
    fn the_record_of_a_message_does_not_depend_on_earlier_ones(
        messages in prop::collection::vec(message(), 0..12),
        again in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        zone in prop::sample::select(vec!["UTC", "Europe/Berlin"]),
        now in prop::sample::select(vec![NOW, Time(5_000_000_000)]),
    ) {
        let settings = Settings { zone: TimeZone::get(zone).unwrap(), ..settings() };
        let from = Received { now, ..received() };
        let repeated = again.iter().filter(|_| !messages.is_empty()).map(|index| index.get(&messages));
        let mut decoder = Decoder::new(settings.clone());
        for message in messages.iter().chain(repeated) {
            let (mut after_others, mut alone) = (Vec::new(), Vec::new());
            let run = decoder.one(message, &from, &mut after_others);
            prop_assert_eq!(run, Decoder::new(settings.clone()).one(message, &from, &mut alone));
            prop_assert_eq!(records(&after_others), records(&alone), "{}", message.escape_ascii());
        }
    }

    #[test]
    fn lines_without_a_header_are_kept_unchanged(lines in prop::collection::vec("[^\n<0-9A-Za-z\r\0][^\n\r\0]{0,80}", 0..20)) {
        let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
        let seen = read(&settings(), [text.as_bytes()]);
        let messages: Vec<_> = seen.records.iter().map(|record| field(record, "message").unwrap().as_str().unwrap()).collect();
        prop_assert_eq!(messages, lines);
    }

    #[test]
    fn the_fields_of_an_rfc_5424_message_are_read_back(
        priority in 0_u8..192,
        host in "[!-~]{2,40}",
        app in "[!-~]{2,48}",
        procid in "[!-~]{2,20}",
        msgid in "[!-~]{2,32}",
        elements in prop::collection::vec(("[a-z]{1,8}@[0-9]{1,5}", prop::collection::vec(("[a-z]{1,6}[0-9]", "[^\n\0]{0,20}"), 0..4)), 0..3),
        message in "[^\n\r\0]{0,300}",
        octets in any::<bool>(),
    ) {
        let escaped = |value: &str| value.replace('\\', "\\\\").replace('"', "\\\"").replace(']', "\\]");
        let mut data = String::new();
        for (id, values) in &elements {
            data += &format!("[{id}");
            for (name, value) in values {
                data += &format!(" {name}=\"{}\"", escaped(value));
            }
            data.push(']');
        }
        if elements.is_empty() {
            data.push('-');
        }
        let mut text = format!("<{priority}>1 2026-11-21T06:40:31.123456Z {host} {app} {procid} {msgid} {data} {message}");
        if octets {
            text = format!("{} {text}", text.len());
        }
        let seen = read(&settings(), [text.as_bytes()]);
        prop_assert_eq!(seen.records.len(), 1);
        let record = &seen.records[0];
        for (name, value) in [("host", &host), ("app", &app), ("procid", &procid), ("msgid", &msgid)] {
            prop_assert_eq!(field(record, name), Some(&value.as_str().into()));
        }
        // The byte order mark and the end of a message are not part of its text.
        let text = message.strip_prefix('\u{feff}').unwrap_or(&message);
        prop_assert_eq!(field(record, "message"), Some(&text.into()));
        if elements.is_empty() {
            prop_assert_eq!(field(record, "structured_data"), None);
            return Ok(());
        }
        let found = field(record, "structured_data").unwrap().as_map().unwrap();
        prop_assert_eq!(found.len(), elements.len());
        for ((id, values), (found_id, found)) in elements.iter().zip(found) {
            prop_assert_eq!(found_id.as_str(), Some(id.as_str()));
            let mut all = Vec::new();
            for (name, value) in found.as_map().unwrap() {
                match value.as_array() {
                    Some(values) => all.extend(values.iter().map(|value| (name.clone(), value.clone()))),
                    None => all.push((name.clone(), value.clone())),
                }
            }
            let expected: Vec<(rmpv::Value, rmpv::Value)> = values.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into())).collect();
            prop_assert_eq!(all, expected);
        }
    }
}
