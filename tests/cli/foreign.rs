//! Other tools' checkpoints, looked at in place.

use crate::command::{fails, json, text};
use crate::run::{content, model, topology};
use reshard::checkpoint::{Checkpoint, LoadRequest, Options};
use reshard::collective::Single;
use reshard::shard::{DType, Naming, Preset};
use reshard::storage::OpenOptions;
use reshard_oracle::infinitrain as oracle;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

/// The model of the files here.
fn preset() -> Preset {
    Preset::new(Naming::HuggingFace, model())
}

#[test]
fn safetensors_are_inspected_planned_and_explained() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("model.safetensors");
    let tensors = preset().tensors(DType::F32);
    let contents: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|tensor| {
            let shape = tensor.global_shape.iter().map(|&size| size as usize).collect();
            (tensor.key.clone(), shape, content(&tensor.key, DType::F32, &tensor.global_shape))
        })
        .collect();
    let views = contents.iter().map(|(key, shape, bytes)| {
        (key, TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    std::fs::write(&file, safetensors::serialize(views, None).unwrap()).unwrap();

    let uri = file.to_str().unwrap();
    let (code, summary) = json(&["inspect", uri]);
    assert_eq!((code, &summary["foreign"], &summary["iteration"]), (0, &json!(true), &Value::Null));
    assert_eq!((&summary["attempt"], &summary["model"]), (&Value::Null, &Value::Null));
    assert_eq!(summary["tensors"], tensors.len());
    assert_eq!(summary["files"][0]["blocks"], Value::Null);
    assert!(text(&["inspect", uri]).contains("no checksums"));
    let key = &tensors[2].key;
    assert_eq!(json(&["inspect", uri, key]).1["chunks"].as_array().unwrap().len(), 1);

    // The plan is a real load's.
    let (_, plan) = json(&["plan", uri]);
    let checkpoint = Checkpoint::open(uri, OpenOptions::new(), Options::default()).unwrap();
    let bound = preset().rules().bind(tensors.clone(), &topology(1, 1, 1)).unwrap();
    let dict = bound.rank(0).unwrap();
    let report = checkpoint.load(&Single, LoadRequest::new(&dict)).unwrap().report;
    assert_eq!(plan["rules"], "preset GPT-2 in the names of Hugging Face");
    assert_eq!((&plan["total"]["table_bytes"], &plan["iteration"]), (&json!(0), &Value::Null));
    assert_eq!(plan["total"]["bytes_needed"], report.total.bytes_needed);
    assert_eq!(plan["total"]["bytes_to_fetch"], report.total.bytes_fetched);
    assert_eq!(plan["total"]["requests"], report.total.requests);
    assert_eq!(json(&["plan", uri, "--tp", "4"]).1["ranks"].as_array().unwrap().len(), 4);
    let (_, explained) = json(&["explain", uri, key, "--tp", "2", "--rank", "1"]);
    assert_eq!(explained["pieces"][0]["file"], "model.safetensors");

    let directory = directory.path().to_str().unwrap();
    assert_eq!(json(&["ls", directory]).1["iterations"], json!([]));
    assert!(fails(3, &["verify", directory]).contains("no checksums"));
}

#[test]
fn an_infinitrain_run_is_listed_and_inspected() {
    let directory = tempfile::tempdir().unwrap();
    let run = oracle::Run { tp: 2, pp: 2, dp: 2, legacy_names: false, reversed: false, tied: false };
    for (path, bytes) in oracle::write(run).files {
        let path = directory.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
    let uri = directory.path().join("run");
    let uri = uri.to_str().unwrap();
    let (_, listing) = json(&["ls", uri]);
    let row = &listing["iterations"][0];
    assert_eq!((&row["state"], &row["committed_at"]), (&json!("foreign"), &Value::Null));
    assert_eq!(row["saved_with"]["tp"], 2);
    assert!(text(&["ls", uri]).contains("foreign"));
    let (_, summary) = json(&["inspect", uri]);
    assert_eq!((&summary["foreign"], &summary["iteration"]), (&json!(true), &row["iteration"]));
    assert_eq!(summary["saved_with"]["pp"], 2);
    assert!(fails(3, &["verify", uri, "--all"]).contains("no committed checkpoint"));
}
