//! Coordinates and holders against loops over all ranks that use no strides.

use proptest::prelude::*;
use reshard_shard::{GroupId, INFINITRAIN_ORDER, ParallelSizes, Replica, ShardError, Topology};

/// Every rank's coordinates, by counting through nested loops, the fastest axis innermost.
fn count_through(sizes: &[u64]) -> Vec<Vec<u64>> {
    let world: u64 = sizes.iter().product();
    let mut at = vec![0; sizes.len()];
    let mut all = Vec::new();
    for _ in 0..world {
        all.push(at.clone());
        for (value, &size) in at.iter_mut().zip(sizes) {
            *value += 1;
            if *value < size {
                break;
            }
            *value = 0;
        }
    }
    all
}

proptest! {
    #[test]
    fn holders_are_the_ranks_that_agree_on_the_sharded_axes(
        sizes in proptest::collection::vec(1u64..5, 1..5),
        sharded in proptest::collection::vec(any::<bool>(), 5),
        pick in any::<prop::sample::Index>(),
    ) {
        let names = ["a", "b", "c", "d", "e"];
        let topology = Topology::mesh(names.into_iter().zip(sizes.clone())).unwrap();
        let all = count_through(&sizes);
        prop_assert_eq!(topology.world_size(), all.len() as u64);
        let rank = pick.index(all.len());
        let axes: Vec<usize> = (0..sizes.len()).filter(|&axis| sharded[axis]).collect();
        let expected: Vec<u64> = (0..all.len())
            .filter(|&other| axes.iter().all(|&axis| all[other][axis] == all[rank][axis]))
            .map(|other| other as u64)
            .collect();
        let names_of: Vec<&str> = axes.iter().map(|&axis| names[axis]).collect();
        prop_assert_eq!(&topology.holders(rank as u64, &names_of).unwrap(), &expected);
        let replica = Replica::among(rank as u64, &expected).unwrap();
        for _ in 0..2 { // the second answer comes from memory
            prop_assert_eq!(topology.replica(rank as u64, &names_of).unwrap(), replica);
        }
        let coordinates: Vec<(&str, u64)> =
            names.into_iter().zip(all[rank].iter().copied()).collect();
        prop_assert_eq!(topology.rank_at(&coordinates).unwrap(), rank as u64);
        for (axis, at) in coordinates {
            prop_assert_eq!(topology.coordinate(rank as u64, axis).unwrap(), at);
        }
    }

    /// Megatron's two meshes over the same ranks.
    #[test]
    fn expert_ranks_come_out_of_the_data_parallel_ones(
        tp in 1u64..4, cp in 1u64..4, edp in 1u64..4, ep in 1u64..4, pp in 1u64..4,
    ) {
        // dp such that cp * dp = ep * edp
        prop_assume!((ep * edp) % cp == 0);
        let dp = ep * edp / cp;
        let topology = ParallelSizes { tp, cp, dp, pp, ep, ..Default::default() }.topology().unwrap();
        let dense = count_through(&[tp, cp, dp, pp]);
        let expert = count_through(&[tp, ep, edp, pp]);
        for rank in 0..topology.world_size() {
            let of = |axis| topology.coordinate(rank, axis).unwrap();
            let at = rank as usize;
            prop_assert_eq!(&[of("tp"), of("cp"), of("dp"), of("pp")], dense[at].as_slice());
            prop_assert_eq!(&[of("etp"), of("ep"), of("edp"), of("pp")], expert[at].as_slice());
            prop_assert_eq!(rank, of("tp") + tp * (of("cp") + cp * (of("dp") + dp * of("pp"))));
            let alike: Vec<u64> = (0..topology.world_size())
                .filter(|&other| {
                    let (a, b) = (&expert[other as usize], &expert[at]);
                    a[0] == b[0] && a[1] == b[1] && a[3] == b[3]
                })
                .collect();
            prop_assert_eq!(alike.len() as u64, edp);
            prop_assert_eq!(topology.holders(rank, &["ep", "etp", "pp"]).unwrap(), alike);
        }
    }
}

#[test]
fn infinitrain_ranks() {
    let sizes = ParallelSizes { tp: 2, dp: 2, pp: 2, ..Default::default() };
    let topology = sizes.in_order(&INFINITRAIN_ORDER).unwrap();
    // Its writers are the ranks with dp 0.
    let writers: Vec<u64> = (0..8).filter(|&rank| topology.coordinate(rank, "dp").unwrap() == 0).collect();
    assert_eq!(writers, [0, 1, 4, 5]);
    for rank in 0..8 {
        let of = |axis| topology.coordinate(rank, axis).unwrap();
        assert_eq!(rank, of("tp") + of("dp") * 2 + of("pp") * 2 * 2);
    }
    assert_eq!(topology.to_string(), "8 ranks (tp=2 dp=2 pp=2 cp=1 etp=2 edp=2 ep=1)");
    assert_eq!(topology.replica(5, &["tp", "pp"]).unwrap().group(), Some(GroupId::of_ranks([5, 7])));
}

