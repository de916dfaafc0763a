//! broadcast, reduce, gather and scatter: one rank is the root.

use std::sync::Arc;

use super::{HostCollectives, check_equal, own_range};
use crate::fabric::Error;
use crate::fabric::algorithm::engine::Memory;
use crate::fabric::algorithm::scatter::Reversed;
use crate::fabric::algorithm::{Spec, broadcast, gather, hierarchical, reduce};
use crate::fabric::calls::CallSignature;
use crate::fabric::reduction::Reduction;
use crate::fabric::selection::{Algorithm, Collective, Plan};
use crate::fabric::transport::Transport;
use crate::{Element, ReduceOp};

impl<T: Transport> HostCollectives<T> {
    pub(crate) fn broadcast<E: Element>(
        &mut self,
        send: Option<&[E]>,
        receive: &mut [E],
        root: usize,
    ) -> Result<(), Error> {
        let name = Collective::Broadcast.name();
        self.check_root(name, root)?;
        let send = self.root_buffer(name, "send", send, root)?.unwrap_or_default();
        if self.rank == root {
            check_equal(name, send.len(), receive.len())?;
        }
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: a buffer of this many elements, and the root's as long, borrowed until this returns.
        unsafe { self.broadcast_memory::<E>(memory, receive.len(), root) }
    }

