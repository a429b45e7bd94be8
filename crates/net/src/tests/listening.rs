//! Tests of addresses, limits and the drain.

use super::*;

#[test]
fn several_connections_are_served_and_end_with_their_peers() {
    let directory = tempfile::tempdir().unwrap();
    let server = Echo::start(directory.path(), "");
    let mut streams: Vec<_> = (0..8).map(|_| server.connect()).collect();
    for stream in &mut streams {
        exchange(stream, b"some bytes").unwrap();
    }
    assert_eq!(server.open(), 8);
    drop(streams);
    until("all are closed", || server.open() == 0);
}

#[test]
fn a_drain_refuses_new_connections_and_finishes_open_ones() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("in.sock");
    let listen = format!("listen: ['tcp://127.0.0.1:0', 'unix://{}']", path.display());
    let server = Echo::serve(check(directory.path(), &format!("{{ {listen} }}")).unwrap());
    let mut stream = server.connect();
    exchange(&mut stream, b"before").unwrap();
    let mut local = std::os::unix::net::UnixStream::connect(&path).unwrap();
    exchange(&mut local, b"local").unwrap();
    server.stopper.stop();
    until("the listeners are closed", || {
        TcpStream::connect(server.address).is_err() && !path.exists()
    });
    exchange(&mut stream, b"still").unwrap();
    assert!(server.ended.try_recv().is_err());
    drop((stream, local));
    server.ended.recv_timeout(PATIENCE).unwrap().unwrap();
}

#[test]
fn a_failed_bind_names_the_address_and_suggests_a_remedy() {
    let directory = tempfile::tempdir().unwrap();
    let threads = Threads::start(1).unwrap();
    let (context, _stopper) = context(&threads);
    let bind = |listen: &str| {
        let mut server = check(directory.path(), &format!("{{ listen: '{listen}' }}")).unwrap();
        let bound = server.bind(&context);
        bound.map(|()| server).map_err(|failure| failure.message)
    };
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("tcp://{}", taken.local_addr().unwrap());
    let message = bind(&address).unwrap_err();
    let wanted = format!(
        "cannot listen on {address}: Address already in use (os error 98); another source or process"
    );
    assert!(message.starts_with(&wanted), "{message}");
    let path = directory.path().join("s");
    for scheme in ["unix", "unixgram"] {
        let listen = format!("{scheme}://{}", path.display());
        // A socket of a dead process is replaced, one in use is not.
        drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
        let living = bind(&listen).unwrap();
        assert!(
            bind(&listen)
                .unwrap_err()
                .contains("another process listens on it")
        );
        drop(living);
        assert!(!path.exists());
        std::fs::write(&path, "no socket").unwrap();
        assert!(bind(&listen).unwrap_err().contains("not a socket"));
        std::fs::remove_file(&path).unwrap();
    }
    assert!(
        bind("unix:///nowhere/at/all")
            .unwrap_err()
            .contains("make the directory first")
    );
}

/// Binds `socket` with further options in a new directory, and returns the socket's metadata, or the failure.
fn access(scheme: &str, options: &str) -> Result<std::fs::Metadata, String> {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let text = format!(
        "{{ listen: '{scheme}://{}', socket: {options} }}",
        path.display()
    );
    let threads = Threads::start(1).unwrap();
    let (context, _stopper) = context(&threads);
    let mut server = check(directory.path(), &text).unwrap();
    match server.bind(&context) {
        Ok(()) => Ok(std::fs::metadata(&path).unwrap()),
        Err(failure) => {
            // A socket with the wrong access would stay in the way.
            assert!(!path.exists());
            Err(failure.message)
        }
    }
}

