//! Tests of a reader whose sink begins another run: what stays, and what passes through which chain.

use super::*;

/// Returns batches as a memory channel delivers them to the chain of `maker`, with their receipts.
fn from_memory(maker: &Arc<ChainMaker>, all: Vec<Batch>) -> (Queue, Vec<Receipt>) {
    let deliver = |batch: Batch| {
        let (token, receipt) = delivery::receipt(true, 1, delivery::Tally::default());
        let delivered = Delivered {
            entry: Entry {
                number: 0,
                chain: Some(maker.clone() as _),
            },
            ..Delivered::new(batch, None, Some(token))
        };
        (delivered, receipt)
    };
    let (delivered, receipts): (Vec<_>, Vec<_>) = all.into_iter().map(deliver).unzip();
    (Queue(delivered.into()), receipts)
}

fn memory_reader(plan: Arc<ChainPlan>, all: Vec<Batch>) -> (ChainReader, Vec<Receipt>) {
    let (contexts, _) = contexts(&Meters::default());
    let maker = maker(plan, contexts);
    let (queue, receipts) = from_memory(&maker, all);
    let swap = Arc::new(Swap::default());
    swap.post(Next::new(Some(maker)).unwrap());
    (ChainReader::new(Box::new(queue), None, swap), receipts)
}

async fn next(reader: &mut ChainReader) -> Option<Delivered> {
    poll_fn(|context| reader.poll_next(context)).await.unwrap()
}

fn text(delivered: &Delivered) -> String {
    String::from_utf8_lossy(&delivered.batch.body).into_owned()
}

#[test]
fn batches_from_memory_that_are_in_the_threads_of_processors_stay_when_a_sink_is_replaced() {
    let all: Vec<_> = (0..20).map(|n| batch("t", &format!("{n}\n"))).collect();
    let (mut reader, receipts) = memory_reader(simple_with(2), all);
    block_on(async {
        let mut seen = Vec::new();
        while let Some(delivered) = next(&mut reader).await {
            seen.push(text(&delivered));
            delivered.token.unwrap().settle();
            // The next sink begins its run.
            reader.resume(None).unwrap();
        }
        let expected: Vec<_> = (0..20)
            .filter(|n| *n != 2)
            .map(|n| format!("{n}\n"))
            .collect();
        let seen: Vec<_> = seen.into_iter().filter(|text| text.is_ascii()).collect();
        assert!(expected.iter().all(|text| seen.contains(text)), "{seen:?}");
    });
    let settled = |receipt: &Receipt| receipt.try_outcome() == Some(Ok(()));
    assert!(receipts.iter().all(settled));
}

#[test]
fn a_batch_whose_processor_fails_fails_alone_and_the_others_in_flight_stay() {
    let all = ["a\n", "e\n", "b\n", "c\n"].map(|text| batch("t", text));
    let (mut reader, receipts) = memory_reader(simple_with(2), all.to_vec());
    block_on(async {
        let mut seen = Vec::new();
        loop {
            match poll_fn(|context| reader.poll_next(context)).await {
                Ok(None) => break,
                Ok(Some(delivered)) => {
                    seen.push(text(&delivered));
                    delivered.token.unwrap().settle();
                }
                Err(failure) => {
                    assert!(failure.message.contains("a line with e"), "{failure}");
                    reader.resume(None).unwrap();
                }
            }
        }
        assert_eq!(seen, ["a\n", "b\n", "c\n"]);
    });
    let outcomes: Vec<_> = receipts.iter().map(Receipt::try_outcome).collect();
    let failed = Some(Err(delivery::Unsettled));
    assert_eq!(outcomes, [Some(Ok(())), failed, Some(Ok(())), Some(Ok(()))]);
}

