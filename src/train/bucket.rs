//! Memory of gradients and parameters.

use std::ops::Range;

use half::{bf16, f16};

use super::streams::{OnGroup, OnProgram, Streams};
use crate::job::{Buffer, Group};
use crate::{Element, Error};

/// A type of gradients: `f32`, `f64`, [`bf16`], [`struct@f16`].
pub trait Gradient: Element {
    /// Rounds to bfloat16, up to the end of the shorter slice.
    #[doc(hidden)]
    fn encode(values: &[Self], wire: &mut [bf16]);

    /// Converts from bfloat16, up to the end of the shorter slice.
    #[doc(hidden)]
    fn decode(wire: &[bf16], values: &mut [Self]);
}

macro_rules! gradient {
    ($type:ty, $to_bf16:expr, $from_bf16:expr) => {
        impl Gradient for $type {
            fn encode(values: &[Self], wire: &mut [bf16]) {
                let to_bf16: fn($type) -> bf16 = $to_bf16;
                wire.iter_mut().zip(values).for_each(|(wire, &value)| *wire = to_bf16(value));
            }

            fn decode(wire: &[bf16], values: &mut [Self]) {
                let from_bf16: fn(bf16) -> $type = $from_bf16;
                values.iter_mut().zip(wire).for_each(|(value, &wire)| *value = from_bf16(wire));
            }
        }
    };
}

gradient!(f32, bf16::from_f32, bf16::to_f32);
gradient!(f64, bf16_of_f64, bf16::to_f64);
gradient!(bf16, |value| value, |value| value);
gradient!(f16, |value| bf16::from_f32(value.to_f32()), |value| f16::from_f32(value.to_f32()));

/// Rounds to the nearest bfloat16, ties to even. (`bf16::from_f64` ignores the last 32 bits.)
fn bf16_of_f64(value: f64) -> bf16 {
    let nearest = value as f32;
    if f64::from(nearest) == value || value.is_nan() {
        return bf16::from_f32(nearest);
    }
    // The neighbour with an odd last bit is on the same side of every tie between two bfloat16 numbers as the
    // value.
    let next_to_zero = nearest.to_bits() - u32::from(f64::from(nearest).abs() > value.abs());
    bf16::from_f32(f32::from_bits(next_to_zero | 1))
}

/// Memory in which gradients are reduced: `Vec<T>` on hosts, and cudarc's `CudaSlice<T>` on GPUs, of a
/// [`Gradient`]. Other types cannot implement it.
pub trait Bucket: Buffer {
    /// Borrowed elements: `&[T]`, or cudarc's `CudaView<T>`.
    type View<'a>;
    /// Mutably borrowed elements: `&mut [T]`, or cudarc's `CudaViewMut<T>`.
    type ViewMut<'a>;
    /// Memory of bfloat16 numbers.
    #[doc(hidden)]
    type Wire: Bucket<Streams = Self::Streams>;
    /// The streams that order copies and operations.
    #[doc(hidden)]
    type Streams: Streams;

    /// Number of elements of a view.
    #[doc(hidden)]
    fn view_len(view: &Self::View<'_>) -> usize;

    /// A mutable view as a view.
    #[doc(hidden)]
    fn read<'a>(view: &'a Self::ViewMut<'_>) -> Self::View<'a>;

    /// Some elements of a view; an error if it does not have them.
    #[doc(hidden)]
    fn part<'a>(view: &Self::View<'a>, range: Range<usize>) -> Result<Self::View<'a>, Error>;

    /// Some elements of this memory; an error if it does not have them.
    #[doc(hidden)]
    fn view(&self, range: Range<usize>) -> Result<Self::View<'_>, Error>;

    /// All of this memory, to be written.
    #[doc(hidden)]
    fn view_mut(&mut self) -> Self::ViewMut<'_>;

    /// The streams of a group's rank.
    #[doc(hidden)]
    fn streams(group: &Group) -> Result<Self::Streams, Error>;

    /// Registers the stream of a view's memory, before the view is copied.
    #[doc(hidden)]
    fn register(streams: &mut Self::Streams, view: &Self::View<'_>) -> Result<(), Error>;

    /// Memory of zeros.
    #[doc(hidden)]
    fn zeros(side: &mut OnGroup<'_, Self::Streams>, len: usize) -> Result<Self, Error>;

    /// Memory of bfloat16 zeros.
    #[doc(hidden)]
    fn wire_zeros(side: &mut OnGroup<'_, Self::Streams>, len: usize) -> Result<Self::Wire, Error>;

    /// Copies a view to this memory, from element `start` on.
    #[doc(hidden)]
    fn put(
        &mut self,
        side: &OnProgram<'_, Self::Streams>,
        start: usize,
        view: &Self::View<'_>,
    ) -> Result<(), Error>;

    /// Copies a view to `wire`, from element `start` on, with rounding.
    #[doc(hidden)]
    fn wire_put(
        wire: &mut Self::Wire,
        side: &OnProgram<'_, Self::Streams>,
        start: usize,
        view: &Self::View<'_>,
    ) -> Result<(), Error>;

    /// Clears these elements.
    #[doc(hidden)]
    fn clear(&mut self, side: &OnProgram<'_, Self::Streams>, range: Range<usize>) -> Result<(), Error>;

    /// Copies a view of this memory to one of the program's, of the same length.
    #[doc(hidden)]
    fn copy(view: &Self::View<'_>, target: &mut Self::ViewMut<'_>) -> Result<(), Error>;

    /// Converts all of `wire` to this memory, of the same length.
    #[doc(hidden)]
    fn wire_get(&mut self, side: &mut OnGroup<'_, Self::Streams>, wire: &Self::Wire) -> Result<(), Error>;
}

/// The error of a range outside of `len` elements.
pub(super) fn outside_error(range: &Range<usize>, len: usize) -> Error {
    Error::Buffer(format!("elements {range:?} of a buffer of {len} elements"))
}

/// The error of memory that cannot be allocated.
pub(super) fn no_memory<T: Element>(len: usize) -> Error {
    Error::Job(format!("memory for {len} elements of {} cannot be allocated", T::DATA_TYPE.rust_name()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_are_rounded_once() {
        let unit = 2.0_f64.powi(-7);
        let tiny = 2.0_f64.powi(-45);
        let rounded = |value: f64| {
            let mut wire = [bf16::ZERO; 2];
            f64::encode(&[value, -value], &mut wire);
            assert_eq!(wire[0].to_f64(), -wire[1].to_f64());
            wire[0].to_f64()
        };
        // Exact, ties, and neighbours of ties that single precision does not have.
        for (value, expected) in [
            (1.0 + 3.0 * unit, 1.0 + 3.0 * unit),
            (1.0 + 0.5 * unit, 1.0),
            (1.0 + 1.5 * unit, 1.0 + 2.0 * unit),
            (1.0 + 0.5 * unit + tiny, 1.0 + unit),
            (1.0 + 0.5 * unit - tiny, 1.0),
            (1.0 + 1.5 * unit - tiny, 1.0 + unit),
            (1.0 + 1.5 * unit + tiny, 1.0 + 2.0 * unit),
            (1.0 - tiny, 1.0),
            (f64::MAX, f64::INFINITY),
            (f64::INFINITY, f64::INFINITY),
            (1e-300, 0.0),
            (0.0, 0.0),
        ] {
            assert_eq!(rounded(value), expected, "{value:e}");
        }
        assert!(bf16_of_f64(f64::NAN).is_nan());
    }
}
