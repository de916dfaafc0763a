//! Comparison of the operations of several ranks in one group.

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    CallConfig, Collectives, Communicator, Config, Error, Graph, Memory, Signal, Split, WindowKind, group,
    windows,
};

use crate::fake::Fake;

/// Ranks of one communicator, each on a device of its own, with 64 bytes each.
fn ranks<const N: usize>(fake: &Fake) -> ([Communicator; N], [Memory; N]) {
    let streams: [_; N] = std::array::from_fn(|device| fake.stream(device));
    let ranks = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    let memory = streams.each_ref().map(|stream| fake.memory(stream, 64));
    (ranks.try_into().unwrap(), memory)
}

#[track_caller]
fn disagree(result: Result<(), Error>, wanted: &str) {
    let text = result.unwrap_err().to_string();
    let (_, reason) = text.split_once("the ranks of a communicator do not agree: ").unwrap();
    assert_eq!(reason, wanted);
}

#[test]
fn collectives_are_compared_in_their_order() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<2>(&fake);
    let in_order = |orders: [[usize; 2]; 2], memory: &mut [Memory; 2]| {
        let mut buffers = memory.each_mut().map(|memory| {
            let (first, second) = memory.slice_mut::<f32>(..).unwrap().split_at_mut(8).unwrap();
            [first, second]
        });
        let mut views = Vec::new();
        for (buffers, lengths) in buffers.iter_mut().zip(orders) {
            let [first, second] = buffers;
            views.push((first.slice_mut(..lengths[0])?, second.slice_mut(..lengths[1])?));
        }
        group(|group| {
            for (rank, (first, second)) in ranks.iter().zip(&mut views) {
                group.on(rank).all_reduce_in_place(first, Sum)?;
                group.on(rank).broadcast_in_place(second, 0)?;
            }
            Ok(())
        })
    };
    in_order([[1, 2], [1, 2]], &mut memory).unwrap();
    disagree(
        in_order([[1, 2], [1, 3]], &mut memory),
        "rank 0 calls ncclBroadcast of 2 float with root 0, rank 1 ncclBroadcast of 3 float with root 0",
    );
}

/// Reduces floats from an offset on, on each rank from its own.
fn reduce_at(ranks: &[Communicator; 2], memory: &mut [Memory; 2], offsets: [usize; 2]) -> Result<(), Error> {
    let [first, second] = memory;
    let mut one = first.slice_mut::<f32>(offsets[0]..offsets[0] + 2)?;
    let mut two = second.slice_mut::<f32>(offsets[1]..offsets[1] + 2)?;
    group(|group| {
        group.on(&ranks[0]).all_reduce_in_place(&mut one, Sum)?;
        group.on(&ranks[1]).all_reduce_in_place(&mut two, Sum)
    })
}

/// NCCL accesses the windows of other ranks at a rank's own offset.
#[test]
fn places_in_symmetric_windows_are_compared() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<2>(&fake);
    let make = |memory: &[Memory; 2], kind| windows(ranks.iter().zip(memory), kind);
    reduce_at(&ranks, &mut memory, [0, 2]).unwrap();
    let made = make(&memory, WindowKind::Plain).unwrap();
    reduce_at(&ranks, &mut memory, [0, 2]).unwrap();
    drop(made);
    let made = make(&memory, WindowKind::Symmetric).unwrap();
    reduce_at(&ranks, &mut memory, [2, 2]).unwrap();
    fake.log();
    disagree(
        reduce_at(&ranks, &mut memory, [0, 2]),
        "the buffer of rank 0 is at byte 0 of symmetric window 1, the buffer of rank 1 at byte 8 of \
         symmetric window 1",
    );
    let graph = Graph::capture(|capture| {
        let [first, second] = &mut memory;
        let (mut one, mut two) = (first.slice_mut::<f32>(..2)?, second.slice_mut::<f32>(2..4)?);
        capture.group(|capture| {
            capture.on(&ranks[0]).all_reduce_in_place(&mut one, Sum)?;
            capture.on(&ranks[1]).all_reduce_in_place(&mut two, Sum)
        })
    });
    disagree(
        graph.map(drop),
        "the buffer of rank 0 is at byte 0 of symmetric window 1, the buffer of rank 1 at byte 8 of \
         symmetric window 1",
    );
    // Equal offsets of two windows.
    let mut others = [&ranks[0], &ranks[1]].map(|rank| fake.memory(rank.stream(), 64));
    let more = make(&others, WindowKind::Symmetric).unwrap();
    std::mem::swap(&mut others[1], &mut memory[1]);
    disagree(
        reduce_at(&ranks, &mut others, [0, 0]),
        "the buffer of rank 0 is at byte 0 of symmetric window 2, the buffer of rank 1 at byte 0 of \
         symmetric window 1",
    );
    drop((made, more));
    reduce_at(&ranks, &mut others, [0, 2]).unwrap();
}

