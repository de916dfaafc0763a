//! Arithmetic of the element types, rounded at every step as GPUs round.

use std::sync::LazyLock;

use collectives::Element;
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

/// Arithmetic with rounding to the type at every step.
pub(super) trait Number: Element {
    fn from_bytes(bytes: &[u8]) -> Self;
    fn bits(self) -> u64;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn largest(self, other: Self) -> Self;
    fn smallest(self, other: Self) -> Self;
    /// Divides a sum by the number of ranks.
    fn divide(self, ranks: u32) -> Self;
    /// Returns NCCL's factor before a sum: 1/ranks rounded to the type. `None` for integers, since NCCL
    /// divides them.
    fn reciprocal(ranks: u32) -> Option<Self>;
    /// Returns the sum times 1/ranks in the wider type of NCCL's symmetric kernels for averages, rounded
    /// once. `None` for types without a wider one.
    fn average_in_wider_type(self, ranks: u32) -> Option<Self>;
    /// Returns the factor of an input in a mulsum.
    fn scalar(scale: f64) -> Self;
    /// Returns true for a finite value, neither zero nor subnormal.
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

/// The 8-bit floats, calculated as by NCCL: each step in half precision, then rounded to the type.
///
/// Conversions use a table of all finite values, independent of any bit trick.
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

pub(super) trait TinyFloat: Sized {
    /// Returns the finite values from 0 up. The index of each is its bits.
    fn values() -> &'static [f64];
    fn from_pattern(bits: u8) -> Self;
    fn pattern(self) -> u8;

    /// Rounds to the nearest value, ties to even bits. Values beyond the largest become the largest.
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

/// Returns the value of a finite number.
pub(super) fn wide<T: TinyFloat>(value: T) -> f64 {
    let bits = value.pattern();
    let size = T::values()[usize::from(bits & 0x7f)];
    if bits & 0x80 == 0 { size } else { -size }
}

/// Rounds the exact result of a step to half precision, and then to the type.
pub(super) fn round_half<T: TinyFloat>(exact: f64) -> T {
    T::round(f16::from_f64(exact).into())
}
