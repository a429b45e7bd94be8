//! Runs the tools of Hadoop and Avro, to see a cluster as its clients do.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use super::{PRINCIPAL, installed, network};

/// Options of every Java program: small and quick to start.
const JAVA: [&str; 4] = [
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
];

/// A cluster as its clients see it.
pub struct Tools {
    pub(super) directory: PathBuf,
    pub(super) url: String,
    pub(super) kerberos: bool,
}

impl Tools {
    /// The directory of `core-site.xml` and `hdfs-site.xml`: the option `hadoop_conf`.
    pub fn conf(&self) -> PathBuf {
        self.directory.join("conf")
    }

    /// The URL of the cluster: `hdfs://HOST:PORT`, or `hdfs://NAMESERVICE`.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs `hdfs dfs ARGUMENTS`; returns its output.
    ///
    /// # Panics
    /// If it fails; prints its output.
    pub fn shell(&self, arguments: &[&str]) -> String {
        self.shell_as("client.keytab", PRINCIPAL, arguments)
    }

    pub(super) fn shell_as(&self, keytab: &str, principal: &str, arguments: &[&str]) -> String {
        let mut command = Command::new("java");
        command.args(JAVA);
        if self.kerberos {
            let keytab = self.directory.join("kdc").join(keytab);
            command.arg(format!("-Dkeytab={}", keytab.display()));
            command.arg(format!("-Dprincipal={principal}"));
        }
        command.args(java_arguments(&self.directory, "Shell", arguments));
        run(&mut command)
    }

    /// Copies everything below `path` into the new directory `into`.
    ///
    /// # Panics
    /// As [`Tools::shell`].
    pub fn fetch(&self, path: &str, into: &Path) {
        self.shell(&["-get", path, &into.display().to_string()]);
    }

    /// The paths of all files below `path`, sorted.
    ///
    /// # Panics
    /// As [`Tools::shell`].
    pub fn files(&self, path: &str) -> Vec<String> {
        let listed = self.shell(&["-ls", "-R", "-C", path]);
        let directories = self.shell(&["-ls", "-R", path]);
        let is_file = |path: &&str| {
            let mut lines = directories.lines();
            lines.any(|line| line.starts_with('-') && line.ends_with(*path))
        };
        listed.lines().filter(is_file).map(str::to_owned).collect()
    }
}

/// Reads the `.avro` files below `directory` with Avro's reader, and writes the bodies of their events to the directory `out`, one
/// per line.
///
/// # Panics
/// If it cannot read a file.
pub fn avro_bodies(directory: &Path, out: &Path) {
    let words = ["bodies", &path_text(directory), &path_text(out)];
    run(&mut java(directory, "Events", &words));
}

/// The codec, the schema and every event of a file, as Avro's reader prints them.
///
/// # Panics
/// If it cannot read the file.
pub fn avro_show(file: &Path) -> String {
    run(&mut java(file, "Events", &["show", &path_text(file)]))
}

pub(super) fn path_text(path: &Path) -> String {
    path.display().to_string()
}

/// A command that runs a Java program with the jars. The configuration in `directory` comes first on the class path, if there
/// is one.
pub(super) fn java(directory: &Path, class: &str, arguments: &[&str]) -> Command {
    java_in(None, directory, class, arguments)
}

/// Like [`java`], in the network with this name.
pub(super) fn java_in(
    network: Option<&str>,
    directory: &Path,
    class: &str,
    arguments: &[&str],
) -> Command {
    let mut command = network::command(network, Path::new("java"));
    command
        .args(JAVA)
        .args(java_arguments(directory, class, arguments));
    command
}

fn java_arguments(directory: &Path, class: &str, arguments: &[&str]) -> Vec<String> {
    let jars = installed("hdfs/target/dependency");
    let classes = installed("hdfs/target/classes");
    let krb5 = directory.join("kdc/krb5.conf");
    let path = format!(
        "{}:{}:{}/*",
        directory.join("conf").display(),
        classes.display(),
        jars.display()
    );
    let mut words = Vec::new();
    if krb5.exists() {
        words.push(format!("-Djava.security.krb5.conf={}", krb5.display()));
    }
    words.extend(["-cp".to_owned(), path, class.to_owned()]);
    words.extend(arguments.iter().map(|&word| word.to_owned()));
    words
}

/// Runs a command to its end; returns its output.
pub(super) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("cannot start java: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed: {said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
