//! The clients, as one type.

use std::{sync::Once, time::Duration};

use buttress::{
    BoxError,
    http::{hyper, reqwest, tonic},
};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt, Full, combinators::UnsyncBoxBody};
use hyper_util::{
    client::legacy::{Client as Legacy, connect::HttpConnector},
    rt::{TokioExecutor, TokioTimer},
};
use tower::{Service, ServiceExt, util::BoxCloneService};

pub(crate) type Sent = Request<Full<Bytes>>;
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;
pub(crate) type Boxed<B = Full<Bytes>> = BoxCloneService<Request<B>, Answer, BoxError>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Client {
    /// hyper-util's, over HTTP/1.
    Hyper1,
    /// hyper-util's, over HTTP/2.
    Hyper2,
    /// reqwest, over HTTP/1.
    Reqwest1,
    /// reqwest, over HTTP/2, and with its own retries off.
    Reqwest2,
    /// tonic's channel. It speaks HTTP/2 alone.
    Tonic,
}

/// Time limits of the client's own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limits {
    None,
    Connect,
    /// Of the whole, where the client has such a thing.
    Answer,
    /// Of HTTP/2's pings.
    Ping,
}

pub(crate) const HTTP1: &[Client] = &[Client::Hyper1, Client::Reqwest1];
pub(crate) const HTTP2: &[Client] = &[Client::Hyper2, Client::Reqwest2, Client::Tonic];
pub(crate) const ALL: &[Client] =
    &[Client::Hyper1, Client::Reqwest1, Client::Hyper2, Client::Reqwest2, Client::Tonic];

/// Far shorter than anybody waits, and passed for certain: what it waits for never comes.
const SHORT: Duration = Duration::from_millis(50);

/// A body that every client sends.
pub(crate) trait Body:
    http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + Unpin + 'static
{
}

impl<B> Body for B where
    B: http_body::Body<Data = Bytes, Error: Into<BoxError>> + Send + Sync + Unpin + 'static
{
}

fn boxed<S, Req, B>(service: S) -> Boxed<Req>
where
    S: Service<Request<Req>, Response = Response<B>, Error = BoxError>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send + 'static,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let answer = |answer: Response<B>| answer.map(|body| body.map_err(Into::into).boxed_unsync());
    BoxCloneService::new(service.map_response(answer))
}

impl Client {
    pub(crate) const fn is_http2(self) -> bool {
        matches!(self, Self::Hyper2 | Self::Reqwest2 | Self::Tonic)
    }

    /// A client for that one server.
    pub(crate) fn service<B: Body>(self, url: &str, limits: Limits) -> Boxed<B> {
        static TLS: Once = Once::new();
        // A server may have taken it already.
        TLS.call_once(|| drop(rustls::crypto::ring::default_provider().install_default()));
        match self {
            Self::Hyper1 | Self::Hyper2 => self.hyper(limits),
            Self::Reqwest1 | Self::Reqwest2 => self.reqwest(limits),
            Self::Tonic => channel(url, limits),
        }
    }

    fn hyper<B: Body>(self, limits: Limits) -> Boxed<B> {
        let mut tcp = HttpConnector::new();
        tcp.enforce_http(false);
        tcp.set_connect_timeout((limits == Limits::Connect).then_some(SHORT));
        let tls = rustls::ClientConfig::builder()
            .with_root_certificates(rustls::RootCertStore::empty())
            .with_no_client_auth();
        let connector =
            hyper_rustls::HttpsConnectorBuilder::new().with_tls_config(tls).https_or_http();
        let mut builder = Legacy::builder(TokioExecutor::new());
        builder.timer(TokioTimer::new()).http2_only(self.is_http2());
        if limits == Limits::Ping {
            builder.http2_keep_alive_interval(SHORT).http2_keep_alive_timeout(SHORT);
        }
        let connector = if self.is_http2() {
            connector.enable_http2().wrap_connector(tcp)
        } else {
            connector.enable_http1().wrap_connector(tcp)
        };
        boxed(hyper(builder.build::<_, B>(connector)))
    }

    fn reqwest<B: Body>(self, limits: Limits) -> Boxed<B> {
        let mut builder = ::reqwest::Client::builder()
            .no_proxy()
            .tls_certs_only([])
            .retry(::reqwest::retry::never());
        builder =
            if self.is_http2() { builder.http2_prior_knowledge() } else { builder.http1_only() };
        builder = match limits {
            Limits::None => builder,
            Limits::Connect => builder.connect_timeout(SHORT),
            Limits::Answer => builder.timeout(SHORT),
            Limits::Ping => {
                builder.http2_keep_alive_interval(SHORT).http2_keep_alive_timeout(SHORT)
            }
        };
        boxed(reqwest(builder.build().unwrap()))
    }
}

fn channel<B: Body>(url: &str, limits: Limits) -> Boxed<B> {
    use ::tonic::transport::{ClientTlsConfig, Endpoint};

    let mut endpoint = Endpoint::from_shared(url.to_owned()).unwrap();
    if url.starts_with("https") {
        endpoint = endpoint.tls_config(ClientTlsConfig::new()).unwrap();
    }
    endpoint = match limits {
        Limits::None => endpoint,
        Limits::Connect => endpoint.connect_timeout(SHORT),
        Limits::Answer => endpoint.timeout(SHORT),
        Limits::Ping => endpoint.http2_keep_alive_interval(SHORT).keep_alive_timeout(SHORT),
    };
    boxed(tonic(endpoint.connect_lazy()))
}
