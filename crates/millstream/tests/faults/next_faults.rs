//! Faults between two Millstreams: the receiver's disk is full, or the network between the two is cut. Meanwhile the sender
//! keeps accepting records. Every record arrives once. Needs root.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    thread::sleep,
    time::Duration,
};

use crate::program::{
    Program,
    cuts::cut_now_and_then,
    disk::Small,
    free_port,
    victim::{Generator, Victim, arrived, generate, verify},
    wait_until,
};
use millstream_testkit::server::{
    Server,
    network::{self, Network},
};

/// How long the disk stays full: longer than the sender waits for an ack.
const FULL: Duration = Duration::from_secs(7);

/// The receiver: keeps records in `data` and writes them below `out`.
fn receiver(address: SocketAddr, data: &Path, out: &Path) -> String {
    format!(
        "data_dir: {}\napi: {{ listen: [] }}\nthreads: 2\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://{address}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\n\
         sinks:\n  out: {{ type: file, inputs: [kept], format: raw, path: \"{}/{{tag}}.log\" }}\n",
        data.display(),
        out.display()
    )
}

/// The sender: keeps records and forwards them, with a short timeout for acks.
fn sender(directory: &Path, port: u16, next: SocketAddr) -> String {
    format!(
        "data_dir: {}/data\napi: {{ listen: [] }}\nthreads: 1\n\
         sources:\n  in: {{ type: forward, listen: \"tcp://127.0.0.1:{port}\" }}\n\
         channels:\n  kept: {{ type: disk, inputs: [in], size_max: 1GiB, sync: batch }}\n\
         sinks:\n  next: {{ type: forward, inputs: [kept], servers: [\"{next}\"], peer: millstream, ack_timeout: 5s, \
         retry: {{ first: 100ms, max: 1s, timeout: 2s }} }}\n",
        directory.display()
    )
}

/// Starts the sender and the generator that feeds it.
fn send(directory: &Path, next: SocketAddr, records: &str, rate: &str) -> (Victim, Generator) {
    let (port, place) = (free_port(), directory.join("sender"));
    let config = sender(&place, port, next);
    let sender = Victim::start(place, port, config);
    let generator = Generator::start(&generate(directory, port, records, rate));
    (sender, generator)
}

fn log(directory: &Path) -> String {
    fs::read_to_string(directory.join("log")).unwrap_or_default()
}

/// Mounts a disk of this size, which is too small for the load, at the receiver's directory `full`. Kills the receiver, starts it
/// again, and runs the verifier. If `stalls` is true, no data on the disk is ever released, so the receiver waits until the disk
/// is enlarged.
fn fill(full: &str, size: &str, stalls: bool) {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let last = place.join("receiver");
    let small = Small::mount(last.join(full), size);
    let (port, out) = (free_port(), last.join("out"));
    let next = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), port);
    let config = receiver(next, &last.join("data"), &out);
    let named = small.path().display().to_string();
    let complaints = || {
        let log = log(place);
        let told = |line: &&str| line.contains(&named) && line.contains("No space left");
        log.lines().filter(told).count()
    };
    let program = Program::start(place, &config).listens(port);
    let (sender, generator) = send(place, next, "600000", "100000");
    if stalls {
        wait_until("the receiver says which path is full", || complaints() > 0);
    }
    // The sender's channel is on another disk, so the sender accepts all records even while the receiver accepts none.
    generator.finish();
    program.kill();
    let told = complaints();
    let program = Program::start(place, &config);
    if stalls {
        wait_until("its next run reports it, too", || complaints() > told);
        sleep(FULL);
        small.grow("1g");
    }
    arrived(&out, &place.join("ledger"));
    sender.stop();
    assert_eq!(program.stop(), Some(0), "{}", log(place));
    verify(&out, &place.join("ledger"));
}

#[test]
fn a_small_disk_under_the_channel_of_the_receiver_loses_and_doubles_nothing() {
    // The disk has space for only one segment. The channel continues, because it reuses this segment once the sink has settled it.
    fill("data", "100m", false);
}

#[test]
fn a_full_disk_under_all_files_of_the_receiver_loses_and_doubles_nothing() {
    fill("", "90m", true);
}

#[test]
fn a_network_that_is_cut_between_sender_and_receiver_loses_and_doubles_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let network = Network::new();
    let next = SocketAddr::new(IpAddr::V4(network.address()), free_port());
    let last = place.join("receiver");
    let out = last.join("out");
    fs::create_dir_all(&last).unwrap();
    let file = last.join("millstream.yaml");
    fs::write(&file, receiver(next, &last.join("data"), &out)).unwrap();
    let name = network.name().to_owned();
    let start = move || {
        let program = PathBuf::from(env!("CARGO_BIN_EXE_millstream"));
        let mut command = network::command(Some(&name), &program);
        command.arg("run").arg(&file);
        command
    };
    let mut server = Server::start_at("receiver", last.join("log"), next, start);
    let (sender, generator) = send(place, next, "400000", "12000");
    cut_now_and_then(&network, &server);
    generator.finish();
    arrived(&out, &place.join("ledger"));
    sender.stop();
    server.stop();
    let told = log(&place.join("sender"));
    assert!(told.contains("in doubt"), "{told}");
    verify(&out, &place.join("ledger"));
}
