//! Random inputs and expected results, computed on the host.

use std::time::{SystemTime, UNIX_EPOCH};

use collectives::{Element, ReduceOp};
use cudarc::driver::{DeviceRepr, ValidAsZeroBits};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// Seed that differs from run to run; every failure prints it.
pub(crate) fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// 64 well-mixed bits per rank and index.
pub(crate) fn bits(seed: u64, rank: usize, index: usize) -> u64 {
    let mut state = seed ^ ((rank as u64) << 48) ^ index as u64;
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        state = (state ^ (state >> 30)).wrapping_mul(factor);
    }
    state ^ (state >> 31)
}

/// Arithmetic of the reference. Inputs are such that every order of reduction is exact, except for averages
/// of floating-point numbers over a number of ranks that is not a power of two.
pub(crate) trait Value: Element + DeviceRepr + ValidAsZeroBits + PartialOrd {
    /// Any value that equals itself.
    fn any(bits: u64) -> Self;
    /// A rank's contribution to a reduction over `ranks` ranks.
    fn contribution(bits: u64, op: ReduceOp, ranks: usize) -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// The average, from a sum.
    fn divide(self, count: usize) -> Self;
    /// True if it is a valid average of that many contributions: NCCL scales every contribution first.
    fn near(self, average: Self, ranks: usize) -> bool;
    /// A small whole number, 0 to 4.
    fn small(value: u8) -> Self;
}

/// A small number up to `limit`, with either sign if the type is signed.
fn small(bits: u64, limit: u64, signed: bool) -> i64 {
    let magnitude = (bits % (limit + 1)).cast_signed();
    if signed && bits >> 63 == 1 { -magnitude } else { magnitude }
}

macro_rules! integers {
    ($($type:ty),*) => {$(impl Value for $type {
        fn any(bits: u64) -> Self { bits as $type }
        fn contribution(bits: u64, op: ReduceOp, _: usize) -> Self {
            // Sums and products wrap; a sum that is divided afterwards must not.
            #[allow(unused_comparisons)]
            if op == ReduceOp::Avg { small(bits, 15, <$type>::MIN < 0) as $type } else { Self::any(bits) }
        }
        fn add(self, other: Self) -> Self { self.wrapping_add(other) }
        fn multiply(self, other: Self) -> Self { self.wrapping_mul(other) }
        fn divide(self, count: usize) -> Self { self / count as $type }
        fn near(self, average: Self, _: usize) -> bool { self == average }
        fn small(value: u8) -> Self { value as $type }
    })*};
}

/// Whole numbers up to 2^`$digits` are exact; `$top` is the exponent's highest bit.
macro_rules! floats {
    ($($type:ty: $digits:expr, $top:expr, $raw:ty, $from:expr, $to:expr);* $(;)?) => {$(impl Value for $type {
        fn any(bits: u64) -> Self { <$type>::from_bits(bits as $raw & !(1 << $top)) }
        fn contribution(bits: u64, op: ReduceOp, ranks: usize) -> Self {
            let limit = ((1u64 << $digits) / ranks as u64).clamp(1, 15);
            match op {
                ReduceOp::Prod => $from((1 + (bits & 1)) as f64 * if bits >> 63 == 1 { -1.0 } else { 1.0 }),
                ReduceOp::Max | ReduceOp::Min => Self::any(bits),
                _ => $from(small(bits, limit, true) as f64),
            }
        }
        fn add(self, other: Self) -> Self { $from($to(self) + $to(other)) }
        fn multiply(self, other: Self) -> Self { $from($to(self) * $to(other)) }
        fn divide(self, count: usize) -> Self { $from($to(self) / count as f64) }
        fn near(self, average: Self, ranks: usize) -> bool {
            // Every contribution, of at most 15, and every partial sum is rounded.
            let rounding = 15.0 * (2.0 + ranks as f64) / (1u64 << $digits) as f64;
            ($to(self) - $to(average)).abs() <= rounding
        }
        fn small(value: u8) -> Self { $from(f64::from(value)) }
    })*};
}

integers!(i8, u8, i32, u32, i64, u64);
floats! {
    f16: 11, 14, u16, f16::from_f64, f16::to_f64;
    bf16: 8, 14, u16, bf16::from_f64, bf16::to_f64;
    f32: 24, 30, u32, |value: f64| value as f32, f64::from;
    f64: 53, 62, u64, |value: f64| value, |value: f64| value;
    F8E4M3: 4, 6, u8, F8E4M3::from_f64, |value: F8E4M3| value.to_f64();
    F8E5M2: 3, 6, u8, F8E5M2::from_f64, |value: F8E5M2| value.to_f64();
}

/// Reduction of all ranks' contributions.
pub(crate) fn reduced<T: Value>(op: ReduceOp, values: impl ExactSizeIterator<Item = T>) -> T {
    let ranks = values.len();
    let value = values.reduce(|first, second| match op {
        ReduceOp::Sum | ReduceOp::Avg => first.add(second),
        ReduceOp::Prod => first.multiply(second),
        ReduceOp::Max if second > first => second,
        ReduceOp::Min if second < first => second,
        ReduceOp::Max | ReduceOp::Min => first,
        other => panic!("no reference for {other}"),
    });
    let value = value.unwrap();
    if op == ReduceOp::Avg { value.divide(ranks) } else { value }
}
