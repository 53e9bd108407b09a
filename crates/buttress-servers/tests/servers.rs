//! The servers start, answer, bear what is done to them, and are gone.
#![cfg(target_os = "linux")]

use std::{
    env,
    io::{BufRead, BufReader, Write},
    net::SocketAddr,
    panic::AssertUnwindSafe,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use buttress_servers::{Server, until};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

/// Set for the process that a test starts from itself, to be killed.
const DOOMED: &str = "BUTTRESS_DOOMED";

/// Asks Redis, and reads a line.
async fn redis(stream: &mut TcpStream, question: &str) -> String {
    stream.write_all(question.as_bytes()).await.unwrap();
    let mut line = Vec::new();
    while !line.ends_with(b"\r\n") {
        line.push(stream.read_u8().await.unwrap());
    }
    String::from_utf8(line).unwrap().trim().to_owned()
}

async fn connect(addr: SocketAddr) -> TcpStream {
    TcpStream::connect(addr).await.unwrap()
}

/// Whether etcd says that it has a leader and can be read.
async fn is_healthy(addr: SocketAddr) -> bool {
    let mut stream = connect(addr).await;
    stream.write_all(b"GET /health HTTP/1.0\r\n\r\n").await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.contains(r#""health":"true""#)
}

async fn is_refused(addr: SocketAddr) -> bool {
    TcpStream::connect(addr).await.is_err()
}

/// The folders of the servers that this process has started.
fn folders(process: u32) -> Vec<PathBuf> {
    let prefix = format!("buttress-server-{process}-");
    let all = std::fs::read_dir(env::temp_dir()).unwrap().map(|entry| entry.unwrap().path());
    all.filter(|path| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&prefix))
    })
    .collect()
}

/// Whether some process works in the folder, or has it among its arguments.
fn is_used(folder: &Path) -> bool {
    let folder = folder.to_string_lossy();
    let all = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok).map(|of| of.path());
    all.filter_map(|of| {
        Some((std::fs::read(of.join("cmdline")).ok()?, std::fs::read_link(of.join("cwd")).ok()?))
    })
    .any(|(line, cwd)| {
        String::from_utf8_lossy(&line).contains(&*folder)
            || cwd.to_string_lossy().contains(&*folder)
    })
}

#[tokio::test]
async fn what_was_answered_is_there_after_a_kill_unless_it_is_to_be_forgotten() {
    let mut server = Server::redis().await;
    let addr = server.addr();
    let set = redis(&mut connect(addr).await, "SET token 7\r\n").await;
    assert_eq!(set, "+OK");
    server.kill();
    assert!(is_refused(addr).await);
    server.start().await;
    assert_eq!(redis(&mut connect(addr).await, "EXISTS token\r\n").await, ":1");
    server.stop().await;
    assert!(is_refused(addr).await);
    server.forget();
    server.start().await;
    assert_eq!(redis(&mut connect(addr).await, "EXISTS token\r\n").await, ":0");
}

#[tokio::test]
async fn each_starts_again_after_a_stop_and_a_kill_and_without_its_data() {
    for mut server in [Server::postgres().await, Server::etcd().await] {
        let addr = server.addr();
        server.stop().await;
        assert!(is_refused(addr).await);
        server.start().await;
        server.kill();
        assert!(is_refused(addr).await);
        server.start().await;
        server.kill();
        server.forget();
        server.start().await;
        assert_eq!(server.addr(), addr);
    }
}

#[tokio::test]
async fn a_server_that_is_paused_answers_when_it_goes_on() {
    let server = Server::redis().await;
    let mut stream = connect(server.addr()).await;
    server.pause();
    let mut asked = Box::pin(redis(&mut stream, "PING\r\n"));
    assert!(timeout(Duration::from_millis(100), &mut asked).await.is_err());
    server.resume();
    assert_eq!(asked.await, "+PONG");
}

#[tokio::test]
async fn a_servers_own_clock_runs_ahead_as_far_as_it_is_set_and_over_its_starts() {
    let mut server = Server::redis_with_clock().await;
    // In 2033, which this host is not in.
    let ask = "EVAL \"return tonumber(redis.call('TIME')[1]) > 2000000000 and 1 or 0\" 0\r\n";
    let host = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let step = Duration::from_secs(2_000_000_001).saturating_sub(host);
    for (ahead, is_ahead) in [(Duration::ZERO, ":0"), (step, ":1"), (Duration::ZERO, ":0")] {
        server.set_ahead(ahead);
        assert_eq!(redis(&mut connect(server.addr()).await, ask).await, is_ahead);
    }
    server.set_ahead(step);
    server.kill();
    server.start().await;
    assert_eq!(redis(&mut connect(server.addr()).await, ask).await, ":1");
}

