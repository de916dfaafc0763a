//! all_to_all_v.

use std::ops::Range;

use super::HostCollectives;
use crate::Element;
use crate::fabric::Error;
use crate::fabric::algorithm::all_to_all::{self, AllToAllSpec, Parts};
use crate::fabric::algorithm::engine::OperationMemory;
use crate::fabric::calls::{CallRecord, CallSignature};
use crate::fabric::selection::{Collective, Plan};
use crate::fabric::transport::Transport;

impl<T: Transport> HostCollectives<T> {
    pub(crate) fn all_to_all_v<E: Element>(
        &mut self,
        send: &[E],
        send_parts: &[Range<usize>],
        receive: &mut [E],
        receive_parts: &[Range<usize>],
    ) -> Result<(), Error> {
        self.check_ranges(send_parts, send.len(), receive_parts, receive.len())?;
        if self.is_single_rank() {
            receive[receive_parts[0].clone()].copy_from_slice(&send[send_parts[0].clone()]);
            return Ok(());
        }
        let memory = OperationMemory::out_of_place(send, receive);
        // SAFETY: two buffers with all these parts, borrowed until this returns.
        unsafe { self.all_to_all_v_memory::<E>(memory, send_parts, receive_parts, false) }
    }

    pub(crate) fn all_to_all_v_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        send_parts: &[Range<usize>],
        receive_parts: &[Range<usize>],
    ) -> Result<(), Error> {
        self.check_ranges(send_parts, data.len(), receive_parts, data.len())?;
        if self.is_single_rank() {
            data.copy_within(send_parts[0].clone(), receive_parts[0].start);
            return Ok(());
        }
        let len = data.len();
        let memory = OperationMemory::in_place(data, 0..len, 0..len);
        // SAFETY: a buffer with all these parts, borrowed until this returns.
        unsafe { self.all_to_all_v_memory::<E>(memory, send_parts, receive_parts, true) }
    }

    /// # Safety
    /// The buffers have these parts; no two received parts overlap. The buffers are the same if `in_place`,
    /// otherwise disjoint, and borrowed while this runs.
    unsafe fn all_to_all_v_memory<E: Element>(
        &mut self,
        memory: OperationMemory,
        send_parts: &[Range<usize>],
        receive_parts: &[Range<usize>],
        in_place: bool,
    ) -> Result<(), Error> {
        let collective = Collective::AllToAllV;
        self.record_parts::<E>(send_parts, receive_parts);
        let Plan { algorithm, segment, in_flight, .. } = self.plan_for(collective, 0);
        let parts = |ranges| Parts::Ranges { ranges, element_size: size_of::<E>() };
        let (sent, received) = (parts(send_parts), parts(receive_parts));
        let message = AllToAllSpec { at: self.rank_position(0), sent, received, segment, in_flight };
        let schedule = all_to_all::build_schedule(algorithm, message, in_place);
        // SAFETY: the schedule is made for these parts.
        unsafe { self.run_schedule(collective.name(), &schedule, memory, None) }
    }

    /// Records the calls of an all_to_all_v: one for each part, known to two ranks only.
    fn record_parts<E: Element>(&mut self, send: &[Range<usize>], receive: &[Range<usize>]) {
        self.call = CallSignature::of_collective::<E>(Collective::AllToAllV, 0);
        let Some(transport) = &mut self.transport else { return };
        let (own, number) = (self.rank, self.sequence + 1);
        let call = |part: &Range<usize>| CallSignature::of_part(E::DATA_TYPE, part.len());
        for peer in (0..self.ranks).filter(|&peer| peer != own) {
            transport.record_call(CallRecord::for_part(own, peer, number, call(&send[peer])));
            transport.record_call(CallRecord::for_part(peer, own, number, call(&receive[peer])));
        }
    }

    /// Checks the parts: each buffer has one for each rank, this rank's parts for itself are equally long,
    /// and no two received parts overlap.
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
