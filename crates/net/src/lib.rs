//! Sockets for every network source and sink: listening, accepting, TLS, limits.
//!
//! A network source has four options of this crate in its own `Config`, and one [`Server`] built from them:
//!
//! ```no_run
//! use millstream_config::{Node, OneOrMany};
//! use millstream_net::{Connection, Limits, Listen, Scheme, Server, SocketAccess, Takes, Tls};
//! use millstream_pipeline::{failure::Failure, node::{Checked, SourceContext}};
//!
//! #[derive(serde::Deserialize)]
//! #[serde(deny_unknown_fields)]
//! struct Config {
//!     listen: OneOrMany<Listen>,
//!     #[serde(default)]
//!     limits: Limits,
//!     #[serde(default)]
//!     tls: Tls,
//!     #[serde(default)]
//!     socket: SocketAccess,
//! }
//!
//! /// The schemes for `listen`, each with its default port (None: a URL must have a port).
//! const TAKES: Takes = &[(Scheme::Tcp, Some(6514)), (Scheme::Unix, None), (Scheme::Udp, Some(514))];
//!
//! fn build(options: &Node) -> Checked<Server> {
//!     let config: Config = options.read()?;
//!     // Each problem names its option: `listen`, `limits.*`, `tls.*` or `socket`. The certificates are read here.
//!     let Config { listen, limits, tls, socket } = &config;
//!     Server::check(options, listen, TAKES, limits, tls, socket)
//! }
//!
//! fn bind(server: &mut Server, context: &SourceContext) -> Result<(), Failure> {
//!     server.bind(context)
//! }
//!
//! async fn run(server: &mut Server, context: &SourceContext) -> Result<(), Failure> {
//!     // The source reads UDP and unix datagram sockets itself (`Server::datagrams`). For every connection, `each` is called
//!     // on a data thread after the TLS handshake. When the call returns, the connection is closed and its permit released.
//!     // During a drain, `serve` returns when the last connection has ended.
//!     let own = context.clone();
//!     let each = move |connection: Connection| {
//!         let context = own.clone();
//!         async move {
//!             let values = connection.peer.values(&context.host); // `host` and `peer` of its batches
//!             let mut stream = connection.stream; // tokio's AsyncRead and AsyncWrite
//!             let _ = tokio::io::copy(&mut stream, &mut tokio::io::sink()).await;
//!             drop(values);
//!         }
//!     };
//!     server.serve(context, each).await
//! }
//! ```
//!
//! A connection's task must enforce `limits.idle` and `limits.progress` and watch `context.stop` itself: only the task knows
//! whether its peer must send more bytes or waits for an answer. Protocols that authenticate after TLS
//! must finish by [`Connection::deadline`], which `limits.handshake` determines. [`sides`] splits a stream into a reading and a writing side on one thread, and can read a busy
//! socket periodically instead of on every wake-up. [`connect`] and [`ClientTls`] are for clients: they resolve names, try every
//! address, and support system roots, custom roots and client certificates.
//!
//! A source has at most `limits.connections` open connections, distributed evenly over the data threads. All sources together have at
//! most as many connections as the limit of open files allows, minus a reserve. When a limit is reached, the oldest connection that has
//! not sent a byte is evicted: its task reads end-of-file, as if the peer had closed it. A peer that does not finish its handshake holds
//! a permit only until the deadline. Certificates that change on disk are reloaded without a restart; invalid ones are reported, and the
//! old ones stay in use.

mod accept;
mod access;
mod bind;
mod connection;
mod descriptors;
mod dial;
pub mod handover;
mod limits;
mod listen;
mod moving;
pub mod open_files;
mod room;
mod server;
pub mod sides;
mod stream;
mod timed;
mod tls;

#[cfg(test)]
mod tests;

pub use access::SocketAccess;
pub use bind::{Beside, Datagrams, Own};
pub use connection::{Connection, Peer};
pub use descriptors::interface_connections;
pub use dial::{LOOKUP_AGE, Remote, connect, connect_each, has_moved, open};
pub use limits::Limits;
pub use listen::{Listen, Scheme, Takes};
pub use moving::{Motion, Moving, while_moving};
pub use server::Server;
pub use stream::{Socket, Stream};
pub use timed::{Handling, Timed, Times};
pub use tls::{Block, ClientAuth, ClientFiles, ClientTls, MinVersion, ServerTls, Tls};
