//! Errors and warnings: their location and their text, and which functions are refused.

use std::sync::Arc;

use crate::{Condition, Diagnostic, Options, Program, Remap, functions, rig::one};

fn errors(text: &str) -> Vec<Diagnostic> {
    match Program::compile(text, &Options::default()) {
        Ok(_) => panic!("{text} compiles"),
        Err(errors) => errors,
    }
}

/// Returns the part of the text that the first error points at, and the message of that error.
fn first(text: &str) -> (String, String) {
    let error = errors(text).remove(0);
    (text[error.span].to_owned(), error.message)
}

#[test]
fn errors_point_at_the_text_that_is_wrong() {
    for (text, part, message) in [
        (".a = 1\n.b = nothing(.c)", "nothing", "undefined function"),
        (
            ".a = \"\u{e4}\"; .b = parse_json(.c)",
            "parse_json(.c)",
            "unhandled fallible",
        ),
        (".a = unknown", "unknown", "undefined variable"),
        (".a = (1 +", "+", "syntax error"),
        (".a = \"x", "\"", "string literal"),
        (".a = downcase(5)", "5", "invalid argument type"),
        ("%peer = \"x\"", "%peer =", "read-only"),
        ("%kubernetes.pod = \"x\"", "%kubernetes.pod =", "read-only"),
        ("% = {}", "% =", "read-only"),
        (".a = %hots", "%hots", "a batch has no value `%hots`"),
        (
            "%other.x = 1",
            "%other.x",
            "a batch has no value `%other.x`",
        ),
    ] {
        let (found, why) = first(text);
        assert!(why.to_lowercase().contains(message), "{text}: {why}");
        assert!(
            found.starts_with(part) || part.starts_with(&found),
            "{text}: {found}"
        );
    }
    let all = errors(".a = nothing()\n.b = unknown");
    assert_eq!(all.len(), 2);
    assert!(all[0].span.start < all[1].span.start);
    assert!(
        all[0].rendered.contains("1 \u{2502} .a = nothing()"),
        "{}",
        all[0].rendered
    );
    assert!(
        all.iter()
            .all(|error| !error.is_warning && !error.message.contains('\n'))
    );
}

#[test]
fn unused_values_are_warnings() {
    let (_, warnings) = Program::compile("upcase(\"x\")\n.a = 1", &Options::default()).unwrap();
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].is_warning);
    assert!(warnings[0].message.contains("unused"), "{}", warnings[0]);
    assert_eq!(warnings[0].span.start, 0);
    let (_, warnings) = Program::compile(".a = 1", &Options::default()).unwrap();
    assert_eq!(warnings, []);
}

#[test]
fn functions_that_are_not_pure_are_refused_with_reason_and_alternative() {
    for (text, why, instead) in [
        (
            "log(.a)",
            "runs for every record",
            "put the text into a field",
        ),
        (
            ".a = get_env_var!(\"HOME\")",
            "environment is substituted",
            "",
        ),
        (
            ".a = get_env_var(name: \"HOME\") ?? 1",
            "environment is substituted",
            "",
        ),
        (
            ".a = get_hostname!()",
            "differs from host to host",
            "use %host",
        ),
        (
            ".a = dns_lookup!(\"a.b\", qtype: \"MX\")",
            "wait for the network",
            "exec",
        ),
        (".a = reverse_dns!(.ip)", "wait for the network", "exec"),
        (
            ".a = http_request!(\"http://a\", method: \"get\")",
            "wait for the network",
            "exec",
        ),
        (
            ".a = get_enrichment_table_record!(\"t\", {\"a\": 1})",
            "no enrichment tables",
            "exec",
        ),
        (
            ".a = parse_grok!(.m, \"%{GREEDYDATA}\")",
            "backtrack",
            "parse_regex",
        ),
        (
            ".a = parse_groks!(.m, [\"%{data}\"])",
            "backtrack",
            "parse_regex",
        ),
        (".a = parse_klog!(.m)", "year from the clock", "parse_regex"),
        (".a = md5(\"x\")", "not built in", "exec"),
    ] {
        let all = errors(text);
        let error = all
            .iter()
            .find(|error| error.message.contains("cannot be used here"));
        let error = error.unwrap_or_else(|| panic!("{text}: {all:?}"));
        assert!(error.message.contains(why), "{error}");
        let help = error.help.clone().unwrap_or_default();
        assert!(help.contains(instead), "{text}: {help}");
        let name = text.trim_start_matches(".a = ");
        assert!(name.starts_with(&text[error.span.clone()][..3]), "{error}");
    }
}