#[test]
fn windows_of_different_sizes_are_refused() {
    let fake = Fake::new();
    let (ranks, [first, _]) = ranks::<2>(&fake);
    let smaller = fake.memory(ranks[1].stream(), 32);
    let made = windows(ranks.iter().zip([&first, &smaller]), WindowKind::Symmetric);
    disagree(made.map(drop), "a window of 64 bytes and one of 32");
    // Two of each rank.
    let other = fake.memory(ranks[0].stream(), 32);
    let second = fake.memory(ranks[1].stream(), 64);
    let all = [(&ranks[0], &first), (&ranks[0], &other), (&ranks[1], &second), (&ranks[1], &smaller)];
    let made = windows(all, WindowKind::Symmetric).unwrap();
    assert_eq!(made.len(), 4);
    let reason = "ncclCommWindowRegister: the memory is in another symmetric window of the communicator";
    let again = ranks[0].window(&first, WindowKind::Symmetric).map(drop).unwrap_err();
    assert_eq!(again.to_string(), reason);
    // Within one call, too.
    let (part, whole) = (other.slice::<f32>(..2).unwrap(), other.slice::<f32>(..).unwrap());
    drop(made);
    let both = windows([(&ranks[0], &part), (&ranks[0], &whole)], WindowKind::Symmetric);
    assert_eq!(both.map(drop).unwrap_err().to_string(), reason);
    let made = windows([(&ranks[0], &part), (&ranks[0], &whole)], WindowKind::Plain).unwrap();
    drop(made);
    ranks[0].window(&first, WindowKind::Symmetric).unwrap();
}

/// A rank's own part is at an offset of its own.
#[test]
fn parts_in_symmetric_windows_are_in_place() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<2>(&fake);
    let _windows = windows(ranks.iter().zip(&memory), WindowKind::Symmetric).unwrap();
    let [mut first, mut second] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..8).unwrap());
    group(|group| {
        group.on(&ranks[0]).all_gather_in_place(&mut first)?;
        group.on(&ranks[1]).all_gather_in_place(&mut second)
    })
    .unwrap();
    group(|group| {
        group.on(&ranks[0]).reduce_scatter_in_place(&mut first, Sum)?;
        group.on(&ranks[1]).reduce_scatter_in_place(&mut second, Sum)
    })
    .unwrap();
    group(|group| {
        group.on(&ranks[0]).gather_in_place(&mut first, 0)?;
        group.on(&ranks[1]).gather_in_place(&mut second, 0)
    })
    .unwrap();
}

/// With a root, ranks may pass different buffers.
#[test]
fn registered_buffers_of_all_ranks_or_of_none() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<2>(&fake);
    let registration = ranks[0].register(&memory[0]).unwrap();
    let wanted = "the buffer of rank 0 is registered, the buffer of rank 1 not registered";
    disagree(reduce_at(&ranks, &mut memory, [0, 0]), wanted);
    let other = fake.memory(ranks[0].stream(), 64);
    let [first, second] = &mut memory;
    let other = other.slice::<f32>(..2).unwrap();
    let mut first = first.slice_mut::<f32>(..2).unwrap();
    let mut second = second.slice_mut::<f32>(..2).unwrap();
    group(|group| {
        group.on(&ranks[0]).reduce(&other, Some(&mut first), Sum, 0)?;
        group.on(&ranks[1]).reduce_in_place(&mut second, Sum, 0)
    })
    .unwrap();
    drop(registration);
    reduce_at(&ranks, &mut memory, [0, 0]).unwrap();
}

/// NCCL sorts the collectives of a group by size.
#[test]
fn groups_of_collectives_are_compared() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<2>(&fake);
    let wanted = "rank 0 calls 2 collectives in a group, rank 1 1";
    let mut halves =
        memory.each_mut().map(|memory| memory.slice_mut::<f32>(..).unwrap().split_at_mut(8).unwrap());
    let [(first, second), (third, fourth)] = &mut halves;
    let grouped = group(|group| {
        group.on(&ranks[0]).all_reduce_in_place(first, Sum)?;
        group.on(&ranks[0]).all_reduce_in_place(second, Sum)?;
        group.on(&ranks[1]).all_reduce_in_place(third, Sum)
    });
    disagree(grouped, wanted);
    // A rank of which nothing is in the group is elsewhere.
    group(|group| {
        group.on(&ranks[0]).all_reduce_in_place(first, Sum)?;
        group.on(&ranks[0]).all_reduce_in_place(second, Sum)?;
        group.on(&ranks[1]).send(&*third, 1)?;
        group.on(&ranks[1]).recv(fourth, 1)
    })
    .unwrap();
    let mut capture = |grouped: [bool; 2]| {
        let graph = Graph::capture(|capture| {
            let mut halves =
                memory.each_mut().map(|memory| memory.slice_mut::<f32>(..).unwrap().split_at_mut(8).unwrap());
            for ((rank, (first, second)), grouped) in ranks.iter().zip(&mut halves).zip(grouped) {
                let mut both = |capture: &collectives::nccl::Capture| {
                    capture.on(rank).all_reduce_in_place(first, Sum)?;
                    capture.on(rank).all_reduce_in_place(second, Sum)
                };
                if grouped { capture.group(both)? } else { both(capture)? }
            }
            Ok::<_, Error>(())
        });
        graph.map(drop)
    };
    capture([false, false]).unwrap();
    capture([true, true]).unwrap();
    disagree(capture([true, false]), wanted);
}

