//! Tests of the claims of value.rs: any order of a reduction gives the expected bits.

mod number;

use collectives::DataType;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::hash::mix;
use super::recipe::Recipe;
use super::value::position_of;
use super::{DataSpec, ElementSource, ExpectedSegment, Op, check, fill_input};
use number::{Number, TinyFloat};

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
        $test::<F8E4M3>($($argument),*);
        $test::<F8E5M2>($($argument),*);
    };
}

fn reduction_spec<T: Number>(seed: u64, ranks: u32, op: Op) -> DataSpec {
    DataSpec { seed, ranks, op: Some(op), data_type: T::DATA_TYPE }
}

/// Returns the inputs of all ranks; for mulsum, the scaled inputs.
fn rank_inputs<T: Number>(spec: &DataSpec, index: u64) -> Vec<T> {
    (0..spec.ranks).map(|rank| rank_contribution(spec, rank, index)).collect()
}

fn rank_contribution<T: Number>(spec: &DataSpec, rank: u32, index: u64) -> T {
    let value: T = rank_input(spec, rank, index);
    if spec.op == Some(Op::MulSum) { value.multiply(T::scalar(Op::scale_of(rank))) } else { value }
}

fn rank_input<T: Number>(spec: &DataSpec, rank: u32, index: u64) -> T {
    let mut bytes = [0; 8];
    let element = &mut bytes[..size_of::<T>()];
    fill_input(spec, rank, index, element).unwrap();
    T::from_bytes(element)
}

fn element_bytes<T: Number>(value: T) -> Vec<u8> {
    value.bits().to_le_bytes()[..size_of::<T>()].to_vec()
}

/// Returns the value that the checker accepts for one element, found by checking a wrong one.
fn expected_value<T: Number>(spec: &DataSpec, index: u64) -> T {
    let bits = |value: u64| {
        let bytes = &value.to_le_bytes()[..size_of::<T>()];
        check(spec, &[ExpectedSegment::reduced(index, 1)], bytes)
            .unwrap()
            .first
            .map(|first| first.expected_bits)
    };
    let probe = if size_of::<T>() == 1 { 0x55 } else { 0 };
    let bits = bits(probe).or_else(|| bits(!probe)).unwrap();
    T::from_bytes(&bits.to_le_bytes()[..size_of::<T>()])
}

fn assert_right<T: Number>(spec: &DataSpec, index: u64, result: T, how: &str) {
    let found = check(spec, &[ExpectedSegment::reduced(index, 1)], &element_bytes(result)).unwrap();
    assert!(found.wrong == 0, "{how}, {spec:?} at {index}: {}", found.first.unwrap());
}

fn combine_values<T: Number>(op: Op, left: T, right: T) -> T {
    match op {
        Op::Sum | Op::Avg | Op::MulSum => left.add(right),
        Op::Prod => left.multiply(right),
        Op::Max => left.largest(right),
        Op::Min => left.smallest(right),
    }
}

/// Reduces in the order of a random tree over shuffled ranks: `choices` repeatedly selects the next pair.
fn reduce_as_tree<T: Number>(op: Op, mut values: Vec<T>, choices: &[usize]) -> T {
    let mut choices = choices.iter().cycle();
    while values.len() > 1 {
        let left = values.swap_remove(choices.next().unwrap() % values.len());
        let right = values.swap_remove(choices.next().unwrap() % values.len());
        values.push(combine_values(op, left, right));
    }
    values[0]
}

/// Tests every calculation of the operator that a backend may use, each with the same order of combining.
fn assert_all_ways<T: Number>(spec: &DataSpec, index: u64, values: Vec<T>, reduce: impl Fn(Vec<T>) -> T) {
    let (op, ranks) = (spec.op.unwrap(), spec.ranks);
    if op != Op::Avg || ranks == 1 {
        return assert_right(spec, index, reduce(values), "reduced");
    }
    assert_right(spec, index, reduce(values.clone()).divide(ranks), "summed, then divided");
    if let Some(reciprocal) = T::reciprocal(ranks) {
        let scaled = values.iter().map(|value| value.multiply(reciprocal)).collect();
        assert_right(spec, index, reduce(scaled), "multiplied by the reciprocal, then summed");
        let scaled = reduce(values.clone()).multiply(reciprocal);
        assert_right(spec, index, scaled, "summed, then multiplied by the reciprocal");
    }
    if let Some(average) = reduce(values).average_in_wider_type(ranks) {
        assert_right(spec, index, average, "summed, then multiplied by the reciprocal of a wider type");
    }
}

