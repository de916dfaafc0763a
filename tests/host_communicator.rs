//! Communicators over host buffers on the machine's libfabric: ranks that are threads.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use collectives::fabric::{Algorithm, Collective, Communicator, Error, Options};
use collectives::{Element, ReduceOp, world};
use float8::{F8E4M3, F8E5M2};

mod host;

use host::{on_every_rank, on_hosts, over, serves};

fn check(communicator: &mut Communicator, count: usize) {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let value = |rank: usize, index: usize| (rank * 1000 + index % 997) as i32;
    let mine: Vec<i32> = (0..count).map(|index| value(rank, index)).collect();
    let mut sums = vec![0; count];
    communicator.all_reduce(&mine, &mut sums, ReduceOp::Sum).unwrap();
    let expected = |index: usize| (0..ranks).map(|rank| value(rank, index)).sum::<i32>();
    assert!((0..count).all(|index| sums[index] == expected(index)), "all_reduce of {count}");
    let mut all = vec![0; count * ranks];
    communicator.all_gather(&mine, &mut all).unwrap();
    assert!(
        (0..all.len()).all(|index| all[index] == value(index / count, index % count)),
        "gather of {count}"
    );
    communicator.barrier().unwrap();
}

/// All collectives but those of `check`, with every root, and messages between two ranks.
fn check_others(communicator: &mut Communicator, count: usize) {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let value = |rank: usize, index: usize| (rank * 1000 + index % 997) as i32;
    let vector =
        |rank: usize, count: usize| -> Vec<i32> { (0..count).map(|index| value(rank, index)).collect() };
    let sum = |index: usize| (0..ranks).map(|rank| value(rank, index)).sum::<i32>();
    let (mine, whole) = (vector(rank, count), vector(rank, ranks * count));
    let own = rank * count..(rank + 1) * count;
    let sums: Vec<i32> = (0..ranks * count).map(sum).collect();

    let mut part = vec![0; count];
    communicator.reduce_scatter(&whole, &mut part, ReduceOp::Sum).unwrap();
    assert!(part == sums[own.clone()], "reduce_scatter of {count}");
    let mut data = whole.clone();
    communicator.reduce_scatter_in_place(&mut data, ReduceOp::Sum).unwrap();
    assert!(data[own.clone()] == sums[own.clone()], "reduce_scatter of {count} in place");

    let exchanged: Vec<i32> =
        (0..ranks * count).map(|index| value(index / count, rank * count + index % count)).collect();
    let mut data = vec![0; ranks * count];
    communicator.all_to_all(&whole, &mut data).unwrap();
    assert!(data == exchanged, "all_to_all of {count}");
    let mut data = whole.clone();
    communicator.all_to_all_in_place(&mut data).unwrap();
    assert!(data == exchanged, "all_to_all of {count} in place");

    // Rank r sends each rank r times as much, and rank 0 nothing.
    let mut start = 0;
    let parts: Vec<_> = (0..ranks)
        .map(|from| {
            let part = start..start + from * (count / ranks);
            start = part.end;
            part
        })
        .collect();
    let to: Vec<_> = (0..ranks).map(|_| 0..rank * (count / ranks)).collect();
    let mut data = vec![-1; start];
    communicator.all_to_all_v(&whole, &to, &mut data, &parts).unwrap();
    for (from, part) in parts.iter().enumerate() {
        assert!(data[part.clone()] == vector(from, part.len()), "all_to_all_v of {count} from rank {from}");
    }

    for root in 0..ranks {
        let is_root = rank == root;
        let mut data = vec![0; count];
        communicator.broadcast(is_root.then_some(&mine[..]), &mut data, root).unwrap();
        assert!(data == vector(root, count), "broadcast of {count} from {root}");
        communicator.reduce(&mine, is_root.then_some(&mut data[..]), ReduceOp::Sum, root).unwrap();
        let expected = if is_root { &sums[..count] } else { &vector(root, count)[..] };
        assert!(data == expected, "reduce of {count} to {root}");
        let mut all = vec![0; ranks * count];
        communicator.gather(&mine, is_root.then_some(&mut all[..]), root).unwrap();
        let gathered = |index: usize| if is_root { value(index / count, index % count) } else { 0 };
        assert!((0..all.len()).all(|index| all[index] == gathered(index)), "gather of {count} to {root}");
        communicator.scatter(is_root.then_some(&whole[..]), &mut data, root).unwrap();
        assert!(data == vector(root, ranks * count)[own.clone()], "scatter of {count} from {root}");
    }

    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let mut data = vec![0; count];
    communicator.exchange(&mine, next, &mut data, previous).unwrap();
    assert!(data == vector(previous, count), "exchange of {count}");
    communicator.exchange_in_place(&mut data, previous, next).unwrap();
    assert!(data == mine, "exchange of {count} in place");
    if rank > 0 {
        communicator.recv(&mut data, rank - 1).unwrap();
        assert!(data == vector(rank - 1, count), "recv of {count}");
    }
    if next > rank {
        communicator.send(&mine, next).unwrap();
    }
}

