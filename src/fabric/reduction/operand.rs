//! Element types, and the types for combining them.

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

#[cfg(target_arch = "x86_64")]
use super::x86_64;
use super::{Assign, Into, Operator};

/// A type for combining values.
pub(super) trait Number: Copy {
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn larger(self, other: Self) -> Self;
    fn smaller(self, other: Self) -> Self;
    fn divide(self, ranks: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty: $quotient:ty),*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                self.max(other)
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                self.min(other)
            }
            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                // The number of ranks is not 0 and fits 31 bits. A fractional quotient is at least 1 / ranks
                // away from an integer, and rounding it to floating point (a vectorizable step) moves it by
                // less.
                (self as $quotient / ranks as $quotient) as Self
            }
        }
    )*};
}

macro_rules! floats {
    ($($type:ty),*) => {$(
        impl Number for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self + other
            }
            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self * other
            }
            #[inline(always)]
            fn larger(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() & other.to_bits());
                let larger = if (self > other) | self.is_nan() { self } else { other };
                if self == other { equal } else { larger }
            }
            #[inline(always)]
            fn smaller(self, other: Self) -> Self {
                let equal = Self::from_bits(self.to_bits() | other.to_bits());
                let smaller = if (self < other) | self.is_nan() { self } else { other };
                if self == other { equal } else { smaller }
            }
            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                self / ranks as Self
            }
        }
    )*};
}

/// A stored type, and the type for combining its values.
pub(super) trait Operand: Copy + 'static {
    type Wide: Number;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    /// Loops faster than compiled `widen` and `narrow`, if this processor has them.
    fn special<O: Operator>() -> Option<(Assign, Into)> {
        None
    }
}

integers!(i8: f32, u8: f32, i32: f64, u32: f64, i64: i64, u64: u64);
floats!(f32, f64);

/// Types combined as they are.
macro_rules! own_operands {
    ($($type:ty),*) => {$(
        impl Operand for $type {
            type Wide = Self;
            #[inline(always)]
            fn widen(self) -> Self {
                self
            }
            #[inline(always)]
            fn narrow(wide: Self) -> Self {
                wide
            }
        }
    )*};
}

own_operands!(i8, u8, i32, u32, i64, u64, f32, f64);

impl Operand for bf16 {
    type Wide = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        let bits = wide.to_bits();
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
        let quiet = bits | 0x0040_0000;
        Self::from_bits(((if wide.is_nan() { quiet } else { rounded }) >> 16) as u16)
    }
}

/// Written without branches: the compiler can use vectors on any processor.
impl Operand for f16 {
    type Wide = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        /// The difference of the exponents' biases, 127 - 15, as a factor.
        const REBIAS: f32 = f32::from_bits((127 + 112) << 23);
        let bits = u32::from(self.to_bits());
        let magnitude = (bits & 0x7fff) << 13;
        let finite = (f32::from_bits(magnitude) * REBIAS).to_bits();
        let special = magnitude | 0x7f80_0000;
        let absolute = if magnitude >= 0x0f80_0000 { special } else { finite };
        f32::from_bits(absolute | (bits & 0x8000) << 16)
    }
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        /// Adding it to a value below 2^-14 moves the value's subnormal `f16` bits to the end, rounded.
        const ALIGN: f32 = 0.5;
        let bits = wide.to_bits();
        let absolute = bits & 0x7fff_ffff;
        let special = if absolute > 0x7f80_0000 { 0x7e00 } else { 0x7c00 };
        let subnormal = (f32::from_bits(absolute) + ALIGN).to_bits().wrapping_sub(ALIGN.to_bits());
        let odd = absolute >> 13 & 1;
        let normal = absolute.wrapping_sub(112 << 23).wrapping_add(0xfff + odd) >> 13;
        let small = if absolute < 0x3880_0000 { subnormal } else { normal };
        let half = if absolute >= 0x4780_0000 { special } else { small };
        Self::from_bits((half | bits >> 16 & 0x8000) as u16)
    }
    #[cfg(target_arch = "x86_64")]
    fn special<O: Operator>() -> Option<(Assign, Into)> {
        let available = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c");
        available.then_some((x86_64::f16c::assign::<O> as Assign, x86_64::f16c::into::<O> as Into))
    }
    #[cfg(target_arch = "aarch64")]
    fn special<O: Operator>() -> Option<(Assign, Into)> {
        Some((super::neon::assign::<O>, super::neon::into::<O>))
    }
}

impl Operand for F8E4M3 {
    type Wide = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        widen_eight_bits::<3, 7, 0x7e>(self.to_bits())
    }
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self::from_bits(narrow_to_eight_bits::<3, 7, 0x7e>(wide))
    }
}

impl Operand for F8E5M2 {
    type Wide = f32;
    #[inline(always)]
    fn widen(self) -> f32 {
        widen_eight_bits::<2, 15, 0x7b>(self.to_bits())
    }
    #[inline(always)]
    fn narrow(wide: f32) -> Self {
        Self::from_bits(narrow_to_eight_bits::<2, 15, 0x7b>(wide))
    }
}

/// Widens an 8-bit float with `FRACTION` bits of fraction, the exponent bias `BIAS`, and the bits `LARGEST`
/// of its largest finite value. Written without branches, as for `f16`.
#[inline(always)]
fn widen_eight_bits<const FRACTION: u32, const BIAS: u32, const LARGEST: u32>(bits: u8) -> f32 {
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7f) << (23 - FRACTION);
    // The smallest normal value, as the leading bit missing in a subnormal value.
    let leading = (127 - BIAS + 1) << 23;
    let subnormal = (f32::from_bits(magnitude | leading) - f32::from_bits(leading)).to_bits();
    let normal = magnitude + ((127 - BIAS) << 23);
    let finite = if magnitude < 1 << 23 { subnormal } else { normal };
    let special = magnitude | 0x7f80_0000;
    let absolute = if bits & 0x7f > LARGEST { special } else { finite };
    f32::from_bits(absolute | (bits & 0x80) << 24)
}

/// The inverse, rounded, and never more than the largest finite value.
#[inline(always)]
fn narrow_to_eight_bits<const FRACTION: u32, const BIAS: u32, const LARGEST: u32>(wide: f32) -> u8 {
    /// A NaN of both formats.
    const NAN: u32 = 0x7f;
    let dropped = 23 - FRACTION;
    let smallest_normal = (127 - BIAS + 1) << 23;
    // Adding it to a value below the smallest normal one moves the value's subnormal bits to the end,
    // rounded.
    let align = smallest_normal + (dropped << 23);
    let bits = wide.to_bits();
    let absolute = bits & 0x7fff_ffff;
    let subnormal = (f32::from_bits(absolute) + f32::from_bits(align)).to_bits().wrapping_sub(align);
    let odd = absolute >> dropped & 1;
    let below_half = (1 << (dropped - 1)) - 1;
    let normal = absolute.wrapping_sub((127 - BIAS) << 23).wrapping_add(below_half + odd) >> dropped;
    let rounded = if absolute < smallest_normal { subnormal } else { normal };
    let number = if wide.is_nan() { NAN } else { rounded.min(LARGEST) };
    (number | bits >> 24 & 0x80) as u8
}
