//! The two clients without us: what people write first, and what they write next.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tokio::time::timeout;
use tower::BoxError;

pub(crate) type Hyper = Client<HttpConnector, Full<Bytes>>;

/// How long one attempt may take.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(1);

/// How often a failed request is sent again.
const RETRIES: u32 = 3;

pub(crate) const BARE: &str = "hyper, timeout 1 s";
pub(crate) const RETRYING: &str = "hyper, timeout 1 s, three immediate retries";

pub(crate) fn hyper() -> Hyper {
    Client::builder(TokioExecutor::new()).build_http()
}

/// A timeout, and nothing else.
pub(crate) async fn bare(
    client: Hyper,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, BoxError> {
    Ok(timeout(TIMEOUT, client.request(request)).await??)
}

/// A timeout, and three more tries when it did not work.
pub(crate) async fn retries(
    client: Hyper,
    request: Request<Full<Bytes>>,
) -> Result<Response<Incoming>, BoxError> {
    let mut left = RETRIES;
    loop {
        let result = bare(client.clone(), request.clone()).await;
        let failed = match &result {
            Ok(response) => response.status().is_server_error(),
            Err(_) => true,
        };
        if !failed || left == 0 {
            return result;
        }
        left -= 1;
    }
}
