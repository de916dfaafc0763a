//! Shows that the data does what value.rs says: any order of a reduction gives the expected bits.

use collectives::{DataType, Element, ReduceOp};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{DataError, Problem, Segment, check, fill_input, supported_types};

/// Arithmetic that rounds to the type at every step.
trait Number: Element {
    fn from_bytes(bytes: &[u8]) -> Self;
    fn bits(self) -> u64;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn largest(self, other: Self) -> Self;
    fn smallest(self, other: Self) -> Self;
    /// The sum divided by the number of ranks.
    fn divide(self, ranks: u32) -> Self;
    /// What NCCL multiplies with before it sums: 1/ranks rounded to the type. `None` for integers, where it divides.
    fn reciprocal(ranks: u32) -> Option<Self>;
    /// Finite, and neither zero nor subnormal.
    fn is_plain(self) -> bool;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().unwrap())
            }
            fn bits(self) -> u64 {
                let mut bytes = [0; 8];
                bytes[..size_of::<Self>()].copy_from_slice(&self.to_le_bytes());
                u64::from_le_bytes(bytes)
            }
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            fn largest(self, other: Self) -> Self {
                self.max(other)
            }
            fn smallest(self, other: Self) -> Self {
                self.min(other)
            }
            fn divide(self, ranks: u32) -> Self {
                (i128::from(self) / i128::from(ranks)).try_into().unwrap()
            }
            fn reciprocal(_: u32) -> Option<Self> {
                None
            }
            fn is_plain(self) -> bool {
                true
            }
        }
    )*};
}
integers!(i8 u8 i32 u32 i64 u64);

macro_rules! floats {
    ($($type:ty: $from:expr;)*) => {$(
        impl Number for $type {
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_ne_bytes(bytes.try_into().unwrap())
            }
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn add(self, other: Self) -> Self {
                self + other
            }
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            fn largest(self, other: Self) -> Self {
                if self > other { self } else { other }
            }
            fn smallest(self, other: Self) -> Self {
                if self < other { self } else { other }
            }
            fn divide(self, ranks: u32) -> Self {
                $from(f64::from(self) / f64::from(ranks))
            }
            fn reciprocal(ranks: u32) -> Option<Self> {
                Some($from(1.0 / f64::from(ranks)))
            }
            fn is_plain(self) -> bool {
                self.is_normal()
            }
        }
    )*};
}
floats! {
    f16: f16::from_f64;
    bf16: bf16::from_f64;
    f32: |value: f64| value as f32;
    f64: |value: f64| value;
}

/// Calls a generic test for every type.
macro_rules! for_all_types {
    ($test:ident ( $($argument:expr),* )) => {
        $test::<i8>($($argument),*);
        $test::<u8>($($argument),*);
        $test::<i32>($($argument),*);
        $test::<u32>($($argument),*);
        $test::<i64>($($argument),*);
        $test::<u64>($($argument),*);
        $test::<f16>($($argument),*);
        $test::<bf16>($($argument),*);
        $test::<f32>($($argument),*);
        $test::<f64>($($argument),*);
    };
}

fn problem<T: Number>(seed: u64, ranks: u32, op: ReduceOp) -> Problem {
    Problem { seed, ranks, op: Some(op), data_type: T::DATA_TYPE }
}

fn inputs<T: Number>(problem: &Problem, index: u64) -> Vec<T> {
    (0..problem.ranks).map(|rank| input(problem, rank, index)).collect()
}

fn input<T: Number>(problem: &Problem, rank: u32, index: u64) -> T {
    let mut bytes = [0; 8];
    let element = &mut bytes[..size_of::<T>()];
    fill_input(problem, rank, index, element).unwrap();
    T::from_bytes(element)
}

fn element_bytes<T: Number>(value: T) -> Vec<u8> {
    value.bits().to_le_bytes()[..size_of::<T>()].to_vec()
}

/// What the checker calls right for one element: found by asking it about a wrong one.
fn expected<T: Number>(problem: &Problem, index: u64) -> T {
    let bits = |value: u64| {
        let bytes = &value.to_le_bytes()[..size_of::<T>()];
        check(problem, &[Segment::reduced(index, 1)], bytes).unwrap().first.map(|first| first.expected_bits)
    };
    let probe = if size_of::<T>() == 1 { 0x55 } else { 0 };
    let bits = bits(probe).or_else(|| bits(!probe)).unwrap();
    T::from_bytes(&bits.to_le_bytes()[..size_of::<T>()])
}

fn assert_right<T: Number>(problem: &Problem, index: u64, result: T, how: &str) {
    let found = check(problem, &[Segment::reduced(index, 1)], &element_bytes(result)).unwrap();
    assert!(found.wrong == 0, "{how}, {problem:?} at {index}: {}", found.first.unwrap());
}

