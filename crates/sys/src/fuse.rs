//! Mounting a directory whose files this process answers for, and the device it is asked through.
//!
//! No C library: with the right (root) it is one system call; without, the helper of the system (`fusermount3`) makes the
//! mount and hands the device over. What is said on the device is the business of others.

use std::{
    ffi::CString,
    fmt, fs, io,
    mem::MaybeUninit,
    os::{
        fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd},
        unix::{ffi::OsStrExt, fs::MetadataExt, net::UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::Arc,
};

use rustix::{
    fs::{Mode, OFlags},
    io::{Errno, IoSliceMut},
    mount::{MountFlags, UnmountFlags},
    net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags},
};

/// The type of such a mount, as /proc/self/mountinfo shows it.
pub const TYPE: &str = "fuse.millstream";

/// The helpers of the system that mount for those who may not: of libfuse 3 and 2.
const HELPERS: [&str; 2] = ["fusermount3", "fusermount"];

/// How to mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Other users may use it, too.
    pub allow_other: bool,
}

/// The device of one mount. Cloning shares it; the mount answers ENOTCONN when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Device(Arc<OwnedFd>);

impl Device {
    /// Reads one request behind the end of `buffer`, which has room for the largest. `Ok(None)`: nothing is there now.
    ///
    /// # Errors
    /// ENODEV: it is unmounted.
    pub fn read(&self, buffer: &mut Vec<u8>) -> io::Result<Option<usize>> {
        loop {
            match rustix::io::read(&self.0, rustix::buffer::spare_capacity(buffer)) {
                Ok(bytes) => return Ok(Some(bytes)),
                Err(Errno::AGAIN) => return Ok(None),
                // ENOENT: whoever asked went away meanwhile.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Writes one answer, which stands in these parts.
    ///
    /// # Errors
    /// ENOENT: nobody waits for it any more.
    pub fn write(&self, parts: &[io::IoSlice<'_>]) -> io::Result<()> {
        loop {
            match rustix::io::writev(&self.0, parts) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn new(device: OwnedFd) -> io::Result<Self> {
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

/// A mount; it is taken away when this is dropped.
#[derive(Debug)]
pub struct Mount {
    target: PathBuf,
    /// Unmounts when this process dies, however it does.
    guard: Option<(UnixStream, Child)>,
    mounted: bool,
}

/// Why a directory could not be mounted.
#[derive(Debug)]
pub struct Refused {
    /// What the system said.
    pub system: io::Error,
    /// What the helper said, if it was asked.
    pub helper: Option<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.system)?;
        match &self.helper {
            Some(said) => write!(f, "; {said}"),
            None => write!(f, "; without root it takes fusermount3 (package fuse3)"),
        }
    }
}

impl Mount {
    /// Mounts over a directory. With a helper the mount is taken away when this process dies, also by SIGKILL; without one
    /// it stays and answers ENOTCONN until somebody unmounts it.
    pub fn new(target: &Path, options: Options) -> Result<(Device, Self), Refused> {
        let target = fs::canonicalize(target).map_err(|system| Refused {
            system,
            helper: None,
        })?;
        let (device, guard) = match by_helper(&target, options) {
            Ok((device, guard)) => (device, Some(guard)),
            Err(helper) => match directly(&target, options) {
                Ok(device) => (device, None),
                Err(system) => return Err(Refused { system, helper }),
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

    /// Whether it is taken away when this process dies.
    pub fn is_guarded(&self) -> bool {
        self.guard.is_some()
    }

    /// It is gone already: somebody else has unmounted it.
    pub fn is_gone(&mut self) {
        self.mounted = false;
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.mounted {
            // Nothing can be done about a failure here; the next start says so.
            let _ = unmount(&self.target);
        }
        if let Some((socket, mut child)) = self.guard.take() {
            drop(socket);
            let _ = child.wait();
        }
    }
}

/// Takes a mount away: no new file is opened by it, files that are open stay so until the device is closed.
pub fn unmount(target: &Path) -> io::Result<()> {
    match rustix::mount::unmount(target, UnmountFlags::DETACH) {
        Ok(()) => return Ok(()),
        Err(Errno::PERM) => {}
        Err(error) => return Err(error.into()),
    }
    for helper in HELPERS {
        let ran = Command::new(helper)
            .args(["-u", "-z", "-q", "--"])
            .arg(target)
            .stdin(Stdio::null())
            .output();
        if ran.is_ok_and(|output| output.status.success()) {
            return Ok(());
        }
    }
    Err(Errno::PERM.into())
}

/// The type of the topmost mount at exactly this path, as the system shows it.
pub fn type_of_mount(target: &Path) -> io::Result<Option<String>> {
    let table = fs::read("/proc/self/mountinfo")?;
    let mut found = None;
    for line in table.split(|byte| *byte == b'\n') {
        let mut words = line.split(|byte| *byte == b' ');
        let Some(path) = words.nth(4) else { continue };
        if unescape(path) == target.as_os_str().as_bytes() {
            let mut rest = words.skip_while(|word| *word != b"-");
            found = rest
                .nth(1)
                .map(|name| String::from_utf8_lossy(name).into_owned());
        }
    }
    Ok(found)
}

/// Spaces and their like stand there as `\040`.
fn unescape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    let mut rest = path;
    while let Some((first, behind)) = rest.split_first() {
        let octal = (*first == b'\\').then(|| behind.get(..3)).flatten();
        let code = octal
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                rest = &behind[3..];
            }
            None => {
                out.push(*first);
                rest = behind;
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

/// Has the helper mount; it stays, and unmounts when the socket to it is closed. The error is what it said, None if
/// there is no helper.
fn by_helper(
    target: &Path,
    options: Options,
) -> Result<(OwnedFd, (UnixStream, Child)), Option<String>> {
    let said = |error: io::Error| Some(error.to_string());
    let mut words =
        "nosuid,nodev,default_permissions,auto_unmount,fsname=millstream,subtype=millstream"
            .to_owned();
    if options.allow_other {
        words.push_str(",allow_other");
    }
    for helper in HELPERS {
        let (ours, theirs) = UnixStream::pair().map_err(said)?;
        // It finds the socket as its standard input, so nothing has to be inherited by number.
        let started = Command::new(helper)
            .args(["-o", &words, "--"])
            .arg(target)
            .env("_FUSE_COMMFD", "0")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else { continue };
        return match receive(&ours) {
            Ok(device) => {
                child.stderr = None;
                Ok((device, (ours, child)))
            }
            Err(_) => {
                drop(ours);
                let output = child.wait_with_output().map_err(said)?;
                Err(Some(
                    String::from_utf8_lossy(&output.stderr).trim().to_owned(),
                ))
            }
        };
    }
    Err(None)
}

/// The device that the helper sends.
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

/// Whether somebody has this file, which is open for reading only, open for writing. None: it is not ours to know.
#[allow(unsafe_code)]
pub fn is_being_written(file: &fs::File) -> Option<bool> {
    // A lease for reading is given only while nobody has the file open for writing; it is given back at once.
    // SAFETY: fcntl with F_SETLEASE takes an int and touches no memory of ours; the descriptor is open.
    let given = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_RDLCK) };
    if given == 0 {
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
    fn it_is_known_whether_a_file_is_being_written() {
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
