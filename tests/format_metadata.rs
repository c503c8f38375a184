//! metadata.json and the merge that makes it: round trips, and an error of its own for everything that can be wrong.

#![allow(clippy::unwrap_used, clippy::panic, reason = "functions that only tests call are tests too")]

use proptest::prelude::*;
use reshard::format::{
    BlockLayout, BlockLayoutError, Chunk, ChunkTable, DataFileName, FileFault, FormatError, FormatErrorKind,
    ManifestFault, Metadata, MetadataFault, ObjectDigest, ObjectFault, PlaceFault, SavedFile, SavedObject,
    SavedTensor, TensorFault, WriterManifest, WrittenFile, merge,
};
use reshard::shard::{DType, Dims, FaultKind, Region, RegionError, Split, StateGroup};
use serde_json::{Value, json};
use std::collections::BTreeMap;

const START: u64 = 64;

fn trainer_state() -> ObjectDigest {
    ObjectDigest::of("trainer_state.json", b"{}")
}

/// One rank's manifest, laid one chunk after another in one file.
struct Writer {
    rank: u32,
    world_size: u32,
    at: u64,
    manifest: WriterManifest,
}

impl Writer {
    fn new(rank: u32, world_size: u32) -> Self {
        Self { rank, world_size, at: START, manifest: WriterManifest::default() }
    }

    fn tensor(&mut self, key: &str, tensor: &SavedTensor, regions: &[Region]) {
        let ndim = tensor.global_shape.len();
        let mut chunks = ChunkTable::new(ndim);
        for region in regions {
            chunks.push(&Chunk { region: region.clone(), file: 0, offset: self.at });
            self.at += region.volume() * tensor.dtype.bits() / 8;
        }
        self.manifest.tensors.insert(key.into(), SavedTensor { chunks, ..tensor.clone() });
    }

    fn object(&mut self, name: &str, length: u64) {
        self.manifest.objects.insert(name.into(), SavedObject { file: 0, offset: self.at, length });
        self.at += length;
    }

    fn done(mut self) -> WriterManifest {
        let name = DataFileName::new(StateGroup::Model, self.rank, self.world_size, 0).unwrap();
        let runs = if self.at > START { vec![START] } else { vec![] };
        let blocks = BlockLayout::new(1000, runs, self.at, self.at.next_multiple_of(4), self.rank).unwrap();
        self.manifest.files.push(WrittenFile { name, blocks });
        self.manifest
    }
}

fn tensor(dtype: DType, global_shape: &[u64]) -> SavedTensor {
    let global_shape: Dims = global_shape.into();
    let chunks = ChunkTable::new(global_shape.len());
    let (logical_shape, split, alias_of, group) = (None, None, None, StateGroup::Model);
    SavedTensor { dtype, global_shape, logical_shape, split, alias_of, group, chunks }
}

fn region(offset: &[u64], shape: &[u64]) -> Region {
    Region::new(offset, shape).unwrap()
}

fn merge_all(manifests: &[WriterManifest]) -> Result<Metadata, FormatError> {
    let encoded: Vec<Vec<u8>> = manifests.iter().map(WriterManifest::encode).collect();
    for (rank, (bytes, manifest)) in encoded.iter().zip(manifests).enumerate() {
        assert_eq!(&WriterManifest::decode(rank as u32, bytes).unwrap(), manifest);
    }
    merge(encoded.iter().enumerate().map(|(rank, bytes)| (rank as u32, bytes.as_slice())), trainer_state())
}

