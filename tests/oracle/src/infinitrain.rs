//! An InfiniTrain version 3 checkpoint, written by hand from the description of the format, and what each of its ranks
//! holds: nothing here knows regions, chunks or plans.
#![allow(clippy::panic, reason = "the oracle is for tests: a case that cannot be built should stop them")]

use crate::full_tensor;
use reshard_shard::DType;
use std::collections::BTreeMap;

/// A tensor as the whole job sees it.
#[derive(Clone, Debug)]
pub struct Whole {
    /// Element type.
    pub dtype: DType,
    /// Global shape.
    pub shape: Vec<u64>,
    /// Dense, row-major.
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

/// Layers of a small GPT-2 with grouped queries: eight heads of one element, four for K and V.
pub const LAYERS: u64 = 4;
/// Width of the model.
pub const WIDTH: u64 = 8;
/// Rows of Q: heads.
pub const QUERIES: u64 = 8;
/// Rows of K, and of V: heads of theirs.
pub const KEYS: u64 = 4;
/// Longest sequence.
pub const BLOCK: u64 = 6;
/// Size of the vocabulary.
pub const WORDS: u64 = 21;
/// Size of the vocabulary with padding.
pub const ROWS: u64 = 24;
/// Where the checkpoint lies.
pub const DIRECTORY: &str = "run/iter_0000042";

const WTE: &str = "transformer.wte.weight";
const LM_HEAD: &str = "lm_head.weight";

/// How the run was split, and what the writer does differently between versions.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Tensor parallel ranks.
    pub tp: u64,
    /// Pipeline stages.
    pub pp: u64,
    /// Data parallel ranks, of which the first writes.
    pub dp: u64,
    /// Older names of dtypes.
    pub legacy_names: bool,
    /// The entries of metadata.json the other way round.
    pub reversed: bool,
    /// Embedding and output head are one tensor, as GPT-2's are on one stage: both names are stored with the same bytes,
    /// and the optimizer has states under the head's name only.
    pub tied: bool,
}

/// A checkpoint.
#[derive(Debug)]
pub struct Written {
    /// The files by path; the run lies in `run`.
    pub files: BTreeMap<String, Vec<u8>>,
    /// The text of metadata.json.
    pub metadata: String,
    /// What was saved, whole.
    pub tensors: BTreeMap<String, Whole>,
}

fn parameters(stage: u64, stages: u64) -> Vec<Parameter> {
    let mut all = Vec::new();
    let mut add = |key: String, shape: &[u64], share: Share, trained: bool| {
        all.push(Parameter { key, shape: shape.to_vec(), share, trained });
    };
    if stage == 0 {
        add(WTE.into(), &[ROWS, WIDTH], Share::Axis(0), true);
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
        add(LM_HEAD.into(), &[ROWS, WIDTH], Share::Axis(0), true);
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

/// What a rank of the run holds by key: model and optimizer, cut as InfiniTrain cuts them.
pub fn held(run: Run, tp_rank: u64, pp_rank: u64) -> BTreeMap<String, Vec<u8>> {
    let [model, optimizer] = locals(run, tp_rank, pp_rank, &mut BTreeMap::new());
    model.into_iter().chain(optimizer).map(|local| (local.key, local.bytes)).collect()
}

/// Element by element: the rows and columns `start..start + length` of `axis`, for every given range in turn.
fn slice(whole: &Whole, axis: usize, ranges: &[(u64, u64)]) -> Vec<u8> {
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

/// The tensors of a rank: model, then optimizer. `tensors` collects them whole.
fn locals(run: Run, tp_rank: u64, pp_rank: u64, tensors: &mut BTreeMap<String, Whole>) -> [Vec<Local>; 2] {
    let mut model = Vec::new();
    let mut optimizer = Vec::new();
    for Parameter { key, shape, share, trained } in parameters(pp_rank, run.pp) {
        let mut state = vec![(key.clone(), if trained { DType::BF16 } else { DType::F32 })];
        if trained && !(run.tied && key == WTE) {
            state.push((format!("adam.m.{key}"), DType::F32));
            state.push((format!("adam.v.{key}"), DType::F32));
        }
        for (index, (key, dtype)) in state.into_iter().enumerate() {
            let source = if run.tied && key == WTE { LM_HEAD } else { &key };
            let bytes = full_tensor(source, dtype, &shape);
            let whole = tensors.entry(key.clone()).or_insert(Whole { dtype, shape: shape.clone(), bytes });
            let part = local(&key, whole, &share, run.tp, tp_rank);
            if index == 0 { model.push(part) } else { optimizer.push(part) }
        }
    }
    let steps = Whole { dtype: DType::I64, shape: vec![], bytes: 42i64.to_le_bytes().to_vec() };
    let steps = tensors.entry("adam.t".to_owned()).or_insert(steps);
    optimizer.push(local("adam.t", steps, &Share::Replicated, run.tp, tp_rank));
    [model, optimizer]
}

/// Saves the whole run: the payloads of all writers, then metadata.json.
pub fn write(run: Run) -> Written {
    let mut files = BTreeMap::new();
    let mut put = |path: String, bytes: Vec<u8>| files.insert(path, bytes);
    let mut tensors: BTreeMap<String, Whole> = BTreeMap::new();
    let mut entries = Vec::new();
    for pp_rank in 0..run.pp {
        for tp_rank in 0..run.tp {
            let rank = tp_rank + pp_rank * run.tp * run.dp;
            let locals = locals(run, tp_rank, pp_rank, &mut tensors);
            for (name, mut locals) in ["model.ckpt", "optimizer.ckpt"].into_iter().zip(locals) {
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
                put(format!("{DIRECTORY}/{path}"), file);
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
    put(format!("{DIRECTORY}/metadata.json"), metadata.clone().into());
    put(
        format!("{DIRECTORY}/trainer_state.json"),
        format!(
            "{{\"n_layer\": {LAYERS}, \"n_head\": {QUERIES}, \"n_kv_head\": {KEYS}, \"n_embd\": {WIDTH}, \"original_vocab_size\": {WORDS}, \
             \"padded_vocab_size\": {ROWS}, \"global_step\": 42, \"consumed_train_samples\": 5000, \"ddp_size\": {}, \
             \"tp_size\": {}, \"sp_size\": 1, \"pp_size\": {}, \"vpp_size\": 1}}",
            run.dp, run.tp, run.pp
        )
        .into(),
    );
    put(format!("{DIRECTORY}/lr_scheduler.ckpt"), scheduler());
    put("run/latest_checkpointed_iteration.txt".to_owned(), b"42".to_vec());
    Written { files, metadata, tensors }
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
