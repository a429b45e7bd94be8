//! Sockets as we use them: listen, accept, TLS, limits. For every source and sink that speaks over a network.
//!
//! A network source has three options of this crate in its own `Config` and one [`Server`] built of them:
//!
//! ```no_run
//! use millstream_config::{Node, OneOrMany};
//! use millstream_net::{Connection, Limits, Listen, Scheme, Server, Takes, Tls};
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
//! }
//!
//! /// What may stand in `listen`, and the port of each where a URL names none (None: it must name one).
//! const TAKES: Takes = &[(Scheme::Tcp, Some(6514)), (Scheme::Unix, None), (Scheme::Udp, Some(514))];
//!
//! fn build(options: &Node) -> Checked<Server> {
//!     let config: Config = options.read()?;
//!     // Problems come with their places: `listen`, `limits.*`, `tls.*`. The certificates are read here.
//!     Server::check(options, &config.listen, TAKES, &config.limits, &config.tls)
//! }
//!
//! fn bind(server: &mut Server, context: &SourceContext) -> Result<(), Failure> {
//!     server.bind(&context.reporter)
//! }
//!
//! async fn run(server: &mut Server, context: &SourceContext) -> Result<(), Failure> {
//!     // UDP and unix datagram sockets are the source's own to read (`Server::datagrams`). Streams come as connections:
//!     // one call for each, on a data thread, after its TLS handshake. The connection ends when the call returns, and
//!     // gives its permit back. `serve` itself returns in a drain, when the last one has ended.
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
//! A connection's task must watch `context.stop`, `limits.idle` and `limits.progress` itself: only it knows what its peer waits for.
//! [`Connection::deadline`] is the end of `limits.handshake`, for protocols that authenticate behind TLS.
//! [`sides`] splits a stream into a reading and a writing side on one thread and can set a busy socket aside.
//! [`connect`] and [`ClientTls`] are the other end: names, several addresses, system roots, own roots, client certificates.
//!
//! It promises: at most `limits.connections` at a time, dealt evenly over the data threads, and of all sources together as
//! many as the limit of open files allows without its reserve; when all are open, the connection that has been silent for the
//! longest time since it was accepted is evicted, and reads as if its peer had closed it; a peer that does not finish its
//! handshake costs a permit until the deadline and nothing after it; certificates that change on the disk are taken up
//! without a restart, broken ones are reported and the old ones stay. It leaves to others: every protocol above bytes.

mod accept;
mod bind;
mod descriptors;
mod dial;
mod limits;
mod listen;
mod room;
mod server;
pub mod sides;
mod stream;
mod timed;
mod tls;

#[cfg(test)]
mod tests;

pub use bind::Datagrams;
pub use descriptors::interface_connections;
pub use dial::{Remote, connect, connect_each, open};
pub use limits::Limits;
pub use listen::{Listen, Scheme, Takes};
pub use server::{Connection, Peer, Server};
pub use stream::{Socket, Stream};
pub use timed::{Handling, Timed, Times};
pub use tls::{Block, ClientAuth, ClientTls, MinVersion, ServerTls, Tls, client_config};
