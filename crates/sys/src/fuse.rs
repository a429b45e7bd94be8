//! Mounts a directory as a FUSE file system, and reads and writes its device.
//!
//! This needs no C library: the system's helper `fusermount3` mounts the file system and passes the device over a socket; without the
//! helper, root mounts it with one system call. The protocol on the device is in the crate `wire`.

use std::{
    ffi::{CString, OsString},
    fmt, fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::{
            ffi::{OsStrExt, OsStringExt},
            fs::MetadataExt,
            net::UnixStream,
        },
    },
    path::{Path, PathBuf},
    process::{Child, Stdio},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, IoSliceMut},
    mount::{MountFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
};

use crate::child;

/// The file system type of these mounts, as /proc/self/mountinfo shows it.
pub const TYPE: &str = "fuse.millstream";

/// The helpers that mount for unprivileged users, of libfuse 3 and 2.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// Mount options.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Other users may access the mount.
    pub allow_other: bool,
    /// The mount outlives this process, which leaves its session to a next one. So no helper may unmount it when this process
    /// ends.
    pub outlives: bool,
}

/// The device of one mount. Clones share it; when the last one is dropped, the mount answers ENOTCONN.
#[derive(Clone, Debug)]
pub struct Device(Arc<OwnedFd>);

impl Device {
    /// Appends one request to `buffer` and returns the length of the request. The spare capacity of `buffer` must hold the largest
    /// request. `Ok(None)`: no request is waiting.
    ///
    /// # Errors
    /// ENODEV: the file system is unmounted.
    pub fn read(&self, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, rustix::buffer::spare_capacity(buffer)) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(Errno::AGAIN) => return Ok(None),
                // ENOENT: the request was interrupted before it was read.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes one answer, the concatenation of these parts.
    ///
    /// # Errors
    /// ENOENT: the kernel no longer waits for an answer to the request.
    pub fn write(&self, parts: &[io::IoSlice<'_>]) -> io::Result<()> {
        loop {
            match rustix::io::writev(&self.0, parts) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// The device of a mount. A program can get it from a program that ran before.
    pub fn new(device: OwnedFd) -> io::Result<Self> {
        rustix::io::fcntl_setfd(&device, rustix::io::FdFlags::CLOEXEC)?;
        rustix::fs::fcntl_setfl(&device, OFlags::NONBLOCK)?;
        Ok(Self(Arc::new(device)))
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A mount; unmounts when dropped.
#[derive(Debug)]
pub struct Mount {
    target: PathBuf,
    /// The helper, which unmounts when this process ends, even by SIGKILL.
    guard: Option<(UnixStream, Option<Child>)>,
    mounted: bool,
}

/// Why a directory could not be mounted.
#[derive(Debug)]
pub struct Refused {
    /// The error of the system call.
    pub system: io::Error,
    /// The message of the helper, if there is one.
    pub helper: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.system)?;
        match &self.helper {
            Some(message) => write!(f, "; {message}"),
            None => write!(f, "; without root this needs fusermount3 (package fuse3)"),
        }
    }
}

impl Mount {
    /// Mounts over a directory. With a helper the directory is unmounted when this process dies, even by SIGKILL. Without one the
    /// mount stays and answers ENOTCONN until it is unmounted.
    pub fn new(target: &Path, options: Options) -> Result<(Device, Self), Refused> {
        let target = fs::canonicalize(target).map_err(|system| Refused {
            system,
            helper: None,
        })?;
        let mounted = match options.outlives {
            true => directly(&target, options).map(|device| (device, None)),
            false => Err(io::ErrorKind::Unsupported.into()),
        };
        let (device, guard) = match mounted {
            Ok(mounted) => mounted,
            Err(_) => match by_helper(&target, options) {
                Ok((device, (socket, child))) => (device, Some((socket, Some(child)))),
                Err(helper) => match directly(&target, options) {
                    Ok(device) => (device, None),
                    Err(system) => return Err(Refused { system, helper }),
                },
            },
        };
        let mount = Self {
            target,
            guard,
            mounted: true,
        };
        let device = Device::new(device).map_err(|system| Refused {
            system,
            helper: None,
        })?;
        Ok((device, mount))
    }

    /// A mount that another program has made and left. `guard` is the socket to the helper, if there is one.
    pub fn left_by(target: &Path, guard: Option<OwnedFd>) -> Self {
        Self {
            target: target.to_owned(),
            guard: guard.map(|socket| (socket.into(), None)),
            mounted: true,
        }
    }

    /// Where it is mounted.
    pub fn target(&self) -> &Path {
        &self.target
    }

    /// Leaves the mount to another program. Returns the socket to the helper, if there is one: the helper unmounts when the socket
    /// is closed.
    pub fn leave(mut self) -> Option<OwnedFd> {
        self.mounted = false;
        let (socket, _) = self.guard.take()?;
        Some(socket.into())
    }

    /// Whether a helper unmounts the directory when this process dies.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// Notes that another program has unmounted the directory.
    pub fn is_gone(&mut self) {
        self.mounted = false;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            // A failure cannot be handled here; the next start reports it.
            let _ = unmount(&self.target);
        }
        if let Some((socket, child)) = self.guard.take() {
            drop(socket);
            if let Some(mut child) = child {
                let _ = child.wait();
            }
        }
    }
}

/// Unmounts a directory. No new file can be opened in it; open files work until the device is closed.
pub fn unmount(target: &Path) -> io::Result<()> {
    match rustix::mount::unmount(target, UnmountFlags::DETACH) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    for helper in HELPERS {
        let mut command = child::command(helper);
        command.args(["-u", "-z", "-q", "--"]).arg(target);
        let ran = child::output(command.stdin(Stdio::null()));
        if ran.is_ok_and(|output| output.status.success()) {
            return Ok(());
        }
    }
    Err(Errno::PERM.into())
}

/// Takes a mount off its directory, but keeps it alive: open files in it still work while the returned descriptor is open.
/// [`attach`] puts it back. Needs root.
pub fn detach(target: &Path) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let mount = open_tree(rustix::fs::CWD, target, flags)?;
    rustix::mount::unmount(target, UnmountFlags::DETACH)?;
    Ok(mount)
}

/// Puts a mount that [`detach`] has taken off at this directory.
pub fn attach(mount: &OwnedFd, target: &Path) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH;
    Ok(move_mount(mount, "", rustix::fs::CWD, target, flags)?)
}

