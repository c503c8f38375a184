//! Data files: what is laid out and streamed is read back by our parser and by the safetensors crate.

#![allow(clippy::unwrap_used, clippy::panic, reason = "functions that only tests call are tests too")]

use proptest::prelude::*;
use reshard::format::{
    AttemptId, BlockFault, BlockTable, BlockTableBuilder, DataFileHeader, DataFileLayout, Entry, EntryFault,
    EntryName, EntrySlice, FileHeader, FilePart, FormatError, FormatErrorKind, HeaderFault, Iteration,
    Limits, SafetensorsHeader, lay_out,
};
use reshard::shard::{DType, Dims, Region};

/// An entry with its own data.
#[derive(Clone, Debug)]
struct Owned {
    key: String,
    slice: Result<Region, u32>,
    dtype: DType,
    shape: Dims,
    data: Vec<u8>,
}

impl Owned {
    fn chunk(key: &str, offset: &[u64], shape: &[u64], dtype: DType) -> Self {
        let bytes = shape.iter().product::<u64>() * dtype.bits() / 8;
        let region = Region::new(offset, shape).unwrap();
        let data =
            (0..bytes).map(|at| (at * 31 + key.len() as u64 + offset.iter().sum::<u64>()) as u8).collect();
        Self { key: key.into(), slice: Ok(region), dtype, shape: shape.into(), data }
    }

    fn object(name: &str, rank: u32, data: &[u8]) -> Self {
        let shape = [data.len() as u64].into_iter().collect();
        Self { key: name.into(), slice: Err(rank), dtype: DType::U8, shape, data: data.into() }
    }

    fn entry(&self) -> Entry<'_> {
        let slice = match &self.slice {
            Ok(region) => EntrySlice::Chunk(region),
            Err(rank) => EntrySlice::Object { rank: *rank },
        };
        let Self { key, dtype, shape, data, .. } = self;
        Entry { key, slice, dtype: *dtype, shape, bytes: data.len() as u64 }
    }

    fn name(&self) -> EntryName {
        match &self.slice {
            Ok(region) => EntryName::Chunk { key: self.key.clone(), region: region.clone() },
            Err(rank) => EntryName::Object { name: self.key.clone(), rank: *rank },
        }
    }
}

fn attempt() -> AttemptId {
    "0123456789abcdef".parse().unwrap()
}

fn lay(runs: &[Vec<Owned>], limits: Limits) -> Result<Vec<DataFileLayout>, FormatError> {
    let attempt = attempt();
    let header = FileHeader { attempt: &attempt, iteration: Iteration(100), rank: 3, world_size: 8 };
    let runs: Vec<Vec<Entry<'_>>> = runs.iter().map(|run| run.iter().map(Owned::entry).collect()).collect();
    lay_out(&header, &runs, &limits)
}

/// Streams a file in one pass, data in pieces of `piece` bytes, as a writer does.
fn stream(layout: &DataFileLayout, runs: &[Vec<Owned>], piece: usize) -> (Vec<u8>, BlockTable) {
    let mut file = Vec::new();
    let mut builder = BlockTableBuilder::new(layout);
    for part in layout.parts() {
        match part {
            FilePart::Header(header) => file.extend_from_slice(header),
            FilePart::Entry(place) => {
                assert_eq!(file.len() as u64, place.offset);
                file.extend_from_slice(&runs[place.run][place.index].data);
            }
            FilePart::Padding(bytes) => file.resize(file.len() + bytes as usize, 0),
            FilePart::BlockTable => {
                assert_eq!(file.len() as u64, layout.table_offset());
                for bytes in file[layout.header().len()..layout.end() as usize].chunks(piece) {
                    builder.update(bytes).unwrap();
                }
                break;
            }
        }
    }
    let table = builder.finish().unwrap();
    file.extend(table.encode());
    assert_eq!(file.len() as u64, layout.length());
    (file, table)
}

