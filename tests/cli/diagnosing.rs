//! `doctor`, on disk and against a real S3 server, and what it says of servers and credentials that do not do.

use crate::command::{fails, json, reshard, reshard_unprivileged};
use reshard_storage_testing::{Identity, Reply, SeaweedFs, Server, forward, fresh_name};
use serde_json::Value;

/// `--set` for a server; `endpoint` instead of the server's own.
fn settings(identity: Identity, endpoint: Option<&str>) -> Vec<String> {
    let options = SeaweedFs::shared().options(identity).into_iter();
    options
        .flat_map(|(key, value)| {
            let value = endpoint.filter(|_| key == "aws_endpoint").map_or(value, str::to_owned);
            ["--set".to_owned(), format!("{key}={value}")]
        })
        .collect()
}

fn doctor(uri: &str, settings: &[String]) -> (i32, Value) {
    let arguments: Vec<&str> =
        ["doctor", uri].into_iter().chain(settings.iter().map(String::as_str)).collect();
    let (code, answer) = json(&arguments);
    assert_eq!(answer["healthy"].as_bool().unwrap(), code == 0, "{answer:#}");
    let secrets = ["testsecret", "readersecret", "another-secret"];
    assert!(secrets.iter().all(|secret| !answer.to_string().contains(secret)), "{answer:#}");
    (code, answer)
}

/// Names and details of the faults; each has a fix.
fn faults(answer: &Value) -> Vec<(String, String, String)> {
    let checks = answer["checks"].as_array().unwrap().iter();
    checks
        .filter(|check| check["status"] == "fault")
        .map(|check| ["name", "detail", "fix"].map(|field| check[field].as_str().unwrap().to_owned()).into())
        .collect()
}

fn names(answer: &Value) -> Vec<&str> {
    answer["checks"].as_array().unwrap().iter().map(|check| check["name"].as_str().unwrap()).collect()
}

#[test]
fn a_disk_is_healthy_and_left_as_it_was() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("mine"), "mine").unwrap();
    let uri = directory.path().to_str().unwrap();
    let (code, answer) = doctor(uri, &[]);
    assert_eq!((code, answer["uri"].as_str()), (0, Some(uri)));
    let expected = [
        "list",
        "write",
        "read",
        "find",
        "create if absent",
        "update if unchanged",
        "upload in parts",
        "read a range",
        "latency",
        "throughput",
        "delete",
    ];
    assert_eq!(names(&answer), expected);
    assert!(answer["latency_ms"].as_f64().unwrap() > 0.0);
    let levels = answer["throughput"].as_array().unwrap();
    assert!(levels.iter().all(|level| level["mb_per_second"].as_f64().unwrap() > 0.0));
    let concurrency = &answer["suggested_concurrency"];
    assert!(levels.iter().any(|level| &level["concurrency"] == concurrency));
    let shown = reshard(["doctor", uri]).stdout;
    assert!(shown.contains("suggested concurrency: ") && shown.contains("MB/s"), "{shown}");
    let left: Vec<_> = std::fs::read_dir(directory.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name != ".lock")
        .collect();
    assert_eq!(left, ["mine"]);
}

#[test]
fn a_real_s3_server_is_healthy_and_left_as_it_was() {
    let bucket = SeaweedFs::shared().bucket();
    let (code, answer) = doctor(&format!("s3://{bucket}/run"), &settings(Identity::Admin, None));
    assert_eq!(code, 0, "{answer:#}");
    assert!(names(&answer).contains(&"clock"));
    let (_, listing) = {
        let settings = settings(Identity::Admin, None);
        let uri = format!("s3://{bucket}");
        let arguments: Vec<&str> =
            ["ls", &uri].into_iter().chain(settings.iter().map(String::as_str)).collect();
        json(&arguments)
    };
    assert_eq!(listing["iterations"], serde_json::json!([]));
    assert_eq!(SeaweedFs::shared().unfinished_uploads(&bucket), [""; 0]);
}

#[test]
fn wrong_credentials_buckets_and_endpoints_come_with_a_fix() {
    let bucket = format!("s3://{}", SeaweedFs::shared().bucket());
    let first = |uri: &str, settings: &[String]| {
        let (code, answer) = doctor(uri, settings);
        assert_eq!(code, 1);
        faults(&answer).remove(0)
    };
    let (name, _, fix) = first(&bucket, &settings(Identity::WrongSecret, None));
    assert!(name == "list" && fix.contains("AWS_SECRET_ACCESS_KEY"), "{fix}");
    let (name, _, fix) = first(&bucket, &settings(Identity::Reader, None));
    assert!(name == "write" && fix.contains("s3:PutObject"), "{fix}");
    let (name, _, fix) = first(&format!("s3://{}", fresh_name()), &settings(Identity::Admin, None));
    assert!(name == "list" && fix.contains("create the bucket"), "{fix}");
    let (name, _, fix) = first(&bucket, &settings(Identity::Admin, Some("http://127.0.0.1:1")));
    assert!(name == "list" && fix.contains("correct the endpoint"), "{fix}");
    let console = Server::start(|_| async { Reply::new(200, "text/html", "<html>a console</html>") });
    let (name, _, fix) = first(&bucket, &settings(Identity::Admin, Some(&console.url())));
    assert!(name == "list" && fix.contains("AWS_ENDPOINT"), "{fix}");
    // Other verbs say the same by their exit code.
    let command = |verb: &str, uri: &str, settings: Vec<String>| {
        let arguments: Vec<String> = [verb.to_owned(), uri.to_owned()].into_iter().chain(settings).collect();
        reshard(&arguments)
    };
    let denied = command("ls", &bucket, settings(Identity::WrongSecret, None));
    assert_eq!(denied.code, 4, "{}", denied.stderr);
    assert!(!denied.stderr.contains("another-secret"));
    let missing = command("ls", &format!("s3://{}", fresh_name()), settings(Identity::Admin, None));
    assert_eq!(missing.code, 3, "{}", missing.stderr);
}

