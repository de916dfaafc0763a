//! Shows that the data does what value.rs says: any order of a reduction gives the expected bits.

use std::sync::LazyLock;

use collectives::{DataType, Element};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::hash::mix;
use super::recipe::Recipe;
use super::value::position_of;
use super::{DataSpec, ElementSource, ExpectedSegment, Op, check, fill_input};

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
    /// The factor that NCCL applies before it sums: 1/ranks rounded to the type. `None` for integers, where it
    /// divides.
    fn reciprocal(ranks: u32) -> Option<Self>;
    /// The sum times 1/ranks in the wider type that NCCL's symmetric kernels calculate averages in, rounded once.
    /// `None` where they have no wider one.
    fn average_in_wider_type(self, ranks: u32) -> Option<Self>;
    /// The factor of an input in a mulsum.
    fn scalar(scale: f64) -> Self;
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
            fn average_in_wider_type(self, _: u32) -> Option<Self> {
                None
            }
            fn scalar(scale: f64) -> Self {
                scale as $type
            }
            fn is_plain(self) -> bool {
                true
            }
        }
    )*};
}
integers!(i8 u8 i32 u32 i64 u64);

macro_rules! floats {
    ($($type:ty: $from:expr, $wider:expr;)*) => {$(
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
            fn average_in_wider_type(self, ranks: u32) -> Option<Self> {
                $wider(self, ranks)
            }
            fn scalar(scale: f64) -> Self {
                $from(scale)
            }
            fn is_plain(self) -> bool {
                self.is_normal()
            }
        }
    )*};
}
floats! {
    f16: f16::from_f64, |sum: f16, ranks| Some(f16::from_f32(sum.to_f32() * single_reciprocal(ranks)));
    bf16: bf16::from_f64, |sum: bf16, ranks| Some(bf16::from_f32(sum.to_f32() * single_reciprocal(ranks)));
    f32: |value: f64| value as f32, |_, _| None;
    f64: |value: f64| value, |_, _| None;
}

fn single_reciprocal(ranks: u32) -> f32 {
    (1.0 / f64::from(ranks)) as f32
}

/// The 8-bit floats, as NCCL calculates with them: each step in half precision, then rounded to the type.
///
/// Conversions are by a table of all finite values, which is independent of any bit trick.
macro_rules! tiny_floats {
    ($($type:ty: $significand:literal, $bias:literal, $largest:literal;)*) => {$(
        impl Number for $type {
            fn from_bytes(bytes: &[u8]) -> Self {
                Self::from_bits(bytes[0])
            }
            fn bits(self) -> u64 {
                self.to_bits().into()
            }
            fn add(self, other: Self) -> Self {
                round_half(wide(self) + wide(other))
            }
            fn multiply(self, other: Self) -> Self {
                round_half(wide(self) * wide(other))
            }
            fn largest(self, other: Self) -> Self {
                if wide(self) > wide(other) { self } else { other }
            }
            fn smallest(self, other: Self) -> Self {
                if wide(self) < wide(other) { self } else { other }
            }
            fn divide(self, ranks: u32) -> Self {
                Self::round(wide(self) / f64::from(ranks))
            }
            fn reciprocal(ranks: u32) -> Option<Self> {
                Some(Self::round(f64::from(single_reciprocal(ranks))))
            }
            fn average_in_wider_type(self, ranks: u32) -> Option<Self> {
                Some(round_half(wide(self) * f64::from(f16::from_f32(single_reciprocal(ranks)))))
            }
            fn scalar(scale: f64) -> Self {
                Self::round(scale)
            }
            fn is_plain(self) -> bool {
                wide(self).abs() >= f64::powi(2.0, 1 - $bias)
            }
        }

        impl TinyFloat for $type {
            fn values() -> &'static [f64] {
                static VALUES: LazyLock<Vec<f64>> = LazyLock::new(|| {
                    let values = (0..=$largest).map(|bits: u32| {
                        let fraction = f64::from(bits % (1 << ($significand - 1)));
                        let exponent = (bits >> ($significand - 1)) as i32;
                        let hidden = if exponent == 0 { 0.0 } else { f64::powi(2.0, $significand - 1) };
                        (hidden + fraction) * f64::powi(2.0, exponent.max(1) - $bias - ($significand - 1))
                    });
                    values.collect()
                });
                &VALUES
            }
            fn from_pattern(bits: u8) -> Self {
                Self::from_bits(bits)
            }
            fn pattern(self) -> u8 {
                self.to_bits()
            }
        }
    )*};
}
tiny_floats! {
    F8E4M3: 4, 7, 0x7e;
    F8E5M2: 3, 15, 0x7b;
}

