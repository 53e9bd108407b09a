//! A folder, and who sees to it that nothing outlives the test.

use std::{
    env, fs,
    io::ErrorKind,
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::atomic::{AtomicU32, Ordering},
};

/// A folder with a guard: a shell that waits for the end of its standard input, which comes when the home is
/// dropped, or when this process ends, however it does. Then it kills the server and removes the folder.
///
/// So there is one way to clean up, and a test program that is killed goes it too. (The signal that the kernel
/// sends at a parent's death comes with the death of the *thread*: a server that tests share would die with the
/// first of them.)
#[derive(Debug)]
pub(crate) struct Home {
    folder: PathBuf,
    guard: Child,
}

/// The server dies first: one that sees its children die replaces them. It is not stopped before, since the kernel
/// wakes whom a death makes orphans. A child that is born meanwhile finds its parent dead, and goes. State and
/// parent are the first words after the name, which is in brackets and may hold anything.
const GUARD: &str = r#"
while read -r _; do :; done
if read -r server < "$1/pid"; then
    all=$server
    for stat in /proc/[0-9]*/stat; do
        read -r line < "$stat" || continue
        after=${line##*) }
        case ${after#* } in "$server "*) all="$all ${line%% *}" ;; esac
    done
    for one in $all; do kill -KILL "$one"; done
fi
# What was killed may write for as long as it takes to die.
for _ in 1 2 3 4 5; do
    rm -rf -- "$1" && break
    sleep 1
done
"#;

/// Notes the server's number before it is the server.
const START: &str = r#"echo $$ > "$0" && exec "$@""#;

// === impl Home ===

impl Home {
    pub(crate) fn new() -> Self {
        let folder = fresh_folder();
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard"])
            .arg(&folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // What a terminal tells the test is not for the guard.
            .process_group(0)
            .spawn()
            .expect("there is a shell");
        Self { folder, guard }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The last name of the folder, which no other has.
    pub(crate) fn name(&self) -> String {
        let name = self.folder.file_name().expect("it has a name");
        name.to_string_lossy().into_owned()
    }

    /// Starts the one server that lives here. What it says is in the file `log`.
    pub(crate) fn start(&self, command: &Command) -> Child {
        let log = fs::File::options().create(true).append(true).open(self.path("log"));
        let log = log.expect("the folder is ours");
        Command::new("sh")
            .args(["-c", START])
            .arg(self.path("pid"))
            .arg(command.get_program())
            .args(command.get_args())
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a file can be had twice"))
            .stderr(log)
            .process_group(0)
            .spawn()
            .expect("there is a shell")
    }

    /// The server is gone, and its number may be another's soon.
    pub(crate) fn ended(&self) {
        let _ = fs::remove_file(self.path("pid"));
    }

    /// The end of what the server said.
    pub(crate) fn log(&self) -> String {
        let log = fs::read(self.path("log")).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<_> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        let _ = self.guard.wait();
    }
}

fn fresh_folder() -> PathBuf {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    loop {
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("buttress-server-{}-{count}", std::process::id());
        let folder = env::temp_dir().join(name);
        match fs::create_dir(&folder) {
            Ok(()) => return folder,
            // A process with our number was here before.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => panic!("no folder at {}: {error}", folder.display()),
        }
    }
}
