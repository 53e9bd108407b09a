//! A connection with TLS, which the user's client brings: here rustls.

use std::{net::SocketAddr, sync::Arc};

use buttress_leadership::{Identity, LeaseStore};
use buttress_lease_kubernetes::{
    KubernetesError, KubernetesOptions,
    kube::{
        Client, Config,
        client::{Body, ConfigExt},
    },
};
use buttress_servers::{FakeKubernetes, soon};
use futures_util::StreamExt;
use hyper_rustls::HttpsConnectorBuilder;
use hyper_util::rt::TokioExecutor;
use rustls::{
    ClientConfig, RootCertStore, ServerConfig,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;
use tower_layer::Layer;

use crate::server::{acquired, lease};

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

fn certificate() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    (made.cert.der().clone(), PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap())
}

/// Takes TLS off before the server, which has none.
async fn terminating(
    server: SocketAddr,
    (certificate, key): (CertificateDer<'static>, PrivateKeyDer<'static>),
) -> SocketAddr {
    let config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut client = acceptor.accept(client).await?;
                copy_bidirectional(&mut client, &mut TcpStream::connect(server).await?).await
            });
        }
    });
    addr
}

fn trusting(addr: SocketAddr, certificate: &CertificateDer<'static>) -> KubernetesOptions {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let tls = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let https = HttpsConnectorBuilder::new().with_tls_config(tls).https_only().enable_http1();
    let client = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .build::<_, Body>(https.build());
    let config = Config::new(format!("https://{addr}").parse().unwrap());
    let client = Client::new(config.base_uri_layer().layer(client), config.default_namespace);
    KubernetesOptions::new(client)
}

#[tokio::test]
async fn with_tls_it_trusts_whom_it_is_told_to_and_nobody_else() {
    let server = FakeKubernetes::new().await;
    let (mine, key) = certificate();
    let addr = terminating(server.addr(), (mine.clone(), key)).await;
    let (store, me) = (trusting(addr, &mine).open().await.unwrap(), Identity::generate());
    acquired(&store, &me).await;
    let mut changes = store.changes(lease());
    soon(changes.next()).await.unwrap();
    assert_eq!(server.watchers(), 1);

    let (other, _) = certificate();
    let error = trusting(addr, &other).open().await.unwrap_err();
    let cause: &KubernetesError = error.cause().downcast_ref().unwrap();
    assert_eq!((cause.namespace(), cause.operation()), ("default", "open"));
    assert!(error.is_fatal(), "it will not be trusted later: {error}");
    assert!(error.to_string().contains("certificate"), "{error}");
}