fn combine<T: Number>(op: ReduceOp, left: T, right: T) -> T {
    match op {
        ReduceOp::Sum | ReduceOp::Avg => left.add(right),
        ReduceOp::Prod => left.multiply(right),
        ReduceOp::Max => left.largest(right),
        ReduceOp::Min => left.smallest(right),
        _ => unreachable!(),
    }
}

/// Reduces in the order of a random tree over shuffled ranks: `choices` pairs what is left over and over.
fn reduce_as_tree<T: Number>(op: ReduceOp, mut values: Vec<T>, choices: &[usize]) -> T {
    let mut choices = choices.iter().cycle();
    while values.len() > 1 {
        let left = values.swap_remove(choices.next().unwrap() % values.len());
        let right = values.swap_remove(choices.next().unwrap() % values.len());
        values.push(combine(op, left, right));
    }
    values[0]
}

/// Every way to do the operator that a backend may have, each with the same order of combining.
fn assert_all_ways<T: Number>(problem: &Problem, index: u64, values: Vec<T>, reduce: impl Fn(Vec<T>) -> T) {
    let (op, ranks) = (problem.op.unwrap(), problem.ranks);
    if op != ReduceOp::Avg || ranks == 1 {
        return assert_right(problem, index, reduce(values), "reduced");
    }
    assert_right(problem, index, reduce(values.clone()).divide(ranks), "summed, then divided");
    if let Some(reciprocal) = T::reciprocal(ranks) {
        let scaled = values.iter().map(|value| value.multiply(reciprocal)).collect();
        assert_right(problem, index, reduce(scaled), "multiplied by the reciprocal, then summed");
        let scaled = reduce(values).multiply(reciprocal);
        assert_right(problem, index, scaled, "summed, then multiplied by the reciprocal");
    }
}

