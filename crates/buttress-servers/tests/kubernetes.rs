//! The fake of Kubernetes' API does and refuses what the real one is known to.
#![cfg(unix)]

use buttress_servers::{FakeKubernetes, soon, until};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
};

const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/default/leases";

/// The status, and what is said.
async fn ask(server: &FakeKubernetes, method: &str, path: &str, body: &Value) -> (u16, Value) {
    let body = if body.is_null() { String::new() } else { body.to_string() };
    let mut stream = TcpStream::connect(server.addr()).await.unwrap();
    let head = format!(
        "{method} {LEASES}{path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    let mut said = String::new();
    soon(stream.read_to_string(&mut said)).await.unwrap();
    let (head, body) = said.split_once("\r\n\r\n").unwrap();
    let code = head.split(' ').nth(1).unwrap().parse().unwrap();
    (code, serde_json::from_str(body).unwrap_or_default())
}

fn lease(name: &str, spec: Value) -> Value {
    json!({
        "kind": "Lease",
        "apiVersion": "coordination.k8s.io/v1",
        "metadata": { "name": name },
        "spec": spec,
    })
}

#[tokio::test]
async fn a_write_is_let_in_only_over_what_it_has_seen() {
    let server = FakeKubernetes::new().await;
    let (code, first) = ask(&server, "POST", "", &lease("a", json!({}))).await;
    assert_eq!(code, 201);
    let (code, said) = ask(&server, "POST", "", &lease("a", json!({}))).await;
    assert_eq!((code, &said["reason"]), (409, &json!("AlreadyExists")));
    let mut next = first.clone();
    next["spec"]["holderIdentity"] = "me".into();
    let (code, second) = ask(&server, "PUT", "/a", &next).await;
    assert_eq!(code, 200);
    let version = |lease: &Value| {
        lease["metadata"]["resourceVersion"].as_str().unwrap().parse::<u64>().unwrap()
    };
    assert!(version(&first) < version(&second));
    let (code, said) = ask(&server, "PUT", "/a", &next).await;
    assert_eq!((code, &said["reason"]), (409, &json!("Conflict")), "it is over the first");
    let (code, same) = ask(&server, "PUT", "/a", &second).await;
    assert_eq!((code, same), (200, second.clone()), "who changes nothing writes nothing");
    next["metadata"].as_object_mut().unwrap().remove("resourceVersion");
    let (code, said) = ask(&server, "PUT", "/a", &next).await;
    assert_eq!((code, &said["reason"]), (422, &json!("Invalid")), "it has seen nothing");
    // One that was deleted is not there again by who has seen it, and by others it is.
    let (code, _) = ask(&server, "DELETE", "/a", &Value::Null).await;
    assert_eq!((code, server.lease("a")), (200, None));
    let (code, said) = ask(&server, "PUT", "/a", &second).await;
    assert_eq!((code, &said["reason"]), (409, &json!("Conflict")));
    let (code, third) = ask(&server, "PUT", "/a", &lease("a", json!({}))).await;
    assert!(code == 200 && version(&second) < version(&third));
    assert_ne!(first["metadata"]["uid"], third["metadata"]["uid"]);
}

#[tokio::test]
async fn what_is_no_lease_is_refused() {
    let server = FakeKubernetes::new().await;
    for (code, spec) in [
        (422, json!({ "leaseDurationSeconds": 0 })),
        (422, json!({ "leaseDurationSeconds": -1 })),
        (422, json!({ "leaseTransitions": -1 })),
        (422, json!({ "preferredHolder": "a" })),
        (400, json!({ "leaseDurationSeconds": "15" })),
        (400, json!({ "leaseDurationSeconds": 2_147_483_648_u32 })),
        (400, json!({ "holderIdentity": 1 })),
        (400, json!({ "renewTime": "2026-01-01T00:00:00Z" })),
        (400, json!({ "renewTime": "2026-01-01T00:00:00.000Z" })),
        (201, json!({ "renewTime": "2026-01-01T00:00:00.000000Z", "holderIdentity": "" })),
    ] {
        let (is, said) = ask(&server, "POST", "", &lease("a", spec.clone())).await;
        assert_eq!(is, code, "{spec}: {said}");
    }
    for name in ["", "A", "a/b", "-a", "a..b", "a_b"] {
        assert_eq!(ask(&server, "POST", "", &lease(name, json!({}))).await.0, 422, "{name:?}");
    }
    let mut long = lease("b", json!({}));
    long["metadata"]["annotations"] = json!({ "a": "x".repeat(256 * 1024 - 1) });
    assert_eq!(ask(&server, "POST", "", &long).await.0, 201);
    long["metadata"] = json!({ "name": "c", "annotations": { "a": "x".repeat(256 * 1024) } });
    assert_eq!(ask(&server, "POST", "", &long).await.0, 422);
    let other = json!({ "kind": "Pod", "apiVersion": "v1", "metadata": { "name": "c" } });
    assert_eq!(ask(&server, "POST", "", &other).await.0, 400);
    assert_eq!(ask(&server, "PATCH", "/b", &long).await.0, 405);
    assert_eq!(ask(&server, "GET", "/c", &Value::Null).await.1["details"]["kind"], "leases");
}

#[tokio::test]
async fn who_watches_one_is_told_of_it_and_of_no_other() {
    let server = FakeKubernetes::new().await;
    for name in ["a", "b"] {
        ask(&server, "POST", "", &lease(name, json!({}))).await;
    }
    let mut stream = TcpStream::connect(server.addr()).await.unwrap();
    let query = "watch=true&fieldSelector=metadata.name%3Da&resourceVersion=0";
    let head = format!("GET {LEASES}?{query} HTTP/1.1\r\nhost: a\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut lines = BufReader::new(stream).lines();
    until("it watches", async || server.watchers() == 1).await;
    for name in ["b", "a"] {
        server.edit(name, |lease| lease["spec"]["holderIdentity"] = "me".into());
        server.delete(name);
    }
    server.end_watches();
    let mut told = Vec::new();
    // The last chunk is empty.
    loop {
        let line = soon(lines.next_line()).await.unwrap().unwrap();
        if line == "0" {
            break;
        }
        if let Ok(event) = serde_json::from_str::<Value>(&line)
            && event.is_object()
        {
            let code = event["object"]["code"].as_u64();
            told.push((event["type"].as_str().unwrap().to_owned(), code));
            assert!(code.is_some() || event["object"]["metadata"]["name"] == "a", "{event}");
        }
    }
    let all = [("ADDED", None), ("MODIFIED", None), ("DELETED", None), ("ERROR", Some(410))];
    assert_eq!(told, all.map(|(kind, code)| (kind.to_owned(), code)));
}

#[tokio::test]
async fn it_keeps_its_data_over_a_kill_and_counts_anew_when_they_are_lost() {
    let mut server = FakeKubernetes::new().await;
    let (_, first) = ask(&server, "POST", "", &lease("a", json!({}))).await;
    server.kill();
    assert!(TcpStream::connect(server.addr()).await.is_err());
    server.start().await;
    assert_eq!(ask(&server, "GET", "/a", &Value::Null).await, (200, first.clone()));
    server.kill();
    server.forget();
    server.start().await;
    assert_eq!(ask(&server, "GET", "/a", &Value::Null).await.0, 404);
    let (_, again) = ask(&server, "POST", "", &lease("a", json!({}))).await;
    assert_eq!(again["metadata"]["resourceVersion"], first["metadata"]["resourceVersion"]);
}

#[tokio::test]
async fn paused_it_answers_nothing_and_then_everything() {
    let server = FakeKubernetes::new().await;
    server.pause();
    let mut asked = Box::pin(ask(&server, "GET", "/a", &Value::Null));
    let waits = until("it waits", async || {
        let poll = std::future::poll_fn(|cx| std::task::Poll::Ready(asked.as_mut().poll(cx)));
        assert!(poll.await.is_pending());
        server.waiting() == 1
    });
    waits.await;
    server.resume();
    assert_eq!(soon(asked).await.0, 404);
}
