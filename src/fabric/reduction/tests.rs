//! Every loop against one element at a time.

use std::fmt::Debug;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use super::*;

/// A type's bits, its reference results, and important values.
trait Reference: Operand + Debug {
    const DATA_TYPE: DataType;
    fn values() -> Vec<Self>;
    fn reference(a: Self, b: Self, op: ReduceOp) -> Self;
    fn divided(self, ranks: usize) -> Self;
    /// True when both are the same number, with its sign, or both are NaN.
    fn same(self, other: Self) -> bool;
}

macro_rules! integers {
    ($($type:ty: $tag:ident),*) => {$(
        impl Reference for $type {
            const DATA_TYPE: DataType = DataType::$tag;
            fn values() -> Vec<Self> {
                let (min, max) = (Self::MIN, Self::MAX);
                let middle = [max / 3, max / 2 + 1, min / 2];
                [&[min, min + 1, 0, 1, 2, 3, 7, 100, max - 1, max, 0x55, 0x2a][..], &middle].concat()
            }
            fn reference(a: Self, b: Self, op: ReduceOp) -> Self {
                let (wide_a, wide_b) = (a as i128, b as i128);
                (match op {
                    ReduceOp::Sum | ReduceOp::Avg => wide_a + wide_b,
                    ReduceOp::Prod => wide_a.wrapping_mul(wide_b),
                    ReduceOp::Max => wide_a.max(wide_b),
                    ReduceOp::Min => wide_a.min(wide_b),
                }) as Self
            }
            fn divided(self, ranks: usize) -> Self {
                (self as i128 / ranks as i128) as Self
            }
            fn same(self, other: Self) -> bool {
                self == other
            }
        }
    )*};
}

/// IEEE 754's maximum: a NaN wins, and -0 < +0.
fn larger(x: f64, y: f64) -> f64 {
    if x.is_nan() || y.is_nan() {
        f64::NAN
    } else if x == y {
        if x.is_sign_positive() { x } else { y }
    } else if x > y {
        x
    } else {
        y
    }
}

macro_rules! floats {
    ($($type:ident: $tag:ident, $from:expr, $to:expr);*) => {$(
        impl Reference for $type {
            const DATA_TYPE: DataType = DataType::$tag;
            fn values() -> Vec<Self> {
                let one = $from(1.0);
                let mut values = vec![
                    $from(0.0), $from(-0.0), one, $from(-1.5), $from(3.25), $from(1e-3), $from(-65504.0),
                    $from(0.1), $from(1.0 / 3.0), $from(1234.5), $type::MAX, $type::MIN, $type::INFINITY,
                    $type::NEG_INFINITY, $type::NAN, $type::MIN_POSITIVE, $type::EPSILON,
                ];
                // The smallest subnormal, the largest, and the neighbours of one.
                let largest = $type::MIN_POSITIVE.to_bits() - 1;
                values.extend([1, largest, one.to_bits() - 1, one.to_bits() + 1].map($type::from_bits));
                values
            }
            fn reference(a: Self, b: Self, op: ReduceOp) -> Self {
                let (x, y) = ($to(a), $to(b));
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => a + b,
                    ReduceOp::Prod => a * b,
                    ReduceOp::Max => $from(larger(x, y)),
                    ReduceOp::Min => $from(-larger(-x, -y)),
                }
            }
            fn divided(self, ranks: usize) -> Self {
                // Twice the bits and more: rounding the quotient to f64 first does not change it.
                $from($to(self) / ranks as f64)
            }
            fn same(self, other: Self) -> bool {
                self.to_bits() == other.to_bits() || (self.is_nan() && other.is_nan())
            }
        }
    )*};
}

/// A float of 8 bits by its definition, value by value.
trait EightBits: Reference {
    /// Bits of the fraction.
    const FRACTION: u32;
    const BIAS: i32;
    const LARGEST: u8;
    /// The patterns of NaN without a sign.
    const NANS: std::ops::RangeInclusive<u8>;

    fn of_bits(bits: u8) -> Self;
    fn bits(self) -> u8;

    fn value(self) -> f64 {
        let magnitude = self.bits() & 0x7f;
        let (exponent, fraction) =
            (i32::from(magnitude >> Self::FRACTION), magnitude % (1 << Self::FRACTION));
        let fraction = f64::from(fraction) / f64::from(1 << Self::FRACTION);
        let value = if Self::NANS.contains(&magnitude) {
            f64::NAN
        } else if magnitude > Self::LARGEST {
            f64::INFINITY
        } else if exponent == 0 {
            fraction * 2_f64.powi(1 - Self::BIAS)
        } else {
            (1.0 + fraction) * 2_f64.powi(exponent - Self::BIAS)
        };
        if self.bits() < 0x80 { value } else { -value }
    }