fn any_order_is_exact<T: Number>() {
    let case = (any::<u64>(), 1..48_u32, any::<u64>(), prop::collection::vec(any::<usize>(), 101));
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    runner
        .run(&case, |(seed, ranks, index, choices)| {
            for op in ReduceOp::ALL {
                let problem = problem::<T>(seed, ranks, op);
                let values = inputs::<T>(&problem, index);
                assert_all_ways(&problem, index, values, |values| reduce_as_tree(op, values, &choices));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn any_order_of_any_reduction_gives_the_expected_bits() {
    for_all_types!(any_order_is_exact());
}

/// Forwards, backwards, and by halves.
fn many_ranks_are_exact<T: Number>(ranks: u32, indices: u64) {
    fn by_halves<T: Number>(op: ReduceOp, values: &[T]) -> T {
        match values {
            [one] => *one,
            _ => {
                let (left, right) = values.split_at(values.len() / 2);
                combine(op, by_halves(op, left), by_halves(op, right))
            }
        }
    }
    for op in ReduceOp::ALL {
        let problem = problem::<T>(11, ranks, op);
        for index in 0..indices {
            let fold = |left, right| combine(op, left, right);
            let values = inputs::<T>(&problem, index);
            assert_all_ways(&problem, index, values.clone(), |values| {
                values.into_iter().reduce(fold).unwrap()
            });
            assert_all_ways(&problem, index, values.clone(), |values| {
                values.into_iter().rev().reduce(fold).unwrap()
            });
            assert_all_ways(&problem, index, values, |values| by_halves(op, &values));
        }
    }
}

#[test]
fn hundreds_to_a_hundred_thousand_ranks_are_exact() {
    for ranks in [255, 256, 257, 1000, 1024, 1025, 2048, 2049, 4096] {
        for_all_types!(many_ranks_are_exact(ranks, 4));
    }
    for ranks in [16_385, 100_003] {
        for_all_types!(many_ranks_are_exact(ranks, 1));
    }
}

/// Averages over every small number of ranks, many elements: the tolerance holds, also next to powers of two.
fn averages_are_within_tolerance<T: Number>() {
    for ranks in 2..70 {
        let problem = problem::<T>(5, ranks, ReduceOp::Avg);
        let expected_tolerance = if T::reciprocal(1).is_none() || ranks.is_power_of_two() { 0 } else { 2 };
        assert_eq!(problem.tolerance().unwrap(), expected_tolerance);
        for index in 0..150 {
            let values = inputs::<T>(&problem, index);
            assert_all_ways(&problem, index, values, |values| values.into_iter().reduce(T::add).unwrap());
        }
    }
}

#[test]
fn averages_over_any_number_of_ranks_are_within_the_tolerance() {
    for_all_types!(averages_are_within_tolerance());
}

/// The hardest case of the tolerance: all significands of f16 over many numbers of ranks.
#[test]
fn the_tolerance_of_averages_holds_for_f16_exhaustively() {
    let mut largest = 0;
    for ranks in (3..70_u32).filter(|ranks| !ranks.is_power_of_two()) {
        let reciprocal = f16::reciprocal(ranks).unwrap();
        for total in 1024..2048_u32 {
            let right = (f16::from_f64(f64::from(total) / f64::from(ranks))).to_bits();
            for first in (total / 4..total / 4 + total / 2).step_by(23) {
                let parts = [first, total - first].map(|part| f16::from_f64(f64::from(part)) * reciprocal);
                largest = largest.max((parts[0] + parts[1]).to_bits().abs_diff(right));
            }
        }
    }
    assert_eq!(largest, 2);
}

fn a_wrong_peer_is_found<T: Number>() {
    for ranks in [2, 3, 8, 17] {
        for op in ReduceOp::ALL {
            let problem = problem::<T>(99, ranks, op);
            let bits = |value: T| element_bytes(value);
            let mut unchanged = [0; 3];
            let mut neighbours = 0;
            const ELEMENTS: u64 = 2000;
            for index in 0..ELEMENTS {
                let right = inputs::<T>(&problem, index);
                let finish = |values: Vec<T>| {
                    let sum = values.into_iter().reduce(|left, right| combine(op, left, right)).unwrap();
                    if op == ReduceOp::Avg { sum.divide(ranks) } else { sum }
                };
                let wrong = |values| {
                    check(&problem, &[Segment::reduced(index, 1)], &bits(finish(values))).unwrap().wrong
                };
                let mut other_peer = right.clone();
                other_peer[0] = right[1];
                let mut missing = right.clone();
                missing.remove(0);
                let mut other_element = right.clone();
                other_element[0] = input(&problem, 0, index + 1);
                unchanged[0] += 1 - wrong(other_peer);
                unchanged[1] += 1 - wrong(missing);
                unchanged[2] += 1 - wrong(other_element);
                let next = expected::<T>(&problem, index + 1);
                neighbours += 1 - check(&problem, &[Segment::reduced(index, 1)], &bits(next)).unwrap().wrong;
            }
            // Max and min show a rank only where it has the extreme, averages of floats only where it is of the two;
            // shares of i8 averages over 17 ranks have only three bits.
            let visible = match op {
                ReduceOp::Max | ReduceOp::Min => 0.7 / f64::from(ranks),
                ReduceOp::Prod => 0.3,
                ReduceOp::Avg if size_of::<T>() == 1 => 0.1,
                ReduceOp::Avg if !ranks.is_power_of_two() => 1.0 / f64::from(ranks),
                _ => 0.6,
            };
            let limit = (ELEMENTS as f64 * (1.0 - visible)) as u64;
            assert!(unchanged.iter().all(|&count| count <= limit), "{problem:?}: {unchanged:?} > {limit}");
            let alike = if size_of::<T>() == 1 { ELEMENTS / 5 } else { ELEMENTS / 100 };
            assert!(neighbours <= alike, "{problem:?}: {neighbours} elements are like the next");
        }
    }
}

#[test]
fn a_missing_rank_a_wrong_rank_and_a_wrong_element_are_found() {
    for_all_types!(a_wrong_peer_is_found());
}

fn values_are_plain<T: Number>() {
    for op in [None].into_iter().chain(ReduceOp::ALL.map(Some)) {
        for ranks in [1, 2, 8, 300, 5000] {
            let problem = Problem { seed: 1, ranks, op, data_type: T::DATA_TYPE };
            for index in 0..300 {
                let value: T = input(&problem, (index % u64::from(ranks)) as u32, index);
                let zero_allowed = matches!(op, Some(ReduceOp::Sum | ReduceOp::Avg)) && ranks > 1;
                assert!(value.is_plain() || zero_allowed && value.bits() == 0, "{problem:?}: {value:?}");
                if op.is_some() {
                    assert!(expected::<T>(&problem, index).is_plain(), "{problem:?} at {index}");
                }
            }
        }
    }
}

#[test]
fn values_are_normal_numbers_and_zeros_only_shares_of_sums() {
    for_all_types!(values_are_plain());
}

#[test]
fn data_depends_on_seed_rank_and_index_but_not_on_where_a_fill_starts() {
    for data_type in supported_types() {
        for op in [None].into_iter().chain(ReduceOp::ALL.map(Some)) {
            let problem = Problem { seed: 42, ranks: 5, op, data_type };
            let size = data_type.size();
            let fill = |problem: &Problem, rank, first_index| {
                let mut bytes = vec![0; 64 * size];
                fill_input(problem, rank, first_index, &mut bytes).unwrap();
                bytes
            };
            // Indices beyond 2^32 elements.
            let start = (1 << 33) + 5;
            let bytes = fill(&problem, 2, start);
            assert_eq!(bytes[7 * size..], fill(&problem, 2, start + 7)[..57 * size]);
            assert_ne!(bytes, fill(&problem, 2, 5));
            assert_ne!(bytes, fill(&problem, 3, start));
            assert_ne!(bytes, fill(&Problem { seed: 43, ..problem }, 2, start));
        }
    }
}

#[test]
fn corruption_is_found_with_index_expected_and_found_value() {
    for data_type in supported_types() {
        let problem = Problem { seed: 8, ranks: 4, op: None, data_type };
        let size = data_type.size();
        let count = 33;
        let segments: Vec<_> = (0..4).map(|rank| Segment::copied(rank, 10, count)).collect();
        let mut bytes = vec![0; 4 * count as usize * size];
        for (rank, part) in (0..).zip(bytes.chunks_exact_mut(count as usize * size)) {
            fill_input(&problem, rank, 10, part).unwrap();
        }
        assert_eq!(check(&problem, &segments, &bytes).unwrap(), super::Mismatches::default());
        for index in [0, 32, 33, 70, 4 * count as usize - 1] {
            let mut spoilt = bytes.clone();
            spoilt[index * size] ^= 1;
            let found = check(&problem, &segments, &spoilt).unwrap();
            let first = found.first.unwrap();
            assert_eq!((found.wrong, first.index), (1, index as u64));
            assert_eq!(first.expected_bits ^ first.found_bits, 1);
            let mut expected = [0; 8];
            expected[..size].copy_from_slice(&bytes[index * size..][..size]);
            assert_eq!(first.expected_bits, u64::from_le_bytes(expected));
            // The first of several wrong ones, in whichever segment.
            spoilt[(4 * count as usize - 1) * size] ^= 2;
            spoilt[60 * size] ^= 4;
            let found = check(&problem, &segments, &spoilt).unwrap();
            assert_eq!(found.first.unwrap().index, index.min(60) as u64);
        }
    }
}

#[test]
fn a_mismatch_shows_values_and_bits() {
    let show = |data_type, expected_bits, found_bits| {
        super::Mismatch { index: 17, expected_bits, found_bits, data_type }.to_string()
    };
    let f16_text = show(DataType::Float16, 0x4300, 0);
    assert_eq!(f16_text, "element 17: expected 3.5 (0x4300), found 0.0 (0x0000)");
    let i8_text = show(DataType::Int8, 0xff, 0x7f);
    assert_eq!(i8_text, "element 17: expected -1 (0xff), found 127 (0x7f)");
    let f64_text = show(DataType::Float64, 1e300_f64.to_bits(), f64::NAN.to_bits());
    assert_eq!(f64_text, "element 17: expected 1e300 (0x7e37e43c8800759c), found NaN (0x7ff8000000000000)");
    let u64_text = show(DataType::Uint64, u64::MAX, 1);
    assert_eq!(
        u64_text,
        "element 17: expected 18446744073709551615 (0xffffffffffffffff), found 1 (0x0000000000000001)"
    );
}

#[test]
fn problems_that_are_not_defined_are_errors() {
    let problem = Problem { seed: 0, ranks: 2, op: None, data_type: DataType::Float32 };
    let fill = |problem: &Problem, rank, length| fill_input(problem, rank, 0, &mut vec![0; length]);
    assert!(matches!(fill(&Problem { ranks: 0, ..problem }, 0, 4), Err(DataError::Ranks { ranks: 0 })));
    let many = Problem { ranks: Problem::MAX_RANKS + 1, ..problem };
    assert!(matches!(fill(&many, 0, 4), Err(DataError::Ranks { .. })));
    assert!(matches!(fill(&problem, 2, 4), Err(DataError::Rank { rank: 2, ranks: 2 })));
    assert!(matches!(fill(&problem, 0, 7), Err(DataError::Length { expected: 4, found: 7 })));
    let reduced = check(&problem, &[Segment::reduced(0, 1)], &[0; 4]);
    assert!(matches!(reduced, Err(DataError::NoOperator)));
    let short = check(&problem, &[Segment::copied(0, 0, 2), Segment::copied(1, 0, 1)], &[0; 8]);
    assert!(matches!(short, Err(DataError::Length { expected: 12, found: 8 })));
    let huge = check(&problem, &[Segment::copied(0, 0, u64::MAX), Segment::copied(1, 0, 9)], &[0; 8]);
    assert!(matches!(huge, Err(DataError::Length { expected: u64::MAX, found: 8 })));
}
