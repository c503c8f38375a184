//! A small HTTP server whose answers a test decides.

use bytes::Bytes;
use futures::future::BoxFuture;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::net::TcpListener;
use std::sync::Arc;
use std::thread::JoinHandle;
use tokio::sync::oneshot;

/// A request, its body read.
pub type Request = hyper::Request<Bytes>;

/// What the server does with a request.
pub enum Reply {
    /// Answers.
    Answer(hyper::Response<Bytes>),
    /// Closes the connection without an answer.
    Close,
    /// Never answers.
    Hang,
}

impl Reply {
    /// An answer with this status, content type and body.
    pub fn new(status: u16, content_type: &str, body: impl Into<Bytes>) -> Self {
        let answer = hyper::Response::builder().status(status).header("content-type", content_type);
        Self::Answer(answer.body(body.into()).expect("a legal answer"))
    }

    /// An S3 error.
    pub fn s3_error(status: u16, code: &str) -> Self {
        let body =
            format!("<?xml version=\"1.0\"?>\n<Error><Code>{code}</Code><Message>as told</Message></Error>");
        Self::new(status, "application/xml", body)
    }
}

/// Passes a request on to a server on this machine, unchanged: signatures stay valid.
pub async fn forward(port: u16, request: Request) -> Reply {
    match ask(port, request).await {
        Ok(answer) => Reply::Answer(answer),
        Err(error) => Reply::new(502, "text/plain", format!("the server behind the proxy: {error}")),
    }
}

async fn ask(
    port: u16,
    request: Request,
) -> Result<hyper::Response<Bytes>, Box<dyn std::error::Error + Send + Sync>> {
    let stream = TokioIo::new(tokio::net::TcpStream::connect(("127.0.0.1", port)).await?);
    let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
    let driven = tokio::spawn(connection);
    let answer = sender.send_request(request.map(Full::new)).await?;
    let (mut parts, body) = answer.into_parts();
    let body = body.collect().await?.to_bytes();
    driven.abort();
    // The whole body is sent at once, whatever framing it came in.
    parts.headers.remove("transfer-encoding");
    Ok(hyper::Response::from_parts(parts, body))
}

/// A server on a free port of this machine, until dropped.
pub struct Server {
    port: u16,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Answers every request with what `handler` says.
    pub fn start<H, F>(handler: H) -> Self
    where
        H: Fn(Request) -> F + Send + Sync + 'static,
        F: Future<Output = Reply> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let (stop, stopped) = oneshot::channel();
        let handler: Handler = Arc::new(move |request| Box::pin(handler(request)));
        let thread = std::thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                tokio::select! {
                    () = accept(listener, handler) => {}
                    _ = stopped => {}
                }
            });
        });
        Self { port, stop: Some(stop), thread: Some(thread) }
    }

    /// Base URL.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ended = thread.join();
        }
    }
}

type Handler = Arc<dyn Fn(Request) -> BoxFuture<'static, Reply> + Send + Sync>;

async fn accept(listener: TcpListener, handler: Handler) {
    listener.set_nonblocking(true).expect("a non-blocking socket");
    let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
    while let Ok((stream, _)) = listener.accept().await {
        let handler = Arc::clone(&handler);
        let service = service_fn(move |request| answer(request, Arc::clone(&handler)));
        tokio::spawn(async move {
            // A client that goes away is no concern of the server.
            let _broken = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}

async fn answer(
    request: hyper::Request<Incoming>,
    handler: Handler,
) -> Result<hyper::Response<Full<Bytes>>, Box<dyn std::error::Error + Send + Sync>> {
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    match handler(Request::from_parts(parts, body)).await {
        Reply::Answer(answer) => Ok(answer.map(Full::new)),
        Reply::Close => Err("closed on purpose".into()),
        Reply::Hang => std::future::pending().await,
    }
}
