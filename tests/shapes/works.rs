//! All operations of a group, with checked values.

use collectives::job::Group;
use collectives::{Error, ReduceOp};

use super::Memory;

/// Calls every operation, with each kind of memory.
pub(crate) fn works<M: Memory>(group: &Group) {
    for memory in M::all(group) {
        reductions(group, &memory);
        blocks(group, &memory);
    }
    in_place(group).unwrap();
    messages(group);
    group.barrier().unwrap();
}

/// The rank of the job.
fn own(group: &Group) -> usize {
    group.ranks()[group.rank()]
}

/// Differs between neighbours.
fn value(rank: usize, element: usize) -> f32 {
    (rank + element % 7) as f32
}

fn values(rank: usize, len: usize) -> Vec<f32> {
    (0..len).map(|element| value(rank, element)).collect()
}

#[track_caller]
fn assert_mean(group: &Group, found: &[f32], len: usize) {
    let mean = group.ranks().iter().sum::<usize>() as f32 / group.size() as f32;
    assert_eq!(found.len(), len);
    for (element, &found) in found.iter().enumerate() {
        let expected = mean + value(0, element);
        assert!((found - expected).abs() < 1e-5, "{group:?}, element {element}: {found}, not {expected}");
    }
}

fn reductions<M: Memory>(group: &Group, memory: &M) {
    let gradients = memory.upload(&values(own(group), 100_003));
    let reduced = memory.finish(group.all_reduce(gradients, ReduceOp::Avg)).unwrap();
    assert_mean(group, &memory.download(&reduced), 100_003);

    let lens = [3, 1000, 17];
    let list = lens.map(|len| memory.upload(&values(own(group), len)));
    let list = memory.finish(group.all_reduce_list(list.into(), ReduceOp::Avg)).unwrap();
    for (buffer, len) in list.iter().zip(lens) {
        assert_mean(group, &memory.download(buffer), len);
    }

    let ranks = || group.ranks().iter().map(|&rank| rank as i64 - 1);
    for (op, expected) in [
        (ReduceOp::Sum, ranks().sum()),
        (ReduceOp::Prod, ranks().product()),
        (ReduceOp::Max, ranks().max().unwrap()),
        (ReduceOp::Min, ranks().min().unwrap()),
    ] {
        let reduced = group.all_reduce(memory.upload(&[own(group) as i64 - 1; 5]), op);
        assert_eq!(memory.download(&memory.finish(reduced).unwrap()), [expected; 5], "{op}");
    }
}

/// Operations on one block for each rank.
fn blocks<M: Memory>(group: &Group, memory: &M) {
    let (rank, size) = (group.rank(), group.size());
    let block = |rank: usize| [10 * rank as i32, 10 * rank as i32 + 1];
    let expected: Vec<_> = group.ranks().iter().flat_map(|&rank| block(rank)).collect();
    let gathered = group.all_gather(memory.upload(&block(own(group))), memory.upload(&vec![0; 2 * size]));
    let (_, whole) = memory.finish(gathered).unwrap();
    assert_eq!(memory.download(&whole), expected);

    let scattered = group.reduce_scatter(memory.upload(&expected), memory.upload(&[0; 2]), ReduceOp::Sum);
    let (_, part) = memory.finish(scattered).unwrap();
    let sum = |rank| block(rank).map(|value| size as i32 * value);
    assert_eq!(memory.download(&part), sum(own(group)));

    for root in [size - 1, 0] {
        let root_value = group.broadcast(memory.upload(&block(own(group))), root);
        assert_eq!(
            memory.download(&memory.finish(root_value).unwrap()),
            block(group.ranks()[root]),
            "{rank}"
        );
    }
}

/// Operations on host memory.
fn in_place(group: &Group) -> Result<(), Error> {
    let mut values = vec![own(group) as f64; 1001];
    group.all_reduce_in_place(&mut values, ReduceOp::Sum)?;
    assert_eq!(values, vec![group.ranks().iter().sum::<usize>() as f64; 1001]);
    let mut values = [own(group) as u8; 5];
    group.broadcast_in_place(&mut values, group.size() - 1)?;
    assert_eq!(values, [group.ranks()[group.size() - 1] as u8; 5]);
    Ok(())
}

/// Messages of different lengths, of which one is empty.
fn messages(group: &Group) {
    let message = |rank: usize| vec![rank as u8 + 1; 3 * rank];
    let expected = || group.ranks().iter().map(|&rank| message(rank)).collect::<Vec<_>>();
    assert_eq!(group.all_gather_bytes(&message(own(group))).unwrap(), expected());
    assert_eq!(group.all_gather_bytes(&[]).unwrap(), vec![Vec::<u8>::new(); group.size()]);
}
