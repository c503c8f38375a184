//! `verify`: a whole checkpoint, and each way to damage one.

use crate::command::{fails, json, reshard_unprivileged, text};
use crate::run::Run;
use reshard::format::{DataFileHeader, EntryName};
use serde_json::Value;
use std::path::{Path, PathBuf};

/// What `verify` says of a run that has one checkpoint: the exit code and the checkpoint's part, in both forms alike.
fn verify(run: &Run) -> (i32, Value) {
    let (code, answer) = json(&["verify", run.uri()]);
    assert_eq!(answer["whole"].as_bool().unwrap(), code == 0);
    let checkpoint = answer["checkpoints"][0].clone();
    let shown = crate::command::reshard(["verify", run.uri()]);
    assert_eq!(shown.code, code);
    for fault in checkpoint["faults"].as_array().unwrap() {
        let (kind, file) = (fault["kind"].as_str().unwrap(), fault["file"].as_str().unwrap());
        let line = shown.stdout.lines().find(|line| line.contains(&format!("{kind}: {file}: ")));
        let line = line.unwrap_or_else(|| panic!("{}", shown.stdout));
        // A document's name is said once.
        let name = file.rsplit('/').next().unwrap();
        let documents = ["commit", "metadata", "trainer_state"].contains(&kind);
        assert!(!documents || !line.contains(&format!(": {name}: ")), "{line}");
    }
    (code, checkpoint)
}

/// The only fault of a damaged run.
fn only_fault(run: &Run) -> Value {
    let (code, checkpoint) = verify(run);
    assert_eq!(code, 1);
    let faults = checkpoint["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 1, "{faults:#?}");
    faults[0].clone()
}

fn data_file(run: &Run, name: &str) -> PathBuf {
    run.attempt(1).join(name)
}

fn header(path: &Path) -> DataFileHeader {
    let bytes = std::fs::read(path).unwrap();
    DataFileHeader::parse("file", &bytes, bytes.len() as u64).unwrap()
}

/// Inverts one bit.
fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at as usize] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_whole_checkpoint_is_whole() {
    let run = Run::with(&[1, 2]);
    let (code, answer) = json(&["verify", run.uri(), "--all"]);
    assert_eq!((code, answer["whole"].as_bool()), (0, Some(true)));
    let checkpoints = answer["checkpoints"].as_array().unwrap();
    assert_eq!(checkpoints.iter().map(|it| it["iteration"].as_u64().unwrap()).collect::<Vec<_>>(), [2, 1]);
    // Every byte of the attempt was read.
    let on_disk: u64 = std::fs::read_dir(run.attempt(1))
        .unwrap()
        .map(|entry| entry.unwrap().metadata().unwrap().len())
        .sum();
    assert_eq!(checkpoints[1]["bytes"], on_disk);
    assert!(checkpoints[1]["blocks"].as_u64().unwrap() > 16);
    assert!(text(&["verify", run.uri()]).starts_with("iter_0000002: whole (16 files, "));
    assert!(text(&["verify", run.uri(), "--iteration", "1"]).starts_with("iter_0000001: whole"));
    let one = format!("{}/iter_0000001", run.uri());
    assert!(text(&["verify", &one]).starts_with("iter_0000001: whole"));
    fails(2, &["verify", &one, "--all"]);
    fails(3, &["verify", run.uri(), "--iteration", "3"]);
    fails(3, &["verify", &format!("{}/nothing", run.uri()), "--all"]);
}

#[test]
fn a_flipped_bit_is_named_with_block_tensor_and_region() {
    let run = Run::with(&[1]);
    let path = data_file(&run, "optimizer-00003-of-00008.safetensors");
    let entries = header(&path).entries;
    let hit = entries.iter().filter(|entry| matches!(entry.name, EntryName::Chunk { .. }));
    let hit = hit.max_by_key(|entry| entry.bytes).unwrap();
    let EntryName::Chunk { key, region } = &hit.name else { unreachable!() };
    let at = hit.offset + hit.bytes / 2;
    flip(&path, at);
    let fault = only_fault(&run);
    assert_eq!((&fault["kind"], &fault["file"]), (&"block".into(), &run.relative(&path).into()));
    let (start, end) = (fault["bytes"]["start"].as_u64().unwrap(), fault["bytes"]["end"].as_u64().unwrap());
    assert!(start <= at && at < end && end - start <= 64 << 10);
    assert_eq!(fault["blocks"]["end"].as_u64().unwrap(), fault["blocks"]["start"].as_u64().unwrap() + 1);
    let held = fault["holds"].as_array().unwrap();
    assert!(
        held.iter().any(|held| held["key"] == **key && held["offset"] == serde_json::json!(region.offset()))
    );
    assert!(crate::command::reshard(["verify", run.uri()]).stdout.contains(&format!("{key}{region}")));
}

#[test]
fn neighbouring_damaged_blocks_are_one_fault() {
    let run = Run::with(&[1]);
    let path = data_file(&run, "optimizer-00000-of-00008.safetensors");
    let length = std::fs::metadata(&path).unwrap().len();
    let mut bytes = std::fs::read(&path).unwrap();
    let from = (length / 3) as usize;
    bytes[from..from + (200 << 10)].iter_mut().for_each(|byte| *byte ^= 1);
    std::fs::write(&path, bytes).unwrap();
    let fault = only_fault(&run);
    assert!(fault["blocks"]["end"].as_u64().unwrap() - fault["blocks"]["start"].as_u64().unwrap() >= 4);
    assert!(fault["detail"].as_str().unwrap().contains(" to "), "{fault}");
}

#[test]
fn an_object_of_a_rank_is_named_too() {
    let run = Run::with(&[1]);
    let rng = (0..8)
        .map(|rank| data_file(&run, &format!("model-{rank:05}-of-00008.safetensors")))
        .chain((0..8).map(|rank| data_file(&run, &format!("optimizer-{rank:05}-of-00008.safetensors"))))
        .find_map(|path| {
            let entry = header(&path)
                .entries
                .into_iter()
                .find(|entry| entry.name == EntryName::Object { name: "rng".into(), rank: 5 })?;
            Some((path, entry.offset))
        });
    let (path, at) = rng.unwrap();
    flip(&path, at);
    let fault = only_fault(&run);
    let object = serde_json::json!({"object": "rng", "rank": 5});
    assert!(fault["holds"].as_array().unwrap().contains(&object), "{fault}");
}

#[test]
fn a_truncated_and_a_longer_file_are_named() {
    let run = Run::with(&[1]);
    let path = data_file(&run, "model-00002-of-00008.safetensors");
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() / 2]).unwrap();
    let fault = only_fault(&run);
    assert_eq!((&fault["kind"], &fault["file"]), (&"length".into(), &run.relative(&path).into()));
    assert!(fault["detail"].as_str().unwrap().contains(&whole.len().to_string()), "{fault}");
    assert!(!fault["holds"].as_array().unwrap().is_empty());
    let mut longer = whole;
    longer.push(0);
    std::fs::write(&path, longer).unwrap();
    let fault = only_fault(&run);
    assert_eq!((&fault["kind"], &fault["bytes"]), (&"length".into(), &Value::Null));
}

