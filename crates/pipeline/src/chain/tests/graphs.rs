//! Compares chains of random graphs with an interpreter that processes one record at a time.

use std::collections::BTreeMap;

use millstream_testkit::{Random, block_on};
use millstream_wire::{
    msgpack::write_str,
    record::{FieldPath, records},
};

use super::*;
use crate::{partition::Partition, reject::Rejected};

/// The work of a processor of the test. Its output depends only on the record.
#[derive(Clone, Copy, Debug)]
enum Work {
    Pass,
    /// Leaves out one of `n` records.
    Filter(u64),
    /// Replaces one of `n` records by two.
    Twice(u64),
    /// Gives each record one of `n` tags.
    Retag(u64),
    /// Appends a letter to one of `n` records, which becomes a packed entry.
    Write(u64),
    /// Sends each record to one of `n` ports.
    Route(u64),
    /// Rejects one of `n` records.
    Reject(u64),
}

/// A record: its tag, its text, and whether it is packed.
type Plain = (String, String, bool);

/// Returns the output for a record: records, each with the port by which it leaves.
fn apply(work: Work, salt: u64, (tag, text, packed): &Plain) -> Vec<(usize, Plain)> {
    let hash = (text.bytes().chain(tag.bytes())).fold(salt, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    }) >> 20;
    let same = (tag.clone(), text.clone(), *packed);
    match work {
        Work::Pass => vec![(0, same)],
        Work::Filter(n) | Work::Reject(n) if hash.is_multiple_of(n) => vec![],
        Work::Filter(_) | Work::Reject(_) => vec![(0, same)],
        Work::Twice(n) if hash.is_multiple_of(n) => vec![
            (0, (tag.clone(), format!("{text}1"), true)),
            (0, (tag.clone(), format!("{text}2"), true)),
        ],
        Work::Twice(_) => vec![(0, same)],
        Work::Retag(n) => vec![(0, (format!("t{}", hash % n), text.clone(), true))],
        Work::Write(n) if hash.is_multiple_of(n) => {
            vec![(0, (tag.clone(), format!("{text}w"), true))]
        }
        Work::Write(_) => vec![(0, same)],
        Work::Route(n) => vec![((hash % n) as usize, same)],
    }
}

#[derive(Clone, Copy)]
struct Applied {
    work: Work,
    salt: u64,
}

impl Processor for Applied {
    fn ports(&self) -> Vec<Arc<str>> {
        match self.work {
            Work::Route(n) => (0..n).map(|n| format!("p{n}").into()).collect(),
            _ => vec!["".into()],
        }
    }
    fn changes_tags(&self) -> bool {
        matches!(self.work, Work::Retag(_))
    }
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        Ok(Box::new(*self))
    }
}

impl Task for Applied {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        for (range, plain) in plain(batch) {
            let made = apply(self.work, self.salt, &plain);
            match (&made[..], self.work) {
                ([], Work::Reject(_)) => out.reject(&batch.body[range], "no"),
                ([], _) => out.filter(1),
                ([(port, one)], _) if *one == plain => out.keep(*port, range, 1),
                _ => {
                    for (port, (tag, text, _)) in made {
                        let head = Head {
                            tag: (&*tag).into(),
                            values: batch.values.clone(),
                        };
                        let write = |buffer: &mut Vec<u8>| {
                            entry(&text, buffer);
                            Ok::<_, ()>(1)
                        };
                        out.append(port, Some(&head), write).unwrap();
                    }
                }
            }
        }
        Ok(())
    }
}

fn entry(text: &str, buffer: &mut Vec<u8>) {
    buffer.extend_from_slice(b"\x92\x00\x82\xa7message");
    write_str(buffer, text.as_bytes());
    buffer.extend_from_slice(b"\xa3key");
    write_str(buffer, &text.as_bytes()[..1]);
}

