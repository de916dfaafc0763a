//! Loops compiled for the vector instructions of x86-64.

/// The portable loops, compiled for AVX2. Wider vectors gain nothing where memory bandwidth is the limit.
pub(super) mod avx2 {
    use super::super::{self as portable, Operand, Operator};

    /// # Safety
    /// `assign` of the portable implementation, on a processor with AVX2.
    #[target_feature(enable = "avx2")]
    pub(in super::super) unsafe fn assign<T: Operand, O: Operator>(out: *mut u8, b: *const u8, count: usize) {
        // SAFETY: as promised by the caller.
        unsafe { portable::assign::<T, O>(out, b, count) }
    }

    /// # Safety
    /// `into` of the portable implementation, on a processor with AVX2.
    #[target_feature(enable = "avx2")]
    pub(in super::super) unsafe fn into<T: Operand, O: Operator>(
        out: *mut u8,
        a: *const u8,
        b: *const u8,
        count: usize,
    ) {
        // SAFETY: as promised by the caller.
        unsafe { portable::into::<T, O>(out, a, b, count) }
    }

    /// # Safety
    /// `divide_elements` of the portable implementation, on a processor with AVX2.
    #[target_feature(enable = "avx2")]
    pub(in super::super) unsafe fn divide_elements<T: Operand>(data: *mut u8, count: usize, ranks: usize) {
        // SAFETY: as promised by the caller.
        unsafe { portable::divide_elements::<T>(data, count, ranks) }
    }
}

/// Loops over `f16` with the processor's own conversions, eight at a time.
pub(super) mod f16c {
    use std::arch::x86_64::{
        __m128i, _MM_FROUND_TO_NEAREST_INT, _mm_loadu_si128, _mm_storeu_si128, _mm256_cvtph_ps,
        _mm256_cvtps_ph, _mm256_loadu_ps, _mm256_storeu_ps,
    };

    use super::super::Operator;

    const LANES: usize = 8;

    /// # Safety
    /// `assign` of the portable implementation, on a processor with AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(in super::super) unsafe fn assign<O: Operator>(out: *mut u8, b: *const u8, count: usize) {
        // SAFETY: as promised by the caller; the loop reads each element of `a` before it writes it to `out`.
        unsafe { combine_halves::<O>(out.cast(), out.cast_const().cast(), b.cast(), count) }
    }

    /// # Safety
    /// `into` of the portable implementation, on a processor with AVX2 and F16C.
    #[target_feature(enable = "avx2,f16c")]
    pub(in super::super) unsafe fn into<O: Operator>(out: *mut u8, a: *const u8, b: *const u8, count: usize) {
        // SAFETY: as promised by the caller.
        unsafe { combine_halves::<O>(out.cast(), a.cast(), b.cast(), count) }
    }

    /// # Safety
    /// `a` and `b` are readable and `out` writable for `count` elements; `a` may be `out`, no other overlap.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn combine_halves<O: Operator>(out: *mut u16, a: *const u16, b: *const u16, count: usize) {
        let whole = count - count % LANES;
        for start in (0..whole).step_by(LANES) {
            // SAFETY: `start + LANES <= count`.
            unsafe { combine_lanes::<O>(out.add(start), a.add(start), b.add(start)) }
        }
        let rest = count - whole;
        if rest > 0 {
            let (mut tail_out, mut tail_a, mut tail_b) = ([0u16; LANES], [0u16; LANES], [0u16; LANES]);
            // SAFETY: `rest` elements follow `whole` in each buffer, and fewer than LANES fit into each tail.
            unsafe {
                tail_a.as_mut_ptr().copy_from_nonoverlapping(a.add(whole), rest);
                tail_b.as_mut_ptr().copy_from_nonoverlapping(b.add(whole), rest);
                combine_lanes::<O>(tail_out.as_mut_ptr(), tail_a.as_ptr(), tail_b.as_ptr());
                out.add(whole).copy_from_nonoverlapping(tail_out.as_ptr(), rest);
            }
        }
    }

    /// # Safety
    /// `a` and `b` are readable and `out` writable for LANES elements.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn combine_lanes<O: Operator>(out: *mut u16, a: *const u16, b: *const u16) {
        let (mut left, mut right) = ([0f32; LANES], [0f32; LANES]);
        // SAFETY: unaligned loads of 16 bytes within `a` and `b`, and stores of 32 bytes into local arrays.
        unsafe {
            _mm256_storeu_ps(left.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(a.cast::<__m128i>())));
            _mm256_storeu_ps(right.as_mut_ptr(), _mm256_cvtph_ps(_mm_loadu_si128(b.cast::<__m128i>())));
        }
        for (left, &right) in left.iter_mut().zip(&right) {
            *left = O::apply(*left, right);
        }
        // SAFETY: an unaligned load of a local array of 32 bytes, and an unaligned store of 16 bytes into
        // `out`.
        unsafe {
            let rounded = _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(_mm256_loadu_ps(left.as_ptr()));
            _mm_storeu_si128(out.cast::<__m128i>(), rounded);
        }
    }
}
