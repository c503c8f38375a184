//! An S3 server in memory, for measuring clients: it does as little as it can, and can be shaped like a remote store
//! (time to the first byte, bandwidth of a connection).

use bytes::Bytes;
use futures::stream;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;
use std::fmt::Write;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

/// How a connection behaves.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    pub first_byte: Duration,
    /// Bytes per second of one connection; infinite where the server is not shaped.
    pub bandwidth: f64,
}

impl Shape {
    pub const NONE: Shape = Shape { first_byte: Duration::ZERO, bandwidth: f64::INFINITY };
    /// 30 ms to the first byte, 50 MB/s a connection.
    pub const REMOTE: Shape = Shape { first_byte: Duration::from_millis(30), bandwidth: 50e6 };

    /// When `bytes` bytes of an answer that began at `start` may have been sent.
    fn due(&self, start: Instant, bytes: u64) -> Instant {
        start + self.first_byte + Duration::from_secs_f64(bytes as f64 / self.bandwidth)
    }
}

/// An object as the pieces that it was uploaded in.
#[derive(Clone, Default)]
struct Object {
    pieces: Vec<Bytes>,
    length: u64,
    e_tag: u64,
}

impl Object {
    fn range(&self, range: Range<u64>) -> Vec<Bytes> {
        let mut out = Vec::new();
        let mut start = 0u64;
        for piece in &self.pieces {
            let end = start + piece.len() as u64;
            let (from, to) = (range.start.max(start), range.end.min(end));
            if from < to {
                out.push(piece.slice((from - start) as usize..(to - start) as usize));
            }
            start = end;
        }
        out
    }
}

/// Memory for bodies, used again and again: what the kernel takes to clear fresh pages must not be measured.
#[derive(Clone, Default)]
struct Pool(Arc<Mutex<Vec<Vec<u8>>>>);

/// Memory of the pool that holds `length` bytes of a body.
struct Pooled {
    memory: Vec<u8>,
    length: usize,
    pool: Pool,
}

/// The parts of an upload are as long.
const POOLED_BYTES: usize = 8 << 20;

impl Pool {
    /// With so much memory that the kernel has already given.
    fn warmed(bytes: usize) -> Self {
        let memory = (0..bytes / POOLED_BYTES).map(|_| vec![1; POOLED_BYTES]).collect();
        Self(Arc::new(Mutex::new(memory)))
    }

    fn take(&self) -> Pooled {
        let memory = self.0.lock().unwrap().pop().unwrap_or_else(|| vec![1; POOLED_BYTES]);
        Pooled { memory, length: 0, pool: self.clone() }
    }
}

impl AsRef<[u8]> for Pooled {
    fn as_ref(&self) -> &[u8] {
        &self.memory[..self.length]
    }
}

impl Drop for Pooled {
    fn drop(&mut self) {
        self.pool.0.lock().unwrap().push(std::mem::take(&mut self.memory));
    }
}

#[derive(Default)]
struct Store {
    objects: BTreeMap<String, Object>,
    uploads: HashMap<String, BTreeMap<u64, Vec<Bytes>>>,
}

pub struct Server {
    port: u16,
    shape: Arc<Mutex<Shape>>,
    requests: Arc<AtomicU64>,
    _runtime: Runtime,
}

type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

impl Server {
    /// A server that holds `bytes` bytes of objects without asking the kernel for memory.
    pub fn start(bytes: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0))).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shape = Arc::new(Mutex::new(Shape::NONE));
        let requests = Arc::new(AtomicU64::new(0));
        let state = Arc::new(State {
            store: Mutex::default(),
            pool: Pool::warmed(bytes),
            shape: Arc::clone(&shape),
            requests: Arc::clone(&requests),
            next: AtomicU64::new(1),
        });
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let _ = socket.set_nodelay(true);
                let state = Arc::clone(&state);
                tokio::spawn(async move {
                    let service = service_fn(move |request| {
                        let state = Arc::clone(&state);
                        async move { Ok::<_, Infallible>(state.answer(request).await) }
                    });
                    let _ = hyper::server::conn::http1::Builder::new()
                        .max_buf_size(1 << 20)
                        .serve_connection(TokioIo::new(socket), service)
                        .await;
                });
            }
        });
        Self { port, shape, requests, _runtime: runtime }
    }

    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    pub fn set_shape(&self, shape: Shape) {
        *self.shape.lock().unwrap() = shape;
    }

    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}

