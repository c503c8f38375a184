//! A small checkpoint written once: today's code writes the same bytes, reads them, and docs/format.md shows them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "functions that only tests call are tests too"
)]

use reshard::format::{
    AttemptId, BlockTable, BlockTableBuilder, COMMIT_FILE, Chunk, ChunkTable, Commit, CommittedCheckpoint,
    DataFileHeader, DataFileName, Entry, EntryName, EntrySlice, FileHeader, FilePart, Iteration, Limits,
    METADATA_FILE, Metadata, ModelConfig, ObjectDigest, ParallelSizes, SavedObject, SavedTensor,
    TRAINER_STATE_FILE, TrainerState, WriterManifest, WrittenFile, crc32c, lay_out, merge,
};
use reshard::shard::{DType, Region, Split, StateGroup};
use serde_json::json;
use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::process::Command;

const ITERATION: Iteration = Iteration(100);
const RANKS: u32 = 2;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn golden() -> PathBuf {
    root().join("tests/golden").join(ITERATION.to_string())
}

fn attempt() -> AttemptId {
    "00112233445566778899aabbccddeeff".parse().unwrap()
}

/// What one rank holds: half the rows of an embedding and of its moment, and three bytes of a random state.
fn write_rank(rank: u32) -> (WriterManifest, BTreeMap<String, Vec<u8>>) {
    let rows = Region::new([u64::from(rank) * 2, 0], [2, 3]).unwrap();
    let seed = rank as u8 * 0x10;
    let weight: Vec<u8> = (0..6).flat_map(|at| [seed + at, 0x3f]).collect();
    let moment: Vec<u8> = (0..6).flat_map(|at| [0, 0, seed + at, 0x3e]).collect();
    let mut manifest = WriterManifest::default();
    let mut files = BTreeMap::new();
    let tensor = |dtype, group, chunks| SavedTensor {
        dtype,
        global_shape: [4, 3].as_slice().into(),
        logical_shape: Some([3, 3].as_slice().into()),
        split: Some(Split::axis(0)),
        alias_of: None,
        group,
        chunks,
    };
    for (group, key, dtype, data) in [
        (StateGroup::Model, "wte.weight", DType::BF16, weight),
        (StateGroup::Optimizer, "wte.weight.exp_avg", DType::F32, moment),
    ] {
        let index = manifest.files.len() as u32;
        let bytes = data.len() as u64;
        let chunk = Entry { key, slice: EntrySlice::Chunk(&rows), dtype, shape: rows.shape(), bytes };
        let rng = [seed + 1, seed + 2, seed + 3];
        let slice = EntrySlice::Object { rank };
        let object = Entry { key: "rng", slice, dtype: DType::U8, shape: &[3], bytes: 3 };
        let mut runs = vec![vec![chunk]];
        if group == StateGroup::Model {
            runs.push(vec![object]);
        }
        let attempt = attempt();
        let header = FileHeader { attempt: &attempt, iteration: ITERATION, rank, world_size: RANKS };
        let limits = Limits { block_bytes: Some(8), ..Limits::default() };
        let layout = lay_out(&header, &runs, &limits).unwrap().remove(0);
        let mut builder = BlockTableBuilder::new(&layout);
        let mut file = Vec::new();
        for part in layout.parts() {
            let start = file.len();
            match part {
                FilePart::Header(header) => file.extend_from_slice(header),
                FilePart::Entry(place) if place.run == 0 => file.extend_from_slice(&data),
                FilePart::Entry(_) => file.extend_from_slice(&rng),
                FilePart::Padding(bytes) => file.resize(start + bytes as usize, 0),
                FilePart::BlockTable => break,
            }
            if !matches!(part, FilePart::Header(_)) {
                // The padding before the table belongs to no block.
                let end = file.len().min(layout.end() as usize);
                builder.update(&file[start.min(end)..end]).unwrap();
            }
        }
        let table = builder.finish().unwrap().encode();
        let crc = crc32c(&table);
        file.extend(table);
        let name = DataFileName::new(group, rank, RANKS, 0).unwrap();
        manifest.files.push(WrittenFile { name, blocks: layout.block_layout(crc).unwrap() });
        let mut chunks = ChunkTable::new(2);
        chunks.push(&Chunk { region: rows.clone(), file: index, offset: layout.entries()[0].offset });
        manifest.tensors.insert(key.into(), tensor(dtype, group, chunks));
        if let Some(place) = layout.entries().get(1) {
            let object = SavedObject { file: index, offset: place.offset, length: place.bytes };
            manifest.objects.insert("rng".into(), object);
        }
        files.insert(name.to_string(), file);
    }
    let alias_of = Some("wte.weight".to_owned());
    let tied = SavedTensor { alias_of, ..tensor(DType::BF16, StateGroup::Model, ChunkTable::new(2)) };
    manifest.tensors.insert("lm_head.weight".into(), tied);
    (manifest, files)
}

