//! Reports damage to the journal, and writes lines that may be damaged to separate files for an operator.

use std::{io, path::Path};

use millstream_sys::disk::{Disk, Open};

/// The names of the journal and of its copy.
const NAMES: [&str; 2] = ["unfinished", "unfinished.copy"];
/// The prefix of the names of the files for an operator.
const DAMAGED_NAME: &str = "unfinished.damaged";
/// The first line of a file for an operator is read up to this size, in bytes.
const TITLE_BYTES_MAX: usize = 256;

/// A message that names the damaged file. `None` if both files are intact. `lacks` holds the number of bytes that the journal
/// lacked, and the number that its copy lacked.
pub(super) fn mended(directory: &Path, lacks: [u64; 2]) -> Option<String> {
    let [journal, copy] = NAMES;
    let (name, bytes, other) = match lacks {
        [0, 0] => return None,
        [0, bytes] => (copy, bytes, journal),
        [bytes, _] => (journal, bytes, copy),
    };
    Some(format!(
        "{}: {bytes} bytes were damaged or missing; `{other}` had them, and no line is lost",
        directory.join(name).display()
    ))
}

/// Writes lines that may be damaged to a new file.
pub(super) fn put(
    disk: &dyn Disk,
    directory: &Path,
    lost_bytes: u64,
    lines: &[(String, Vec<u8>)],
) -> io::Result<()> {
    let count = lines.len();
    let mut text = format!(
        "{count} lines; {lost_bytes} bytes of the journal were damaged in both of its files\n"
    )
    .into_bytes();
    for (path, tail) in lines {
        text.extend(format!("--- {path}: {} bytes\n", tail.len()).into_bytes());
        text.extend_from_slice(tail);
        text.push(b'\n');
    }
    let names = (1..).map(|number| directory.join(format!("{DAMAGED_NAME}.{number}")));
    let mut free = names.filter(|path| disk.metadata(path).is_err());
    let path = free.next().unwrap_or_else(|| directory.join(DAMAGED_NAME));
    millstream_state::replace(disk, &path, &text)
}

/// A message that names the files that an operator has to check. `None` if there are none.
pub(super) fn doubtful(disk: &dyn Disk, directory: &Path) -> io::Result<Option<String>> {
    let mut named = Vec::new();
    for name in disk.list(directory)? {
        let name = name.to_string_lossy();
        if !name.starts_with(DAMAGED_NAME) || name.ends_with(".new") {
            continue;
        }
        let path = directory.join(&*name);
        let mut bytes = Vec::new();
        let file = disk.open(&path, Open::Read)?;
        file.read_at(&mut bytes, TITLE_BYTES_MAX, 0)?;
        let title = bytes.split(|byte| *byte == b'\n').next();
        let title = String::from_utf8_lossy(title.unwrap_or_default()).into_owned();
        named.push(format!("{} ({title})", path.display()));
    }
    Ok((!named.is_empty()).then(|| {
        format!(
            "the journal of unfinished lines was damaged, and lines that may not be whole were not sent: {}. Resend by hand the lines \
             that are intact; to accept the loss of the others, remove the file and restart Millstream",
            named.join(", ")
        )
    }))
}
