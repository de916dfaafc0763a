//! Derived communicators: split, shrunk and grown.

use std::sync::{Arc, Barrier, OnceLock};
use std::time::Duration;

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Config, Error, Grow, Memory, Shrink, Split, UniqueId};

use crate::case::Way;
use crate::collectives::{works, works_together};
use crate::copies::Copies as _;
use crate::gpus::{Gpus, missing};
use crate::reference::fresh_seed;

/// Half of a rank.
fn half(rank: usize, size: usize) -> i32 {
    (rank * 2 / size) as i32
}

/// Splits into halves by color, then all in reverse order by key, then all but rank 0, which has no color.
pub(crate) fn split() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let ended = Barrier::new(gpus.count);
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size) = (communicator.rank(), communicator.size());
        let mine = half(rank, size);
        let members: Vec<_> = (0..size).filter(|&rank| half(rank, size) == mine).collect();
        let part = communicator.split(&Split::color(mine)).unwrap();
        assert_eq!((part.rank(), part.size()), (rank - members[0], members.len()));
        assert_eq!(part.device().unwrap(), gpus.device(rank));
        works(&part, seed);
        // Both work beside each other.
        works(communicator, seed);
        part.close().unwrap();

        let config = Config::new().max_ctas(8);
        let reversed = Split::color(3).key(-(rank as i32)).config(&config);
        let reversed = communicator.split(&reversed).unwrap();
        assert_eq!((reversed.rank(), reversed.size()), (size - 1 - rank, size));
        works(&reversed, seed);
        drop(reversed);

        if rank == 0 {
            communicator.split_none().unwrap();
        } else {
            let part = communicator.split(&Split::color(7)).unwrap();
            assert_eq!((part.rank(), part.size()), (rank - 1, size - 1));
            works(&part, seed);
        }
        // The end of a communicator waits for all work of its GPU, including that of ranks that share it.
        ended.wait();
        works(communicator, seed);
    });
}

/// The same with all ranks in one thread.
pub(crate) fn split_of_all_ranks_in_one_thread() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let party = gpus.together(&Config::new());
    let halves = |member: &Communicator| Some(Split::color(half(member.rank(), member.size())));
    let parts = Communicator::split_all(party.iter().map(|member| (member, halves(member)))).unwrap();
    let mut first: Vec<_> = parts.into_iter().map(Option::unwrap).collect();
    let second = first.split_off(gpus.count.div_ceil(2));
    for part in [&first, &second] {
        for (rank, member) in part.iter().enumerate() {
            assert_eq!((member.rank(), member.size()), (rank, part.len()));
        }
        works_together(part, seed, Way::Grouped);
    }

    let rest = Split::color(0).config(&Config::new());
    let without_first = |member: &Communicator| (member.rank() > 0).then(|| rest.clone());
    let ranks = party.iter().map(|member| (member, without_first(member)));
    let mut parts = Communicator::split_all(ranks).unwrap();
    assert!(parts.remove(0).is_none());
    let rest: Vec<_> = parts.into_iter().map(Option::unwrap).collect();
    assert_eq!(rest[0].size(), gpus.count - 1);
    works_together(&rest, seed, Way::Grouped);
    works_together(&party, seed, Way::Grouped);
}

/// Two parts run at the same time, each on a stream of its own: every second rank, and all in reverse order.
pub(crate) fn split_onto_streams_of_their_own() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size) = (communicator.rank(), communicator.size());
        let context = communicator.stream().context();
        let streams = [context.new_stream().unwrap(), context.new_stream().unwrap()];
        let every_second = Split::color((rank % 2) as i32).stream(&streams[0]);
        let every_second = communicator.split(&every_second).unwrap();
        let reversed = Split::color(0).key(-(rank as i32)).stream(&streams[1]);
        let reversed = communicator.split(&reversed).unwrap();
        assert!(Arc::ptr_eq(every_second.stream(), &streams[0]));
        assert!(Arc::ptr_eq(reversed.stream(), &streams[1]));
        assert_eq!(every_second.rank(), rank / 2);
        assert_eq!(reversed.rank(), size - 1 - rank);
        works(&every_second, seed);
        works(&reversed, seed);

        // The buffers belong to a third stream, that of the original communicator.
        let mut values =
            [1.0f32, 10.0].map(|value| communicator.stream().clone_htod(&[value; 1_001]).unwrap());
        every_second.all_reduce_in_place(&mut values[0], ReduceOp::Sum).unwrap();
        reversed.all_reduce_in_place(&mut values[1], ReduceOp::Sum).unwrap();
        let sums = [every_second.size() as f32, 10.0 * size as f32];
        for (values, sum) in values.iter().zip(sums) {
            assert_eq!(communicator.stream().read(values), [sum; 1_001]);
        }
        works(communicator, seed);
    });
}