/// It forks one for each connection, and those are to stop too.
#[tokio::test]
async fn a_server_with_many_processes_is_paused_in_all_of_them() {
    let server = Server::postgres().await;
    let mut stream = connect(server.addr()).await;
    // The backend that answers is there before, and waits for more.
    let tls = [0, 0, 0, 8, 4, 210, 22, 47];
    stream.write_all(&tls).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'N');
    server.pause();
    // It would refuse this version of the protocol at once.
    stream.write_all(&[0, 0, 0, 8, 0, 1, 0, 0]).await.unwrap();
    assert!(timeout(Duration::from_millis(100), stream.read_u8()).await.is_err());
    server.resume();
    assert_eq!(stream.read_u8().await.unwrap(), b'E');
}

#[tokio::test]
async fn a_cluster_goes_on_without_one_and_not_without_two() {
    let [mut one, two, mut three] = Server::etcd_cluster().await;
    one.kill();
    until("two of three", async || is_healthy(two.addr()).await && is_healthy(three.addr()).await)
        .await;
    three.kill();
    until("one of three", async || !is_healthy(two.addr()).await).await;
    one.start().await;
    until("two of three again", async || is_healthy(two.addr()).await).await;
}

#[tokio::test]
async fn an_address_that_another_one_answers_at_is_not_taken_for_ours() {
    let mut server = Server::redis().await;
    server.stop().await;
    let another = TcpListener::bind(server.addr()).await.unwrap();
    let another = tokio::spawn(async move {
        loop {
            let (mut stream, _) = another.accept().await.unwrap();
            stream.write_all(b"process_id:1\r\n").await.unwrap();
        }
    });
    let started = tokio::spawn(async move { server.start().await }).await;
    let why = started.unwrap_err().into_panic();
    let why = why.downcast_ref::<String>().unwrap();
    assert!(why.contains("in use"), "{why}");
    another.abort();
}

#[tokio::test]
async fn a_test_that_panics_leaves_nothing() {
    let server = Server::redis().await;
    let addr = server.addr();
    let panics = AssertUnwindSafe(|| {
        let _server = server;
        panic!("as a test does");
    });
    assert!(std::panic::catch_unwind(panics).is_err());
    assert!(is_refused(addr).await);
}

/// It starts one of each, the last of them paused, and waits to be killed.
#[tokio::test]
async fn doomed() {
    if env::var_os(DOOMED).is_none() {
        return;
    }
    let servers = [Server::etcd().await, Server::redis().await, Server::postgres().await];
    let mut stream = connect(servers[2].addr()).await;
    stream.write_all(&[0, 0, 0, 8, 4, 210, 22, 47]).await.unwrap();
    assert_eq!(stream.read_u8().await.unwrap(), b'N');
    servers[2].pause();
    for server in &servers {
        writeln!(std::io::stdout(), "\nserver {}", server.addr()).unwrap();
    }
    writeln!(std::io::stdout(), "ready").unwrap();
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_test_program_that_is_killed_leaves_nothing() {
    let mut doomed = Command::new(env::current_exe().unwrap())
        .args(["--exact", "doomed", "--nocapture", "--test-threads=1"])
        .env(DOOMED, "yes")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(doomed.stdout.take().unwrap()).lines().map(Result::unwrap);
    let addrs: Vec<SocketAddr> = lines
        .take_while(|line| line != "ready")
        .filter_map(|line| Some(line.strip_prefix("server ")?.parse().unwrap()))
        .collect();
    let folders_of_it = folders(doomed.id());
    assert_eq!((addrs.len(), folders_of_it.len()), (3, 3));
    doomed.kill().unwrap();
    doomed.wait().unwrap();
    for addr in addrs {
        until("it is gone", || is_refused(addr)).await;
    }
    let is_gone =
        async || folders(doomed.id()).is_empty() && !folders_of_it.iter().any(|one| is_used(one));
    until("its folder is gone, and who used it", is_gone).await;
}
