//! A client that connects continually, to detect an address that refuses connections even for a moment.

use std::{
    net::TcpStream,
    os::unix::net::UnixStream,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle, sleep},
    time::Duration,
};

/// Connects to a TCP port and to a unix socket in turn, until `end` is called or a connection is refused.
pub struct Prober {
    ended: Arc<AtomicBool>,
    /// Returns the number of connections, and the error of the first refused one. `None`: no connection was refused.
    thread: JoinHandle<(u64, Option<String>)>,
}

impl Prober {
    /// Starts a prober of this port and the unix socket with this path.
    pub fn start(port: u16, path: PathBuf) -> Self {
        let ended = Arc::new(AtomicBool::new(false));
        let until = ended.clone();
        let thread = thread::spawn(move || {
            let (mut count, mut refused) = (0, None);
            while !until.load(Ordering::Relaxed) && refused.is_none() {
                let tcp = TcpStream::connect(("127.0.0.1", port)).err();
                let unix = UnixStream::connect(&path).err();
                refused = tcp.or(unix).map(|error| error.to_string());
                count += 2;
                sleep(Duration::from_millis(2));
            }
            (count, refused)
        });
        Self { ended, thread }
    }

    /// Stops the prober. Panics if a connection was refused.
    pub fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        let (connections, refused) = self.thread.join().unwrap();
        assert_eq!(refused, None, "after {connections} connections");
    }
}
