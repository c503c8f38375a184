//! `ls` and `inspect`.

use crate::command::{fails, json, reshard_unprivileged, text};
use crate::run::{Run, bound, topology};
use reshard::format::{Commit, DeletedCheckpoint};
use serde_json::json;

#[test]
fn ls_shows_every_iteration_and_its_state() {
    let run = Run::with(&[100, 200]);
    let deleted = Commit::Deleted(DeletedCheckpoint::new().unwrap()).to_bytes();
    std::fs::create_dir_all(run.iteration(50)).unwrap();
    std::fs::write(run.iteration(50).join("commit.json"), deleted).unwrap();
    std::fs::create_dir_all(run.iteration(300).join("attempt-0123456789abcdef")).unwrap();
    std::fs::write(run.iteration(300).join("attempt-0123456789abcdef/metadata.json"), "{}").unwrap();
    std::fs::create_dir_all(run.iteration(400)).unwrap();
    std::fs::write(run.iteration(400).join("commit.json"), "{}").unwrap();

    let (code, listing) = json(&["ls", run.uri()]);
    assert_eq!((code, &listing["uri"]), (0, &json!(run.uri())));
    let rows = listing["iterations"].as_array().unwrap();
    let states: Vec<_> =
        rows.iter().map(|row| (row["iteration"].as_u64().unwrap(), row["state"].as_str().unwrap())).collect();
    let expected =
        [(400, "damaged"), (300, "uncommitted"), (200, "committed"), (100, "committed"), (50, "deleted")];
    assert_eq!(states, expected);
    assert!(rows[0]["fault"].as_str().unwrap().contains("commit.json"), "{}", rows[0]);
    let saved = &rows[2];
    assert_eq!(saved["world_size"], 8);
    assert_eq!(saved["saved_with"], json!({"tp": 2, "pp": 2, "dp": 2, "sp": 1, "vpp": 1}));
    let files: Vec<_> = std::fs::read_dir(run.attempt(200))
        .unwrap()
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.file_name().to_str().unwrap().contains(".safetensors"))
        .collect();
    assert_eq!(saved["files"], files.len());
    assert_eq!(saved["bytes"], files.iter().map(|file| file.metadata().unwrap().len()).sum::<u64>());
    assert!(saved["committed_at"].as_str().unwrap().ends_with('Z'));

    let shown = text(&["ls", run.uri()]);
    let lines: Vec<_> = shown.lines().collect();
    assert!(lines[0].starts_with("iteration  state"), "{shown}");
    assert!(lines[3].contains("200") && lines[3].contains("tp2 pp2 dp2 (8 ranks)"), "{shown}");
    let (_, newest) = json(&["ls", run.uri(), "--newest", "1"]);
    assert_eq!(newest["iterations"].as_array().unwrap().len(), 1);
}

#[test]
fn an_iteration_that_may_not_be_read_does_not_hide_the_others() {
    let run = Run::with(&[1, 2]);
    for (closed, mode) in [(run.iteration(2), 0o755), (run.attempt(1), 0o755)] {
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(0o000)).unwrap();
        let ended = reshard_unprivileged(run.directory.path(), &["ls", run.uri(), "--json"]);
        std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        let listing: serde_json::Value = serde_json::from_str(&ended.stdout).unwrap();
        let rows = listing["iterations"].as_array().unwrap();
        let states: Vec<_> = rows.iter().map(|row| row["state"].as_str().unwrap()).collect();
        let unreadable = usize::from(closed == run.attempt(1));
        assert_eq!((states[unreadable], states[1 - unreadable]), ("unreadable", "committed"));
        assert!(rows[unreadable]["fault"].as_str().unwrap().contains("ermission"), "{rows:?}");
    }
}