/// Everything that must hold of any file: both parsers, names, data, alignment, blocks.
fn check(layout: &DataFileLayout, runs: &[Vec<Owned>], piece: usize) {
    let (file, table) = stream(layout, runs, piece);
    let header = DataFileHeader::parse("f", layout.header(), file.len() as u64).unwrap();
    assert_eq!((header.attempt, header.iteration.0, header.rank, header.world_size), (attempt(), 100, 3, 8));
    assert_eq!(header.block_table, layout.table_offset()..layout.length());
    let theirs = safetensors::SafeTensors::deserialize(&file).unwrap();
    let held: Vec<_> = layout.entries().iter().filter(|place| place.bytes > 0).collect();
    let named: Vec<_> = header
        .entries
        .iter()
        .filter(|entry| !matches!(entry.name, EntryName::Padding | EntryName::BlockTable))
        .collect();
    assert_eq!(named.len(), held.len());
    for (place, entry) in held.iter().zip(named) {
        let owned = &runs[place.run][place.index];
        assert_eq!((&entry.name, entry.offset, entry.bytes), (&owned.name(), place.offset, place.bytes));
        assert_eq!((entry.dtype, &entry.shape), (owned.dtype, &owned.shape));
        assert_eq!(entry.offset % (owned.dtype.bits() / 8).max(1), 0);
        let view = theirs.tensor(&format!("{}{}", owned.key, owned.entry().slice)).unwrap();
        assert_eq!(view.data(), owned.data);
        assert_eq!(view.dtype().to_string(), owned.dtype.safetensors_name());
    }
    assert!(layout.runs().iter().all(|start| start % 64 == 0));

    let blocks = layout.block_layout(reshard::format::crc32c(&table.encode())).unwrap();
    assert_eq!(blocks.table(), header.block_table);
    let read = BlockTable::decode("f", &blocks, &file[blocks.table().start as usize..]).unwrap();
    assert_eq!(read, table);
    let mut covered = layout.header().len() as u64;
    for (index, range) in blocks.blocks_in(covered..layout.end()) {
        assert_eq!(range.start, covered);
        covered = range.end;
        let mut bytes = file[range.start as usize..range.end as usize].to_vec();
        read.verify("f", index, &bytes).unwrap();
        bytes[0] ^= 1;
        let fault = read.verify("f", index, &bytes).unwrap_err();
        assert!(
            matches!(fault, FormatError::Block { fault: BlockFault::Mismatch { block, .. }, .. } if block == index)
        );
    }
    assert_eq!(covered, layout.end());
}

fn small_runs() -> Vec<Vec<Owned>> {
    vec![
        vec![
            Owned::chunk("a.bias", &[], &[], DType::F32),
            Owned::chunk("a.weight", &[0, 4], &[3, 5], DType::BF16),
            Owned::chunk("a.moment", &[7], &[9], DType::F64),
        ],
        vec![],
        vec![
            Owned::chunk("__metadata__", &[1], &[3], DType::U8),
            Owned::object("rng", 3, b"seven b"),
            Owned::object("empty", 3, b""),
            Owned::chunk("packed", &[0], &[6], DType::F4),
        ],
        vec![Owned::object("nothing", 3, b"")],
    ]
}

#[test]
fn a_small_file_lies_where_it_should() {
    let runs = small_runs();
    let files = lay(&runs, Limits { block_bytes: Some(16), ..Limits::default() }).unwrap();
    let [file] = files.as_slice() else { panic!("{files:?}") };
    let start = file.header().len() as u64;
    let places: Vec<_> = file.entries().iter().map(|place| (place.offset - start, place.bytes)).collect();
    // 4 + 30 bytes, up to the next multiple of 8: 40 + 72; the next run begins at a multiple of 64.
    assert_eq!(places, [(0, 4), (4, 30), (40, 72), (128, 3), (131, 7), (138, 0), (138, 3), (141, 0)]);
    assert_eq!(file.runs(), [start, start + 128]);
    assert_eq!((file.end(), file.table_offset(), file.block_count()), (start + 141, start + 144, 8 + 1));
    for piece in [1, 7, 16, 1000] {
        check(file, &runs, piece);
    }
}

#[test]
fn only_empty_objects_still_make_a_file_and_nothing_makes_none() {
    let runs = vec![vec![Owned::object("empty", 3, b"")]];
    let files = lay(&runs, Limits::default()).unwrap();
    assert_eq!((files.len(), files[0].block_count()), (1, 0));
    check(&files[0], &runs, 1);
    assert!(lay(&[], Limits::default()).unwrap().is_empty());
    assert!(lay(&[vec![]], Limits::default()).unwrap().is_empty());
}

