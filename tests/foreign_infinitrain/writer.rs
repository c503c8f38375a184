//! An InfiniTrain version 3 checkpoint, written by hand from the description of the format: nothing here knows regions,
//! chunks or plans.

use reshard::storage::{MemoryBackend, StorageBackend, StoragePath};
use reshard_oracle::full_tensor;
use reshard_shard::DType;
use std::collections::BTreeMap;

/// A tensor as the whole job sees it.
pub struct Whole {
    pub dtype: DType,
    pub shape: Vec<u64>,
    pub bytes: Vec<u8>,
}

/// How the ranks of a stage share a tensor.
#[derive(Clone)]
enum Share {
    Replicated,
    Axis(usize),
    /// Along axis 0, each of these lengths on its own.
    Segments(Vec<u64>),
}

struct Parameter {
    key: String,
    shape: Vec<u64>,
    share: Share,
    trained: bool,
}

/// Sizes of a small GPT-2 with grouped queries: rows of Q, and of K and of V.
pub const LAYERS: u64 = 4;
const WIDTH: u64 = 8;
const QUERIES: u64 = 8;
const KEYS: u64 = 4;
const BLOCK: u64 = 6;
pub const WORDS: u64 = 21;
pub const ROWS: u64 = 24;

/// How the run was split, and what the writer does differently between versions.
#[derive(Clone, Copy)]
pub struct Run {
    pub tp: u64,
    pub pp: u64,
    pub dp: u64,
    pub legacy_names: bool,
    pub reversed: bool,
}

pub struct Written {
    pub storage: MemoryBackend,
    pub metadata: String,
    pub tensors: BTreeMap<String, Whole>,
}

pub const DIRECTORY: &str = "run/iter_0000042";

fn parameters(stage: u64, stages: u64) -> Vec<Parameter> {
    let mut all = Vec::new();
    let mut add = |key: String, shape: &[u64], share: Share, trained: bool| {
        all.push(Parameter { key, shape: shape.to_vec(), share, trained });
    };
    if stage == 0 {
        add("transformer.wte.weight".into(), &[ROWS, WIDTH], Share::Axis(0), true);
        add("transformer.wpe.weight".into(), &[BLOCK, WIDTH], Share::Replicated, true);
    }
    let per_stage = LAYERS / stages;
    for layer in stage * per_stage..(stage + 1) * per_stage {
        let name = |rest: &str| format!("transformer.h.{layer}.{rest}");
        let packed = QUERIES + 2 * KEYS;
        let segments = Share::Segments(vec![QUERIES, KEYS, KEYS]);
        for norm in ["ln_1", "ln_2"] {
            add(name(&format!("{norm}.weight")), &[WIDTH], Share::Replicated, true);
            add(name(&format!("{norm}.bias")), &[WIDTH], Share::Replicated, true);
        }
        add(name("attn.c_attn.weight"), &[packed, WIDTH], segments.clone(), true);
        add(name("attn.c_attn.bias"), &[packed], segments, true);
        add(name("attn.c_proj.weight"), &[WIDTH, WIDTH], Share::Axis(1), true);
        add(name("attn.c_proj.bias"), &[WIDTH], Share::Replicated, true);
        add(name("attn.bias"), &[1, 1, BLOCK, BLOCK], Share::Replicated, false);
        add(name("mlp.c_fc.weight"), &[4 * WIDTH, WIDTH], Share::Axis(0), true);
        add(name("mlp.c_fc.bias"), &[4 * WIDTH], Share::Axis(0), true);
        add(name("mlp.c_proj.weight"), &[WIDTH, 4 * WIDTH], Share::Axis(1), true);
        add(name("mlp.c_proj.bias"), &[WIDTH], Share::Replicated, true);
    }
    if stage + 1 == stages {
        add("transformer.ln_f.weight".into(), &[WIDTH], Share::Replicated, true);
        add("transformer.ln_f.bias".into(), &[WIDTH], Share::Replicated, true);
        add("lm_head.weight".into(), &[ROWS, WIDTH], Share::Axis(0), true);
    }
    all
}

/// One tensor of one rank's file.
struct Local {
    key: String,
    dtype: DType,
    global: Vec<u64>,
    shape: Vec<u64>,
    offset: Vec<u64>,
    fragments: Vec<u64>,
    segments: Vec<(u64, u64, u64)>,
    bytes: Vec<u8>,
}

