//! A connection with TLS, which the user brings: here rustls.

use std::{fs, net::TcpListener, sync::Arc};

use buttress_leadership::{Identity, LeaseStore};
use buttress_lease_redis::RedisOptions;
use buttress_servers::{Server, soon};
use futures_util::StreamExt;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName},
};
use tokio_rustls::TlsConnector;

use crate::server::{Hand, acquired, lease, options, place, told};

fn trusting(certificate: &CertificateDer<'static>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}

fn with(options: RedisOptions, tls: TlsConnector) -> RedisOptions {
    let name = ServerName::try_from("127.0.0.1").unwrap();
    options.tls(move |tcp| tls.connect(name.clone(), tcp))
}

fn certificate() -> (CertificateDer<'static>, String, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    (made.cert.der().clone(), made.cert.pem(), made.signing_key.serialize_pem())
}

#[tokio::test]
async fn with_tls_it_trusts_whom_it_is_told_to_and_nobody_else() {
    let server = Server::redis().await;
    let hand = Hand::at(&server).await;
    let (mine, pem, key) = certificate();
    let (_, data): (String, String) = hand.ask("CONFIG GET dir").await.unwrap();
    for (name, text) in [("server.crt", pem), ("server.key", key)] {
        fs::write(format!("{data}/{name}"), text).unwrap();
    }
    let addr = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    hand.tell(&format!(
        "CONFIG SET tls-cert-file {data}/server.crt tls-key-file {data}/server.key \
         tls-ca-cert-file {data}/server.crt tls-auth-clients no tls-port {}",
        addr.port()
    ))
    .await;

    let other = trusting(&certificate().0);
    let error = with(options(addr), other).open().await.unwrap_err();
    let (kind, text) = told(&error, &place(addr), "open");
    assert_eq!(kind, "fatal", "{text}");
    assert!(text.contains("certificate"), "{text}");
    // Nobody is spoken to without.
    let plain = with(options(server.addr()), trusting(&mine)).open().await.unwrap_err();
    assert_ne!(told(&plain, &place(server.addr()), "open").0, "ambiguous");

    let store = with(options(addr), trusting(&mine)).open().await.unwrap();
    acquired(&store, &Identity::generate()).await;
    let mut changes = store.changes(lease());
    soon(changes.next()).await.unwrap();
}