#[test]
fn every_other_collective_over_every_provider() {
    for provider in ["shm", "tcp"] {
        for ranks in 1..=4 {
            on_every_rank(ranks, &over(provider), |communicator| {
                for count in [1, 31, 1000, 20_000, 300_001] {
                    check_others(communicator, count);
                }
            });
        }
    }
}

#[test]
fn every_algorithm_of_every_other_collective_over_every_provider() {
    for provider in ["shm", "tcp"] {
        for ranks in [3, 4] {
            for algorithm in Algorithm::ALL {
                // These serve none of them.
                if matches!(algorithm, Algorithm::RecursiveDoubling | Algorithm::Rabenseifner) {
                    continue;
                }
                let mut options = over(provider);
                let elsewhere = [Collective::AllReduce, Collective::AllGather];
                for collective in Collective::ALL.into_iter().filter(|each| !elsewhere.contains(each)) {
                    if serves(algorithm, collective, provider, ranks) {
                        options.set_algorithm(collective, algorithm);
                    }
                }
                options.segment = Some(10_000);
                on_every_rank(ranks, &options, |communicator| {
                    check_others(communicator, 7);
                    check_others(communicator, 30_001);
                });
            }
        }
    }
}

#[test]
fn every_size_over_every_provider() {
    for provider in ["shm", "tcp"] {
        for ranks in 1..=4 {
            on_every_rank(ranks, &over(provider), |communicator| {
                for count in [1, 2, 31, 1000, 4095, 5000, 20_000, 100_003, 1 << 20] {
                    check(communicator, count);
                }
            });
        }
    }
}

#[test]
fn every_algorithm_over_every_provider() {
    for provider in ["shm", "tcp"] {
        for ranks in [2, 3] {
            for algorithm in Algorithm::ALL {
                let mut options = over(provider);
                for collective in [Collective::AllReduce, Collective::AllGather] {
                    if serves(algorithm, collective, provider, ranks) {
                        options.set_algorithm(collective, algorithm);
                    }
                }
                options.segment = Some(10_000);
                on_every_rank(ranks, &options, |communicator| {
                    check(communicator, 7);
                    check(communicator, 30_001);
                });
            }
        }
    }
}

/// Ranks 0, 1 and 2 have, in turn over the elements: numbers whose sums are exact, the largest value, a NaN
/// on rank 1.
fn check_eight_bits<T: Element>(
    communicator: &mut Communicator,
    of_bits: fn(u8) -> T,
    bits: fn(&T) -> u8,
    inputs: [[u8; 3]; 3],
    expected: &[(ReduceOp, [u8; 3])],
) {
    let rank = communicator.rank();
    for count in [1, 2, 3, 1000, 30_001] {
        let vector =
            |values: [u8; 3]| -> Vec<T> { (0..count).map(|index| of_bits(values[index % 3])).collect() };
        // The sign of a NaN is not specified.
        let found = |values: &[T]| -> Vec<u8> {
            values.iter().map(bits).map(|bits| if bits == 0xff { 0x7f } else { bits }).collect()
        };
        let mine = vector(inputs[rank]);
        for &(op, expected) in expected {
            let mut reduced = vec![T::default(); count];
            communicator.all_reduce(&mine, &mut reduced, op).unwrap();
            let expected: Vec<u8> = (0..count).map(|index| expected[index % 3]).collect();
            assert!(found(&reduced) == expected, "{} {op} of {count}", T::DATA_TYPE);
            let mut reduced = mine.clone();
            communicator.all_reduce_in_place(&mut reduced, op).unwrap();
            assert!(found(&reduced) == expected, "{} {op} of {count} in place", T::DATA_TYPE);
        }
        let mut all = vec![T::default(); 3 * count];
        communicator.all_gather(&mine, &mut all).unwrap();
        let expected: Vec<u8> = inputs.into_iter().flat_map(|values| found(&vector(values))).collect();
        assert!(found(&all) == expected, "{} gather of {count}", T::DATA_TYPE);
    }
}