trait TinyFloat: Sized {
    /// The finite values from 0 up: their indices are their bits.
    fn values() -> &'static [f64];
    fn from_pattern(bits: u8) -> Self;
    fn pattern(self) -> u8;

    /// To the nearest, of two the one with even bits; values beyond the largest become it.
    fn round(value: f64) -> Self {
        let values = Self::values();
        let size = value.abs();
        assert!(!size.is_nan());
        let above = values.partition_point(|&known| known < size);
        let nearest = match (above.checked_sub(1), values.get(above)) {
            (Some(below), None) => below,
            (None, _) => above,
            (Some(below), Some(next)) => {
                let (down, up) = (size - values[below], next - size);
                if down < up || down == up && below % 2 == 0 { below } else { above }
            }
        };
        Self::from_pattern(nearest as u8 | if value.is_sign_negative() { 0x80 } else { 0 })
    }
}

/// The value, which must be finite.
fn wide<T: TinyFloat>(value: T) -> f64 {
    let bits = value.pattern();
    let size = T::values()[usize::from(bits & 0x7f)];
    if bits & 0x80 == 0 { size } else { -size }
}

/// An exact result of a step, rounded to half precision and then to the type.
fn round_half<T: TinyFloat>(exact: f64) -> T {
    T::round(f16::from_f64(exact).into())
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
        $test::<F8E4M3>($($argument),*);
        $test::<F8E5M2>($($argument),*);
    };
}

fn spec<T: Number>(seed: u64, ranks: u32, op: Op) -> DataSpec {
    DataSpec { seed, ranks, op: Some(op), data_type: T::DATA_TYPE }
}

/// The inputs of all ranks; for mulsum what is summed of them.
fn inputs<T: Number>(spec: &DataSpec, index: u64) -> Vec<T> {
    (0..spec.ranks).map(|rank| contribution(spec, rank, index)).collect()
}

fn contribution<T: Number>(spec: &DataSpec, rank: u32, index: u64) -> T {
    let value: T = input(spec, rank, index);
    if spec.op == Some(Op::MulSum) { value.multiply(T::scalar(Op::scale_of(rank))) } else { value }
}

fn input<T: Number>(spec: &DataSpec, rank: u32, index: u64) -> T {
    let mut bytes = [0; 8];
    let element = &mut bytes[..size_of::<T>()];
    fill_input(spec, rank, index, element).unwrap();
    T::from_bytes(element)
}

fn element_bytes<T: Number>(value: T) -> Vec<u8> {
    value.bits().to_le_bytes()[..size_of::<T>()].to_vec()
}

