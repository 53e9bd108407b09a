//! Objects that are no leases, names that are none, and who may not come in at all.

use std::{future::poll_fn, task::Poll};

use buttress_leadership::{
    AcquireRequest, FencingToken, Identity, LeaseName, LeaseStore, ReleaseRequest, RenewRequest,
};
use buttress_lease_kubernetes::{KubernetesError, KubernetesOptions, kube::Config};
use buttress_servers::{FakeKubernetes, Lie, soon};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::server::{TTL, acquire, acquired, config, lease, open, options, told};

#[tokio::test]
async fn what_stands_in_an_object_and_cannot_be_is_an_error_and_no_lease() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let note = |text: &str| json!({ "buttress/term": text });
    let wrong: [(&str, &str, Value, &str); 16] = [
        ("spec", "leaseDurationSeconds", json!("15"), "expected i32"),
        ("spec", "leaseDurationSeconds", Value::Null, "no leaseDurationSeconds"),
        ("spec", "leaseDurationSeconds", json!(-1), "no leaseDurationSeconds"),
        ("spec", "leaseTransitions", json!([]), "expected i32"),
        ("spec", "holderIdentity", json!({}), "expected a string"),
        ("spec", "holderIdentity", json!("a\nb"), "a holder that is none"),
        ("spec", "holderIdentity", json!("x".repeat(256)), "a holder that is none"),
        ("spec", "renewTime", json!("yesterday"), "it answers no lease"),
        ("metadata", "annotations", json!([]), "it answers no lease"),
        ("metadata", "annotations", note(""), "`buttress/term` is none of ours"),
        ("metadata", "annotations", note("0 1 a"), "`buttress/term` is none of ours"),
        ("metadata", "annotations", note("7 soon a"), "`buttress/term` is none of ours"),
        ("metadata", "annotations", note("-7 1 a"), "`buttress/term` is none of ours"),
        ("metadata", "annotations", note("18446744073709551616 1 a"), "none of ours"),
        ("metadata", "annotations", json!({ "buttress/payload": "100%" }), "`buttress/payload`"),
        ("metadata", "annotations", json!({ "buttress/memo": "\u{e4}" }), "`buttress/memo`"),
    ];
    for (part, field, value, why) in wrong {
        acquired(&store, &me).await;
        server.edit("a", |lease| lease[part][field] = value);
        let error = acquire(&store, &me).await.unwrap_err();
        let (kind, text) = told(&error, server.addr(), "acquire");
        assert_eq!(kind, "fatal", "{text}");
        assert!(text.contains(why), "{text}");
        let error = store.inspect(lease()).await.unwrap_err();
        assert_eq!(told(&error, server.addr(), "inspect").0, "fatal");
        server.delete("a");
    }
    acquired(&store, &me).await;
}

#[tokio::test]
async fn a_name_that_kubernetes_does_not_take_is_refused_before_anything_is_asked() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    let _ = server.asked();
    let token = FencingToken::new(7).unwrap();
    let long = "x".repeat(253);
    for (name, is_taken) in [
        ("billing/nightly", false),
        ("..", false),
        ("a..b", false),
        ("a?watch=true", false),
        ("Billing", false),
        ("billing nightly", false),
        ("-a", false),
        ("a-", false),
        ("a_b", false),
        ("\u{e4}", false),
        ("%2e%2e", false),
        ("a", true),
        ("0", true),
        ("billing-nightly.v2", true),
        (&*long, true),
    ] {
        let name = LeaseName::new(name).unwrap();
        let nothing = Bytes::new();
        let acquire = store.acquire(AcquireRequest::new(&name, &me, TTL, &nothing));
        let acquire = acquire.await.map(drop);
        if is_taken {
            acquire.unwrap();
            continue;
        }
        let renew = store.renew(RenewRequest::new(&name, &me, token, TTL)).await.map(drop);
        let release = store.release(ReleaseRequest::new(&name, &me, token)).await.map(drop);
        let inspect = store.inspect(&name).await.map(drop);
        for (done, operation) in
            [(acquire, "acquire"), (renew, "renew"), (release, "release"), (inspect, "inspect")]
        {
            let (kind, text) = told(&done.unwrap_err(), server.addr(), operation);
            assert_eq!(kind, "fatal", "{text}");
            assert!(text.contains("Kubernetes takes no name"), "{text}");
        }
        // Nor does it watch anything.
        let mut changes = store.changes(&name);
        let told = poll_fn(|cx| Poll::Ready(changes.as_mut().poll_next(cx).is_ready())).await;
        assert!(!told && server.asked().is_empty(), "{name}");
        assert_eq!(server.asked(), []);
    }
    for namespace in ["", "a.b", "a/b", "A"] {
        let store = options(server.addr()).namespace(namespace).open_later();
        let text = store.inspect(lease()).await.unwrap_err().to_string();
        assert!(text.contains("Kubernetes takes no namespace"), "{text}");
        let error = options(server.addr()).namespace(namespace).open().await.unwrap_err();
        assert!(error.is_fatal(), "{error}");
    }
}

#[tokio::test]
async fn a_namespace_that_is_not_there_is_an_error_and_one_that_is_has_its_own_leases() {
    let server = FakeKubernetes::new().await;
    let me = Identity::generate();
    let store = options(server.addr()).namespace("billing").open().await.unwrap();
    assert_eq!(store.namespace(), "billing");
    assert_eq!(store.inspect(lease()).await.unwrap(), None);
    let error = acquire(&store, &me).await.unwrap_err();
    assert!(error.is_fatal(), "{error}");
    let text = error.to_string();
    assert!(text.contains("/billing/a: acquire: namespaces \"billing\" not found (404)"), "{text}");
    server.create_namespace("billing");
    acquired(&store, &me).await;
    acquired(&open(&server).await, &me).await;
}