#[test]
fn experts_may_have_a_tensor_parallel_size_of_their_own() {
    let sizes = ParallelSizes { tp: 4, dp: 2, ep: 8, etp: Some(1), ..Default::default() };
    let topology = sizes.topology().unwrap();
    for rank in 0..8 {
        assert_eq!(topology.coordinate(rank, "ep").unwrap(), rank);
        assert_eq!(topology.holders(rank, &["ep", "etp"]).unwrap(), [rank]);
    }
}

#[test]
fn sizes_that_do_not_fit_are_refused() {
    let sizes = |tp, pp| ParallelSizes { tp, pp, ..Default::default() };
    assert_eq!(sizes(4, 2).fill_dp(32).unwrap().dp, 4);
    let unfit = ShardError::WorldSize { world_size: 12, sizes: vec![4, 1, 2] };
    assert_eq!(sizes(4, 2).fill_dp(12).unwrap_err(), unfit);
    assert!(sizes(4, 0).fill_dp(12).is_err());
    assert!(matches!(sizes(4, 0).topology(), Err(ShardError::Axis { size: 0, .. })));
    assert!(matches!(sizes(1 << 20, 1 << 20).topology(), Err(ShardError::Axis { .. })));
    let experts = ParallelSizes { dp: 6, ep: 4, ..Default::default() };
    let unfit = ShardError::WorldSize { world_size: 6, sizes: vec![1, 4] };
    assert_eq!(experts.topology().unwrap_err(), unfit);
    assert!(matches!(sizes(2, 2).in_order(&["tp", "dp"]), Err(ShardError::Axis { .. })));
    assert!(matches!(sizes(2, 1).in_order(&["tp", "tp"]), Err(ShardError::Axis { .. })));
    assert!(matches!(sizes(2, 1).in_order(&["tp", "fsdp"]), Err(ShardError::Axis { .. })));
    assert!(matches!(
        ParallelSizes { vpp: 0, ..Default::default() }.topology(),
        Err(ShardError::Axis { .. })
    ));
    // Without context parallelism the stages of both meshes agree in this order too; with it they do not.
    let order = ["tp", "cp", "pp", "ep", "dp"];
    assert!(ParallelSizes { cp: 1, pp: 2, dp: 2, ep: 2, ..Default::default() }.in_order(&order).is_ok());
    assert!(matches!(
        ParallelSizes { cp: 2, pp: 2, dp: 2, ep: 2, ..Default::default() }.in_order(&order),
        Err(ShardError::AxesOverlap { .. })
    ));
}

#[test]
fn axes_of_two_meshes_go_together_only_where_they_nest() {
    // dp = 6 out of which ep = 3 is cut: fixing dp fixes ep.
    let nested = ParallelSizes { tp: 2, dp: 6, ep: 3, ..Default::default() }.topology().unwrap();
    assert_eq!(nested.holders(3, &["dp", "ep"]).unwrap(), nested.holders(3, &["dp"]).unwrap());
    assert!(matches!(nested.rank_at(&[("dp", 1), ("ep", 1)]), Err(ShardError::AxesOverlap { .. })));
    // cp = 2 and ep = 3 share no digits.
    let crossed = ParallelSizes { cp: 2, dp: 3, ep: 3, ..Default::default() }.topology().unwrap();
    assert_eq!(
        crossed.holders(0, &["cp", "ep"]).unwrap_err(),
        ShardError::AxesOverlap { axes: vec!["cp".into(), "ep".into()] }
    );
    assert_eq!(
        crossed.rank_at(&[("dp", 3)]).unwrap_err(),
        ShardError::Coordinate { axis: "dp".into(), at: 3, size: 3 }
    );
    assert_eq!(crossed.holders(6, &[]).unwrap_err(), ShardError::Rank { rank: 6, world_size: 6 });
    assert!(matches!(crossed.size("tpp"), Err(ShardError::UnknownAxis { .. })));
    assert!(Topology::mesh([("a", 4)]).unwrap().with_view([(Some("b"), 3)]).is_err());
}

/// A dense tensor of the largest world asks for its group without a scan: all ranks of it in well under the time
/// that one scan per rank (268 million steps for each set of axes) would take.
#[test]
fn every_rank_of_a_large_world_knows_its_groups() {
    let topology = ParallelSizes { tp: 8, dp: 128, pp: 16, ep: 64, ..Default::default() }.topology().unwrap();
    let sets: [&[&str]; 4] = [&["tp", "pp"], &["pp"], &["ep", "etp", "pp"], &["tp", "pp", "dp"]];
    for rank in 0..topology.world_size() {
        for (sharded, count) in sets.into_iter().zip([128, 1024, 2, 1]) {
            assert_eq!(topology.replica(rank, sharded).unwrap().count(), count);
        }
    }
    assert_eq!(topology.holders(16383, &["pp", "tp"]).unwrap().len(), 128);
}
