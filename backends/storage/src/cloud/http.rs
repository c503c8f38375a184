//! The HTTP layer below `object_store`: turns every answer that is no success into a typed failure.
//!
//! `object_store` keeps the status of a failed answer to itself. This connector wraps its client, reads
//! status, code and message of the answer, and passes them on as a [`Failure`], which stays in the error's
//! source chain.

use async_trait::async_trait;
use futures::TryStreamExt;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpResponse, HttpResponseBody,
    HttpService, ReqwestConnector,
};
use std::error::Error;

/// Why an HTTP request has failed.
#[derive(Debug, Clone, thiserror::Error)]
pub(super) enum Failure {
    /// The server answered with an error.
    #[error("{status} {code}: {message}")]
    Status {
        /// HTTP status; 200 when the error came in the body of a success, as S3 may do for long operations.
        status: u16,
        /// The store's own code (`NoSuchBucket`); empty when there is none.
        code: String,
        /// The store's message.
        message: String,
    },
    /// What answered is no object store.
    #[error("{0}")]
    Alien(String),
    /// There was no answer.
    #[error("{message}")]
    Transport {
        kind: HttpErrorKind,
        /// Whether the connection itself failed, so that nothing was sent.
        connecting: bool,
        message: String,
    },
    /// The request was one for credentials, to a service of the machine or the provider, not to the store.
    #[error("asking {host} for credentials: {failure}")]
    Credentials { host: String, failure: Box<Failure> },
}

/// Connects like `object_store`'s own connector, with [`Failure`]s, and without its time-outs: requests have
/// deadlines that grow with their bytes.
#[derive(Debug)]
pub(super) struct Connector;

impl HttpConnector for Connector {
    fn connect(&self, options: &ClientOptions) -> object_store::Result<HttpClient> {
        let client = ReqwestConnector::default().connect(&options.clone().with_timeout_disabled())?;
        Ok(HttpClient::new(Service(client)))
    }
}

#[derive(Debug)]
struct Service(HttpClient);

#[async_trait]
impl HttpService for Service {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let uri = request.uri();
        let host = uri.host().unwrap_or_default();
        let result = if gives_credentials(host, uri.path()) {
            let host = host.to_owned();
            let answer = self.credentials(request).await;
            answer.map_err(|failure| Failure::Credentials { host, failure: Box::new(failure) })
        } else {
            self.store(request).await
        };
        // `Unknown` is the kind that `object_store` never retries.
        result.map_err(|failure| HttpError::new(HttpErrorKind::Unknown, failure))
    }
}

impl Service {
    /// Asks the store.
    async fn store(&self, request: HttpRequest) -> Result<HttpResponse, Failure> {
        let asked = Asked::of(&request);
        let response = self.0.execute(request).await.map_err(|error| no_answer(&error))?;
        let status = response.status().as_u16();
        if !response.status().is_success() {
            return Err(refusal(response).await);
        }
        if let Some(why) = asked.alien(status, &response) {
            return Err(Failure::Alien(why));
        }
        if asked.begins_past_the_end(&response) {
            return Err(answer(416, "", None));
        }
        if !asked.is_post {
            return Ok(response);
        }
        // S3 answers some long operations with 200 before it knows how they end.
        let (parts, body) = response.into_parts();
        let body = read_body(body).await?;
        let text = String::from_utf8_lossy(&body);
        if is_error_document(&text) || (asked.is_bulk_delete && text.contains("<Error>")) {
            return Err(answer(status, &text, None));
        }
        Ok(HttpResponse::from_parts(parts, body.into()))
    }

    /// Asks a service that hands out credentials.
    async fn credentials(&self, request: HttpRequest) -> Result<HttpResponse, Failure> {
        let response = self.0.execute(request).await.map_err(|error| no_answer(&error))?;
        if response.status().is_success() { Ok(response) } else { Err(refusal(response).await) }
    }
}

/// Whether a request asks for credentials: the metadata services of the clouds (by address and, where another
/// address is configured, by path) and their token services.
fn gives_credentials(host: &str, path: &str) -> bool {
    const HOSTS: [&str; 5] = [
        "metadata",
        "metadata.google.internal",
        "oauth2.googleapis.com",
        "iamcredentials.googleapis.com",
        "login.microsoftonline.com",
    ];
    const PATHS: [&str; 4] =
        ["/latest/api/token", "/latest/meta-data/", "/computeMetadata/", "/metadata/identity/"];
    HOSTS.contains(&host)
        || host.starts_with("169.254.")
        || host.starts_with("sts.")
        || PATHS.iter().any(|prefix| path.starts_with(prefix))
}