/// Returns the records of a batch with their ranges.
fn plain(batch: &Batch) -> Vec<(std::ops::Range<usize>, Plain)> {
    let message: FieldPath = ".message".parse().unwrap();
    let is_packed = batch.encoding == Encoding::Packed;
    let each = records(batch).map(|(range, timed)| {
        let text = message.find(timed.record).unwrap().text().unwrap();
        let text = String::from_utf8(text.to_vec()).unwrap();
        (range, (batch.tag.as_str().to_owned(), text, is_packed))
    });
    each.collect()
}

/// A node of a random graph: its work, the next steps of each port, and its tasks.
struct Drawn {
    applied: Applied,
    ports: Vec<Vec<Hop>>,
    tasks: Tasks,
}

impl Drawn {
    /// How often the node processes each record: with a broadcast, once in each task.
    fn copies(&self) -> usize {
        match self.tasks.partition {
            Partition::Broadcast => self.tasks.count.unwrap_or(1),
            _ => 1,
        }
    }
}

/// A rejected record: its node, its tag and its bytes.
type Refused = (String, String, Vec<u8>);

/// The result of a graph for some records.
#[derive(Default)]
struct Outcome {
    /// The records for the consumer, in order.
    ends: Vec<Plain>,
    /// The rejected records, sorted.
    rejected: Vec<Refused>,
}

fn steps(random: &mut Random, from: usize, nodes: usize) -> Vec<Hop> {
    let mut all = Vec::new();
    for _ in 0..random.below(3) {
        let to = from + random.below((nodes - from + 1) as u64) as usize;
        let to = if to == nodes {
            Step::End
        } else {
            Step::Node(to)
        };
        if all.iter().any(|hop: &Hop| hop.to == to) {
            continue;
        }
        let tags = match random.below(6) {
            0 => Some("{t,t0,t2}"),
            1 => Some("!t1"),
            _ => None,
        };
        all.push(super::hop(to, tags));
    }
    if all.is_empty() {
        all.push(super::hop(Step::End, None));
    }
    all
}

/// A graph with one to three entries.
fn draw(random: &mut Random) -> (Vec<Drawn>, Vec<Vec<Hop>>) {
    let nodes = 1 + random.below(8) as usize;
    let mut all = Vec::new();
    for at in 0..nodes {
        let n = 2 + random.below(3);
        let work = match random.below(7) {
            0 => Work::Pass,
            1 => Work::Filter(n),
            2 => Work::Twice(n),
            3 => Work::Retag(n),
            4 => Work::Write(n),
            5 => Work::Route(n),
            _ => Work::Reject(n),
        };
        let salt = random.below(u64::MAX);
        let applied = Applied { work, salt };
        let ports = applied.ports().len();
        let ports = (0..ports).map(|_| steps(random, at + 1, nodes));
        all.push(Drawn {
            applied,
            ports: ports.collect(),
            tasks: Tasks::default(),
        });
    }
    let mut entries = vec![vec![
        super::hop(Step::Node(0), None),
        super::hop(Step::End, Some("none")),
    ]];
    for _ in 0..random.below(3) {
        entries.push(steps(random, 0, nodes));
    }
    (all, entries)
}

/// Chooses the tasks of all nodes at random, up to `tasks` each. In some graphs, one node sends every record to all of its tasks.
fn draw_tasks(drawn: &mut [Drawn], random: &mut Random, tasks: usize, keyed: bool) {
    for drawn in &mut *drawn {
        drawn.tasks = Tasks {
            count: (random.below(3) > 0).then_some(tasks),
            partition: match random.below(4) {
                0 => Partition::Shuffle,
                1 | 2 if keyed => Partition::Key("{.key}".parse().unwrap()),
                _ => Partition::Same,
            },
        };
    }
    if random.below(4) == 0 {
        let at = random.below(drawn.len() as u64) as usize;
        drawn[at].tasks = Tasks {
            count: Some(tasks),
            partition: Partition::Broadcast,
        };
    }
}

