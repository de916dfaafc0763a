//! Unsuitable arguments, alone or together with other ranks' arguments.

use std::ops::Range;
use std::sync::Barrier;
use std::time::Duration;

use super::checks::*;
use super::*;

#[test]
fn buffers_and_ranks_that_do_not_fit_are_refused_before_anything_is_sent() {
    on_every_rank(3, 1, DEFAULTS, |rank, collectives| {
        let op = ReduceOp::Sum;
        let text = |result: Result<(), Error>| result.unwrap_err().to_string();
        assert_eq!(
            text(collectives.reduce_scatter(&[1_i32; 7], &mut [0; 2], op)),
            "reduce_scatter: the receive buffer has 2 elements and there are 3 ranks, but the send buffer \
             has 7 elements; it must have as many elements as all receive buffers together"
        );
        let multiple = "7 elements, not a multiple of the number of ranks, 3";
        for error in [
            text(collectives.reduce_scatter_in_place(&mut [1_i32; 7], op)),
            text(collectives.all_to_all(&[1_i32; 7], &mut [1; 7])),
            text(collectives.all_to_all_in_place(&mut [1_i32; 7])),
            text(collectives.gather_in_place(&mut [1_i32; 7], 0)),
            text(collectives.scatter_in_place(&mut [1_i32; 7], 0)),
        ] {
            assert!(error.contains(multiple), "{error}");
        }
        assert!(
            text(collectives.all_to_all(&[1_i32; 3], &mut [1; 6]))
                .contains("3 elements and the receive buffer 6")
        );
        // The root's own mistakes; the others have nothing to check them by.
        let mut data = [1_i32; 3];
        for error in [
            text(collectives.broadcast_from_root(None, &mut data, rank)),
            text(collectives.reduce_to_root(&[1], None, op, rank)),
            text(collectives.gather_to_root(&[1], None, rank)),
            text(collectives.scatter_from_root(None, &mut data, rank)),
        ] {
            assert!(error.contains(&format!("rank {rank} is the root and has no ")), "{error}");
        }
        for error in [
            text(collectives.broadcast_from_root(Some(&[1; 2]), &mut data, rank)),
            text(collectives.reduce_to_root(&[1; 2], Some(&mut data), op, rank)),
            text(collectives.gather_to_root(&[1; 2], Some(&mut data), rank)),
            text(collectives.scatter_from_root(Some(&[1; 2]), &mut data, rank)),
        ] {
            assert!(error.contains("buffer has 2 elements"), "{error}");
        }
        for error in [
            text(collectives.broadcast_in_place(&mut data, 3)),
            text(collectives.broadcast_from_root(Some(&[1; 3]), &mut data, 3)),
            text(collectives.reduce_to_root(&[1], None, op, 3)),
            text(collectives.reduce_in_place(&mut data, op, 3)),
            text(collectives.gather_to_root(&[1], None, 3)),
            text(collectives.gather_in_place(&mut data, 3)),
            text(collectives.scatter_from_root(None, &mut data, 3)),
            text(collectives.scatter_in_place(&mut data, 3)),
        ] {
            assert!(error.ends_with("the root is rank 3, but the ranks are 0 to 2"), "{error}");
        }
        let problem = "the peer is rank 3, but the ranks are 0 to 2";
        assert_eq!(text(collectives.send_elements(&data, 3)), format!("send: {problem}"));
        assert_eq!(text(collectives.receive_elements(&mut data, 3)), format!("recv: {problem}"));
        assert_eq!(
            text(collectives.exchange_elements(&[1; 3], (rank + 1) % 3, &mut data, 3)),
            format!("exchange: {problem}")
        );
        assert!(text(collectives.send_elements(&data, rank)).contains("itself"));
        assert!(
            text(collectives.exchange_elements(&[1; 3], rank, &mut data, (rank + 1) % 3)).contains("itself")
        );
        assert!(
            text(collectives.exchange_elements(&[1; 2], rank, &mut data, rank))
                .contains("must have the same number")
        );
        check_part_ranges(rank, collectives);

        // Nothing of all this was sent.
        let mut data = [1_i32; 3];
        collectives.reduce_in_place(&mut data, op, 1).unwrap();
        assert_eq!(data, if rank == 1 { [3; 3] } else { [1; 3] });
    });
}

fn check_part_ranges(rank: usize, collectives: Rank<'_>) {
    let text = |result: Result<(), Error>| result.unwrap_err().to_string();
    let three = |parts: [Range<usize>; 3]| parts;
    let (good, mut buffer) = (three([0..1, 1..2, 2..3]), [0_i32; 4]);
    let mut refused = |send: &[Range<usize>], receive: &[Range<usize>], problem: &str| {
        let error = text(collectives.all_to_all_v(&[1; 4], send, &mut buffer, receive));
        assert!(error.contains(problem), "{error}");
        let error = text(collectives.all_to_all_v_in_place(&mut buffer, send, receive));
        assert!(error.contains(problem), "{error}");
    };
    refused(&good[..2], &good, "there are 2 parts of the send buffer for 3 ranks");
    refused(&good, &[], "there are 0 parts of the receive buffer for 3 ranks");
    let outside = three([0..1, 4..5, 1..2]);
    refused(&outside, &good, "rank 1's part of the send buffer is 4..5, but the buffer has 4 elements");
    let backwards = three([0..1, Range { start: 2, end: 1 }, 1..2]);
    refused(&good, &backwards, "rank 1's part of the receive buffer is 2..1");
    let overlapping = three([2..3, 0..1, 0..1]);
    refused(&good, &overlapping, "the parts 0..1 of rank 1 and 0..1 of rank 2 of the receive buffer overlap");
    let mut longer = good.clone();
    longer[rank] = 0..2;
    refused(&longer, &good, "sends itself 2 elements and receives 1");
}