#[test]
fn a_unix_socket_gets_the_permissions_the_owner_and_the_group_of_the_options() {
    use std::os::unix::fs::MetadataExt;
    let mine = std::fs::metadata("/proc/self").unwrap();
    for scheme in ["unix", "unixgram"] {
        for (mode, wanted) in [
            ("0660", 0o660),
            ("0666", 0o666),
            ("'0600'", 0o600),
            ("0777", 0o777),
        ] {
            let found = access(scheme, &format!("{{ mode: {mode} }}")).unwrap();
            assert_eq!(found.mode() & 0o777, wanted, "{scheme} {mode}");
            assert_eq!((found.uid(), found.gid()), (mine.uid(), mine.gid()));
        }
        let own = format!("{{ owner: {}, group: '{}' }}", mine.uid(), mine.gid());
        assert!(access(scheme, &own).is_ok());
        let failure = access(scheme, "{ group: 'no such group' }").unwrap_err();
        let wanted = "this machine has no group `no such group` (`socket.group`)";
        assert!(failure.contains(wanted), "{failure}");
        let given = access(scheme, "{ mode: 0620, owner: 4711, group: 4712 }");
        if mine.uid() == 0 {
            let given = given.unwrap();
            assert_eq!((given.uid(), given.gid()), (4711, 4712));
            assert_eq!(given.mode() & 0o777, 0o620);
        } else {
            let failure = given.unwrap_err();
            assert!(failure.contains("only root can give"), "{failure}");
        }
    }
}

#[test]
fn a_socket_that_is_taken_over_gets_the_new_permissions() {
    use std::os::unix::fs::MetadataExt;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    let threads = Threads::start(1).unwrap();
    let (before, _stopper) = context(&threads);
    let start = |context: &SourceContext, mode: &str| {
        let text = format!(
            "{{ listen: 'unix://{}', socket: {{ mode: {mode} }} }}",
            path.display()
        );
        let mut server = check(directory.path(), &text).unwrap();
        server.bind(context).unwrap();
        server
    };
    let first = start(&before, "0600");
    let inode = std::fs::metadata(&path).unwrap().ino();
    let after = SourceContext {
        name: "next".into(),
        follows: ["in".into(), "next".into()].into(),
        ..before.clone()
    };
    let second = start(&after, "0666");
    let found = std::fs::metadata(&path).unwrap();
    assert_eq!((found.ino(), found.mode() & 0o777), (inode, 0o666));
    drop((first, second));
}

#[test]
fn access_options_without_a_unix_socket_are_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let text = "{ listen: 'tcp://127.0.0.1:0', socket: { mode: 0666 } }";
    let problems = check(directory.path(), text).unwrap_err();
    assert!(
        problems[0].message.contains("`listen` has none"),
        "{problems:?}"
    );
    let text = "{ listen: 'unix:///x', socket: { mode: rw } }";
    let problems = check(directory.path(), text).unwrap_err();
    assert!(problems[0].message.contains("in octal"), "{problems:?}");
}

#[test]
fn datagram_sockets_are_bound_and_given_to_the_source() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("log");
    let listen = format!(
        "listen: ['udp://127.0.0.1:0', 'unixgram://{}']",
        path.display()
    );
    let mut server = check(directory.path(), &format!("{{ {listen} }}")).unwrap();
    let threads = Threads::start(1).unwrap();
    let (context, _stopper) = context(&threads);
    server.bind(&context).unwrap();
    let all = server.datagrams().unwrap();
    assert!(matches!(
        all[..],
        [crate::Datagrams::Udp(_), crate::Datagrams::Unix(_)]
    ));
    std::os::unix::net::UnixDatagram::unbound()
        .unwrap()
        .send_to(b"x", &path)
        .unwrap();
    drop((server, all));
    assert!(!path.exists());
}

#[test]
fn all_invalid_limits_are_reported_together() {
    let directory = tempfile::tempdir().unwrap();
    let text = "{ listen: 'http://a', limits: { frame: 2GiB } }";
    assert_eq!(check(directory.path(), text).unwrap_err().len(), 1);
    let text = "{ listen: 'udp://a', limits: { frame: 2GiB, connections: 0, handshake: 0 } }";
    let problems = check(directory.path(), text).unwrap_err();
    let columns: Vec<_> = problems.iter().map(|p| p.place.column).collect();
    assert_eq!(columns, [11, 39, 58, 72], "{problems:?}");
}
