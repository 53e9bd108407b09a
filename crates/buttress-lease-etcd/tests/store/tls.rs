//! A connection with TLS, which the user brings: here rustls.

use std::{io, sync::Arc};

use buttress_leadership::{Identity, LeaseStore};
use buttress_lease_etcd::EtcdOptions;
use buttress_servers::{Server, soon};
use futures_util::StreamExt;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName},
};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::server::{acquired, lease, options, place, told};

fn provider() -> Arc<rustls::crypto::CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

fn trusting(certificate: &CertificateDer<'static>) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

fn with(options: EtcdOptions, tls: TlsConnector) -> EtcdOptions {
    options.tls(move |host, tcp| {
        let tls = tls.clone();
        async move {
            let name = ServerName::try_from(host).map_err(io::Error::other)?;
            tls.connect(name, tcp).await
        }
    })
}

fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    (made.cert.der().clone(), key)
}

/// In front of a server without TLS.
async fn front(
    server: &Server,
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
) -> std::net::SocketAddr {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    config.alpn_protocols = vec![b"h2".to_vec()];
    let (tls, listener) =
        (TlsAcceptor::from(Arc::new(config)), TcpListener::bind("127.0.0.1:0").await.unwrap());
    let (at, to) = (listener.local_addr().unwrap(), server.addr());
    tokio::spawn(async move {
        loop {
            let (tcp, _) = listener.accept().await.unwrap();
            let tls = tls.clone();
            tokio::spawn(async move {
                let Ok(mut from) = tls.accept(tcp).await else { return };
                let mut on = TcpStream::connect(to).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut from, &mut on).await;
            });
        }
    });
    at
}

#[tokio::test]
async fn with_tls_it_trusts_whom_it_is_told_to_and_nobody_else() {
    let server = Server::etcd().await;
    let (mine, key) = certificate();
    let addr = front(&server, mine.clone(), key).await;

    let other = trusting(&certificate().0);
    let error = with(options(addr), other).open().await.unwrap_err();
    let (kind, text) = told(&error, &place(addr), "open");
    assert_eq!(kind, "fatal", "{text}");
    assert!(text.contains("certificate"), "{text}");
    // Nobody is spoken to without.
    let plain = with(options(server.addr()), trusting(&mine)).open().await.unwrap_err();
    assert_ne!(told(&plain, &place(server.addr()), "open").0, "ambiguous");

    let https = EtcdOptions::parse(&format!("https://{addr}")).unwrap();
    let store = with(https, trusting(&mine)).open().await.unwrap();
    acquired(&store, &Identity::generate()).await;
    let mut changes = store.changes(lease());
    soon(changes.next()).await.unwrap();
}