fn no_answer(error: &HttpError) -> Failure {
    let message = root_cause(error);
    // A connect time-out is of kind `Timeout`; only the client's text says that it hadn't connected yet.
    let connecting = error.kind() == HttpErrorKind::Connect
        || chain(error).any(|error| error.to_string().contains("(Connect)"));
    if !connecting && message.contains("invalid HTTP") {
        return Failure::Alien(format!("it doesn't speak HTTP: {message}"));
    }
    Failure::Transport { kind: error.kind(), connecting, message }
}

/// The failure that an error answer stands for.
async fn refusal(response: HttpResponse) -> Failure {
    let status = response.status().as_u16();
    if is_html(&response) && !response.status().is_server_error() {
        return Failure::Alien(format!("HTTP status {status} with an HTML page"));
    }
    let code = header(response.headers(), "x-ms-error-code").map(str::to_owned);
    // The status alone says enough when the body breaks off.
    let body = read_body(response.into_body()).await.unwrap_or_default();
    answer(status, &String::from_utf8_lossy(&body), code)
}

/// A body that is a message, not an object.
async fn read_body(body: HttpResponseBody) -> Result<Vec<u8>, Failure> {
    /// The longest messages list a thousand keys of a kilobyte, escaped.
    const LONGEST: usize = 16 << 20;
    let mut stream = body.bytes_stream();
    let mut bytes = Vec::new();
    while let Some(piece) = stream.try_next().await.map_err(|error| no_answer(&error))? {
        bytes.extend_from_slice(&piece);
        if bytes.len() > LONGEST {
            return Err(Failure::Alien(format!("an answer of more than {LONGEST} bytes")));
        }
    }
    Ok(bytes)
}

/// What of a request its answer is judged by.
struct Asked {
    is_post: bool,
    /// S3's DeleteObjects, whose answer lists an error for each object that it kept.
    is_bulk_delete: bool,
    is_put: bool,
    /// First byte of the range that a read asks for.
    range_start: Option<u64>,
}

impl Asked {
    fn of(request: &HttpRequest) -> Self {
        Self {
            is_post: request.method().as_str() == "POST",
            is_bulk_delete: request
                .uri()
                .query()
                .is_some_and(|query| query == "delete" || query == "delete="),
            is_put: request.method().as_str() == "PUT",
            range_start: header(request.headers(), "range")
                .and_then(|range| range.strip_prefix("bytes=")?.split_once('-')?.0.parse().ok()),
        }
    }

    /// Whether the answer to a ranged read is empty because the object ends before. 416 is due then, but not
    /// every server says so.
    fn begins_past_the_end(&self, response: &HttpResponse) -> bool {
        let total = header(response.headers(), "content-range")
            .and_then(|range| range.split_once('/')?.1.parse().ok());
        matches!((self.range_start, total), (Some(start), Some(total)) if start >= total)
    }

    /// Why a successful answer can't come from an object store.
    fn alien(&self, status: u16, response: &HttpResponse) -> Option<String> {
        let tagged = response.headers().contains_key("etag");
        if is_html(response) && !tagged {
            return Some(format!("HTTP status {status} with an HTML page"));
        }
        if self.range_start.is_some() && status != 206 {
            return Some(format!("HTTP status {status} to a ranged read, where 206 is due"));
        }
        if self.is_put && !tagged && !response.headers().contains_key("x-ms-request-id") {
            return Some(format!("HTTP status {status} to a write, without an entity tag"));
        }
        None
    }
}

fn header<'a>(headers: &'a object_store::HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// Whether a body is one XML error and nothing else (the parts of a batch answer may hold some).
fn is_error_document(body: &str) -> bool {
    let body = body.trim_start();
    let root =
        if body.starts_with("<?xml") { body.split_once("?>").map_or("", |(_, root)| root) } else { body };
    root.trim_start().starts_with("<Error")
}

fn is_html(response: &HttpResponse) -> bool {
    let content_type = header(response.headers(), "content-type");
    content_type.is_some_and(|content_type| content_type.starts_with("text/html"))
}

/// Code and message of an error body. Only these two: bodies repeat key ids and strings to sign.
fn answer(status: u16, body: &str, code: Option<String>) -> Failure {
    let element = |name: &str| {
        let (_, rest) = body.split_once(&format!("<{name}>"))?;
        let (text, _) = rest.split_once(&format!("</{name}>"))?;
        Some(text.lines().next().unwrap_or_default().trim().to_owned())
    };
    Failure::Status {
        status,
        code: code.or_else(|| element("Code")).unwrap_or_default(),
        message: element("Message").unwrap_or_default(),
    }
}

/// An error and its sources, outermost first.
pub(super) fn chain<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |error: &&'a (dyn Error + 'static)| (**error).source())
}

fn root_cause(error: &HttpError) -> String {
    chain(error).last().map(ToString::to_string).unwrap_or_default()
}
