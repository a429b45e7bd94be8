//! A client that connects again and again, to find an address that is closed for a moment.

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

/// Connects to a port and to a path until its end.
pub struct Prober {
    ended: Arc<AtomicBool>,
    /// Gives the number of connections, and why the first one was refused.
    thread: JoinHandle<(u64, Option<String>)>,
}

impl Prober {
    /// Starts to connect.
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

    /// Ends it; panics if a connection was refused.
    pub fn end(self) {
        self.ended.store(true, Ordering::Relaxed);
        let (connections, refused) = self.thread.join().unwrap();
        assert_eq!(refused, None, "after {connections} connections");
    }
}
