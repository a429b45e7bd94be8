//! Creates the client of the library hdfs-native, and turns its errors into failures that name the cluster and the next step.
//!
//! The library's tasks (connections, lease renewal) run on a separate runtime. The runtime ends when the client and all outputs
//! that the client writes are dropped, so no task of a failed run keeps a file open. After a timeout, a new client with new
//! connections replaces the old one and asks another name node first.

use std::{
    cell::RefCell,
    fmt,
    future::Future,
    ops::Deref,
    sync::{Arc, atomic::Ordering},
};

use hdfs_native::{Client, ClientBuilder, HdfsError};
use millstream_pipeline::failure::Failure;
use tokio::runtime::{Builder, Runtime};

use super::{Target, name_nodes};

/// A client and its threads.
pub(super) struct Live {
    client: Client,
    runtime: Option<Runtime>,
}

impl Live {
    fn new(target: &Target) -> Result<Self, Failure> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("hdfs")
            .enable_all()
            .build()
            .map_err(|error| Failure::us(format!("cannot start a thread: {error}")))?;
        let millis = target.timeout.as_millis().to_string();
        let turns = target.turns.load(Ordering::Relaxed);
        let mut settings = name_nodes::lists(target.hadoop_conf.as_deref(), turns);
        settings.push(("dfs.client.socket-timeout".to_owned(), millis));
        let mut builder = ClientBuilder::new()
            .with_io_runtime(runtime.handle().clone())
            .with_config(settings);
        // Without a host, the library connects to the `fs.defaultFS` of the Hadoop configuration.
        if !target.cluster.ends_with("//") {
            builder = builder.with_url(&target.cluster);
        }
        if let Some(directory) = &target.hadoop_conf {
            builder = builder.with_config_dir(directory);
        }
        if let Some(user) = &target.user {
            builder = builder.with_user(user);
        }
        if let Some(kerberos) = &target.kerberos {
            builder = builder
                .with_kerberos_principal(&kerberos.principal)
                .with_kerberos_keytab(&kerberos.keytab);
        }
        // The cause is a file on this machine. It may be corrected while the sink runs, so the failure is temporary.
        let client = builder.build().map_err(|error| {
            let url = &target.cluster;
            Failure::peer(format!("cannot make a client for {url}: {error}"))
        })?;
        Ok(Self {
            client,
            runtime: Some(runtime),
        })
    }
}

impl Deref for Live {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        // `drop` may run inside another runtime, which must not block until this runtime has ended.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// A cluster and its current client.
pub(super) struct Connection {
    target: Arc<Target>,
    live: RefCell<Arc<Live>>,
}

impl Connection {
    pub(super) fn new(target: &Arc<Target>) -> Result<Self, Failure> {
        Ok(Self {
            target: Arc::clone(target),
            live: RefCell::new(Arc::new(Live::new(target)?)),
        })
    }

    /// Returns the current client. Each output holds the client that created the output, until the output is closed.
    pub(super) fn client(&self) -> Arc<Live> {
        Arc::clone(&self.live.borrow())
    }

    /// Waits for a response of the cluster, at most `retry.timeout`. After a timeout, replaces the client.
    pub(super) async fn answer<T>(
        &self,
        what: impl fmt::Display,
        call: impl Future<Output = Result<T, HdfsError>>,
    ) -> Result<T, Trouble> {
        let Target {
            cluster, timeout, ..
        } = &*self.target;
        match tokio::time::timeout(*timeout, call).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(Trouble {
                failure: failure(cluster, &what, &error),
                error: Some(error),
            }),
            Err(_) => {
                self.turn();
                let text = format!("{cluster}: cannot {what}: no answer within {timeout:?}");
                Err(Trouble {
                    failure: Failure::peer(text),
                    error: None,
                })
            }
        }
    }

    /// Replaces the client for this and later runs. If no client can be created, the old one stays.
    fn turn(&self) {
        self.target.turns.fetch_add(1, Ordering::Relaxed);
        if let Ok(live) = Live::new(&self.target) {
            self.live.replace(Arc::new(live));
        }
    }
}

/// An error response of the cluster, or a timeout.
pub(super) struct Trouble {
    pub(super) failure: Failure,
    error: Option<HdfsError>,
}

impl Trouble {
    /// Whether the file does not exist.
    pub(super) fn is_missing(&self) -> bool {
        match &self.error {
            Some(HdfsError::FileNotFound(_)) => true,
            Some(HdfsError::RPCError(class, _)) => class == "java.io.FileNotFoundException",
            _ => false,
        }
    }

    /// Whether a file is where the path needs a directory. In this case, a look-up fails with the same error class as a denied
    /// access, so only the text of the error shows the reason.
    pub(super) fn is_below_file(&self) -> bool {
        let Some(HdfsError::RPCError(_, text)) = &self.error else {
            return false;
        };
        let first = text.lines().next().unwrap_or_default();
        first.trim_end().ends_with(" (is not a directory)")
    }

    /// Whether the client does not support this operation for this kind of file.
    pub(super) fn is_unknown(&self) -> bool {
        match &self.error {
            Some(HdfsError::UnsupportedFeature(_)) => true,
            Some(HdfsError::OperationFailed(text)) => text.contains("erasure-coded"),
            _ => false,
        }
    }

    /// Whether the file exists already.
    pub(super) fn is_there(&self) -> bool {
        matches!(self.error, Some(HdfsError::AlreadyExists(_)))
    }
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Self {
        trouble.failure
    }
}

/// Returns a failure that names the request and the cause. All causes are temporary: a name node may leave safe mode, a standby may
/// become active, a keytab may be corrected.
fn failure(url: &str, what: &dyn fmt::Display, error: &HdfsError) -> Failure {
    // Only the first line is used: Java's messages continue with a stack trace.
    let text = error.to_string();
    let first = text.lines().next().unwrap_or_default().trim_end();
    let help = match error {
        HdfsError::GSSAPIError(..) | HdfsError::SASLError(_) | HdfsError::NoSASLMechanism => {
            "; check `auth.kerberos`, the keytab, and that `KRB5_CONFIG` or /etc/krb5.conf knows the realm"
        }
        HdfsError::RPCError(class, _) | HdfsError::FatalRPCError(class, _)
            if class.ends_with("AccessControlException") =>
        {
            "; the user (option `user`, or the principal) needs to be allowed to write there"
        }
        HdfsError::RPCError(_, text) if text.contains("SIMPLE authentication is not enabled") => {
            "; the cluster wants Kerberos: give `auth: { kerberos: { principal, keytab } }` and `hadoop_conf`"
        }
        _ => "",
    };
    Failure::peer(format!("{url}: cannot {what}: {first}{help}"))
}
