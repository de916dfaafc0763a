//! Loops over `f16`, four elements at a time, with the conversion instructions of every aarch64 processor.

use std::arch::aarch64::{float32x4_t, uint16x4_t};
use std::arch::asm;
use std::{mem, slice};

use half::f16;

use super::Operator;

const LANES: usize = 4;

/// # Safety
/// Same as for `super::assign`.
pub(super) unsafe fn assign<O: Operator>(out: *mut u8, b: *const u8, count: usize) {
    // SAFETY: by contract, aligned, valid for `count` elements and disjoint; any bits are a number.
    let (out, b) = unsafe {
        (slice::from_raw_parts_mut(out.cast::<u16>(), count), slice::from_raw_parts(b.cast::<u16>(), count))
    };
    let ((out, out_rest), (b, b_rest)) = (out.as_chunks_mut::<LANES>(), b.as_chunks::<LANES>());
    for (out, &b) in out.iter_mut().zip(b) {
        *out = combine::<O>(*out, b);
    }
    // SAFETY: two disjoint slices of the same length.
    unsafe {
        super::assign::<f16, O>(out_rest.as_mut_ptr().cast(), b_rest.as_ptr().cast(), out_rest.len());
    }
}

/// # Safety
/// Same as for `super::into`.
pub(super) unsafe fn into<O: Operator>(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
    // SAFETY: by contract, aligned, valid for `count` elements and disjoint; any bits are a number.
    let (out, a, b) = unsafe {
        (
            slice::from_raw_parts_mut(out.cast::<u16>(), count),
            slice::from_raw_parts(a.cast::<u16>(), count),
            slice::from_raw_parts(b.cast::<u16>(), count),
        )
    };
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    let ((a, a_rest), (b, b_rest)) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for ((out, &a), &b) in out.iter_mut().zip(a).zip(b) {
        *out = combine::<O>(a, b);
    }
    // SAFETY: three disjoint slices of the same length.
    unsafe {
        let (a, b) = (a_rest.as_ptr().cast(), b_rest.as_ptr().cast());
        super::into::<f16, O>(out_rest.as_mut_ptr().cast(), a, b, out_rest.len());
    }
}

#[inline(always)]
fn combine<O: Operator>(a: [u16; LANES], b: [u16; LANES]) -> [u16; LANES] {
    let (mut wide, b) = (widen(a), widen(b));
    for (a, b) in wide.iter_mut().zip(b) {
        *a = O::apply(*a, b);
    }
    narrow(wide)
}

#[inline(always)]
fn widen(halves: [u16; LANES]) -> [f32; LANES] {
    // SAFETY: any bits are valid in a lane; the instruction only reads and writes these registers. (The
    // intrinsics for it are not stable in the oldest compiler supported by this project.)
    unsafe {
        let halves: uint16x4_t = mem::transmute(halves);
        let wide: float32x4_t;
        asm!("fcvtl {wide:v}.4s, {halves:v}.4h", wide = lateout(vreg) wide, halves = in(vreg) halves,
             options(pure, nomem, nostack, preserves_flags));
        mem::transmute(wide)
    }
}

/// Converts to `f16`, rounding to nearest even, the processor's default.
#[inline(always)]
fn narrow(wide: [f32; LANES]) -> [u16; LANES] {
    // SAFETY: as in `widen`.
    unsafe {
        let wide: float32x4_t = mem::transmute(wide);
        let halves: uint16x4_t;
        asm!("fcvtn {halves:v}.4h, {wide:v}.4s", halves = lateout(vreg) halves, wide = in(vreg) wide,
             options(pure, nomem, nostack, preserves_flags));
        mem::transmute(halves)
    }
}
