//! all_to_all and all_to_all_v.

use std::ops::Range;

use super::{HostCollectives, check_equal};
use crate::Element;
use crate::fabric::Error;
use crate::fabric::algorithm::all_to_all::{self, Parts};
use crate::fabric::algorithm::engine::Memory;
use crate::fabric::calls::{CallRecord, CallSignature};
use crate::fabric::selection::{Algorithm, Collective, Plan};
use crate::fabric::transport::Transport;

impl<T: Transport> HostCollectives<T> {
    pub(crate) fn all_to_all<E: Element>(&mut self, send: &[E], receive: &mut [E]) -> Result<(), Error> {
        let collective = Collective::AllToAll;
        check_equal(collective.name(), send.len(), receive.len())?;
        self.check_multiple(collective.name(), send.len())?;
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: two buffers of a part for each rank, borrowed until this returns.
        unsafe { self.all_to_all_memory::<E>(memory, false) }
    }

    pub(crate) fn all_to_all_in_place<E: Element>(&mut self, data: &mut [E]) -> Result<(), Error> {
        self.check_multiple(Collective::AllToAll.name(), data.len())?;
        if self.is_single_rank() {
            return Ok(());
        }
        let memory = Memory::in_place(data, 0..data.len(), 0..data.len());
        // SAFETY: a buffer of a part for each rank, borrowed until this returns.
        unsafe { self.all_to_all_memory::<E>(memory, true) }
    }

    /// # Safety
    /// Both buffers are equally long, with a part of as many elements of type `E` for each rank; they are the same if
    /// `in_place`, otherwise disjoint, and borrowed while this runs.
    unsafe fn all_to_all_memory<E: Element>(&mut self, memory: Memory, in_place: bool) -> Result<(), Error> {
        let collective = Collective::AllToAll;
        let part = memory.source_len / self.ranks;
        self.call = CallSignature::of::<E>(collective, part / size_of::<E>());
        let plan = self.plan(collective, memory.source_len);
        let spec = self.all_to_all_spec(Parts::Equal(part), Parts::Equal(part), plan);
        let name = collective.name();
        // SAFETY: the schedules are made for buffers of this size, and those before `InPlace` for one buffer, too.
        unsafe {
            match plan.algorithm {
                Algorithm::Board => self.all_to_all_in_shared_memory(name, memory, plan.segment),
                Algorithm::Bruck => {
                    self.run(name, &all_to_all::Bruck { at: self.position(), part }, memory, None)
                }
                _ if in_place => self.run(name, &all_to_all::InPlace(spec), memory, None),
                Algorithm::Direct => self.run(name, &all_to_all::Direct(spec), memory, None),
                // Pairwise serves any number of ranks.
                _ => self.run(name, &all_to_all::Pairwise(spec), memory, None),
            }
        }
    }

