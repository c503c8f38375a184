//! Server processes that can't outlive the test process.

use std::fs::File;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A server process. A small shell holds it and kills it when its own standard input closes: when this value
/// is dropped, and also when the test process dies in any way. It removes the server's folder, too.
pub(crate) struct Process {
    shell: Child,
}

impl Process {
    /// Starts `program`; its folder is `folder`, where its output goes to `log`.
    pub(crate) fn start(program: &Path, arguments: &[String], folder: &Path) -> Self {
        let script =
            r#"folder=$1; shift; "$@" </dev/null & pid=$!; read _; kill -9 $pid; wait; rm -rf "$folder""#;
        let log = File::create(folder.join("log")).expect("can't create a log file");
        let shell = Command::new("sh")
            .args(["-c", script, "sh"])
            .arg(folder)
            .arg(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("can't share a log file"))
            .stderr(log)
            .spawn()
            .unwrap_or_else(|error| panic!("can't start {}: {error}", program.display()));
        Self { shell }
    }

    /// Waits until `ready`, or panics with the log.
    pub(crate) fn wait_until(&mut self, what: &str, folder: &Path, mut ready: impl FnMut() -> bool) {
        for _ in 0..1200 {
            if ready() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        let log = std::fs::read_to_string(folder.join("log")).unwrap_or_default();
        panic!("{what} isn't ready after a minute; its log:\n{log}");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        let _reaped = self.shell.wait();
    }
}

/// A port that is free on this machine now, together with the one 10,000 above it.
pub(crate) fn free_port() -> u16 {
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        // Below the range from which the system draws ports for outgoing connections.
        let port = 11_000 + (getrandom::u32().expect("random bytes") % 10_000) as u16;
        if free(port) && free(port + 10_000) {
            return port;
        }
    }
}

/// A fresh folder for a server.
pub(crate) fn folder(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("reshard-{name}-{}", crate::fresh_name()));
    std::fs::create_dir_all(&folder).expect("can't create a folder");
    folder
}
