//! `format: parquet` as pyarrow reads it.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use millstream_testkit::server::{
    installed,
    versitygw::{ACCESS_KEY, SECRET_KEY, Versitygw},
};

use crate::program::Program;

/// Runs a script with the Python that has pyarrow.
fn python(script: &str, arguments: &[&Path]) -> Output {
    let mut command = Command::new(installed("python/venv/bin/python"));
    command.args(["-c", script]).args(arguments);
    command.output().unwrap()
}

/// Writes a file for each of these objects, with the `message` of each record in a line.
pub fn messages(objects: &[PathBuf], out: &Path) {
    let read = "import sys, json, pyarrow.parquet as pq\n\
         for n, path in enumerate(sys.argv[2:]):\n\
         \x20   bodies = pq.ParquetFile(path).read()['body'].to_pylist()\n\
         \x20   with open(f'{sys.argv[1]}/{n}.log', 'w') as lines:\n\
         \x20       lines.writelines(json.loads(body)['message'] + '\\n' for body in bodies)";
    let arguments: Vec<&Path> = [out]
        .into_iter()
        .chain(objects.iter().map(PathBuf::as_path))
        .collect();
    let said = python(read, &arguments);
    assert!(
        said.status.success(),
        "{}",
        String::from_utf8_lossy(&said.stderr)
    );
}

/// pyarrow finds the 50,000 records of the generator and its end record.
#[test]
fn pyarrow_reads_every_parquet_record_and_its_time() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path();
    let server = Versitygw::start(place, "lake");
    let config = format!(
        "data_dir: {}\napi: {{ listen: [] }}\n\
         sources:\n  numbers: {{ type: generate, records: 50000 }}\n\
         channels:\n  kept: {{ type: disk, inputs: [numbers], size_max: 1GiB }}\n\
         sinks:\n  lake: {{ type: object, inputs: [kept], url: \"s3://lake/{{tag}}\", endpoint: \"{}\", format: parquet, \
         compression: zstd, auth: {{ access_key: {ACCESS_KEY}, secret_key: {SECRET_KEY} }} }}\n",
        place.join("data").display(),
        server.endpoint()
    );
    let program = Program::start_with(place, &config, &["--once"]);
    let log = place.join("log");
    assert_eq!(
        program.ended(),
        Some(0),
        "{}",
        fs::read_to_string(log).unwrap()
    );
    let read = "import sys, json, pyarrow.parquet as pq\n\
         t = pq.ParquetDataset(sys.argv[1]).read()\n\
         print(t.schema.field('time').type, t.schema.field('tag').type, t.schema.field('body').type)\n\
         print(t.num_rows, len({json.loads(b)['message'] for b in t['body'].to_pylist()}))\n\
         print(set(t['tag'].to_pylist()), t['time'][0].value > 10**18)";
    let said = python(read, &[&server.bucket("lake").join("numbers")]);
    let (out, errors) = (
        String::from_utf8_lossy(&said.stdout),
        String::from_utf8_lossy(&said.stderr),
    );
    assert_eq!(
        out, "timestamp[ns, tz=UTC] string string\n50001 50001\n{'numbers'} True\n",
        "{errors}"
    );
}