#[test]
fn ls_of_an_iteration_says_what_its_objects_are_for() {
    let run = Run::with(&[7]);
    let other = run.iteration(7).join("attempt-0123456789abcdef");
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(other.join("model-00000-of-00008.safetensors"), "left").unwrap();
    let uri = format!("{}/iter_0000007/", run.uri());
    let (_, listing) = json(&["ls", &uri]);
    let objects = listing["objects"].as_array().unwrap();
    let roles = |role| objects.iter().filter(|object| object["role"] == role).collect::<Vec<_>>();
    assert_eq!((roles("commit").len(), roles("metadata").len(), roles("trainer_state").len()), (1, 1, 1));
    assert_eq!(roles("leftover").len(), 1);
    assert_eq!(roles("leftover")[0]["bytes"], 4);
    assert_eq!(roles("data").len(), objects.len() - 4);
    assert_eq!(text(&["ls", &uri]).lines().count(), objects.len() + 2);
    let message = fails(3, &["ls", &format!("{}/iter_0000008", run.uri())]);
    assert!(message.contains("iter_0000008"), "{message}");
}

#[test]
fn an_empty_place_is_no_error_for_ls_and_one_for_inspect() {
    let run = Run::with(&[]);
    assert_eq!(json(&["ls", run.uri()]).1["iterations"], json!([]));
    assert!(text(&["ls", run.uri()]).contains("has no iterations"));
    let message = fails(3, &["inspect", run.uri()]);
    assert!(message.contains("no committed checkpoint") && message.contains("reshard ls"), "{message}");
}

