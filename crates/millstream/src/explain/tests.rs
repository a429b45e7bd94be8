use std::sync::Arc;

use millstream_config::RejectedLimits;
use millstream_pipeline::{
    failure::Failure,
    inlet::Inlet,
    node::{
        ChannelConfig, ChannelContext, LocalFuture, Opened, Placement, Sink, SinkContext,
        Source as SourceNode, SourceContext,
    },
    plan::{
        ChannelInput, ChannelPlan, Input, Link, Plan, ProcessorPlan, Route, RunSettings, SinkPlan,
        SourcePlan, Target,
    },
    processor::{Processor, Task},
    promise::{Guarantee, Promise},
    tags::TagFilter,
};

use super::{Edge, Explained, Kind, Node, Port, dot, drawing, mermaid, text};
use crate::{config, registry};

struct Fake(Guarantee);

impl SourceNode for Fake {
    fn bind(&mut self, _: &SourceContext) -> Result<(), Failure> {
        Ok(())
    }
    fn run<'a>(&'a mut self, _: SourceContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }
    fn values(&self) -> &'static [&'static str] {
        &[]
    }
    fn promise(&self, durable: bool) -> Promise {
        match durable {
            true => Promise::new(self.0, "if the sender keeps its ids"),
            false => Promise::new(self.0.min(Guarantee::AtLeastOnce), ""),
        }
    }
}

impl Sink for Fake {
    fn placement(&self) -> Placement {
        Placement::OwnThread
    }
    fn run<'a>(&'a self, _: &'a mut Inlet, _: SinkContext) -> LocalFuture<'a, Result<(), Failure>> {
        Box::pin(async { Ok(()) })
    }
    fn promise(&self, durable: bool) -> Promise {
        SourceNode::promise(self, durable)
    }
}

impl ChannelConfig for Fake {
    fn open(
        &self,
        _: ChannelContext,
        _: &[millstream_pipeline::channel::Consumer],
    ) -> Result<Opened, Failure> {
        Err(Failure::us("never opened"))
    }
    fn promise(&self) -> Promise {
        Promise::new(self.0, "a power cut takes up to 1s")
    }
}

/// A processor with these ports.
struct Ports(&'static [&'static str]);

impl Processor for Ports {
    fn ports(&self) -> Vec<Arc<str>> {
        self.0.iter().map(|port| (*port).into()).collect()
    }
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Err(Failure::us("never started"))
    }
}

fn to(to: Target) -> Vec<Route> {
    vec![Route {
        to,
        entry: 0,
        tags: None,
    }]
}

fn source(name: &str, kind: &'static str, routes: Vec<Route>) -> SourcePlan {
    SourcePlan {
        options: "".into(),
        name: name.into(),
        kind,
        source: Box::new(Fake(Guarantee::ExactlyOnce)),
        routes,
        rejects: Vec::new(),
    }
}

fn sink(name: &str, guarantee: Guarantee, input: Input) -> SinkPlan {
    SinkPlan {
        options: "".into(),
        name: name.into(),
        kind: "file",
        sink: Arc::new(Fake(guarantee)),
        input,
        chain: None,
        rejects: Vec::new(),
    }
}

fn link(from: &str, port: &str, to: &str, tags: Option<TagFilter>) -> Link {
    Link {
        from: from.into(),
        port: port.into(),
        to: to.into(),
        tags,
    }
}

fn links() -> Vec<Link> {
    vec![
        link("fleet", "", "buffer", None),
        link("fleet", "rejected", "end", None),
        link("web", "", "buffer", None),
        link("probe", "", "end", None),
        link("buffer", "", "archive", None),
        link("buffer", "", "next", tags()),
    ]
}

fn tags() -> Option<TagFilter> {
    TagFilter::new(["web.**", "!web.\"debug\""]).ok()
}

fn plan() -> Plan {
    let behind = |tags| Input::Channel(ChannelInput { channel: 0, tags });
    let mut fleet = source("fleet", "forward", to(Target::Channel(0)));
    fleet.rejects = to(Target::Sink(2));
    Plan {
        sources: vec![
            fleet,
            source("web", "tail", to(Target::Channel(0))),
            source("probe", "generate", to(Target::Sink(2))),
        ],
        channels: vec![ChannelPlan {
            options: "".into(),
            name: "buffer".into(),
            kind: "disk",
            config: Box::new(Fake(Guarantee::ExactlyOnce)),
            input: None,
            chain: None,
            consumers: vec!["archive".into(), "next".into()],
        }],
        sinks: vec![
            sink("archive", Guarantee::ExactlyOnce, behind(None)),
            sink("next", Guarantee::AtLeastOnce, behind(tags())),
            sink(
                "end",
                Guarantee::AtMostOnce,
                Input::Memory {
                    queue_bytes: 1,
                    tasks: Default::default(),
                },
            ),
        ],
        processors: Vec::new(),
        links: links(),
        settings: RunSettings {
            data_dir: "/var/lib/millstream".into(),
            memory_max: 512 << 20,
            threads: 2,
            host: "here".into(),
            rejected: RejectedLimits::default(),
        },
    }
}

