use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use buttress_leadership::Identity;

/// How long calls wait that are not to be told that the file is busy, on whatever machine.
pub(crate) const PATIENT: Duration = Duration::from_secs(60);

/// A folder of a test's own, which goes with it.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new() -> Self {
        let path = std::env::temp_dir().join(Identity::generate().as_str());
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