#[test]
fn a_file_is_split_before_its_header_grows_too_long() {
    let runs: Vec<Vec<Owned>> = (0..3)
        .map(|run| {
            (0..40).map(|i| Owned::chunk(&format!("layer.{run}.{i}"), &[i], &[5], DType::U8)).collect()
        })
        .collect();
    let limits = Limits { header_bytes: 2000, block_bytes: Some(8) };
    let files = lay(&runs, limits).unwrap();
    assert!(files.len() > 3);
    for file in &files {
        assert!(file.header().len() <= 8 + 2000);
        check(file, &runs, 11);
    }
    let order: Vec<_> = files.iter().flat_map(DataFileLayout::entries).map(|e| (e.run, e.index)).collect();
    let all: Vec<_> = (0..3).flat_map(|run| (0..40).map(move |index| (run, index))).collect();
    assert_eq!(order, all);

    let long = vec![vec![Owned::chunk(&"x".repeat(2000), &[0], &[5], DType::U8)]];
    let fault = lay(&long, limits).unwrap_err();
    assert!(matches!(
        fault,
        FormatError::Entry { fault: EntryFault::NameTooLong { header_bytes: 2000 }, .. }
    ));
}

#[test]
fn blocks_grow_with_the_file() {
    let attempt = attempt();
    let header = FileHeader { attempt: &attempt, iteration: Iteration(1), rank: 0, world_size: 1 };
    let one = |elements: u64| {
        let region = Region::new([0], [elements]).unwrap();
        let shape = [elements];
        let slice = EntrySlice::Chunk(&region);
        let entry = Entry { key: "w", slice, dtype: DType::U8, shape: &shape, bytes: elements };
        let files = lay_out(&header, &[vec![entry]], &Limits::default()).unwrap();
        (files[0].block_bytes(), files[0].block_count())
    };
    assert_eq!(one(1), (64 << 10, 1));
    assert_eq!(one(4 << 30), (64 << 10, 1 << 16));
    assert_eq!(one((4 << 30) + 1), (128 << 10, (1 << 15) + 1));
    assert_eq!(one(1 << 40), (16 << 20, 1 << 16));
}

#[test]
fn entries_that_can_not_be_laid_out_are_named() {
    let good = Owned::chunk("w", &[0], &[4], DType::F32);
    let fault_of = |runs: &[Vec<Owned>]| match lay(runs, Limits::default()).unwrap_err() {
        FormatError::Entry { entry, fault } => (entry, fault),
        other => panic!("{other}"),
    };
    assert_eq!(fault_of(&[vec![good.clone()], vec![good.clone()]]), ("w[0:4]".into(), EntryFault::Twice));
    let mut short = good.clone();
    short.data.pop();
    assert!(matches!(fault_of(&[vec![short]]).1, EntryFault::Size { bytes: 15, .. }));
    let mut other = good.clone();
    other.slice = Ok(Region::new([0], [5]).unwrap());
    assert_eq!(fault_of(&[vec![other]]), ("w[0:5]".into(), EntryFault::Slice));
    let mut object = Owned::object("o", 1, b"1234");
    (object.dtype, object.shape) = (DType::I8, [4].into_iter().collect());
    assert_eq!(fault_of(&[vec![object]]), ("o[rank 1]".into(), EntryFault::Slice));
    let zero = lay(&[vec![good]], Limits { block_bytes: Some(0), ..Limits::default() }).unwrap_err();
    assert!(matches!(zero, FormatError::Blocks { .. }));
    assert_eq!(zero.kind(), FormatErrorKind::Invalid);
}

#[test]
fn a_writer_that_gives_too_much_or_too_little_is_told() {
    let runs = small_runs();
    let layout = lay(&runs, Limits::default()).unwrap().remove(0);
    let mut builder = BlockTableBuilder::new(&layout);
    builder.update(&[0; 100]).unwrap();
    assert_eq!(builder.update(&[0; 42]), Err(BlockFault::PastEnd { bytes: 42, left: 41 }));
    assert_eq!(builder.finish(), Err(BlockFault::Unfinished { left: 41 }));
}