#[test]
fn floats_of_eight_bits_over_every_provider() {
    for provider in ["shm", "tcp"] {
        on_every_rank(3, &over(provider), |communicator| {
            // 1, 2 and 3; 448, the largest value; 1, NaN and 1.
            let inputs = [[0x38, 0x7e, 0x38], [0x40, 0x7e, 0x7f], [0x44, 0x7e, 0x38]];
            let expected = [
                (ReduceOp::Sum, [0x4c, 0x7e, 0x7f]),
                (ReduceOp::Prod, [0x4c, 0x7e, 0x7f]),
                (ReduceOp::Max, [0x44, 0x7e, 0x7f]),
                (ReduceOp::Min, [0x38, 0x7e, 0x7f]),
                // 448 is the sum, and the nearest to a third of it is 144 or 160: 149.33 is nearer to 144.
                (ReduceOp::Avg, [0x40, 0x71, 0x7f]),
            ];
            check_eight_bits(communicator, F8E4M3::from_bits, F8E4M3::to_bits, inputs, &expected);
            // 1, 2 and 3; infinities, which become 57344; 1, NaN and 1.
            let inputs = [[0x3c, 0x7c, 0x3c], [0x40, 0x7c, 0x7f], [0x42, 0x7c, 0x3c]];
            let expected = [
                (ReduceOp::Sum, [0x46, 0x7b, 0x7f]),
                (ReduceOp::Prod, [0x46, 0x7b, 0x7f]),
                (ReduceOp::Max, [0x42, 0x7b, 0x7f]),
                (ReduceOp::Min, [0x3c, 0x7b, 0x7f]),
                // A third of 57344 is 19114.67, between 16384 and 20480.
                (ReduceOp::Avg, [0x40, 0x75, 0x7f]),
            ];
            check_eight_bits(communicator, F8E5M2::from_bits, F8E5M2::to_bits, inputs, &expected);
        });
    }
}

#[test]
fn ranks_that_disagree_about_the_length_get_an_error() {
    for provider in ["shm", "tcp"] {
        let handles = world::threads(world::single(), 2).unwrap();
        thread::scope(|scope| {
            for (rank, handle) in handles.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut communicator = Communicator::new(handle, &over(provider)).unwrap();
                    let mut data = vec![1_u8; 100 + rank];
                    let error = communicator.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap_err();
                    assert!(!error.to_string().is_empty());
                    let error = communicator.barrier().unwrap_err();
                    assert!(matches!(error, Error::Closed { operation: "barrier" }), "{error}");
                });
            }
        });
    }
}

/// A mismatch that the root cannot see is reported by the next operation.
#[test]
fn ranks_that_disagree_about_a_broadcast_get_an_error() {
    for provider in ["shm", "tcp"] {
        let handles = world::threads(world::single(), 3).unwrap();
        thread::scope(|scope| {
            for (rank, handle) in handles.into_iter().enumerate() {
                scope.spawn(move || {
                    let mut communicator = Communicator::new(handle, &over(provider)).unwrap();
                    let mut memory = [rank as u8; 200];
                    let length = if rank == 1 { 90 } else { 100 };
                    let result = communicator.broadcast_in_place(&mut memory[..length], 0);
                    if rank == 1 {
                        let error = result.as_ref().unwrap_err().to_string();
                        let told = [
                            "rank 1 called broadcast of 90 uint8, root 0",
                            "called broadcast of 100 uint8, root 0",
                        ];
                        assert!(told.iter().all(|told| error.contains(told)), "{provider}: {error}");
                    }
                    let error = result.and_then(|()| communicator.barrier()).unwrap_err().to_string();
                    assert!(error.contains("rank 1"), "{provider}, rank {rank}: {error}");
                    assert!(memory[length..].iter().all(|&byte| usize::from(byte) == rank), "{provider}");
                });
            }
        });
    }
}