#[test]
fn the_functions_of_vrl_are_known_and_none_is_listed_twice() {
    let all = functions::all(&Arc::default());
    let mut names: Vec<&str> = all.iter().map(|one| one.identifier()).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(count > 190, "{count}");
    for name in ["get_env_var", "sha2", "parse_json", "now", "unnest"] {
        assert!(names.contains(&name), "{name}");
    }
}

#[test]
fn conditions_must_be_booleans_and_assign_nothing() {
    let error = |text: &str| match Condition::compile(text, &Options::default()) {
        Ok(_) => panic!("{text} compiles"),
        Err(mut errors) => errors.remove(0),
    };
    let why = error(" .level ");
    assert!(why.message.contains("must be true or false"), "{why}");
    assert_eq!(why.span, 1..7);
    assert!(
        error("to_int(.ms) > 5").message.contains("fallible")
            || error("to_int(.ms) > 5").message.contains("unhandled")
    );
    for text in [
        ".a = 1; true",
        "%tag = \"x\"; true",
        "del(.a) == 1",
        ". = {}; true",
    ] {
        let why = error(text);
        assert!(
            why.rendered.contains("read-only") || why.rendered.contains("mutation"),
            "{}",
            why.rendered
        );
    }
    assert!(Condition::compile("x = 1; x == .a", &Options::default()).is_ok());
}

#[test]
fn nesting_and_length_of_a_program_are_bounded() {
    let nested = format!(".a = {}1{}", "(".repeat(100_000), ")".repeat(100_000));
    assert!(first(&nested).1.contains("nest deeper than"));
    let nested = format!(".a = {}1{}", "[".repeat(120), "]".repeat(120));
    assert!(Program::compile(&nested, &Options::default()).is_ok());
    assert!(first(&".a = 1\n".repeat(200_000)).1.contains("bytes"));
}

#[test]
fn a_time_zone_must_be_a_name_of_the_tz_database() {
    let compile = |zone: &str| {
        let options = Options {
            timezone: zone.to_owned(),
        };
        Program::compile(".a = 1", &options).map(drop)
    };
    assert!(compile("Europe/Berlin").is_ok());
    for zone in ["Mars/Olympus", "", "local"] {
        assert!(
            compile(zone).unwrap_err()[0]
                .message
                .contains("is not a time zone")
        );
    }
}

/// Runs `work` on a thread with a stack of this size.
fn on_stack<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    let thread = std::thread::Builder::new().stack_size(bytes).spawn(work);
    thread.unwrap().join().unwrap()
}

#[test]
fn the_deepest_programs_run_within_the_stack_of_a_data_thread() {
    for text in [
        format!(".x = {}true", "!".repeat(250)),
        format!(".x = to_string(.a) ?? \"\"{}", " + \"a\"".repeat(250)),
        format!(".x = .a == 0{}", " || .a == 1".repeat(250)),
        format!(".x = {}0", "to_int(.a) ?? ".repeat(250)),
        format!("{}1", ".x = ".repeat(250)),
        format!(
            "if .a == 0 {{ .b = 0 }}{}",
            " else if .a == 2 { .b = 1 }".repeat(248)
        ),
        format!("{}.b = 1{}", "if .a != 2 { ".repeat(120), "}".repeat(120)),
        format!(".x = {}1{}", "[".repeat(120), "]".repeat(120)),
        format!(".x{} = 1", ".a".repeat(126)),
        "a = \"b\"\n.x = \"".to_owned() + &"{{ a }}".repeat(120) + "\"",
    ] {
        let start = text.chars().take(40).collect::<String>();
        let program = on_stack(64 << 20, move || {
            Program::compile(&text, &Options::default())
        });
        let Ok((program, _)) = program else {
            panic!("{start}: {program:?}");
        };
        on_stack(2 << 20, move || {
            let batch = one("{\"a\":1}");
            let mut remap = Remap::new(&program);
            remap.begin(&batch, 0);
            remap.run(0, &mut Vec::new());
            drop((remap, program.clone(), program));
        });
    }
}