/// The interpreter: passes one record through the nodes in their order.
fn interpret(nodes: &[Drawn], entry: &[Hop], record: Plain, outcome: &mut Outcome) {
    let Outcome { ends, rejected } = outcome;
    let mut waiting: Vec<Vec<Plain>> = vec![Vec::new(); nodes.len()];
    let send =
        |hops: &[Hop], record: Plain, waiting: &mut Vec<Vec<Plain>>, ends: &mut Vec<Plain>| {
            for hop in hops {
                if hop.tags.as_ref().is_some_and(|tags| !tags.takes(&record.0)) {
                    continue;
                }
                match hop.to {
                    Step::Node(at) => waiting[at].push(record.clone()),
                    Step::End => ends.push(record.clone()),
                }
            }
        };
    send(entry, record, &mut waiting, ends);
    for (at, node) in nodes.iter().enumerate() {
        let Applied { work, salt } = node.applied;
        let mut all = std::mem::take(&mut waiting[at]);
        all.sort_by(|a, b| a.0.cmp(&b.0));
        // All records with the same tag that were made from one input record reach a node together.
        for together in all.chunk_by(|a, b| (&a.0, a.2) == (&b.0, b.2)) {
            let copies = std::iter::repeat_n(together, node.copies()).flatten();
            let mut made = Vec::new();
            for record in copies {
                let applied = apply(work, salt, record);
                if let ([], Work::Reject(_)) = (&applied[..], work) {
                    let (tag, text, packed) = record;
                    rejected.push((format!("n{at}"), tag.clone(), bytes_of(text, *packed)));
                }
                made.extend(applied);
            }
            // Ports with the same next steps count as one.
            let joined = |port: &Vec<Hop>| node.ports.iter().position(|other| other == port);
            for (port, hops) in node.ports.iter().enumerate() {
                let left = made.iter();
                let left = left.filter(|(by, _)| joined(&node.ports[*by]) == Some(port));
                left.for_each(|(_, record)| send(hops, record.clone(), &mut waiting, ends));
            }
        }
    }
}

/// The records of each tag, in order.
fn by_tag(all: &[Plain]) -> BTreeMap<&str, Vec<(&str, bool)>> {
    let mut tags: BTreeMap<&str, Vec<_>> = BTreeMap::new();
    for (tag, text, packed) in all {
        tags.entry(tag).or_default().push((&**text, *packed));
    }
    tags
}

/// The records of each tag and key, in order. The key is the first letter.
fn by_key(all: &[Plain]) -> BTreeMap<(&str, &str), Vec<(&str, bool)>> {
    let mut keys: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for (tag, text, packed) in all {
        keys.entry((&**tag, &text[..1]))
            .or_default()
            .push((&**text, *packed));
    }
    keys
}

/// The bytes of a record with this text.
fn bytes_of(text: &str, packed: bool) -> Vec<u8> {
    if !packed {
        return text.as_bytes().to_vec();
    }
    let mut bytes = Vec::new();
    entry(text, &mut bytes);
    bytes
}

fn plan_of(drawn: &[Drawn], entries: &[Vec<Hop>]) -> Arc<ChainPlan> {
    let node = |(at, drawn): (usize, &Drawn)| {
        let (applied, ports) = (Arc::new(drawn.applied), drawn.ports.clone());
        let mut node = super::node(&format!("n{at}"), applied, ports);
        node.tasks = drawn.tasks.clone();
        node
    };
    Arc::new(ChainPlan {
        nodes: drawn.iter().enumerate().map(node).collect(),
        entries: entries.to_vec(),
    })
}

/// A batch of lines or of packed entries.
fn batch_of(texts: &[String], packed: bool) -> Batch {
    if !packed {
        return super::batch("t", &(texts.join("\n") + "\n"));
    }
    let mut body = Vec::new();
    texts.iter().for_each(|text| entry(text, &mut body));
    Batch {
        encoding: Encoding::Packed,
        body: body.into(),
        count: texts.len() as u32,
        ..super::batch("t", "")
    }
}

/// Divides records into batches at random, each with the entry that it arrives by.
fn batches<'a>(
    mut rest: &'a [String],
    entries: usize,
    random: &mut Random,
) -> Vec<(usize, &'a [String])> {
    let mut all = Vec::new();
    while !rest.is_empty() {
        let most = [1, 7, 1000][random.below(3) as usize];
        let count = (1 + random.below(most) as usize).min(rest.len());
        let (now, later) = rest.split_at(count);
        rest = later;
        all.push((random.below(entries as u64) as usize, now));
    }
    all
}

