//! The layers of the source tree: imports go one way, and the shard crate depends on no other crate of ours.

#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

/// The layers of `src`, each with those that it may use.
const LAYERS: [(&str, &[&str]); 7] = [
    ("format", &[]),
    ("plan", &["format"]),
    ("transfer", &["plan", "format"]),
    ("foreign", &["plan", "format"]),
    ("checkpoint", &["foreign", "transfer", "plan", "format"]),
    ("training", &["checkpoint", "foreign", "transfer", "plan", "format"]),
    ("cli", &["training", "checkpoint", "foreign", "transfer", "plan", "format"]),
];

/// The crates of ours that a layer may use: the pure ones know no backend.
fn backends_allowed(layer: &str) -> bool {
    !matches!(layer, "format" | "plan")
}

fn sources(directory: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    found
}

#[test]
fn imports_go_one_way() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut checked = 0;
    for (layer, may_use) in LAYERS {
        let directory = root.join(layer);
        if !directory.exists() {
            continue;
        }
        for file in sources(&directory) {
            let text = std::fs::read_to_string(&file).unwrap();
            checked += 1;
            for (other, _) in LAYERS {
                if other != layer && !may_use.contains(&other) {
                    let import = format!("crate::{other}");
                    assert!(!text.contains(&import), "{} uses {import}", file.display());
                }
            }
            for backend in ["reshard_storage", "reshard_device", "reshard_collective"] {
                assert!(
                    backends_allowed(layer) || !text.contains(backend),
                    "{} uses {backend}",
                    file.display()
                );
            }
        }
    }
    assert!(checked > 40, "only {checked} files were checked");
}

/// The crates of ours below `package` in the dependency tree.
fn own_dependencies(package: &str) -> Vec<String> {
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--edges", "normal", "--prefix", "none", "--package", package])
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let tree = String::from_utf8(output.stdout).unwrap();
    let names = tree.lines().filter_map(|line| line.split_whitespace().next());
    let mut own: Vec<String> =
        names.filter(|name| name.starts_with("reshard-") && *name != package).map(str::to_owned).collect();
    own.sort();
    own.dedup();
    own
}

#[test]
fn a_layer_code_can_depend_on_the_shard_crate_alone() {
    assert_eq!(own_dependencies("reshard-shard"), Vec::<String>::new());
}

#[test]
fn backends_know_nothing_of_checkpoints() {
    for backend in ["reshard-storage", "reshard-device", "reshard-collective"] {
        let own = own_dependencies(backend);
        assert!(own.iter().all(|name| name == "reshard-shard"), "{backend} depends on {own:?}");
    }
}
