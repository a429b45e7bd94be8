//! `millbench verify`: reads outputs and checks whether every record arrived, independently of the programs that wrote them.
//!
//! It counts the records in the outputs, and queries no program. The number of sent records comes from the end records, from the
//! generator's ledger or from `--sent`; the report names the source. The exit code is 0 only if everything is right.

mod account;
mod read;
mod report;

use std::{collections::BTreeMap, path::PathBuf, process::ExitCode, time::Instant};

use clap::{Args, ValueEnum};

use crate::{
    Failure,
    generate::{LedgerAccount, run_id},
    record::FlowId,
};
use account::Account;
use read::Outputs;
pub use report::Report;
use report::{Basis, FlowReport};

/// Checks whether every record of `millbench generate` arrived in any number of outputs.
///
/// Reads raw lines, lines with a prefix, and JSON lines, also from .gz files. Reads all files
/// below a directory, except hidden ones. A record counts as reordered if it appears for the
/// first time after a later record of its flow in the same file.
///
/// Exit code 0: every record that was sent arrived, once, in order and undamaged.
/// 1: otherwise; the last line gives the reasons.
///
/// Examples:
///   millbench verify out.log
///   millbench verify /srv/logs --ledger sent.ledger --allow duplicated
///   millbench verify out.log --as flume
#[derive(Args, Clone, Debug)]
#[command(verbatim_doc_comment)]
pub struct Options {
    /// Files and directories
    #[arg(required = true, value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// The generator's ledger; all records that it lists as acknowledged must have arrived (may be given several times)
    #[arg(long, value_name = "PATH")]
    ledger: Vec<PathBuf>,
    /// How many records were sent: N for every flow, or FLOW=N for one flow, named as in the report's first column
    #[arg(long, value_name = "[FLOW=]N", value_parser = sent)]
    sent: Vec<(Option<String>, u64)>,
    /// Count only the records of this run, and ignore others
    #[arg(long, value_name = "HEX", value_parser = run_id)]
    run: Option<u32>,
    /// Defects that do not change the exit code
    #[arg(long, value_enum, value_delimiter = ',', value_name = "WHAT")]
    allow: Vec<Defect>,
    /// Print the report as JSON
    #[arg(long, conflicts_with = "form")]
    json: bool,
    /// Print the report in another tool's format
    #[arg(long = "as", id = "form", value_enum, value_name = "FORM")]
    form: Option<Form>,
}

/// Report formats of other tools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Form {
    /// flume-load-gen's integrity report
    Flume,
}

/// The kinds of defects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Defect {
    /// Records that did not arrive
    Lost,
    /// Records that arrived more than once
    Duplicated,
    /// Records that arrived after later ones
    Reordered,
    /// Lines without a whole record
    Corrupt,
    /// Flows without a known number of records
    Unended,
}

fn sent(text: &str) -> Result<(Option<String>, u64), String> {
    let (flow, count) = match text.split_once('=') {
        Some((flow, count)) => (Some(flow.to_owned()), count),
        None => (None, text),
    };
    Ok((flow, crate::units::count(count)?))
}

