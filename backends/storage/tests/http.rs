//! What goes wrong between client and server: retries, lost answers, deadlines, endpoints that are no store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use reshard_storage::{
    Deadline, Depth, Expect, Meter, OpenOptions, Operation, Outage, Outcome, Payload, PutOutcome,
    RetryPolicy, StorageBackend, StorageError, StoragePath, UploadShape, conditional_put, open,
    try_conditions,
};
use reshard_storage_testing::{Identity, Options, Reply, Request, SeaweedFs, Server, forward};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

fn path(text: &str) -> StoragePath {
    StoragePath::parse(text).unwrap()
}

/// Retries at once, so that a test takes no time to wait.
const EAGER: RetryPolicy = RetryPolicy {
    budget: Duration::from_secs(60),
    tries: 5,
    tries_unreachable: 2,
    first_wait: Duration::from_micros(1),
    longest_wait: Duration::from_micros(1),
};

fn options(settings: Options) -> OpenOptions {
    let options = OpenOptions::new().without_environment().retry(EAGER);
    settings.into_iter().fold(options, |options, (key, value)| options.set(key, value))
}

fn at(server: &Server) -> OpenOptions {
    options(vec![
        ("aws_access_key_id", "key".to_owned()),
        ("aws_secret_access_key", "secret".to_owned()),
        ("aws_endpoint", server.url()),
    ])
}

/// A server that answers the first `failures` requests with `failure` and then like S3 with an object of four
/// bytes.
fn failing_first(failures: usize, failure: fn() -> Reply) -> (Server, Arc<AtomicUsize>) {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let server = Server::start(move |request: Request| {
        let before = counter.fetch_add(1, Ordering::SeqCst);
        async move { if before < failures { failure() } else { object(&request) } }
    });
    (server, asked)
}

fn object(request: &Request) -> Reply {
    let answer = http_answer(200);
    let answer = match request.headers().contains_key("range") {
        true => answer.status(206).header("content-range", "bytes 0-3/4"),
        false => answer,
    };
    let body: &'static str = if request.method() == "PUT" { "" } else { "text" };
    Reply::Answer(answer.body(body.into()).unwrap())
}

fn http_answer(status: u16) -> hyper::http::response::Builder {
    hyper::Response::builder()
        .status(status)
        .header("etag", "\"tag\"")
        .header("last-modified", "Tue, 01 Dec 2026 15:00:00 GMT")
}

async fn read(store: &dyn StorageBackend) -> (Vec<u8>, reshard_storage::Result<()>) {
    let (slot, result) = store.read(&path("object"), 0..4, Box::new(vec![0; 4])).await;
    (slot.bytes().to_vec(), result)
}

#[tokio::test]
async fn passing_failures_are_retried() {
    let failures: [fn() -> Reply; 6] = [
        || Reply::s3_error(503, "SlowDown"),
        || Reply::s3_error(500, "InternalError"),
        || Reply::s3_error(429, "TooManyRequests"),
        || Reply::s3_error(400, "RequestTimeout"),
        || Reply::new(502, "text/html", "<html>bad gateway</html>"),
        || Reply::Close,
    ];
    for failure in failures {
        let (server, asked) = failing_first(3, failure);
        let meter = Meter::counting();
        let store = open("s3://bucket", &at(&server).meter(Arc::clone(&meter))).unwrap();
        let (bytes, result) = read(&*store).await;
        result.unwrap();
        assert_eq!((bytes.as_slice(), asked.load(Ordering::SeqCst)), (&b"text"[..], 4));
        store.put(&path("object"), Payload::from("text")).await.unwrap();
        let totals = meter.totals();
        assert_eq!((totals.requests, totals.failures, totals.retries), (5, 3, 3));
    }
}