/// The value that the checker accepts for one element, found by checking a wrong one.
fn expected<T: Number>(spec: &DataSpec, index: u64) -> T {
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

fn combine<T: Number>(op: Op, left: T, right: T) -> T {
    match op {
        Op::Sum | Op::Avg | Op::MulSum => left.add(right),
        Op::Prod => left.multiply(right),
        Op::Max => left.largest(right),
        Op::Min => left.smallest(right),
    }
}

/// Reduces in the order of a random tree over shuffled ranks: `choices` pairs what is left over and over.
fn reduce_as_tree<T: Number>(op: Op, mut values: Vec<T>, choices: &[usize]) -> T {
    let mut choices = choices.iter().cycle();
    while values.len() > 1 {
        let left = values.swap_remove(choices.next().unwrap() % values.len());
        let right = values.swap_remove(choices.next().unwrap() % values.len());
        values.push(combine(op, left, right));
    }
    values[0]
}

/// Every way to do the operator that a backend may have, each with the same order of combining.
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
                let spec = spec::<T>(seed, ranks, op);
                let values = inputs::<T>(&spec, index);
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

/// Forwards, backwards, and by halves.
fn many_ranks_are_exact<T: Number>(ranks: u32, indices: u64) {
    fn by_halves<T: Number>(op: Op, values: &[T]) -> T {
        match values {
            [one] => *one,
            _ => {
                let (left, right) = values.split_at(values.len() / 2);
                combine(op, by_halves(op, left), by_halves(op, right))
            }
        }
    }
    for op in Op::ALL {
        let spec = spec::<T>(11, ranks, op);
        for index in 0..indices {
            let fold = |left, right| combine(op, left, right);
            let values = inputs::<T>(&spec, index);
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

/// The orders that lead furthest away from the result: all that grows first, and all that shrinks first.
fn the_largest_and_smallest_partial_results_are_exact<T: Number>() {
    let sign = if T::DATA_TYPE.is_float() { 1 << (8 * size_of::<T>() - 1) } else { 0 };
    for op in [Op::Sum, Op::Prod, Op::MulSum] {
        let spec = spec::<T>(12, 8, op);
        // All eight scaling ranks of a product alternate in one of 128 elements, and the largest (smallest) result of
        // 8-bit floats, which have the least room, is one of 32.
        let tiny = size_of::<T>() == 1 && T::DATA_TYPE.is_float();
        for index in 0..if tiny && op == Op::Prod { 60_000 } else { 1000 } {
            let mut values = inputs::<T>(&spec, index);
            values.sort_by_key(|value| value.bits() & !sign);
            for values in [values.clone(), values.into_iter().rev().collect()] {
                let result = values.into_iter().reduce(|left, right| combine(op, left, right)).unwrap();
                assert_right(&spec, index, result, "sorted by size");
            }
        }
    }
}

#[test]
fn orders_by_size_are_exact() {
    for_all_types!(the_largest_and_smallest_partial_results_are_exact());
}

/// Averages over every small number of ranks, many elements: the tolerance holds, also next to powers of two.
fn averages_are_within_tolerance<T: Number>() {
    for ranks in 2..70 {
        let spec = spec::<T>(5, ranks, Op::Avg);
        let exact = T::reciprocal(1).is_none() || ranks.is_power_of_two();
        let expected_tolerance = match T::DATA_TYPE {
            _ if exact => 0,
            DataType::Float8E4M3 if ranks <= 64 => 0,
            DataType::Float8E5M2 => 0,
            _ => 2,
        };
        assert_eq!(spec.tolerance().unwrap(), expected_tolerance);
        for index in 0..150 {
            let values = inputs::<T>(&spec, index);
            assert_all_ways(&spec, index, values, |values| values.into_iter().reduce(T::add).unwrap());
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

/// Averages of 8-bit floats over every number of ranks up to where they are zero, and beyond. Only the two ranks that
/// contribute are summed; all others contribute zeros (which the tests above sum as well).
fn tiny_averages_are_within_tolerance<T: Number>(limits: [u32; 4], indices: u64) {
    let [exact_to, powers_of_two_exact_to, per_unit, zero_from] = limits;
    let mut largest = 0;
    for ranks in 3..zero_from + 100 {
        let spec = spec::<T>(6, ranks, Op::Avg);
        let tolerance = spec.tolerance().unwrap();
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
            let pair: Vec<T> = [first, (first + 1) % ranks].map(|rank| input(&spec, rank, index)).to_vec();
            assert_eq!(pair[0].bits(), pair[1].bits());
            assert!(pair[0].is_plain(), "{spec:?} at {index}: {pair:?}");
            let zero: T = input(&spec, (first + 2) % ranks, index);
            assert_eq!(zero.bits(), 0);
            let right = expected::<T>(&spec, index);
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
    // Halfway cases and beyond the largest value.
    let e4m3 = [1.0625, 1.1875, 500.0, -1e9, 0.0009765625, 0.001].map(|value| F8E4M3::round(value).to_bits());
    assert_eq!(e4m3, [0x38, 0x3a, 0x7e, 0xfe, 0, 1]);
    let e5m2 = [1.125, 1.375, 60000.0, -0.0].map(|value| F8E5M2::round(value).to_bits());
    assert_eq!(e5m2, [0x3c, 0x3e, 0x7b, 0x80]);
}

fn a_wrong_peer_is_found<T: Number>() {
    for ranks in [2, 3, 8, 17] {
        for op in Op::ALL {
            let spec = spec::<T>(99, ranks, op);
            let bits = |value: T| element_bytes(value);
            let mut unchanged = [0; 3];
            let mut neighbours = 0;
            const ELEMENTS: u64 = 2000;
            for index in 0..ELEMENTS {
                let right = inputs::<T>(&spec, index);
                let finish = |values: Vec<T>| {
                    let sum = values.into_iter().reduce(|left, right| combine(op, left, right)).unwrap();
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
                other_element[0] = contribution(&spec, 0, index + 1);
                unchanged[0] += 1 - wrong(other_peer);
                unchanged[1] += 1 - wrong(missing);
                unchanged[2] += 1 - wrong(other_element);
                let next = expected::<T>(&spec, index + 1);
                neighbours +=
                    1 - check(&spec, &[ExpectedSegment::reduced(index, 1)], &bits(next)).unwrap().wrong;
            }
            // Max and min show a rank only where it has the extreme, averages of floats only where it is of the two;
            // shares of i8 averages over 17 ranks have only three bits. Shares of sums of 8-bit floats are often
            // zero or one, and neighbours' often the same.
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
                let value: T = input(&spec, (index % u64::from(ranks)) as u32, index);
                let zero_allowed = matches!(op, Some(Op::Sum | Op::Avg | Op::MulSum)) && ranks > 1;
                assert!(value.is_plain() || zero_allowed && value.bits() == 0, "{spec:?}: {value:?}");
                if op.is_some() {
                    let result = expected::<T>(&spec, index);
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

#[test]
fn data_depends_on_seed_rank_and_index_but_not_on_where_a_fill_starts() {
    for data_type in DataType::ALL {
        for op in [None].into_iter().chain(Op::ALL.map(Some)) {
            let spec = DataSpec { seed: 42, ranks: 5, op, data_type };
            let size = data_type.size();
            let fill = |spec: &DataSpec, rank, first_index| {
                let mut bytes = vec![0; 64 * size];
                fill_input(spec, rank, first_index, &mut bytes).unwrap();
                bytes
            };
            // Indices beyond 2^32 elements.
            let start = (1 << 33) + 5;
            let bytes = fill(&spec, 2, start);
            assert_eq!(bytes[7 * size..], fill(&spec, 2, start + 7)[..57 * size]);
            assert_ne!(bytes, fill(&spec, 2, 5));
            assert_ne!(bytes, fill(&spec, 3, start));
            assert_ne!(bytes, fill(&DataSpec { seed: 43, ..spec }, 2, start));
        }
    }
}

#[test]
fn corruption_is_found_with_index_expected_and_found_value() {
    for data_type in DataType::ALL {
        let spec = DataSpec { seed: 8, ranks: 4, op: None, data_type };
        let size = data_type.size();
        let count = 33;
        let segments: Vec<_> = (0..4).map(|rank| ExpectedSegment::copied(rank, 10, count)).collect();
        let mut bytes = vec![0; 4 * count as usize * size];
        for (rank, part) in (0..).zip(bytes.chunks_exact_mut(count as usize * size)) {
            fill_input(&spec, rank, 10, part).unwrap();
        }
        assert_eq!(check(&spec, &segments, &bytes).unwrap(), super::Mismatches::default());
        for index in [0, 32, 33, 70, 4 * count as usize - 1] {
            let mut spoilt = bytes.clone();
            spoilt[index * size] ^= 1;
            let found = check(&spec, &segments, &spoilt).unwrap();
            let first = found.first.unwrap();
            assert_eq!((found.wrong, first.index), (1, index as u64));
            assert_eq!(first.expected_bits ^ first.found_bits, 1);
            let mut expected = [0; 8];
            expected[..size].copy_from_slice(&bytes[index * size..][..size]);
            assert_eq!(first.expected_bits, u64::from_le_bytes(expected));
            // The first of several wrong ones, in whichever segment.
            spoilt[(4 * count as usize - 1) * size] ^= 2;
            spoilt[60 * size] ^= 4;
            let found = check(&spec, &segments, &spoilt).unwrap();
            assert_eq!(found.first.unwrap().index, index.min(60) as u64);
        }
    }
}

/// All bit patterns of NaNs of the 8-bit and 16-bit types; of the others those of the ends.
fn nans(data_type: DataType) -> Vec<u64> {
    let of_both_signs = |bits: &[u64], sign: u64| bits.iter().flat_map(|bits| [*bits, bits | sign]).collect();
    match data_type {
        DataType::Float8E4M3 => of_both_signs(&[0x7f], 0x80),
        DataType::Float8E5M2 => of_both_signs(&[0x7d, 0x7e, 0x7f], 0x80),
        DataType::Float16 => of_both_signs(&(0x7c01..=0x7fff).collect::<Vec<_>>(), 0x8000),
        DataType::Bfloat16 => of_both_signs(&(0x7f81..=0x7fff).collect::<Vec<_>>(), 0x8000),
        DataType::Float32 => of_both_signs(&[0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff], 1 << 31),
        DataType::Float64 => {
            of_both_signs(&[0x7ff0_0000_0000_0001, 0x7ff8_0000_0000_0000, i64::MAX as u64], 1 << 63)
        }
        _ => Vec::new(),
    }
}

#[test]
fn a_nan_is_wrong_and_shown_as_such() {
    for data_type in DataType::ALL.into_iter().filter(|data_type| data_type.is_float()) {
        let spec = |op, ranks| DataSpec { seed: 4, ranks, op, data_type };
        let mut problems: Vec<_> = Op::ALL.map(|op| spec(Some(op), 8)).to_vec();
        let many = [(1 << 17) - 1, 1 << 17, DataSpec::MAX_RANKS - 1, DataSpec::MAX_RANKS];
        problems.extend(
            (3..1100)
                .step_by(if data_type.size() == 1 { 1 } else { 100 })
                .chain(many)
                .map(|ranks| spec(Some(Op::Avg), ranks)),
        );
        let nans = nans(data_type);
        assert!(!nans.is_empty());
        for spec in problems {
            for index in 0..8 {
                for bits in nans.iter().skip(index as usize % 2) {
                    let received = &bits.to_le_bytes()[..data_type.size()];
                    for segment in [ExpectedSegment::reduced(index, 1), ExpectedSegment::copied(1, index, 1)]
                    {
                        let found = check(&spec, &[segment], received).unwrap();
                        assert_eq!(found.wrong, 1, "{spec:?} at {index}: 0x{bits:x}");
                        let text = found.first.unwrap().to_string();
                        let shown = format!(", found NaN (0x{bits:0width$x})", width = 2 * data_type.size());
                        assert!(text.ends_with(&shown), "{text}");
                        assert!(!text.contains("expected NaN"), "{text}");
                    }
                }
            }
        }
    }
}

/// In the order of bit patterns, the last NaN is next to the negative zero: also where the tolerance is largest, no
/// average is so small that it comes within it.
#[test]
fn a_nan_is_wrong_beside_the_smallest_averages_with_the_largest_tolerance() {
    for (data_type, ranks) in [
        (DataType::Float8E4M3, (1 << 10) - 1),
        (DataType::Float8E5M2, (1 << 17) - 1),
        (DataType::Float16, DataSpec::MAX_RANKS),
        (DataType::Bfloat16, DataSpec::MAX_RANKS),
    ] {
        let spec = DataSpec { seed: 2, ranks, op: Some(Op::Avg), data_type };
        let last_nan = u64::MAX >> (65 - 8 * data_type.size());
        for index in 0..40_000 {
            let received = &last_nan.to_le_bytes()[..data_type.size()];
            let found = check(&spec, &[ExpectedSegment::reduced(index, 1)], received).unwrap();
            assert_eq!(found.wrong, 1, "{spec:?} at {index}");
        }
    }
}

#[test]
fn a_mismatch_shows_values_and_bits() {
    let show = |data_type, expected_bits, found_bits| {
        super::WrongElement { index: 17, expected_bits, found_bits, data_type }.to_string()
    };
    let f16_text = show(DataType::Float16, 0x4300, 0);
    assert_eq!(f16_text, "element 17: expected 3.5 (0x4300), found 0.0 (0x0000)");
    let i8_text = show(DataType::Int8, 0xff, 0x7f);
    assert_eq!(i8_text, "element 17: expected -1 (0xff), found 127 (0x7f)");
    let f64_text = show(DataType::Float64, 1e300_f64.to_bits(), f64::NAN.to_bits());
    assert_eq!(f64_text, "element 17: expected 1e300 (0x7e37e43c8800759c), found NaN (0x7ff8000000000000)");
    let e4m3_text = show(DataType::Float8E4M3, 0x38, 0xff);
    assert_eq!(e4m3_text, "element 17: expected 1.0 (0x38), found NaN (0xff)");
    let e4m3_text = show(DataType::Float8E4M3, 0xfe, 0x01);
    assert_eq!(e4m3_text, "element 17: expected -448.0 (0xfe), found 0.001953125 (0x01)");
    let e5m2_text = show(DataType::Float8E5M2, 0xfb, 0x7c);
    assert_eq!(e5m2_text, "element 17: expected -57344.0 (0xfb), found inf (0x7c)");
    let u64_text = show(DataType::Uint64, u64::MAX, 1);
    assert_eq!(
        u64_text,
        "element 17: expected 18446744073709551615 (0xffffffffffffffff), found 1 (0x0000000000000001)"
    );
}

#[test]
fn problems_that_are_not_defined_are_errors() {
    let spec = DataSpec { seed: 0, ranks: 2, op: None, data_type: DataType::Float32 };
    let fill = |spec: &DataSpec, rank, length| {
        fill_input(spec, rank, 0, &mut vec![0; length]).unwrap_err().to_string()
    };
    let most = "ranks; give 1 to 16777216 ranks";
    assert_eq!(fill(&DataSpec { ranks: 0, ..spec }, 0, 4), format!("test data: 0 {most}"));
    let many = DataSpec { ranks: DataSpec::MAX_RANKS + 1, ..spec };
    assert_eq!(fill(&many, 0, 4), format!("test data: 16777217 {most}"));
    assert!(fill(&spec, 2, 4).contains("there is no rank 2 among 2 ranks"));
    assert!(fill(&spec, 0, 7).contains("the buffer has 7 bytes, but must have 4"));
    let check = |segments: &[ExpectedSegment], length| {
        check(&spec, segments, &vec![0; length]).unwrap_err().to_string()
    };
    assert!(check(&[ExpectedSegment::reduced(0, 1)], 4).contains("needs an operator"));
    let short = check(&[ExpectedSegment::copied(0, 0, 2), ExpectedSegment::copied(1, 0, 1)], 8);
    assert!(short.contains("has 8 bytes, but must have 12"), "{short}");
    let huge = check(&[ExpectedSegment::copied(0, 0, u64::MAX), ExpectedSegment::copied(1, 0, 9)], 8);
    assert!(huge.contains("has 8 bytes, but must have 18446744073709551615"), "{huge}");
}