#[test]
fn a_missing_file_is_named_with_what_it_held() {
    let run = Run::with(&[1]);
    let path = data_file(&run, "model-00001-of-00008.safetensors");
    std::fs::remove_file(&path).unwrap();
    let fault = only_fault(&run);
    assert_eq!((&fault["kind"], &fault["file"]), (&"missing".into(), &run.relative(&path).into()));
    let named = fault["holds"].as_array().unwrap().len() as u64 + fault["holds_more"].as_u64().unwrap();
    assert!(named > 1, "{fault}");
}

#[test]
fn a_file_of_another_rank_or_iteration_is_named() {
    let run = Run::with(&[1, 2]);
    let path = data_file(&run, "model-00000-of-00008.safetensors");
    let own = std::fs::read(&path).unwrap();
    let other = run.attempt(2).join("model-00000-of-00008.safetensors");
    let other = std::fs::read(other).unwrap();
    let replace = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        let (code, answer) = json(&["verify", run.uri(), "--iteration", "1"]);
        assert_eq!(code, 1);
        answer["checkpoints"][0]["faults"].clone()
    };
    assert_eq!(own.len(), other.len());
    let faults = replace(&other);
    assert_eq!((&faults[0]["kind"], faults.as_array().unwrap().len()), (&"origin".into(), 1));
    assert!(faults[0]["detail"].as_str().unwrap().contains("iter_0000002"), "{faults}");
    // Of another rank of the same attempt.
    let find = |text: &str| own.windows(text.len()).position(|bytes| bytes == text.as_bytes()).unwrap();
    let at = find(r#""rank":"0""#) + r#""rank":""#.len();
    let mut renumbered = own.clone();
    renumbered[at] = b'1';
    let faults = replace(&renumbered);
    assert_eq!(faults[0]["kind"], "origin", "{faults}");
    assert!(faults[0]["detail"].as_str().unwrap().contains("rank 1 of 8"), "{faults}");
    // A header that describes other tensors: the first digit of a layer's number.
    let at = find(".h.0.") + 3;
    let mut renamed = own.clone();
    renamed[at] = b'7';
    let faults = replace(&renamed);
    assert_eq!(faults[0]["kind"], "header", "{faults}");
    assert!(faults[0]["detail"].as_str().unwrap().contains(".h.7."), "{faults}");
}