/// Element by element: the rows and columns `start..start + length` of `axis`, for every given range in turn.
pub fn slice(whole: &Whole, axis: usize, ranges: &[(u64, u64)]) -> Vec<u8> {
    let size = whole.bytes.len() / whole.shape.iter().product::<u64>() as usize;
    let inner: u64 = whole.shape[axis + 1..].iter().product();
    let outer: u64 = whole.shape[..axis].iter().product();
    let mut out = Vec::new();
    for row in 0..outer {
        for &(start, length) in ranges {
            for at in start..start + length {
                for column in 0..inner {
                    let element = ((row * whole.shape[axis] + at) * inner + column) as usize;
                    out.extend_from_slice(&whole.bytes[element * size..(element + 1) * size]);
                }
            }
        }
    }
    out
}

fn local(key: &str, whole: &Whole, share: &Share, tp: u64, tp_rank: u64) -> Local {
    let axes = whole.shape.len();
    let mut local = Local {
        key: key.to_owned(),
        dtype: whole.dtype,
        global: whole.shape.clone(),
        shape: whole.shape.clone(),
        offset: vec![0; axes],
        fragments: vec![1; axes],
        segments: Vec::new(),
        bytes: whole.bytes.clone(),
    };
    match share {
        Share::Replicated => {}
        Share::Axis(axis) => {
            let part = whole.shape[*axis] / tp;
            local.shape[*axis] = part;
            local.offset[*axis] = tp_rank * part;
            local.fragments[*axis] = tp;
            local.bytes = slice(whole, *axis, &[(tp_rank * part, part)]);
        }
        Share::Segments(lengths) => {
            let (mut start, mut at) = (0, 0);
            for length in lengths {
                let part = length / tp;
                local.segments.push((start + tp_rank * part, at, part));
                start += length;
                at += part;
            }
            local.shape[0] = whole.shape[0] / tp;
            local.fragments[0] = tp;
            let ranges: Vec<_> = local.segments.iter().map(|&(global, _, length)| (global, length)).collect();
            local.bytes = slice(whole, 0, &ranges);
        }
    }
    local
}

fn dtype_name(dtype: DType, legacy: bool) -> &'static str {
    match (dtype, legacy) {
        (DType::BF16, false) => "bf16",
        (DType::BF16, true) => "bfloat16",
        (DType::F32, false) => "fp32",
        (DType::F32, true) => "float32",
        (DType::I64, _) => "int64",
        other => panic!("{other:?}"),
    }
}

/// Appends a tensor to a payload file; the offset of its data.
fn append(file: &mut Vec<u8>, tensor: &Local) -> usize {
    file.extend((tensor.key.len() as u32).to_le_bytes());
    file.extend(tensor.key.as_bytes());
    file.push(match tensor.dtype {
        DType::BF16 => 9,
        DType::F32 => 11,
        _ => 8,
    });
    file.extend((tensor.shape.len() as u32).to_le_bytes());
    for size in &tensor.shape {
        file.extend((*size as i64).to_le_bytes());
    }
    file.extend((tensor.bytes.len() as u64).to_le_bytes());
    let offset = file.len();
    file.extend(&tensor.bytes);
    offset
}

pub fn put(storage: &MemoryBackend, path: &str, bytes: impl Into<Vec<u8>>) {
    let path = StoragePath::parse(path).unwrap();
    let bytes: Vec<u8> = bytes.into();
    super::block_on(storage.put(&path, bytes.into())).unwrap();
}

