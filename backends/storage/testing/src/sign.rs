//! The few signed requests that the storage clients don't offer: making buckets, listing uploads.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{SystemTime, UNIX_EPOCH};

/// A signed S3 request (AWS Signature Version 4) without body. `query` is canonical already: sorted and
/// escaped.
pub(crate) fn s3(port: u16, key: (&str, &str), method: &str, path: &str, query: &str) -> (u16, String) {
    let (day, time) = now();
    let host = format!("127.0.0.1:{port}");
    let empty = hex(&Sha256::digest(b""));
    let signed = "host;x-amz-content-sha256;x-amz-date";
    let headers = format!("host:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{day}T{time}Z\n");
    let canonical = format!("{method}\n{path}\n{query}\n{headers}\n{signed}\n{empty}");
    let scope = format!("{day}/us-east-1/s3/aws4_request");
    let to_sign =
        format!("AWS4-HMAC-SHA256\n{day}T{time}Z\n{scope}\n{}", hex(&Sha256::digest(canonical.as_bytes())));
    let mut secret = hmac(format!("AWS4{}", key.1).as_bytes(), day.as_bytes());
    for part in ["us-east-1", "s3", "aws4_request"] {
        secret = hmac(&secret, part.as_bytes());
    }
    let signature = hex(&hmac(&secret, to_sign.as_bytes()));
    let authorization = format!(
        "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={signed}, Signature={signature}",
        key.0
    );
    let headers = [
        ("x-amz-content-sha256", empty.as_str()),
        ("x-amz-date", &format!("{day}T{time}Z")),
        ("authorization", &authorization),
    ];
    request(port, method, path, query, &headers)
}

/// A signed Azure request (Shared Key) that makes a container.
pub(crate) fn azure_container(port: u16, account: &str, key: &str, container: &str) -> (u16, String) {
    let date = http_date();
    let path = format!("/{account}/{container}");
    let version = "2021-08-06";
    let to_sign = format!(
        "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:{date}\nx-ms-version:{version}\n/{account}{path}\nrestype:container"
    );
    let key = BASE64_STANDARD.decode(key).expect("an account key is base64");
    let signature = BASE64_STANDARD.encode(hmac(&key, to_sign.as_bytes()));
    let authorization = format!("SharedKey {account}:{signature}");
    let headers =
        [("x-ms-date", date.as_str()), ("x-ms-version", version), ("authorization", &authorization)];
    request(port, "PUT", &path, "restype=container", &headers)
}

/// One request over a connection of its own; status and body.
pub(crate) fn request(
    port: u16,
    method: &str,
    path: &str,
    query: &str,
    headers: &[(&str, &str)],
) -> (u16, String) {
    let exchange = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        let query = if query.is_empty() { String::new() } else { format!("?{query}") };
        write!(stream, "{method} {path}{query} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\nconnection: close\r\n")?;
        write!(stream, "content-length: 0\r\n")?;
        for (name, value) in headers {
            write!(stream, "{name}: {value}\r\n")?;
        }
        write!(stream, "\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    // Nothing listens yet: like a server that isn't ready.
    let Ok(answer) = exchange() else { return (0, String::new()) };
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0);
    (status, answer.split_once("\r\n\r\n").map_or(String::new(), |(_, body)| body.to_owned()))
}

fn hmac(key: &[u8], message: &[u8]) -> Vec<u8> {
    let mut block = [0; 64];
    if key.len() > 64 {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha256::new().chain_update(block.map(|byte| byte ^ 0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(block.map(|byte| byte ^ 0x5c)).chain_update(inner).finalize().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is before 1970").as_secs()
}

/// Year, month and day of a day since 1970 (the civil calendar algorithm of Howard Hinnant).
fn date(day: u64) -> (u64, u64, u64) {
    let z = day + 719_468;
    let (era, doe) = (z / 146_097, z % 146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    (yoe + era * 400 + u64::from(month <= 2), month, doy - (153 * mp + 2) / 5 + 1)
}

/// `20261201` and `150000`.
fn now() -> (String, String) {
    let now = seconds();
    let ((year, month, day), second) = (date(now / 86_400), now % 86_400);
    let time = format!("{:02}{:02}{:02}", second / 3600, second / 60 % 60, second % 60);
    (format!("{year:04}{month:02}{day:02}"), time)
}

/// `Tue, 01 Dec 2026 15:00:00 GMT`.
fn http_date() -> String {
    let now = seconds();
    let ((year, month, day), second) = (date(now / 86_400), now % 86_400);
    let weekday = ["Thu", "Fri", "Sat", "Sun", "Mon", "Tue", "Wed"][(now / 86_400 % 7) as usize];
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months[month as usize - 1];
    let time = format!("{:02}:{:02}:{:02}", second / 3600, second / 60 % 60, second % 60);
    format!("{weekday}, {day:02} {month} {year} {time} GMT")
}
