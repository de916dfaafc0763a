//! Element-wise reduction of host buffers.
//!
//! - Integers wrap; their average truncates toward zero.
//! - Floats of 16 and 8 bits are combined in `f32`, and every combination is rounded to nearest even.
//! - What is too large for a float of 8 bits, an infinity included, becomes its largest finite value: so NCCL does.
//! - Every operator is commutative in its result: `max` and `min` order `-0 < +0`, and a NaN on either side gives
//!   a NaN (its payload is unspecified). `max` and `min` are associative as well.
//! - An average is the sum divided once, at the end.

use std::slice;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::{DataType, ReduceOp};

type Assign = unsafe fn(*mut u8, *const u8, usize);
type Into = unsafe fn(*mut u8, *const u8, *const u8, usize);
type Divide = unsafe fn(*mut u8, usize, usize);

/// The loops for one operator on one element type, for the processor that this runs on.
#[derive(Clone, Copy)]
pub(crate) struct Reduction {
    element_size: usize,
    assign: Assign,
    into: Into,
    divide: Option<Divide>,
}

impl Reduction {
    /// Chooses the loops.
    pub(crate) fn new(data_type: DataType, op: ReduceOp) -> Self {
        match data_type {
            DataType::Int8 => choose::<i8>(op),
            DataType::Uint8 => choose::<u8>(op),
            DataType::Int32 => choose::<i32>(op),
            DataType::Uint32 => choose::<u32>(op),
            DataType::Int64 => choose::<i64>(op),
            DataType::Uint64 => choose::<u64>(op),
            DataType::Float16 => choose::<f16>(op),
            DataType::Float32 => choose::<f32>(op),
            DataType::Float64 => choose::<f64>(op),
            DataType::Bfloat16 => choose::<bf16>(op),
            DataType::Float8E4M3 => choose::<F8E4M3>(op),
            DataType::Float8E5M2 => choose::<F8E5M2>(op),
        }
    }

    /// Bytes of one element.
    pub(crate) fn element_size(&self) -> usize {
        self.element_size
    }

    /// `out = a op b` over `len` bytes, a multiple of the element size.
    ///
    /// # Safety
    /// The pointers are aligned for the element type; `a` and `b` are readable and `out` writable for `len` bytes;
    /// nothing else writes any of them meanwhile; `b` overlaps neither of the others, `a` is `out` or does not
    /// overlap it.
    pub(crate) unsafe fn combine(&self, out: *mut u8, a: *const u8, b: *const u8, len: usize) {
        let count = len / self.element_size;
        if a == out.cast_const() {
            // SAFETY: as promised by the caller.
            unsafe { (self.assign)(out, b, count) }
        } else {
            // SAFETY: as promised by the caller, and `a` is not `out`.
            unsafe { (self.into)(out, a, b, count) }
        }
    }

    /// What ends an average: divides `len` bytes of sums by `ranks`. Nothing for the other operators.
    ///
    /// # Safety
    /// `data` is aligned for the element type, readable and writable for `len` bytes, and used by nothing else.
    pub(crate) unsafe fn finish(&self, data: *mut u8, len: usize, ranks: usize) {
        if let Some(divide) = self.divide {
            // SAFETY: as promised by the caller.
            unsafe { divide(data, len / self.element_size, ranks) }
        }
    }
}

