//! A network that is cut at random times. Needs root.

use std::{thread::sleep, time::Duration};

use millstream_testkit::server::{Server, network::Network};

use super::victim::Random;

/// The number of cuts, the longest duration of a cut, and the longest time between two cuts.
const CUTS: u64 = 10;
const CUT_MS_MAX: u64 = 4000;
const WHOLE_MS_MAX: u64 = 2000;
/// The index of the one cut that lasts longer than any request timeout, and its duration.
const LONG_CUT: u64 = 4;
const LONG: Duration = Duration::from_secs(12);
/// How long the server is stopped before a cut: long enough for clients to send requests that it does not answer.
const UNDER_WAY: Duration = Duration::from_millis(300);

/// Cuts the network of a server repeatedly. The server is stopped for a moment before every other cut, so that requests are in flight.
/// It executes these requests while the network is cut, so its answers are lost.
pub fn cut_now_and_then(network: &Network, server: &Server) {
    let mut random = Random::new();
    for cut in 0..CUTS {
        sleep(Duration::from_millis(random.below(WHOLE_MS_MAX)));
        if cut % 2 == 0 {
            server.signal("STOP");
            sleep(UNDER_WAY);
        }
        network.cut();
        server.signal("CONT");
        match cut {
            LONG_CUT => sleep(LONG),
            _ => sleep(Duration::from_millis(random.below(CUT_MS_MAX))),
        }
        network.heal();
    }
}