    /// The nearest finite value, of two the value with even bits.
    fn nearest(value: f64) -> Self {
        if value.is_nan() {
            return Self::of_bits(*Self::NANS.end());
        }
        let absolute = value.abs().min(Self::of_bits(Self::LARGEST).value());
        // The values grow with their bits, and the last one is not below `absolute`.
        let (mut below, mut above) = (0, Self::LARGEST);
        while below + 1 < above {
            let middle = below.midpoint(above);
            if Self::of_bits(middle).value() <= absolute { below = middle } else { above = middle }
        }
        let distance = |bits: u8| (Self::of_bits(bits).value() - absolute).abs();
        let nearer = match distance(below).total_cmp(&distance(above)) {
            std::cmp::Ordering::Less => below,
            std::cmp::Ordering::Greater => above,
            std::cmp::Ordering::Equal => below + below % 2,
        };
        Self::of_bits(nearer | if value.is_sign_negative() { 0x80 } else { 0 })
    }
}

macro_rules! eight_bits {
    ($($type:ident: $tag:ident, $fraction:literal, $bias:literal, $largest:literal, $nans:expr);*) => {$(
        impl EightBits for $type {
            const FRACTION: u32 = $fraction;
            const BIAS: i32 = $bias;
            const LARGEST: u8 = $largest;
            const NANS: std::ops::RangeInclusive<u8> = $nans;
            fn of_bits(bits: u8) -> Self {
                Self::from_bits(bits)
            }
            fn bits(self) -> u8 {
                self.to_bits()
            }
        }
        impl Reference for $type {
            const DATA_TYPE: DataType = DataType::$tag;
            fn values() -> Vec<Self> {
                // Zero, subnormals, ones with neighbours; the largest values, infinities and NaNs of both
                // formats.
                let positive = [0, 1, 2, 3, 4, 7, 8, 9, 0x21, 0x37, 0x38, 0x39, 0x3b, 0x3c, 0x3d, 0x45];
                let largest = [0x7a, 0x7b, 0x7c, 0x7d, 0x7e, 0x7f];
                let negative = [0x80, 0x81, 0xb8, 0xbc, 0xfb, 0xfc, 0xfe, 0xff];
                positive.into_iter().chain(largest).chain(negative).map(Self::from_bits).collect()
            }
            fn reference(a: Self, b: Self, op: ReduceOp) -> Self {
                // Sums and products are exact in f64.
                let (x, y) = (a.value(), b.value());
                Self::nearest(match op {
                    ReduceOp::Sum | ReduceOp::Avg => x + y,
                    ReduceOp::Prod => x * y,
                    ReduceOp::Max => larger(x, y),
                    ReduceOp::Min => -larger(-x, -y),
                })
            }
            fn divided(self, ranks: usize) -> Self {
                Self::nearest(self.value() / ranks as f64)
            }
            fn same(self, other: Self) -> bool {
                self.bits() == other.bits() || (self.value().is_nan() && other.value().is_nan())
            }
        }
    )*};
}

integers!(i8: Int8, u8: Uint8, i32: Int32, u32: Uint32, i64: Int64, u64: Uint64);
floats! {
    f32: Float32, |value: f64| value as f32, f64::from;
    f64: Float64, |value: f64| value, |value: f64| value;
    f16: Float16, f16::from_f64, f16::to_f64;
    bf16: Bfloat16, bf16::from_f64, bf16::to_f64
}

eight_bits! {
    F8E4M3: Float8E4M3, 3, 7, 0x7e, 0x7f..=0x7f;
    F8E5M2: Float8E5M2, 2, 15, 0x7b, 0x7d..=0x7f
}

fn assert_same<T: Reference>(found: &[T], expected: &[T], what: &str) {
    for (index, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!(found.same(expected), "{what}: element {index} is {found:?}, not {expected:?}");
    }
}

/// Both forms of a pair of loops, on every pair of values, and on every length up to a few vectors.
fn check_loops<T: Reference>(assign: Assign, into: Into, op: ReduceOp, what: &str) {
    let values = T::values();
    let pairs = values.iter().flat_map(|&a| values.iter().map(move |&b| (a, b)));
    let (all_a, all_b): (Vec<T>, Vec<T>) = pairs.unzip();
    let lengths = (0..140).chain([all_a.len()]);
    for len in lengths {
        for start in [0, 1] {
            let (a, b) = (&all_a[start..], &all_b[start..]);
            let len = len.min(a.len());
            let expected: Vec<T> = a[..len].iter().zip(b).map(|(&a, &b)| T::reference(a, b, op)).collect();
            // One element more than passed to the loops, to check that it is unchanged.
            let mut out = a.to_vec();
            // SAFETY: three buffers of `len` elements and more.
            unsafe { into(out.as_mut_ptr().cast(), a.as_ptr().cast(), b.as_ptr().cast(), len) };
            assert_same(&out[..len], &expected, what);
            assert_same(&out[len..], &a[len..], what);
            let mut out = a.to_vec();
            // SAFETY: two buffers of `len` elements and more.
            unsafe { assign(out.as_mut_ptr().cast(), b.as_ptr().cast(), len) };
            assert_same(&out[..len], &expected, what);
            assert_same(&out[len..], &a[len..], what);
        }
    }
}

