//! A separate network for a server, connected to this machine by a cable that can be cut. Needs root and iproute2.

use std::{
    net::Ipv4Addr,
    path::Path,
    process::{self, Command},
    sync::atomic::{AtomicU32, Ordering},
};

/// The number of networks that this process has created.
static MADE: AtomicU32 = AtomicU32::new(0);
/// The block of addresses for benchmarks of networks (RFC 2544). No host uses these addresses. Each network takes four
/// addresses.
const BLOCK: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 0);
const NETWORKS: u32 = 1 << 15;

/// A network namespace and its cable. Removed when dropped.
pub struct Network {
    name: String,
    /// The address of the server's end; the one before it is this machine's.
    address: Ipv4Addr,
}

impl Network {
    /// Creates a network.
    ///
    /// # Panics
    /// If it cannot be created, for example without root.
    #[must_use]
    pub fn new() -> Self {
        let (process, made) = (process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        // Each process starts at another number, so that tests in parallel do not collide.
        let number = process.wrapping_mul(7919).wrapping_add(made) % NETWORKS;
        let ours = Ipv4Addr::from(u32::from(BLOCK) + 4 * number + 1);
        let address = Ipv4Addr::from(u32::from(ours) + 1);
        let name = format!("ms{process}-{made}");
        let network = Self { name, address };
        let name = &network.name;
        ip(&format!("netns add {name}"));
        ip(&format!(
            "link add {name} type veth peer name cable netns {name}"
        ));
        ip(&format!("addr add {ours}/30 dev {name}"));
        ip(&format!("link set {name} up"));
        ip(&format!("-n {name} addr add {address}/30 dev cable"));
        ip(&format!("-n {name} link set lo up"));
        network.heal();
        network
    }

    /// The server's address.
    #[must_use]
    pub fn address(&self) -> Ipv4Addr {
        self.address
    }

    /// Its name, for [`command()`].
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Cuts the cable: nothing arrives on either side, and neither side is notified.
    pub fn cut(&self) {
        ip(&format!("-n {} link set cable down", self.name));
    }

    /// Reconnects the cable.
    pub fn heal(&self) {
        ip(&format!("-n {} link set cable up", self.name));
    }
}

impl Default for Network {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        let gone = Command::new("ip")
            .args(["netns", "del", &self.name])
            .status();
        // Best effort: a namespace that remains does no harm.
        drop(gone);
    }
}

/// A command that runs a program in the network with this name; `None`: in this machine's network.
#[must_use]
pub fn command(network: Option<&str>, program: &Path) -> Command {
    let Some(network) = network else {
        return Command::new(program);
    };
    let mut command = Command::new("ip");
    // `ip` replaces itself with the program, so signals reach the program.
    command.args(["netns", "exec", network]).arg(program);
    command
}

fn ip(words: &str) {
    let said = Command::new("ip").args(words.split(' ')).output();
    let said = said.unwrap_or_else(|error| panic!("cannot run ip (iproute2): {error}"));
    assert!(
        said.status.success(),
        "`ip {words}`: {}run the tests as root",
        String::from_utf8_lossy(&said.stderr)
    );
}