/// The error of each rank's operation, with a buffer length of its own; a rank leaves when its operation has
/// failed.
fn errors(provider: &'static str, lengths: &[usize]) -> Vec<Error> {
    let (sender, receiver) = mpsc::channel();
    for (handle, &length) in world::threads(world::single(), lengths.len()).unwrap().into_iter().zip(lengths)
    {
        let sender = sender.clone();
        thread::spawn(move || {
            let rank = handle.rank();
            let mut communicator = Communicator::new(handle, &over(provider)).unwrap();
            let result = communicator.all_reduce_in_place(&mut vec![1_u8; length], ReduceOp::Sum);
            drop(communicator);
            sender.send((rank, result.unwrap_err())).unwrap();
        });
    }
    let mut errors: Vec<_> =
        lengths.iter().map(|_| receiver.recv_timeout(Duration::from_secs(60)).unwrap()).collect();
    errors.sort_by_key(|&(rank, _)| rank);
    errors.into_iter().map(|(_, error)| error).collect()
}

#[test]
fn no_rank_waits_for_one_that_failed() {
    let cases = [[100, 100, 101], [50, 5_000_000, 5_000_000], [100_000, 200_000, 100_000]];
    for provider in ["shm", "tcp"] {
        for lengths in &cases {
            for error in errors(provider, lengths) {
                let named = error.to_string().contains("rank ");
                assert!(named, "{provider}, {lengths:?}: {error}");
            }
        }
    }
}

#[test]
fn ranks_on_the_board_and_beside_it_do_not_wait_for_each_other() {
    let errors = errors("shm", &[100, 5_000_000]);
    assert!(matches!(errors[0], Error::Mismatch { rank: 0, peer: 1, .. }), "{}", errors[0]);
    let told =
        "rank 0 called all_reduce of 100 uint8, sum while rank 1 called all_reduce of 5000000 uint8, sum; ";
    assert!(errors[0].to_string().starts_with(told), "{}", errors[0]);
    let Error::World(world::Error::RankFailed { rank: 0, reason, .. }) = &errors[1] else {
        panic!("{}", errors[1]);
    };
    let world::Reason::Mismatch(mismatch) = reason else { panic!("{reason:?}") };
    assert_eq!(mismatch.to_string(), errors[0].to_string());
}

/// The collectives with a hierarchical algorithm.
const HIERARCHICAL: [Collective; 5] = [
    Collective::AllReduce,
    Collective::AllGather,
    Collective::ReduceScatter,
    Collective::Broadcast,
    Collective::Reduce,
];

/// Ranks that take each other for different hosts: `shm` inside a host, `tcp` between them.
#[test]
fn several_ranks_on_each_of_several_hosts() {
    for hosts in [&[0, 0, 1, 1][..], &[0, 0, 0, 1], &[0, 1, 1, 2, 0]] {
        on_hosts(hosts, &Options::default(), |communicator| {
            let description = communicator.describe();
            assert!(
                description.starts_with("shm (") && description.contains(" inside hosts; "),
                "{description}"
            );
            // Each host with its interface and address.
            let (_, between) = description.split_once(" between ").unwrap();
            assert!(description.contains(" on "), "{description}");
            let count = hosts.iter().max().unwrap() + 1;
            assert_eq!(between.matches("(fi_sockaddr_in").count(), count, "{description}");
            for collective in Collective::ALL {
                for bytes in [8, 1 << 30] {
                    let plan = communicator.plan(collective, bytes);
                    let found = plan.algorithm == Algorithm::Hierarchical;
                    assert_eq!(found, HIERARCHICAL.contains(&collective), "{collective} of {bytes}");
                }
            }
            for count in [1, 1000, 100_003] {
                check(communicator, count);
                check_others(communicator, count);
            }
        });
    }
}

