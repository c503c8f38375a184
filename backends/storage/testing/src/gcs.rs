//! Google Cloud Storage's XML interface, mapped to S3.
//!
//! No emulator speaks it, so this maps its few differences to a SeaweedFS behind: generations to entity tags,
//! the copy header, no signatures. It shows that our requests are what the protocol asks; it is no emulator
//! of the service.

use crate::{Options, Reply, Request, SeaweedFs, Server, forward};
use hyper::header::{AUTHORIZATION, HeaderName, HeaderValue};
use std::sync::OnceLock;

/// A proxy that speaks GCS in front of the shared anonymous SeaweedFS.
pub struct GcsProxy {
    server: Server,
}

impl GcsProxy {
    /// The proxy of this test process, started on first use.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<GcsProxy> = OnceLock::new();
        SHARED.get_or_init(|| {
            let port = SeaweedFs::shared_anonymous().port();
            Self { server: Server::start(move |request| translate(port, request)) }
        })
    }

    /// Makes a bucket with a fresh name.
    pub fn bucket(&self) -> String {
        SeaweedFs::shared_anonymous().bucket()
    }

    /// Options to open `gs://bucket` with.
    pub fn options(&self) -> Options {
        let account = r#"{"private_key": "none", "private_key_id": "none", "client_email": "none", "disable_oauth": true}"#;
        vec![("google_base_url", self.server.url()), ("google_service_account_key", account.to_owned())]
    }
}

/// Maps a request to S3, and its answer back.
async fn translate(port: u16, mut request: Request) -> Reply {
    let headers = request.headers_mut();
    headers.remove(AUTHORIZATION);
    if let Some(generation) = headers.remove("x-goog-if-generation-match") {
        let (name, value) = match generation.to_str().expect("a generation is text") {
            "0" => ("if-none-match", "*".to_owned()),
            generation => ("if-match", format!("\"{generation}\"")),
        };
        headers.insert(name, HeaderValue::from_str(&value).expect("a legal value"));
    }
    rename(headers, "x-goog-", "x-amz-");
    let mut reply = forward(port, request).await;
    if let Reply::Answer(answer) = &mut reply {
        rename(answer.headers_mut(), "x-amz-", "x-goog-");
        if let Some(tag) = answer.headers().get("etag").and_then(|tag| tag.to_str().ok()) {
            let generation = HeaderValue::from_str(tag.trim_matches('"')).expect("a legal value");
            answer.headers_mut().insert("x-goog-generation", generation);
        }
    }
    reply
}

/// Gives headers (metadata, copy source) the other provider's prefix.
fn rename(headers: &mut hyper::HeaderMap, from: &str, to: &'static str) {
    let named: Vec<_> = headers.keys().filter(|name| name.as_str().starts_with(from)).cloned().collect();
    for name in named {
        if let Some(value) = headers.remove(&name) {
            let renamed = name.as_str().replacen(from, to, 1);
            headers.insert(HeaderName::try_from(renamed).expect("a legal name"), value);
        }
    }
}
