//! Builds a plan (the checked graph of nodes) from files: loads the configuration, finds the components, lays out the graph.

mod interface;
mod mounts;

use std::{
    io::{IsTerminal, Write},
    path::PathBuf,
    time::Duration,
};

use millstream_channels::memory::SIZE_MAX;
use millstream_config::{
    Api, Entry, Environment, Key, Node, Period, Problem, Problems, Section, Settings, Severity,
    Tree, Value, Word, load, load_only, unknown,
};
use millstream_net::ServerTls;
use millstream_pipeline::{
    layout::{self, Laid},
    plan::{Plan, RunSettings},
};
use millstream_processors::Compiling;
use millstream_wire::zone;

use crate::{
    cases::{self, Case},
    exit, registry,
};

/// A valid configuration.
pub struct Loaded {
    /// The graph.
    pub plan: Plan,
    /// The nodes of the graph.
    pub entries: Vec<layout::Entry>,
    /// The settings at the top.
    pub settings: Settings,
    /// Whether the configuration sets `api.listen`.
    pub api_is_chosen: bool,
    /// TLS of the HTTP interface.
    pub api_tls: Option<ServerTls>,
    /// The cases: tests of processors, written in the configuration.
    pub cases: Vec<Case>,
    /// Warnings about parts that work but are probably mistakes.
    pub warnings: Problems,
    /// Notes about parts that work as intended but could cost less.
    pub notes: Problems,
}

/// Loads and checks files and directories. On failure returns all errors together.
pub fn read(paths: &[PathBuf]) -> Result<Loaded, Problems> {
    let _compiling = Compiling::begin();
    let loaded = load(paths, &Environment::of_process())?;
    let sections = loaded.tree.sections();
    let mut problems = loaded.problems.0;
    problems.extend(sections.problems.0);
    problems.extend(wrong_settings(&sections.settings, &loaded.tree));
    let api_tls = match &sections.api {
        Some(api) => interface::tls(api).unwrap_or_else(|wrong| {
            problems.extend(wrong);
            None
        }),
        None => None,
    };
    let zone = loaded.tree.root.entry(TIMEZONE);
    let zone = zone.filter(|_| zone::find(&sections.settings.timezone).is_some());
    let api_is_chosen = loaded.tree.root.find("api.listen").is_some();
    if !problems.iter().any(is_error) {
        problems.extend(empty_sections(&loaded.tree));
    }
    let mut nodes = sections.nodes;
    let cases = take_cases(&mut nodes, &mut problems);
    let entries: Vec<_> = nodes
        .into_iter()
        .filter_map(|node| find(node, zone, &mut problems))
        .collect();
    let names = Section::ALL
        .into_iter()
        .flat_map(|it| loaded.tree.names(it));
    let left_out: Vec<_> = names
        .filter(|name| entries.iter().all(|entry| *entry.name != **name))
        .map(str::to_owned)
        .collect();
    let laid = lay_out(entries.clone(), &left_out, &sections.settings);
    if let Ok(laid) = &laid {
        problems.extend(mounts::problems(&laid.plan, &entries, paths));
        problems.extend(cases.iter().flat_map(|case| case.problems(&laid.plan)));
    }
    match laid {
        Ok(Laid {
            plan,
            warnings,
            notes,
        }) if !problems.iter().any(is_error) => {
            problems.extend(warnings);
            Ok(Loaded {
                plan,
                entries,
                settings: sections.settings,
                api_is_chosen,
                api_tls,
                cases,
                warnings: Problems(problems),
                notes: Problems(notes),
            })
        }
        Ok(_) => Err(Problems(problems)),
        Err(found) => {
            problems.extend(found);
            Err(Problems(problems))
        }
    }
}

/// Lays out the graph of `entries`. `left_out` has the names of nodes that are missing from `entries` because they have errors.
pub fn lay_out(
    entries: Vec<layout::Entry>,
    left_out: &[String],
    settings: &Settings,
) -> Result<Laid, Vec<Problem>> {
    layout::lay_out(entries, left_out, run_settings(settings), SIZE_MAX as usize)
}

/// Removes the cases from the options of processors and reads them.
fn take_cases(nodes: &mut [Entry], problems: &mut Vec<Problem>) -> Vec<Case> {
    let processors = nodes.iter_mut();
    let processors = processors.filter(|node| node.section == Section::Processors);
    let mut all = Vec::new();
    for node in processors {
        if let Some((_, tests)) = node.options.take(cases::TESTS) {
            let name = node.name.text.as_str().into();
            all.extend(cases::read(&name, &tests, problems));
        }
    }
    all
}

fn is_error(problem: &Problem) -> bool {
    problem.severity == Severity::Error
}

