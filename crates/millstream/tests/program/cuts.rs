//! A network that is cut now and then. Needs root.

use std::{thread::sleep, time::Duration};

use millstream_testkit::server::{Server, network::Network};

use super::victim::Random;

/// How often it is cut, for how long at most, and how long it is whole at most.
const CUTS: u64 = 10;
const CUT_MS_MAX: u64 = 4000;
const WHOLE_MS_MAX: u64 = 2000;
/// The one cut that lasts longer than anybody waits for an answer, and for how long.
const LONG_CUT: u64 = 4;
const LONG: Duration = Duration::from_secs(12);
/// As long as it takes until requests are under way to a server that stands still.
const UNDER_WAY: Duration = Duration::from_millis(300);

/// Cuts the network of a server again and again, half of the times while requests are under way: the server does them, and its
/// answers reach nobody.
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
