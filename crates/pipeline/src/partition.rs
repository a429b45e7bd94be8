//! The options `parallelism` and `partition`: the number of tasks of a node, and how records are distributed among them.

use std::fmt;

use foldhash::fast::FixedState;
use millstream_config::{Node, Place, Problem};
use millstream_record::{Batch, Pool};
use millstream_wire::{
    split::{Splitter, adjacent},
    template::{Template, TemplateError},
};

/// The maximum number of tasks of a node.
const TASKS_MAX: usize = 256;
/// The smallest part of a divided batch. A smaller part costs more to hand over than to process.
const PART_BYTES: usize = 16 << 10;

/// The tasks of a processor or sink.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tasks {
    /// The number of tasks; `None` if the configuration does not set it.
    pub count: Option<usize>,
    /// How records are distributed among them.
    pub partition: Partition,
}

/// How records are distributed among the tasks of a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Partition {
    /// Records of one source stay in order: a lane of a sink gets all batches of a data thread, and the output of a processor's tasks is
    /// put back in the order of the input.
    #[default]
    Same,
    /// Batches go to the tasks in turn.
    Shuffle,
    /// By a hash of a template's text: records with the same text go to the same task, in order.
    Key(Template),
    /// Every task gets all records.
    Broadcast,
}

impl fmt::Display for Partition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Same => f.write_str("same"),
            Self::Shuffle => f.write_str("shuffle"),
            Self::Key(template) => write!(f, "\"{}\"", template.as_str()),
            Self::Broadcast => f.write_str("broadcast"),
        }
    }
}

impl Tasks {
    /// Removes `parallelism` and `partition` from the options of a node and reads them. Also returns the place of the first of the two
    /// that is set.
    pub(crate) fn take(options: &mut Node, problems: &mut Vec<Problem>) -> (Self, Option<Place>) {
        let (count, partition) = (options.take("parallelism"), options.take("partition"));
        let place = count.as_ref().or(partition.as_ref());
        let place = place.map(|(key, _)| key.place.clone());
        let count = count.and_then(|(_, node)| {
            match node.read::<usize>() {
                Ok(count) if (1..=TASKS_MAX).contains(&count) => return Some(count),
                Ok(count) => problems.push(Problem::new(
                    &node.place,
                    format!("`parallelism` is {count}: a node has 1 to {TASKS_MAX} tasks"),
                )),
                Err(found) => problems.extend(found),
            }
            None
        });
        let partition = partition.and_then(|(_, node)| {
            let read = Partition::read(&node);
            read.map_err(|found| problems.push(found)).ok()
        });
        let tasks = Self {
            count,
            partition: partition.unwrap_or_default(),
        };
        (tasks, place)
    }
}

impl Partition {
    fn read(node: &Node) -> Result<Self, Problem> {
        let partition = match node.as_text() {
            Some("same") => Some(Self::Same),
            Some("shuffle") => Some(Self::Shuffle),
            Some("broadcast") => Some(Self::Broadcast),
            Some(text) if text.contains('{') => match text.parse() {
                Ok(template) => Some(Self::Key(template)),
                Err(error) => {
                    let error: TemplateError = error;
                    return Err(Problem::new(&node.place, error.to_string()));
                }
            },
            _ => None,
        };
        let message = "`partition` wants `same`, `shuffle`, `broadcast` or a template to hash";
        let help = "records of one user stay together with `partition: \"{.user}\"`";
        partition.ok_or_else(|| Problem::new(&node.place, message).help(help))
    }
}

/// Distributes batches among tasks. Each producer has its own dealer.
pub(crate) struct Dealer {
    partition: Dealing,
    tasks: usize,
    pool: Pool,
    /// The task that gets the next batch.
    next: usize,
}

enum Dealing {
    InTurn,
    Key(Box<Splitter>),
    Broadcast,
}

impl Dealer {
    /// A dealer for `tasks` tasks, which divides keyed batches into buffers of `pool`.
    pub(crate) fn new(partition: &Partition, tasks: usize, pool: &Pool) -> Self {
        Self {
            partition: match partition {
                Partition::Same | Partition::Shuffle => Dealing::InTurn,
                Partition::Key(template) => Dealing::Key(Box::new(Splitter::new(template, hash))),
                Partition::Broadcast => Dealing::Broadcast,
            },
            tasks: tasks.max(1),
            pool: pool.clone(),
            next: 0,
        }
    }

    /// Returns the dealer, beginning with this task. If all producers began with the first task, they would overload it.
    #[must_use]
    pub(crate) fn beginning_with(mut self, task: usize) -> Self {
        self.next = task % self.tasks;
        self
    }

    /// Divides a batch; returns each part with the number of its task. With `same` and `shuffle` the parts are adjacent and in order. With
    /// `broadcast` each part is the whole batch.
    pub(crate) fn parts(&mut self, batch: Batch) -> Vec<(usize, Batch)> {
        match &mut self.partition {
            Dealing::Key(splitter) => splitter.split(batch, self.tasks, &self.pool),
            Dealing::Broadcast => (0..self.tasks).map(|task| (task, batch.clone())).collect(),
            Dealing::InTurn => {
                let parts = (batch.len() / PART_BYTES).clamp(1, self.tasks);
                let parts = match parts {
                    1 => vec![batch],
                    parts => adjacent(&batch, parts),
                };
                parts.into_iter().map(|part| (self.turn(), part)).collect()
            }
        }
    }

