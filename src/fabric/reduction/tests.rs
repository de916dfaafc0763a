//! Every loop against one element at a time.

use std::fmt::Debug;

use half::{bf16, f16};

use super::*;

/// A type's bits, its reference results, and values that matter.
trait Reference: Operand + Debug {
    const DATA_TYPE: DataType;
    fn values() -> Vec<Self>;
    fn reference(a: Self, b: Self, op: ReduceOp) -> Self;
    fn divided(self, ranks: usize) -> Self;
    /// Whether both are the same number, with its sign, or both are NaN.
    fn same(self, other: Self) -> bool;
}

macro_rules! integers {
    ($($type:ty: $tag:ident),*) => {$(
        impl Reference for $type {
            const DATA_TYPE: DataType = DataType::$tag;
            fn values() -> Vec<Self> {
                let (min, max) = (Self::MIN, Self::MAX);
                vec![min, min + 1, 0, 1, 2, 3, 7, 100, max / 3, max / 2 + 1, max - 1, max, min / 2, 0x55, 0x2a]
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
                // IEEE 754's maximum: a NaN wins, and -0 < +0.
                let larger = |x: f64, y: f64| {
                    if x.is_nan() || y.is_nan() {
                        f64::NAN
                    } else if x == y {
                        if x.is_sign_positive() { x } else { y }
                    } else if x > y {
                        x
                    } else {
                        y
                    }
                };
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

integers!(i8: Int8, u8: Uint8, i32: Int32, u32: Uint32, i64: Int64, u64: Uint64);
floats! {
    f32: Float32, |value: f64| value as f32, f64::from;
    f64: Float64, |value: f64| value, |value: f64| value;
    f16: Float16, f16::from_f64, f16::to_f64;
    bf16: Bfloat16, bf16::from_f64, bf16::to_f64
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
            // One element more than the loops are given, to see that it is left alone.
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
            unsafe { chosen.finish(data.as_mut_ptr().cast(), size_of_val(&data[..]), ranks) };
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
}

/// The conversions of this module against those of the crate `half`: all halves, and singles around every half.
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
