//! VRL (Vector Remap Language) in options. Compiles programs and conditions, and gives each message of the compiler a location
//! in the file that contains the text.

use std::{ops::Range, sync::Arc};

use millstream_config::{Node, Place, Problem, Source, read_file};
use millstream_vrl::{Condition, Diagnostic, Options, Program};

use crate::compiling::{self, Kind};

/// The maximum size of a program file in bytes.
const FILE_BYTES_MAX: u64 = 1 << 20;
/// The sort key of problems in program files. These problems are printed after those in configuration files.
const RANK: usize = usize::MAX;

/// A VRL program or condition, and the location of its text.
#[derive(Debug)]
pub(crate) struct Script {
    text: String,
    home: Home,
}

#[derive(Debug)]
enum Home {
    /// In a scalar of the configuration.
    Option(Place),
    /// In a separate file.
    File(Arc<Source>),
}

/// A compiled text and the warnings about it, or the errors.
type Compiled<T> = Result<(T, Vec<Problem>), Vec<Problem>>;

impl Script {
    /// Takes the text from the value of an option.
    pub(crate) fn of_option(option: &Node, text: &str) -> Self {
        Self {
            text: text.to_owned(),
            home: Home::Option(option.place.clone()),
        }
    }

    /// Returns the VRL text.
    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// Reads the text from the file `path`. A relative path starts at the directory of the file that contains `option`.
    pub(crate) fn of_file(option: &Node, path: &str) -> Result<Self, Problem> {
        let resolved = option.place.resolve(path);
        let refused = |why: String| {
            let message = format!("cannot read {}: {why}", resolved.display());
            let help = "a path is relative to the directory of the configuration file";
            Problem::new(&option.place, message).help(help)
        };
        let bytes = read_file(&resolved, FILE_BYTES_MAX);
        let bytes = bytes.map_err(|error| refused(error.to_string()))?;
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            refused(format!("byte {at} of it is not UTF-8"))
        })?;
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text).to_owned();
        let home = Home::File(Source::new(resolved, text.as_str(), RANK));
        Ok(Self { text, home })
    }

    /// Compiles the text as a program.
    pub(crate) fn program(&self, options: &Options) -> Compiled<Program> {
        let compile = Program::compile;
        self.placed(compiling::compile(
            Kind::Program,
            &self.text,
            options,
            compile,
        ))
    }

    /// Compiles the text as a condition.
    pub(crate) fn condition(&self, options: &Options) -> Compiled<Condition> {
        let compile = Condition::compile;
        self.placed(compiling::compile(
            Kind::Condition,
            &self.text,
            options,
            compile,
        ))
    }

    fn placed<T>(&self, compiled: Result<(T, Vec<Diagnostic>), Vec<Diagnostic>>) -> Compiled<T> {
        let place = |all: Vec<Diagnostic>| all.into_iter().map(|one| self.problem(one)).collect();
        match compiled {
            Ok((compiled, warnings)) => Ok((compiled, place(warnings))),
            Err(errors) => Err(place(errors)),
        }
    }

    fn problem(&self, diagnostic: Diagnostic) -> Problem {
        let place = self.place(diagnostic.span);
        let mut problem = match diagnostic.is_warning {
            true => Problem::warning(&place, diagnostic.message),
            false => Problem::new(&place, diagnostic.message),
        };
        problem.help = diagnostic.help;
        problem
    }

    /// Returns the file, line and column of a part of the text. The part is a range of bytes.
    fn place(&self, part: Range<usize>) -> Place {
        match &self.home {
            Home::Option(place) => place.inside(&self.text, part),
            Home::File(file) => Place::of_bytes(file, part),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::rig::options;
    #[cfg(not(feature = "vrl"))]
    use crate::{filter, remap, rig};

    use super::*;

    #[cfg(not(feature = "vrl"))]
    #[test]
    fn a_build_without_vrl_reports_how_to_enable_it_at_the_location_of_the_text() {
        for (component, options, column) in [
            (&remap::COMPONENT, "program: '.a = 1'", 11),
            (&filter::COMPONENT, "where: '.a == 1'", 9),
        ] {
            let problems = rig::found(component, options);
            assert_eq!(problems[0].message, "this build cannot run VRL");
            let help = problems[0].help.as_deref().unwrap();
            assert!(help.contains("--features millstream/vrl"), "{help}");
            assert_eq!(
                (problems[0].place.line, problems[0].place.column),
                (1, column)
            );
        }
    }

    #[test]
    fn a_file_that_cannot_be_a_program_is_refused_with_its_path() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name).display().to_string();
        std::fs::write(at("large"), vec![b' '; (1 << 20) + 1]).unwrap();
        std::fs::write(at("binary"), b".a = \"\xff\"").unwrap();
        for (name, why) in [
            ("missing", "No such file"),
            ("", "but a directory"),
            ("large", "larger than 1 MiB"),
            ("binary", "byte 6 of it is not UTF-8"),
        ] {
            let options = options("{\"file\": \"x\"}");
            let option = options.find("file").unwrap();
            let problem = Script::of_file(option, &at(name)).unwrap_err();
            assert!(problem.message.contains(why), "{}", problem.message);
            assert!(problem.message.contains(&at(name)), "{}", problem.message);
        }
    }

    #[test]
    fn a_byte_order_mark_is_not_part_of_the_program() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("p.vrl");
        std::fs::write(&path, "\u{feff}.a = 1").unwrap();
        let options = options("{\"file\": \"x\"}");
        let option = options.find("file").unwrap();
        let script = Script::of_file(option, &path.display().to_string()).unwrap();
        assert_eq!(script.text, ".a = 1");
        assert_eq!(
            script.place(1..2).to_string(),
            format!("{}:1:2", path.display())
        );
    }
}
