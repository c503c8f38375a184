//! `plan`: its numbers are those of the planner and of a real load.

use crate::command::{fails, json, text};
use crate::run::{Run, topology};
use reshard::checkpoint::LoadFigures;
use reshard::plan::{LoadPlanner, LoadRules, Select};
use reshard::shard::{DType, ParallelSizes, Rules, StateGroup, UnshardedTensor};
use serde_json::Value;

/// A row of the answer as a load reports it.
fn figures(row: &Value) -> LoadFigures {
    let number = |field: &str| row[field].as_u64().unwrap();
    LoadFigures {
        bytes_needed: number("bytes_needed"),
        bytes_fetched: number("bytes_to_fetch"),
        verify_over_read: number("verify_over_read"),
        coalesce_over_read: number("coalesce_over_read"),
        table_bytes: number("table_bytes"),
        requests: number("requests"),
    }
}

#[test]
fn a_real_load_does_what_the_plan_says() {
    let run = Run::with(&[10]);
    for (tp, pp, dp, arguments, verify, group) in [
        (4, 1, 1, &[][..], true, None),
        (1, 1, 1, &["--no-verify"], false, None),
        (2, 2, 2, &[], true, None),
        (2, 1, 2, &["--no-verify", "--select", "model"], false, Some(StateGroup::Model)),
        (1, 4, 1, &["--select", "optimizer"], true, Some(StateGroup::Optimizer)),
    ] {
        let sizes = [tp, pp, dp].map(|size: u64| size.to_string());
        let mut command = vec!["plan", run.uri(), "--tp", &sizes[0], "--pp", &sizes[1], "--dp", &sizes[2]];
        command.extend(arguments);
        let (code, answer) = json(&command);
        assert_eq!((code, &answer["verify"]), (0, &verify.into()));
        assert_eq!(answer["rules"], "preset GPT-2 in the names of InfiniTrain");
        let select = group.map_or(Select::all(), Select::group);
        let reports = run.load(&topology(tp, pp, dp), &LoadRules { select, verify, ..LoadRules::default() });
        let rows = answer["ranks"].as_array().unwrap();
        assert_eq!(rows.len(), reports.len());
        for (row, report) in rows.iter().zip(&reports) {
            assert_eq!(figures(row), report.own, "{command:?} rank {}", report.rank);
            assert_eq!(row["rank"], report.rank);
        }
        assert_eq!(figures(&answer["total"]), reports[0].total);
        let total = reports[0].total;
        let ratio = answer["total"]["amplification"].as_f64().unwrap();
        assert!((ratio - total.bytes_fetched as f64 / total.bytes_needed as f64).abs() < 1e-9);
        // One rank alone is the same row.
        let last = (rows.len() - 1).to_string();
        command.extend(["--rank", &last]);
        assert_eq!(json(&command).1["ranks"][0], rows[rows.len() - 1]);
        let shown = text(&command);
        assert!(shown.contains("amplification") && shown.contains("preset GPT-2"), "{shown}");
    }
}

const RULES: &str = r#"
[[rule]]
keys = ["*.up"]
cut = [{ axis = 0, over = "tp" }]

[[rule]]
keys = ["*.down"]
cut = [{ axis = 1, over = "tp" }]

[[rule]]
keys = ["*"]
replicated = true
"#;