fn check<T: Reference>() {
    for op in ReduceOp::ALL {
        let what = format!("{} {}", T::DATA_TYPE, op.name());
        let chosen = Reduction::new(T::DATA_TYPE, op);
        assert_eq!(chosen.element_size(), size_of::<T>());
        check_loops::<T>(chosen.assign, chosen.into, op, &what);
        let portable: (Assign, Into) = match op {
            ReduceOp::Sum | ReduceOp::Avg => (assign::<T, Sum>, into::<T, Sum>),
            ReduceOp::Prod => (assign::<T, Product>, into::<T, Product>),
            ReduceOp::Max => (assign::<T, Maximum>, into::<T, Maximum>),
            ReduceOp::Min => (assign::<T, Minimum>, into::<T, Minimum>),
        };
        check_loops::<T>(portable.0, portable.1, op, &format!("{what}, portable"));

        for ranks in [1, 2, 3, 7, 128, 1000, 1 << 20] {
            let mut data = T::values();
            let expected: Vec<T> = data
                .iter()
                .map(|&value| if op == ReduceOp::Avg { value.divided(ranks) } else { value })
                .collect();
            // SAFETY: a buffer of this length.
            unsafe { chosen.finish_average(data.as_mut_ptr().cast(), size_of_val(&data[..]), ranks) };
            assert_same(&data, &expected, &format!("{what} of {ranks}"));
        }
    }
}

#[test]
fn integers_reduce_as_one_by_one() {
    check::<i8>();
    check::<u8>();
    check::<i32>();
    check::<u32>();
    check::<i64>();
    check::<u64>();
}

#[test]
fn floats_reduce_as_one_by_one() {
    check::<f32>();
    check::<f64>();
    check::<f16>();
    check::<bf16>();
    check::<F8E4M3>();
    check::<F8E5M2>();
}

/// The conversions of this module against the conversions of the crate `half`: all halves, and singles around
/// every half.
#[test]
fn halves_convert_as_the_standard_says() {
    for bits in 0..=u16::MAX {
        let half = f16::from_bits(bits);
        assert!(half.widen().same(half.to_f32()), "{bits:#06x}");
        let brain = bf16::from_bits(bits);
        assert!(brain.widen().same(brain.to_f32()), "{bits:#06x}");
        // The halfway point to the next half, and its neighbours, decide about rounding.
        for low in [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff] {
            let single = f32::from_bits(half.to_f32().to_bits() | low);
            assert!(f16::narrow(single).same(f16::from_f32(single)), "{single:e}");
        }
        for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
            let single = f32::from_bits(u32::from(bits) << 16 | low);
            assert!(bf16::narrow(single).same(bf16::from_f32(single)), "{single:e}");
            assert!(f16::narrow(single).same(f16::from_f32(single)), "{single:e}");
        }
    }
}

/// The conversions of this module against the definition of the formats and against the crate `float8`.
fn check_eight_bits<T>()
where
    T: EightBits + Operand<Wide = f32> + From<f32>,
    f32: From<T>,
{
    let convert = |single: f32| {
        let found = T::narrow(single);
        assert!(found.same(T::nearest(f64::from(single))), "{single:e} became {found:?}");
        assert!(
            found.same(T::from(single)),
            "{single:e} became {found:?}, with float8 {:?}",
            T::from(single)
        );
    };
    for bits in 0..=u8::MAX {
        let value = T::of_bits(bits);
        let (found, by_crate) = (value.widen(), f32::from(value));
        let expected = value.value();
        let same = |single: f32| f64::from(single).to_bits() == expected.to_bits();
        let both_nan = found.is_nan() && by_crate.is_nan() && expected.is_nan();
        assert!(
            both_nan || (same(found) && same(by_crate)),
            "{bits:#04x}: {found}, {by_crate}, not {expected}"
        );
        // Every value, the middle between it and the next one, decisive for rounding, and their neighbours.
        let next = T::of_bits(if bits & 0x7f < T::LARGEST { bits + 1 } else { bits }).value();
        for single in [expected, expected.midpoint(next)].map(|exact| exact as f32) {
            [single, single.next_up(), single.next_down()].into_iter().for_each(convert);
        }
    }
    for single in
        [f32::MAX, f32::INFINITY, f32::NAN, f32::MIN_POSITIVE, f32::from_bits(1), 464.0, 480.0, 61440.0]
    {
        for single in [single, single.next_up(), single.next_down()] {
            [single, -single].into_iter().for_each(convert);
        }
    }
}

