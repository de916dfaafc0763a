//! reduce_scatter.

use std::sync::Arc;

use super::{HostCollectives, own_range};
use crate::fabric::Error;
use crate::fabric::algorithm::engine::Memory;
use crate::fabric::algorithm::{Spec, hierarchical, reduce_scatter};
use crate::fabric::calls::CallSignature;
use crate::fabric::reduction::Reduction;
use crate::fabric::selection::{Algorithm, Collective, Plan};
use crate::fabric::transport::Transport;
use crate::{Element, ReduceOp};

impl<T: Transport> HostCollectives<T> {
    pub(crate) fn reduce_scatter<E: Element>(
        &mut self,
        send: &[E],
        receive: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let name = Collective::ReduceScatter.name();
        self.check_parts(name, ("send", send.len()), ("receive", receive.len()))?;
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: a buffer of blocks and one of a block, borrowed until this returns.
        unsafe { self.reduce_scatter_memory::<E>(memory, receive.len(), op) }
    }

    pub(crate) fn reduce_scatter_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.check_multiple(Collective::ReduceScatter.name(), data.len())?;
        if self.is_single_rank() {
            return Ok(());
        }
        let own = own_range(self.rank, self.ranks, data.len());
        let memory = Memory::in_place(data, 0..data.len(), own.clone());
        // SAFETY: a buffer of blocks, borrowed until this returns, with this rank's own for a target.
        unsafe { self.reduce_scatter_memory::<E>(memory, own.len(), op) }
    }

    /// # Safety
    /// The source has `count` elements of type `E` for each rank; the target is this rank's, or disjoint and as long.
    /// Both are borrowed while this runs.
    unsafe fn reduce_scatter_memory<E: Element>(
        &mut self,
        memory: Memory,
        count: usize,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let collective = Collective::ReduceScatter;
        self.call = CallSignature::of::<E>(collective, count).with_op(op);
        let reduction = Reduction::new(E::DATA_TYPE, op);
        let plan = self.plan(collective, memory.source_len);
        let Plan { algorithm, segment, in_flight, .. } = plan;
        let element_size = reduction.element_size();
        let spec = Spec { at: self.position(), count, element_size, segment, in_flight };
        let name = collective.name();
        let reduction = &reduction;
        let hosts = Arc::clone(&self.hosts);
        // SAFETY: the schedules are made for buffers of this size; this rank's block lies within the source.
        unsafe {
            match algorithm {
                Algorithm::Board => self.reduce_scatter_in_shared_memory(name, memory, reduction, segment),
                Algorithm::Hierarchical => {
                    let levels = self.levels(&hosts, plan);
                    let schedule = hierarchical::reduce_scatter::Hierarchical { levels, spec };
                    self.run(name, &schedule, memory, Some(reduction))
                }
                Algorithm::RecursiveHalving => {
                    self.run(name, &reduce_scatter::RecursiveHalving(spec), memory, Some(reduction))
                }
                Algorithm::Ring => self.run(name, &reduce_scatter::Ring(spec), memory, Some(reduction)),
                // Pairwise serves any number of ranks.
                _ => self.run(name, &reduce_scatter::Pairwise(spec), memory, Some(reduction)),
            }
        }
    }
}