/// Two ranks, a tensor cut on each axis, a replicated one, a tied one, an empty one, a packed one and objects.
fn two_ranks() -> Vec<WriterManifest> {
    let rows = SavedTensor {
        split: Some(Split::segmented(0, [2, 2])),
        logical_shape: Some([3, 3].as_slice().into()),
        ..tensor(DType::BF16, &[4, 3])
    };
    let columns = SavedTensor { group: StateGroup::Optimizer, ..tensor(DType::F32, &[2, 4]) };
    let tied = SavedTensor { alias_of: Some("rows".into()), ..rows.clone() };
    (0..2)
        .map(|rank: u32| {
            let mut writer = Writer::new(rank, 2);
            let at = u64::from(rank) * 2;
            writer.tensor("rows", &rows, &[region(&[at, 0], &[1, 3]), region(&[at + 1, 0], &[1, 3])]);
            writer.tensor("columns \"é\"", &columns, &[region(&[0, at], &[2, 2])]);
            writer.tensor("tied", &tied, &[]);
            if rank == 1 {
                writer.tensor("scalar", &tensor(DType::I64, &[]), &[region(&[], &[])]);
                writer.tensor("empty", &tensor(DType::F64, &[3, 0]), &[]);
                writer.tensor("packed", &tensor(DType::F4, &[6]), &[region(&[0], &[6])]);
            }
            writer.object("rng", 5 * u64::from(rank));
            writer.done()
        })
        .collect()
}

#[test]
fn what_two_ranks_wrote_is_merged_and_read_back() {
    let metadata = merge_all(&two_ranks()).unwrap();
    let bytes = metadata.to_bytes().unwrap();
    assert_eq!(Metadata::parse("m", &bytes).unwrap(), metadata);
    assert_eq!(Metadata::parse("m", &bytes).unwrap().to_bytes().unwrap(), bytes);
    let layout = &metadata.layout;
    assert_eq!(layout.files[1].path, "model-00001-of-00002.safetensors");
    let files: Vec<_> = layout.tensors["rows"].chunks.files().collect();
    assert_eq!(files, [0, 0, 1, 1]);
    assert_eq!(layout.objects["rng"][&1].file, 1);
    assert_eq!(layout.objects["rng"][&1].length, 5);
    assert_eq!(layout.tensors["tied"].alias_of.as_deref(), Some("rows"));
}

/// The JSON of [`two_ranks`] with one change.
fn changed(change: impl FnOnce(&mut Value)) -> FormatError {
    let bytes = merge_all(&two_ranks()).unwrap().to_bytes().unwrap();
    let mut value: Value = serde_json::from_slice(&bytes).unwrap();
    change(&mut value);
    Metadata::parse("m", &serde_json::to_vec(&value).unwrap()).unwrap_err()
}

fn fault_of(error: FormatError) -> MetadataFault {
    assert_eq!(error.kind(), FormatErrorKind::Corrupt);
    match error {
        FormatError::Metadata { file, fault } if file == "m" => fault,
        other => panic!("{other}"),
    }
}

fn file_fault(change: impl FnOnce(&mut Value)) -> (String, FileFault) {
    match fault_of(changed(|value| change(&mut value["files"][1]))) {
        MetadataFault::File { path, fault } => (path, fault),
        other => panic!("{other}"),
    }
}

/// Tensors in order of their keys: columns, empty, packed, rows, scalar, tied.
fn tensor_fault(index: usize, change: impl FnOnce(&mut Value)) -> (String, TensorFault) {
    match fault_of(changed(|value| change(&mut value["tensors"][index]))) {
        MetadataFault::Tensor { key, fault } => (key, *fault),
        other => panic!("{other}"),
    }
}