#[test]
fn inspect_sums_a_checkpoint_up() {
    let run = Run::with(&[100, 200]);
    let (code, summary) = json(&["inspect", run.uri(), "--iteration", "100"]);
    assert_eq!((code, &summary["iteration"]), (0, &json!(100)));
    assert_eq!(json(&["inspect", run.uri()]).1["iteration"], 200);
    assert_eq!((&summary["world_size"], &summary["global_step"]), (&json!(8), &json!(100)));
    assert_eq!(summary["model"]["n_embd"], 256);
    assert_eq!(summary["objects"], json!([{"name": "rng", "ranks": 8, "bytes": 800}]));
    // On one rank the whole state is there: the totals are its tensors'.
    let whole = bound(&topology(1, 1, 1)).rank(0).unwrap();
    let bytes = |key: &str| whole.get(key).unwrap().local_bytes();
    let optimizer: u64 =
        whole.iter().filter(|(key, _)| key.starts_with("adam.")).map(|(key, _)| bytes(key)).sum();
    assert_eq!(summary["groups"]["optimizer"]["bytes"], optimizer);
    assert_eq!(summary["dtypes"]["i64"], json!({"tensors": 1, "bytes": 8}));
    assert_eq!(summary["files"][0]["path"], "model-00000-of-00008.safetensors");
    let shown = text(&["inspect", &format!("{}/iter_0000100", run.uri())]);
    for part in ["n_embd=256", "tp2 pp2 dp2", "optimizer: ", "model-00000-of-00008.safetensors"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    let message = fails(2, &["inspect", &format!("{}/iter_0000100", run.uri()), "--iteration", "200"]);
    assert!(message.contains("iter_0000100") && message.contains("iter_0000200"), "{message}");
    fails(3, &["inspect", run.uri(), "--iteration", "101"]);
}

#[test]
fn inspect_shows_where_a_tensor_lies() {
    let run = Run::with(&[1]);
    let key = "transformer.h.0.attn.c_attn.weight";
    let (_, tensor) = json(&["inspect", run.uri(), key]);
    assert_eq!((&tensor["dtype"], &tensor["global_shape"]), (&json!("bf16"), &json!([768, 256])));
    assert_eq!(tensor["split"], json!({"axis": 0, "segments": [256, 256, 256]}));
    // The chunks' bytes on disk are the regions of the tensor.
    let full = reshard_oracle::full_tensor(key, reshard::shard::DType::BF16, &[768, 256]);
    let mut elements = 0;
    for chunk in tensor["chunks"].as_array().unwrap() {
        let number = |field: &str, axis: usize| chunk[field][axis].as_u64().unwrap() as usize;
        let file = std::fs::read(run.attempt(1).join(chunk["file"].as_str().unwrap())).unwrap();
        let start = chunk["file_offset"].as_u64().unwrap() as usize;
        let (rows, columns) = (number("shape", 0), number("shape", 1));
        assert_eq!(chunk["bytes"], rows * columns * 2);
        for row in 0..rows {
            let from = ((number("offset", 0) + row) * 256 + number("offset", 1)) * 2;
            let at = start + row * columns * 2;
            assert_eq!(file[at..at + columns * 2], full[from..from + columns * 2]);
        }
        elements += rows * columns;
    }
    assert_eq!(elements, 768 * 256);
    let shown = text(&["inspect", run.uri(), key]);
    assert!(shown.contains("axis 0 in segments [256, 256, 256]") && shown.contains("chunk"), "{shown}");
    let (_, list) = json(&["inspect", run.uri(), "transformer.h.[01].*.c_attn.*"]);
    let keys: Vec<_> =
        list["tensors"].as_array().unwrap().iter().map(|row| row["key"].as_str().unwrap()).collect();
    assert_eq!(keys.len(), 4);
    assert!(text(&["inspect", run.uri(), "*c_attn*"]).ends_with(" tensors\n"));
    let message = fails(3, &["inspect", run.uri(), "transformer.h.0.attn.c_atn.weight"]);
    assert!(message.contains("did you mean `transformer.h.0.attn.c_attn.weight`"), "{message}");
    assert!(fails(3, &["inspect", run.uri(), "nothing like it"]).contains("lists the keys"));
}

#[test]
fn ls_refuses_what_is_no_run() {
    let run = Run::with(&[]);
    let below = |name: &str| format!("{}/{name}", run.uri());
    for uri in [below("nothing"), format!("file://{}", below("nothing"))] {
        let message = fails(3, &["ls", &uri]);
        assert!(message.contains(&format!("there is no {uri}")), "{message}");
    }
    std::fs::write(below("file"), "text").unwrap();
    assert!(fails(3, &["ls", &below("file")]).contains("is a file"));
    assert!(fails(3, &["ls", &below("model.safetensors")]).contains("there is no"));
    std::fs::write(below("model.safetensors"), "text").unwrap();
    assert!(fails(3, &["ls", &below("model.safetensors")]).contains("is a file"));
    let message = fails(3, &["ls", &below("iter_12")]);
    assert!(message.contains("it is written iter_0000012"), "{message}");
    std::fs::create_dir(below("iter_13")).unwrap();
    assert!(fails(3, &["ls", &below("iter_13")]).contains("iter_0000013"));
    for (uri, meant) in [("s3:bucket/run", "s3://bucket/run?"), ("gs:/bucket", "gs://bucket?")] {
        for verb in ["ls", "inspect", "verify", "doctor"] {
            let message = fails(2, &[verb, uri]);
            assert!(message.contains(&format!("did you mean {meant}")), "{verb}: {message}");
        }
    }
    assert!(fails(2, &["ls", run.uri(), "-n", "0"]).contains("--newest"));
}

/// Keys come from storage: long ones are shortened for people, and none can play tricks on a terminal.
#[test]
fn strange_keys_are_shown_and_not_obeyed() {
    let run = Run::with(&[]);
    let long = format!("long.{}.weight", "x".repeat(1_000_000));
    let tricky = "a\u{1b}[31m\nb\u{202e}c\u{2066}d";
    let shapes: &[u64] = &[4];
    run.save_others(
        1,
        &[(&long, reshard::shard::DType::F32, shapes), (tricky, reshard::shard::DType::F32, shapes)],
    );
    let keys = |answer: serde_json::Value| {
        let rows = answer["tensors"].as_array().unwrap().iter();
        rows.map(|row| row["key"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(keys(json(&["inspect", run.uri(), "*"]).1), [tricky, &long]);
    let shown = text(&["inspect", run.uri(), "*"]);
    assert!(shown.lines().all(|line| line.chars().count() < 250) && shown.lines().count() == 4, "{shown}");
    assert!(shown.contains("long.xxx") && shown.contains("…") && shown.contains("xxx.weight"), "{shown}");
    let escaped = "a\\u{1b}[31m\\nb\\u{202e}c\\u{2066}d";
    assert!(shown.contains(escaped), "{shown}");
    assert!(text(&["inspect", run.uri(), tricky]).contains(escaped));
    let message = fails(3, &["inspect", run.uri(), &format!("{tricky}e")]);
    assert_eq!(message.matches(escaped).count(), 2, "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    let message = fails(3, &["inspect", run.uri(), &"long.x".repeat(10_000)]);
    assert!(message.len() < 1000);
}
