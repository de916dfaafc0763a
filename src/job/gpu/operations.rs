//! Operations of a group over GPUs.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::{CudaSlice, CudaStream};

use super::GpuGroup;
use super::buffers::elements_view;
use crate::job::backend::{Backend, Choice};
use crate::job::buffer::memory::GroupMemory;
use crate::job::group_backend::{GroupBackend, Operations};
use crate::job::work::Work;
use crate::nccl::{self, Collectives, Communicator, DeviceBufferMut};
use crate::purpose::Purpose;
use crate::{Element, Error, ReduceOp, world};

impl GroupBackend for GpuGroup {
    const BACKEND: Backend = Backend::Gpu;

    fn describe_transport(&self) -> &str {
        &self.rank.description
    }

    fn purpose_mut(&mut self) -> &mut Option<Purpose> {
        &mut self.purpose
    }

    fn backend_choice(&self) -> Choice {
        Choice { backend: Backend::Gpu, device: Some(self.rank.device.clone()) }
    }

    fn operation_timeout(&self) -> Option<Duration> {
        self.rank.watch.operation_timeout()
    }

    fn set_timeout(&self, limit: Option<Duration>) {
        self.rank.watch.set_timeout(limit);
    }

    fn check_group(&self) -> Result<(), Error> {
        self.rank.watch.check_failure()
    }

    fn run_barrier(&self) -> Result<(), Error> {
        self.refuse_captured("barrier")?;
        let one = self.make_slice(|stream| stream.alloc_zeros::<u32>(1))?;
        let call = |communicator: &Communicator, one: &mut CudaSlice<u32>| {
            communicator.all_reduce_in_place(one, ReduceOp::Sum)
        };
        self.start_ordered("barrier".to_owned(), one, call).wait().map(drop)
    }

    fn all_reduce_in_place<T: Element>(&self, data: &mut [T], op: ReduceOp) -> Result<(), Error> {
        let operation = describe_operation::<T>("all_reduce", data.len(), with_op(op));
        self.in_place(operation, data, |communicator, data, length| {
            communicator.all_reduce_in_place(&mut elements_view::<T>(data, length)?, op)
        })
    }

    fn broadcast_in_place<T: Element>(&self, data: &mut [T], root: usize) -> Result<(), Error> {
        let operation = describe_operation::<T>("broadcast", data.len(), format_args!(", root {root}"));
        self.in_place(operation, data, |communicator, data, length| {
            communicator.broadcast_in_place(&mut elements_view::<T>(data, length)?, root)
        })
    }

    fn all_gather_bytes(&self, mine: &[u8], world: Option<&world::Handle>) -> Result<Vec<Vec<u8>>, Error> {
        let Some(world) = world else { return self.gather_in_memory(mine) };
        // The communicator stays free meanwhile, so that its errors are noticed.
        let operation = self.describe_with_purpose("all_gather_bytes".to_owned());
        self.rank.watch.during_exchange(&operation, || world.all_gather(mine))
    }

    fn group_stream(&self) -> Option<&Arc<CudaStream>> {
        Some(&self.rank.stream)
    }
}

impl<B: DeviceBufferMut + GroupMemory> Operations<B> for GpuGroup {
    fn all_reduce(&self, data: B, op: ReduceOp) -> Work<B> {
        let operation = describe_operation::<B::Element>("all_reduce", data.len(), with_op(op));
        let contexts = data.context();
        self.start_checked::<B, _>(operation, contexts, data, |communicator, data| {
            communicator.all_reduce_in_place(data, op)
        })
    }

    fn broadcast(&self, data: B, root: usize) -> Work<B> {
        let operation =
            describe_operation::<B::Element>("broadcast", data.len(), format_args!(", root {root}"));
        let contexts = data.context();
        self.start_checked::<B, _>(operation, contexts, data, |communicator, data| {
            communicator.broadcast_in_place(data, root)
        })
    }

    fn all_gather(&self, part: B, whole: B) -> Work<(B, B)> {
        let operation = describe_operation::<B::Element>("all_gather", part.len(), "");
        let contexts = part.context().into_iter().chain(whole.context());
        self.start_checked::<B, _>(operation, contexts, (part, whole), |communicator, (part, whole)| {
            communicator.all_gather(part, whole)
        })
    }

    fn reduce_scatter(&self, whole: B, part: B, op: ReduceOp) -> Work<(B, B)> {
        let operation = describe_operation::<B::Element>("reduce_scatter", part.len(), with_op(op));
        let contexts = whole.context().into_iter().chain(part.context());
        self.start_checked::<B, _>(operation, contexts, (whole, part), |communicator, (whole, part)| {
            communicator.reduce_scatter(whole, part, op)
        })
    }

    fn all_reduce_list(&self, data: Vec<B>, op: ReduceOp) -> Work<Vec<B>> {
        let (buffers, elements) = (data.len(), data.iter().map(B::len).sum::<usize>());
        let operation =
            format!("all_reduce_list of {buffers} buffers with {elements} {}, {op}", B::Element::DATA_TYPE);
        let contexts: Vec<_> = data.iter().filter_map(B::context).collect();
        self.start_checked::<B, _>(operation, contexts, data, |communicator, data| {
            nccl::group(|group| {
                data.iter_mut().try_for_each(|buffer| group.on(communicator).all_reduce_in_place(buffer, op))
            })
        })
    }
}

/// A description for errors and comparisons: `all_reduce of 100 float, sum`.
fn describe_operation<T: Element>(operation: &str, count: usize, with: impl Display) -> String {
    format!("{operation} of {count} {}{with}", T::DATA_TYPE)
}

fn with_op(op: ReduceOp) -> String {
    format!(", {op}")
}