/// Returns an error if the configuration has no sources or no sinks, because such a configuration does nothing. Empty if it has both.
fn empty_sections(tree: &Tree) -> Vec<Problem> {
    let needed = [Section::Sources, Section::Sinks];
    let is_empty = |section: &Section| tree.names(*section).next().is_none();
    let empty: Vec<_> = needed.into_iter().filter(is_empty).collect();
    let message = match empty[..] {
        [] => return Vec::new(),
        [section] => format!("the configuration has no {}", section.name()),
        _ => "the configuration has no sources and no sinks".to_owned(),
    };
    let help =
        "`millstream example agent` and `millstream example aggregator` print one to start from";
    vec![Problem::new(&tree.root.place, message).help(help)]
}

/// Errors in settings whose type is right but whose value cannot be used.
fn wrong_settings(settings: &Settings, tree: &Tree) -> Vec<Problem> {
    let mut problems = Vec::new();
    let at = |path: &str, message: String| tree.root.problem_at(path, message);
    if zone::find(&settings.timezone).is_none() {
        let message = format!("no time zone is called `{}`", settings.timezone);
        problems.push(at("timezone", message).help(zone::HELP));
    }
    if settings
        .host
        .contains(|c: char| c.is_control() || c.is_whitespace())
    {
        let message = "a host's name has no spaces and no control characters".to_owned();
        problems.push(at("host", message));
    }
    problems.extend(wrong_graphite(settings, tree));
    problems.extend(interface::problems(&settings.api, &tree.root));
    problems
}

/// Errors in the settings of Graphite.
fn wrong_graphite(settings: &Settings, tree: &Tree) -> Vec<Problem> {
    let Some(graphite) = &settings.graphite else {
        return Vec::new();
    };
    let mut problems = Vec::new();
    let mut refuse = |path: &str, message: String, help: &str| {
        problems.push(tree.root.problem_at(path, message).help(help));
    };
    let port = graphite.endpoint.rsplit_once(':');
    let port = port.filter(|(host, _)| !host.is_empty());
    if port.is_none_or(|(_, port)| port.parse::<u16>().is_err()) {
        let message = format!("`{}` is no host and port", graphite.endpoint);
        refuse(
            "graphite.endpoint",
            message,
            "such as `graphite.example:2003`",
        );
    }
    let is_plain = |it: char| it.is_ascii_alphanumeric() || matches!(it, '-' | '_');
    let is_part = |part: &str| !part.is_empty() && part.chars().all(is_plain);
    if !graphite.prefix.split('.').all(is_part) {
        let message = format!("`{}` is no path of Graphite", graphite.prefix);
        let help = "names of letters, digits, `-` and `_`, with a dot between two of them";
        refuse("graphite.prefix", message, help);
    }
    if graphite.interval < Period::secs(1) {
        let message = "the interval is shorter than 1 s".to_owned();
        refuse(
            "graphite.interval",
            message,
            "10s is the step that carbon's examples keep",
        );
    }
    problems
}

/// Reads only the part of the setting `api` that a client needs: `listen`, and whether `tls` is set. All other options and the rest of the
/// configuration are not read, because they may refer to secrets that only the service can read.
pub fn api(paths: &[PathBuf]) -> Result<Api, Problems> {
    let options = ["api.listen", "api.tls"];
    let mut loaded = load_only(paths, &Environment::of_process(), &options)?;
    let Some((_, mut api)) = loaded.tree.root.take("api") else {
        return Ok(Api::default());
    };
    let tls = api.take("tls").filter(|(_, tls)| !tls.is_null());
    let api = api.read::<Api>().map_err(|wrong| {
        loaded.problems.extend(wrong);
        loaded.problems
    })?;
    Ok(Api {
        tls: tls.map(|_| true.into()),
        ..api
    })
}

/// The `data_dir` of a configuration. The rest of the configuration is not read, because it may refer to secrets that only the service can
/// read.
pub fn data_dir(paths: &[PathBuf]) -> Result<PathBuf, Problems> {
    let mut loaded = load_only(paths, &Environment::of_process(), &["data_dir"])?;
    let settings = loaded.tree.root.read::<Settings>().map_err(|wrong| {
        loaded.problems.extend(wrong);
        loaded.problems
    })?;
    Ok(settings.data_dir)
}

/// The option of nodes that defaults to a top-level setting.
const TIMEZONE: &str = "timezone";