#[test]
fn rules_of_a_file_are_those_of_the_planner() {
    let run = Run::with(&[]);
    let tensors: [(&str, DType, &[u64]); 3] = [
        ("block.up", DType::F32, &[512, 128]),
        ("block.down", DType::F32, &[128, 512]),
        ("norm", DType::BF16, &[128]),
    ];
    run.save_others(1, &tensors);
    let file = run.directory.path().join("rules.toml");
    std::fs::write(&file, RULES).unwrap();
    let file = file.to_str().unwrap();
    let (_, answer) = json(&["plan", run.uri(), "--tp", "4", "--dp", "2", "--rules", file]);
    let sizes = ParallelSizes { tp: 4, dp: 2, ..Default::default() };
    let bound = Rules::from_toml(RULES)
        .unwrap()
        .bind(tensors.iter().map(|&tensor| UnshardedTensor::from(tensor)), &sizes.topology().unwrap())
        .unwrap();
    let layout = run.checkpoint().inspect(None).unwrap().layout;
    let rules = LoadRules { verify: true, ..LoadRules::default() };
    for (rank, row) in answer["ranks"].as_array().unwrap().iter().enumerate() {
        let plan = LoadPlanner::new(&layout, &rules).plan(&bound.rank(rank as u64).unwrap()).unwrap();
        assert_eq!(row["bytes_needed"], plan.cost.bytes_needed);
        assert_eq!(row["bytes_to_fetch"], plan.cost.bytes_to_fetch);
        assert_eq!(row["files"], plan.cost.files);
        assert_eq!(row["table_requests"], plan.tables.len());
        assert_eq!(row["requests"], plan.cost.requests + plan.tables.len() as u64);
        assert_eq!(row["coordinates"], serde_json::json!({"tp": rank % 4, "dp": rank / 4}));
    }
    // No preset knows these keys, and the message shows how to write a table.
    let message = fails(2, &["plan", run.uri(), "--tp", "4"]);
    assert!(message.contains("`block.down`") && message.contains("--rules FILE"), "{message}");
    assert!(message.contains("[[rule]]"), "{message}");
    std::fs::write(file, "[[rule]]\nkeys = [\"*.up\"]\nreplicated = true").unwrap();
    assert!(fails(6, &["plan", run.uri(), "--rules", file]).contains("`block.down`"));
    // Faults of the table's meaning name the file too.
    for (table, exit, why) in [
        ("[[rule]]\nkeys = [\"*\"]", 2, "rule 1"),
        ("[[rule]]\nkeys = [\"*\"]\ncut = [{ axis = 7, over = \"tp\" }]", 6, "axis 7"),
        ("[optimizer]\nzero = 7\n[[rule]]\nkeys = [\"*\"]\nreplicated = true", 2, "zero = 7"),
    ] {
        std::fs::write(file, table).unwrap();
        let error = fails(exit, &["plan", run.uri(), "--rules", file]);
        assert!(error.contains(why) && error.contains("rules.toml"), "{error}");
    }
    std::fs::write(file, "[[rule]]\nkeys = [\"*\"]\nreplicated = true").unwrap();
    assert!(fails(2, &["plan", run.uri(), "--rules", file, "--zero", "1"]).contains("no optimizer state"));
    std::fs::write(file, "rule = 1").unwrap();
    assert!(fails(2, &["plan", run.uri(), "--rules", file]).contains("rules.toml"));
    assert!(fails(2, &["plan", run.uri(), "--rules", "/nothing.toml"]).contains("/nothing.toml"));
}

#[test]
fn ranks_orders_zero_and_objects() {
    let run = Run::with(&[10]);
    let rank = |order: &str| {
        let command =
            ["plan", run.uri(), "--tp", "2", "--pp", "2", "--dp", "2", "--rank", "5", "--order", order];
        json(&command).1["ranks"][0]["coordinates"].clone()
    };
    assert_eq!(rank("megatron"), serde_json::json!({"tp": 1, "dp": 0, "pp": 1}));
    assert_eq!(rank("infinitrain"), serde_json::json!({"tp": 1, "dp": 0, "pp": 1}));
    assert!(fails(2, &["plan", run.uri(), "--cp", "2", "--order", "infinitrain"]).contains("cp"));
    // Dealt over two data parallel ranks, each needs half of the optimizer state, together all of it.
    let needed = |arguments: &[&str]| {
        let command = [&["plan", run.uri(), "--dp", "2", "--select", "adam.m.*"], arguments].concat();
        let answer = json(&command).1;
        let ranks = answer["ranks"].as_array().unwrap().iter();
        ranks.map(|row| row["bytes_needed"].as_u64().unwrap()).collect::<Vec<_>>()
    };
    let (whole, dealt) = (needed(&["--zero", "0"]), needed(&["--zero", "1"]));
    assert_eq!(whole[0], whole[1]);
    assert_eq!(dealt.iter().sum::<u64>(), whole[0]);
    assert!(dealt[0] > 0 && dealt[1] > 0);
    // A rank's own object is 100 bytes.
    let needed = |objects: &str| {
        let sizes = ["--tp", "2", "--pp", "2", "--dp", "2", "--objects", objects];
        let answer = json(&[&["plan", run.uri(), "--rank", "3"], &sizes[..]].concat()).1;
        answer["ranks"][0]["bytes_needed"].as_u64().unwrap()
    };
    assert_eq!(needed("own"), needed("none") + 100);
    assert_eq!(needed("all"), needed("none") + 800);
    let message = fails(6, &["plan", run.uri(), "--tp", "4", "--objects", "own"]);
    assert!(message.contains("`rng`") && message.contains('8'), "{message}");
}