#[test]
fn settings_of_calls_are_compared() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<2>(&fake);
    let [first, second] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());
    let (mut first, mut second) = (first, second);
    let mut call = |one: &CallConfig, two: &CallConfig| {
        group(|group| {
            group.on(&ranks[0]).with(one).all_reduce_in_place(&mut first, Sum)?;
            group.on(&ranks[1]).with(two).all_reduce_in_place(&mut second, Sum)
        })
    };
    let (ring, tree) = (CallConfig::new().algorithm("ring"), CallConfig::new().algorithm("tree"));
    call(&ring, &ring.clone()).unwrap();
    disagree(call(&ring, &tree), "ranks 0 and 1 call ncclAllReduce with different settings");
    disagree(call(&ring, &CallConfig::new()), "ranks 0 and 1 call ncclAllReduce with different settings");
    // A profiler's tag is a rank's own.
    call(&CallConfig::new().profiler_tag(1), &CallConfig::new().profiler_tag(2)).unwrap();
}

#[test]
fn parts_that_are_exchanged_are_compared() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<2>(&fake);
    // To rank 0, to rank 1; from rank 0, from rank 1.
    let exchange = |parts: [[[std::ops::Range<usize>; 2]; 2]; 2], memory: &mut [Memory; 2]| {
        let mut halves =
            memory.each_mut().map(|memory| memory.slice_mut::<f32>(..).unwrap().split_at_mut(8).unwrap());
        group(|group| {
            for ((rank, (send, receive)), parts) in ranks.iter().zip(&mut halves).zip(parts) {
                group.on(rank).all_to_all_v(&*send, &parts[0], receive, &parts[1])?;
            }
            Ok(())
        })
    };
    exchange([[[0..1, 1..3], [0..1, 1..2]], [[0..1, 1..4], [0..2, 2..5]]], &mut memory).unwrap();
    disagree(
        exchange([[[0..1, 1..3], [0..1, 1..2]], [[0..1, 1..4], [0..1, 2..5]]], &mut memory),
        "rank 0 sends 2 float to rank 1, but rank 1 receives 1 float",
    );
}

/// One rank's signal is another's wait.
#[test]
fn one_sided_operations_are_not_compared() {
    let fake = Fake::new();
    let (ranks, _memory) = ranks::<2>(&fake);
    fake.log();
    group(|group| {
        group.on(&ranks[0]).signal(Signal::new(1))?;
        group.on(&ranks[1]).wait_signals(&[(Signal::new(0), 1)])
    })
    .unwrap();
    assert_eq!(fake.log().len(), 2);
}

#[test]
fn messages_from_and_to_ranks_that_are_elsewhere_are_not_compared() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<3>(&fake);
    let [first, second, third] = &mut memory;
    let (two, mut three) = (first.slice::<f32>(..2).unwrap(), second.slice_mut::<f32>(..3).unwrap());
    let mut four = third.slice_mut::<f32>(..4).unwrap();
    fake.log();
    group(|group| {
        group.on(&ranks[0]).send(&two, 2)?;
        group.on(&ranks[1]).recv(&mut three, 2)
    })
    .unwrap();
    assert_eq!(fake.log().len(), 2);
    // Nor with those of another communicator of this rank.
    let others = Communicator::split_all(ranks.iter().map(|rank| (rank, Some(Split::color(0))))).unwrap();
    let others: Vec<_> = others.into_iter().flatten().collect();
    fake.log();
    group(|group| {
        group.on(&ranks[0]).send(&two, 2)?;
        group.on(&ranks[1]).recv(&mut three, 2)?;
        group.on(&others[2]).recv(&mut four, 0)
    })
    .unwrap();
    assert_eq!(fake.log().len(), 3);
}

/// Parts of one color that are created one after the other are two communicators.
#[test]
fn communicators_that_are_made_alike_are_not_compared() {
    let fake = Fake::new();
    let (ranks, mut memory) = ranks::<2>(&fake);
    let parts = [0; 2].map(|_| {
        let parts = Communicator::split_all(ranks.iter().map(|rank| (rank, Some(Split::color(0)))));
        parts.unwrap().into_iter().flatten().collect::<Vec<_>>()
    });
    let [first, second] = memory.each_mut();
    let (mut four, mut five) = (first.slice_mut::<f32>(..4).unwrap(), second.slice_mut::<f32>(..5).unwrap());
    fake.log();
    group(|group| {
        group.on(&parts[0][0]).broadcast_in_place(&mut four, 0)?;
        group.on(&parts[1][1]).broadcast_in_place(&mut five, 0)
    })
    .unwrap();
    assert_eq!(fake.log().len(), 2);
}