/// Runs the command.
pub fn run(options: &Options) -> Result<ExitCode, Failure> {
    let report = verify(options)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&report)?);
    } else if options.form == Some(Form::Flume) {
        print!("{}", report.flume());
    } else {
        print!("{}", report.text());
    }
    Ok(match report.right {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

/// Verifies these paths, with no defect allowed.
pub fn strict(paths: Vec<PathBuf>) -> Result<Report, Failure> {
    verify(&Options {
        paths,
        ledger: Vec::new(),
        sent: Vec::new(),
        run: None,
        allow: Vec::new(),
        json: false,
        form: None,
    })
}

fn verify(options: &Options) -> Result<Report, Failure> {
    let started = Instant::now();
    let mut outputs = Outputs {
        only_run: options.run,
        ..Outputs::default()
    };
    let mut known = BTreeMap::new();
    for path in &options.ledger {
        let name = |error| Failure::Other(format!("ledger {}: {error}", path.display()));
        let ledger = LedgerAccount::read(path).map_err(name)?;
        let ledger =
            ledger.ok_or_else(|| Failure::Other(format!("{}: an empty ledger", path.display())))?;
        ledger_flows(&ledger, options.run, &mut known)?;
    }
    for flow in known.keys() {
        outputs.flows.entry(*flow).or_default();
    }
    for path in read::files(&options.paths)? {
        outputs.read(&path)?;
    }
    let flows: Vec<FlowReport> = outputs
        .flows
        .iter()
        .map(|(id, account)| flow(*id, account, known.get(id), options))
        .collect();
    let mut report = Report {
        right: true,
        wrong: Vec::new(),
        flows,
        corrupt: outputs.corrupt,
        corrupt_lines: outputs.named,
        other_runs: outputs.other_runs,
        files: outputs.files,
        bytes: outputs.bytes,
        seconds: started.elapsed().as_secs_f64(),
    };
    judge(&mut report, &options.allow);
    Ok(report)
}

/// The records that must have arrived, according to a ledger.
struct Known {
    /// The total number of the flow's records; `None` if its end record was not acknowledged.
    ends: Option<u64>,
    /// Every number below this one was acknowledged.
    floor: u64,
    /// Acknowledged spans above the floor: first -> count.
    above: BTreeMap<u64, u32>,
}

fn ledger_flows(
    ledger: &LedgerAccount,
    only: Option<u32>,
    known: &mut BTreeMap<FlowId, Known>,
) -> Result<(), Failure> {
    let run = ledger.setting("run").and_then(|run| run_id(run).ok());
    let flows = ledger
        .setting("flows")
        .and_then(|flows| flows.parse::<u16>().ok());
    let (Some(run), Some(flows)) = (run, flows) else {
        return Err(Failure::Other(
            "the ledger's first line names no run".into(),
        ));
    };
    if only.is_some_and(|only| only != run) {
        return Ok(());
    }
    for flow in 0..flows {
        let page = ledger.flows.get(&flow).cloned().unwrap_or_default();
        let entry = Known {
            ends: page.ends.filter(|_| page.ended),
            floor: page.floor,
            above: page.above,
        };
        known.insert(FlowId { run, flow }, entry);
    }
    Ok(())
}

fn flow(id: FlowId, account: &Account, known: Option<&Known>, options: &Options) -> FlowReport {
    let name = id.to_string();
    let given = options
        .sent
        .iter()
        .rfind(|(flow, _)| flow.as_ref().is_none_or(|flow| *flow == name));
    let (sent, basis) = match (given, account.end, known) {
        (Some((_, sent)), _, _) => (Some(*sent), Basis::Given),
        (None, Some(end), _) => (Some(end), Basis::EndRecord),
        (
            None,
            None,
            Some(Known {
                ends: Some(ends), ..
            }),
        ) => (Some(*ends), Basis::Ledger),
        (None, None, Some(known)) => {
            let acked = known
                .above
                .values()
                .map(|count| u64::from(*count))
                .sum::<u64>();
            (Some(known.floor + acked), Basis::Acknowledged)
        }
        (None, None, None) => (None, Basis::Unknown),
    };
    let mut report = FlowReport {
        flow: name,
        sent,
        basis,
        received: account.received,
        distinct: account.distinct,
        lost: 0,
        duplicated: account.duplicated,
        reordered: account.reordered,
        impossible: account.contradictions + account.absurd,
        end_records: account.ends,
        missing_ranges: 0,
        missing: Vec::new(),
    };
    let missing = match (basis, known) {
        (Basis::Acknowledged, Some(known)) => {
            let mut missing = account.missing(known.floor);
            for (first, count) in &known.above {
                let holes = account.missing(first + u64::from(*count));
                missing.extend(holes.into_iter().filter_map(|hole| {
                    let start = hole.start.max(*first);
                    (start < hole.end).then_some(start..hole.end)
                }));
            }
            missing
        }
        _ => account.missing(sent.unwrap_or(account.above)),
    };
    report.set_missing(&missing);
    let exact = matches!(basis, Basis::EndRecord | Basis::Ledger | Basis::Given);
    if exact && sent.is_some_and(|sent| account.above > sent) {
        report.impossible += account.above - sent.unwrap_or(0);
    }
    report
}

/// Lists the defects in `report.wrong`, and clears `report.right` if one of them is not allowed.
fn judge(report: &mut Report, allow: &[Defect]) {
    let unended = |flow: &FlowReport| u64::from(flow.basis == Basis::Unknown);
    let found = [
        (report.sum(|flow| flow.lost), Some(Defect::Lost), "lost"),
        (
            report.sum(|flow| flow.duplicated),
            Some(Defect::Duplicated),
            "duplicated",
        ),
        (
            report.sum(|flow| flow.reordered),
            Some(Defect::Reordered),
            "reordered",
        ),
        (report.corrupt, Some(Defect::Corrupt), "corrupt lines"),
        (
            report.flows.iter().map(unended).sum(),
            Some(Defect::Unended),
            "flows without an end record (give --ledger or --sent, or --allow unended)",
        ),
        (
            report.sum(|flow| flow.impossible),
            None,
            "numbers or end records that were never sent",
        ),
        (
            u64::from(report.flows.is_empty()),
            None,
            "no flow at all: nothing arrived, or these are not the outputs",
        ),
    ];
    for (count, defect, words) in found {
        if count > 0 {
            report.right &= defect.is_some_and(|defect| allow.contains(&defect));
            report.wrong.push(format!("{count} {words}"));
        }
    }
}