fn trainer_state() -> TrainerState {
    let one = NonZeroU32::MIN;
    TrainerState {
        global_step: 100,
        consumed_train_samples: 6400,
        model: ModelConfig {
            n_layer: Some(0),
            n_embd: Some(3),
            original_vocab_size: Some(3),
            padded_vocab_size: Some(4),
            others: BTreeMap::from([("rope_theta".into(), json!(10000.0))]),
            ..ModelConfig::default()
        },
        ran_with: ParallelSizes { tp: NonZeroU32::new(2).unwrap(), pp: one, dp: one, sp: one, vpp: one },
        lr_scheduler: json!({"base_lrs": [0.0003], "last_epoch": 100}),
        user: json!(null),
    }
}

/// All files of the attempt as today's code writes them.
fn written() -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut gathered = Vec::new();
    for rank in 0..RANKS {
        let (manifest, own) = write_rank(rank);
        gathered.push(manifest.encode());
        files.extend(own);
    }
    let state = trainer_state().to_bytes().unwrap();
    let gathered = gathered.iter().enumerate().map(|(rank, bytes)| (rank as u32, bytes.as_slice()));
    let metadata = merge(gathered, ObjectDigest::of(TRAINER_STATE_FILE, &state)).unwrap();
    files.insert(METADATA_FILE.into(), metadata.to_bytes().unwrap());
    files.insert(TRAINER_STATE_FILE.into(), state);
    files
}

/// The golden files of the attempt. Where there are none yet, they are written, to be looked at and committed.
fn golden_files() -> BTreeMap<String, Vec<u8>> {
    let directory = golden().join(attempt().directory());
    if !directory.exists() {
        std::fs::create_dir_all(&directory).unwrap();
        let files = written();
        for (name, bytes) in &files {
            std::fs::write(directory.join(name), bytes).unwrap();
        }
        let commit =
            CommittedCheckpoint::new(ITERATION, attempt(), &files[METADATA_FILE], ["best".to_owned()].into());
        std::fs::write(golden().join(COMMIT_FILE), Commit::Committed(commit.unwrap()).to_bytes()).unwrap();
        panic!(
            "there was no golden checkpoint; it is written now: look at {} and commit it",
            directory.display()
        );
    }
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    entries.map(|path| (name_of(&path), std::fs::read(&path).unwrap())).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap().to_str().unwrap().to_owned()
}

#[test]
fn the_same_bytes_are_written_today() {
    let (golden, written) = (golden_files(), written());
    assert_eq!(golden.keys().collect::<Vec<_>>(), written.keys().collect::<Vec<_>>());
    for (name, bytes) in &golden {
        assert_eq!(bytes.escape_ascii().to_string(), written[name].escape_ascii().to_string(), "{name}");
    }
}