/// When ranks disagree about the length, nothing is written to the receiver.
#[test]
fn ranks_that_disagree_about_the_length_find_out_and_keep_their_memory() {
    const BYTES: [usize; 2] = [100, 60];
    type Disagreement = (&'static str, fn(Rank<'_>, &mut [u8]) -> Result<(), Error>);
    let cases: [Disagreement; 8] = [
        ("reduce_scatter", |collectives, data| collectives.reduce_scatter_in_place(data, ReduceOp::Sum)),
        ("broadcast", |collectives, data| collectives.broadcast_in_place(data, 0)),
        ("reduce", |collectives, data| collectives.reduce_in_place(data, ReduceOp::Sum, 1)),
        ("all_to_all", |collectives, data| collectives.all_to_all_in_place(data)),
        ("all_to_all_v", |collectives, data| {
            let half = data.len() / 2;
            let parts = if collectives.own_rank() == 0 {
                [0..half, half..2 * half]
            } else {
                [half..2 * half, 0..half]
            };
            collectives.all_to_all_v_in_place(data, &parts, &parts)
        }),
        ("gather", |collectives, data| collectives.gather_in_place(data, 1)),
        ("scatter", |collectives, data| collectives.scatter_in_place(data, 0)),
        ("exchange", |collectives, data| {
            let peer = 1 - collectives.own_rank();
            collectives.exchange_in_place(data, peer, peer)
        }),
    ];
    for (name, operation) in cases {
        // Without a shared segment: it has a test of its own.
        let ends = simulated::network(2, 1);
        thread::scope(|scope| {
            for (rank, mut end) in ends.into_iter().enumerate() {
                scope.spawn(move || {
                    end.patience = Duration::from_millis(300);
                    let mut collectives = HostCollectives::new(end, None, DEFAULTS).unwrap();
                    let mut memory = [7_u8; 200];
                    let result = operation(&mut collectives, &mut memory[..BYTES[rank]]);
                    // Rank 1 receives in each of them. The signature of the call does not contain the lengths
                    // of parts.
                    if rank == 1 {
                        let error = result.unwrap_err().to_string();
                        let expected = match name {
                            "all_to_all_v" => "bytes sent to a receive of",
                            _ => "nothing arrived",
                        };
                        assert!(error.contains(expected), "{name}: {error}");
                    }
                    assert!(memory[BYTES[rank]..].iter().all(|&byte| byte == 7), "{name}");
                });
            }
        });
    }
    // In the shared segment every rank reads every other's signature.
    let cases = cases.into_iter().filter(|(name, _)| !matches!(*name, "all_to_all_v" | "exchange"));
    for (name, operation) in cases {
        let shared_segments = shared::shared_segments(2);
        let ends = simulated::network(2, 1);
        thread::scope(|scope| {
            for (rank, (end, shared)) in ends.into_iter().zip(shared_segments).enumerate() {
                scope.spawn(move || {
                    let options = SelectionOptions::new(Medium::SharedMemory);
                    let mut collectives = HostCollectives::new(end, Some(shared), options).unwrap();
                    let mut memory = [7_u8; 200];
                    let result = operation(&mut collectives, &mut memory[..BYTES[rank]]);
                    if rank == 1 {
                        let error = result.unwrap_err();
                        assert!(matches!(error, Error::Mismatch { rank: 1, .. }), "{name}: {error}");
                        let error = error.to_string();
                        let told = format!("rank 1 called {name} of ");
                        assert!(
                            error.starts_with(&told) && error.contains(" while rank 0 called "),
                            "{error}"
                        );
                    }
                    assert!(memory[BYTES[rank]..].iter().all(|&byte| byte == 7), "{name}");
                });
            }
        });
    }
}

/// A world of the program's can hide a difference of the options: the pieces of the messages then have
/// different lengths.
#[test]
fn a_rank_with_another_plan_reads_no_message() {
    let ends = simulated::network(2, 1).into_iter().zip(shared::shared_segments(2));
    thread::scope(|scope| {
        for (rank, (mut end, shared)) in ends.enumerate() {
            scope.spawn(move || {
                end.patience = Duration::from_millis(300);
                let segment = (rank == 0).then_some(64);
                let options = SelectionOptions { segment, ..SelectionOptions::new(Medium::SharedMemory) };
                let options = with_algorithm(Collective::Broadcast, Some(Algorithm::Board), options);
                let mut collectives = HostCollectives::new(end, Some(shared), options).unwrap();
                let mut data = vec![7 * rank as u8; 4096];
                let result = collectives.broadcast_in_place(&mut data, 0);
                if rank == 1 {
                    result.unwrap_err();
                    assert!(data.iter().all(|&byte| byte == 7), "{data:?}");
                }
            });
        }
    });
}

/// Tags count messages modulo 32: the 33rd message of a pair has the type expected by the receiver for the
/// first.
#[test]
fn a_later_message_of_the_same_shape_is_not_taken_for_an_earlier_one() {
    let ends = simulated::network(2, 1);
    let sent = Barrier::new(2);
    thread::scope(|scope| {
        for (rank, mut end) in ends.into_iter().enumerate() {
            let sent = &sent;
            scope.spawn(move || {
                end.patience = Duration::from_millis(300);
                let mut collectives = HostCollectives::new(end, None, DEFAULTS).unwrap();
                if rank == 0 {
                    for number in 0..32_u32 {
                        collectives.send_elements(&[number], 1).unwrap();
                    }
                    collectives.send_elements(&[33.0_f32], 1).unwrap();
                    sent.wait();
                } else {
                    sent.wait();
                    collectives.receive_elements(&mut [0.0_f32], 0).unwrap_err();
                }
            });
        }
    });
}