/// Reads a batch that becomes two, of which a sink gets one before another run begins. Returns the other batches that are delivered, and the
/// receipts.
fn interrupted(can_come_again: bool) -> (Vec<String>, Vec<Receipt>) {
    let mut first = batch("t", "a\n2\n");
    if can_come_again {
        first.origins = vec![chunk(1, 0, 4, 2)];
    }
    let (mut reader, receipts) = memory_reader(simple(), vec![first, batch("t", "b\n")]);
    let part = read(&mut reader).unwrap().unwrap();
    assert!(!part.last && part.token.is_none());
    reader.resume(None).unwrap();
    let mut seen = Vec::new();
    while let Some(delivered) = read(&mut reader).unwrap() {
        seen.push(delivered.batch.tag.to_string());
        if let Some(token) = delivered.token {
            token.settle();
        }
    }
    (seen, receipts)
}

#[test]
fn a_batch_of_which_a_failed_run_got_a_part_never_looks_settled() {
    // The source sends the batch again, so the rest is dropped.
    let (seen, receipts) = interrupted(true);
    assert_eq!(seen, ["t"]);
    let outcomes: Vec<_> = receipts.iter().map(Receipt::try_outcome).collect();
    let expected = [Some(Err(delivery::Unsettled)), Some(Ok(()))];
    assert_eq!(outcomes, expected);
    // The source cannot send it again, so the rest is delivered.
    let (seen, receipts) = interrupted(false);
    assert_eq!(seen, ["two", "t"]);
    let outcomes: Vec<_> = receipts.iter().map(Receipt::try_outcome).collect();
    assert_eq!(outcomes, expected);
}

/// A processor whose tasks fail on every batch once it is retired, like `exec` with a program that crashes.
#[derive(Default)]
struct Retired {
    is_retired: AtomicBool,
    /// Whether no task can be made after the processor was retired.
    is_gone: bool,
}

impl Processor for Arc<Retired> {
    fn task(&self) -> Result<Box<dyn Task>, Failure> {
        match self.is_gone && self.is_retired.load(Ordering::Relaxed) {
            true => Err(Failure::peer("the program is gone")),
            false => Ok(Box::new(self.clone())),
        }
    }
}

impl Task for Arc<Retired> {
    fn process(&mut self, batch: &Batch, out: &mut Out<'_>) -> Result<(), Failure> {
        if self.is_retired.load(Ordering::Relaxed) {
            return Err(Failure::peer("a reload has replaced the program"));
        }
        out.keep(MAIN, 0..batch.len(), batch.count);
        Ok(())
    }
}

#[test]
fn positions_on_which_a_replaced_processor_fails_pass_through_the_new_configuration() {
    for is_gone in [false, true] {
        let all = vec![batch("t", "a\n-\n"); 6];
        let reader = FakeReader { all, next: 0 };
        let retired = Arc::new(Retired {
            is_gone,
            ..Retired::default()
        });
        let mut plan = Arc::into_inner(simple()).unwrap();
        plan.nodes[0].processor = Arc::new(retired.clone());
        let (old, _) = contexts(&Meters::default());
        let (new, _) = contexts(&Meters::default());
        let swap = Arc::new(Swap::default());
        swap.post(Next::new(Some(maker(Arc::new(plan), old))).unwrap());
        let mut reader = ChainReader::new(Box::new(reader), None, swap.clone());
        // The sink gets three positions and settles one of them.
        for seq in 1..=3 {
            assert_eq!(read_count(&mut reader), (seq, 2));
        }
        reader.commit(position(1)).unwrap();
        // A reload replaces the processor by one that filters a line of two.
        swap.post(Next::new(Some(maker(simple(), new))).unwrap());
        retired.is_retired.store(true, Ordering::Relaxed);
        assert_eq!(read_count(&mut reader), (4, 1));
        // The sink fails and reads again. Its first run after that fails on the old processor, the next one does not.
        reader.resume(Some(position(1))).unwrap();
        let failure = read(&mut reader).unwrap_err();
        assert!(failure.message.contains("the pro"), "{failure}");
        reader.resume(Some(position(1))).unwrap();
        let again: Vec<_> = (0..4).map(|_| read_count(&mut reader)).collect();
        assert_eq!(again, [(2, 1), (3, 1), (4, 1), (5, 1)]);
    }
}
