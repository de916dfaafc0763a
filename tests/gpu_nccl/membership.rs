//! Communicators from communicators: parts, without some ranks, with more.

use std::sync::{Barrier, OnceLock};
use std::time::Duration;

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Config, Error, Memory, ShrinkMode, SplitKey, UniqueId};

use crate::case::Way;
use crate::collectives::{works, works_together};
use crate::gpus::{Gpus, missing};
use crate::reference::fresh_seed;

/// The half that a rank belongs to.
fn half(rank: usize, size: usize) -> i32 {
    (rank * 2 / size) as i32
}

/// Halves by color, then all in reverse order by key, then all but rank 0, which has no color.
pub(crate) fn split() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size) = (communicator.rank(), communicator.size());
        let mine = half(rank, size);
        let members: Vec<_> = (0..size).filter(|&rank| half(rank, size) == mine).collect();
        let part = communicator.split(Some(mine), 0, None).unwrap().unwrap();
        assert_eq!((part.rank(), part.size()), (rank - members[0], members.len()));
        assert_eq!(part.device().unwrap(), rank);
        works(&part, seed);
        // Both work beside each other.
        works(communicator, seed);
        part.close().unwrap();

        let config = Config::new().max_ctas(8);
        let reversed = communicator.split(Some(3), -(rank as i32), Some(&config)).unwrap().unwrap();
        assert_eq!((reversed.rank(), reversed.size()), (size - 1 - rank, size));
        works(&reversed, seed);
        drop(reversed);

        let part = communicator.split((rank > 0).then_some(7), 0, None).unwrap();
        match part {
            Some(part) => {
                assert_eq!((part.rank(), part.size()), (rank - 1, size - 1));
                works(&part, seed);
            }
            None => assert_eq!(rank, 0),
        }
        works(communicator, seed);
    });
}

/// The same with all ranks in one thread.
pub(crate) fn split_of_all_ranks_in_one_thread() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let party = gpus.together(&Config::new());
    let keys = |member: &Communicator| SplitKey { color: Some(half(member.rank(), member.size())), key: 0 };
    let parts =
        Communicator::split_all(gpus.library, party.iter().map(|member| (member, keys(member))), None)
            .unwrap();
    let mut first: Vec<_> = parts.into_iter().map(Option::unwrap).collect();
    let second = first.split_off(gpus.count.div_ceil(2));
    for part in [&first, &second] {
        for (rank, member) in part.iter().enumerate() {
            assert_eq!((member.rank(), member.size()), (rank, part.len()));
        }
        works_together(part, seed, Way::Grouped);
    }

    let without_first = |member: &Communicator| SplitKey { color: (member.rank() > 0).then_some(0), key: 0 };
    let ranks = party.iter().map(|member| (member, without_first(member)));
    let mut parts = Communicator::split_all(gpus.library, ranks, Some(&Config::new())).unwrap();
    assert!(parts.remove(0).is_none());
    let rest: Vec<_> = parts.into_iter().map(Option::unwrap).collect();
    assert_eq!(rest[0].size(), gpus.count - 1);
    works_together(&rest, seed, Way::Grouped);
    works_together(&party, seed, Way::Grouped);
}

/// The last rank, which is well, is left out.
pub(crate) fn shrink() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommShrink");
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, last) = (communicator.rank(), communicator.size() - 1);
        works(communicator, seed);
        // Nothing may be in flight.
        communicator.stream().synchronize().unwrap();
        if rank == last {
            return;
        }
        let rest = communicator.shrink(&[last], ShrinkMode::Default, None);
        if !has {
            return missing(rest, "ncclCommShrink");
        }
        let rest = rest.unwrap();
        assert_eq!((rest.rank(), rest.size()), (rank, last));
        works(&rest, seed);
        rest.close().unwrap();
    });

    let party = gpus.together(&Config::new());
    works_together(&party, seed, Way::Grouped);
    let (last, rest) = party.split_last().unwrap();
    let rest = Communicator::shrink_all(
        gpus.library,
        rest,
        &[last.rank()],
        ShrinkMode::Default,
        Some(&Config::new()),
    );
    if !has {
        return missing(rest, "ncclCommShrink");
    }
    let rest = rest.unwrap();
    assert_eq!((rest.len(), rest[0].size()), (gpus.count - 1, gpus.count - 1));
    works_together(&rest, seed, Way::Grouped);
}