/// Like [`plan`], with three processors. `json` is in front of the channel. Behind the channel is `mask`, and behind `mask` is `levels`,
/// which has three ports. `mask` and `levels` run in front of two sinks.
fn plan_with_processors() -> Plan {
    let processor = |name: &str, kind, ports, consumers: &[&str]| ProcessorPlan {
        name: name.into(),
        kind,
        processor: Arc::new(Ports(ports)),
        options: "".into(),
        tasks: Default::default(),
        consumers: consumers.iter().map(|name| (*name).into()).collect(),
        rejects: Vec::new(),
    };
    let mut plan = plan();
    plan.processors = vec![
        processor("json", "parse", &[""], &["buffer"]),
        processor("mask", "remap", &[""], &["archive", "next"]),
        processor(
            "levels",
            "route",
            &["errors", "slow", "rest"],
            &["archive", "next"],
        ),
    ];
    let ends = ["web", "buffer"];
    plan.links.retain(|link| !ends.contains(&&*link.from));
    plan.links.extend([
        link("web", "", "json", None),
        link("json", "", "buffer", None),
        link("buffer", "", "mask", None),
        link("mask", "", "levels", None),
        link("levels", "errors", "archive", None),
        link("levels", "errors", "next", tags()),
        link("levels", "rest", "archive", None),
    ]);
    plan
}

#[test]
fn a_path_may_lead_through_two_channels() {
    let mut plan = plan();
    plan.channels.push(ChannelPlan {
        options: "".into(),
        name: "second".into(),
        kind: "disk",
        config: Box::new(Fake(Guarantee::AtLeastOnce)),
        input: Some(ChannelInput {
            channel: 0,
            tags: None,
        }),
        chain: None,
        consumers: vec!["archive".into()],
    });
    plan.sinks[0].input = Input::Channel(ChannelInput {
        channel: 1,
        tags: None,
    });
    let explained = Explained::new(&plan);
    let paths = explained.paths.iter();
    let mut found = paths.map(|path| (explained.names(&path.nodes).join(" "), path.guarantee));
    let weakest = Guarantee::AtLeastOnce;
    let expected = ("fleet buffer second archive".to_owned(), weakest);
    assert!(found.any(|path| path == expected));
}

#[test]
fn a_path_has_the_weakest_guarantee_of_its_nodes() {
    let explained = Explained::new(&plan());
    let found: Vec<_> = explained
        .paths
        .iter()
        .map(|path| (explained.names(&path.nodes).join(" "), path.guarantee))
        .collect();
    let expected = [
        ("fleet buffer archive", Guarantee::ExactlyOnce),
        ("fleet buffer next", Guarantee::AtLeastOnce),
        ("web buffer archive", Guarantee::ExactlyOnce),
        ("web buffer next", Guarantee::AtLeastOnce),
        ("probe end", Guarantee::AtMostOnce),
    ];
    assert_eq!(
        found,
        expected.map(|(path, holds)| (path.to_owned(), holds))
    );
}

#[test]
fn the_text_of_a_plan_is_the_page_in_testdata() {
    let page = text::render(&Explained::new(&plan_with_processors()));
    let expected = include_str!("testdata/page.txt");
    if std::env::var_os("UPDATE").is_some() {
        let here = std::env::var("CARGO_MANIFEST_DIR").unwrap();
        std::fs::write(here + "/src/explain/testdata/page.txt", &page).unwrap();
        return;
    }
    assert_eq!(page, expected, "rewrite it with UPDATE=1");
}

