//! With servers that fail at random, no record is lost, and the same id always has the same bytes.

use super::{server::Act, *};
use crate::rig::packed;

/// A random generator that returns the same numbers for the same seed (xorshift64*).
#[derive(Clone)]
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }

    fn act(&mut self) -> Act {
        match self.below(40) {
            0 => Act::StoreAndClose,
            1 => Act::Close,
            2 => Act::AckAndClose,
            3 => Act::AckWrong,
            4 => Act::Silence,
            5 => Act::AckTwice,
            6 => Act::Babble,
            7..12 => Act::AckLate(Duration::from_millis(self.below(30))),
            _ => Act::Ack,
        }
    }
}

fn faulty(mut random: Random) -> impl FnMut(&Received) -> Act + 'static {
    move |_| random.act()
}

const CHUNKS: usize = 150;

/// Sends numbered chunks, some larger than one write to a socket, to servers that fail at random, and kills the sink now and then.
/// Returns the chunks that each server has stored.
async fn storm(seed: u64, servers: usize, more: &str) -> Vec<Vec<Received>> {
    let directory = tempfile::tempdir().unwrap();
    let mut random = Random(seed);
    let mut started = Vec::new();
    for number in 0..servers {
        started.push(Server::start(faulty(Random(seed ^ (number as u64 + 77)))).await);
    }
    let upstream = Upstream::durable(u128::from(seed));
    for number in 0..CHUNKS {
        let size = [1, 100, 50_000, 400_000][random.below(4) as usize];
        let text = format!("{number} {}\n", "x".repeat(size));
        upstream.put(packed("t", &text), false);
    }
    upstream.close();
    let servers: Vec<_> = started.iter().collect();
    let more = format!(r#", "ack_timeout": "60ms", "in_flight": "1MiB"{more}"#);
    let options = options(&servers, &more);
    // The maximum time of a run grows with each restart: no chunk is settled before the first checkpoint, which may come after all
    // chunks, and a busy machine needs time to reach it.
    for restarts in 1.. {
        let mut rig = Rig::new(&COMPONENT, &options, &upstream, directory.path());
        let life = Duration::from_millis(random.below(200 * restarts));
        match tokio::time::timeout(life, rig.run()).await {
            Ok(ended) => {
                ended.unwrap();
                break;
            }
            Err(_) => tokio::task::yield_now().await,
        }
    }
    assert_eq!(upstream.settled(), CHUNKS, "seed {seed}");
    started.iter().map(Server::received).collect()
}

/// The number of the chunk in a frame.
fn number(frame: &Received) -> usize {
    let message = &frame.messages()[0];
    message.split(' ').next().unwrap().parse().unwrap()
}

#[test]
fn one_server_gets_every_chunk_once_and_in_order_if_it_ignores_repeated_ids() {
    for seed in 1..=8 {
        let received = local(storm(seed, 1, ""));
        let once = once_each(&received[0]);
        // A server that drops a frame gets that frame first on the next connection, so the first copies of all chunks are in order.
        let numbers: Vec<_> = once.iter().map(|frame| number(frame)).collect();
        assert_eq!(numbers, (0..CHUNKS).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn several_servers_lose_no_chunk_and_the_same_id_has_the_same_bytes() {
    for (seed, more) in [
        (11, ""),
        (12, ""),
        (13, r#", "failover": "wait""#),
        (14, r#", "failover": "wait""#),
    ] {
        let received = local(storm(seed, 3, more));
        if !more.is_empty() {
            // A chunk in doubt (sent, but not acked) goes to the same server only, even if the sink is killed.
            let mut owners: HashMap<&[u8], usize> = HashMap::new();
            for (server, frames) in received.iter().enumerate() {
                for frame in frames {
                    let owner = *owners.entry(&frame.id).or_insert(server);
                    assert_eq!(owner, server, "seed {seed}");
                }
            }
        }
        let received = received.concat();
        let mut numbers: Vec<_> = once_each(&received)
            .iter()
            .map(|frame| number(frame))
            .collect();
        numbers.sort_unstable();
        assert_eq!(numbers, (0..CHUNKS).collect::<Vec<_>>(), "seed {seed}");
    }
}

#[test]
fn behind_memory_every_receipt_succeeds_in_the_end_and_nothing_is_lost() {
    for seed in [21, 22, 23] {
        local(async {
            let server = Server::start(faulty(Random(seed))).await;
            let upstream = Upstream::memory();
            let mut rig = rig(
                &upstream,
                &options(&[&server], r#", "ack_timeout": "60ms""#),
            );
            let mut random = Random(seed ^ 5);
            run_until(&mut rig, async {
                let mut receipts = Vec::new();
                for number in 0..CHUNKS {
                    let size = [1, 100, 200_000][random.below(3) as usize];
                    let text = format!("{number} {}\n", "x".repeat(size));
                    receipts.push(upstream.put(packed("t", &text), random.below(2) == 0));
                    if random.below(10) == 0 {
                        tokio::time::sleep(Duration::from_millis(random.below(20))).await;
                    }
                }
                eventually(|| receipts.iter().all(settled)).await;
            })
            .await;
            let received = server.received();
            let messages = once_each(&received)
                .into_iter()
                .flat_map(Received::messages);
            let number = |text: String| text.split(' ').next().unwrap().parse().unwrap();
            let numbers: Vec<usize> = messages.map(number).collect();
            assert_eq!(numbers, (0..CHUNKS).collect::<Vec<_>>(), "seed {seed}");
        });
    }
}
