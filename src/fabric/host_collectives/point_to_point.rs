//! Messages between two ranks.

use super::{HostCollectives, MessagePeers};
use crate::Element;
use crate::fabric::Error;
use crate::fabric::algorithm::engine::{OperationContext, OperationMemory, Sequence};
use crate::fabric::algorithm::exchange::PairExchange;
use crate::fabric::calls::{CallRecord, CallSignature};
use crate::fabric::transport::Transport;

impl<T: Transport> HostCollectives<T> {
    pub(crate) fn send_elements<E: Element>(&mut self, data: &[E], to: usize) -> Result<(), Error> {
        let memory = OperationMemory::out_of_place(data, &mut []);
        // SAFETY: a buffer of this many elements, borrowed until this returns.
        unsafe { self.exchange_memory::<E>("send", memory, Some(to), None) }
    }

    pub(crate) fn receive_elements<E: Element>(&mut self, data: &mut [E], from: usize) -> Result<(), Error> {
        let memory = OperationMemory::out_of_place(&[], data);
        // SAFETY: a buffer of this many elements, borrowed until this returns.
        unsafe { self.exchange_memory::<E>("recv", memory, None, Some(from)) }
    }

    pub(crate) fn exchange_elements<E: Element>(
        &mut self,
        send: &[E],
        to: usize,
        receive: &mut [E],
        from: usize,
    ) -> Result<(), Error> {
        let operation = "exchange";
        if self.rank == to && self.rank == from && self.transport.is_some() {
            super::check_equal(operation, send.len(), receive.len())?;
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = OperationMemory::out_of_place(send, receive);
        // SAFETY: two buffers, borrowed until this returns.
        unsafe { self.exchange_memory::<E>(operation, memory, Some(to), Some(from)) }
    }

    pub(crate) fn exchange_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        to: usize,
        from: usize,
    ) -> Result<(), Error> {
        if self.rank == to && self.rank == from && self.transport.is_some() {
            return Ok(());
        }
        let memory = OperationMemory::in_place(data, 0..data.len(), 0..data.len());
        // SAFETY: a buffer, borrowed until this returns.
        unsafe { self.exchange_memory::<E>("exchange", memory, Some(to), Some(from)) }
    }

    /// # Safety
    /// The source is sent, the target received; they are the same memory or disjoint, and borrowed while this
    /// runs.
    unsafe fn exchange_memory<E: Element>(
        &mut self,
        operation: &'static str,
        memory: OperationMemory,
        to: Option<usize>,
        from: Option<usize>,
    ) -> Result<(), Error> {
        for peer in [to, from].into_iter().flatten() {
            self.check_rank(operation, "peer", peer)?;
            if peer == self.rank && self.transport.is_some() {
                let problem = format!(
                    "the peer is rank {peer} itself; a rank can exchange with itself only in both directions"
                );
                return Err(Error::Rank { operation, problem });
            }
        }
        // Messages of no bytes are not sent.
        let peers = MessagePeers {
            to: to.filter(|_| memory.source_len > 0),
            from: from.filter(|_| memory.target_len > 0),
        };
        self.peers = peers;
        let (mut sent, mut received) = (0, 0);
        if let Some(transport) = &mut self.transport {
            let call = |len| CallSignature::of_message(E::DATA_TYPE, len / size_of::<E>());
            if let Some(to) = peers.to {
                let (call, history) = (call(memory.source_len), &mut self.pairs[to].sent);
                sent = history.add_message(call);
                transport.record_call(CallRecord::for_message(self.rank, to, history.count, call));
            }
            if let Some(from) = peers.from {
                let (call, history) = (call(memory.target_len), &mut self.pairs[from].received);
                received = history.add_message(call);
                transport.record_call(CallRecord::for_message(from, self.rank, history.count, call));
            }
        }
        let exchange = PairExchange {
            send: to.map(|to| (to, memory.source_len)),
            receive: from.map(|from| (from, memory.target_len)),
            in_place: memory.is_in_place(),
        };
        let sequence = Sequence::of_pair(sent, received);
        let operation_of = OperationContext { sequence, memory, reduction: None };
        // SAFETY: the schedule is made for buffers of this size.
        let result = unsafe { self.execute_schedule(operation, &exchange.build_schedule(), &operation_of) };
        self.peers = MessagePeers::default();
        result
    }
}