#[test]
fn the_drawings_name_every_node_and_every_edge() {
    let explained = Explained::new(&plan());
    let (mermaid, dot) = (mermaid::render(&explained), dot::render(&explained));
    assert!(mermaid.starts_with("flowchart LR\n"), "{mermaid}");
    assert_eq!(mermaid.matches("-->").count(), 5, "{mermaid}");
    assert_eq!(mermaid.matches("-.->").count(), 1, "{mermaid}");
    assert!(mermaid.contains("!web.&quot;debug&quot;"), "{mermaid}");
    assert_eq!(dot.matches(" -> ").count(), 6, "{dot}");
    assert!(dot.contains(r#"!web.\"debug\""#), "{dot}");
    for node in &explained.nodes {
        assert!(mermaid.contains(&node.name) && dot.contains(&node.name));
    }
}

#[test]
fn a_source_that_feeds_a_sink_and_a_channel_waits_for_both() {
    let mut plan = plan();
    plan.sources[1].routes.extend(to(Target::Sink(2)));
    let explained = Explained::new(&plan);
    assert_eq!(
        explained.sources[1].promise.guarantee,
        Guarantee::AtLeastOnce
    );
    let page = text::render(&explained);
    let line = "when end has settled the batch and buffer has kept it: 1s at most";
    assert!(page.contains(line), "{page}");
}

/// A graph of `count` nodes whose edges lead from lower to higher numbers; `next` returns random numbers.
fn random_graph(count: usize, mut next: impl FnMut(usize) -> usize) -> Explained {
    let mut explained = Explained::new(&plan());
    let node = |at: usize| Node {
        name: format!("n{at}"),
        type_: "any",
        kind: Kind::Processor,
        rejects_taken: false,
        settles_within: None,
    };
    explained.nodes = (0..count).map(node).collect();
    explained.edges.clear();
    for to in 1..count {
        for _ in 0..next(4) {
            let from = next(to);
            explained.edges.push(Edge {
                from,
                port: Port::Records,
                to,
                tags: None,
            });
        }
    }
    explained
}

/// Whether a character of the drawing leads up and down. A node leads up if it has inputs, and down if it has takers.
fn leads(explained: &Explained, line: &str, mark: char) -> (bool, bool) {
    if mark != '●' {
        return ("│├┤┼┴└┘".contains(mark), "│├┤┼┬┌┐".contains(mark));
    }
    let at = explained.nodes.iter().position(|node| {
        let shown = format!(" {} (any)", node.name);
        line.ends_with(&shown)
    });
    let edges = &explained.edges;
    (
        edges.iter().any(|edge| Some(edge.to) == at),
        edges.iter().any(|edge| Some(edge.from) == at),
    )
}

#[test]
fn every_lane_of_the_drawing_leads_from_one_node_to_another() {
    let mut state = 1_u64;
    let mut next = move |below: usize| {
        state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
        usize::try_from(state >> 33).unwrap() % below
    };
    for _ in 0..300 {
        let explained = random_graph(1 + next(14), &mut next);
        let drawn = drawing::render(&explained);
        assert_eq!(drawn.matches('●').count(), explained.nodes.len(), "{drawn}");
        let lanes = |line: &str| -> Vec<char> {
            let name = line.find('n').unwrap_or(line.len());
            line[..name].chars().collect()
        };
        for (upper, lower) in drawn.lines().zip(drawn.lines().skip(1)) {
            let (above, below) = (lanes(upper), lanes(lower));
            for at in 0..above.len().max(below.len()) {
                let of = |lanes: &[char]| lanes.get(at).copied().unwrap_or(' ');
                let (_, down) = leads(&explained, upper, of(&above));
                let (up, _) = leads(&explained, lower, of(&below));
                assert_eq!(down, up, "column {at} of\n{upper}\n{lower}\nin\n{drawn}");
            }
        }
    }
}

#[test]
fn every_promise_below_exactly_once_has_its_reason() {
    for component in registry::all() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("millstream.yaml");
        std::fs::write(&file, component.example).unwrap();
        let name = component.name;
        if cfg!(not(feature = "vrl")) && name == "remap" {
            // Its example needs the compiler.
            continue;
        }
        let Ok(loaded) = config::read(&[file]) else {
            panic!("the example of {name} is wrong");
        };
        let plan = loaded.plan;
        for durable in [true, false] {
            let sources = plan.sources.iter().map(|it| it.source.promise(durable));
            let sinks = plan.sinks.iter().map(|it| it.sink.promise(durable));
            for promise in sources.chain(sinks) {
                let has_reason =
                    promise.guarantee == Guarantee::ExactlyOnce || !promise.condition.is_empty();
                assert!(has_reason, "{name}, durable: {durable}: {promise:?}");
            }
        }
    }
}
