//! Checks the directories that sources mount. Millstream answers every request to a mount itself, so no file that it uses may be
//! below one: it would wait for itself.

use std::path::{Path, PathBuf};

use millstream_config::Problem;
use millstream_pipeline::{
    layout::Entry,
    plan::{Plan, SourcePlan},
};
use millstream_sys::disk::resolved;

/// A mount of the plan.
struct Mount<'a> {
    source: &'a SourcePlan,
    entry: &'a Entry,
    /// The directory, without symbolic links.
    at: PathBuf,
}

impl Mount<'_> {
    fn problem(&self, message: impl Into<String>) -> Problem {
        self.entry.options.problem_at("mount", message)
    }

    fn name(&self) -> &str {
        &self.source.name
    }
}

/// Finds mounts that hide files of Millstream or that cannot be made. `files`: the configuration.
pub fn problems(plan: &Plan, entries: &[Entry], files: &[PathBuf]) -> Vec<Problem> {
    let find = |name: &str| entries.iter().find(|entry| *entry.name == *name);
    let mounts = plan.sources.iter().filter_map(|source| {
        Some(Mount {
            at: resolved(source.source.mount()?),
            entry: find(&source.name)?,
            source,
        })
    });
    let mounts: Vec<_> = mounts.collect();
    let mut problems = Vec::new();
    for (index, mount) in mounts.iter().enumerate() {
        let directory = plan.settings.data_dir.join("sources").join(mount.name());
        if let Some((option, why)) = mount.source.source.obstacle(&directory) {
            problems.push(mount.entry.options.problem_at(option, why));
        }
        problems.extend(own_files(mount, &plan.settings.data_dir, files));
        problems.extend(
            mounts[..index]
                .iter()
                .filter_map(|other| nested(mount, other)),
        );
    }
    let sinks = plan.sinks.iter().filter_map(|sink| {
        let (option, path) = sink.sink.writes()?;
        Some((&*sink.name, option.to_owned(), path))
    });
    let sources = plan.sources.iter().flat_map(|source| {
        let writes = source.source.writes().into_iter();
        writes.map(|(option, path)| (&*source.name, option, path))
    });
    for (name, option, path) in sinks.chain(sources) {
        let path = resolved(&path);
        let mount = mounts.iter().find(|mount| path.starts_with(&mount.at));
        if let Some((mount, entry)) = mount.zip(find(name)) {
            let message = format!(
                "`{name}` writes below {}, which `{}` mounts",
                mount.at.display(),
                mount.name()
            );
            let help = "it would wait for Millstream itself, and its records could come back: write to another directory";
            problems.push(entry.options.problem_at(&option, message).help(help));
        }
    }
    problems
}

/// `data_dir` and the configuration itself.
fn own_files(mount: &Mount<'_>, data_dir: &Path, files: &[PathBuf]) -> Vec<Problem> {
    let mut problems = Vec::new();
    let data_dir = resolved(data_dir);
    let at = mount.at.display();
    if data_dir.starts_with(&mount.at) {
        let message = format!(
            "`data_dir` ({}) is below the mount {at}",
            data_dir.display()
        );
        let help =
            "Millstream would wait for itself: set `data_dir` to a directory outside the mount";
        problems.push(mount.problem(message).help(help));
    } else if mount.at.starts_with(&data_dir) {
        let message = format!(
            "the mount {at} is below `data_dir` ({})",
            data_dir.display()
        );
        let help = "only Millstream may use `data_dir`: mount a directory outside it";
        problems.push(mount.problem(message).help(help));
    }
    let hidden = files.iter().map(|file| resolved(file));
    if let Some(file) = hidden.into_iter().find(|file| file.starts_with(&mount.at)) {
        let message = format!(
            "the mount {at} would hide the configuration {}",
            file.display()
        );
        problems.push(mount.problem(message).help("move one of them"));
    }
    problems
}

/// The error about two mounts of which one is the other or below it.
fn nested(mount: &Mount<'_>, other: &Mount<'_>) -> Option<Problem> {
    let (at, other_at) = (mount.at.display(), other.at.display());
    let message = if mount.at == other.at {
        format!(
            "`{}` and `{}` mount the same directory, {at}",
            mount.name(),
            other.name()
        )
    } else if mount.at.starts_with(&other.at) || other.at.starts_with(&mount.at) {
        format!(
            "`{}` mounts {at} and `{}` mounts {other_at}: one hides the other",
            mount.name(),
            other.name()
        )
    } else {
        return None;
    };
    let help = "use one source with several rules, or separate directories";
    Some(mount.problem(message).help(help))
}