    fn all_to_all_spec<'a>(
        &self,
        sent: Parts<'a>,
        received: Parts<'a>,
        plan: Plan,
    ) -> all_to_all::Message<'a> {
        let Plan { segment, in_flight, .. } = plan;
        all_to_all::Message { at: self.position(), sent, received, segment, in_flight }
    }

    pub(crate) fn all_to_all_v<E: Element>(
        &mut self,
        send: &[E],
        send_parts: &[Range<usize>],
        receive: &mut [E],
        receive_parts: &[Range<usize>],
    ) -> Result<(), Error> {
        let collective = Collective::AllToAllV;
        self.check_ranges(send_parts, send.len(), receive_parts, receive.len())?;
        if self.is_single_rank() {
            receive[receive_parts[0].clone()].copy_from_slice(&send[send_parts[0].clone()]);
            return Ok(());
        }
        self.record_parts::<E>(send_parts, receive_parts);
        let plan = self.plan(collective, 0);
        let element_size = size_of::<E>();
        let parts = |ranges| Parts::Ranges { ranges, element_size };
        let spec = self.all_to_all_spec(parts(send_parts), parts(receive_parts), plan);
        let memory = Memory::out_of_place(send, receive);
        let name = collective.name();
        // SAFETY: two buffers with all these parts, borrowed until this returns; no two parts that are received
        // overlap.
        unsafe {
            match plan.algorithm {
                Algorithm::Direct => self.run(name, &all_to_all::Direct(spec), memory, None),
                // Pairwise serves any number of ranks.
                _ => self.run(name, &all_to_all::Pairwise(spec), memory, None),
            }
        }
    }

    pub(crate) fn all_to_all_v_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        send_parts: &[Range<usize>],
        receive_parts: &[Range<usize>],
    ) -> Result<(), Error> {
        let collective = Collective::AllToAllV;
        self.check_ranges(send_parts, data.len(), receive_parts, data.len())?;
        if self.is_single_rank() {
            data.copy_within(send_parts[0].clone(), receive_parts[0].start);
            return Ok(());
        }
        self.record_parts::<E>(send_parts, receive_parts);
        let plan = self.plan(collective, 0);
        let element_size = size_of::<E>();
        let parts = |ranges| Parts::Ranges { ranges, element_size };
        let spec = self.all_to_all_spec(parts(send_parts), parts(receive_parts), plan);
        let memory = Memory::in_place(data, 0..data.len(), 0..data.len());
        // SAFETY: a buffer with all these parts, borrowed until this returns; no two parts that are received overlap.
        unsafe { self.run(collective.name(), &all_to_all::InPlace(spec), memory, None) }
    }

    /// Records the calls of an all_to_all_v: one for each part, which only two ranks know.
    fn record_parts<E: Element>(&mut self, send: &[Range<usize>], receive: &[Range<usize>]) {
        self.call = CallSignature::of::<E>(Collective::AllToAllV, 0);
        let Some(transport) = &mut self.transport else { return };
        let (own, number) = (self.rank, self.sequence + 1);
        let call = |part: &Range<usize>| CallSignature::part(E::DATA_TYPE, part.len());
        for peer in (0..self.ranks).filter(|&peer| peer != own) {
            transport.record(CallRecord::part(own, peer, number, call(&send[peer])));
            transport.record(CallRecord::part(peer, own, number, call(&receive[peer])));
        }
    }

    /// Checks that each buffer has a part for each rank, that this rank's parts for itself are equally long, and that
    /// no two received parts overlap.
    fn check_ranges(
        &mut self,
        send: &[Range<usize>],
        send_len: usize,
        receive: &[Range<usize>],
        receive_len: usize,
    ) -> Result<(), Error> {
        let wrong = |problem: String| Err(Error::Length { operation: Collective::AllToAllV.name(), problem });
        for (buffer, parts, len) in [("send", send, send_len), ("receive", receive, receive_len)] {
            if parts.len() != self.ranks {
                return wrong(format!(
                    "there are {} parts of the {buffer} buffer for {} ranks",
                    parts.len(),
                    self.ranks
                ));
            }
            let outside = |part: &Range<usize>| part.start > part.end || part.end > len;
            if let Some(rank) = parts.iter().position(outside) {
                return wrong(format!(
                    "rank {rank}'s part of the {buffer} buffer is {:?}, but the buffer has {len} elements",
                    parts[rank]
                ));
            }
        }
        let own = self.rank;
        if send[own].len() != receive[own].len() {
            return wrong(format!(
                "rank {own} sends itself {} elements and receives {}",
                send[own].len(),
                receive[own].len()
            ));
        }
        // The usual case: sorted parts.
        if receive.is_sorted_by(|before, after| before.end <= after.start) {
            return Ok(());
        }
        self.sorted_ranks.clear();
        self.sorted_ranks.extend((0..self.ranks).filter(|&rank| !receive[rank].is_empty()));
        self.sorted_ranks.sort_unstable_by_key(|&rank| receive[rank].start);
        for pair in self.sorted_ranks.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            if receive[second].start < receive[first].end {
                return wrong(format!(
                    "the parts {:?} of rank {first} and {:?} of rank {second} of the receive buffer overlap",
                    receive[first], receive[second]
                ));
            }
        }
        Ok(())
    }
}