#[test]
fn wrong_versions_formats_and_fields_are_refused() {
    let newer = FormatError::UnsupportedVersion { file: "m".into(), found: 2 };
    assert_eq!(changed(|value| value["version"] = json!(2)), newer);
    let newer_with_more = changed(|value| {
        value["version"] = json!(2);
        value["unheard_of"] = json!([]);
    });
    assert_eq!(newer_with_more, newer);
    assert_eq!(newer.kind(), FormatErrorKind::UnsupportedVersion);
    let not_ours = fault_of(changed(|value| value["format"] = json!("other")));
    assert_eq!(not_ours, MetadataFault::NotOurs("other".into()));
    let json_faults: [fn(&mut Value); 8] = [
        |value| value["unheard_of"] = json!(1),
        |value| value["files"][0]["unheard_of"] = json!(1),
        |value| value["tensors"][0]["unheard_of"] = json!(1),
        |value| value["objects"][0]["unheard_of"] = json!(1),
        |value| value["trainer_state"]["unheard_of"] = json!(1),
        |value| value["tensors"][0]["chunks"][1] = json!(-1),
        |value| value["tensors"][0]["group"] = json!("other"),
        |value| value["files"] = json!({}),
    ];
    for change in json_faults {
        let fault = fault_of(changed(change));
        assert!(matches!(fault, MetadataFault::Json(_)), "{fault}");
    }
    let bytes = merge_all(&two_ranks()).unwrap().to_bytes().unwrap();
    let text = String::from_utf8(bytes).unwrap();
    let twice = text.replacen("\"version\":1", "\"version\":1,\"version\":1", 1);
    for text in [twice.as_str(), &text[..text.len() - 1], &format!("{text}x"), ""] {
        assert!(matches!(
            fault_of(Metadata::parse("m", text.as_bytes()).unwrap_err()),
            MetadataFault::Json(_)
        ));
    }
    for path in ["../trainer_state.json", "/trainer_state.json", ""] {
        let fault = fault_of(changed(|value| value["trainer_state"]["path"] = json!(path)));
        assert_eq!(fault, MetadataFault::TrainerStatePath { path: path.into() });
    }
}

#[test]
fn wrong_files_are_named() {
    for path in ["../f", "a/../f", "/f", "a//f", "f/", "./f", "", "a\\f", "a\0f", "."] {
        assert_eq!(file_fault(|file| file["path"] = json!(path)), (path.into(), FileFault::Path));
    }
    let first = "model-00000-of-00002.safetensors";
    assert_eq!(file_fault(|file| file["path"] = json!(first)), (first.into(), FileFault::Twice));
    let second = "model-00001-of-00002.safetensors".to_owned();
    let longer = file_fault(|file| file["length"] = json!(file["length"].as_u64().unwrap() + 1));
    assert!(matches!(longer, (path, FileFault::Length { .. }) if path == second));
    let blocks = |error: BlockLayoutError| (second.clone(), FileFault::Blocks(error));
    assert_eq!(file_fault(|file| file["block_bytes"] = json!(0)), blocks(BlockLayoutError::ZeroBlock));
    assert_eq!(file_fault(|file| file["runs"] = json!([64, 64])), blocks(BlockLayoutError::Runs));
    assert_eq!(file_fault(|file| file["table_offset"] = json!(3)), blocks(BlockLayoutError::Table));
    let past = file_fault(|file| file["table_offset"] = json!(u64::MAX));
    assert_eq!(past, blocks(BlockLayoutError::Table));
}

