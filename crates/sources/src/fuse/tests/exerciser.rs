//! A file-system exerciser: random calls on the mount and on a real directory must give the same results.

use std::{
    fs, io,
    io::Write,
    os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use millstream_testkit::Random;

use super::Rig;
use crate::rig::Downstream;

/// The number of calls of one run.
const CALLS: usize = 6000;
/// The number of names per directory. Few, so that calls often affect the same files.
const NAMES: u64 = 5;
/// The largest size of a file in bytes.
const SIZE_MAX: u64 = 400_000;

/// A path of a file or directory, at most two directories deep.
fn path(random: &mut Random) -> PathBuf {
    let depth = random.below(3);
    (0..=depth)
        .map(|_| format!("n{}", random.below(NAMES)))
        .collect()
}

/// The result of `stat`, without the fields in which file systems may differ.
fn stat(path: &Path) -> io::Result<String> {
    let found = fs::symlink_metadata(path)?;
    let size = if found.is_dir() { 0 } else { found.len() };
    Ok(format!(
        "{:o} {size} {} {}",
        found.mode(),
        found.uid(),
        found.gid()
    ))
}

fn names(path: &Path) -> io::Result<String> {
    let mut names: Vec<_> = fs::read_dir(path)?
        .map(|entry| entry.map(|entry| (entry.file_name(), entry.file_type().unwrap())))
        .collect::<io::Result<_>>()?;
    names.sort_by(|a, b| a.0.cmp(&b.0));
    Ok(format!("{names:?}"))
}

/// A call that is made on the mount and on the real directory.
#[derive(Clone, Debug)]
enum Call {
    Write(PathBuf, u32, Vec<u8>, u64),
    Truncate(PathBuf, u64),
    Read(PathBuf),
    Stat(PathBuf),
    List(PathBuf),
    MakeDirectory(PathBuf),
    RemoveDirectory(PathBuf),
    Remove(PathBuf),
    Rename(PathBuf, PathBuf),
    Mode(PathBuf, u32),
    Time(PathBuf, u64),
    Link(PathBuf, PathBuf),
    Target(PathBuf),
}

impl Call {
    fn new(random: &mut Random) -> Self {
        let at = path(random);
        match random.below(16) {
            0..=3 => {
                // Large writes go another way than small ones.
                let bytes = match random.below(8) {
                    0 => random.below(300_000),
                    _ => random.below(3000),
                } as usize;
                let data = vec![b'a' + random.below(26) as u8; bytes];
                Self::Write(at, random.below(4) as u32, data, random.below(SIZE_MAX))
            }
            4 => Self::Truncate(at, random.below(SIZE_MAX)),
            5 | 6 => Self::Read(at),
            7 => Self::Stat(at),
            8 => Self::List(at),
            9 => Self::MakeDirectory(at),
            10 => Self::RemoveDirectory(at),
            11 => Self::Remove(at),
            12 => Self::Rename(at, path(random)),
            13 => Self::Mode(at, 0o400 + random.below(0o400) as u32),
            14 => Self::Time(at, random.below(1 << 30)),
            _ if random.below(2) == 0 => Self::Link(at, path(random)),
            _ => Self::Target(at),
        }
    }

    fn on(&self, root: &Path) -> Result<String, i32> {
        let at = |path: &PathBuf| root.join(path);
        let done = |result: io::Result<()>| result.map(|()| String::new());
        let answer = match self {
            Self::Write(path, how, data, offset) => write(&at(path), *how, data, *offset),
            Self::Truncate(path, size) => fs::File::options()
                .write(true)
                .open(at(path))
                .and_then(|file| done(file.set_len(*size))),
            Self::Read(path) => fs::read(at(path)).map(|data| format!("{data:?}")),
            Self::Stat(path) => stat(&at(path)),
            Self::List(path) => names(&at(path)),
            Self::MakeDirectory(path) => done(fs::create_dir(at(path))),
            Self::RemoveDirectory(path) => done(fs::remove_dir(at(path))),
            Self::Remove(path) => done(fs::remove_file(at(path))),
            Self::Rename(from, to) => done(fs::rename(at(from), at(to))),
            Self::Mode(path, mode) => done(fs::set_permissions(
                at(path),
                fs::Permissions::from_mode(*mode),
            )),
            Self::Time(path, seconds) => fs::File::open(at(path)).and_then(|file| {
                let time = UNIX_EPOCH + Duration::from_secs(*seconds);
                file.set_times(fs::FileTimes::new().set_modified(time))?;
                Ok(format!("{:?}", file.metadata()?.modified()?))
            }),
            Self::Link(path, target) => done(symlink(target, at(path))),
            Self::Target(path) => fs::read_link(at(path)).map(|target| format!("{target:?}")),
        };
        answer.map_err(|error| error.raw_os_error().unwrap_or(0))
    }
}

/// Writes as programs do: truncates, appends, overwrites, or creates a new file.
fn write(path: &Path, how: u32, data: &[u8], offset: u64) -> io::Result<String> {
    let mut options = fs::File::options();
    let mut file = match how {
        0 => options.write(true).create(true).truncate(true).open(path)?,
        1 => options.append(true).create(true).open(path)?,
        2 => options.write(true).open(path)?,
        _ => options.write(true).create_new(true).open(path)?,
    };
    if file.metadata()?.len() + data.len() as u64 > SIZE_MAX {
        file.set_len(0)?;
    }
    match how {
        2 => file.write_all_at(data, offset)?,
        _ => file.write_all(data)?,
    }
    Ok(file.metadata()?.len().to_string())
}

#[test]
fn the_mount_behaves_like_a_file_system() {
    let rig = Rig::new(Downstream::durable(), "");
    let real = tempfile::tempdir().unwrap();
    let given = std::env::var("SEED")
        .ok()
        .and_then(|seed| seed.parse().ok());
    let now = UNIX_EPOCH.elapsed().unwrap().as_nanos() as u64;
    let seed = given.unwrap_or(now);
    let mut random = Random::new(seed);
    let mut worked = 0;
    for number in 0..CALLS {
        let call = Call::new(&mut random);
        let (ours, theirs) = (call.on(&rig.mount()), call.on(real.path()));
        assert_eq!(ours, theirs, "SEED={seed}, call {number}: {call:?}");
        worked += usize::from(ours.is_ok());
    }
    // Many calls succeed, because there are few names.
    assert!(worked > CALLS / 5, "{worked}");
}