#[test]
fn the_golden_checkpoint_is_read_from_its_commit_down() {
    let files = golden_files();
    assert_eq!(name_of(&golden()).parse::<Iteration>().unwrap(), ITERATION);
    let bytes = std::fs::read(golden().join(COMMIT_FILE)).unwrap();
    let commit = Commit::parse(COMMIT_FILE, &bytes).unwrap();
    assert_eq!(commit.to_bytes(), bytes);
    let checkpoint = commit.committed(COMMIT_FILE).unwrap();
    assert_eq!(checkpoint.attempt(), &attempt());
    assert!(checkpoint.pins().contains("best"));
    let metadata_bytes = std::fs::read(golden().join(&checkpoint.metadata().path)).unwrap();
    checkpoint.metadata().check(&metadata_bytes).unwrap();
    let metadata = Metadata::parse(METADATA_FILE, &metadata_bytes).unwrap();
    let state = &files[&metadata.trainer_state.path];
    metadata.trainer_state.check(state).unwrap();
    assert_eq!(TrainerState::parse(TRAINER_STATE_FILE, state).unwrap(), trainer_state());

    let layout = &metadata.layout;
    for file in &layout.files {
        let bytes = &files[&file.path];
        assert_eq!(bytes.len() as u64, file.length);
        let header = DataFileHeader::parse(&file.path, bytes, file.length).unwrap();
        let name: DataFileName = file.path.parse().unwrap();
        assert_eq!((header.attempt, header.iteration), (attempt(), ITERATION));
        assert_eq!((header.rank, header.world_size), (name.rank(), name.world_size()));
        let blocks = file.blocks.as_ref().unwrap();
        assert_eq!(blocks.table(), header.block_table);
        let table = &bytes[blocks.table().start as usize..];
        let table = BlockTable::decode(&file.path, blocks, table).unwrap();
        for (index, range) in blocks.blocks_in(blocks.runs()[0]..blocks.end()) {
            let block = &bytes[range.start as usize..range.end as usize];
            table.verify(&file.path, index, block).unwrap();
        }
        // What the header says of itself is what metadata.json says of it.
        for entry in header.entries {
            match entry.name {
                EntryName::Chunk { key, region } => {
                    let chunk =
                        layout.tensors[&key].chunks.iter().find(|chunk| chunk.region == region).unwrap();
                    assert_eq!(chunk.offset, entry.offset);
                }
                EntryName::Object { name, rank } => {
                    let object = layout.objects[&name][&rank];
                    assert_eq!((object.offset, object.length), (entry.offset, entry.bytes));
                }
                EntryName::Padding | EntryName::BlockTable => {}
            }
        }
    }
    assert_eq!(layout.tensors["lm_head.weight"].alias_of.as_deref(), Some("wte.weight"));
}

/// The fenced blocks of docs/format.md whose info string names a file.
fn shown() -> BTreeMap<String, (String, String)> {
    let text = std::fs::read_to_string(root().join("docs/format.md")).unwrap();
    let mut shown = BTreeMap::new();
    let mut open: Option<(String, String, String)> = None;
    for line in text.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (None, Some(info)) => {
                let (language, file) = info.split_once(" file=").unwrap_or((info, ""));
                open = Some((language.to_owned(), file.to_owned(), String::new()));
            }
            (Some(_), Some(_)) => {
                let (language, file, body) = open.take().unwrap();
                if !file.is_empty() {
                    shown.insert(file, (language, body));
                }
            }
            (Some((_, _, body)), None) => body.extend([line, "\n"]),
            (None, None) => {}
        }
    }
    shown
}

/// `00000010  61 62 ...  |ab...|` back to bytes.
fn from_hex_dump(dump: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for line in dump.lines() {
        let (offset, rest) = line.split_once("  ").expect("offset and bytes");
        assert_eq!(usize::from_str_radix(offset, 16).unwrap(), bytes.len());
        let hex = rest.split('|').next().unwrap();
        bytes.extend(hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()));
    }
    bytes
}