#[test]
fn a_damaged_table_is_refused() {
    let runs = small_runs();
    let layout = lay(&runs, Limits::default()).unwrap().remove(0);
    let (_, table) = stream(&layout, &runs, 64);
    let mut bytes = table.encode();
    let blocks = layout.block_layout(reshard::format::crc32c(&bytes)).unwrap();
    let fault = |bytes: &[u8]| match BlockTable::decode("f", &blocks, bytes).unwrap_err() {
        FormatError::Block { fault, .. } => fault,
        other => panic!("{other}"),
    };
    assert_eq!(fault(&bytes[1..]), BlockFault::TableLength { expected: 8, found: 7 });
    let past = table.verify("f", 2, b"").unwrap_err();
    assert_eq!(past.kind(), FormatErrorKind::Invalid);
    assert!(matches!(
        past,
        FormatError::Block { fault: BlockFault::NoSuchBlock { block: 2, blocks: 2 }, .. }
    ));
    bytes[5] ^= 0x80;
    assert!(matches!(fault(&bytes), BlockFault::Table { .. }));
}

fn with_length(json: &str) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes
}

/// Parses `json` as the header of a file with `data` bytes after it.
fn generic(json: &str, data: u64) -> Result<SafetensorsHeader, HeaderFault> {
    let head = with_length(json);
    SafetensorsHeader::parse("f", &head, head.len() as u64 + data).map_err(|error| match error {
        FormatError::Header { file, fault } if file == "f" => fault,
        other => panic!("{other}"),
    })
}