/// One rank, that all others join.
pub(crate) fn grow() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let first = || {
        let id = UniqueId::new(gpus.library).unwrap();
        Communicator::init(gpus.library, &gpus.stream(0), 0, 1, &id, &Config::new()).unwrap()
    };
    if !gpus.has("ncclCommGrow") {
        let (first, id) = (first(), UniqueId::from_bytes([0; UniqueId::BYTES]));
        missing(first.grow_id(), "ncclCommGetUniqueId");
        return missing(first.grow(2, Some(&id), None), "ncclCommGrow");
    }
    let (made, id) = (Barrier::new(gpus.count), OnceLock::new());
    gpus.threads(|rank, crew| {
        let size = gpus.count;
        let origin = (rank == 0).then(first);
        if let Some(origin) = &origin {
            works(origin, seed);
            id.set(origin.grow_id().unwrap()).unwrap();
        }
        made.wait();
        let id = id.get().unwrap();
        let grown = match &origin {
            Some(origin) => origin.grow(size, Some(id), None),
            None => Communicator::join(gpus.library, &gpus.stream(rank), rank, size, id, &Config::new()),
        };
        let grown = grown.unwrap();
        crew.watch(&grown);
        assert_eq!((grown.rank(), grown.size()), (rank, size));
        works(&grown, seed);
        grown.close().unwrap();
    });
}

/// Two ids instead of one.
pub(crate) fn creation_with_several_ids() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommInitRankScalable");
    let ids = [(); 2].map(|()| UniqueId::new(gpus.library).unwrap());
    gpus.threads(|rank, crew| {
        let (stream, config) = (gpus.stream(rank), Config::new());
        let made = Communicator::init_scalable(gpus.library, &stream, rank, gpus.count, &ids, &config);
        if !has {
            return missing(made, "ncclCommInitRankScalable");
        }
        let communicator = made.unwrap();
        crew.watch(&communicator);
        works(&communicator, seed);
        communicator.close().unwrap();
    });
}

/// Pending communicators of all kinds come to life while the thread does other things.
pub(crate) fn pending_communicators() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has_shrink = gpus.has("ncclCommShrink");
    let id = UniqueId::new(gpus.library).unwrap();
    let patience = Duration::from_secs(60);
    gpus.threads(|rank, crew| {
        let (stream, size) = (gpus.stream(rank), gpus.count);
        let mut pending =
            Communicator::init_pending(gpus.library, &stream, rank, size, &id, &Config::new()).unwrap();
        while !pending.poll().unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let communicator = pending.wait(Duration::ZERO).unwrap();
        crew.watch(&communicator);
        works(&communicator, seed);

        let mut pending = communicator.split_pending(half(rank, size), 0, None).unwrap();
        while !pending.poll().unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let part = pending.wait(Duration::ZERO).unwrap();
        works(&part, seed);
        part.close().unwrap();
        works(&communicator, seed);

        stream.synchronize().unwrap();
        if rank < size - 1 {
            let pending = communicator.shrink_pending(&[size - 1], ShrinkMode::Default, None);
            if has_shrink {
                let rest = pending.unwrap().wait(patience).unwrap();
                assert_eq!((rest.rank(), rest.size()), (rank, size - 1));
                works(&rest, seed);
            } else {
                missing(pending, "ncclCommShrink");
            }
        }
        communicator.close().unwrap();
    });
}

/// A communicator whose peers never come meets its deadline, and leaves nothing behind.
pub(crate) fn a_communicator_whose_peers_never_come() {
    let gpus = Gpus::all();
    let stream = gpus.stream(0);
    let id = UniqueId::new(gpus.library).unwrap();
    let pending = Communicator::init_pending(gpus.library, &stream, 0, 2, &id, &Config::new()).unwrap();
    let error = pending.wait(Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");

    let config = Config::new().blocking(false).deadline(Duration::from_millis(500));
    let id = UniqueId::new(gpus.library).unwrap();
    let error = Communicator::init(gpus.library, &stream, 0, 2, &id, &config).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");

    let id = UniqueId::new(gpus.library).unwrap();
    let alone = Communicator::init(gpus.library, &stream, 0, 1, &id, &Config::new()).unwrap();
    let mut memory = Memory::alloc(gpus.library, &stream, 4).unwrap();
    alone.all_reduce_in_place(&mut memory.slice_mut::<f32>(..1).unwrap(), ReduceOp::Sum).unwrap();
    alone.close().unwrap();
}
