//! Every algorithm on a simulated network, against results computed one element at a time.

use std::fmt::Debug;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::thread;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use proptest::prelude::*;

use super::HostCollectives;
use crate::fabric::Error;
use crate::fabric::selection::{self, Algorithm, Collective, Medium, SelectionOptions, Topology};
use crate::fabric::shared_memory::segment as shared;
use crate::{DataType, Element, ReduceOp};
use simulated::{Break, Delivery, Simulated};

const DEFAULTS: SelectionOptions = SelectionOptions::new(Medium::Network);

/// The options with an algorithm for one collective.
fn with_algorithm(
    collective: Collective,
    algorithm: Option<Algorithm>,
    mut options: SelectionOptions,
) -> SelectionOptions {
    options.algorithms[collective as usize] = algorithm;
    options
}

/// Reference for an element type, independent of the tested code.
trait Value: Element {
    /// A value from a random number, with exact sums and products of a few.
    fn exact(random: u64, op: ReduceOp) -> Self;
    fn reduced(values: &[Self], op: ReduceOp) -> Self;
}

fn largest<T: PartialOrd + Copy>(values: &[T]) -> T {
    values.iter().copied().reduce(|a, b| if b > a { b } else { a }).unwrap()
}

fn smallest<T: PartialOrd + Copy>(values: &[T]) -> T {
    values.iter().copied().reduce(|a, b| if b < a { b } else { a }).unwrap()
}

macro_rules! integer_values {
    ($($type:ty),*) => {$(
        impl Value for $type {
            fn exact(random: u64, _op: ReduceOp) -> Self {
                random as Self
            }
            fn reduced(values: &[Self], op: ReduceOp) -> Self {
                let sum = values.iter().fold(0 as Self, |a, &b| a.wrapping_add(b));
                match op {
                    ReduceOp::Sum => sum,
                    ReduceOp::Prod => values.iter().fold(1 as Self, |a, &b| a.wrapping_mul(b)),
                    ReduceOp::Max => largest(values),
                    ReduceOp::Min => smallest(values),
                    ReduceOp::Avg => (i128::from(sum) / values.len() as i128) as Self,
                }
            }
        }
    )*};
}

macro_rules! float_values {
    ($($type:ty: $largest:literal, $from:expr, $to:expr);*) => {$(
        impl Value for $type {
            fn exact(random: u64, op: ReduceOp) -> Self {
                let small = [1.0, 2.0, -1.0, 0.5][random as usize % 4];
                let whole = (random % (2 * $largest + 1)) as f64 - f64::from($largest);
                $from(if op == ReduceOp::Prod { small } else { whole })
            }
            fn reduced(values: &[Self], op: ReduceOp) -> Self {
                let values: Vec<f64> = values.iter().copied().map($to).collect();
                let sum = $from(values.iter().sum());
                $from(match op {
                    ReduceOp::Sum => return sum,
                    ReduceOp::Prod => values.iter().product(),
                    ReduceOp::Max => largest(&values),
                    ReduceOp::Min => smallest(&values),
                    ReduceOp::Avg => $to(sum) / values.len() as f64,
                })
            }
        }
    )*};
}

integer_values!(i8, u8, i32, u32, i64, u64);
float_values! {
    f32: 13, |value: f64| value as f32, f64::from;
    f64: 13, |value: f64| value, |value: f64| value;
    f16: 13, f16::from_f64, f16::to_f64;
    bf16: 13, bf16::from_f64, bf16::to_f64;
    F8E4M3: 1, F8E4M3::from_f64, f64::from;
    F8E5M2: 1, F8E5M2::from_f64, f64::from
}

