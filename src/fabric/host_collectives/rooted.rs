//! broadcast, reduce, gather and scatter: one rank is the root.

use std::ops::Range;

use super::{HostCollectives, check_equal};
use crate::fabric::Error;
use crate::fabric::algorithm::engine::OperationMemory;
use crate::fabric::selection::Collective;
use crate::fabric::transport::Transport;
use crate::{Element, ReduceOp};

impl<T: Transport> HostCollectives<T> {
    pub(crate) fn broadcast_from_root<E: Element>(
        &mut self,
        send: Option<&[E]>,
        receive: &mut [E],
        root: usize,
    ) -> Result<(), Error> {
        let send = self.root_buffer(Collective::Broadcast, "send", send, root)?;
        if self.rank == root {
            check_equal(Collective::Broadcast.name(), send.len(), receive.len())?;
        }
        let (memory, count) = (OperationMemory::out_of_place(send, receive), receive.len());
        // SAFETY: a buffer of this many elements, and the root's as long, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::Broadcast, memory, count, None, Some(root)) }
    }

    pub(crate) fn broadcast_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        root: usize,
    ) -> Result<(), Error> {
        self.check_rank(Collective::Broadcast.name(), "root", root)?;
        let count = data.len();
        let memory = OperationMemory::in_place(data, self.at_root(root, count), 0..count);
        // SAFETY: a buffer of this many elements, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::Broadcast, memory, count, None, Some(root)) }
    }

    pub(crate) fn reduce_to_root<E: Element>(
        &mut self,
        send: &[E],
        receive: Option<&mut [E]>,
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        let receive = self.root_buffer(Collective::Reduce, "receive", receive, root)?;
        if self.rank == root {
            check_equal(Collective::Reduce.name(), send.len(), receive.len())?;
        }
        let memory = OperationMemory::out_of_place(send, receive);
        // SAFETY: a buffer of this many elements, and the root's as long, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::Reduce, memory, send.len(), Some(op), Some(root)) }
    }

    pub(crate) fn reduce_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        self.check_rank(Collective::Reduce.name(), "root", root)?;
        let count = data.len();
        let memory = OperationMemory::in_place(data, 0..count, self.at_root(root, count));
        // SAFETY: a buffer of this many elements, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::Reduce, memory, count, Some(op), Some(root)) }
    }

    pub(crate) fn gather_to_root<E: Element>(
        &mut self,
        send: &[E],
        receive: Option<&mut [E]>,
        root: usize,
    ) -> Result<(), Error> {
        let receive = self.root_buffer(Collective::Gather, "receive", receive, root)?;
        if self.rank == root {
            self.check_parts(Collective::Gather, ("receive", receive.len()), ("send", send.len()))?;
        }
        let memory = OperationMemory::out_of_place(send, receive);
        // SAFETY: a block, and on the root one for each rank, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::Gather, memory, send.len(), None, Some(root)) }
    }

    pub(crate) fn gather_in_place<E: Element>(&mut self, data: &mut [E], root: usize) -> Result<(), Error> {
        self.check_rank(Collective::Gather.name(), "root", root)?;
        let own = self.own_part(Collective::Gather, data.len())?;
        let target = self.at_root(root, data.len());
        let memory = OperationMemory::in_place(data, own.clone(), target);
        // SAFETY: a block for each rank, borrowed until this returns, with this rank's own for a source.
        unsafe { self.run_collective::<E>(Collective::Gather, memory, own.len(), None, Some(root)) }
    }

    pub(crate) fn scatter_from_root<E: Element>(
        &mut self,
        send: Option<&[E]>,
        receive: &mut [E],
        root: usize,
    ) -> Result<(), Error> {
        let send = self.root_buffer(Collective::Scatter, "send", send, root)?;
        if self.rank == root {
            self.check_parts(Collective::Scatter, ("send", send.len()), ("receive", receive.len()))?;
        }
        let (memory, count) = (OperationMemory::out_of_place(send, receive), receive.len());
        // SAFETY: a block, and on the root one for each rank, borrowed until this returns.
        unsafe { self.run_collective::<E>(Collective::Scatter, memory, count, None, Some(root)) }
    }

    pub(crate) fn scatter_in_place<E: Element>(&mut self, data: &mut [E], root: usize) -> Result<(), Error> {
        self.check_rank(Collective::Scatter.name(), "root", root)?;
        let own = self.own_part(Collective::Scatter, data.len())?;
        let source = self.at_root(root, data.len());
        let memory = OperationMemory::in_place(data, source, own.clone());
        // SAFETY: a block for each rank, borrowed until this returns, with this rank's own for a target.
        unsafe { self.run_collective::<E>(Collective::Scatter, memory, own.len(), None, Some(root)) }
    }

    /// All elements on the root, none on the other ranks: the range of a buffer used only by the root.
    fn at_root(&self, root: usize, len: usize) -> Range<usize> {
        if self.rank == root { 0..len } else { 0..0 }
    }

    /// Returns a buffer needed only by the root: an empty one on the other ranks, an error if the root has
    /// none.
    fn root_buffer<B: Default>(
        &self,
        collective: Collective,
        buffer: &str,
        given: Option<B>,
        root: usize,
    ) -> Result<B, Error> {
        self.check_rank(collective.name(), "root", root)?;
        if self.rank != root {
            return Ok(B::default());
        }
        given.ok_or_else(|| {
            let problem = format!("rank {root} is the root and has no {buffer} buffer");
            Error::Length { operation: collective.name(), problem }
        })
    }
}
