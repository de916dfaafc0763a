//! Element-wise reduction of host buffers.
//!
//! - Integers wrap; their average truncates toward zero.
//! - Floats of 16 and 8 bits are combined in `f32`, and every combination is rounded to nearest even.
//! - Values too large for an 8-bit float, infinity included, become its largest finite value, as in NCCL.
//! - Every operator is commutative in its result: `max` and `min` order `-0 < +0`, and a NaN on either side
//!   gives a NaN (its payload is unspecified). `max` and `min` are associative as well.
//! - An average is the sum divided once, at the end.

use std::slice;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::{DataType, ReduceOp};
use operand::{Number, Operand};

type Assign = unsafe fn(*mut u8, *const u8, usize);
type Into = unsafe fn(*mut u8, *const u8, *const u8, usize);
type Divide = unsafe fn(*mut u8, usize, usize);

/// The loops for one operator on one element type, for this processor.
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
            DataType::Int8 => choose_reduction::<i8>(op),
            DataType::Uint8 => choose_reduction::<u8>(op),
            DataType::Int32 => choose_reduction::<i32>(op),
            DataType::Uint32 => choose_reduction::<u32>(op),
            DataType::Int64 => choose_reduction::<i64>(op),
            DataType::Uint64 => choose_reduction::<u64>(op),
            DataType::Float16 => choose_reduction::<f16>(op),
            DataType::Float32 => choose_reduction::<f32>(op),
            DataType::Float64 => choose_reduction::<f64>(op),
            DataType::Bfloat16 => choose_reduction::<bf16>(op),
            DataType::Float8E4M3 => choose_reduction::<F8E4M3>(op),
            DataType::Float8E5M2 => choose_reduction::<F8E5M2>(op),
        }
    }

    /// Bytes of one element.
    pub(crate) fn element_size(&self) -> usize {
        self.element_size
    }

    /// `out = a op b` over `len` bytes, a multiple of the element size.
    ///
    /// # Safety
    /// The pointers are aligned for the element type; `a` and `b` are readable and `out` writable for `len`
    /// bytes; nothing else writes any of them meanwhile; `b` overlaps neither of the others, `a` is `out` or
    /// does not overlap it.
    pub(crate) unsafe fn combine_elements(&self, out: *mut u8, a: *const u8, b: *const u8, len: usize) {
        let count = len / self.element_size;
        if a == out.cast_const() {
            // SAFETY: as promised by the caller.
            unsafe { (self.assign)(out, b, count) }
        } else {
            // SAFETY: as promised by the caller, and `a` is not `out`.
            unsafe { (self.into)(out, a, b, count) }
        }
    }

    /// Completes an average: divides `len` bytes of sums by `ranks`. No effect for other operators.
    ///
    /// # Safety
    /// `data` is aligned for the element type, readable and writable for `len` bytes, and used by nothing
    /// else.
    pub(crate) unsafe fn finish_average(&self, data: *mut u8, len: usize, ranks: usize) {
        if let Some(divide) = self.divide {
            // SAFETY: as promised by the caller.
            unsafe { divide(data, len / self.element_size, ranks) }
        }
    }
}

trait Operator: 'static {
    fn apply<N: Number>(a: N, b: N) -> N;
}

macro_rules! operators {
    ($($operator:ident: $method:ident),*) => {$(
        struct $operator;

        impl Operator for $operator {
            #[inline(always)]
            fn apply<N: Number>(a: N, b: N) -> N {
                a.$method(b)
            }
        }
    )*};
}

operators!(Sum: add, Product: multiply, Maximum: larger, Minimum: smaller);

fn choose_reduction<T: Operand>(op: ReduceOp) -> Reduction {
    let (assign, into) = match op {
        ReduceOp::Sum | ReduceOp::Avg => choose_loops::<T, Sum>(),
        ReduceOp::Prod => choose_loops::<T, Product>(),
        ReduceOp::Max => choose_loops::<T, Maximum>(),
        ReduceOp::Min => choose_loops::<T, Minimum>(),
    };
    let divide = (op == ReduceOp::Avg).then(choose_division::<T>);
    Reduction { element_size: size_of::<T>(), assign, into, divide }
}

fn choose_division<T: Operand>() -> Divide {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return x86_64::avx2::divide_elements::<T>;
    }
    divide_elements::<T>
}

fn choose_loops<T: Operand, O: Operator>() -> (Assign, Into) {
    if let Some(special) = T::special::<O>() {
        return special;
    }
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        return (x86_64::avx2::assign::<T, O>, x86_64::avx2::into::<T, O>);
    }
    (assign::<T, O>, into::<T, O>)
}

/// The loops. The compiler vectorizes them for the target processor of their caller: on aarch64 with NEON,
/// present in every processor.
///
/// # Safety
/// Does the same as [`Reduction::combine_elements`], with a count of elements and `a` being `out`.
#[inline(always)]
unsafe fn assign<T: Operand, O: Operator>(out: *mut u8, b: *const u8, count: usize) {
    // SAFETY: aligned, valid for `count` elements and disjoint, as the caller promises; any bits are a
    // number.
    let (out, b) = unsafe {
        (slice::from_raw_parts_mut(out.cast::<T>(), count), slice::from_raw_parts(b.cast::<T>(), count))
    };
    for (out, &b) in out.iter_mut().zip(b) {
        *out = T::narrow(O::apply(out.widen(), b.widen()));
    }
}

/// # Safety
/// Does the same as [`Reduction::combine_elements`], with a count of elements and `a` not being `out`.
#[inline(always)]
unsafe fn into<T: Operand, O: Operator>(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
    // SAFETY: aligned, valid for `count` elements and disjoint, as the caller promises; any bits are a
    // number.
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
/// Does the same as [`Reduction::finish_average`], with a count of elements.
#[inline(always)]
unsafe fn divide_elements<T: Operand>(data: *mut u8, count: usize, ranks: usize) {
    // SAFETY: aligned, valid for `count` elements and used by nothing else, as the caller promises.
    let data = unsafe { slice::from_raw_parts_mut(data.cast::<T>(), count) };
    for value in data {
        *value = T::narrow(value.widen().divide(ranks));
    }
}

mod operand;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
mod neon;

#[cfg(test)]
mod tests;