    pub(crate) fn broadcast_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        root: usize,
    ) -> Result<(), Error> {
        self.check_root(Collective::Broadcast.name(), root)?;
        if self.is_single_rank() {
            return Ok(());
        }
        let source = if self.rank == root { 0..data.len() } else { 0..0 };
        let memory = Memory::in_place(data, source, 0..data.len());
        // SAFETY: a buffer of this many elements, borrowed until this returns.
        unsafe { self.broadcast_memory::<E>(memory, data.len(), root) }
    }

    /// # Safety
    /// The target, and the root's source, have `count` elements of type `E`; they are the same or disjoint, and
    /// borrowed while this runs.
    unsafe fn broadcast_memory<E: Element>(
        &mut self,
        memory: Memory,
        count: usize,
        root: usize,
    ) -> Result<(), Error> {
        let collective = Collective::Broadcast;
        self.call = CallSignature::of::<E>(collective, count).with_root(root);
        let plan = self.plan(collective, memory.target_len);
        let Plan { algorithm, segment, in_flight, .. } = plan;
        let tree = self.tree(root);
        let spec = Spec { at: tree, count, element_size: size_of::<E>(), segment, in_flight };
        let name = collective.name();
        let hosts = Arc::clone(&self.hosts);
        // SAFETY: the schedules are made for buffers of `count` elements of type `E`.
        unsafe {
            match algorithm {
                Algorithm::Board => self.broadcast_in_shared_memory(name, memory, root, segment),
                Algorithm::Direct => self.run(name, &broadcast::Direct(spec), memory, None),
                Algorithm::Hierarchical => {
                    let levels = self.levels(&hosts, plan);
                    let schedule = hierarchical::broadcast::Hierarchical { levels, spec };
                    self.run(name, &schedule, memory, None)
                }
                Algorithm::Ring => self.run(name, &broadcast::Ring(spec), memory, None),
                // The tree serves any number of ranks.
                _ => self.run(name, &broadcast::Binomial(spec), memory, None),
            }
        }
    }

    pub(crate) fn reduce<E: Element>(
        &mut self,
        send: &[E],
        receive: Option<&mut [E]>,
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        let name = Collective::Reduce.name();
        self.check_root(name, root)?;
        let receive = self.root_buffer(name, "receive", receive, root)?.unwrap_or_default();
        if self.rank == root {
            check_equal(name, send.len(), receive.len())?;
        }
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: a buffer of this many elements, and the root's as long, borrowed until this returns.
        unsafe { self.reduce_memory::<E>(memory, send.len(), op, root) }
    }

    pub(crate) fn reduce_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        self.check_root(Collective::Reduce.name(), root)?;
        if self.is_single_rank() {
            return Ok(());
        }
        let target = if self.rank == root { 0..data.len() } else { 0..0 };
        let memory = Memory::in_place(data, 0..data.len(), target);
        // SAFETY: a buffer of this many elements, borrowed until this returns.
        unsafe { self.reduce_memory::<E>(memory, data.len(), op, root) }
    }

    /// # Safety
    /// The source, and the root's target, have `count` elements of type `E`; they are the same or disjoint, and
    /// borrowed while this runs.
    unsafe fn reduce_memory<E: Element>(
        &mut self,
        memory: Memory,
        count: usize,
        op: ReduceOp,
        root: usize,
    ) -> Result<(), Error> {
        let collective = Collective::Reduce;
        self.call = CallSignature::of::<E>(collective, count).with_op(op).with_root(root);
        let reduction = Reduction::new(E::DATA_TYPE, op);
        let plan = self.plan(collective, memory.source_len);
        let Plan { algorithm, segment, in_flight, .. } = plan;
        let tree = self.tree(root);
        let element_size = reduction.element_size();
        let spec = Spec { at: tree, count, element_size, segment, in_flight };
        let name = collective.name();
        let hosts = Arc::clone(&self.hosts);
        // SAFETY: the schedules are made for buffers of `count` elements of type `E`.
        unsafe {
            match algorithm {
                Algorithm::Board => {
                    self.reduce_in_shared_memory(name, memory, &reduction, tree.is_root(), segment)
                }
                Algorithm::Hierarchical => {
                    let levels = self.levels(&hosts, plan);
                    let schedule = hierarchical::reduce::Hierarchical { levels, spec };
                    self.run(name, &schedule, memory, Some(&reduction))
                }
                Algorithm::Pairwise => self.run(name, &reduce::Pairwise(spec), memory, Some(&reduction)),
                // The tree serves any number of ranks.
                _ => self.run(name, &reduce::Binomial(spec), memory, Some(&reduction)),
            }
        }
    }

    pub(crate) fn gather<E: Element>(
        &mut self,
        send: &[E],
        receive: Option<&mut [E]>,
        root: usize,
    ) -> Result<(), Error> {
        let name = Collective::Gather.name();
        self.check_root(name, root)?;
        let receive = self.root_buffer(name, "receive", receive, root)?.unwrap_or_default();
        if self.rank == root {
            self.check_parts(name, ("receive", receive.len()), ("send", send.len()))?;
        }
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: a buffer of a block, and the root's of a block for each rank, borrowed until this returns.
        unsafe { self.gather_memory::<E>(memory, root) }
    }

    pub(crate) fn gather_in_place<E: Element>(&mut self, data: &mut [E], root: usize) -> Result<(), Error> {
        let name = Collective::Gather.name();
        self.check_root(name, root)?;
        self.check_multiple(name, data.len())?;
        if self.is_single_rank() {
            return Ok(());
        }
        let own = own_range(self.rank, self.ranks, data.len());
        let target = if self.rank == root { 0..data.len() } else { 0..0 };
        let memory = Memory::in_place(data, own, target);
        // SAFETY: a buffer of a block for each rank, borrowed until this returns, with this rank's own for a source.
        unsafe { self.gather_memory::<E>(memory, root) }
    }

    /// # Safety
    /// The root's target has a block as long as the source for each rank, and the source is this rank's or disjoint
    /// from it; both are borrowed while this runs.
    unsafe fn gather_memory<E: Element>(&mut self, memory: Memory, root: usize) -> Result<(), Error> {
        let collective = Collective::Gather;
        let block = memory.source_len;
        self.call = CallSignature::of::<E>(collective, block / size_of::<E>()).with_root(root);
        let Plan { algorithm, segment, in_flight, .. } = self.plan(collective, block);
        let tree = self.tree(root);
        let spec = Spec { at: tree, count: block, element_size: 1, segment, in_flight };
        let name = collective.name();
        // SAFETY: the schedules are made for blocks of this size; the root alone has a target.
        unsafe {
            match algorithm {
                Algorithm::Board => self.gather_in_shared_memory(name, memory, tree.is_root(), segment),
                Algorithm::Binomial => self.run(name, &gather::Binomial(spec), memory, None),
                // Direct serves any number of ranks.
                _ => self.run(name, &gather::Direct(spec), memory, None),
            }
        }
    }

    pub(crate) fn scatter<E: Element>(
        &mut self,
        send: Option<&[E]>,
        receive: &mut [E],
        root: usize,
    ) -> Result<(), Error> {
        let name = Collective::Scatter.name();
        self.check_root(name, root)?;
        let send = self.root_buffer(name, "send", send, root)?.unwrap_or_default();
        if self.rank == root {
            self.check_parts(name, ("send", send.len()), ("receive", receive.len()))?;
        }
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: a buffer of a block, and the root's of a block for each rank, borrowed until this returns.
        unsafe { self.scatter_memory::<E>(memory, root) }
    }

    pub(crate) fn scatter_in_place<E: Element>(&mut self, data: &mut [E], root: usize) -> Result<(), Error> {
        let name = Collective::Scatter.name();
        self.check_root(name, root)?;
        self.check_multiple(name, data.len())?;
        if self.is_single_rank() {
            return Ok(());
        }
        let own = own_range(self.rank, self.ranks, data.len());
        let source = if self.rank == root { 0..data.len() } else { 0..0 };
        let memory = Memory::in_place(data, source, own);
        // SAFETY: a buffer of a block for each rank, borrowed until this returns, with this rank's own for a target.
        unsafe { self.scatter_memory::<E>(memory, root) }
    }

    /// # Safety
    /// The root's source has a block as long as the target for each rank, and the target is this rank's or disjoint
    /// from it; both are borrowed while this runs.
    unsafe fn scatter_memory<E: Element>(&mut self, memory: Memory, root: usize) -> Result<(), Error> {
        let collective = Collective::Scatter;
        let block = memory.target_len;
        self.call = CallSignature::of::<E>(collective, block / size_of::<E>()).with_root(root);
        let Plan { algorithm, segment, in_flight, .. } =
            self.plan(collective, block.saturating_mul(self.ranks));
        let tree = self.tree(root);
        let spec = Spec { at: tree, count: block, element_size: 1, segment, in_flight };
        let name = collective.name();
        // SAFETY: the schedules are made for blocks of this size; the root alone has a source.
        unsafe {
            match algorithm {
                Algorithm::Board => self.scatter_in_shared_memory(name, memory, root, segment),
                Algorithm::Binomial => self.run(name, &Reversed(gather::Binomial(spec)), memory, None),
                // Direct serves any number of ranks.
                _ => self.run(name, &Reversed(gather::Direct(spec)), memory, None),
            }
        }
    }

    /// The buffer that only the root needs: none on the other ranks, an error if the root has none.
    fn root_buffer<B>(
        &self,
        operation: &'static str,
        buffer: &str,
        given: Option<B>,
        root: usize,
    ) -> Result<Option<B>, Error> {
        if self.rank == root && given.is_none() {
            let problem = format!("rank {root} is the root and has no {buffer} buffer");
            return Err(Error::Length { operation, problem });
        }
        Ok(given.filter(|_| self.rank == root))
    }
}
