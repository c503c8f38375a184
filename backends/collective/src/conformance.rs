//! What every engine must do, as a program that each rank of a group runs.
//!
//! The engine's own tests start the ranks, as threads or as processes, and let each call [`run_rank`]. It
//! needs no channel between ranks besides the group itself. How groups fail depends on how an engine's
//! ranks can fail, so each engine tests that itself.

use bytes::Bytes;

use crate::{Collective, CollectiveError, Deadline, Reduce};

/// A case that an engine did not pass.
#[derive(Debug, thiserror::Error)]
pub enum Unmet {
    /// A call failed that must not fail.
    #[error(transparent)]
    Call(#[from] CollectiveError),
    /// A call returned something else than it must.
    #[error("rank {rank} of {size}: {case}")]
    Wrong {
        /// The rank that saw it.
        rank: usize,
        /// Ranks in its group.
        size: usize,
        /// What was tried.
        case: String,
    },
}

/// Runs every case on this rank; every rank of the group runs it once, at the same time.
///
/// # Errors
/// [`Unmet`] names the first case that was not passed.
pub fn run_rank(group: &dyn Collective, deadline: Deadline) -> Result<(), Unmet> {
    run_group(group, &[0, 1, 17, 4096], deadline)?;
    broadcast(group, group.size() - 1, LARGE, deadline)?;
    gather(group, 0, LARGE, deadline)?;
    all_to_all(group, LARGE, deadline)?;
    many_rounds(group, deadline)?;
    for (color, key) in SPLITS {
        split(group, color, key, deadline)?;
    }
    group.barrier(deadline)?;
    Ok(())
}

type OfRank = fn(u64, u64) -> u64;

/// How the split cases draw color and key from rank and size.
const SPLITS: [(OfRank, OfRank); 5] = [
    (|_, _| 7, |rank, _| rank),
    (|_, _| u64::MAX, |rank, size| size - rank),
    (|rank, _| rank % 2, |_, _| 0),
    (|rank, _| rank / 2, |rank, _| u64::MAX - rank),
    (|rank, _| rank, |_, _| 3),
];

/// Longer than what engines and networks send in one go.
const LARGE: usize = 4 << 20;

fn run_group(group: &dyn Collective, lengths: &[usize], deadline: Deadline) -> Result<(), Unmet> {
    check(group, group.rank() < group.size(), || "rank is below size".into())?;
    group.barrier(deadline)?;
    for &longest in lengths {
        for root in 0..group.size() {
            broadcast(group, root, longest, deadline)?;
            gather(group, root, longest, deadline)?;
        }
        all_gather(group, longest, deadline)?;
        all_to_all(group, longest, deadline)?;
    }
    all_reduce(group, deadline)
}

/// A message that depends on who sends it to whom, of a length that does as well, `longest` at most.
fn message(from: usize, to: usize, longest: usize) -> Bytes {
    let length = longest.saturating_sub((from * 5 + to * 3) % 16);
    (0..length).map(|at| (at ^ (at >> 8) ^ (from * 31) ^ (to * 17)) as u8).collect()
}

fn broadcast(group: &dyn Collective, root: usize, longest: usize, deadline: Deadline) -> Result<(), Unmet> {
    // What the others bring has another length and is to be ignored.
    let got = group.broadcast(root, message(group.rank(), 0, longest), deadline)?;
    check(group, got == message(root, 0, longest), || {
        format!("broadcast from {root} of up to {longest} bytes")
    })
}

fn gather(group: &dyn Collective, root: usize, longest: usize, deadline: Deadline) -> Result<(), Unmet> {
    let got = group.gather(root, message(group.rank(), root, longest), deadline)?;
    let want = (group.rank() == root)
        .then(|| (0..group.size()).map(|from| message(from, root, longest)).collect::<Vec<_>>());
    check(group, got == want, || format!("gather to {root} of up to {longest} bytes"))
}

fn all_gather(group: &dyn Collective, longest: usize, deadline: Deadline) -> Result<(), Unmet> {
    let got = group.all_gather(message(group.rank(), 1, longest), deadline)?;
    let want: Vec<_> = (0..group.size()).map(|from| message(from, 1, longest)).collect();
    check(group, got == want, || format!("all_gather of up to {longest} bytes"))
}

fn all_to_all(group: &dyn Collective, longest: usize, deadline: Deadline) -> Result<(), Unmet> {
    let messages = (0..group.size()).map(|to| message(group.rank(), to, longest)).collect();
    let got = group.all_to_all(messages, deadline)?;
    let want: Vec<_> = (0..group.size()).map(|from| message(from, group.rank(), longest)).collect();
    check(group, got == want, || format!("all_to_all of up to {longest} bytes"))
}

fn all_reduce(group: &dyn Collective, deadline: Deadline) -> Result<(), Unmet> {
    for words in [0, 1, 3, 1000] {
        let of = |rank: usize| -> Vec<u64> {
            let word = |at: u64| (rank as u64 + at).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            (0..words).map(word).collect()
        };
        for reduce in [Reduce::Min, Reduce::Max, Reduce::Sum] {
            let got = group.all_reduce(&of(group.rank()), reduce, deadline)?;
            let mut want = of(0);
            for rank in 1..group.size() {
                want.iter_mut().zip(of(rank)).for_each(|(a, b)| *a = reduce.apply(*a, b));
            }
            check(group, got == want, || format!("all_reduce {reduce:?} of {words} words"))?;
        }
    }
    Ok(())
}

/// Rounds without a barrier between: a fast rank is a meeting ahead of a slow one all the time.
fn many_rounds(group: &dyn Collective, deadline: Deadline) -> Result<(), Unmet> {
    let size = group.size() as u64;
    for round in 0..300u64 {
        let got = group.all_reduce(&[round * size + group.rank() as u64], Reduce::Max, deadline)?;
        check(group, got == [round * size + size - 1], || format!("all_reduce in round {round}"))?;
        let root = (round % size) as usize;
        let said = Bytes::copy_from_slice(&round.to_le_bytes());
        let got = group.broadcast(root, said.clone(), deadline)?;
        check(group, got == said, || format!("broadcast in round {round}"))?;
    }
    Ok(())
}

fn split(group: &dyn Collective, color: OfRank, key: OfRank, deadline: Deadline) -> Result<(), Unmet> {
    let (rank, size) = (group.rank() as u64, group.size() as u64);
    let mut members: Vec<_> = (0..size).filter(|other| color(*other, size) == color(rank, size)).collect();
    members.sort_by_key(|other| (key(*other, size), *other));

    let part = group.split(color(rank, size), key(rank, size), deadline)?;
    check(group, part.size() == members.len(), || "size of a split group".into())?;
    check(group, members.get(part.rank()) == Some(&rank), || "rank in a split group".into())?;
    let got = part.all_gather(Bytes::copy_from_slice(&rank.to_le_bytes()), deadline)?;
    let want: Vec<_> = members.iter().map(|member| Bytes::copy_from_slice(&member.to_le_bytes())).collect();
    check(group, got == want, || "all_gather in a split group".into())?;

    // The parts and the whole are used in turns, and a part is split again.
    group.barrier(deadline)?;
    run_group(part.as_ref(), &[0, 100], deadline)?;
    group.barrier(deadline)?;
    let half = part.split(part.rank() as u64 % 2, 0, deadline)?;
    let got = half.all_reduce(&[1], Reduce::Sum, deadline)?;
    check(group, got == [half.size() as u64], || "all_reduce in a part of a part".into())?;
    group.barrier(deadline)?;
    Ok(())
}

fn check(group: &dyn Collective, holds: bool, case: impl FnOnce() -> String) -> Result<(), Unmet> {
    if holds {
        return Ok(());
    }
    Err(Unmet::Wrong { rank: group.rank(), size: group.size(), case: case() })
}
