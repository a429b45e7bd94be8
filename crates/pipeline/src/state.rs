//! Reads the files that a node keeps below `data_dir`, and converts errors of the crate `state` into failures.

use std::{fs::File, io, io::Read, path::Path};

use millstream_config::Size;

use crate::failure::Failure;

impl From<millstream_state::Error> for Failure {
    /// After an I/O error, and if a file is in use, the node retries, because the problem may go away. A file that is damaged, or that a
    /// newer Millstream wrote, needs an operator.
    fn from(error: millstream_state::Error) -> Self {
        use millstream_state::Error;
        let message = error.to_string();
        match error {
            Error::Io { .. } | Error::InUse { .. } => Self::disk(message),
            Error::Damaged { .. } | Error::TooLarge { .. } | Error::Newer { .. } => {
                Self::state(message)
            }
        }
    }
}

/// Reads a whole file; `None` if it does not exist. Refuses a file of more than `bytes_max` bytes: Millstream did not write it, and
/// reading it could take all memory. The text of that error ends with `remedy`, which tells the operator what to do.
pub fn read(path: &Path, bytes_max: u64, remedy: &str) -> Result<Option<Vec<u8>>, Failure> {
    let place = path.display();
    let failed = |error: io::Error| Failure::disk(format!("cannot read {place}: {error}"));
    let file = match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file.map_err(failed)?,
    };
    // The length is checked before the file is read: a sparse file may take no space on disk, but its content takes its whole length in
    // memory.
    let length = file.metadata().map_err(failed)?.len();
    if length > bytes_max {
        let most = Size::bytes(bytes_max);
        return Err(Failure::state(format!(
            "{place} is damaged: it has {length} bytes, and Millstream writes at most {most} there; {remedy}"
        )));
    }
    let mut bytes = Vec::new();
    file.take(bytes_max)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Again;

    #[test]
    fn a_file_is_read_up_to_its_bound_and_a_larger_one_is_refused_unread() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("positions");
        assert_eq!(read(&path, 8, "remove it").unwrap(), None);
        std::fs::write(&path, "12345678").unwrap();
        assert_eq!(read(&path, 8, "remove it").unwrap().unwrap(), b"12345678");
        File::options()
            .write(true)
            .open(&path)
            .unwrap()
            .set_len(8 << 30)
            .unwrap();
        let failure = read(&path, 8, "remove it").unwrap_err();
        assert_eq!(failure.again, Again::Never);
        assert!(failure.message.contains("8589934592 bytes"), "{failure}");
        assert!(failure.message.ends_with("remove it"), "{failure}");
    }
}
