//! A cluster behind a network that is cut. Needs root.

use millstream_testkit::server::{hdfs::Hdfs, network::Network};

use super::{
    AVRO, config, forward, log,
    program::{
        cuts::cut_now_and_then,
        free_port,
        victim::{Generator, generate},
    },
    publish_all, quick, start, verify_avro,
};

#[test]
fn a_network_that_is_cut_while_files_are_written_loses_and_doubles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let network = Network::new();
    let cluster = Hdfs::start_in(&folder.join("cluster"), &network);
    let port = free_port();
    let sink = quick(&cluster, AVRO);
    let program = start(folder, &config(folder, &forward(port), &sink)).listens(port);
    let generator = Generator::start(&generate(folder, port, "400000", "12000"));
    cut_now_and_then(&network, &cluster.name_node);
    generator.finish();
    cluster.wait_writable();
    assert_eq!(program.stop(), Some(0), "{}", log(folder));
    publish_all(folder, &sink, &[]);
    assert!(log(folder).contains("no answer within"), "{}", log(folder));
    verify_avro(&cluster, folder);
}