#[test]
fn the_specification_shows_the_golden_checkpoint() {
    let shown = shown();
    let mut golden = golden_files();
    golden.insert(COMMIT_FILE.into(), std::fs::read(self::golden().join(COMMIT_FILE)).unwrap());
    let names: Vec<_> = shown.keys().map(String::as_str).collect();
    assert_eq!(names, [COMMIT_FILE, METADATA_FILE, "model-00001-of-00002.safetensors", TRAINER_STATE_FILE]);
    for (name, (language, body)) in shown {
        let bytes = match language.as_str() {
            "json" => body.strip_suffix('\n').unwrap().as_bytes().to_vec(),
            "text" => from_hex_dump(&body),
            other => panic!("{name}: {other}"),
        };
        assert_eq!(bytes.escape_ascii().to_string(), golden[&name].escape_ascii().to_string(), "{name}");
    }
}

#[test]
fn the_specification_lists_every_dtype() {
    let text = std::fs::read_to_string(root().join("docs/format.md")).unwrap();
    for dtype in DType::ALL {
        for name in [dtype.name(), dtype.safetensors_name()] {
            assert!(text.contains(&format!("`{name}`")), "{name}");
        }
    }
}

/// A Python with the safetensors package; made once and kept between runs.
fn python() -> PathBuf {
    let home = || PathBuf::from(std::env::var_os("HOME").expect("HOME is set")).join(".cache/reshard-test");
    let directory = std::env::var_os("RESHARD_TEST_ENV").map_or_else(home, PathBuf::from).join("py");
    let python = directory.join("bin/python");
    let has_package = || {
        Command::new(&python)
            .args(["-c", "import safetensors"])
            .output()
            .is_ok_and(|output| output.status.success())
    };
    if !has_package() {
        std::fs::create_dir_all(&directory).unwrap();
        for (program, arguments) in [
            (Path::new("python3"), vec!["-m", "venv", directory.to_str().unwrap()]),
            (&python, vec!["-m", "pip", "install", "--quiet", "safetensors", "numpy"]),
        ] {
            let output = Command::new(program).args(&arguments).output();
            let made = output.as_ref().is_ok_and(|output| output.status.success());
            assert!(made, "no Python with safetensors: {program:?} {arguments:?}: {output:?}");
        }
    }
    python
}

#[test]
fn data_files_open_in_the_python_package() {
    let script = "import sys, json, safetensors\n\
        entries = safetensors.deserialize(open(sys.argv[1], 'rb').read())\n\
        print(json.dumps({name: [e['dtype'], e['shape'], bytes(e['data']).hex()] for name, e in entries}))\n\
        print(json.dumps(safetensors.safe_open(sys.argv[1], 'np').metadata()))\n";
    let directory = golden().join(attempt().directory());
    let python = python();
    for (name, bytes) in golden_files() {
        let Ok(file) = name.parse::<DataFileName>() else { continue };
        let header = DataFileHeader::parse(&name, &bytes, bytes.len() as u64).unwrap();
        let output = Command::new(&python).args(["-c", script]).arg(directory.join(&name)).output().unwrap();
        let (stdout, stderr) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success(), "{name}: {stderr}");
        let (entries, metadata) = stdout.trim().split_once('\n').unwrap();
        let entries: BTreeMap<String, serde_json::Value> = serde_json::from_str(entries).unwrap();
        let theirs: Vec<_> = entries
            .iter()
            .map(|(name, value)| (EntryName::parse(name).unwrap(), value[1].clone(), value[2].clone()))
            .collect();
        assert_eq!(theirs.len(), header.entries.len());
        for entry in &header.entries {
            let data = &bytes[entry.offset as usize..(entry.offset + entry.bytes) as usize];
            let hex: String = data.iter().map(|byte| format!("{byte:02x}")).collect();
            let shape = json!(entry.shape.as_slice());
            assert!(theirs.contains(&(entry.name.clone(), shape, json!(hex))), "{:?}", entry.name);
        }
        let metadata: BTreeMap<String, String> = serde_json::from_str(metadata).unwrap();
        assert_eq!(metadata["rank"], file.rank().to_string());
        assert_eq!(metadata["attempt"], attempt().as_str());
    }
}
