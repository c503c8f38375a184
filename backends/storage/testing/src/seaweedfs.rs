//! SeaweedFS: a real S3 server.

use crate::Options;
use crate::process::{Process, folder, free_port};
use crate::sign::{request, s3};
use std::sync::OnceLock;

/// A running SeaweedFS with two users.
pub struct SeaweedFs {
    port: u16,
    _process: Process,
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Identity {
    /// May do everything.
    Admin,
    /// May read and list.
    Reader,
    /// The admin's key id with another secret.
    WrongSecret,
}

impl Identity {
    fn key(self) -> (&'static str, &'static str) {
        match self {
            Self::Admin => ("testkey", "testsecret"),
            Self::Reader => ("readerkey", "readersecret"),
            Self::WrongSecret => ("testkey", "another-secret"),
        }
    }
}

const ADMIN: &str = r#"{"name": "admin", "credentials": [{"accessKey": "testkey", "secretKey": "testsecret"}],
  "actions": ["Admin", "Read", "List", "Tagging", "Write"]}"#;
const READER: &str = r#"{"name": "reader", "credentials": [{"accessKey": "readerkey", "secretKey": "readersecret"}],
  "actions": ["Read", "List"]}"#;
const ANONYMOUS: &str = r#"{"name": "anonymous", "actions": ["Admin", "Read", "List", "Tagging", "Write"]}"#;

impl SeaweedFs {
    /// The server of this test process, started on first use.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<SeaweedFs> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[ADMIN, READER]))
    }

    /// A second server of this test process, on which unsigned requests may do everything.
    pub fn shared_anonymous() -> &'static Self {
        static SHARED: OnceLock<SeaweedFs> = OnceLock::new();
        SHARED.get_or_init(|| Self::start(&[ADMIN, ANONYMOUS]))
    }

    fn start(identities: &[&str]) -> Self {
        let weed = crate::install::seaweedfs();
        let folder = folder("seaweedfs");
        let config = folder.join("s3.json");
        std::fs::write(&config, format!(r#"{{"identities": [{}]}}"#, identities.join(",")))
            .expect("can't write s3.json");
        let port = free_port();
        let mut arguments = vec![
            "mini".to_owned(),
            format!("-dir={}", folder.display()),
            "-ip=127.0.0.1".to_owned(),
            "-ip.bind=127.0.0.1".to_owned(),
            format!("-s3.port={port}"),
            format!("-s3.config={}", config.display()),
            // Otherwise a write to a missing bucket makes it.
            "-s3.autoCreateBucket=false".to_owned(),
            "-s3.port.iceberg=0".to_owned(),
            "-webdav=false".to_owned(),
            "-admin.ui=false".to_owned(),
        ];
        // Each of them also takes the port 10,000 above.
        for service in ["master", "volume", "filer", "admin"] {
            arguments.push(format!("-{service}.port={}", free_port()));
        }
        let mut process = Process::start(&weed, &arguments, &folder);
        process.wait_until("SeaweedFS", &folder, || request(port, "GET", "/", "", &[]).0 != 0);
        Self { port, _process: process }
    }

    /// Makes a bucket with a fresh name.
    pub fn bucket(&self) -> String {
        let bucket = crate::fresh_name();
        // The S3 port answers a moment before the filer behind it does.
        for _ in 0..100 {
            if s3(self.port, Identity::Admin.key(), "PUT", &format!("/{bucket}"), "").0 == 200 {
                return bucket;
            }
            std::thread::sleep(std::time::Duration::from_millis(100));
        }
        let (status, body) = s3(self.port, Identity::Admin.key(), "PUT", &format!("/{bucket}"), "");
        panic!("SeaweedFS doesn't make a bucket: {status} {body}");
    }

    /// Base URL of the S3 interface.
    pub fn endpoint(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Port of the S3 interface.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Options to open `s3://bucket` with.
    pub fn options(&self, identity: Identity) -> Options {
        let (key, secret) = identity.key();
        vec![
            ("aws_access_key_id", key.to_owned()),
            ("aws_secret_access_key", secret.to_owned()),
            ("aws_region", "us-east-1".to_owned()),
            ("aws_endpoint", self.endpoint()),
        ]
    }

    /// Keys, sorted, of the uploads that were started in `bucket` and neither completed nor aborted.
    pub fn unfinished_uploads(&self, bucket: &str) -> Vec<String> {
        let (status, body) = s3(self.port, Identity::Admin.key(), "GET", &format!("/{bucket}"), "uploads=");
        assert_eq!(status, 200, "ListMultipartUploads: {body}");
        let mut keys: Vec<_> = body
            .split("<Upload>")
            .skip(1)
            .filter_map(|upload| Some(upload.split_once("<Key>")?.1.split_once("</Key>")?.0.to_owned()))
            .collect();
        keys.sort();
        keys
    }
}