/// A server that answers each write whose condition does not hold as if it had taken it.
#[test]
fn a_server_that_ignores_conditions_is_found_and_named() {
    for (header, check, named) in [
        ("if-none-match", "create if absent", "ignores If-None-Match"),
        ("if-match", "update if unchanged", "ignores If-Match"),
    ] {
        let bucket = SeaweedFs::shared().bucket();
        let port = SeaweedFs::shared().port();
        let proxy = Server::start(move |request| async move {
            let conditional = request.method() == "PUT" && request.headers().contains_key(header);
            let mut reply = forward(port, request).await;
            if let Reply::Answer(answer) = &mut reply
                && conditional
                && answer.status() == 412
            {
                *answer.status_mut() = Default::default();
                answer.headers_mut().insert("etag", "\"taken\"".parse().unwrap());
            }
            reply
        });
        let (code, answer) =
            doctor(&format!("s3://{bucket}"), &settings(Identity::Admin, Some(&proxy.url())));
        assert_eq!(code, 1);
        let faults = faults(&answer);
        assert_eq!(faults.len(), 1, "{faults:#?}");
        let (name, detail, fix) = &faults[0];
        assert!(name == check && detail.contains(named) && fix.contains("use a store"), "{faults:#?}");
    }
}

/// One that checks the condition but not atomically: all that come at once win.
#[test]
fn a_server_that_lets_several_writers_win_is_found() {
    let bucket = SeaweedFs::shared().bucket();
    let port = SeaweedFs::shared().port();
    let proxy = Server::start(move |request| async move {
        let raced = request.uri().path().ends_with("created-at-once") && request.method() == "PUT";
        let mut reply = forward(port, request).await;
        if let Reply::Answer(answer) = &mut reply
            && raced
        {
            *answer.status_mut() = Default::default();
            answer.headers_mut().insert("etag", "\"taken\"".parse().unwrap());
        }
        reply
    });
    let (_, answer) = doctor(&format!("s3://{bucket}"), &settings(Identity::Admin, Some(&proxy.url())));
    let faults = faults(&answer);
    assert_eq!((faults.len(), faults[0].0.as_str()), (1, "create if absent"));
    assert!(faults[0].1.contains("8 of 8 writers"), "{faults:#?}");
}

#[test]
fn a_wrong_option_is_a_wrong_command_line_and_secrets_stay_secret() {
    let message = fails(2, &["doctor", "s3://bucket", "--set", "aws_secret_access_key:hush"]);
    assert!(message.contains("KEY=VALUE") && !message.contains("hush"), "{message}");
    let message = fails(2, &["doctor", "s3://key:hush@bucket"]);
    assert!(!message.contains("hush"), "{message}");
    fails(2, &["doctor", "s3://bucket", "--set", "no_such_option=1"]);
    fails(2, &["doctor", "ftp://host/run"]);
    fails(2, &["doctor", "s3://bucket", "--set", "aws_endpoint=http://example.com"]);
}

#[test]
fn a_directory_that_was_not_there_is_said_and_gone_again() {
    let directory = tempfile::tempdir().unwrap();
    let uri = directory.path().join("not/there");
    let uri = uri.to_str().unwrap();
    let (code, answer) = doctor(uri, &[]);
    assert_eq!(code, 0);
    let checks = answer["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "directory").unwrap();
    assert_eq!(check["status"], "warning");
    let detail = check["detail"].as_str().unwrap();
    assert!(detail.contains("did not exist") && detail.contains("removed again"), "{detail}");
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn a_disk_gets_advice_for_a_disk() {
    let directory = tempfile::tempdir().unwrap();
    let closed = directory.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o555);
    std::fs::set_permissions(&closed, permissions).unwrap();
    let ended = reshard_unprivileged(directory.path(), &["doctor", closed.to_str().unwrap()]);
    assert_eq!(ended.code, 1, "{}{}", ended.stdout, ended.stderr);
    let fix = ended.stdout.split_once("fix: ").unwrap().1;
    assert!(fix.contains("chmod"), "{fix}");
    for word in ["s3:", "credentials", "secret", "key id"] {
        assert!(!ended.stdout.contains(word), "{word}: {}", ended.stdout);
    }
}
