//! Memory of gradients and parameters.

use std::ops::Range;

use half::{bf16, f16};

#[cfg(feature = "fabric")]
use crate::job::Backend;
use crate::job::{Buffer, Group, Work};
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
    type Wire: Buffer;
    /// The streams that order copies and operations; nothing on hosts.
    #[doc(hidden)]
    type Streams: Send;

    /// Number of elements of a view.
    #[doc(hidden)]
    fn view_len(view: &Self::View<'_>) -> usize;

    /// Number of elements of a mutable view.
    #[doc(hidden)]
    fn view_mut_len(view: &Self::ViewMut<'_>) -> usize;

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

    /// Refuses a call at a time when its operations would be refused, before it changes anything.
    #[doc(hidden)]
    fn check(streams: &Self::Streams) -> Result<(), Error>;

    /// Orders the release of the buckets' memory after its uses; after an error, it must not be released.
    #[doc(hidden)]
    fn settle(streams: &Self::Streams) -> Result<(), Error>;

    /// Registers the stream of a view's memory, before the view is copied.
    #[doc(hidden)]
    fn register(streams: &mut Self::Streams, view: &Self::View<'_>) -> Result<(), Error>;

    /// Makes the group's operations wait for what the program has queued, and for copies.
    #[doc(hidden)]
    fn make_group_wait(streams: &mut Self::Streams) -> Result<(), Error>;

    /// Makes the program's work wait for the group's operations.
    #[doc(hidden)]
    fn make_program_wait(streams: &mut Self::Streams) -> Result<(), Error>;

    /// Makes the program's streams wait for each other, where there are several.
    #[doc(hidden)]
    fn join_streams(streams: &mut Self::Streams) -> Result<(), Error>;

    /// The buffers of an operation, for use on the streams.
    #[doc(hidden)]
    fn collect<W>(streams: &mut Self::Streams, work: Work<W>) -> Result<W, Error>;

    /// Memory of zeros.
    #[doc(hidden)]
    fn zeros(streams: &mut Self::Streams, len: usize) -> Result<Self, Error>;

    /// Copies a view to this memory, from element `start` on.
    #[doc(hidden)]
    fn put(&mut self, start: usize, view: &Self::View<'_>) -> Result<(), Error>;

    /// Copies a view to another one of the same length.
    #[doc(hidden)]
    fn copy(view: &Self::View<'_>, target: &mut Self::ViewMut<'_>) -> Result<(), Error>;

    /// Clears these elements.
    #[doc(hidden)]
    fn clear(&mut self, streams: &mut Self::Streams, range: Range<usize>) -> Result<(), Error>;

    /// Memory of bfloat16 zeros.
    #[doc(hidden)]
    fn wire_zeros(streams: &mut Self::Streams, len: usize) -> Result<Self::Wire, Error>;

    /// Copies a view to `wire`, from element `start` on, with rounding.
    #[doc(hidden)]
    fn wire_put(
        wire: &mut Self::Wire,
        streams: &mut Self::Streams,
        start: usize,
        view: &Self::View<'_>,
    ) -> Result<(), Error>;

    /// Clears these elements of `wire`.
    #[doc(hidden)]
    fn wire_clear(
        wire: &mut Self::Wire,
        streams: &mut Self::Streams,
        range: Range<usize>,
    ) -> Result<(), Error>;

    /// Converts all of `wire` to this memory, of the same length.
    #[doc(hidden)]
    fn wire_get(&mut self, streams: &mut Self::Streams, wire: &Self::Wire) -> Result<(), Error>;
}

/// The error of a range outside of `len` elements.
pub(super) fn outside(range: &Range<usize>, len: usize) -> Error {
    Error::Buffer(format!("elements {range:?} of a buffer of {len} elements"))
}

/// The error of memory that cannot be allocated.
pub(super) fn no_memory<T: Element>(len: usize) -> Error {
    Error::Job(format!("there is no memory for {len} elements of {}", T::DATA_TYPE.rust_name()))
}

#[cfg(feature = "fabric")]
fn zeros<T: Element>(len: usize) -> Result<Vec<T>, Error> {
    let mut memory = Vec::new();
    let reserved = memory.try_reserve_exact(len);
    reserved.map_err(|_| no_memory::<T>(len))?;
    memory.resize(len, T::default());
    Ok(memory)
}

#[cfg(feature = "fabric")]
fn part<T>(elements: &[T], range: Range<usize>) -> Result<&[T], Error> {
    elements.get(range.clone()).ok_or_else(|| outside(&range, elements.len()))
}

#[cfg(feature = "fabric")]
fn part_mut<T>(elements: &mut [T], range: Range<usize>) -> Result<&mut [T], Error> {
    let len = elements.len();
    elements.get_mut(range.clone()).ok_or_else(|| outside(&range, len))
}

#[cfg(feature = "fabric")]
impl<T: Gradient> Bucket for Vec<T> {
    type View<'a> = &'a [T];
    type ViewMut<'a> = &'a mut [T];
    type Wire = Vec<bf16>;
    type Streams = ();

    fn view_len(view: &&[T]) -> usize {
        view.len()
    }

    fn view_mut_len(view: &&mut [T]) -> usize {
        view.len()
    }

    fn read<'a>(view: &'a &mut [T]) -> &'a [T] {
        view
    }

    fn part<'a>(view: &Self::View<'a>, range: Range<usize>) -> Result<Self::View<'a>, Error> {
        part(view, range)
    }

    fn view(&self, range: Range<usize>) -> Result<&[T], Error> {
        part(self, range)
    }

    fn view_mut(&mut self) -> &mut [T] {
        self
    }

    fn streams(group: &Group) -> Result<(), Error> {
        match group.backend() {
            Backend::Host => Ok(()),
            _ => Err(Error::Buffer(
                "gradients in host memory, but a group over GPUs: use Backend::Host".to_owned(),
            )),
        }
    }

    fn check((): &()) -> Result<(), Error> {
        Ok(())
    }

    fn settle((): &()) -> Result<(), Error> {
        Ok(())
    }

    fn register((): &mut (), _: &&[T]) -> Result<(), Error> {
        Ok(())
    }

    fn make_group_wait((): &mut ()) -> Result<(), Error> {
        Ok(())
    }

    fn make_program_wait((): &mut ()) -> Result<(), Error> {
        Ok(())
    }

    fn join_streams((): &mut ()) -> Result<(), Error> {
        Ok(())
    }

    fn collect<W>((): &mut (), work: Work<W>) -> Result<W, Error> {
        work.wait()
    }

    fn zeros((): &mut (), len: usize) -> Result<Self, Error> {
        zeros(len)
    }

    fn put(&mut self, start: usize, view: &&[T]) -> Result<(), Error> {
        part_mut(self, start..start + view.len())?.copy_from_slice(view);
        Ok(())
    }

    fn copy(view: &&[T], target: &mut &mut [T]) -> Result<(), Error> {
        part_mut(target, 0..view.len())?.copy_from_slice(view);
        Ok(())
    }

    fn clear(&mut self, (): &mut (), range: Range<usize>) -> Result<(), Error> {
        part_mut(self, range)?.fill(T::default());
        Ok(())
    }

    fn wire_zeros((): &mut (), len: usize) -> Result<Vec<bf16>, Error> {
        zeros(len)
    }

    fn wire_put(wire: &mut Vec<bf16>, (): &mut (), start: usize, view: &&[T]) -> Result<(), Error> {
        T::encode(view, part_mut(wire, start..start + view.len())?);
        Ok(())
    }

    fn wire_clear(wire: &mut Vec<bf16>, (): &mut (), range: Range<usize>) -> Result<(), Error> {
        part_mut(wire, range)?.fill(bf16::ZERO);
        Ok(())
    }

    fn wire_get(&mut self, (): &mut (), wire: &Vec<bf16>) -> Result<(), Error> {
        T::decode(wire, self);
        Ok(())
    }
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