fn without_newline(bytes: &[u8]) -> &[u8] {
    bytes.strip_suffix(b"\n").unwrap_or(bytes)
}

/// Feeds batches to the chain.
fn run(
    plan: &Arc<ChainPlan>,
    batches: &[(usize, &[String])],
    packed: bool,
    random: &mut Random,
) -> Outcome {
    let meters = Meters::default();
    let (context, _) = contexts(&meters);
    let pool = Pool::new(1 << 24);
    let contexts = vec![context[0].clone(); plan.nodes.len()];
    let maker = ChainMaker::new(plan.clone(), contexts, &pool);
    let mut chain = maker.make().unwrap();
    if random.below(2) == 0 {
        chain.deal_whole();
    }
    let mut outcome = Outcome::default();
    for (entry, texts) in batches {
        let fed = block_on(chain.feed(*entry, &batch_of(texts, packed), 0)).unwrap();
        for batch in &fed.batches {
            let records = plain(batch);
            assert_eq!(batch.count as usize, records.len());
            for (range, record) in records {
                let bytes = without_newline(&batch.body[range]);
                assert_eq!(bytes, bytes_of(&record.1, record.2));
                outcome.ends.push(record);
            }
        }
        for (_, batch) in &fed.rejected {
            for (range, _) in records(batch) {
                let rejected = Rejected::read(&batch.body[range]).unwrap();
                let bytes = without_newline(&rejected.message).to_vec();
                let (node, tag) = (rejected.node.to_owned(), rejected.tag.to_owned());
                outcome.rejected.push((node, tag, bytes));
            }
        }
    }
    outcome
}

#[test]
fn any_graph_gives_the_records_of_an_interpreter_in_order_for_any_tasks_and_batches() {
    let (mut rejected, mut copied) = (0, 0);
    for seed in 0..400 {
        let mut random = Random::new(seed);
        let (mut drawn, entries) = draw(&mut random);
        // Some records are long, so that batches are divided among tasks.
        let width = if seed % 4 == 0 { 200 } else { 1 };
        let record = |n: usize| format!("{}{n:0width$}", char::from(b'a' + (n * 7 % 5) as u8));
        let records: Vec<_> = (0..random.below(600) as usize).map(record).collect();
        let works: Vec<_> = drawn.iter().map(|drawn| drawn.applied.work).collect();
        for (tasks, keyed) in [(1, false), (2, false), (5, false), (2, true), (5, true)] {
            draw_tasks(&mut drawn, &mut random, tasks, keyed);
            let batches = batches(&records, entries.len(), &mut random);
            let mut expected = Outcome::default();
            for (entry, texts) in &batches {
                for text in *texts {
                    let plain = ("t".to_owned(), text.clone(), keyed);
                    interpret(&drawn, &entries[*entry], plain, &mut expected);
                }
            }
            let mut got = run(&plan_of(&drawn, &entries), &batches, keyed, &mut random);
            let is_copied = drawn.iter().any(|node| node.copies() > 1);
            for outcome in [&mut got, &mut expected] {
                outcome.rejected.sort_unstable();
                if is_copied {
                    // A task outputs a whole batch at a time, but the interpreter outputs one record at a time.
                    outcome.ends.sort_unstable();
                }
            }
            let (ends, wanted) = (&got.ends, &expected.ends);
            let is_same = match keyed {
                false => by_tag(ends) == by_tag(wanted),
                true => by_key(ends) == by_key(wanted),
            };
            let case = format!("seed {seed}, {tasks} tasks, keyed: {keyed}, {works:?}");
            assert!(is_same, "{case}");
            assert!(got.rejected == expected.rejected, "{case}");
            rejected += got.rejected.len();
            copied += usize::from(is_copied);
        }
    }
    // Enough records were rejected, and enough graphs had a broadcast.
    assert!(rejected > 10_000 && copied > 100, "{rejected} {copied}");
}
