use std::{
    env,
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use buttress_leadership::{
    AcquireOutcome, AcquireRequest, Identity, LeaseName, LeaseStore, ReleaseOutcome,
    ReleaseRequest, RenewOutcome, RenewRequest, StoreError,
};
use buttress_lease_sqlite::{SqliteOptions, SqliteStore};
use bytes::Bytes;

use crate::folder::{Folder, PATIENT};

/// Set for the processes that a test starts from itself.
const FILE: &str = "BUTTRESS_LEASE_FILE";
const PROCESSES: usize = 3;
const TERMS: usize = 40;
const TTL: Duration = Duration::from_secs(600);

/// One of those processes: it leads for some terms, and writes down each.
#[tokio::test]
async fn child() {
    let Some(path) = env::var_os(FILE) else { return };
    let store = SqliteOptions::new(path).create(true).busy_timeout(PATIENT).open().await.unwrap();
    let (name, me) = (LeaseName::new("a").unwrap(), Identity::generate());
    let payload = Bytes::new();
    let (mut terms, mut out) = (0, std::io::stdout());
    writeln!(out, "\nready").unwrap();
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).unwrap();
    while terms < TERMS {
        let outcome = store.acquire(AcquireRequest::new(&name, &me, TTL, &payload)).await;
        let mine = match outcome {
            Ok(AcquireOutcome::Acquired(record)) => record,
            Ok(AcquireOutcome::Held(_)) | Err(StoreError::NotApplied(_)) => continue,
            Err(error) => panic!("{error}"),
        };
        // What is written between the two is written by one process at a time.
        writeln!(out, "term {} begins", mine.fence).unwrap();
        let renew = RenewRequest::new(&name, &me, mine.fence, TTL);
        match store.renew(renew).await {
            Ok(RenewOutcome::Renewed(_)) | Err(StoreError::NotApplied(_)) => {}
            other => panic!("it is ours: {other:?}"),
        }
        writeln!(out, "term {} ends", mine.fence).unwrap();
        loop {
            match store.release(ReleaseRequest::new(&name, &me, mine.fence)).await {
                Ok(ReleaseOutcome::Released) => break,
                Err(StoreError::NotApplied(_)) => {}
                other => panic!("it is ours: {other:?}"),
            }
        }
        terms += 1;
    }
    writeln!(out, "done").unwrap();
}

fn start(path: &PathBuf, out: Stdio) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "processes::child", "--nocapture", "--test-threads=1"])
        .env(FILE, path)
        .stdin(Stdio::piped())
        .stdout(out)
        .spawn()
        .unwrap()
}

#[test]
fn processes_that_share_a_file_lead_one_after_the_other() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    // All of them write to one pipe, and so in the order in which it happened.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut all: Vec<_> =
        (0..PROCESSES).map(|_| start(&path, Stdio::from(writer.try_clone().unwrap()))).collect();
    drop(writer);
    let (mut ready, mut done) = (0, 0);
    let (mut leads, mut last) = (None, 0_u64);
    let mut terms = 0;
    for line in BufReader::new(reader).lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            // The file was made by all of them at the same time.
            ["ready"] => {
                ready += 1;
                if ready == PROCESSES {
                    for one in &mut all {
                        drop(one.stdin.take());
                    }
                }
            }
            ["term", fence, "begins"] => {
                let fence: u64 = fence.parse().unwrap();
                assert_eq!(leads, None, "two lead");
                assert!(fence > last, "token {fence} after {last}");
                (leads, last) = (Some(fence), fence);
                terms += 1;
            }
            ["term", fence, "ends"] => assert_eq!(leads.take(), fence.parse().ok()),
            ["done"] => done += 1,
            // The test harness speaks too.
            _ => {}
        }
    }
    for mut one in all {
        assert!(one.wait().unwrap().success());
    }
    assert_eq!((done, terms), (PROCESSES, PROCESSES * TERMS));
}

#[tokio::test]
async fn a_process_that_is_killed_in_the_middle_leaves_a_file_that_works() {
    let folder = Folder::new();
    let path = folder.file("leases.db");
    let store = SqliteStore::open_or_create(&path).await.unwrap();
    let name = LeaseName::new("a").unwrap();
    let mut last = 0;
    for _ in 0..8 {
        let mut one = start(&path, Stdio::piped());
        drop(one.stdin.take());
        let mut lines = BufReader::new(one.stdout.take().unwrap()).lines();
        let begun = lines.find(|line| line.as_ref().is_ok_and(|line| line.ends_with("begins")));
        begun.unwrap().unwrap();
        one.kill().unwrap();
        one.wait().unwrap();
        let seen = store.inspect(&name).await.unwrap().unwrap();
        assert!(seen.fence.get() > last, "token {} after {last}", seen.fence);
        last = seen.fence.get();
        // Its lease has ten minutes to go: somebody takes it from the dead by its token.
        if let Some(holder) = &seen.holder {
            let release = ReleaseRequest::new(&name, holder, seen.fence);
            assert_eq!(store.release(release).await.unwrap(), ReleaseOutcome::Released);
        }
    }
}