#[test]
fn what_does_not_fit_is_named() {
    let run = Run::with(&[10]);
    let message = fails(6, &["plan", run.uri(), "--tp", "3"]);
    assert!(message.contains("tensor `") && message.contains("--rules FILE"), "{message}");
    let message = fails(2, &["plan", run.uri(), "--tp", "2", "--rank", "2"]);
    assert!(message.contains("rank 2") && message.contains("--rank"), "{message}");
    assert!(fails(2, &["plan", run.uri(), "--tp", "0"]).contains("`tp`"));
    fails(2, &["plan", run.uri(), "--tp", "two"]);
    fails(2, &["plan", run.uri(), "--select", "h.["]);
    fails(3, &["plan", run.uri(), "--iteration", "11"]);
}

#[test]
fn sizes_that_no_cluster_has_are_refused() {
    let run = Run::with(&[10]);
    let many = "4000000000";
    for (sizes, named) in [
        (&["--pp", many][..], "--pp 4000000000 make"),
        (&["--dp", many], "--dp 4000000000 make"),
        (&["--tp", "65536", "--dp", "65536"], "--tp 65536 --dp 65536 make"),
        (&["--tp", many, "--pp", many, "--cp", many], "--tp 4000000000 --pp 4000000000 --cp 4000000000 make"),
        (&["--vpp", many], "--vpp 4000000000 make"),
        (&["--ep", many], "--ep 4000000000 make"),
    ] {
        for verb in [&["plan", run.uri()][..], &["explain", run.uri(), "transformer.wte.weight"]] {
            let message = fails(2, &[verb, sizes, &["--rank", "5"]].concat());
            assert!(message.contains(named), "{message}");
        }
    }
    // All ranks at once are fewer, one rank of many works.
    let message = fails(2, &["plan", run.uri(), "--dp", "65537"]);
    assert!(message.contains("65537 ranks") && message.contains("--rank"), "{message}");
    assert_eq!(json(&["plan", run.uri(), "--dp", "65537", "--rank", "5"]).1["ranks"][0]["rank"], 5);
}

/// Ranks that hold the same are planned once; what is said of each is what a plan of it alone says.
#[test]
fn ranks_that_hold_the_same_cost_the_same() {
    let run = Run::with(&[10]);
    for arguments in [&["--zero", "0"][..], &["--zero", "1"], &["--objects", "all"]] {
        let command = [&["plan", run.uri(), "--tp", "2", "--dp", "3", "--pp", "2"], arguments].concat();
        let all = json(&command).1;
        for rank in [0, 1, 3, 5, 7, 11] {
            let rank_text = rank.to_string();
            let alone = json(&[&command[..], &["--rank", &rank_text]].concat()).1;
            assert_eq!(all["ranks"][rank], alone["ranks"][0], "{arguments:?} {rank}");
        }
    }
}

#[test]
fn a_selection_of_nothing_is_an_error() {
    let run = Run::with(&[10]);
    for verb in [&["plan", run.uri()][..], &["explain", run.uri(), "transformer.wte.weight"]] {
        let with = |select: &[&'static str]| fails(3, &[verb, select].concat());
        let message = with(&["--select", "transformer.h.0.attn.c_atn.weight"]);
        assert!(message.contains("did you mean `transformer.h.0.attn.c_attn.weight`"), "{message}");
        // Each glob must match, though another does.
        let message = with(&["--select", "transformer.*", "--select", "nothing*"]);
        assert!(message.contains("`nothing*`"), "{message}");
        assert!(with(&["--select", ""]).contains("lists the keys"));
        let message = with(&["--select", "model", "--select", "adam.*"]);
        assert!(message.contains("--select model --select adam.*"), "{message}");
    }
}