#[test]
fn wrong_tensors_are_named() {
    let rows = 3;
    let fault = |change: fn(&mut Value)| {
        let (key, fault) = tensor_fault(rows, change);
        assert_eq!(key, "rows");
        fault
    };
    assert_eq!(fault(|t| t["dtype"] = json!("f31")), TensorFault::UnknownDType("f31".into()));
    assert_eq!(tensor_fault(5, |t| t["key"] = json!("rows")), ("rows".into(), TensorFault::Twice));
    let overflow = fault(|t| {
        t["global_shape"] = json!([1u64 << 40, 1u64 << 40]);
    });
    assert!(matches!(overflow, TensorFault::GlobalShape { source: RegionError::Overflow, .. }));
    let axes = fault(|t| {
        t["global_shape"] = json!(vec![1; 17]);
        t["chunks"] = json!([]);
    });
    assert!(matches!(axes, TensorFault::GlobalShape { source: RegionError::TooManyAxes(17), .. }));
    assert!(matches!(fault(|t| t["logical_shape"] = json!([5, 3])), TensorFault::LogicalShape { .. }));
    assert!(matches!(fault(|t| t["logical_shape"] = json!([4])), TensorFault::LogicalShape { .. }));
    assert!(matches!(fault(|t| t["split"] = json!({"axis": 2})), TensorFault::Split { .. }));
    assert!(matches!(
        fault(|t| t["chunks"][5] = json!(0)),
        TensorFault::Chunks(RegionError::Empty { axis: 1 })
    ));
    let cut = fault(|t| {
        t["chunks"].as_array_mut().unwrap().pop();
    });
    assert!(matches!(cut, TensorFault::Chunks(RegionError::Rank { .. })));
    assert!(matches!(
        fault(|t| t["chunks"][0] = json!(1u64 << 32)),
        TensorFault::Chunks(RegionError::Overflow)
    ));
    let outside = fault(|t| t["chunks"][2] = json!(4));
    assert!(matches!(outside, TensorFault::ChunkOutside(RegionError::OutOfBounds { .. })));
    let place = |change: fn(&mut Value)| match fault(change) {
        TensorFault::Place { fault, .. } => fault,
        other => panic!("{other}"),
    };
    assert_eq!(place(|t| t["chunks"][0] = json!(2)), PlaceFault::NoSuchFile { file: 2, files: 2 });
    for offset in [START - 1, 1 << 40, u64::MAX] {
        let (_, found) = tensor_fault(rows, |t| t["chunks"][1] = json!(offset));
        assert!(matches!(found, TensorFault::Place { fault: PlaceFault::Outside { .. }, .. }), "{found}");
    }
    let tiling = |change: fn(&mut Value)| match fault(change) {
        TensorFault::Tiling { fault, files } => (fault.kind, fault.point.to_vec(), files.len()),
        other => panic!("{other}"),
    };
    let hole = tiling(|t| {
        t["chunks"].as_array_mut().unwrap().truncate(18);
    });
    assert_eq!(hole, (FaultKind::Hole, vec![3, 0], 0));
    assert_eq!(tiling(|t| t["chunks"][2] = json!(3)), (FaultKind::Hole, vec![0, 0], 0));
    assert_eq!(tiling(|t| t["chunks"][8] = json!(0)), (FaultKind::Overlap, vec![0, 0], 2));
    let packed = tensor_fault(2, |t| t["global_shape"] = json!([7]));
    assert_eq!(packed, ("packed".into(), TensorFault::Packed(DType::F4)));
    let tied = |change: fn(&mut Value)| tensor_fault(5, change);
    let named = |fault| ("tied".to_owned(), fault);
    assert_eq!(tied(|t| t["alias_of"] = json!("x")), named(TensorFault::AliasMissing("x".into())));
    assert_eq!(tied(|t| t["alias_of"] = json!("tied")), named(TensorFault::AliasOfAlias("tied".into())));
    assert_eq!(tied(|t| t["dtype"] = json!("f16")), named(TensorFault::AliasDiffers("rows".into())));
    assert_eq!(tied(|t| t["chunks"] = json!([0, 64, 0, 0, 4, 3])), named(TensorFault::AliasWithChunks));
}

#[test]
fn wrong_objects_and_shared_bytes_are_named() {
    let fault = |change: fn(&mut Value)| match fault_of(changed(|value| change(&mut value["objects"]))) {
        MetadataFault::Object { name, rank, fault } if name == "rng" => (rank, fault),
        other => panic!("{other}"),
    };
    let twice = fault(|objects| {
        let first = objects[0].clone();
        objects.as_array_mut().unwrap().push(first);
    });
    assert_eq!(twice, (None, ObjectFault::Twice));
    assert_eq!(fault(|objects| objects[0]["ranks"][4] = json!(0)), (Some(0), ObjectFault::Twice));
    assert_eq!(fault(|objects| objects[0]["ranks"] = json!([1, 2, 3])), (None, ObjectFault::Words(3)));
    assert_eq!(
        fault(|objects| objects[0]["ranks"][0] = json!(1u64 << 32)),
        (None, ObjectFault::Rank(1 << 32))
    );
    for file in [2, 1u64 << 32] {
        let error = fault_of(changed(|value| value["objects"][0]["ranks"][1] = json!(file)));
        assert!(error.to_string().contains(&format!("file number {file}")), "{error}");
    }
    let outside = fault(|objects| objects[0]["ranks"][7] = json!(1 << 20));
    assert!(matches!(outside, (Some(1), ObjectFault::Place(PlaceFault::Outside { .. }))));
    // The first row of `rows` and `columns` (which comes first by key) of rank 0.
    let error = fault_of(changed(|value| value["tensors"][0]["chunks"][1] = json!(66)));
    let MetadataFault::BytesOverlap { start, end, first, second, .. } = error else { panic!("{error}") };
    assert_eq!((start, end, first.as_str(), second.as_str()), (66, 70, "rows", "columns \"é\""));
}