/// Finds the component of a node; adds a problem if there is none. `zone` is the top-level setting `timezone`. If the component has an
/// option `timezone` that the node does not set, the setting becomes this option of the node.
fn find(
    mut node: Entry,
    zone: Option<(&Key, &Node)>,
    problems: &mut Vec<Problem>,
) -> Option<layout::Entry> {
    let section = node.section.name();
    let Some(component) = registry::find(section, &node.kind.text) else {
        let known: Vec<_> = registry::all()
            .filter(|c| registry::section(c) == section)
            .map(|c| c.name)
            .collect();
        problems.push(unknown(
            Word::Type,
            &node.kind.text,
            &node.kind.place,
            &known,
        ));
        return None;
    };
    let schema = (component.schema)();
    if let (Some((key, value)), Value::Map(options)) = (zone, &mut node.options.value)
        && schema.pointer(&format!("/properties/{TIMEZONE}")).is_some()
        && options.get(TIMEZONE).is_none()
    {
        options.entries.push((key.clone(), value.clone()));
    }
    let (name, place) = (node.name.text.as_str().into(), node.name.place);
    Some(layout::Entry {
        name,
        place,
        component,
        options: node.options,
    })
}

fn run_settings(settings: &Settings) -> RunSettings {
    RunSettings {
        data_dir: settings.data_dir.clone(),
        rejected: settings.rejected,
        memory_max: usize::try_from(settings.memory_bytes()).unwrap_or(usize::MAX),
        threads: settings.thread_count(),
        host: host(settings).into(),
    }
}

/// The name of this machine: the setting `host`, or else the system's.
pub fn host(settings: &Settings) -> String {
    if !settings.host.is_empty() {
        return settings.host.clone();
    }
    let system = rustix::system::uname();
    system.nodename().to_string_lossy().into_owned()
}

/// Prints problems to stderr, and returns the exit code of an invalid configuration.
pub fn complain(problems: &Problems) -> u8 {
    show(problems);
    let (errors, _) = problems.counts();
    let _ = writeln!(
        std::io::stderr(),
        "{errors} error{}; nothing was started",
        if errors == 1 { "" } else { "s" }
    );
    exit::CONFIG
}

/// Prints problems to stderr. A closed stderr is ignored.
pub fn show(problems: &Problems) {
    let _ = std::io::stderr().write_all(rendered(problems).as_bytes());
}

/// The text of problems for stderr.
pub fn rendered(problems: &Problems) -> String {
    problems.render(std::io::stderr().is_terminal())
}

/// Parses a duration on the command line.
pub fn period(text: &str) -> Result<Duration, String> {
    text.parse::<millstream_config::Period>()
        .map(millstream_config::Period::as_duration)
        .map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// The facts that commands read from a configuration: the addresses of the instance, whether it has TLS, and its `data_dir`.
    fn learnt(yaml: &str) -> Result<(Vec<String>, bool, PathBuf), String> {
        let directory = tempfile::tempdir().unwrap();
        let paths = [directory.path().join("a.yaml")];
        fs::write(&paths[0], yaml).unwrap();
        let api = api(&paths).map_err(|problems| problems.to_string())?;
        let data_dir = data_dir(&paths).map_err(|problems| problems.to_string())?;
        Ok((api.listen.to_vec(), api.tls.is_some(), data_dir))
    }

    #[test]
    fn commands_find_an_instance_and_its_data_without_reading_secrets() {
        let yaml = "data_dir: /d\n\
                    graphite: { endpoint: '${NONE_SUCH}' }\n\
                    api:\n\
                    \x20 listen: 10.0.0.1:1\n\
                    \x20 tls: { cert: c.pem, key: '${NONE_SUCH}/key.pem' }\n\
                    \x20 tokens: [{ name: a, token: '${file:none.token}' }]\n\
                    sinks: { a: { type: http, auth: { bearer: '${NONE_SUCH}' } } }\n";
        let wanted = (vec!["10.0.0.1:1".to_owned()], true, PathBuf::from("/d"));
        assert_eq!(learnt(yaml), Ok(wanted));
        let defaults = Settings::default();
        let wanted = (defaults.api.listen.to_vec(), false, defaults.data_dir);
        assert_eq!(learnt("host: '${NONE_SUCH}'"), Ok(wanted));
    }

    #[test]
    fn commands_report_an_error_in_what_they_need_instead_of_using_the_default() {
        for (yaml, wanted) in [
            (
                "data_dir: '${NONE_SUCH}'",
                "the environment variable `NONE_SUCH` is not set",
            ),
            ("data_dir: ''", "must name a directory"),
            (
                "api: { listen: '${NONE_SUCH}:1' }",
                "the environment variable `NONE_SUCH` is not set",
            ),
            ("api: 5", "must be a map"),
        ] {
            let text = learnt(yaml).unwrap_err();
            assert!(text.contains(wanted), "{yaml}: {text}");
        }
    }
}
