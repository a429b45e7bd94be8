//! For `millstream check --connect`, checks whether outputs could be created. The check creates no output.

use std::path::Path;

use millstream_pipeline::failure::Failure;
use rustix::fs::{Access, access};

use super::failure::cannot;

/// Checks whether this user may write in the directory of the path, as far as the path is known before there are records.
pub(super) fn path(template: &str) -> Result<String, Failure> {
    // Only the directories before the first value in the template are known. If some of them are missing, the sink would
    // create them in the last directory that exists.
    let known = template.split(['{', '%']).next().unwrap_or_default();
    let known = known
        .rsplit_once('/')
        .map_or("", |(directory, _)| directory);
    let directory = match known {
        "" if template.starts_with('/') => Path::new("/"),
        "" => Path::new("."),
        known => Path::new(known),
    };
    let nearest = directory.ancestors().find(|directory| directory.exists());
    let nearest = match nearest {
        Some(found) => found,
        None => Path::new("."),
    };
    if !nearest.is_dir() {
        return Err(cannot("write below", nearest, &"it is not a directory"));
    }
    match access(nearest, Access::WRITE_OK | Access::EXEC_OK) {
        Ok(()) if nearest == directory => Ok(format!("{} can be written", directory.display())),
        Ok(()) => Ok(format!(
            "{} can be made in {}",
            directory.display(),
            nearest.display()
        )),
        Err(error) => Err(cannot("write in", nearest, &error)),
    }
}

#[cfg(test)]
mod tests {
    use super::path;

    #[test]
    fn the_directory_before_the_first_value_is_checked() {
        let directory = tempfile::tempdir().unwrap();
        let at = directory.path().display();
        let good = path(&format!("{at}/{{tag}}/%F.log")).unwrap();
        assert_eq!(good, format!("{at} can be written"));
        let made = path(&format!("{at}/a/b/{{tag}}.log")).unwrap();
        assert_eq!(made, format!("{at}/a/b can be made in {at}"));
        std::fs::write(directory.path().join("file"), "").unwrap();
        let bad = path(&format!("{at}/file/x.log")).unwrap_err();
        assert!(
            bad.message.contains("/file: it is not a directory"),
            "{bad}"
        );
        assert_eq!(path("{tag}.log").unwrap(), ". can be written");
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}
