//! all_gather.

use std::sync::Arc;

use super::{HostCollectives, own_range};
use crate::Element;
use crate::fabric::Error;
use crate::fabric::algorithm::engine::Memory;
use crate::fabric::algorithm::{Spec, all_gather, hierarchical};
use crate::fabric::calls::CallSignature;
use crate::fabric::selection::{Algorithm, Collective};
use crate::fabric::transport::Transport;

impl<T: Transport> HostCollectives<T> {
    pub(crate) fn all_gather<E: Element>(&mut self, send: &[E], receive: &mut [E]) -> Result<(), Error> {
        self.check_parts(Collective::AllGather.name(), ("receive", receive.len()), ("send", send.len()))?;
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: a buffer of this many bytes and one for all ranks, borrowed until this returns.
        unsafe { self.all_gather_memory::<E>(memory, size_of_val(send)) }
    }

    pub(crate) fn all_gather_in_place<E: Element>(&mut self, data: &mut [E]) -> Result<(), Error> {
        self.check_multiple(Collective::AllGather.name(), data.len())?;
        if self.is_single_rank() {
            return Ok(());
        }
        let memory = Memory::in_place(data, own_range(self.rank, self.ranks, data.len()), 0..data.len());
        // SAFETY: a buffer of a block for each rank, borrowed until this returns, with this rank's own for a source.
        unsafe { self.all_gather_memory::<E>(memory, memory.source_len) }
    }

    /// # Safety
    /// The target has `block` bytes for each rank and the source is this rank's part of it or `block` other bytes;
    /// both are borrowed while this runs.
    unsafe fn all_gather_memory<E: Element>(&mut self, memory: Memory, block: usize) -> Result<(), Error> {
        let collective = Collective::AllGather;
        self.call = CallSignature::of::<E>(collective, block / size_of::<E>());
        let plan = self.plan(collective, block);
        let spec = Spec {
            at: self.position(),
            count: block,
            element_size: 1,
            segment: plan.segment,
            in_flight: plan.in_flight,
        };
        let name = collective.name();
        let hosts = Arc::clone(&self.hosts);
        // SAFETY: the schedules are made for blocks of this size.
        unsafe {
            match plan.algorithm {
                Algorithm::Board => self.gather_in_shared_memory(name, memory, true, plan.segment),
                Algorithm::Hierarchical => {
                    let levels = self.levels(&hosts, plan);
                    let schedule = hierarchical::all_gather::Hierarchical { levels, spec };
                    self.run(name, &schedule, memory, None)
                }
                Algorithm::Direct => self.run(name, &all_gather::Direct(spec), memory, None),
                Algorithm::RecursiveDoubling => {
                    self.run(name, &all_gather::RecursiveDoubling(spec), memory, None)
                }
                Algorithm::Bruck => self.run(name, &all_gather::Bruck(spec), memory, None),
                // The ring serves any number of ranks.
                _ => self.run(name, &all_gather::Ring(spec), memory, None),
            }
        }
    }
}