#[test]
fn damaged_documents_tables_and_strangers_are_named() {
    let run = Run::with(&[1]);
    let trainer_state = data_file(&run, "trainer_state.json");
    flip(&trainer_state, 40);
    let path = data_file(&run, "model-00003-of-00008.safetensors");
    flip(&path, header(&path).block_table.start);
    let stranger = data_file(&run, "model-00009-of-00010.safetensors");
    std::fs::write(&stranger, "stranger").unwrap();
    let leftover = run.iteration(1).join("attempt-0123456789abcdef");
    std::fs::create_dir_all(&leftover).unwrap();
    std::fs::write(leftover.join("metadata.json"), "12345").unwrap();
    let (code, checkpoint) = verify(&run);
    assert_eq!(code, 1);
    let faults: Vec<_> = checkpoint["faults"]
        .as_array()
        .unwrap()
        .iter()
        .map(|fault| (fault["kind"].as_str().unwrap(), fault["file"].as_str().unwrap().to_owned()))
        .collect();
    let expected = [
        ("block_table", run.relative(&path)),
        ("unreferenced", run.relative(&stranger)),
        ("trainer_state", run.relative(&trainer_state)),
    ];
    assert_eq!(faults, expected);
    assert_eq!((&checkpoint["leftover_objects"], &checkpoint["leftover_bytes"]), (&1.into(), &5.into()));

    flip(&data_file(&run, "metadata.json"), 10);
    let faults = verify(&run).1["faults"].clone();
    assert_eq!((&faults[0]["kind"], faults.as_array().unwrap().len()), (&"metadata".into(), 1));
    std::fs::remove_file(data_file(&run, "metadata.json")).unwrap();
    assert_eq!(only_fault(&run)["kind"], "metadata");
    flip(&run.iteration(1).join("commit.json"), 30);
    let fault = only_fault(&run);
    assert_eq!((&fault["kind"], &fault["file"]), (&"commit".into(), &"iter_0000001/commit.json".into()));
    // The other verbs refuse it as damaged.
    assert!(fails(5, &["inspect", run.uri()]).contains("commit.json"));
    assert_eq!(json(&["verify", run.uri(), "--all"]).0, 1);
}

#[test]
fn a_file_that_may_not_be_read_is_a_fault_and_the_others_are_read() {
    let run = Run::with(&[1]);
    let closed = data_file(&run, "model-00001-of-00008.safetensors");
    std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
    let ended = reshard_unprivileged(run.directory.path(), &["verify", run.uri(), "--json"]);
    assert_eq!(ended.code, 1, "{}", ended.stderr);
    let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
    let checkpoint = &answer["checkpoints"][0];
    let faults = checkpoint["faults"].as_array().unwrap();
    assert_eq!(faults.len(), 1, "{faults:#?}");
    assert_eq!(
        (&faults[0]["kind"], &faults[0]["file"]),
        (&"unreadable".into(), &run.relative(&closed).into())
    );
    let others: u64 = std::fs::read_dir(run.attempt(1))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path() != closed)
        .map(|entry| entry.metadata().unwrap().len())
        .sum();
    assert_eq!(checkpoint["bytes"], others);
}

#[test]
fn an_iteration_that_may_not_be_read_is_a_fault_and_the_others_are_read() {
    let run = Run::with(&[1, 2]);
    for closed in [run.iteration(2).join("commit.json"), run.iteration(2)] {
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&closed).unwrap().permissions());
        let set = |mode| {
            std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        };
        set(0o000);
        let ended = reshard_unprivileged(run.directory.path(), &["verify", run.uri(), "--all", "--json"]);
        set(mode);
        assert_eq!(ended.code, 1, "{}", ended.stderr);
        let answer: Value = serde_json::from_str(&ended.stdout).unwrap();
        let checkpoints = answer["checkpoints"].as_array().unwrap();
        let by_iteration =
            |number: u64| checkpoints.iter().find(|checkpoint| checkpoint["iteration"] == number).unwrap();
        assert_eq!(by_iteration(2)["faults"][0]["kind"], "unreadable");
        assert!(by_iteration(1)["faults"].as_array().unwrap().is_empty());
        assert!(by_iteration(1)["blocks"].as_u64().unwrap() > 0);
    }
}

#[test]
fn documents_that_are_gone_are_damage() {
    let run = Run::with(&[1]);
    std::fs::remove_file(data_file(&run, "metadata.json")).unwrap();
    let error = fails(5, &["inspect", run.uri()]);
    assert!(error.contains("metadata.json") && error.contains("is missing"), "{error}");
}