struct State {
    store: Mutex<Store>,
    pool: Pool,
    shape: Arc<Mutex<Shape>>,
    requests: Arc<AtomicU64>,
    next: AtomicU64,
}

impl State {
    async fn answer(&self, request: Request<Incoming>) -> Answer {
        self.requests.fetch_add(1, Ordering::Relaxed);
        let start = Instant::now();
        let shape = *self.shape.lock().unwrap();
        let (parts, body) = request.into_parts();
        let key = parts.uri.path().trim_start_matches('/').to_owned();
        let query: HashMap<String, String> = parts
            .uri
            .query()
            .unwrap_or("")
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| {
                pair.split_once('=').map_or((pair.into(), String::new()), |(k, v)| (k.into(), decode(v)))
            })
            .collect();
        let header =
            |name: &str| parts.headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        match (&parts.method, query.get("uploadId")) {
            (&Method::GET, _) if query.contains_key("list-type") => self.list(&key, &query),
            (&Method::GET | &Method::HEAD, _) => {
                self.get(&key, header("range"), parts.method == Method::HEAD, shape, start).await
            }
            (&Method::PUT, upload) => {
                let body = receive(body, &self.pool, shape, start).await;
                let e_tag = self.next.fetch_add(1, Ordering::Relaxed);
                let mut store = self.store.lock().unwrap();
                match upload {
                    Some(id) => {
                        let number =
                            query.get("partNumber").and_then(|number| number.parse().ok()).unwrap_or(0);
                        store.uploads.entry(id.clone()).or_default().insert(number, body);
                    }
                    None => {
                        let there = store.objects.get(&key).map(|object| format!("\"{}\"", object.e_tag));
                        let refused = header("if-none-match").is_some() && there.is_some()
                            || header("if-match").is_some_and(|wanted| Some(wanted) != there);
                        if refused {
                            return status(StatusCode::PRECONDITION_FAILED);
                        }
                        let length = body.iter().map(|piece| piece.len() as u64).sum();
                        store.objects.insert(key, Object { pieces: body, length, e_tag });
                    }
                }
                tagged(e_tag, Bytes::new())
            }
            (&Method::POST, None) if query.contains_key("uploads") => {
                let id = self.next.fetch_add(1, Ordering::Relaxed);
                xml(format!(
                    "<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>"
                ))
            }
            (&Method::POST, Some(id)) => {
                let _ = body.collect().await;
                let e_tag = self.next.fetch_add(1, Ordering::Relaxed);
                let mut store = self.store.lock().unwrap();
                let parts = store.uploads.remove(id).unwrap_or_default();
                let pieces: Vec<Bytes> = parts.into_values().flatten().collect();
                let length = pieces.iter().map(|piece| piece.len() as u64).sum();
                store.objects.insert(key, Object { pieces, length, e_tag });
                xml(format!(
                    "<CompleteMultipartUploadResult><ETag>\"{e_tag}\"</ETag></CompleteMultipartUploadResult>"
                ))
            }
            (&Method::POST, None) if query.contains_key("delete") => {
                let body = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
                let text = String::from_utf8_lossy(&body);
                let mut store = self.store.lock().unwrap();
                let mut answer = String::from("<DeleteResult>");
                for (name, _) in text.split("<Key>").skip(1).filter_map(|rest| rest.split_once("</Key>")) {
                    store.objects.remove(&format!("{}/{name}", key.trim_end_matches('/')));
                    let _ = write!(answer, "<Deleted><Key>{name}</Key></Deleted>");
                }
                xml(answer + "</DeleteResult>")
            }
            (&Method::DELETE, _) => {
                self.store.lock().unwrap().objects.remove(&key);
                status(StatusCode::NO_CONTENT)
            }
            _ => status(StatusCode::METHOD_NOT_ALLOWED),
        }
    }

    async fn get(
        &self,
        key: &str,
        range: Option<String>,
        head: bool,
        shape: Shape,
        start: Instant,
    ) -> Answer {
        let Some(object) = self.store.lock().unwrap().objects.get(key).cloned() else {
            return status(StatusCode::NOT_FOUND);
        };
        let asked = range.as_deref().and_then(|text| text.strip_prefix("bytes=")).and_then(|text| {
            let (from, to) = text.split_once('-')?;
            Some(from.parse().ok()?..to.parse::<u64>().ok()?.saturating_add(1).min(object.length))
        });
        let wanted = asked.clone().unwrap_or(0..object.length);
        let mut response = Response::builder()
            .header("etag", format!("\"{}\"", object.e_tag))
            .header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            .header("content-length", wanted.end - wanted.start);
        if asked.is_some() {
            response = response.status(StatusCode::PARTIAL_CONTENT).header(
                "content-range",
                format!("bytes {}-{}/{}", wanted.start, wanted.end - 1, object.length),
            );
        }
        if head {
            return response.body(empty()).unwrap();
        }
        let pieces: Vec<Bytes> = object
            .range(wanted)
            .into_iter()
            .flat_map(|piece| {
                (0..piece.len())
                    .step_by(PIECE)
                    .map(move |at| piece.slice(at..piece.len().min(at + PIECE)))
                    .collect::<Vec<_>>()
            })
            .collect();
        let body = stream::unfold((pieces.into_iter(), 0u64), move |(mut pieces, sent)| async move {
            let piece = pieces.next()?;
            let sent = sent + piece.len() as u64;
            wait(shape, start, sent).await;
            Some((Ok::<_, Infallible>(Frame::data(piece)), (pieces, sent)))
        });
        response.body(BodyExt::boxed_unsync(StreamBody::new(body))).unwrap()
    }

    fn list(&self, bucket: &str, query: &HashMap<String, String>) -> Answer {
        let bucket = bucket.trim_end_matches('/');
        let prefix = format!("{bucket}/{}", query.get("prefix").map_or("", String::as_str));
        let delimited = query.contains_key("delimiter");
        let store = self.store.lock().unwrap();
        let mut text = String::from("<ListBucketResult><IsTruncated>false</IsTruncated>");
        let mut prefixes = std::collections::BTreeSet::new();
        for (key, object) in
            store.objects.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix))
        {
            let own = &key[bucket.len() + 1..];
            match key[prefix.len()..].find('/') {
                Some(at) if delimited => {
                    prefixes.insert(own[..own.len() - (key.len() - prefix.len()) + at + 1].to_owned());
                }
                _ => {
                    let _ = write!(
                        text,
                        "<Contents><Key>{own}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>\"{}\"</ETag><Size>{}</Size></Contents>",
                        object.e_tag, object.length
                    );
                }
            }
        }
        for prefix in prefixes {
            let _ = write!(text, "<CommonPrefixes><Prefix>{prefix}</Prefix></CommonPrefixes>");
        }
        text.push_str("</ListBucketResult>");
        xml(text)
    }
}