/// A random number for an element of a rank's vector.
fn random(seed: u64, rank: usize, index: usize) -> u64 {
    let mut value = seed ^ (rank as u64) << 32 ^ index as u64;
    for _ in 0..3 {
        value = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
        value = (value ^ value >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        value ^= value >> 27;
    }
    value
}

/// Returns the algorithms for ranks on hosts of their own.
fn flat(collective: Collective, ranks: usize) -> impl Iterator<Item = Algorithm> {
    let serves = move |algorithm: &Algorithm| {
        *algorithm != Algorithm::Hierarchical && algorithm.serves(collective, ranks)
    };
    Algorithm::ALL.into_iter().filter(serves)
}

/// Runs `body` as every rank of a new network, each on a host of its own, with a shared segment.
fn on_every_rank<R: Send>(
    ranks: usize,
    seed: u64,
    options: SelectionOptions,
    body: impl Fn(usize, &mut HostCollectives<Simulated>) -> R + Sync,
) -> Vec<R> {
    let shared_segments =
        if ranks > 1 { shared::shared_segments(ranks).into_iter().map(Some).collect() } else { vec![None] };
    on_transports(simulated::network(ranks, seed), shared_segments, options, body)
}

fn on_transports<R: Send>(
    ends: Vec<Simulated>,
    shared_segments: Vec<Option<shared::SharedSegment>>,
    options: SelectionOptions,
    body: impl Fn(usize, &mut HostCollectives<Simulated>) -> R + Sync,
) -> Vec<R> {
    thread::scope(|scope| {
        let threads: Vec<_> = ends
            .into_iter()
            .zip(shared_segments)
            .enumerate()
            .map(|(rank, (transport, shared))| {
                let body = &body;
                scope
                    .spawn(move || body(rank, &mut HostCollectives::new(transport, shared, options).unwrap()))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[derive(Clone, Debug)]
struct Case {
    ranks: usize,
    count: usize,
    seed: u64,
    options: SelectionOptions,
    /// By rank, its host's number, if ranks share hosts.
    hosts: Option<(Vec<usize>, Delivery)>,
}

impl Case {
    fn on_every_rank<R: Send>(
        &self,
        body: impl Fn(usize, &mut HostCollectives<Simulated>) -> R + Sync,
    ) -> Vec<R> {
        match &self.hosts {
            None => on_every_rank(self.ranks, self.seed, self.options, body),
            Some((hosts, delivery)) => {
                let shared_segments = hosts.iter().map(|_| None).collect();
                on_transports(
                    simulated::network_of(hosts, *delivery, self.seed),
                    shared_segments,
                    self.options,
                    body,
                )
            }
        }
    }
}

fn check_all_reduce<T: Value>(case: &Case, op: ReduceOp) {
    let input = |rank: usize| -> Vec<T> {
        (0..case.count).map(|index| T::exact(random(case.seed, rank, index), op)).collect()
    };
    let inputs: Vec<_> = (0..case.ranks).map(input).collect();
    let expected: Vec<T> = (0..case.count)
        .map(|index| {
            let values: Vec<_> = inputs.iter().map(|input| input[index]).collect();
            T::reduced(&values, op)
        })
        .collect();
    case.on_every_rank(|rank, collectives| {
        let mut received = vec![T::default(); case.count];
        let mut data = inputs[rank].clone();
        collectives.all_reduce(&inputs[rank], &mut received, op).unwrap();
        collectives.all_reduce_in_place(&mut data, op).unwrap();
        assert_same(&received, &expected);
        assert_same(&data, &expected);
    });
}

fn check_all_gather<T: Value>(case: &Case) {
    let input = |rank: usize| -> Vec<T> {
        (0..case.count).map(|index| T::exact(random(case.seed, rank, index), ReduceOp::Sum)).collect()
    };
    let inputs: Vec<_> = (0..case.ranks).map(input).collect();
    let expected = inputs.concat();
    case.on_every_rank(|rank, collectives| {
        let mut received = vec![T::default(); expected.len()];
        collectives.all_gather(&inputs[rank], &mut received).unwrap();
        assert_same(&received, &expected);
        received.fill(T::default());
        received[rank * case.count..][..case.count].copy_from_slice(&inputs[rank]);
        collectives.all_gather_in_place(&mut received).unwrap();
        assert_same(&received, &expected);
        collectives.run_barrier().unwrap();
    });
}

fn assert_same<T: PartialEq + Debug>(found: &[T], expected: &[T]) {
    assert_eq!(found.len(), expected.len());
    let wrong = found.iter().zip(expected).position(|(found, expected)| found != expected);
    if let Some(index) = wrong {
        panic!("element {index} is {:?} and should be {:?}", found[index], expected[index]);
    }
}

macro_rules! for_type {
    ($data_type:expr, $function:ident($($argument:expr),*)) => {
        match $data_type {
            DataType::Int8 => $function::<i8>($($argument),*),
            DataType::Uint8 => $function::<u8>($($argument),*),
            DataType::Int32 => $function::<i32>($($argument),*),
            DataType::Uint32 => $function::<u32>($($argument),*),
            DataType::Int64 => $function::<i64>($($argument),*),
            DataType::Uint64 => $function::<u64>($($argument),*),
            DataType::Float16 => $function::<f16>($($argument),*),
            DataType::Float32 => $function::<f32>($($argument),*),
            DataType::Float64 => $function::<f64>($($argument),*),
            DataType::Bfloat16 => $function::<bf16>($($argument),*),
            DataType::Float8E4M3 => $function::<F8E4M3>($($argument),*),
            DataType::Float8E5M2 => $function::<F8E5M2>($($argument),*),
        }
    };
}

mod checks;
mod counting;
mod hosts;
mod others;
mod refusals;
mod simulated;

fn cases() -> impl Strategy<Value = Case> {
    let count = prop_oneof![0_usize..12, 0_usize..5000];
    let segment = prop_oneof![Just(None), (1_usize..5000).prop_map(Some)];
    let in_flight = prop_oneof![Just(None), (1_usize..5).prop_map(Some)];
    let medium = prop_oneof![Just(Medium::SharedMemory), Just(Medium::Network)];
    let algorithm = || prop::option::weighted(0.9, prop::sample::select(&Algorithm::ALL[..]));
    (1_usize..=9, count, any::<u64>(), (medium, algorithm(), algorithm(), segment, in_flight)).prop_map(
        |(ranks, count, seed, (medium, all_reduce, all_gather, segment, in_flight))| {
            let serves = |wanted: &Algorithm, collective| {
                flat(collective, ranks).any(|algorithm| algorithm == *wanted)
            };
            let all_reduce = all_reduce.filter(|wanted| serves(wanted, Collective::AllReduce));
            let all_gather = all_gather.filter(|wanted| serves(wanted, Collective::AllGather));
            let options = SelectionOptions { segment, in_flight, ..SelectionOptions::new(medium) };
            let options = with_algorithm(Collective::AllReduce, all_reduce, options);
            let options = with_algorithm(Collective::AllGather, all_gather, options);
            Case { ranks, count, seed, options, hosts: None }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_reduce_gives_every_rank_the_reduction(
        case in cases(),
        data_type in prop::sample::select(&DataType::ALL[..]),
        op in prop::sample::select(&ReduceOp::ALL[..]),
    ) {
        for_type!(data_type, check_all_reduce(&case, op));
    }

    #[test]
    fn all_gather_gives_every_rank_all_blocks_in_order(
        case in cases(),
        data_type in prop::sample::select(&DataType::ALL[..]),
    ) {
        for_type!(data_type, check_all_gather(&case));
    }
}

/// Cases possibly missing among random ones: every algorithm, type and operator on every number of ranks.
#[test]
fn every_algorithm_on_every_number_of_ranks() {
    for ranks in 1..=9 {
        let case = |count| Case { ranks, count, seed: 7, options: DEFAULTS, hosts: None };
        for count in [1, ranks - 1, 1000] {
            for algorithm in flat(Collective::AllReduce, ranks) {
                let options = SelectionOptions {
                    segment: Some(1024),
                    ..with_algorithm(Collective::AllReduce, Some(algorithm), DEFAULTS)
                };
                check_all_reduce::<i32>(&Case { options, ..case(count) }, ReduceOp::Sum);
            }
            for algorithm in flat(Collective::AllGather, ranks) {
                let options = SelectionOptions {
                    segment: Some(1024),
                    ..with_algorithm(Collective::AllGather, Some(algorithm), DEFAULTS)
                };
                check_all_gather::<i32>(&Case { options, ..case(count) });
            }
        }
    }
    for data_type in DataType::ALL {
        for op in ReduceOp::ALL {
            let case = Case { ranks: 3, count: 333, seed: 3, options: DEFAULTS, hosts: None };
            for_type!(data_type, check_all_reduce(&case, op));
        }
    }
}

/// Sums dependent on the order of additions are the same on all ranks, to the bit.
#[test]
fn all_ranks_get_the_same_bits() {
    const COUNT: usize = 1001;
    for ranks in 2..=9 {
        for algorithm in flat(Collective::AllReduce, ranks) {
            let options = SelectionOptions {
                segment: Some(1 << 10),
                ..with_algorithm(Collective::AllReduce, Some(algorithm), DEFAULTS)
            };
            let input = |rank| -> Vec<f32> {
                let value = |index| {
                    let bits = random(11, rank, index);
                    (bits as u32 as f32 / 1e9 - 2.0) * [1e-6, 1.0, 1e6][(bits >> 32) as usize % 3]
                };
                (0..COUNT).map(value).collect()
            };
            let results = on_every_rank(ranks, 5, options, |rank, collectives| {
                let mut out_of_place = vec![0.0; COUNT];
                let mut in_place = input(rank);
                collectives.all_reduce(&in_place, &mut out_of_place, ReduceOp::Sum).unwrap();
                collectives.all_reduce_in_place(&mut in_place, ReduceOp::Sum).unwrap();
                let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
                (bits(out_of_place), bits(in_place))
            });
            for (out_of_place, in_place) in &results {
                assert_same(out_of_place, &results[0].0);
                assert_same(in_place, &results[0].0);
            }
            let inputs: Vec<_> = (0..ranks).map(input).collect();
            for (index, &bits) in results[0].0.iter().enumerate() {
                let exact: f64 = inputs.iter().map(|input| f64::from(input[index])).sum();
                let most: f64 = inputs.iter().map(|input| f64::from(input[index]).abs()).sum();
                let error = (f64::from(f32::from_bits(bits)) - exact).abs();
                assert!(
                    error <= most * f64::from(f32::EPSILON) * ranks as f64,
                    "{algorithm} {ranks} {index}"
                );
            }
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_refused_before_anything_is_sent() {
    on_every_rank(3, 1, DEFAULTS, |_, collectives| {
        let error = collectives.all_reduce(&[1_i32; 4], &mut [0; 5], ReduceOp::Sum).unwrap_err();
        assert_eq!(
            error.to_string(),
            "all_reduce: the send buffer has 4 elements and the receive buffer 5; both must have the same \
             number"
        );
        let error = collectives.all_gather(&[1_i32; 4], &mut [0; 11]).unwrap_err();
        assert!(
            error.to_string().contains("4 elements and there are 3 ranks, but the receive buffer has 11")
        );
        let error = collectives.all_gather_in_place(&mut [0_i32; 11]).unwrap_err();
        assert!(error.to_string().contains("11 elements, not a multiple of the number of ranks, 3"));
        let mut data = [1_i32; 2];
        collectives.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [3; 2]);
    });
}

#[test]
fn an_algorithm_that_cannot_serve_is_refused() {
    let options = with_algorithm(Collective::AllGather, Some(Algorithm::RecursiveDoubling), DEFAULTS);
    let error = HostCollectives::new(simulated::network(6, 1).remove(0), None, options).err().unwrap();
    assert_eq!(
        error.to_string(),
        "all_gather on 6 ranks: algorithm 'recursive-doubling' does not support it; choose one of direct, \
         bruck, ring, or none"
    );
}

/// After a failure no request is left to touch the caller's buffers.
#[test]
fn an_error_or_a_panic_in_flight_closes_the_transport_first() {
    for breaks in [Break::Error { polls: 3 }, Break::Panic { polls: 3 }] {
        let mut ends = simulated::network(2, 1);
        let (open, failures) = (ends[0].watch(), ends[0].failures());
        let (peer, mut end) = (ends.pop().unwrap(), ends.pop().unwrap());
        end.breaks = breaks;
        let posted = std::sync::Arc::clone(&end.posted);
        let mut collectives = HostCollectives::new(end, None, DEFAULTS).unwrap();
        let mut data = vec![1_u8; 100_000];
        assert_eq!(open(), 2);
        let result =
            catch_unwind(AssertUnwindSafe(|| collectives.all_reduce_in_place(&mut data, ReduceOp::Sum)));
        match breaks {
            Break::Error { .. } => {
                let error = result.unwrap().unwrap_err();
                assert!(error.to_string().contains("on purpose"));
                assert_eq!(failures(), [(0, format!("all_reduce: {error}").into())], "the others are told");
            }
            _ => assert!(result.is_err()),
        }
        assert_eq!(open(), 1, "the transport is closed when the borrow of the buffer ends");
        assert!(posted.load(Ordering::SeqCst) > 0, "messages were in flight");
        let error = collectives.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Closed { operation: "all_reduce" }));
        assert!(matches!(collectives.run_barrier(), Err(Error::Closed { operation: "barrier" })));
        drop(peer);
    }
}