#[tokio::test]
async fn who_may_not_come_in_is_told_so_and_nobody_is_told_the_token() {
    let server = FakeKubernetes::new().await;
    server.require_token("correct-horse");
    let with = |token: &str| {
        let mut config = config(server.addr());
        config.auth_info.token = Some(token.to_owned().into());
        KubernetesOptions::of(config)
    };
    for options in [options(server.addr()), with("battery-staple")] {
        let shown = format!("{options:?}");
        let store = options.open_later();
        let error = store.inspect(lease()).await.unwrap_err();
        for text in [format!("{error:?}"), error.to_string(), format!("{store:?}"), shown] {
            assert!(!text.contains("battery"), "{text}");
        }
        let (kind, text) = told(&error, server.addr(), "inspect");
        assert_eq!(kind, "fatal", "{text}");
        assert!(text.contains("Unauthorized (401)"), "{text}");
    }
    let error = with("battery-staple").open().await.unwrap_err();
    assert_eq!(told(&error, server.addr(), "open").0, "fatal");
    let cause: &KubernetesError = error.cause().downcast_ref().unwrap();
    assert_eq!((cause.code(), cause.name()), (Some(401), None));
    with("correct-horse").open().await.unwrap();
    // A token in a file is not shown either, nor is the file that is not there silent.
    let mut config = config(server.addr());
    config.auth_info.token_file = Some("/nowhere/token".to_owned());
    let error = KubernetesOptions::of(config).open().await.unwrap_err();
    let (kind, text) = told(&error, server.addr(), "open");
    assert_eq!(kind, "fatal", "{text}");
    assert!(text.contains("no token to be had"), "{text}");
}

#[tokio::test]
async fn who_has_not_all_rights_is_told_which_is_missing() {
    let server = FakeKubernetes::new().await;
    let (store, me) = (open(&server).await, Identity::generate());
    for verb in ["get", "create", "update"] {
        server.forbid(&[verb]);
        let error = acquire(&store, &me).await.unwrap_err();
        let (kind, text) = told(&error, server.addr(), "acquire");
        assert_eq!(kind, "fatal", "{text}");
        assert!(text.contains(&format!("cannot {verb} resource")), "{text}");
    }
    server.forbid(&[]);
    let mine = acquired(&store, &me).await;
    server.forbid(&["update"]);
    let error = store.renew(RenewRequest::new(lease(), &me, mine.fence, TTL)).await.unwrap_err();
    assert_eq!(told(&error, server.addr(), "renew").0, "fatal");
    let error = store.release(ReleaseRequest::new(lease(), &me, mine.fence)).await.unwrap_err();
    assert_eq!(told(&error, server.addr(), "release").0, "fatal");
}

#[tokio::test]
async fn what_is_no_api_server_is_refused() {
    let server = FakeKubernetes::new().await;
    for lie in [
        Lie::Before(404),
        Lie::Text("<html>welcome</html>".to_owned()),
        Lie::Text(r#"{"groupVersion":"v1","resources":[]}"#.to_owned()),
    ] {
        server.lie("GET", lie.clone());
        let error = options(server.addr()).open().await.unwrap_err();
        let (kind, text) = told(&error, server.addr(), "open");
        assert_eq!(kind, "fatal", "{lie:?}: {text}");
    }
    // A server that speaks something else.
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let other = tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::io::AsyncWriteExt::write_all(&mut stream, b"+PONG\r\n").await.unwrap();
        }
    });
    let error = soon(options(addr).open()).await.unwrap_err();
    assert_ne!(told(&error, addr, "open").0, "ambiguous");
    other.abort();
}

#[tokio::test]
async fn a_configuration_that_cannot_work_says_what_is_missing_and_no_secret() {
    let mut config = Config::new("https://user:hunter2@api.internal:6443".parse().unwrap());
    let error = KubernetesOptions::of(config.clone()).open().await.unwrap_err();
    let text = error.to_string();
    assert!(error.is_fatal() && text.contains("rustls-tls"), "{text}");
    assert!(text.contains("store api.internal:6443/default: open"), "{text}");
    assert!(!format!("{text} {error:?}").contains("hunter2"), "{error:?}");
    config.cluster_url = "http://127.0.0.1:1".parse().unwrap();
    config.proxy_url = Some("socks5://user:hunter2@proxy.internal".parse().unwrap());
    let error = KubernetesOptions::of(config).open().await.unwrap_err();
    let text = format!("{error} {error:?}");
    assert!(error.is_fatal() && text.contains("proxy") && !text.contains("hunter2"), "{text}");
}

#[tokio::test]
async fn what_is_no_url_is_refused_and_not_repeated() {
    let server = FakeKubernetes::new().await;
    KubernetesOptions::parse(&server.url()).unwrap().open().await.unwrap();
    for garbage in ["", "hunter2", "hunter2:6443", "ftp://hunter2", "http://", "http:// hunter2"] {
        let error = KubernetesOptions::parse(garbage).unwrap_err();
        assert!(error.is_fatal(), "{garbage}: {error}");
        for text in [error.to_string(), format!("{error:?}")] {
            assert!(text.contains("no URL") && !text.contains("hunter2"), "{text}");
        }
    }
}
