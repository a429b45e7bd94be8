//! Graphs that can run and graphs that cannot.

use std::{collections::HashMap, path::PathBuf};

use millstream_config::RejectedLimits;

use super::*;
use crate::{
    channel::Consumer,
    failure::Failure,
    inlet::Inlet,
    node::{ChannelContext, Checked, LocalFuture, Opened, Placement, SinkContext, SourceContext},
    partition::Partition,
    plan::{ChannelInput, Input, Step, Target},
    processor::Task,
    promise::{Guarantee, Promise},
};

/// A node for any section of the configuration. The option `ports` names the ports of a processor, `lanes` puts a sink on the data threads,
/// and `memory` makes a channel a memory channel.
struct Fake {
    ports: Vec<Arc<str>>,
    in_lanes: bool,
    memory: bool,
}

fn fake(options: &Node) -> Checked<Fake> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Options {
        ports: Vec<String>,
        lanes: bool,
        memory: bool,
    }
    let options: Options = options.read()?;
    let ports: Vec<Arc<str>> = options
        .ports
        .iter()
        .map(|port| port.as_str().into())
        .collect();
    Ok(Fake {
        ports: if ports.is_empty() {
            vec!["".into()]
        } else {
            ports
        },
        in_lanes: options.lanes,
        memory: options.memory,
    })
}

fn at_least_once() -> Promise {
    Promise::new(Guarantee::AtLeastOnce, "")
}

impl Source for Fake {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }
    fn run<'a>(&'a mut self, _: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }
    fn values(&self) -> &'static [&'static str] {
        &[]
    }
    fn promise(&self, _: bool) -> Promise {
        at_least_once()
    }
}

impl ChannelConfig for Fake {
    fn open(&self, _: ChannelContext, _: &[Consumer]) -> Result<Opened, Failure> {
        Err(Failure::us("never opened"))
    }
    fn memory_bytes(&self) -> Option<usize> {
        self.memory.then_some(100)
    }
    fn promise(&self) -> Promise {
        at_least_once()
    }
}

impl Processor for Fake {
    fn ports(&self) -> Vec<Arc<str>> {
        self.ports.clone()
    }
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Err(Failure::us("never started"))
    }
}

impl Sink for Fake {
    fn placement(&self) -> Placement {
        match self.in_lanes {
            true => Placement::DataThreads,
            false => Placement::OwnThread,
        }
    }
    fn run<'a>(&'a self, _: &'a mut Inlet, _: SinkContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }
    fn promise(&self, _: bool) -> Promise {
        at_least_once()
    }
}

const fn component(build: Build) -> Component {
    Component {
        name: "fake",
        summary: "",
        readme: "",
        example: "",
        schema: || schemars::Schema::default(),
        build,
    }
}

static SOURCE: Component = component(Build::Source(|_, options| Ok(Box::new(fake(options)?))));
static CHANNEL: Component = component(Build::Channel(|_, options| Ok(Box::new(fake(options)?))));
static PROCESSOR: Component =
    component(Build::Processor(|_, options| Ok(Arc::new(fake(options)?))));
static SINK: Component = component(Build::Sink(|_, options| Ok(Arc::new(fake(options)?))));

/// Lays out nodes, one per line: `SECTION NAME: OPTIONS`.
fn laid(text: &str) -> Result<Laid, Vec<String>> {
    let mut entries = Vec::new();
    for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
        let (section, node) = line.split_once(' ').unwrap();
        let (name, options) = node.split_once(": ").unwrap();
        let options = Node::parse(name, options).unwrap();
        entries.push(Entry {
            name: name.into(),
            place: options.place.clone(),
            component: match section {
                "source" => &SOURCE,
                "channel" => &CHANNEL,
                "processor" => &PROCESSOR,
                _ => &SINK,
            },
            options,
        });
    }
    let settings = RunSettings {
        data_dir: PathBuf::new(),
        memory_max: 1 << 20,
        threads: 2,
        host: "host".into(),
        rejected: RejectedLimits::default(),
    };
    let text = |problem: &Problem| format!("{}: {}", problem.place, problem.message);
    lay_out(entries, &[], settings, 100).map_err(|problems| problems.iter().map(text).collect())
}

fn plan(text: &str) -> Plan {
    match laid(text) {
        Ok(laid) => laid.plan,
        Err(problems) => panic!("{problems:?}"),
    }
}

fn problem(text: &str) -> String {
    match laid(text) {
        Ok(_) => panic!("it can run"),
        Err(problems) => problems.join("; "),
    }
}

