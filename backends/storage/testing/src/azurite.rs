//! Azurite: the emulator of Azure Blob Storage.

use crate::Options;
use crate::process::{Process, folder, free_port};
use crate::sign::{azure_container, request};
use std::sync::OnceLock;

/// A running Azurite.
pub struct Azurite {
    port: u16,
    _process: Process,
}

/// The emulator's published account.
const ACCOUNT: &str = "devstoreaccount1";
const KEY: &str = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw==";

impl Azurite {
    /// The server of this test process, started on first use.
    pub fn shared() -> &'static Self {
        static SHARED: OnceLock<Azurite> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    fn start() -> Self {
        let azurite = crate::install::azurite();
        let folder = folder("azurite");
        let port = free_port();
        let arguments =
            ["--blobHost", "127.0.0.1", "--silent", "--skipApiVersionCheck", "--inMemoryPersistence"];
        let mut arguments: Vec<_> = arguments.map(str::to_owned).into();
        arguments.extend(["--blobPort".to_owned(), port.to_string()]);
        let mut process = Process::start(&azurite, &arguments, &folder);
        process.wait_until("Azurite", &folder, || request(port, "GET", "/", "", &[]).0 != 0);
        Self { port, _process: process }
    }

    /// Makes a container with a fresh name.
    pub fn container(&self) -> String {
        let container = crate::fresh_name();
        let (status, body) = azure_container(self.port, ACCOUNT, KEY, &container);
        assert_eq!(status, 201, "Azurite doesn't make a container: {body}");
        container
    }

    /// Options to open `az://container` with.
    pub fn options(&self) -> Options {
        vec![
            ("azure_storage_account_name", ACCOUNT.to_owned()),
            ("azure_storage_account_key", KEY.to_owned()),
            ("azure_storage_endpoint", format!("http://127.0.0.1:{}/{ACCOUNT}", self.port)),
        ]
    }
}
