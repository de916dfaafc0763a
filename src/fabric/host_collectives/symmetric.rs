//! all_reduce, all_gather, reduce_scatter and all_to_all: all ranks do the same.

use super::{HostCollectives, check_equal};
use crate::fabric::Error;
use crate::fabric::algorithm::engine::OperationMemory;
use crate::fabric::selection::Collective;
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
        let memory = OperationMemory::out_of_place(send, receive);
        // SAFETY: two buffers of this many elements, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::AllReduce, memory, send.len(), Some(op), None) }
    }

    pub(crate) fn all_reduce_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let count = data.len();
        let memory = OperationMemory::in_place(data, 0..count, 0..count);
        // SAFETY: one buffer of this many elements for both, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::AllReduce, memory, count, Some(op), None) }
    }

    pub(crate) fn all_gather<E: Element>(&mut self, send: &[E], receive: &mut [E]) -> Result<(), Error> {
        self.check_parts(Collective::AllGather, ("receive", receive.len()), ("send", send.len()))?;
        let memory = OperationMemory::out_of_place(send, receive);
        // SAFETY: a block and one for each rank, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::AllGather, memory, send.len(), None, None) }
    }

    pub(crate) fn all_gather_in_place<E: Element>(&mut self, data: &mut [E]) -> Result<(), Error> {
        let (own, len) = (self.own_part(Collective::AllGather, data.len())?, data.len());
        let memory = OperationMemory::in_place(data, own.clone(), 0..len);
        // SAFETY: a block for each rank, borrowed until this returns, with this rank's own for a source.
        unsafe { self.run_collective::<E>(Collective::AllGather, memory, own.len(), None, None) }
    }

    pub(crate) fn reduce_scatter<E: Element>(
        &mut self,
        send: &[E],
        receive: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        self.check_parts(Collective::ReduceScatter, ("send", send.len()), ("receive", receive.len()))?;
        let (memory, count) = (OperationMemory::out_of_place(send, receive), receive.len());
        // SAFETY: a block for each rank and one block, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::ReduceScatter, memory, count, Some(op), None) }
    }

    pub(crate) fn reduce_scatter_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        let (own, len) = (self.own_part(Collective::ReduceScatter, data.len())?, data.len());
        let memory = OperationMemory::in_place(data, 0..len, own.clone());
        // SAFETY: a block for each rank, borrowed until this returns, with this rank's own for a target.
        unsafe { self.run_collective::<E>(Collective::ReduceScatter, memory, own.len(), Some(op), None) }
    }

    pub(crate) fn all_to_all<E: Element>(&mut self, send: &[E], receive: &mut [E]) -> Result<(), Error> {
        check_equal(Collective::AllToAll.name(), send.len(), receive.len())?;
        let own = self.own_part(Collective::AllToAll, send.len())?;
        let memory = OperationMemory::out_of_place(send, receive);
        // SAFETY: two buffers of a part for each rank, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::AllToAll, memory, own.len(), None, None) }
    }

    pub(crate) fn all_to_all_in_place<E: Element>(&mut self, data: &mut [E]) -> Result<(), Error> {
        let (own, len) = (self.own_part(Collective::AllToAll, data.len())?, data.len());
        let memory = OperationMemory::in_place(data, 0..len, 0..len);
        // SAFETY: a buffer of a part for each rank, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::AllToAll, memory, own.len(), None, None) }
    }
}
