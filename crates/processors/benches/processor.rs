//! Speed of the processor `remap`: `cargo bench --workspace --features millstream/vrl --bench processor`. Prints the throughput
//! from an input batch to its finished output, in thousands of records per second. The benchmark of the crate `vrl` runs the same
//! programs without the processor.

#[path = "../../vrl/benches/cases/mod.rs"]
mod cases;

use std::hint::black_box;

use millstream_config::{Environment, load};
use millstream_pipeline::{node::Build, trial::Trial};

/// The processor `remap` with this program.
fn remap(program: &str) -> Trial {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("p.vrl"), program).expect("a file");
    let config = directory.path().join("c.yaml");
    std::fs::write(&config, "file: p.vrl\n").expect("a file");
    let options = load(&[config], &Environment::empty()).map(|loaded| loaded.tree.root);
    let options = options.unwrap_or_else(|_| panic!("it is YAML"));
    let mut components = millstream_processors::COMPONENTS.iter();
    let remap = components.find(|component| component.name == "remap");
    let Some(Build::Processor(build)) = remap.map(|remap| remap.build) else {
        panic!("`remap` is no processor");
    };
    let processor = build("p", &options).unwrap_or_else(|_| panic!("it compiles"));
    Trial::new("p", &*processor).expect("it starts")
}

#[allow(clippy::print_stdout)]
fn main() {
    for (name, program, record) in cases::chosen() {
        let batch = cases::batch(record);
        let mut remap = remap(program);
        let speed = cases::fastest(|| {
            let made = remap.run(black_box(&batch)).expect("it runs");
            assert_eq!(made.counts.sent, cases::RECORDS as u64);
            black_box(made);
        });
        println!("{name}: {speed:.0} k/s through the processor");
    }
}