#[test]
fn every_algorithm_between_hosts() {
    use Algorithm::{
        Binomial, Bruck, Direct, Pairwise, Rabenseifner, RecursiveDoubling, RecursiveHalving, Ring,
    };
    for (provider, algorithms) in [
        (None, &[Direct, RecursiveDoubling, Rabenseifner, RecursiveHalving, Pairwise][..]),
        // Over TCP alone unexpected messages block later ones, inside a host too.
        (Some("tcp"), &[Ring, Pairwise, Bruck, Binomial]),
    ] {
        for &between in algorithms {
            let mut options = Options::default();
            options.provider = provider.map(str::to_owned);
            options.between = Some(between);
            options.segment = Some(20_000);
            for collective in HIERARCHICAL {
                options.set_algorithm(collective, Algorithm::Hierarchical);
            }
            on_hosts(&[0, 1, 1, 0], &options, |communicator| {
                for count in [7, 30_001] {
                    check(communicator, count);
                    check_others(communicator, count);
                }
            });
        }
    }
}

/// Ranks on one host each, or on the same one, have no hierarchy.
#[test]
fn a_hierarchy_is_refused_where_there_is_none() {
    for hosts in [[0, 1], [0, 0]] {
        let handles = world::threads(world::single(), 2).unwrap();
        thread::scope(|scope| {
            for (handle, host) in handles.into_iter().zip(hosts) {
                scope.spawn(move || {
                    let mut options = Options::default();
                    options.host = Some(host.to_string());
                    options.set_algorithm(Collective::Broadcast, Algorithm::Hierarchical);
                    let error = Communicator::new(handle, &options).err().unwrap();
                    let refused =
                        matches!(error, Error::Algorithm { collective: Collective::Broadcast, ranks: 2, .. });
                    assert!(refused, "{error}");
                });
            }
        });
    }
}

/// More ranks than any machine of a test has processors, as threads over TCP.
#[test]
fn sixty_four_ranks_get_their_sums() {
    on_every_rank(64, &over("tcp"), |communicator| {
        let rank = communicator.rank();
        for count in [1, 5000] {
            let mine: Vec<u64> = (0..count).map(|index| ((rank + 1) * (index + 1)) as u64).collect();
            let mut sums = vec![0; count];
            communicator.all_reduce(&mine, &mut sums, ReduceOp::Sum).unwrap();
            assert!((0..count).all(|index| sums[index] == 64 * 65 / 2 * (index as u64 + 1)), "{count}");
        }
        communicator.barrier().unwrap();
    });
}

/// With cross-memory attach, a message may change when its sender has failed meanwhile.
#[test]
fn a_message_of_a_rank_that_has_failed_is_not_taken_for_what_it_sent() {
    const COUNT: usize = 1 << 20;
    let (freed, free) = mpsc::channel();
    let (received, receive) = mpsc::channel();
    let mut free = Some(free);
    for handle in world::threads(world::single(), 3).unwrap() {
        let (freed, received, free) = (freed.clone(), received.clone(), free.take_if(|_| handle.rank() == 0));
        thread::spawn(move || {
            let rank = handle.rank();
            let mut communicator = Communicator::new(handle.clone(), &over("shm")).unwrap();
            communicator.barrier().unwrap();
            match rank {
                0 => {
                    free.unwrap().recv().unwrap();
                    let mut data = vec![0_u8; COUNT];
                    let result = communicator.recv(&mut data, 1);
                    let right = data.iter().all(|&byte| byte == 1);
                    received.send((result.map_err(|error| error.to_string()), right)).unwrap();
                }
                1 => {
                    let mut data = vec![1_u8; COUNT];
                    let error = communicator.send(&data, 0).unwrap_err();
                    assert!(error.to_string().contains("out of paper"), "{error}");
                    // The buffer is this rank's again.
                    data.fill(2);
                    freed.send(()).unwrap();
                    // It lives on.
                    thread::sleep(Duration::from_secs(30));
                    drop(data);
                }
                _ => {
                    // By then the message is on its way.
                    thread::sleep(Duration::from_secs(2));
                    handle.fail("out of paper".into());
                }
            }
        });
    }
    let (result, right) = receive.recv_timeout(Duration::from_secs(60)).unwrap();
    assert!(result.is_err() || right, "it went well with other data");
    assert!(result.is_err_and(|error| error.contains("out of paper")));
}