fn any_order_is_exact<T: Number>() {
    let case = (any::<u64>(), 1..48_u32, any::<u64>(), prop::collection::vec(any::<usize>(), 101));
    let mut runner = TestRunner::new(Config { cases: 500, failure_persistence: None, ..Config::default() });
    runner
        .run(&case, |(seed, ranks, index, choices)| {
            for op in Op::ALL {
                let spec = reduction_spec::<T>(seed, ranks, op);
                let values = rank_inputs::<T>(&spec, index);
                assert_all_ways(&spec, index, values, |values| reduce_as_tree(op, values, &choices));
            }
            Ok(())
        })
        .unwrap();
}

#[test]
fn any_order_of_any_reduction_gives_the_expected_bits() {
    for_all_types!(any_order_is_exact());
}

/// Reduces forwards, backwards, and by halves.
fn many_ranks_are_exact<T: Number>(ranks: u32, indices: u64) {
    fn by_halves<T: Number>(op: Op, values: &[T]) -> T {
        match values {
            [one] => *one,
            _ => {
                let (left, right) = values.split_at(values.len() / 2);
                combine_values(op, by_halves(op, left), by_halves(op, right))
            }
        }
    }
    for op in Op::ALL {
        let spec = reduction_spec::<T>(11, ranks, op);
        for index in 0..indices {
            let fold = |left, right| combine_values(op, left, right);
            let values = rank_inputs::<T>(&spec, index);
            assert_all_ways(&spec, index, values.clone(), |values| values.into_iter().reduce(fold).unwrap());
            assert_all_ways(&spec, index, values.clone(), |values| {
                values.into_iter().rev().reduce(fold).unwrap()
            });
            assert_all_ways(&spec, index, values, |values| by_halves(op, &values));
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

/// Tests the orders with the most extreme partial results: values sorted by size, ascending and descending.
fn the_largest_and_smallest_partial_results_are_exact<T: Number>() {
    let sign = if T::DATA_TYPE.is_float() { 1 << (8 * size_of::<T>() - 1) } else { 0 };
    for op in [Op::Sum, Op::Prod, Op::MulSum] {
        let spec = reduction_spec::<T>(12, 8, op);
        // All eight scaling ranks of a product alternate in one of 128 elements. For 8-bit floats, with the
        // smallest range, one of 32 elements has the largest (smallest) result.
        let tiny = size_of::<T>() == 1 && T::DATA_TYPE.is_float();
        for index in 0..if tiny && op == Op::Prod { 60_000 } else { 1000 } {
            let mut values = rank_inputs::<T>(&spec, index);
            values.sort_by_key(|value| value.bits() & !sign);
            for values in [values.clone(), values.into_iter().rev().collect()] {
                let result =
                    values.into_iter().reduce(|left, right| combine_values(op, left, right)).unwrap();
                assert_right(&spec, index, result, "sorted by size");
            }
        }
    }
}

#[test]
fn orders_by_size_are_exact() {
    for_all_types!(the_largest_and_smallest_partial_results_are_exact());
}

/// Tests averages of many elements over every small number of ranks: the tolerance holds, also next to powers
/// of two.
fn averages_are_within_tolerance<T: Number>() {
    for ranks in 2..70 {
        let spec = reduction_spec::<T>(5, ranks, Op::Avg);
        let exact = T::reciprocal(1).is_none() || ranks.is_power_of_two();
        let expected_tolerance = match T::DATA_TYPE {
            _ if exact => 0,
            DataType::Float8E4M3 if ranks <= 64 => 0,
            DataType::Float8E5M2 => 0,
            _ => 2,
        };
        assert_eq!(spec.bit_tolerance().unwrap(), expected_tolerance);
        for index in 0..150 {
            let values = rank_inputs::<T>(&spec, index);
            assert_all_ways(&spec, index, values, |values| values.into_iter().reduce(T::add).unwrap());
        }
    }
}

#[test]
fn averages_over_any_number_of_ranks_are_within_the_tolerance() {
    for_all_types!(averages_are_within_tolerance());
}

/// Tests the hardest case of the tolerance: all significands of f16 over many numbers of ranks.
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

/// Tests averages of 8-bit floats over every number of ranks up to the first zero average, and beyond. Only
/// the two contributing ranks are summed; all others contribute zeros (also summed by the tests above).
fn tiny_averages_are_within_tolerance<T: Number>(limits: [u32; 4], indices: u64) {
    let [exact_to, powers_of_two_exact_to, per_unit, zero_from] = limits;
    let mut largest = 0;
    for ranks in 3..zero_from + 100 {
        let spec = reduction_spec::<T>(6, ranks, Op::Avg);
        let tolerance = spec.bit_tolerance().unwrap();
        if ranks.is_power_of_two() && ranks <= powers_of_two_exact_to {
            assert_eq!(tolerance, 0);
            continue; // all ranks contribute: summed above
        }
        let most = match ranks {
            _ if ranks <= exact_to || ranks >= zero_from => 0,
            _ => 1 + u64::from(ranks / per_unit),
        };
        assert!(tolerance <= most, "{tolerance} > {most} for {ranks} ranks");
        for index in 0..indices {
            let (recipe, _) = Recipe::new(&spec, ElementSource::Rank(0)).unwrap();
            let position = position_of(&recipe, mix(recipe.key.wrapping_add(index)));
            let first = (ranks - position) % ranks;
            let pair: Vec<T> =
                [first, (first + 1) % ranks].map(|rank| rank_input(&spec, rank, index)).to_vec();
            assert_eq!(pair[0].bits(), pair[1].bits());
            assert!(pair[0].is_plain(), "{spec:?} at {index}: {pair:?}");
            let zero: T = rank_input(&spec, (first + 2) % ranks, index);
            assert_eq!(zero.bits(), 0);
            let right = expected_value::<T>(&spec, index);
            assert_eq!(right.bits() == 0, ranks >= zero_from, "{spec:?} at {index}: {right:?}");
            let result = pair[0].add(pair[1]).multiply(T::reciprocal(ranks).unwrap());
            largest = largest.max(result.bits().abs_diff(right.bits()));
            let sum = |values: Vec<T>| values[0].add(values[1]);
            assert_all_ways(&spec, index, pair, sum);
        }
    }
    assert!(largest > 2, "no such tolerance is needed: {largest}");
}

#[test]
fn averages_of_8_bit_floats_are_within_the_tolerance_for_every_number_of_ranks() {
    tiny_averages_are_within_tolerance::<F8E4M3>([64, 512, 1 << 6, 1 << 10], 60);
    tiny_averages_are_within_tolerance::<F8E5M2>([128, 1024, 1 << 14, 1 << 17], 1);
}

#[test]
fn the_model_of_8_bit_floats_has_the_values_of_the_float8_crate() {
    for bits in 0..=0xff {
        let size = usize::from(bits & 0x7f);
        let ours = |values: &[f64]| values.get(size).map(|&size| if bits < 0x80 { size } else { -size });
        let theirs = [F8E4M3::from_bits(bits).to_f64(), F8E5M2::from_bits(bits).to_f64()];
        for (ours, theirs) in [ours(F8E4M3::values()), ours(F8E5M2::values())].into_iter().zip(theirs) {
            match ours {
                Some(value) => assert_eq!(value, theirs, "0x{bits:02x}"),
                None => assert!(!theirs.is_finite(), "0x{bits:02x}: {theirs}"),
            }
        }
    }
    // Halfway cases, and values beyond the largest one.
    let e4m3 = [1.0625, 1.1875, 500.0, -1e9, 0.0009765625, 0.001].map(|value| F8E4M3::round(value).to_bits());
    assert_eq!(e4m3, [0x38, 0x3a, 0x7e, 0xfe, 0, 1]);
    let e5m2 = [1.125, 1.375, 60000.0, -0.0].map(|value| F8E5M2::round(value).to_bits());
    assert_eq!(e5m2, [0x3c, 0x3e, 0x7b, 0x80]);
}

fn a_wrong_peer_is_found<T: Number>() {
    for ranks in [2, 3, 8, 17] {
        for op in Op::ALL {
            let spec = reduction_spec::<T>(99, ranks, op);
            let bits = |value: T| element_bytes(value);
            let mut unchanged = [0; 3];
            let mut neighbours = 0;
            const ELEMENTS: u64 = 2000;
            for index in 0..ELEMENTS {
                let right = rank_inputs::<T>(&spec, index);
                let finish = |values: Vec<T>| {
                    let sum =
                        values.into_iter().reduce(|left, right| combine_values(op, left, right)).unwrap();
                    if op == Op::Avg { sum.divide(ranks) } else { sum }
                };
                let wrong = |values| {
                    check(&spec, &[ExpectedSegment::reduced(index, 1)], &bits(finish(values))).unwrap().wrong
                };
                let mut other_peer = right.clone();
                other_peer[0] = right[1];
                let mut missing = right.clone();
                missing.remove(0);
                let mut other_element = right.clone();
                other_element[0] = rank_contribution(&spec, 0, index + 1);
                unchanged[0] += 1 - wrong(other_peer);
                unchanged[1] += 1 - wrong(missing);
                unchanged[2] += 1 - wrong(other_element);
                let next = expected_value::<T>(&spec, index + 1);
                neighbours +=
                    1 - check(&spec, &[ExpectedSegment::reduced(index, 1)], &bits(next)).unwrap().wrong;
            }
            // Max and min show a rank only when it has the extreme value, averages of floats only when it is
            // one of the two contributing ranks. Shares of i8 averages over 17 ranks have only three bits.
            // Shares of sums of 8-bit floats are often zero or one, and often equal to their neighbours.
            let tiny = matches!(T::DATA_TYPE, DataType::Float8E4M3 | DataType::Float8E5M2);
            let visible = match op {
                Op::Sum | Op::MulSum | Op::Avg if tiny => 0.7 / f64::from(ranks),
                Op::Max | Op::Min => 0.7 / f64::from(ranks),
                Op::Prod => 0.3,
                Op::Avg if size_of::<T>() == 1 => 0.1,
                Op::Avg if !ranks.is_power_of_two() => 1.0 / f64::from(ranks),
                _ => 0.6,
            };
            let limit = (ELEMENTS as f64 * (1.0 - visible)) as u64;
            assert!(unchanged.iter().all(|&count| count <= limit), "{spec:?}: {unchanged:?} > {limit}");
            let alike = if size_of::<T>() == 1 { ELEMENTS / 5 } else { ELEMENTS / 100 };
            assert!(neighbours <= alike, "{spec:?}: {neighbours} elements are like the next");
        }
    }
}

#[test]
fn a_missing_rank_a_wrong_rank_and_a_wrong_element_are_found() {
    for_all_types!(a_wrong_peer_is_found());
}

fn values_are_plain<T: Number>() {
    for op in [None].into_iter().chain(Op::ALL.map(Some)) {
        for ranks in [1, 2, 8, 300, 5000] {
            let spec = DataSpec { seed: 1, ranks, op, data_type: T::DATA_TYPE };
            for index in 0..300 {
                let value: T = rank_input(&spec, (index % u64::from(ranks)) as u32, index);
                let zero_allowed = matches!(op, Some(Op::Sum | Op::Avg | Op::MulSum)) && ranks > 1;
                assert!(value.is_plain() || zero_allowed && value.bits() == 0, "{spec:?}: {value:?}");
                if op.is_some() {
                    let result = expected_value::<T>(&spec, index);
                    let vanishes = (op, T::DATA_TYPE, ranks) == (Some(Op::Avg), DataType::Float8E4M3, 5000);
                    assert!(result.is_plain() != vanishes, "{spec:?} at {index}: {result:?}");
                    assert!(!vanishes || result.bits() == 0, "{spec:?} at {index}: {result:?}");
                }
            }
        }
    }
}

#[test]
fn values_are_normal_numbers_and_zeros_only_shares_of_sums() {
    for_all_types!(values_are_plain());
}
