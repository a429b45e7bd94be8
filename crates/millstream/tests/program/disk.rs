//! A small disk that fills up. Needs root.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// A small tmpfs, unmounted when dropped.
pub struct Small(PathBuf);

impl Small {
    /// Creates the directory `path` and mounts a tmpfs of this size on it.
    pub fn mount(path: PathBuf, size: &str) -> Self {
        fs::create_dir_all(&path).unwrap();
        let done = Command::new("mount")
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(&path)
            .status();
        assert!(
            done.is_ok_and(|status| status.success()),
            "cannot mount a tmpfs at {}: run the tests as root",
            path.display()
        );
        Self(path)
    }

    /// The mount point.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Enlarges the disk to this size.
    pub fn grow(&self, size: &str) {
        let done = Command::new("mount")
            .args(["-o", &format!("remount,size={size}")])
            .arg(&self.0)
            .status();
        assert!(done.unwrap().success());
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
