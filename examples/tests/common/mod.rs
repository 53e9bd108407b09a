//! What tests of programs share.

use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

/// Longer than anything here takes; a hang becomes a failure.
const PATIENCE: Duration = Duration::from_secs(120);

/// A folder of the test's own, gone when it ends.
pub(crate) struct Folder(pub(crate) PathBuf);

impl Folder {
    pub(crate) fn new(name: &str) -> Self {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    pub(crate) fn arg(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Runs the program to its end. Its children inherit standard error, so this returns only when they are gone too.
pub(crate) fn output(mut program: Command) -> Output {
    let (done, output) = mpsc::channel();
    program.stdin(Stdio::null());
    thread::spawn(move || done.send(program.output().unwrap()));
    output.recv_timeout(PATIENCE).expect("the program and its children end")
}

/// Waits until nobody holds the other end of `stream`: neither the program nor its children.
pub(crate) fn drained(mut stream: impl Read + Send + 'static) {
    let (done, end) = mpsc::channel();
    thread::spawn(move || done.send(stream.read_to_end(&mut Vec::new())));
    end.recv_timeout(PATIENCE).expect("no child is left").unwrap();
}

pub(crate) fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}