#[tokio::test]
async fn retries_end_with_the_last_error() {
    let (server, asked) = failing_first(usize::MAX, || Reply::s3_error(503, "SlowDown"));
    let store = open("s3://bucket", &at(&server)).unwrap();
    let error = read(&*store).await.1.unwrap_err();
    assert!(matches!(error, StorageError::Unavailable { outage: Outage::Throttled, .. }), "{error:?}");
    assert_eq!(asked.load(Ordering::SeqCst), EAGER.tries as usize);
    assert!(
        error.to_string().contains("SlowDown") && error.to_string().contains("`object` bytes 0..4"),
        "{error}"
    );
}

#[tokio::test]
async fn lasting_failures_are_not_retried() {
    let failures: [fn() -> Reply; 4] = [
        || Reply::s3_error(403, "AccessDenied"),
        || Reply::s3_error(404, "NoSuchKey"),
        || Reply::s3_error(404, "NoSuchBucket"),
        || Reply::s3_error(412, "PreconditionFailed"),
    ];
    for failure in failures {
        let (server, asked) = failing_first(1, failure);
        let store = open("s3://bucket", &at(&server)).unwrap();
        read(&*store).await.1.unwrap_err();
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}

/// A conditional put is sent once, whatever comes back; a 412 is an answer, not a failure.
#[tokio::test]
async fn conditional_puts_are_not_retried() {
    let failures: [(fn() -> Reply, bool); 4] = [
        (|| Reply::s3_error(503, "SlowDown"), false),
        (|| Reply::Close, false),
        (|| Reply::s3_error(409, "ConditionalRequestConflict"), false),
        (|| Reply::s3_error(412, "PreconditionFailed"), true),
    ];
    for (failure, lost) in failures {
        let (server, asked) = failing_first(1, failure);
        let store = open("s3://bucket", &at(&server)).unwrap();
        let outcome = store.put_if(&path("object"), Payload::from("mine"), &Expect::Absent).await.unwrap();
        assert_eq!(outcome == PutOutcome::Lost, lost, "{outcome:?}");
        assert_eq!(matches!(outcome, PutOutcome::Unknown { .. }), !lost, "{outcome:?}");
        assert_eq!(asked.load(Ordering::SeqCst), 1);
    }
}

#[tokio::test]
async fn an_object_longer_than_one_put_takes_is_refused_unsent() {
    let (server, asked) = failing_first(0, || Reply::Close);
    let store = open("s3://bucket", &at(&server)).unwrap();
    let piece = bytes::Bytes::from(vec![0; 1 << 20]);
    let longer: Payload = std::iter::repeat_n(piece, (5 << 10) + 1).collect();
    let errors = [
        store.put(&path("object"), longer.clone()).await.err(),
        store.put_if(&path("object"), longer, &Expect::Absent).await.err(),
        store.start_multipart(&path("object"), UploadShape::new(1 << 40, 1 << 20)).await.err(),
    ];
    for error in errors {
        assert!(matches!(error, Some(StorageError::InvalidInput { .. })), "{error:?}");
    }
    assert_eq!(asked.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn no_answer_ends_with_the_deadline() {
    let server = Server::start(|_| async { Reply::Hang });
    let deadline = Deadline { base: Duration::from_millis(20), bytes_per_second: u64::MAX };
    let store = open("s3://bucket", &at(&server).deadline(deadline)).unwrap();
    let (slot, result) = store.read(&path("object"), 0..4, Box::new(vec![7; 4])).await;
    let error = result.unwrap_err();
    assert!(matches!(error, StorageError::Unavailable { outage: Outage::Timeout, .. }), "{error:?}");
    assert_eq!(slot.bytes(), [7; 4], "the slot comes back from a read that ran out of time");
    let outcome = store.put_if(&path("object"), Payload::from("mine"), &Expect::Absent).await.unwrap();
    assert!(matches!(outcome, PutOutcome::Unknown { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_body_cut_short_is_read_again() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let server = Server::start(move |_| {
        let first = counter.fetch_add(1, Ordering::SeqCst) == 0;
        async move {
            let answer = http_answer(206).header("content-range", "bytes 0-3/4");
            // Announces four bytes, sends two and closes.
            let answer = if first { answer.header("content-length", "4") } else { answer };
            Reply::Answer(answer.body(if first { "te".into() } else { "text".into() }).unwrap())
        }
    });
    let store = open("s3://bucket", &at(&server)).unwrap();
    let (bytes, result) = read(&*store).await;
    result.unwrap();
    assert_eq!((bytes.as_slice(), asked.load(Ordering::SeqCst)), (&b"text"[..], 2));
}

/// A web server at the endpoint, whether it knows the page or not; nothing of it is retried.
#[tokio::test]
async fn a_web_server_is_no_store() {
    for status in [200, 404, 403] {
        let asked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&asked);
        let server = Server::start(move |_| {
            counter.fetch_add(1, Ordering::SeqCst);
            async move { Reply::new(status, "text/html; charset=utf-8", "<html>hello</html>") }
        });
        let store = open("s3://bucket", &at(&server)).unwrap();
        let errors = [
            read(&*store).await.1.err(),
            store.list(None, Depth::Children).await.err(),
            store.put(&path("object"), Payload::from("text")).await.err(),
            store.put_if(&path("object"), Payload::from("text"), &Expect::Absent).await.err(),
            store.start_multipart(&path("object"), UploadShape::new(4, 4)).await.err(),
            store.head(&path("object")).await.err(),
        ];
        for error in &errors {
            let error = error.as_ref().expect("a web server took the place of a store");
            assert!(matches!(error, StorageError::WrongEndpoint { .. }), "{error:?}");
        }
        assert_eq!(asked.load(Ordering::SeqCst), errors.len());
    }
    // Neither is one that answers anything with plain text.
    let server = Server::start(|_| async { Reply::new(200, "text/plain", "hello") });
    let store = open("s3://bucket", &at(&server)).unwrap();
    for error in [
        read(&*store).await.1.err(),
        store.list(None, Depth::Children).await.err(),
        store.put(&path("object"), Payload::from("text")).await.err(),
    ] {
        assert!(matches!(error, Some(StorageError::WrongEndpoint { .. })), "{error:?}");
    }
}

/// Without credentials the client asks the machine's metadata service, which has none or isn't there.
#[tokio::test]
async fn missing_credentials_are_said_so() {
    let none = Server::start(|_| async { Reply::new(404, "text/html", "<html>not found</html>") });
    for metadata in [none.url(), "http://127.0.0.1:1".to_owned()] {
        let meter = Meter::counting();
        let settings = vec![("aws_metadata_endpoint", metadata), ("aws_endpoint", none.url())];
        let store = open("s3://bucket", &options(settings).meter(Arc::clone(&meter))).unwrap();
        let error = read(&*store).await.1.unwrap_err();
        assert!(matches!(error, StorageError::AccessDenied { .. }), "{error:?}");
        assert!(error.to_string().contains("no usable credentials are set"), "{error}");
        assert_eq!(meter.totals().requests, 1, "it was retried");
    }
}

/// A server that takes a conditional write for a plain one is found out.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_ignores_conditions_is_found_out() {
    let upstream = SeaweedFs::shared_anonymous();
    let port = upstream.port();
    for ignored in ["if-none-match", "if-match"] {
        let server = Server::start(move |mut request: Request| {
            request.headers_mut().remove(ignored);
            forward(port, request)
        });
        let settings = vec![("aws_skip_signature", "true".to_owned()), ("aws_endpoint", server.url())];
        let store = open(&format!("s3://{}", upstream.bucket()), &options(settings)).unwrap();
        let error = try_conditions(&*store, &path("scratch")).await.unwrap_err();
        assert!(matches!(error, StorageError::Unsupported { .. }), "{ignored}: {error:?}");
        assert!(store.head(&path("scratch")).await.unwrap_err().is_not_found());
    }
}

/// A fresh bucket of the shared SeaweedFS, through `server`.
fn behind(server: &Server) -> Arc<dyn StorageBackend> {
    let mut settings = SeaweedFs::shared().options(Identity::Admin);
    settings.retain(|(key, _)| *key != "aws_endpoint");
    settings.push(("aws_endpoint", server.url()));
    open(&format!("s3://{}", SeaweedFs::shared().bucket()), &options(settings)).unwrap()
}

/// A SeaweedFS behind a connection that loses answers: the server does what is asked, the client doesn't hear
/// of it.
struct Lossy {
    server: Server,
    lost: Arc<AtomicUsize>,
}

impl Lossy {
    /// Loses the first answer to a request that `loses` picks by method and query.
    fn losing(loses: fn(&str, &str) -> bool) -> Self {
        let port = SeaweedFs::shared().port();
        let lost = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&lost);
        let server = Server::start(move |request: Request| {
            let picked = loses(request.method().as_str(), request.uri().query().unwrap_or_default());
            let counter = Arc::clone(&counter);
            async move {
                let reply = forward(port, request).await;
                if picked && counter.fetch_add(1, Ordering::SeqCst) == 0 { Reply::Close } else { reply }
            }
        });
        Self { server, lost }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conditional_put_whose_answer_is_lost_is_written() {
    let lossy = Lossy::losing(|method, _| method == "PUT");
    let store = behind(&lossy.server);
    let object = path("commit.json");
    let within = Duration::from_secs(60);
    let outcome = conditional_put(&*store, &object, "mine".into(), &Expect::Absent, within).await.unwrap();
    assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
    // One put, and the version that was read back is good for an update.
    assert_eq!(lossy.lost.load(Ordering::SeqCst), 1);
    let Outcome::Written(version) = outcome else { unreachable!() };
    let update = Expect::Version(version);
    let outcome = conditional_put(&*store, &object, "next".into(), &update, within).await.unwrap();
    assert!(matches!(outcome, Outcome::Written(_)), "{outcome:?}");
}

/// The retry of a completion finds the upload gone; the object's stamp says that it is ours.
#[tokio::test(flavor = "multi_thread")]
async fn an_upload_whose_completion_is_not_heard_of_is_complete() {
    let lossy = Lossy::losing(|method, query| method == "POST" && query.contains("uploadId"));
    let store = behind(&lossy.server);
    let upload = store.start_multipart(&path("object"), UploadShape::new(4, 4)).await.unwrap();
    upload.put_part(0, Payload::from("text")).await.unwrap();
    upload.complete().await.unwrap();
    assert!(lossy.lost.load(Ordering::SeqCst) >= 2, "the completion wasn't tried again");
    assert_eq!(store.read_all(&path("object"), 10).await.unwrap().0, "text");
}

/// Another object of the same length at the path is not taken for ours.
#[tokio::test(flavor = "multi_thread")]
async fn a_completion_that_failed_is_not_mistaken_for_another_object() {
    let port = SeaweedFs::shared().port();
    let completions = AtomicUsize::new(0);
    let server = Server::start(move |request: Request| {
        let query = request.uri().query().unwrap_or_default();
        let completion = request.method() == "POST" && query.contains("uploadId");
        let nth = if completion { completions.fetch_add(1, Ordering::SeqCst) + 1 } else { 0 };
        async move {
            match nth {
                0 => forward(port, request).await,
                1 => Reply::s3_error(503, "SlowDown"),
                _ => Reply::s3_error(404, "NoSuchUpload"),
            }
        }
    });
    let store = behind(&server);
    store.put(&path("object"), Payload::from("old!")).await.unwrap();
    let upload = store.start_multipart(&path("object"), UploadShape::new(4, 4)).await.unwrap();
    upload.put_part(0, Payload::from("text")).await.unwrap();
    let error = upload.complete().await.unwrap_err();
    assert!(error.is_not_found(), "{error:?}");
    assert_eq!(error.at().operation(), Operation::CompleteUpload);
}