/// A type in which values are combined.
trait Number: Copy {
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
                // No number of ranks is 0 or needs 32 bits. A quotient that is no integer is 1 / ranks or more away
                // from one, and rounding it to floating point, for which there are vectors, moves it by less.
                (self as $quotient / ranks as $quotient) as Self
            }
        }
        impl Operand for $type {
            type Wide = $type;
            #[inline(always)]
            fn widen(self) -> $type {
                self
            }
            #[inline(always)]
            fn narrow(wide: $type) -> $type {
                wide
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

/// A stored type, and the type in which its values are combined.
trait Operand: Copy + 'static {
    type Wide: Number;
    fn widen(self) -> Self::Wide;
    fn narrow(wide: Self::Wide) -> Self;
    /// Loops better than what the compiler makes of `widen` and `narrow`, where this processor has them.
    fn special<O: Operator>() -> Option<(Assign, Into)> {
        None
    }
}

integers!(i8: f32, u8: f32, i32: f64, u32: f64, i64: i64, u64: u64);
floats!(f32, f64);

impl Operand for f32 {
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

impl Operand for f64 {
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

/// Written without branches, so that the compiler can use vectors on any processor.
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
        available.then_some((f16c::assign::<O> as Assign, f16c::into::<O> as Into))
    }
    #[cfg(target_arch = "aarch64")]
    fn special<O: Operator>() -> Option<(Assign, Into)> {
        Some((neon::assign::<O>, neon::into::<O>))
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

/// A float of 8 bits with so many bits of fraction, its exponents' bias, and the bits of its largest finite value.
/// Written without branches, as for `f16`.
#[inline(always)]
fn widen_eight_bits<const FRACTION: u32, const BIAS: u32, const LARGEST: u32>(bits: u8) -> f32 {
    let bits = u32::from(bits);
    let magnitude = (bits & 0x7f) << (23 - FRACTION);
    // The smallest normal value, as the leading bit that a subnormal value does not have.
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
    // Adding it to a value below the smallest normal one moves the value's subnormal bits to the end, rounded.
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

trait Operator: 'static {
    fn apply<N: Number>(a: N, b: N) -> N;
}

struct Sum;
struct Product;
struct Maximum;
struct Minimum;

impl Operator for Sum {
    #[inline(always)]
    fn apply<N: Number>(a: N, b: N) -> N {
        a.add(b)
    }
}

impl Operator for Product {
    #[inline(always)]
    fn apply<N: Number>(a: N, b: N) -> N {
        a.multiply(b)
    }
}

impl Operator for Maximum {
    #[inline(always)]
    fn apply<N: Number>(a: N, b: N) -> N {
        a.larger(b)
    }
}

impl Operator for Minimum {
    #[inline(always)]
    fn apply<N: Number>(a: N, b: N) -> N {
        a.smaller(b)
    }
}

fn choose<T: Operand>(op: ReduceOp) -> Reduction {
    let (assign, into) = match op {
        ReduceOp::Sum | ReduceOp::Avg => loops::<T, Sum>(),
        ReduceOp::Prod => loops::<T, Product>(),
        ReduceOp::Max => loops::<T, Maximum>(),
        ReduceOp::Min => loops::<T, Minimum>(),
    };
    let divide = (op == ReduceOp::Avg).then(division::<T>);
    Reduction { element_size: size_of::<T>(), assign, into, divide }
}

fn division<T: Operand>() -> Divide {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return avx2::divide::<T>;
    }
    divide::<T>
}

fn loops<T: Operand, O: Operator>() -> (Assign, Into) {
    if let Some(special) = T::special::<O>() {
        return special;
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return (avx2::assign::<T, O>, avx2::into::<T, O>);
    }
    (assign::<T, O>, into::<T, O>)
}

/// The loops, which the compiler vectorizes for the processor that their caller is compiled for: on aarch64
/// with NEON, which every processor has.
///
/// # Safety
/// As [`Reduction::combine`], with a count of elements and `a` being `out`.
#[inline(always)]
unsafe fn assign<T: Operand, O: Operator>(out: *mut u8, b: *const u8, count: usize) {
    // SAFETY: aligned, valid for `count` elements and disjoint, says the caller; any bits are a number.
    let (out, b) = unsafe {
        (slice::from_raw_parts_mut(out.cast::<T>(), count), slice::from_raw_parts(b.cast::<T>(), count))
    };
    for (out, &b) in out.iter_mut().zip(b) {
        *out = T::narrow(O::apply(out.widen(), b.widen()));
    }
}

/// # Safety
/// As [`Reduction::combine`], with a count of elements and `a` not being `out`.
#[inline(always)]
unsafe fn into<T: Operand, O: Operator>(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
    // SAFETY: aligned, valid for `count` elements and disjoint, says the caller; any bits are a number.
    let (out, a, b) = unsafe {
        (
            slice::from_raw_parts_mut(out.cast::<T>(), count),
            slice::from_raw_parts(a.cast::<T>(), count),
            slice::from_raw_parts(b.cast::<T>(), count),
        )
    };
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = T::narrow(O::apply(a.widen(), b.widen()));
    }
}

/// # Safety
/// As [`Reduction::finish`], with a count of elements.
#[inline(always)]
unsafe fn divide<T: Operand>(data: *mut u8, count: usize, ranks: usize) {
    // SAFETY: aligned, valid for `count` elements and used by nothing else, says the caller.
    let data = unsafe { slice::from_raw_parts_mut(data.cast::<T>(), count) };
    for value in data {
        *value = T::narrow(value.widen().divide(ranks));
    }
}

/// The same loops, compiled for AVX2. What is memory-bound gains nothing from wider vectors.
#[cfg(target_arch = "x86_64")]
mod avx2 {
    use super::{Operand, Operator};

    /// # Safety
    /// As `super::assign`, on a processor with AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn assign<T: Operand, O: Operator>(out: *mut u8, b: *const u8, count: usize) {
        // SAFETY: as promised by the caller.
        unsafe { super::assign::<T, O>(out, b, count) }
    }

    /// # Safety
    /// As `super::into`, on a processor with AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn into<T: Operand, O: Operator>(
        out: *mut u8,
        a: *const u8,
        b: *const u8,
        count: usize,
    ) {
        // SAFETY: as promised by the caller.
        unsafe { super::into::<T, O>(out, a, b, count) }
    }

    /// # Safety
    /// As `super::divide`, on a processor with AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn divide<T: Operand>(data: *mut u8, count: usize, ranks: usize) {
        // SAFETY: as promised by the caller.
        unsafe { super::divide::<T>(data, count, ranks) }
    }
}

