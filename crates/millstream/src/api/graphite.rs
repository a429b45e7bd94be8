//! Sends all metrics to Graphite, as plaintext over TCP.
//!
//! The task runs on the main thread, like the interface. A report is dropped after the attempt to send it. So while the server is down or
//! slow, at most one report is in memory. Missed reports are not sent later, because counters are cumulative.

use std::{io, sync::Arc, time::Duration};

use millstream_config::Graphite;
use millstream_pipeline::{
    meters::{Meter, exposition::graphite},
    report::Reporter,
};
use millstream_record::Time;
use tokio::{
    io::AsyncWriteExt,
    net::TcpStream,
    sync::oneshot,
    task::JoinHandle,
    time::{Instant, MissedTickBehavior, interval_at, timeout},
};

use super::{Shown, metrics::families};

/// The maximum time to connect to the server, and the maximum time in which the server must read a report.
const STEP_MAX: Duration = Duration::from_secs(5);
/// The maximum back-off after failures. The back-off begins with the interval between reports, and each failure doubles it.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// The maximum time for the last report, which is sent when the process ends.
const LAST_MAX: Duration = Duration::from_secs(2);

/// The settings, and counters of reports.
#[derive(Default)]
pub(super) struct Pushes {
    settings: Option<Graphite>,
    /// Lines that were sent.
    pub(super) lines: Meter,
    /// Attempts that failed.
    pub(super) failures: Meter,
}

impl Pushes {
    pub(super) fn new(settings: Option<&Graphite>) -> Self {
        Self {
            settings: settings.cloned(),
            ..Self::default()
        }
    }

    /// Whether the configuration names a server.
    pub(super) fn is_on(&self) -> bool {
        self.settings.is_some()
    }
}

/// The task that sends a report in each interval.
pub struct Pusher {
    end: oneshot::Sender<()>,
    task: JoinHandle<()>,
}

impl Pusher {
    /// Starts the task; `None` if the configuration names no server.
    pub fn start(shown: Arc<Shown>) -> Option<Self> {
        let settings = shown.pushes.settings.clone()?;
        let (end, ended) = oneshot::channel();
        let task = tokio::spawn(push(settings, shown, ended));
        Some(Self { end, task })
    }

    /// Sends a last report, and waits at most `limit` and [`LAST_MAX`] until it is sent.
    pub async fn finish(self, limit: Duration) {
        // This does not fail, because the task holds the receiver until this message arrives.
        let _ = self.end.send(());
        let _ = timeout(LAST_MAX.min(limit), self.task).await;
    }
}

async fn push(settings: Graphite, shown: Arc<Shown>, mut ended: oneshot::Receiver<()>) {
    let every = settings.interval.as_duration();
    let mut ticks = interval_at(Instant::now() + every, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut link = Link::new(settings);
    loop {
        let is_last = tokio::select! {
            biased;
            _ = &mut ended => true,
            _ = ticks.tick() => false,
        };
        if is_last || link.is_due() {
            let text = graphite(
                &families(&shown),
                &link.settings.prefix,
                Time::now().seconds(),
            );
            let lines = text.lines().count() as u64;
            let sent = tokio::select! {
                sent = link.send(&text) => Some(sent),
                // A server that does not answer must not delay the end of the process.
                _ = &mut ended, if !is_last => None,
            };
            match sent {
                Some(true) => shown.pushes.lines.add(lines),
                Some(false) => shown.pushes.failures.add(1),
                None => return,
            }
        }
        if is_last {
            return;
        }
    }
}

/// The connection to the server.
struct Link {
    settings: Graphite,
    stream: Option<TcpStream>,
    reporter: Reporter,
    wait: Duration,
    next: Instant,
    is_failing: bool,
}

impl Link {
    fn new(settings: Graphite) -> Self {
        Self {
            wait: settings.interval.as_duration(),
            settings,
            stream: None,
            reporter: Reporter::new("graphite"),
            next: Instant::now(),
            is_failing: false,
        }
    }

    /// Whether the wait after the last failure is over.
    fn is_due(&self) -> bool {
        Instant::now() >= self.next
    }

    /// Sends a report, and returns whether that succeeded. Logs failures, and the first success after them.
    async fn send(&mut self, text: &str) -> bool {
        let endpoint = self.settings.endpoint.clone();
        match self.try_send(text).await {
            Ok(()) => {
                if std::mem::take(&mut self.is_failing) {
                    let text = format_args!("{endpoint} takes metrics again");
                    self.reporter.info("graphite", text);
                }
                self.wait = self.settings.interval.as_duration();
                true
            }
            Err(error) => {
                self.stream = None;
                self.is_failing = true;
                self.next = Instant::now() + self.wait;
                self.reporter.warn(
                    "graphite",
                    format_args!(
                        "cannot send metrics to {endpoint} (graphite.endpoint): {error}; retrying in {} s, and the reports until \
                         then are lost",
                        self.wait.as_secs()
                    ),
                );
                self.wait = (self.wait * 2).min(WAIT_MAX.max(self.settings.interval.as_duration()));
                false
            }
        }
    }

    async fn try_send(&mut self, text: &str) -> io::Result<()> {
        let mut stream = match self.stream.take().filter(is_open) {
            Some(stream) => stream,
            None => in_time(TcpStream::connect(self.settings.endpoint.as_str())).await?,
        };
        in_time(stream.write_all(text.as_bytes())).await?;
        self.stream = Some(stream);
        Ok(())
    }
}

/// Whether the connection can be used for the next report. False if the server has closed it. Also false if the server has sent bytes,
/// because the protocol has no answers. In both cases the next report gets a new connection.
fn is_open(stream: &TcpStream) -> bool {
    let mut thrown = [0; 1024];
    matches!(stream.try_read(&mut thrown), Err(error) if error.kind() == io::ErrorKind::WouldBlock)
}

async fn in_time<T>(step: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    let late = |_| io::Error::new(io::ErrorKind::TimedOut, "it does not answer in time");
    timeout(STEP_MAX, step).await.map_err(late)?
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millstream_config::Period;
    use tokio::{io::AsyncReadExt, net::TcpListener};

    use super::*;

    fn link(endpoint: &str) -> Link {
        Link::new(Graphite {
            endpoint: endpoint.to_owned(),
            prefix: "test".to_owned(),
            interval: Period::secs(1),
        })
    }

    #[tokio::test]
    async fn a_server_that_comes_back_gets_the_next_report_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut link = link(&address.to_string());
        assert!(link.send("one\n").await);
        let (mut peer, _) = listener.accept().await.unwrap();
        let mut got = [0; 4];
        peer.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"one\n");
        // The server restarts. The link notices the closed connection before it writes to it.
        drop((peer, listener));
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!link.send("two\n").await && !link.is_due());
        assert_eq!(link.wait, Duration::from_secs(2));
        let listener = TcpListener::bind(address).await.unwrap();
        assert!(link.send("three\n").await);
        assert_eq!(link.wait, Duration::from_secs(1));
        let (mut peer, _) = listener.accept().await.unwrap();
        let mut got = [0; 6];
        peer.read_exact(&mut got).await.unwrap();
        assert_eq!(&got, b"three\n");
    }

    #[tokio::test]
    async fn the_back_off_has_a_limit() {
        // No process listens on port 1.
        let mut link = link("127.0.0.1:1");
        for _ in 0..20 {
            assert!(!link.send("one\n").await);
        }
        assert_eq!(link.wait, WAIT_MAX);
    }
}
