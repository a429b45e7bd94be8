//! Finds changed top-level settings that only a restart can apply.

use std::sync::Arc;

use millstream_config::Settings;
use serde_json::Value as Json;

/// A change of the configuration that needs a restart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// The setting.
    pub what: Arc<str>,
    /// The reason for the restart.
    pub why: &'static str,
}

/// The top-level settings that differ. The time zone is left out, because nodes read it as an option.
pub fn changed_settings(new: &Settings, running: &Settings) -> Vec<Waiting> {
    let fields = |settings: &Settings| match serde_json::to_value(settings) {
        Ok(Json::Object(fields)) => fields,
        _ => serde_json::Map::new(),
    };
    let api_differs = new.api != running.api;
    let (new, running) = (fields(new), fields(running));
    let names = new
        .keys()
        .chain(running.keys().filter(|name| !new.contains_key(*name)));
    // The JSON form masks the tokens of `api`, so `api` is also compared directly.
    let differs = |name: &&String| {
        let differs = new.get(*name) != running.get(*name);
        *name != "timezone" && (differs || *name == "api" && api_differs)
    };
    let waiting = |name: &String| Waiting {
        what: name.as_str().into(),
        why: "the setting has changed",
    };
    names.filter(differs).map(waiting).collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::PathBuf};

    use super::*;
    use crate::config;

    fn settings(text: &str) -> Settings {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("millstream.yaml");
        let nodes =
            "sources: { in: { type: stdin } }\nsinks: { out: { type: discard, inputs: [in] } }\n";
        fs::write(&path, format!("data_dir: /d\n{nodes}{text}")).unwrap();
        match config::read(&[PathBuf::from(&path)]) {
            Ok(loaded) => loaded.settings,
            Err(problems) => panic!("{}", problems.render(false)),
        }
    }

    fn names(new: &Settings, running: &Settings) -> Vec<String> {
        let changed = changed_settings(new, running);
        changed.into_iter().map(|it| it.what.to_string()).collect()
    }

    #[test]
    fn settings_that_differ_are_named() {
        let running = settings("");
        let mut new = running.clone();
        assert_eq!(changed_settings(&new, &running), []);
        new.host = "elsewhere".to_owned();
        new.timezone = "Europe/Berlin".to_owned();
        assert_eq!(names(&new, &running), ["host"]);
    }

    #[test]
    fn another_token_is_a_changed_setting_although_it_prints_the_same() {
        let with = |token: &str| {
            settings(&format!(
                "api: {{ tokens: [{{ name: ops, token: {token} }}] }}"
            ))
        };
        let (old, new) = (with("0123456789abcdef"), with("fedcba9876543210"));
        assert_eq!(changed_settings(&old, &old), []);
        assert_eq!(names(&new, &old), ["api"]);
    }
}