/// Loops over `f16` with the processor's own conversions, eight at a time.
#[cfg(target_arch = "x86_64")]
mod f16c {
    use std::arch::x86_64::{
        __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_storeu_ps,
    };

    use super::Operator;

    const LANES: usize = 8;

    /// # Safety
    /// As `super::assign`, on a processor with AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn assign<O: Operator>(out: *mut u8, b: *const u8, count: usize) {
        // SAFETY: as promised by the caller; the loop reads each element of `a` before it writes it to `out`.
        unsafe { combine::<O>(out.cast(), out.cast_const().cast(), b.cast(), count) }
    }

    /// # Safety
    /// As `super::into`, on a processor with AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(super) unsafe fn into<O: Operator>(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
        // SAFETY: as promised by the caller.
        unsafe { combine::<O>(out.cast(), a.cast(), b.cast(), count) }
    }

    /// # Safety
    /// `a` and `b` are readable and `out` writable for `count` elements; `a` may be `out`, no other overlap.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn combine<O: Operator>(out: *mut u16, a: *const u16, b: *const u16, count: usize) {
        let whole = count - count % LANES;
        for start in (0..whole).step_by(LANES) {
            // SAFETY: `start + LANES <= count`.
            unsafe { lanes::<O>(out.add(start), a.add(start), b.add(start)) }
        }
        let rest = count - whole;
        if rest > 0 {
            let (mut tail_out, mut tail_a, mut tail_b) = ([0u16; LANES], [0u16; LANES], [0u16; LANES]);
            // SAFETY: `rest` elements follow `whole` in each buffer, and fewer than LANES fit into each tail.
            unsafe {
                tail_a.as_mut_ptr().copy_from_nonoverlapping(a.add(whole), rest);
                tail_b.as_mut_ptr().copy_from_nonoverlapping(b.add(whole), rest);
                lanes::<O>(tail_out.as_mut_ptr(), tail_a.as_ptr(), tail_b.as_ptr());
                out.add(whole).copy_from_nonoverlapping(tail_out.as_ptr(), rest);
            }
        }
    }

    /// # Safety
    /// `a` and `b` are readable and `out` writable for LANES elements.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn lanes<O: Operator>(out: *mut u16, a: *const u16, b: *const u16) {
        let (mut left, mut right) = ([0f32; LANES], [0f32; LANES]);
        // SAFETY: unaligned loads of 16 bytes within `a` and `b`, and stores of 32 bytes into local arrays.
        unsafe {
            _mm256_storeu_ps(left.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(a.cast::<__m128i>())));
            _mm256_storeu_ps(right.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(b.cast::<__m128i>())));
        }
        for (left, &right) in left.iter_mut().zip(&right) {
            *left = O::apply(*left, right);
        }
        // SAFETY: an unaligned load of a local array of 32 bytes, and an unaligned store of 16 bytes into `out`.
        unsafe {
            let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(left.as_ptr()));
            _mm_storeu_si128(out.cast::<__m128i>(), rounded);
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(test)]
mod tests;
