//! Data that the ranks of a communicator exchange.

use collectives::half::bf16;
use collectives::nccl::{Collectives, Communicator, Config, Error, group};
use collectives::{Element, ReduceOp};
use cudarc::driver::{CudaEvent, CudaSlice, DeviceRepr, ValidAsZeroBits};

use crate::fake::{Fake, Knob, aborts};

const RANKS: usize = 3;

/// Ranks of one communicator, each on a device of its own.
fn party(fake: &Fake, value: i32) -> Vec<Communicator> {
    fake.set(Knob::MovesData, value);
    let streams: [_; RANKS] = std::array::from_fn(|device| fake.stream(device));
    Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap()
}

/// The outputs of `len` elements of an operation that each rank calls with its input.
fn exchanged<T: Element + DeviceRepr + ValidAsZeroBits>(
    ranks: &[Communicator],
    len: usize,
    input: impl Fn(usize) -> Vec<T>,
    call: impl Fn(&Communicator, &CudaSlice<T>, &mut CudaSlice<T>) -> Result<(), Error>,
) -> Vec<Vec<T>> {
    let mut outputs = Vec::new();
    for rank in ranks {
        let stream = rank.stream();
        let input = stream.clone_htod(&input(rank.rank())).unwrap();
        let mut output = stream.alloc_zeros(len).unwrap();
        call(rank, &input, &mut output).unwrap();
        outputs.push(output);
    }
    ranks.iter().zip(&outputs).map(|(rank, output)| rank.stream().clone_dtoh(output).unwrap()).collect()
}

#[test]
fn each_collective_moves_its_data() {
    let fake = Fake::new();
    let ranks = party(&fake, aborts::HANG);
    let at = |rank: &Communicator, root| rank.rank() == root;
    let one = |rank: usize| vec![rank as i32 + 1];
    let all = |rank: usize| (0..RANKS).map(|block| (10 * rank + block) as i32).collect::<Vec<_>>();
    let sum = exchanged(&ranks, 1, one, |rank, from, to| rank.all_reduce(from, to, ReduceOp::Sum));
    assert_eq!(sum, [[6], [6], [6]]);
    let sum = exchanged(&ranks, 1, one, |rank, from, to| {
        rank.reduce(from, at(rank, 1).then_some(to), ReduceOp::Sum, 1)
    });
    assert_eq!(sum, [[0], [6], [0]]);
    let blocks = exchanged(&ranks, 1, all, |rank, from, to| rank.reduce_scatter(from, to, ReduceOp::Max));
    assert_eq!(blocks, [[20], [21], [22]]);
    let root = exchanged(&ranks, 1, one, |rank, from, to| rank.broadcast(at(rank, 2).then_some(from), to, 2));
    assert_eq!(root, [[3], [3], [3]]);
    let gathered = exchanged(&ranks, 3, one, |rank, from, to| rank.all_gather(from, to));
    assert_eq!(gathered, [[1, 2, 3]; 3]);
    let exchanged_blocks = exchanged(&ranks, 3, all, |rank, from, to| rank.all_to_all(from, to));
    assert_eq!(exchanged_blocks, [[0, 10, 20], [1, 11, 21], [2, 12, 22]]);
    let gathered =
        exchanged(&ranks, 3, one, |rank, from, to| rank.gather(from, at(rank, 0).then_some(to), 0));
    assert_eq!(gathered, [[1, 2, 3], [0; 3], [0; 3]]);
    let scattered =
        exchanged(&ranks, 1, all, |rank, from, to| rank.scatter(at(rank, 1).then_some(from), to, 1));
    assert_eq!(scattered, [[10], [11], [12]]);
    let next = exchanged(&ranks, 1, one, |rank, from, to| {
        group(|group| {
            group.on(rank).send(from, (rank.rank() + 1) % RANKS)?;
            group.on(rank).recv(to, (rank.rank() + RANKS - 1) % RANKS)
        })
    });
    assert_eq!(next, [[3], [1], [2]]);
}

