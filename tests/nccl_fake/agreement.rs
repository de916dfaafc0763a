//! Comparison of the operations of several ranks in one group.

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Config, Error, Memory, Signal, Split, group};

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
    let (_, reason) = text.split_once("the ranks of a communicator do not ask for the same: ").unwrap();
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
        "rank 0 sends 2 float to rank 1, which receives 1 float from it",
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