#[test]
fn eight_bits_convert_as_the_formats_are_defined() {
    check_eight_bits::<F8E4M3>();
    check_eight_bits::<F8E5M2>();
}

/// All pairs, beside the pairs of `check`.
fn check_every_pair<T: EightBits>() {
    let (mut all_a, mut all_b) = (Vec::new(), Vec::new());
    for bits in 0..=u16::MAX {
        let [a, b] = bits.to_ne_bytes().map(T::of_bits);
        all_a.push(a);
        all_b.push(b);
    }
    for op in ReduceOp::ALL {
        let expected: Vec<T> = all_a.iter().zip(&all_b).map(|(&a, &b)| T::reference(a, b, op)).collect();
        let mut found = all_a.clone();
        let reduction = Reduction::new(T::DATA_TYPE, op);
        // SAFETY: two buffers of this length.
        unsafe { (reduction.assign)(found.as_mut_ptr().cast(), all_b.as_ptr().cast(), found.len()) };
        assert_same(&found, &expected, &format!("{} {}", T::DATA_TYPE, op.name()));
    }
}

#[test]
fn every_pair_of_eight_bits_reduces_as_the_formats_are_defined() {
    check_every_pair::<F8E4M3>();
    check_every_pair::<F8E5M2>();
}

/// Bits derived from the definitions.
#[test]
fn eight_bits_round_to_even_saturate_and_keep_nan() {
    let check = |data_type, op, a: u8, b: u8, expected: u8| {
        let mut out = a;
        // SAFETY: two buffers of one element.
        unsafe { (Reduction::new(data_type, op).assign)(&raw mut out, &raw const b, 1) };
        // The sign of a NaN is the processor's.
        let out = if out == 0xff { 0x7f } else { out };
        assert_eq!(out, expected, "{data_type} {} of {a:#04x} and {b:#04x}", op.name());
    };
    let (e4m3, e5m2) = (DataType::Float8E4M3, DataType::Float8E5M2);
    // 1 + 1/16 = 1 and 9/8 + 1/16 = 5/4: both lie in the middle.
    check(e4m3, ReduceOp::Sum, 0x38, 0x18, 0x38);
    check(e4m3, ReduceOp::Sum, 0x39, 0x18, 0x3a);
    // 1 + 1/8 = 1 and 5/4 + 1/8 = 3/2.
    check(e5m2, ReduceOp::Sum, 0x3c, 0x30, 0x3c);
    check(e5m2, ReduceOp::Sum, 0x3d, 0x30, 0x3e);
    // Half of the smallest value is 0, three halves of it are twice.
    check(e4m3, ReduceOp::Prod, 0x01, 0x30, 0x00);
    check(e4m3, ReduceOp::Prod, 0x81, 0x3c, 0x82);
    check(e5m2, ReduceOp::Prod, 0x01, 0x38, 0x00);
    check(e5m2, ReduceOp::Prod, 0x81, 0x3e, 0x82);
    // 448 and 57344 are the largest values.
    check(e4m3, ReduceOp::Sum, 0x7e, 0x58, 0x7e);
    check(e4m3, ReduceOp::Prod, 0x7e, 0xfe, 0xfe);
    check(e5m2, ReduceOp::Sum, 0x7b, 0x7b, 0x7b);
    check(e5m2, ReduceOp::Prod, 0x7b, 0xfb, 0xfb);
    // Infinities saturate, also infinite inputs; without a sign they are NaN.
    check(e5m2, ReduceOp::Sum, 0x7c, 0x3c, 0x7b);
    check(e5m2, ReduceOp::Max, 0x7c, 0x3c, 0x7b);
    check(e5m2, ReduceOp::Min, 0xfc, 0x3c, 0xfb);
    check(e5m2, ReduceOp::Sum, 0x7c, 0xfc, 0x7f);
    for (data_type, nan) in [(e4m3, 0x7f), (e5m2, 0x7d), (e5m2, 0x7e)] {
        for op in ReduceOp::ALL {
            check(data_type, op, nan, 0x38, 0x7f);
            check(data_type, op, 0x38, nan, 0x7f);
        }
    }
}
