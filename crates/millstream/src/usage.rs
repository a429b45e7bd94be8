//! Hints for command lines in the style of other programs.

use clap::error::{ContextKind, ContextValue, ErrorKind};

/// Options that name a configuration file in other programs.
const FILE_OPTIONS: [&str; 6] = ["-c", "-f", "--config", "--config-file", "--conf", "--file"];

/// Options that only check a configuration in other programs.
const CHECK_OPTIONS: [&str; 6] = ["-t", "-T", "--dry-run", "--validate", "--test", "--check"];

/// Commands that take configurations as arguments.
const COMMANDS: [&str; 4] = ["run", "check", "explain", "test"];

/// Commands of other programs, each with the command of this program that does the same.
const TRANSLATED: [(&str, &str); 12] = [
    ("validate", "check"),
    ("verify", "check"),
    ("lint", "check"),
    ("configtest", "check"),
    ("start", "run"),
    ("serve", "run"),
    ("agent", "run"),
    ("graph", "explain"),
    ("list", "components"),
    ("plugins", "components"),
    ("generate", "example"),
    ("init", "example"),
];

/// Returns a hint with the right command line, if the given command line has the style of another program.
pub fn hint(error: &clap::Error, arguments: &[String]) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        _ => None,
    };
    match error.kind() {
        ErrorKind::UnknownArgument => {
            let option = context(ContextKind::InvalidArg)?;
            option_hint(option.split('=').next()?, arguments)
        }
        ErrorKind::InvalidSubcommand => {
            let word = context(ContextKind::InvalidSubcommand)?;
            command_hint(word, arguments)
        }
        _ => None,
    }
}

fn option_hint(option: &str, arguments: &[String]) -> Option<String> {
    let first = arguments.first().map(String::as_str);
    let command = first.filter(|word| COMMANDS.contains(word));
    if command.is_none() && first.is_some_and(|word| !word.starts_with('-')) {
        return None;
    }
    let file = files(arguments);
    if CHECK_OPTIONS.contains(&option) {
        return Some(format!(
            "`millstream check` checks a configuration: millstream check {file}"
        ));
    }
    let command = command.unwrap_or("run");
    FILE_OPTIONS
        .contains(&option)
        .then(|| format!("give the file as an argument: millstream {command} {file}"))
}

fn command_hint(word: &str, arguments: &[String]) -> Option<String> {
    if let Some((_, ours)) = TRANSLATED.iter().find(|(theirs, _)| *theirs == word) {
        let file = match COMMANDS.contains(ours) {
            true => format!(" {}", files(arguments.get(1..).unwrap_or_default())),
            false => String::new(),
        };
        return Some(format!(
            "it is called `{ours}` here: millstream {ours}{file}"
        ));
    }
    let is_file = word.ends_with(".yaml") || word.ends_with(".yml") || word.contains('/');
    is_file.then(|| format!("say what to do with the file: millstream run {word}"))
}

/// The configuration files of a command line, or a placeholder.
fn files(arguments: &[String]) -> String {
    let mut files = Vec::new();
    for argument in arguments {
        let value = match argument.split_once('=') {
            Some((option, value)) if FILE_OPTIONS.contains(&option) => value,
            _ if argument.starts_with('-') || COMMANDS.contains(&argument.as_str()) => continue,
            _ => argument,
        };
        files.push(value);
    }
    match files[..] {
        [] => "FILE".to_owned(),
        _ => files.join(" "),
    }
}
