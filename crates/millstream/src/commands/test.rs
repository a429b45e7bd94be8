//! `millstream test`: runs the cases, which are tests of processors in the configuration. Shows how the records that leave a processor
//! differ from the expected ones.

use std::path::PathBuf;

use clap::Args;
use millstream_pipeline::failure::Failure;

use crate::{
    cases::{Case, Difference, Side},
    config, exit,
    page::{self, Colour},
};

/// Run the cases of processors, and show the differences from the expected records. Starts nothing.
///
/// A case gives records to a processor and names the records that should leave it. All records count: those that leave by each port of
/// the processor, and those that the processor rejects.
#[derive(Args)]
#[command(after_help = "\
A case stands beside the processor that it tests:
  processors:
    records:
      type: parse
      inputs: [app]
      as: json
      on_error: reject
      tests:
        - name: JSON becomes fields
          given: ['{\"level\":\"info\",\"ms\":12}']
          expect: [{ level: info, ms: 12 }]
        - name: other text is rejected
          given: ['out of memory']
          expect: []
          rejected: ['out of memory']
`millstream components config` describes cases.

Examples:
  millstream test                        the configuration of /etc/millstream
  millstream test agent.yaml site.d/     files and directories, merged

Exit codes: 0 all cases hold, 1 one does not, 78 wrong configuration")]
pub struct Test {
    /// Configuration files and directories (`*.yaml` in order of name); they are merged.
    #[arg(default_value = "/etc/millstream")]
    config: Vec<PathBuf>,
}

/// Printed if there are no cases.
const NO_CASES: &str =
    "there are no cases: write `tests` beside a processor; `millstream test --help` shows how";

impl Test {
    /// Runs all cases; returns the exit code.
    pub fn execute(self) -> u8 {
        let loaded = match config::read(&self.config) {
            Ok(loaded) => loaded,
            Err(problems) => return config::complain(&problems),
        };
        config::show(&loaded.warnings);
        if loaded.cases.is_empty() {
            return page::complain(NO_CASES, exit::DRAINED);
        }
        let (mut held, mut failed) = (0, 0);
        for case in &loaded.cases {
            let outcome = case.run(&loaded.plan);
            match &outcome {
                Ok(differences) if differences.is_empty() => held += 1,
                _ => failed += 1,
            }
            page::print_coloured(&lines(case, &outcome));
        }
        let count = page::count(held + failed, "case");
        if failed == 0 {
            return page::print(&format!("{count}: {held} ok\n"));
        }
        page::print(&format!(
            "{count}: {held} ok, {failed} FAILED (- expected, + found)\n"
        ));
        exit::FAILED
    }
}

/// The lines about a case. The first one is like `ok      agent.yaml:12 records: JSON becomes fields`.
fn lines(case: &Case, outcome: &Result<Vec<Difference>, Failure>) -> Vec<(Colour, String)> {
    let (file, line) = (case.place.file.path().display(), case.place.line);
    let head = |word| format!("{word:<6}  {file}:{line} {}: {}", case.node, case.name);
    let (first, differences) = match outcome {
        Ok(none) if none.is_empty() => return vec![(Colour::None, head("ok"))],
        Ok(differences) => ((Colour::Red, head("FAILED")), &differences[..]),
        Err(failure) => {
            let why = (Colour::Red, format!("    {failure}"));
            return vec![(Colour::Red, head("FAILED")), why];
        }
    };
    [first]
        .into_iter()
        .chain(differences.iter().flat_map(sides))
        .collect()
}

fn sides(difference: &Difference) -> Vec<(Colour, String)> {
    let sides = difference.lines.iter().map(|side| match side {
        Side::Expected(text) => (Colour::Red, format!("    - {text}")),
        Side::Found(text) => (Colour::Green, format!("    + {text}")),
    });
    let first = (Colour::None, format!("  {}", difference.record));
    [first].into_iter().chain(sides).collect()
}
