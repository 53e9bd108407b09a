//! Objects that are no leases, names that are none, and who may not come in at all.

use buttress_leadership::{Identity, LeaseStore};
use buttress_servers::FakeKubernetes;
use serde_json::{Value, json};

use crate::server::{acquire, acquired, lease, open, told};

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
