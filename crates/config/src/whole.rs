//! Reads whole files that a configuration or a command line names, without waiting for ever: a FIFO may have no writer, and a device
//! has no end.

use std::{
    fs::{self, File, FileType},
    io::{self, Read},
    os::unix::fs::FileTypeExt,
    path::Path,
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::Errno,
};

/// The directories of this process's open files. A shell passes a pipe by such a path: `<(program)`.
const OPEN_FILES: [&str; 2] = ["/dev/fd", "/proc/self/fd"];
/// The standard input, as a path.
const STDIN: &str = "/dev/stdin";
/// The longest wait for the next bytes of a pipe.
const SILENCE_MAX: Duration = Duration::from_secs(60);

/// Reads a regular file of at most `bytes_max` bytes. A file that is already open may also be a pipe: `/dev/stdin`, and a path below
/// `/dev/fd`, as the shell makes it of `<(program)`.
///
/// # Errors
/// If the file cannot be read, is larger, or is something else, such as a FIFO, a directory or a device.
pub fn read_file(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    // Opening a FIFO would wait for its writer.
    let kind = fs::metadata(path)?.file_type();
    let is_open = path == Path::new(STDIN) || OPEN_FILES.iter().any(|at| path.starts_with(at));
    if !kind.is_file() && (kind.is_dir() || !is_open) {
        let text = format!("it is not a regular file, but {}", name(kind));
        return Err(io::Error::other(text));
    }
    let file = File::open(path)?;
    let bytes = match kind.is_fifo() || kind.is_socket() {
        true => read_pipe(file, bytes_max + 1)?,
        false => {
            let mut bytes = Vec::new();
            file.take(bytes_max + 1).read_to_end(&mut bytes)?;
            bytes
        }
    };
    if bytes.len() as u64 > bytes_max {
        let text = match bytes_max.is_multiple_of(1 << 20) {
            true => format!("it is larger than {} MiB", bytes_max >> 20),
            false => format!("it is larger than {bytes_max} bytes"),
        };
        return Err(io::Error::other(text));
    }
    Ok(bytes)
}

/// Reads a pipe to its end, or at most `most` bytes. Fails if the other end is silent for too long.
fn read_pipe(mut file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut piece = [0; 8 << 10];
    while (bytes.len() as u64) < most {
        let mut polled = [PollFd::new(&file, PollFlags::IN)];
        match poll(&mut polled, Timespec::try_from(SILENCE_MAX).ok().as_ref()) {
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
            Ok(0) => {
                let seconds = SILENCE_MAX.as_secs();
                let text = format!("its writer has written nothing for {seconds} s");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Ok(_) => {}
        }
        match file.read(&mut piece)? {
            0 => break,
            length => bytes.extend_from_slice(piece.get(..length).unwrap_or_default()),
        }
    }
    Ok(bytes)
}

/// The kind of a file, for messages.
fn name(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a directory",
        () if kind.is_fifo() => "a FIFO (a named pipe)",
        () if kind.is_socket() => "a socket",
        () if kind.is_char_device() || kind.is_block_device() => "a device",
        () => "something else",
    }
}

#[cfg(test)]
mod tests {
    use std::{io::Write, os::fd::AsRawFd};

    use rustix::fs::{CWD, FileType as Kind, Mode, mknodat};

    use super::*;

    #[test]
    fn all_but_regular_files_are_refused_at_once_and_named() {
        let directory = tempfile::tempdir().unwrap();
        let place = |name: &str| directory.path().join(name);
        mknodat(CWD, place("fifo"), Kind::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        std::os::unix::fs::symlink("fifo", place("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(place("socket")).unwrap();
        fs::write(place("large"), [b' '; 11]).unwrap();
        for (path, wanted) in [
            (place("fifo"), "but a FIFO"),
            (place("link"), "but a FIFO"),
            (place("socket"), "but a socket"),
            (place(""), "but a directory"),
            ("/dev/zero".into(), "but a device"),
            ("/dev/fd".into(), "but a directory"),
            (place("large"), "larger than 10 bytes"),
            (place("none"), "No such file"),
        ] {
            let error = read_file(&path, 10).unwrap_err().to_string();
            assert!(error.contains(wanted), "{}: {error}", path.display());
        }
    }

    #[test]
    fn a_pipe_that_is_open_is_read_to_its_end() {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"a: 1").unwrap();
        drop(writer);
        let path = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read_file(Path::new(&path), 4).unwrap(), b"a: 1");
        let (reader, mut writer) = io::pipe().unwrap();
        let endless = std::thread::spawn(move || while writer.write_all(&[b' '; 4096]).is_ok() {});
        let path = format!("/proc/self/fd/{}", reader.as_raw_fd());
        let error = read_file(Path::new(&path), 1 << 20).unwrap_err();
        assert!(error.to_string().contains("larger than 1 MiB"), "{error}");
        drop(reader);
        endless.join().unwrap();
    }
}