/// Saves the whole run: the payloads of all writers, then metadata.json.
pub fn write(run: Run) -> Written {
    let storage = MemoryBackend::anonymous();
    let mut tensors: BTreeMap<String, Whole> = BTreeMap::new();
    let mut entries = Vec::new();
    for pp_rank in 0..run.pp {
        for tp_rank in 0..run.tp {
            let rank = tp_rank + pp_rank * run.tp * run.dp;
            let mut model = Vec::new();
            let mut optimizer = Vec::new();
            for parameter in parameters(pp_rank, run.pp) {
                let Parameter { key, shape, share, trained } = parameter;
                let mut state = vec![(key.clone(), if trained { DType::BF16 } else { DType::F32 })];
                if trained {
                    state.push((format!("adam.m.{key}"), DType::F32));
                    state.push((format!("adam.v.{key}"), DType::F32));
                }
                for (index, (key, dtype)) in state.into_iter().enumerate() {
                    let whole = tensors.entry(key.clone()).or_insert_with(|| Whole {
                        dtype,
                        shape: shape.clone(),
                        bytes: full_tensor(&key, dtype, &shape),
                    });
                    let part = local(&key, whole, &share, run.tp, tp_rank);
                    if index == 0 { model.push(part) } else { optimizer.push(part) }
                }
            }
            let steps = tensors.entry("adam.t".to_owned()).or_insert_with(|| Whole {
                dtype: DType::I64,
                shape: vec![],
                bytes: 42i64.to_le_bytes().to_vec(),
            });
            optimizer.push(local("adam.t", steps, &Share::Replicated, run.tp, tp_rank));
            for (name, mut locals) in [("model.ckpt", model), ("optimizer.ckpt", optimizer)] {
                // The order in a file is that of a hash table.
                locals.sort_by_key(|tensor| tensor.key.bytes().rev().collect::<Vec<_>>());
                let path = format!("rank_{rank:06}/{name}");
                let mut file = Vec::new();
                for word in [0x5450_4b43u32, 1, locals.len() as u32] {
                    file.extend(word.to_le_bytes());
                }
                for tensor in &locals {
                    let offset = append(&mut file, tensor);
                    entries.push(entry(tensor, run.legacy_names, &path, offset, pp_rank, rank));
                }
                put(&storage, &format!("{DIRECTORY}/{path}"), file);
            }
        }
    }
    if run.reversed {
        entries.reverse();
    }
    let metadata = format!(
        "{{\n  \"version\": 3,\n  \"format\": \"infinitrain_sharded\",\n  \"tensors\": [\n{}\n  ]\n}}\n",
        entries.join(",\n")
    );
    put(&storage, &format!("{DIRECTORY}/metadata.json"), metadata.clone());
    put(
        &storage,
        &format!("{DIRECTORY}/trainer_state.json"),
        format!(
            "{{\"n_layer\": {LAYERS}, \"n_head\": 4, \"n_kv_head\": 2, \"n_embd\": {WIDTH}, \"original_vocab_size\": {WORDS}, \
             \"padded_vocab_size\": {ROWS}, \"global_step\": 42, \"consumed_train_samples\": 5000, \"ddp_size\": {}, \
             \"tp_size\": {}, \"sp_size\": 1, \"pp_size\": {}, \"vpp_size\": 1}}",
            run.dp, run.tp, run.pp
        ),
    );
    put(&storage, &format!("{DIRECTORY}/lr_scheduler.ckpt"), scheduler());
    put(&storage, "run/latest_checkpointed_iteration.txt", "42");
    Written { storage, metadata, tensors }
}

fn entry(tensor: &Local, legacy: bool, path: &str, offset: usize, pp_rank: u64, rank: u64) -> String {
    let column = |pick: fn(&(u64, u64, u64)) -> u64| tensor.segments.iter().map(pick).collect::<Vec<_>>();
    format!(
        "    {{\"key\": \"{}\", \"dtype\": \"{}\", \"global_shape\": {:?}, \"local_shape\": {:?}, \"global_offset\": {:?}, \
         \"axis_fragmentations\": {:?}, \"segment_global_offsets\": {:?}, \"segment_local_offsets\": {:?}, \
         \"segment_lengths\": {:?}, \"file\": \"{path}\", \"offset\": {offset}, \"byte_size\": {}, \
         \"pp_rank\": {pp_rank}, \"stored_on_ranks\": [{rank}]}}",
        tensor.key,
        dtype_name(tensor.dtype, legacy),
        tensor.global,
        tensor.shape,
        tensor.offset,
        tensor.fragments,
        column(|segment| segment.0),
        column(|segment| segment.1),
        column(|segment| segment.2),
        tensor.bytes.len(),
    )
}

/// `last_step` 42, `recover_lr` 0.5, and one item of every other type.
pub fn scheduler() -> Vec<u8> {
    let mut bytes = Vec::new();
    for word in [0x5352_4c53u32, 1, 5] {
        bytes.extend(word.to_le_bytes());
    }
    let mut item = |name: &str, kind: u8, value: &[u8]| {
        bytes.extend((name.len() as u32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.push(kind);
        bytes.extend(value);
    };
    item("last_step", 1, &42i64.to_le_bytes());
    item("recover_lr", 2, &0.1f32.to_le_bytes());
    item("scheduler_0.gamma", 3, &0.1f64.to_le_bytes());
    item("kind", 4, b"\x06\0\0\0cosine");
    let mut rates = 2u64.to_le_bytes().to_vec();
    rates.extend([0.5f32, 0.25].iter().flat_map(|rate| rate.to_le_bytes()));
    item("base_lrs", 5, &rates);
    bytes
}