    /// Returns the indexes of those records of the last batch that went to this task because of their key. `None` if no key divides
    /// batches.
    pub(crate) fn members(&self, task: usize) -> Option<impl Iterator<Item = usize>> {
        match &self.partition {
            Dealing::Key(splitter) => Some(splitter.members(task)),
            Dealing::InTurn | Dealing::Broadcast => None,
        }
    }

    /// Assigns a batch to tasks without dividing it, unless a key divides the records.
    pub(crate) fn whole(&mut self, batch: Batch) -> Vec<(usize, Batch)> {
        match &self.partition {
            Dealing::InTurn => vec![(self.turn(), batch)],
            Dealing::Key(_) | Dealing::Broadcast => self.parts(batch),
        }
    }

    fn turn(&mut self) -> usize {
        let task = self.next;
        self.next = (task + 1) % self.tasks;
        task
    }
}

/// Hashes a key. The seed is constant, so a replay assigns each record to the same task.
fn hash(key: &[u8]) -> u64 {
    use std::hash::{BuildHasher, Hasher};
    let mut hasher = FixedState::with_seed(0).build_hasher();
    hasher.write(key);
    // The hash ends with a multiplication. The lower bits of the product depend on few bits of the factors, so the higher bits are used.
    hasher.finish() >> 32
}

#[cfg(test)]
mod tests {
    use millstream_testkit::lines;

    use super::*;

    fn batch(text: String) -> Batch {
        lines("t", &text)
    }

    fn read(text: &str) -> (Tasks, Vec<String>) {
        let mut node = Node::parse("m.yaml", text).unwrap();
        let mut problems = Vec::new();
        let (tasks, _) = Tasks::take(&mut node, &mut problems);
        let problem = |problem: &Problem| format!("{}: {}", problem.place, problem.message);
        (tasks, problems.iter().map(problem).collect())
    }

    #[test]
    fn the_options_are_read_and_errors_have_a_place() {
        let (tasks, problems) = read("parallelism: 3\npartition: \"{.user}\"\nother: 1\n");
        let expected = Tasks {
            count: Some(3),
            partition: Partition::Key("{.user}".parse().unwrap()),
        };
        assert_eq!((tasks, problems), (expected, vec![]));
        assert_eq!(
            read("partition: broadcast\n").0.partition,
            Partition::Broadcast
        );
        for (text, expected) in [
            (
                "parallelism: 0\n",
                "m.yaml:1:14: `parallelism` is 0: a node has 1 to 256 tasks",
            ),
            (
                "partition: random\n",
                "m.yaml:1:12: `partition` wants `same`",
            ),
            ("parallelism: many\n", "m.yaml:1:14: "),
            ("partition: \"{.a\"\n", "m.yaml:1:12: "),
        ] {
            let (tasks, problems) = read(text);
            assert_eq!(tasks, Tasks::default());
            assert!(problems[0].starts_with(expected), "{problems:?}");
        }
    }

    #[test]
    fn large_batches_are_divided_and_small_ones_go_to_the_tasks_in_turn() {
        let pool = Pool::new(1 << 20);
        let mut dealer = Dealer::new(&Partition::Same, 3, &pool);
        let large = dealer.parts(batch("0123456789\n".repeat(6000)));
        let numbers: Vec<_> = large.iter().map(|(task, _)| *task).collect();
        assert_eq!(numbers, [0, 1, 2]);
        assert_eq!(large.iter().map(|(_, part)| part.count).sum::<u32>(), 6000);
        let turns = |dealer: &mut Dealer| dealer.parts(batch("a\n".to_owned()))[0].0;
        assert_eq!([(); 4].map(|()| turns(&mut dealer)), [0, 1, 2, 0]);
    }

    #[test]
    fn records_with_one_key_go_to_one_task_and_a_broadcast_goes_to_all() {
        let pool = Pool::new(1 << 20);
        let key = Partition::Key("{.message}".parse().unwrap());
        let mut dealer = Dealer::new(&key, 4, &pool);
        let text: String = (0..100).map(|n| format!("{}\n", n % 10)).collect();
        let parts = dealer.whole(batch(text.clone()));
        assert!(parts.len() > 1);
        for key in 0..10 {
            let key = format!("{key}\n");
            let holds =
                |(_, part): &&(usize, Batch)| String::from_utf8_lossy(&part.body).contains(&key);
            assert_eq!(parts.iter().filter(holds).count(), 1);
        }
        let all = Dealer::new(&Partition::Broadcast, 2, &pool).whole(batch(text));
        assert_eq!(
            all.iter()
                .map(|(task, part)| (*task, part.count))
                .collect::<Vec<_>>(),
            [(0, 100), (1, 100)]
        );
    }
}