#[test]
fn operators_reduce_each_type() {
    let fake = Fake::new();
    let ranks = party(&fake, aborts::HANG);
    macro_rules! reduce {
        ($($type:ty),+) => {$(
            let sum_and_product = [(ReduceOp::Sum, 9_i8), (ReduceOp::Prod, 24)];
            let others = [(ReduceOp::Max, 4), (ReduceOp::Min, 2), (ReduceOp::Avg, 3)];
            for (op, expected) in sum_and_product.into_iter().chain(others) {
                let value = |value: i8| <$type>::from(value as u8);
                let input = |rank: usize| vec![value(rank as i8 + 2); 5];
                let found = exchanged(&ranks, 5, input, |rank, from, to| rank.all_reduce(from, to, op));
                assert_eq!(found, [[value(expected); 5]; RANKS], "{op} of {}", stringify!($type));
            }
        )+};
    }
    reduce!(u8, i32, u32, i64, u64, f32, f64, bf16);
    let input = |rank: usize| vec![-(rank as i8)];
    let found = exchanged(&ranks, 1, input, |rank, from, to| rank.all_reduce(from, to, ReduceOp::Sum));
    assert_eq!(found, [[-3]; RANKS]);
}

fn is_complete(rank: &Communicator) -> bool {
    is_done(&rank.stream().record_event(None).unwrap())
}

/// The first query always finds the work under way.
fn is_done(event: &CudaEvent) -> bool {
    event.is_complete() || event.is_complete()
}

#[test]
fn streams_wait_for_all_ranks() {
    let fake = Fake::new();
    let ranks = party(&fake, aborts::HANG);
    let others: Vec<_> = ranks.iter().map(|rank| rank.stream().context().new_stream().unwrap()).collect();
    let mut copies = Vec::new();
    for (index, (rank, other)) in ranks.iter().zip(&others).enumerate() {
        let mut data = rank.stream().clone_htod(&[index as f32 + 1.0; 4]).unwrap();
        rank.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        // Copied by another stream, and overwritten afterwards.
        let copy = other.clone_dtod(&data).unwrap();
        rank.stream().memcpy_htod(&[0.0; 4], &mut data).unwrap();
        copies.push(copy);
        let last = index + 1 == RANKS;
        assert!(ranks[..=index].iter().all(|rank| is_complete(rank) == last), "{index}");
        let behind = other.record_event(None).unwrap();
        assert_eq!(is_done(&behind), last);
    }
    for (copy, other) in copies.iter().zip(&others) {
        assert_eq!(other.clone_dtoh(copy).unwrap(), [6.0; 4]);
    }
}

/// The last rank calls another operation, or is aborted.
#[test]
fn operations_that_do_not_meet_end_by_an_abort() {
    for value in [aborts::HANG, aborts::MISLEAD] {
        let fake = Fake::new();
        let ranks = party(&fake, value);
        let mut memory: Vec<_> =
            ranks.iter().map(|rank| rank.stream().clone_htod(&[1.0_f32; 4]).unwrap()).collect();
        let (last, others) = ranks.split_last().unwrap();
        for (rank, data) in others.iter().zip(&mut memory) {
            rank.all_reduce_in_place(data, ReduceOp::Sum).unwrap();
        }
        last.broadcast_in_place(&mut memory[2], 0).unwrap();
        assert!(!ranks.iter().any(is_complete));
        last.abort_handle().abort().unwrap();
        assert!(is_complete(last));
        for (rank, data) in others.iter().zip(&memory) {
            assert_eq!(is_complete(rank), value == aborts::MISLEAD);
            rank.abort_handle().abort().unwrap();
            assert!(is_complete(rank));
            assert_ne!(rank.stream().clone_dtoh(data).unwrap(), [3.0; 4]);
        }
    }
}
