//! The configuration of Millstream: YAML files become a tree in which every value knows its file, line and column. The tree becomes Rust
//! types.
//!
//! Files are parsed (`parse`), variables are substituted (`substitute`), the tree is divided into sections, and each node reads its
//! own options (`read`). All problems are reported together, each with its file, line and column, and with advice. No file can make this
//! crate panic or exhaust memory. Each type of source, channel, processor or sink defines its
//! own options; the pipeline checks the graph.
//!
//! ```
//! use millstream_config::{Environment, OneOrMany, Problems, Size, load};
//!
//! /// The options that many nodes share.
//! #[derive(serde::Deserialize)]
//! struct Common {
//!     inputs: OneOrMany<String>,
//! }
//!
//! /// The options of one type of node.
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config {
//!     path: String,
//!     #[serde(default)]
//!     size: Size,
//! }
//!
//! # fn main() -> Result<(), Problems> {
//! # let dir = tempfile::tempdir().expect("a directory");
//! # let paths = [dir.path().join("line.yaml")];
//! # std::fs::write(&paths[0], "sinks: { out: { type: file, inputs: in, path: /x, size: 64KiB } }").expect("a file");
//! let loaded = load(&paths, &Environment::of_process())?;
//! let mut problems = loaded.problems;
//! let sections = loaded.tree.sections();
//! problems.extend(sections.problems.0);
//! for entry in sections.nodes {
//!     let mut options = entry.options;
//!     match (options.take_part::<Common>(), options.read::<Config>()) {
//!         (Ok(common), Ok(config)) => assert_eq!((&*common.inputs[0], config.size), ("in", Size::kib(64))),
//!         (common, config) => problems.extend([common.err(), config.err()].into_iter().flatten().flatten()),
//!     }
//! }
//! assert!(!problems.has_errors(), "{}", problems.render(false));
//! # Ok(())
//! # }
//! ```

mod environment;
mod fingerprint;
mod inside;
mod load;
pub mod machine;
mod mask;
pub mod names;
mod node;
mod one_or_many;
mod parse;
mod period;
mod permissions;
mod place;
mod problem;
mod quantity;
mod read;
mod scalar;
mod secret;
mod secret_names;
mod sections;
mod settings;
mod size;
mod substitute;
mod syntax;
mod tls;
mod whole;
mod words;

pub use environment::Environment;
pub use load::{Loaded, load, load_only};
pub use node::{Key, Map, Node, Text, Value};
pub use one_or_many::OneOrMany;
pub use period::Period;
pub use permissions::Permissions;
pub use place::{Place, Source};
pub use problem::{Problem, Problems, Severity};
pub use read::fields;
pub use secret::Secret;
pub use secret_names::is_secret_name;
pub use sections::{Entry, Section, Sections, Tree};
pub use settings::{
    Api, ApiCertificate, ApiEndpoint, ApiToken, Graphite, Health, LocalRole, Log, LogFormat,
    LogLevel, RejectedLimits, Role, Settings, WhenRejectedFull,
};
pub use size::Size;
pub use whole::read_file;
pub use words::{Word, unknown};