#[test]
fn ranks_that_disagree_are_named() {
    type Change = fn(&mut SavedTensor);
    let cases: [(&str, Change); 6] = [
        ("dtype", |t| t.dtype = DType::F16),
        ("global shape", |t| t.global_shape = [4, 4].as_slice().into()),
        ("logical shape", |t| t.logical_shape = None),
        ("split", |t| t.split = Some(Split::axis(0))),
        ("alias", |t| t.alias_of = Some("x".into())),
        ("group", |t| t.group = StateGroup::Optimizer),
    ];
    for (property, change) in cases {
        let mut manifests = two_ranks();
        change(manifests[1].tensors.get_mut("rows").unwrap());
        let error = merge_all(&manifests).unwrap_err();
        assert_eq!(error.kind(), FormatErrorKind::Invalid);
        match &error {
            FormatError::Disagreement { key, what, first_rank: 0, rank: 1, .. } => {
                assert_eq!((key.as_str(), *what), ("rows", property));
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn what_makes_no_checkpoint_is_refused_before_it_is_written() {
    let mut manifests = two_ranks();
    manifests[1].tensors.remove("rows");
    let FormatError::Declared { fault } = merge_all(&manifests).unwrap_err() else { panic!() };
    assert!(matches!(&fault, MetadataFault::Tensor { key, fault } if key == "rows"
        && matches!(**fault, TensorFault::Tiling { .. })));
    // Both ranks wrote the second half.
    let mut manifests = two_ranks();
    let chunks = manifests[1].tensors["rows"].chunks.clone();
    manifests[0].tensors.get_mut("rows").unwrap().chunks = chunks;
    assert!(merge_all(&manifests).is_err());
    // A file of another rank.
    let manifests = two_ranks();
    let bytes = manifests[0].encode();
    let error = merge([(1, bytes.as_slice())], trainer_state()).unwrap_err();
    let FormatError::Declared { fault: MetadataFault::File { fault, .. } } = error else { panic!("{error}") };
    assert_eq!(fault, FileFault::OtherRank { rank: 1 });
    // A layout of another tool has no checksums.
    let mut metadata = merge_all(&two_ranks()).unwrap();
    let SavedFile { blocks, .. } = &mut metadata.layout.files[0];
    *blocks = None;
    assert!(matches!(metadata.to_bytes(), Err(FormatError::Declared { .. })));
}

#[test]
fn a_manifest_is_read_only_as_written() {
    let bytes = two_ranks()[1].encode();
    for length in 0..bytes.len() {
        let error = WriterManifest::decode(7, &bytes[..length]).unwrap_err();
        assert!(matches!(error, FormatError::Manifest { rank: 7, .. }), "{error}");
    }
    let longer = [bytes.as_slice(), &[0]].concat();
    let error = WriterManifest::decode(7, &longer).unwrap_err();
    assert_eq!(error, FormatError::Manifest { rank: 7, fault: ManifestFault::TooLong(1) });
    let mut other_file = two_ranks().remove(0);
    other_file.objects.get_mut("rng").unwrap().file = 1;
    let error = WriterManifest::decode(0, &other_file.encode()).unwrap_err();
    assert_eq!(error, FormatError::Manifest { rank: 0, fault: ManifestFault::Range("file") });
}

/// A tensor cut by a grid, and which rank writes each piece.
fn any_tensor() -> impl Strategy<Value = (SavedTensor, Vec<(Region, u32)>)> {
    let axis = proptest::collection::btree_set(1u64..20, 1..4);
    (proptest::sample::select(DType::ALL), proptest::collection::vec(axis, 0..4), any::<u32>(), any::<bool>())
        .prop_map(|(dtype, cuts, seed, optimizer)| {
            let ends: Vec<Vec<u64>> = cuts.iter().map(|axis| axis.iter().copied().collect()).collect();
            let global_shape: Dims = ends.iter().map(|axis| *axis.last().unwrap()).collect();
            let group = if optimizer { StateGroup::Optimizer } else { StateGroup::Model };
            let split = (!global_shape.is_empty()).then(|| Split::axis(seed as usize % global_shape.len()));
            // Packed dtypes are whole; pad them to whole bytes with f32's instead.
            let dtype = if dtype.is_opaque() { DType::F32 } else { dtype };
            let mut regions = vec![(vec![], vec![])];
            for axis in &ends {
                let starts = std::iter::once(0).chain(axis.iter().copied());
                let spans: Vec<(u64, u64)> =
                    starts.zip(axis).map(|(start, &end)| (start, end - start)).collect();
                regions = regions
                    .into_iter()
                    .flat_map(|(offset, shape): (Vec<u64>, Vec<u64>)| {
                        spans.iter().map(move |&(start, size)| {
                            ([offset.as_slice(), &[start]].concat(), [shape.as_slice(), &[size]].concat())
                        })
                    })
                    .collect();
            }
            let pieces = regions
                .into_iter()
                .enumerate()
                .map(|(i, (offset, shape))| (region(&offset, &shape), (seed >> (i % 16)) % 3))
                .collect();
            (SavedTensor { group, split, ..tensor(dtype, &global_shape) }, pieces)
        })
}

proptest! {
    #[test]
    fn any_layout_is_merged_written_and_read_back(
        tensors in proptest::collection::btree_map("[a-c.\\[é\"]{0,5}", any_tensor(), 0..8),
        objects in proptest::collection::vec((0u32..3, "[x-z]{0,2}", 0u64..9), 0..6),
    ) {
        let mut writers: Vec<Writer> = (0..3).map(|rank| Writer::new(rank, 3)).collect();
        for (key, (tensor, pieces)) in &tensors {
            for writer in &mut writers {
                let own: Vec<Region> =
                    pieces.iter().filter(|piece| piece.1 == writer.rank).map(|piece| piece.0.clone()).collect();
                if !own.is_empty() {
                    writer.tensor(key, tensor, &own);
                }
            }
        }
        let mut expected = BTreeMap::new();
        for (rank, name, length) in objects {
            expected.entry((name.clone(), rank)).or_insert_with(|| {
                writers[rank as usize].object(&name, length);
                length
            });
        }
        let manifests: Vec<_> = writers.into_iter().map(Writer::done).collect();
        let metadata = merge_all(&manifests).unwrap();
        prop_assert_eq!(metadata.layout.tensors.len(), tensors.len());
        for (key, (_, pieces)) in &tensors {
            let mut found: Vec<_> = metadata.layout.tensors[key].chunks.iter().map(|c| (c.region, c.file)).collect();
            let mut pieces = pieces.clone();
            found.sort();
            pieces.sort();
            prop_assert_eq!(found, pieces);
        }
        let objects = metadata.layout.objects.iter();
        let found: BTreeMap<_, _> = objects
            .flat_map(|(name, ranks)| ranks.iter().map(move |(&rank, object)| ((name.clone(), rank), object.length)))
            .collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(Metadata::parse("m", &metadata.to_bytes().unwrap()).unwrap(), metadata);
    }

    /// No bytes make the parsers panic.
    #[test]
    fn damaged_texts_are_errors_not_panics(at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let mut bytes = merge_all(&two_ranks()).unwrap().to_bytes().unwrap();
        let place = at.index(bytes.len());
        bytes[place] = byte;
        let _ = Metadata::parse("m", &bytes);
        let mut bytes = two_ranks()[1].encode();
        let place = at.index(bytes.len());
        bytes[place] = byte;
        let _ = merge([(1, bytes.as_slice())], trainer_state());
    }
}