#[test]
fn processors_are_in_the_chain_of_every_consumer_that_they_lead_to() {
    let plan = plan(
        "source in: {}
         processor parse: { inputs: in }
         processor route: { inputs: parse, ports: [a, b] }
         channel kept: { inputs: route.a }
         processor last: { inputs: kept }
         sink one: { inputs: last }
         sink two: { inputs: [route.b, in], lanes: true }",
    );
    let names = |chain: &Option<Arc<crate::plan::ChainPlan>>| -> Vec<String> {
        let nodes = chain.iter().flat_map(|chain| &chain.nodes);
        nodes.map(|node| node.name.to_string()).collect()
    };
    assert_eq!(names(&plan.channels[0].chain), ["parse", "route"]);
    assert_eq!(names(&plan.sinks[0].chain), ["last"]);
    assert_eq!(names(&plan.sinks[1].chain), ["parse", "route"]);
    assert!(matches!(
        plan.sinks[0].input,
        Input::Channel(ChannelInput { channel: 0, .. })
    ));
    let targets: Vec<_> = plan.sources[0]
        .routes
        .iter()
        .map(|route| route.to)
        .collect();
    assert_eq!(targets, [Target::Channel(0), Target::Sink(1)]);
    let consumers: HashMap<_, _> = (plan.processors.iter())
        .map(|processor| (&*processor.name, processor.consumers.len()))
        .collect();
    assert_eq!(
        consumers,
        HashMap::from([("parse", 2), ("route", 2), ("last", 1)])
    );
    // The source leads to `two` directly and through the processors.
    let two = plan.sinks[1].chain.as_ref().unwrap();
    let steps: Vec<_> = two.entries[0].iter().map(|hop| hop.to).collect();
    assert_eq!(steps, [Step::Node(0), Step::End]);
    // The chain of `kept`, the first consumer, counts records and reports rejected ones. The chain of `two` must not do so as well.
    let reports: Vec<_> = two.nodes.iter().map(|node| node.reports).collect();
    assert_eq!(reports, [false, false]);
}

#[test]
fn a_channel_may_read_one_other_channel_through_processors() {
    let plan = plan(
        "source in: {}
         channel first: { inputs: in }
         sink one: { inputs: first }
         processor parse: { inputs: first }
         channel second: { inputs: parse, tags: 'a.*' }
         sink two: { inputs: second }",
    );
    let [first, second] = &plan.channels[..] else {
        panic!("two channels");
    };
    let names = first.consumers.iter().map(|consumer| &*consumer.name);
    assert_eq!(names.collect::<Vec<_>>(), ["second.input", "one"]);
    assert!(first.input.is_none());
    assert_eq!(second.input.as_ref().map(|input| input.channel), Some(0));
    assert_eq!(second.chain.as_ref().unwrap().nodes.len(), 1);
    let links = plan.running_links();
    let way = |link: &crate::plan::Link| format!("{} {}", link.from, link.to);
    let links: Vec<_> = links.iter().map(way).collect();
    let expected = [
        "in first",
        "first one",
        "first parse",
        "parse second.input",
        "second two",
        "second.input second",
    ];
    assert_eq!(links, expected);
    let both = "source in: {}
         source other: {}
         channel first: { inputs: in }
         channel second: { inputs: [first, other] }
         sink out: { inputs: second }";
    assert!(problem(both).contains("`second` takes from a disk channel and from another node"));
}

#[test]
fn a_cycle_is_an_error_that_shows_its_path() {
    let circle = "source in: {}
         processor a: { inputs: [in, c.again] }
         processor b: { inputs: a }
         processor c: { inputs: b, ports: [again, done] }
         sink out: { inputs: c.done }";
    assert!(problem(circle).contains("records flow in a circle: `a` -> `b` -> `c.again` -> `a`"));
    let rejected =
        "source in: {}\n processor a: { inputs: [in, a.rejected] }\n sink out: { inputs: a }";
    assert!(problem(rejected).contains("records that `a` rejects come back to it"));
    let channels = "channel a: { inputs: b }\n channel b: { inputs: a }\n sink out: { inputs: a }";
    assert!(problem(channels).contains("records flow in a circle: `a` -> `b` -> `a`"));
}