#[test]
fn every_fault_of_a_safetensors_header_has_an_error_of_its_own() {
    let a = r#""a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}"#;
    let parsed = generic(&format!(r#"{{"__metadata__":{{"k":"v"}},{a}}}  "#), 8).unwrap();
    assert_eq!((parsed.entries.len(), parsed.metadata["k"].as_str()), (1, "v"));
    assert!(generic("{}", 0).is_ok());
    let b = |offsets: &str| format!(r#"{{{a},"b":{{"dtype":"U8","shape":[3],"data_offsets":{offsets}}}}}"#);
    assert!(generic(&b("[8,11]"), 3 + 8).is_ok());
    let name = || "b".to_owned();
    assert!(matches!(generic(&b("[7,10]"), 10), Err(HeaderFault::Overlap { name: n, .. }) if n == name()));
    assert!(matches!(generic(&b("[9,12]"), 12), Err(HeaderFault::Hole { name: n, .. }) if n == name()));
    assert_eq!(generic(&b("[11,8]"), 11), Err(HeaderFault::Offsets { name: name(), start: 11, end: 8 }));
    let past = format!("[{},{}]", u64::MAX - 3, u64::MAX);
    assert!(matches!(generic(&b(&past), 11), Err(HeaderFault::Offsets { .. })));
    assert!(matches!(generic(&b("[8,12]"), 12), Err(HeaderFault::Size { bytes: 4, .. })));
    assert!(matches!(generic(&b("[8,11]"), 12), Err(HeaderFault::FileLength { .. })));
    assert!(matches!(generic(&b("[8,11]"), 10), Err(HeaderFault::FileLength { .. })));
    assert!(matches!(generic(&b("[8]"), 11), Err(HeaderFault::Json(_))));
    assert!(matches!(generic(&b("[8,-11]"), 11), Err(HeaderFault::Json(_))));
    assert!(matches!(generic("{", 0), Err(HeaderFault::Json(_))));
    assert!(matches!(generic("[]", 0), Err(HeaderFault::Json(_))));
    assert!(matches!(generic("{} x", 0), Err(HeaderFault::Json(_))));
    assert!(matches!(generic(r#"{"__metadata__":{"k":1}}"#, 0), Err(HeaderFault::Json(_))));
    let twice = |json: &str| {
        generic(json, 8) == Err(HeaderFault::Twice { name: json[2..].split('"').next().unwrap().into() })
    };
    assert!(twice(&format!("{{{a},{a}}}")));
    assert!(twice(r#"{"__metadata__":{},"__metadata__":{}}"#));
    assert_eq!(
        generic(r#"{"__metadata__":{"k":"1","k":"2"}}"#, 0),
        Err(HeaderFault::Twice { name: "k".into() })
    );
    let one = |dtype: &str, shape: &str, end: u64| {
        generic(&format!(r#"{{"a":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{end}]}}}}"#), end)
    };
    assert!(one("F4", "[2]", 1).is_ok() && one("F32", "[0]", 0).is_ok() && one("F32", "[]", 4).is_ok());
    assert_eq!(one("F4", "[3]", 2), Err(HeaderFault::PartByte { name: "a".into(), bits: 12 }));
    assert!(matches!(one("F31", "[2]", 8), Err(HeaderFault::UnknownDType { dtype, .. }) if dtype == "F31"));
    assert!(matches!(one("F32", "[4294967296,4294967296]", 8), Err(HeaderFault::Overflow { .. })));
    assert!(matches!(one("F32", "[4611686018427387904]", 8), Err(HeaderFault::Overflow { .. })));
    let extra = r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"x":1}}"#;
    assert!(matches!(generic(extra, 1), Err(HeaderFault::Json(_))));

    let fault = |head: &[u8], length| match SafetensorsHeader::parse("f", head, length).unwrap_err() {
        FormatError::Header { fault, .. } => fault,
        other => panic!("{other}"),
    };
    assert_eq!(fault(&[2, 0, 0], 3), HeaderFault::Short { bytes: 3 });
    assert_eq!(fault(&with_length("{}")[..9], 10), HeaderFault::Short { bytes: 9 });
    assert_eq!(fault(&with_length("{}"), 9), HeaderFault::PastEnd { header: 2, file_length: 9 });
    assert_eq!(fault(&100_000_001u64.to_le_bytes(), u64::MAX), HeaderFault::TooLong { header: 100_000_001 });
    assert_eq!(fault(&u64::MAX.to_le_bytes(), u64::MAX), HeaderFault::TooLong { header: u64::MAX });
}

#[test]
fn every_fault_of_our_own_header_has_an_error_of_its_own() {
    let runs = small_runs();
    let layout = lay(&runs, Limits::default()).unwrap().remove(0);
    let text = String::from_utf8(layout.header()[8..].to_vec()).unwrap();
    // Replacements keep the length, so that the data stays aligned.
    let with = |from: &str, to: &str| {
        assert!(text.contains(from) && to.len() <= from.len(), "{from}");
        let text = text.replacen(from, to, 1);
        let head = with_length(&format!("{text}{}", " ".repeat(from.len() - to.len())));
        DataFileHeader::parse("f", &head, layout.length()).unwrap_err()
    };
    let fault = |from: &str, to: &str| match with(from, to) {
        FormatError::Header { fault, .. } => fault,
        other => panic!("{other}"),
    };
    assert_eq!(fault("\"reshard\"", "\"pt\""), HeaderFault::NotOurs);
    let version = with("\"version\":\"1\"", "\"version\":\"2\"");
    assert_eq!(version, FormatError::UnsupportedVersion { file: "f".into(), found: 2 });
    assert_eq!(version.kind(), FormatErrorKind::UnsupportedVersion);
    let value = |field, value: &str| HeaderFault::Field { field, value: Some(value.into()) };
    assert_eq!(fault("\"rank\":\"3\"", "\"rank\":\"8\""), value("rank", "8"));
    assert_eq!(fault("\"100\"", "\"+10\""), value("iteration", "+10"));
    assert_eq!(fault("0123456789abcdef", "0123456789ABCDEF"), value("attempt", "0123456789ABCDEF"));
    assert_eq!(fault("\"rank\":\"3\",", ""), HeaderFault::Field { field: "rank", value: None });
    assert_eq!(fault("\"rank\":\"3\"", "\"x\":\"\""), HeaderFault::Field { field: "rank", value: None });
    let with_field = fault("\"world_size\":\"8\"},\"a.bias[]\"", "\"world_size\":\"8\",\"\":\"\"},\"[]\"");
    assert_eq!(with_field, HeaderFault::UnknownField { field: "".into() });
    assert_eq!(fault("packed[0:6]", "packed"), HeaderFault::UnknownName { name: "packed".into() });
    assert!(matches!(fault("packed[0:6]", "packed[0:5]"), HeaderFault::Shape { .. }));
    assert!(matches!(fault("rng[rank 3]", "rng[0:3]"), HeaderFault::Shape { .. }));
    assert!(matches!(fault("\"F64\",\"shape\":[9]", "\"U8\",\"shape\":[72]"), HeaderFault::Shape { .. }));
    assert_eq!(fault("__crc32c__", "crc[0:2]"), HeaderFault::NoBlockTable);
    assert!(matches!(fault("__padding__.2", "__crc32c__"), HeaderFault::Twice { .. }));
    // Four bytes less of data before it put an 8-byte element at an odd place.
    let head = with_length(&text[..text.len() - 4]);
    let shifted = DataFileHeader::parse("f", &head, layout.length() - 4).unwrap_err();
    assert!(matches!(shifted, FormatError::Header { fault: HeaderFault::Unaligned { .. }, .. }));
    let odd = Owned::chunk("a", &[0], &[3], DType::U8);
    let layout =
        lay(&[vec![odd, Owned::chunk("b", &[0], &[1], DType::U8)]], Limits::default()).unwrap().remove(0);
    let text = String::from_utf8(layout.header()[8..].to_vec()).unwrap();
    let from = "\"b[0:1]\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[3,4]}";
    let to = "\"b[0:1]\":{\"dtype\":\"U16\",\"shape\":[1],\"data_offsets\":[3,5]}";
    assert!(text.contains(from));
    let text = text.replace(from, to).replace("\"data_offsets\":[4,8]", "\"data_offsets\":[5,9]");
    let head = with_length(text.get(..text.len() - 1).unwrap());
    let unaligned = DataFileHeader::parse("f", &head, layout.length() + 1).unwrap_err();
    assert!(
        matches!(unaligned, FormatError::Header { fault: HeaderFault::Unaligned { name, .. }, .. } if name == "b[0:1]")
    );
}

prop_compose! {
    fn any_entry()(
        key in "[a-z\\[\\]:0-9é\"\\\\]{0,6}",
        dtype in proptest::sample::select(DType::ALL),
        axes in proptest::collection::vec((0u64..9, 1u64..7), 0..4),
        object in proptest::option::weighted(0.2, (0u32..4, proptest::collection::vec(any::<u8>(), 0..40))),
    ) -> Owned {
        if let Some((rank, data)) = object {
            return Owned::object(&key, rank, &data);
        }
        let (offset, mut shape): (Vec<u64>, Vec<u64>) = axes.into_iter().unzip();
        // Whole bytes for packed elements of 4 or 6 bits.
        shape.push(4);
        Owned::chunk(&key, &[offset.as_slice(), &[0]].concat(), &shape, dtype)
    }
}

proptest! {
    #[test]
    fn any_runs_are_written_and_read_back(
        entries in proptest::collection::vec(proptest::collection::vec(any_entry(), 0..6), 0..5),
        header_bytes in 1000u64..3000,
        block_bytes in 1u64..200,
        piece in 1usize..300,
    ) {
        let mut seen = std::collections::HashSet::new();
        let runs: Vec<Vec<Owned>> = entries
            .into_iter()
            .map(|run| run.into_iter().filter(|e| seen.insert(format!("{:?}", e.name()))).collect())
            .collect();
        let files = lay(&runs, Limits { header_bytes, block_bytes: Some(block_bytes) }).unwrap();
        for file in &files {
            prop_assert!(file.header().len() as u64 <= 8 + header_bytes);
            check(file, &runs, piece);
        }
        let order: Vec<_> = files.iter().flat_map(DataFileLayout::entries).map(|e| (e.run, e.index)).collect();
        let all = runs.iter().enumerate().flat_map(|(run, entries)| (0..entries.len()).map(move |i| (run, i)));
        prop_assert_eq!(order, all.collect::<Vec<_>>());
    }

    /// No bytes make the parsers panic.
    #[test]
    fn damaged_headers_are_errors_not_panics(at in any::<proptest::sample::Index>(), byte in any::<u8>()) {
        let layout = lay(&small_runs(), Limits::default()).unwrap().remove(0);
        let mut head = layout.header().to_vec();
        let at = at.index(head.len());
        head[at] = byte;
        let _ = DataFileHeader::parse("f", &head, layout.length());
    }
}
