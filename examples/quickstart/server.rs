//! An S3 server in this process, so that the example needs nothing installed.
//!
//! s3s-fs keeps objects as files and checks request signatures; it is not made for production.

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use reshard::storage::OpenOptions;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use std::error::Error;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

const BUCKET: &str = "checkpoints";
const ACCESS_KEY: &str = "quickstart";
const SECRET_KEY: &str = "quickstart-secret";

/// A server that runs until it is dropped; its data goes with it.
pub struct Server {
    port: u16,
    _runtime: Runtime,
    _data: TempDir,
}

impl Server {
    pub fn start() -> Result<Self, Box<dyn Error>> {
        let data = tempfile::tempdir()?;
        std::fs::create_dir(data.path().join(BUCKET))?;
        let files = s3s_fs::FileSystem::new(data.path()).map_err(|error| format!("S3 server: {error:?}"))?;
        let mut service = S3ServiceBuilder::new(files);
        service.set_auth(SimpleAuth::from_single(ACCESS_KEY, SECRET_KEY));
        let service = service.build();
        let runtime = Runtime::new()?;
        let listener = runtime.block_on(TcpListener::bind(("127.0.0.1", 0)))?;
        let port = listener.local_addr()?.port();
        runtime.spawn(async move {
            while let Ok((socket, _)) = listener.accept().await {
                let service = service.clone();
                tokio::spawn(async move {
                    let connection = Builder::new(TokioExecutor::new());
                    // A connection that breaks concerns its client alone.
                    let _ = connection.serve_connection(TokioIo::new(socket), service).await;
                });
            }
        });
        Ok(Self { port, _runtime: runtime, _data: data })
    }

    pub fn uri(&self) -> String {
        format!("s3://{BUCKET}/quickstart")
    }

    pub fn options(&self) -> OpenOptions {
        OpenOptions::new()
            .without_environment()
            .set("aws_endpoint", format!("http://127.0.0.1:{}", self.port))
            .set("aws_access_key_id", ACCESS_KEY)
            .set("aws_secret_access_key", SECRET_KEY)
            .set("aws_region", "us-east-1")
            .set("allow_http", "true")
    }
}