#[test]
fn a_note_states_how_often_a_processor_runs_and_how_to_run_it_once() {
    let notes = |text: &str| -> Vec<String> {
        let laid = laid(text).ok().unwrap();
        assert!(laid.warnings.is_empty());
        let text = |note: Problem| format!("{}; {}", note.message, note.help.unwrap());
        laid.notes.into_iter().map(text).collect()
    };
    let behind = "source in: {}
         channel buffer: { inputs: in }
         processor first: { inputs: buffer }
         processor p: { inputs: first }
         sink one: { inputs: p }
         sink two: { inputs: p }";
    let found = notes(behind);
    assert_eq!(found.len(), 2);
    let expected = "`p` runs 2 times: in front of each of `one`, `two`; to run it once, put it in front of `buffer`; \
                    or put a disk channel behind `p`, and let them take from that";
    assert_eq!(found[1], expected);
    let in_memory = "source in: {}
         processor p: { inputs: in }
         sink one: { inputs: p }
         sink two: { inputs: p }";
    let expected = "`p` runs 2 times: in front of each of `one`, `two`; to run it once, put a disk channel behind `p`, \
                    and let them take from that";
    assert_eq!(notes(in_memory), [expected]);
    let route = "source in: {}
         processor p: { inputs: in, ports: [a, b] }
         sink one: { inputs: p.a }
         sink two: { inputs: p.b }";
    let found = notes(route);
    assert!(
        found[0].contains("let a processor `fields` set a `tag`"),
        "{found:?}"
    );
    let once = in_memory.replace("two: { inputs: p }", "two: { inputs: in }");
    assert!(notes(&once).is_empty());
}

#[test]
fn two_consumers_must_not_take_records_that_the_processors_of_the_other_one_reject() {
    let mutual = "source in: {}
         processor a: { inputs: in }
         processor b: { inputs: in }
         sink one: { inputs: [a, b.rejected] }
         sink two: { inputs: [b, a.rejected] }";
    let problem = problem(mutual);
    assert!(
        problem.contains("rejected records flow in a circle: `one` -> `two` -> `one`"),
        "{problem}"
    );
    let own = "source in: {}
         processor a: { inputs: in }
         sink one: { inputs: [a, a.rejected] }";
    assert!(laid(own).is_ok());
}

#[test]
fn one_of_several_ports_must_be_named_and_a_port_without_consumer_is_a_warning() {
    let graph = |inputs: &str| {
        format!(
            "source in: {{}}\n processor r: {{ inputs: in, ports: [a, b] }}\n sink out: {{ inputs: {inputs} }}"
        )
    };
    assert!(problem(&graph("r")).contains("`r` has several ports: name one of them"));
    assert!(problem(&graph("r.c")).contains("no node is called `r.c`"));
    let warnings = laid(&graph("r.a")).ok().unwrap().warnings;
    assert!(
        warnings[0].message.contains("r.b"),
        "{}",
        warnings[0].message
    );
    assert!(laid(&graph("\"r.[ab]\"")).ok().unwrap().warnings.is_empty());
}

#[test]
fn a_sink_needs_lanes_to_have_several_tasks_and_a_source_cannot_have_them() {
    let with = |sink: &str| {
        format!(
            "source in: {{}}\n channel kept: {{ inputs: in }}\n sink out: {{ {sink} }}\n sink all: {{ inputs: kept }}"
        )
    };
    let reads = problem(&with("inputs: kept, lanes: true, parallelism: 2"));
    assert!(
        reads.contains("`out` reads the channel `kept` with one task"),
        "{reads}"
    );
    let owns = problem(&with("inputs: in, partition: shuffle"));
    assert!(
        owns.contains("a sink of type `fake` has one task"),
        "{owns}"
    );
    let plan = plan(&with(
        "inputs: in, lanes: true, parallelism: 3, partition: \"{.user}\"",
    ));
    let Input::Memory { tasks, .. } = &plan.sinks[0].input else {
        panic!("the sink reads from memory");
    };
    assert_eq!(
        (tasks.count, &tasks.partition),
        (Some(3), &Partition::Key("{.user}".parse().unwrap()))
    );
    let source = problem("source in: { parallelism: 2 }\n sink out: { inputs: in }");
    assert!(source.contains("parallelism"), "{source}");
}

#[test]
fn a_memory_channel_becomes_a_direct_edge_with_a_queue_of_its_size() {
    let plan =
        plan("source in: {}\n channel m: { inputs: in, memory: true }\n sink out: { inputs: m }");
    assert!(plan.channels.is_empty());
    assert!(matches!(
        plan.sinks[0].input,
        Input::Memory {
            queue_bytes: 100,
            ..
        }
    ));
}
