//! all_reduce.

use std::sync::Arc;

use super::{HostCollectives, check_equal};
use crate::fabric::Error;
use crate::fabric::algorithm::engine::Memory;
use crate::fabric::algorithm::{Spec, all_reduce, hierarchical};
use crate::fabric::calls::CallSignature;
use crate::fabric::reduction::Reduction;
use crate::fabric::selection::{Algorithm, Collective};
use crate::fabric::transport::Transport;
use crate::{Element, ReduceOp};

impl<T: Transport> HostCollectives<T> {
    pub(crate) fn all_reduce<E: Element>(
        &mut self,
        send: &[E],
        receive: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        check_equal(Collective::AllReduce.name(), send.len(), receive.len())?;
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: two buffers of this many elements, borrowed until this returns.
        unsafe { self.all_reduce_memory::<E>(memory, receive.len(), op) }
    }

    pub(crate) fn all_reduce_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        if self.is_single_rank() {
            return Ok(());
        }
        let memory = Memory::in_place(data, 0..data.len(), 0..data.len());
        // SAFETY: one buffer of this many elements for both, borrowed until this returns.
        unsafe { self.all_reduce_memory::<E>(memory, data.len(), op) }
    }

    /// # Safety
    /// Both buffers have `count` elements of type `E`, are the same or disjoint, and borrowed while this runs.
    unsafe fn all_reduce_memory<E: Element>(
        &mut self,
        memory: Memory,
        count: usize,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let collective = Collective::AllReduce;
        self.call = CallSignature::of::<E>(collective, count).with_op(op);
        let reduction = Reduction::new(E::DATA_TYPE, op);
        let plan = self.plan(collective, count * size_of::<E>());
        let spec = Spec {
            at: self.position(),
            count,
            element_size: reduction.element_size(),
            segment: plan.segment,
            in_flight: plan.in_flight,
        };
        let reduction = &reduction;
        let name = collective.name();
        let hosts = Arc::clone(&self.hosts);
        // SAFETY: the schedules are made for buffers of `count` elements of type `E`.
        unsafe {
            match plan.algorithm {
                Algorithm::Board => self.all_reduce_in_shared_memory(name, memory, reduction, plan.segment),
                Algorithm::Hierarchical => {
                    let levels = self.levels(&hosts, plan);
                    let schedule = hierarchical::all_reduce::Hierarchical { levels, spec };
                    self.run(name, &schedule, memory, Some(reduction))
                }
                Algorithm::Direct => self.run(name, &all_reduce::Direct(spec), memory, Some(reduction)),
                Algorithm::RecursiveDoubling => {
                    self.run(name, &all_reduce::RecursiveDoubling(spec), memory, Some(reduction))
                }
                Algorithm::Pairwise => self.run(name, &all_reduce::Pairwise(spec), memory, Some(reduction)),
                Algorithm::Rabenseifner => {
                    self.run(name, &all_reduce::Rabenseifner(spec), memory, Some(reduction))
                }
                // The ring serves any number of ranks.
                _ => self.run(name, &all_reduce::Ring(spec), memory, Some(reduction)),
            }
        }
    }
}
