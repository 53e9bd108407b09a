//! The same over each server that leases may be on.

use std::process::Command;

use buttress_servers::{FakeKubernetes, Server};
use tokio::task::spawn_blocking;

use crate::{
    PROGRAM,
    common::{Folder, output, text},
};

/// Runs it over that store. It fails by itself if it has not shown what it is to show.
async fn runs_over(store: &'static str, url: String) {
    let run = spawn_blocking(move || {
        let folder = Folder::new(&format!("leader-{store}"));
        let mut program = Command::new(PROGRAM);
        program.env("TMPDIR", folder.arg()).args(["--store", store, "--url", &url]);
        output(program)
    });
    let run = run.await.unwrap();
    let (stdout, stderr) = (text(&run.stdout), text(&run.stderr));
    println!("{stdout}");
    assert_eq!((run.status.code(), stderr), (Some(0), ""), "{stdout}");
    let mut lines = stdout.lines();
    assert!(lines.any(|line| line.starts_with("overlaps") && line.ends_with(" 0")), "{stdout}");
}

#[tokio::test]
async fn it_runs_over_etcd() {
    let etcd = Server::etcd().await;
    runs_over("etcd", etcd.url()).await;
}

#[tokio::test]
async fn it_runs_over_postgresql() {
    let postgres = Server::postgres().await;
    runs_over("postgres", postgres.url()).await;
}

#[tokio::test]
async fn it_runs_over_redis() {
    let redis = Server::redis().await;
    runs_over("redis", redis.url()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn it_runs_over_kubernetes() {
    let kubernetes = FakeKubernetes::new().await;
    runs_over("kubernetes", kubernetes.url()).await;
}

#[test]
fn a_store_that_is_not_there_ends_it_with_one_line() {
    let store = |args: &[&str]| {
        let mut program = Command::new(PROGRAM);
        program.args(args);
        let run = output(program);
        (run.status.code(), text(&run.stderr).to_owned())
    };
    let (code, said) = store(&["--store", "redis"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.starts_with("error: ") && said.contains("--url"), "{said}");
    for url in ["redis://me:secret@127.0.0.1:1/", "nonsense"] {
        let (code, said) = store(&["--store", "redis", "--url", url]);
        assert_eq!((code, said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.starts_with("error: ") && !said.contains("secret"), "{said}");
    }
}