/// Excludes the last rank, which works.
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
        let rest = communicator.shrink(&Shrink::without(&[last]));
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
    let config = Config::new();
    let rest = Communicator::shrink_all(rest, &Shrink::without(&[last.rank()]).config(&config));
    if !has {
        return missing(rest, "ncclCommShrink");
    }
    let rest = rest.unwrap();
    assert_eq!((rest.len(), rest[0].size()), (gpus.count - 1, gpus.count - 1));
    works_together(&rest, seed, Way::Grouped);
}

/// All other ranks join a communicator of one rank.
pub(crate) fn grow() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let first = || Communicator::builder(gpus.library, &gpus.stream(0)).init().unwrap();
    if !gpus.has("ncclCommGrow") {
        let (first, id) = (first(), UniqueId::from_bytes([0; UniqueId::BYTES]));
        missing(first.grow_id(), "ncclCommGetUniqueId");
        return missing(first.grow(&Grow::to(2).id(&id)), "ncclCommGrow");
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
            Some(origin) => origin.grow(&Grow::to(size).id(id)),
            None => gpus.rank(&gpus.stream(rank), rank).id(id).join(),
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
        let made = gpus.rank(&gpus.stream(rank), rank).ids(&ids).init();
        if !has {
            return missing(made, "ncclCommInitRankScalable");
        }
        let communicator = made.unwrap();
        crew.watch(&communicator);
        works(&communicator, seed);
        communicator.close().unwrap();
    });
}

/// Pending communicators of all kinds complete while the thread does other work.
pub(crate) fn pending_communicators() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has_shrink = gpus.has("ncclCommShrink");
    let id = UniqueId::new(gpus.library).unwrap();
    let (patience, ended) = (Duration::from_secs(60), Barrier::new(gpus.count));
    gpus.threads(|rank, crew| {
        let (stream, size) = (gpus.stream(rank), gpus.count);
        let mut pending = gpus.rank(&stream, rank).id(&id).init_pending().unwrap();
        while !pending.poll().unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let communicator = pending.wait(Duration::ZERO).unwrap();
        crew.watch(&communicator);
        works(&communicator, seed);

        let mut pending = communicator.split_pending(&Split::color(half(rank, size))).unwrap();
        while !pending.poll().unwrap() {
            std::thread::sleep(Duration::from_millis(1));
        }
        let part = pending.wait(Duration::ZERO).unwrap();
        works(&part, seed);
        part.close().unwrap();
        // As in `split`.
        ended.wait();
        works(&communicator, seed);

        stream.synchronize().unwrap();
        if rank < size - 1 {
            let pending = communicator.shrink_pending(&Shrink::without(&[size - 1]));
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

/// A communicator whose peers never come reaches its deadline, and leaves nothing behind.
pub(crate) fn a_communicator_whose_peers_never_come() {
    let gpus = Gpus::all();
    let stream = gpus.stream(0);
    let id = UniqueId::new(gpus.library).unwrap();
    // The first of two ranks, whatever the machine has.
    let first = || Communicator::builder(gpus.library, &stream).rank(0, 2);
    let pending = first().id(&id).init_pending().unwrap();
    let error = pending.wait(Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");

    let config = Config::new().blocking(false).deadline(Duration::from_millis(500));
    let id = UniqueId::new(gpus.library).unwrap();
    let error = first().id(&id).config(&config).init().unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");

    let alone = Communicator::builder(gpus.library, &stream).init().unwrap();
    let mut memory = Memory::alloc(gpus.library, &stream, 4).unwrap();
    alone.all_reduce_in_place(&mut memory.slice_mut::<f32>(..1).unwrap(), ReduceOp::Sum).unwrap();
    alone.close().unwrap();
}