/// Bytes that are sent and paced at once.
const PIECE: usize = 256 << 10;

async fn wait(shape: Shape, start: Instant, bytes: u64) {
    if shape.bandwidth.is_finite() {
        tokio::time::sleep_until(shape.due(start, bytes).into()).await;
    }
}

/// Takes a body in as fast as the shape allows.
async fn receive(mut body: Incoming, pool: &Pool, shape: Shape, start: Instant) -> Vec<Bytes> {
    let (mut pieces, mut received) = (Vec::new(), 0);
    let mut current = pool.take();
    while let Some(Ok(frame)) = body.frame().await {
        let Ok(frame) = frame.into_data() else { continue };
        let mut rest = &frame[..];
        while !rest.is_empty() {
            if current.length == POOLED_BYTES {
                pieces.push(Bytes::from_owner(std::mem::replace(&mut current, pool.take())));
            }
            let count = rest.len().min(POOLED_BYTES - current.length);
            current.memory[current.length..current.length + count].copy_from_slice(&rest[..count]);
            current.length += count;
            rest = &rest[count..];
        }
        received += frame.len() as u64;
        wait(shape, start, received).await;
    }
    pieces.push(Bytes::from_owner(current));
    pieces
}

fn empty() -> UnsyncBoxBody<Bytes, Infallible> {
    Full::new(Bytes::new()).boxed_unsync()
}

fn status(code: StatusCode) -> Answer {
    Response::builder().status(code).body(empty()).unwrap()
}

fn tagged(e_tag: u64, body: Bytes) -> Answer {
    Response::builder().header("etag", format!("\"{e_tag}\"")).body(Full::new(body).boxed_unsync()).unwrap()
}

fn xml(text: String) -> Answer {
    Response::builder()
        .header("content-type", "application/xml")
        .body(Full::new(Bytes::from(text)).boxed_unsync())
        .unwrap()
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let hex = (first == b'%')
            .then(|| {
                std::str::from_utf8(after.get(..2)?).ok().and_then(|hex| u8::from_str_radix(hex, 16).ok())
            })
            .flatten();
        match hex {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
