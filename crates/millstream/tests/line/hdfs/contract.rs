//! Runs the contract test of sinks, which every sink must pass, against a real cluster.

use std::{fs, sync::Mutex};

use millstream_config::{Environment, load};
use millstream_pipeline::node::Build;
use millstream_record::{Batch, Encoding};
use millstream_sinks::COMPONENTS;
use millstream_testkit::{block_on, contract::SinkCase, lines, server::hdfs::Hdfs};

#[test]
fn the_sink_keeps_the_contract_of_sinks() {
    let directory = tempfile::tempdir().unwrap();
    let cluster = Hdfs::start(&directory.path().join("cluster"));
    let config = directory.path().join("sink.yaml");
    let options = format!(
        "url: \"{}/contract\"\nformat: raw\nrotate: {{ interval: 1s, idle: 1s }}\n\
         retry: {{ first: 100ms, max: 1s, timeout: 30s }}\n",
        cluster.url()
    );
    fs::write(&config, options).unwrap();
    let options = load(&[config], &Environment::empty()).unwrap().tree.root;
    let component = COMPONENTS.iter().find(|one| one.name == "hdfs").unwrap();
    let Build::Sink(build) = component.build else {
        panic!("hdfs is no sink");
    };
    let sink = build("sink", &options).unwrap();

    let (fetched, cluster) = (directory.path().join("fetched"), Mutex::new(cluster));
    let arrived = move || {
        let _ = fs::remove_dir_all(&fetched);
        cluster.lock().unwrap().fetch("/contract", &fetched);
        let paths = fs::read_dir(&fetched).unwrap();
        let paths = paths.map(|entry| entry.unwrap().path());
        let texts = paths
            .filter(|path| path.is_file())
            .map(|path| fs::read_to_string(path).unwrap());
        let text: String = texts.collect();
        text.lines().map(str::to_owned).collect()
    };
    // A record without the field that `format: raw` writes: the sink must reject it.
    let misfit = Batch {
        encoding: Encoding::Packed,
        body: vec![0x92, 0x00, 0x80].into(),
        ..lines("t", "x")
    };
    let case = SinkCase {
        run: &|inlet, context| {
            let sink = sink.clone();
            Box::pin(async move { sink.run(inlet, context).await })
        },
        arrived: Some(std::sync::Arc::new(arrived)),
        directory: &directory.path().join("state"),
        misfit: Some(misfit),
    };
    block_on(case.check());
}