/// The type of the topmost mount at exactly this path, as the kernel shows it.
pub fn type_of_mount(target: &Path) -> io::Result<Option<String>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut topmost = None;
    for line in table.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ');
        let Some(path) = words.nth(4) else { continue };
        if unescape(path) == target.as_os_str().as_bytes() {
            let mut options = words.skip_while(|word| *word != b"-");
            topmost = options
                .nth(1)
                .map(|name| String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(topmost)
}

/// The mount points of all mounts of this type.
pub fn mounts() -> Vec<PathBuf> {
    let table = fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mounts = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let mut words = line.split(|byte| *byte == b' ');
        let path = words.nth(4)?;
        let mut options = words.skip_while(|word| *word != b"-");
        let is_ours = options.nth(1) == Some(TYPE.as_bytes());
        is_ours.then(|| PathBuf::from(OsString::from_vec(unescape(path))))
    });
    mounts.collect()
}

/// Decodes octal escapes: a space is shown as `\040`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut left = path;
    while let Some((first, behind)) = left.split_first() {
        let octal = (*first == b'\\').then(|| behind.get(..3)).flatten();
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                left = &behind[3..];
            }
            None => {
                out.push(*first);
                left = behind;
            }
        }
    }
    out
}

fn directly(target: &Path, options: Options) -> io::Result<OwnedFd> {
    let mode = fs::metadata(target)?.mode();
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    let device = rustix::fs::open("/dev/fuse", flags, Mode::empty())?;
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    let mut data = format!(
        "fd={},rootmode={:o},user_id={},group_id={},default_permissions",
        device.as_raw_fd(),
        mode & 0o170_000,
        uid.as_raw(),
        gid.as_raw()
    );
    if options.allow_other {
        data.push_str(",allow_other");
    }
    let data = CString::new(data).map_err(io::Error::other)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV;
    rustix::mount::mount("millstream", target, TYPE, flags, &*data)?;
    Ok(device)
}

/// Mounts through the helper. The helper keeps running, and unmounts when the socket to it is closed. The error is the helper's
/// message, or `None` if there is no helper.
fn by_helper(
    target: &Path,
    options: Options,
) -> Result<(OwnedFd, (UnixStream, Child)), Option<String>> {
    let message = |error: io::Error| Some(error.to_string());
    let mut words =
        "nosuid,nodev,default_permissions,auto_unmount,fsname=millstream,subtype=millstream"
            .to_owned();
    if options.allow_other {
        words.push_str(",allow_other");
    }
    for helper in HELPERS {
        let (ours, theirs) = UnixStream::pair().map_err(message)?;
        // The socket is the helper's standard input, so that no descriptor has to be inherited by number.
        let mut command = child::command(helper);
        command
            .args(["-o", &words, "--"])
            .arg(target)
            .env("_FUSE_COMMFD", "0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        let started = child::spawn(&mut command);
        drop(command);
        let Ok(mut child) = started else { continue };
        return match receive(&ours) {
            Ok(device) => {
                child.stderr = None;
                Ok((device, (ours, child)))
            }
            Err(_) => {
                drop(ours);
                let output = child.wait_with_output().map_err(message)?;
                Err(Some(
                    String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                ))
            }
        };
    }
    Err(None)
}

/// Receives the device from the helper.
fn receive(socket: &UnixStream) -> io::Result<OwnedFd> {
    let mut byte = [0];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    loop {
        let mut parts = [IoSliceMut::new(&mut byte)];
        let flags = RecvFlags::CMSG_CLOEXEC;
        match rustix::net::recvmsg(socket, &mut parts, &mut ancillary, flags) {
            Ok(_) => break,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(mut devices) = message
            && let Some(device) = devices.next()
        {
            return Ok(device);
        }
    }
    Err(io::ErrorKind::UnexpectedEof.into())
}

/// Whether any process has this file open for writing. The file must be open for reading only. `None`: the kernel does not permit
/// the check.
#[allow(unsafe_code)]
pub fn is_being_written(file: &fs::File) -> Option<bool> {
    // The kernel grants a read lease only while no process has the file open for writing. The lease is given back immediately.
    // SAFETY: fcntl with F_SETLEASE takes an int and touches no memory; the descriptor is open.
    let granted = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    if granted == 0 {
        // SAFETY: as above.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
        return Some(false);
    }
    (io::Error::last_os_error().kind() == io::ErrorKind::WouldBlock).then_some(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_open_for_writing_is_recognized() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        let writer = fs::File::create(&path).unwrap();
        let file = fs::File::open(&path).unwrap();
        assert_eq!(is_being_written(&file), Some(true));
        drop(writer);
        assert_eq!(is_being_written(&file), Some(false));
    }

    #[test]
    fn mounts_are_found_by_their_path() {
        assert_eq!(
            type_of_mount(Path::new("/proc")).unwrap().as_deref(),
            Some("proc")
        );
        assert_eq!(type_of_mount(Path::new("/proc/self/no")).unwrap(), None);
        assert_eq!(unescape(br"/a\040b\134"), br"/a b\");
    }
}
