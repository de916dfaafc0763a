//! Gradients in host memory.

use std::ops::Range;

use half::bf16;

use super::bucket::{Bucket, Gradient, no_memory, outside_error};
use super::streams::{OnGroup, OnProgram, Streams};
use crate::job::{Backend, Group};
use crate::{Element, Error};

/// The streams of host memory: none.
pub struct NoStreams;

impl Streams for NoStreams {}

impl<T: Gradient> Bucket for Vec<T> {
    type View<'a> = &'a [T];
    type ViewMut<'a> = &'a mut [T];
    type Wire = Vec<bf16>;
    type Streams = NoStreams;

    fn view_len(view: &&[T]) -> usize {
        view.len()
    }

    fn read<'a>(view: &'a &mut [T]) -> &'a [T] {
        view
    }

    fn part<'a>(view: &Self::View<'a>, range: Range<usize>) -> Result<Self::View<'a>, Error> {
        part_ref(view, range)
    }

    fn view(&self, range: Range<usize>) -> Result<&[T], Error> {
        part_ref(self, range)
    }

    fn view_mut(&mut self) -> &mut [T] {
        self
    }

    fn streams(group: &Group) -> Result<NoStreams, Error> {
        match group.backend() {
            Backend::Host => Ok(NoStreams),
            _ => Err(Error::Buffer(
                "gradients in host memory, but a group over GPUs: use Backend::Host".to_owned(),
            )),
        }
    }

    fn register(_: &mut NoStreams, _: &&[T]) -> Result<(), Error> {
        Ok(())
    }

    fn zeros(_: &mut OnGroup<'_, NoStreams>, len: usize) -> Result<Self, Error> {
        zeroed_vec(len)
    }

    fn wire_zeros(_: &mut OnGroup<'_, NoStreams>, len: usize) -> Result<Vec<bf16>, Error> {
        zeroed_vec(len)
    }

    fn put(&mut self, _: &OnProgram<'_, NoStreams>, start: usize, view: &&[T]) -> Result<(), Error> {
        part_mut(self, start..start + view.len())?.copy_from_slice(view);
        Ok(())
    }

    fn wire_put(
        wire: &mut Vec<bf16>,
        _: &OnProgram<'_, NoStreams>,
        start: usize,
        view: &&[T],
    ) -> Result<(), Error> {
        T::encode(view, part_mut(wire, start..start + view.len())?);
        Ok(())
    }

    fn clear(&mut self, _: &OnProgram<'_, NoStreams>, range: Range<usize>) -> Result<(), Error> {
        part_mut(self, range)?.fill(T::default());
        Ok(())
    }

    fn copy(view: &&[T], target: &mut &mut [T]) -> Result<(), Error> {
        part_mut(target, 0..view.len())?.copy_from_slice(view);
        Ok(())
    }

    fn wire_get(&mut self, _: &mut OnGroup<'_, NoStreams>, wire: &Vec<bf16>) -> Result<(), Error> {
        T::decode(wire, self);
        Ok(())
    }
}

fn zeroed_vec<T: Element>(len: usize) -> Result<Vec<T>, Error> {
    let mut memory = Vec::new();
    let reserved = memory.try_reserve_exact(len);
    reserved.map_err(|_| no_memory::<T>(len))?;
    memory.resize(len, T::default());
    Ok(memory)
}

fn part_ref<T>(elements: &[T], range: Range<usize>) -> Result<&[T], Error> {
    elements.get(range.clone()).ok_or_else(|| outside_error(&range, elements.len()))
}

fn part_mut<T>(elements: &mut [T], range: Range<usize>) -> Result<&mut [T], Error> {
    let len = elements.len();
    elements.get_mut(range.clone()).ok_or_else(|| outside_error(&range, len))
}
