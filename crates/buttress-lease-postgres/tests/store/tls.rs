//! A connection with TLS, which the user brings: here rustls.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use buttress_leadership::{Identity, LeaseStore};
use buttress_lease_postgres::{
    PostgresOptions,
    tokio_postgres::{
        Socket,
        tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream},
    },
};
use buttress_servers::{Server, soon, until};
use futures_util::StreamExt;
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, ServerName},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::{Database, acquired, lease, told};

#[derive(Clone)]
struct Rustls(Arc<ClientConfig>);

struct To(Rustls, ServerName<'static>);

struct Stream(tokio_rustls::client::TlsStream<Socket>);

impl Rustls {
    fn trusting(certificate: &CertificateDer<'static>) -> Self {
        let mut roots = RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Self(Arc::new(config))
    }
}

impl MakeTlsConnect<Socket> for Rustls {
    type Stream = Stream;
    type TlsConnect = To;
    type Error = io::Error;

    fn make_tls_connect(&mut self, domain: &str) -> io::Result<To> {
        let name = ServerName::try_from(domain.to_owned()).map_err(io::Error::other)?;
        Ok(To(self.clone(), name))
    }
}

impl TlsConnect<Socket> for To {
    type Stream = Stream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Stream>> + Send>>;

    fn connect(self, socket: Socket) -> Self::Future {
        let Self(Rustls(config), name) = self;
        let handshake = tokio_rustls::TlsConnector::from(config).connect(name, socket);
        Box::pin(async move { handshake.await.map(Stream) })
    }
}

impl TlsStream for Stream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

fn certificate() -> (CertificateDer<'static>, String, String) {
    let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
    (made.cert.der().clone(), made.cert.pem(), made.signing_key.serialize_pem())
}

#[tokio::test]
async fn with_tls_it_trusts_whom_it_is_told_to_and_nobody_else() {
    let server = Server::postgres().await;
    let database = Database::on(&server, "").await;
    let hand = database.hand().await;
    let (mine, pem, key) = certificate();
    for (name, text) in [("server.crt", pem), ("server.key", key)] {
        let lines = format!("SELECT unnest(string_to_array('{text}', E'\\n'))");
        // It is the server's user that has to have written it.
        let to = format!("COPY ({lines}) TO PROGRAM 'umask 077; cat > {name}'");
        hand.batch_execute(&to).await.unwrap();
    }
    hand.batch_execute("ALTER SYSTEM SET ssl = on").await.unwrap();
    hand.batch_execute("SELECT pg_reload_conf()").await.unwrap();
    let url = database.url("postgres", server.addr()) + "?sslmode=require";
    let options = || PostgresOptions::parse(&url).unwrap().create_table(true);
    until("it speaks TLS", async || options().tls(Rustls::trusting(&mine)).open().await.is_ok())
        .await;

    let error = options().tls(Rustls::trusting(&certificate().0)).open().await.unwrap_err();
    let (kind, text) = told(&error, &database.place(server.addr()), "open");
    assert_eq!(kind, "fatal", "{text}");
    assert!(text.contains("certificate"), "{text}");

    let store = options().tls(Rustls::trusting(&mine)).open().await.unwrap();
    acquired(&store, &Identity::generate()).await;
    let mut changes = store.changes(lease());
    soon(changes.next()).await.unwrap();
    let all = "SELECT ssl FROM pg_stat_ssl JOIN pg_stat_activity USING (pid)
        WHERE application_name = 'buttress-lease'";
    let all = hand.query(all, &[]).await.unwrap();
    assert!(all.len() >= 2 && all.iter().all(|row| row.get(0)), "its two connections");
}
