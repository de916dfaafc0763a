//! The operations of an endpoint: deferred, in flight and complete.
//!
//! # Long messages in shared memory
//! When the `shm` provider copies, a long unexpected message blocks all later messages to the same rank. With
//! three ranks or more, ranks waiting for such later messages can deadlock. So there long messages use a
//! rendezvous: after a receiver has posted its buffer, it sends an empty message with the tag's [`CTS`] bit
//! (clear to send), and the sender waits for it. After a long wait, the sender sends a message with the
//! [`RTS`] bit (request to send) and its message's length: a receiver of a short message then reports the
//! mismatch.
//!
//! # Headers of TCP
//! Linux copies data to send with `rep movsb`. It is 16 times slower on some processors (measured on AMD's
//! Zen 4) when the target lies 1 to 15 bytes after the source modulo 4096. The target usually begins with a
//! page and the provider's header of 24 bytes, and long vectors lie 16 bytes after the start of a page when
//! `malloc` allocates them: 8 bytes before their target. Completion data, never read, makes the header 32
//! bytes long, and the distance a multiple of 16 for all vectors with `malloc`'s alignment.

use std::ffi::{c_int, c_void};
use std::ptr;

use fabric_sys::{fi_addr_t, fi_context2, fi_cq_tagged_entry};

use super::{TaggedEndpoint, with_length};
use crate::fabric::error::Error;

/// Tag bit of a clear-to-send message, from receiver to sender.
pub(super) const CTS: u64 = 1 << 63;
/// Tag bit of a request-to-send message, from sender to receiver.
pub(super) const RTS: u64 = 1 << 62;
/// Tag bits of the caller.
pub(super) const CALLER_BITS: u64 = RTS - 1;

/// Polls without a completion before waiting senders send requests.
const POLLS_BEFORE_RTS: u32 = 1 << 16;

/// The next call of the library for an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LibraryCall {
    Receive,
    Inject,
    Send,
    /// Sends with completion data in the header.
    SendData,
    /// Sends the message with [`CTS`].
    SendCts,
    /// Receives the message with [`CTS`], then sends.
    AwaitCts,
    /// Sends the message with [`RTS`].
    SendRts,
}

impl LibraryCall {
    /// Calls of one queue to one peer keep their order; calls of different queues do not wait for each other.
    pub(super) const QUEUES: usize = 3;

    const fn queue_index(self) -> usize {
        match self {
            Self::Receive | Self::AwaitCts => 0,
            Self::Inject | Self::Send | Self::SendData => 1,
            Self::SendCts | Self::SendRts => 2,
        }
    }

    const fn function_name(self) -> &'static str {
        match self {
            Self::Receive | Self::AwaitCts => "fi_trecv",
            Self::Inject | Self::SendCts => "fi_tinject",
            Self::Send => "fi_tsend",
            Self::SendData => "fi_tsenddata",
            Self::SendRts => "fi_tinjectdata",
        }
    }
}

/// A message of the caller.
#[derive(Clone, Copy)]
pub(super) struct TaggedMessage {
    pub(super) peer: usize,
    pub(super) address: fi_addr_t,
    pub(super) tag: u64,
    pub(super) data: *mut u8,
    pub(super) len: usize,
}

/// An operation. The library keeps the address of `context` until the operation completes.
#[repr(C, align(64))]
struct PostedOperation {
    context: fi_context2,
    message: TaggedMessage,
    index: u32,
    call: LibraryCall,
    rts_sent: bool,
    done: bool,
    /// Freed on completion, as `is_done` is not called for it.
    detached: bool,
}

/// Slots at their fixed addresses. Only [`TaggedEndpoint`] uses them, and the library their contexts.
#[derive(Default)]
pub(super) struct Slots(Vec<*mut PostedOperation>);

impl Drop for Slots {
    fn drop(&mut self) {
        for &slot in &self.0 {
            // SAFETY: made by `Box::into_raw`, dropped once; the endpoint with the address is closed, as its
            // owner declares it before this.
            drop(unsafe { Box::from_raw(slot) });
        }
    }
}

/// The posters of operations guarantee their memory until they are complete or the endpoint is closed.
impl TaggedEndpoint {
    /// Number of operations in flight.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        // SAFETY: only this type uses this part of a slot; free ones are done.
        self.slots.0.iter().filter(|&&slot| unsafe { !(*slot).done }).count()
    }

    fn take_slot(&mut self, call: LibraryCall, message: TaggedMessage) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.slots.0.len() as u32;
            let context = fi_context2 { internal: [ptr::null_mut(); 8] };
            let slot = PostedOperation {
                context,
                message,
                index,
                call,
                rts_sent: false,
                done: false,
                detached: false,
            };
            self.slots.0.push(Box::into_raw(Box::new(slot)));
            self.free.reserve(self.slots.0.len());
            self.deferred.reserve(self.slots.0.len());
            index
        });
        let slot = self.slots.0[index as usize];
        // SAFETY: a slot that was free: the library has forgotten its address, and only this type uses it.
        unsafe {
            (*slot).message = message;
            (*slot).call = call;
            (*slot).rts_sent = false;
            (*slot).done = false;
            (*slot).detached = matches!(call, LibraryCall::SendCts | LibraryCall::SendRts);
        }
        index
    }

    /// Posts a receive of exactly `len` bytes from rank `peer` at `address`.
    ///
    /// # Safety
    /// The memory must be writable and left alone until the operation is complete or the endpoint closed.
    pub(crate) unsafe fn post_receive(
        &mut self,
        peer: usize,
        address: fi_addr_t,
        tag: u64,
        data: *mut u8,
        len: usize,
    ) -> Result<u32, Error> {
        self.check_length("fi_trecv", peer, len)?;
        let message = TaggedMessage { peer, address, tag: with_length(tag, len), data, len };
        let index = self.take_slot(LibraryCall::Receive, message);
        self.start_operation(index)?;
        if self.rendezvous && len > self.inject_size {
            let cts = self.take_slot(LibraryCall::SendCts, message);
            self.start_operation(cts)?;
        }
        Ok(index)
    }

    /// Posts a send to rank `peer` at `address`. Returns `None` when it is already complete.
    ///
    /// # Safety
    /// The memory must be readable and left unchanged until the operation is complete or the endpoint closed.
    pub(crate) unsafe fn post_send(
        &mut self,
        peer: usize,
        address: fi_addr_t,
        tag: u64,
        data: *const u8,
        len: usize,
    ) -> Result<Option<u32>, Error> {
        self.check_length("fi_tsend", peer, len)?;
        let tag = with_length(tag, len);
        let call = match len {
            len if len <= self.inject_size => LibraryCall::Inject,
            _ if self.rendezvous => LibraryCall::AwaitCts,
            _ if self.data => LibraryCall::SendData,
            _ => LibraryCall::Send,
        };
        if call == LibraryCall::Inject && self.blocked[peer * LibraryCall::QUEUES + call.queue_index()] == 0 {
            // The usual case of a short message needs no slot.
            // SAFETY: the endpoint is open; the caller guarantees the memory.
            let result = unsafe { fabric_sys::fi_tinject(self.objects.ep, data.cast(), len, address, tag) };
            if result == 0 {
                return Ok(None);
            }
        }
        if call == LibraryCall::AwaitCts {
            self.awaiting_cts += 1;
        }
        // The memory of a send is only read.
        let index = self.take_slot(call, TaggedMessage { peer, address, tag, data: data.cast_mut(), len });
        self.start_operation(index)?;
        Ok(Some(index))
    }

    fn check_length(&self, operation: &'static str, peer: usize, len: usize) -> Result<(), Error> {
        if len <= self.longest_message {
            return Ok(());
        }
        Err(self.call_failure(operation, Some(peer), fabric_sys::FI_EMSGSIZE, None))
    }

    /// Calls the library for an operation, or defers it.
    fn start_operation(&mut self, index: u32) -> Result<(), Error> {
        // SAFETY: only this type uses this part of a slot.
        let (call, peer) = unsafe {
            let slot = self.slots.0[index as usize];
            ((*slot).call, (*slot).message.peer)
        };
        let queue = peer * LibraryCall::QUEUES + call.queue_index();
        if self.blocked[queue] > 0 || !self.call_library(index)? {
            self.deferred.push(index);
            self.blocked[queue] += 1;
        }
        Ok(())
    }

    /// Calls the library for an operation. False when it has no room.
    fn call_library(&mut self, index: u32) -> Result<bool, Error> {
        let ep = self.objects.ep;
        let slot = self.slots.0[index as usize];
        let context = slot.cast::<c_void>();
        let none = ptr::null_mut();
        // SAFETY: only this type uses this part of a slot.
        let (call, TaggedMessage { peer, address, tag, data, len }) =
            unsafe { ((*slot).call, (*slot).message) };
        // SAFETY: the endpoint is open and the memory good, as the poster promises; the context stays where
        // it is until the operation is complete or the endpoint closed.
        let result = unsafe {
            match call {
                LibraryCall::Receive => {
                    let ignore = if self.rendezvous { RTS } else { 0 };
                    fabric_sys::fi_trecv(ep, data.cast(), len, none, address, tag, ignore, context)
                }
                LibraryCall::AwaitCts => {
                    fabric_sys::fi_trecv(ep, none, 0, none, address, tag | CTS, 0, context)
                }
                LibraryCall::Inject => fabric_sys::fi_tinject(ep, data.cast(), len, address, tag),
                LibraryCall::Send => fabric_sys::fi_tsend(ep, data.cast(), len, none, address, tag, context),
                LibraryCall::SendData => {
                    fabric_sys::fi_tsenddata(ep, data.cast(), len, none, 0, address, tag, context)
                }
                LibraryCall::SendCts => fabric_sys::fi_tinject(ep, none, 0, address, tag | CTS),
                LibraryCall::SendRts => {
                    fabric_sys::fi_tinjectdata(ep, none, 0, len as u64, address, tag | RTS)
                }
            }
        };
        if result == -(fabric_sys::FI_EAGAIN as isize) {
            return Ok(false);
        }
        if result != 0 {
            return Err(self.call_failure(call.function_name(), Some(peer), -result as c_int, None));
        }
        if matches!(call, LibraryCall::Inject | LibraryCall::SendCts | LibraryCall::SendRts) {
            self.complete_operation(slot);
        }
        Ok(true)
    }

    /// Records the end of an operation.
    fn complete_operation(&mut self, slot: *mut PostedOperation) {
        // SAFETY: one of the slots; the library is done with it.
        unsafe {
            (*slot).done = true;
            if (*slot).detached {
                self.free.push((*slot).index);
            }
        }
    }

    /// Tries the deferred calls again.
    pub(super) fn retry_deferred(&mut self) -> Result<(), Error> {
        if self.deferred.is_empty() {
            return Ok(());
        }
        self.pass += 1;
        let mut kept = 0;
        for position in 0..self.deferred.len() {
            let index = self.deferred[position];
            // SAFETY: only this type uses this part of a slot.
            let (call, peer) = unsafe {
                let slot = self.slots.0[index as usize];
                ((*slot).call, (*slot).message.peer)
            };
            let queue = peer * LibraryCall::QUEUES + call.queue_index();
            if self.stuck[queue] != self.pass && self.call_library(index)? {
                self.blocked[queue] -= 1;
            } else {
                self.stuck[queue] = self.pass;
                self.deferred[kept] = index;
                kept += 1;
            }
        }
        self.deferred.truncate(kept);
        Ok(())
    }

    /// Records a completion.
    ///
    /// # Safety
    /// `entry` must be a completion of this endpoint.
    pub(super) unsafe fn record_completion(&mut self, entry: &fi_cq_tagged_entry) -> Result<(), Error> {
        self.idle = 0;
        let slot = entry.op_context.cast::<PostedOperation>();
        if slot.is_null() {
            return Ok(());
        }
        // SAFETY: contexts are the addresses of slots, as nothing else is posted with one.
        let (call, index, TaggedMessage { peer, len: expected, .. }) =
            unsafe { ((*slot).call, (*slot).index, (*slot).message) };
        match call {
            LibraryCall::AwaitCts => {
                self.awaiting_cts -= 1;
                // SAFETY: as above; the library is done with the first part of the operation.
                unsafe { (*slot).call = LibraryCall::Send };
                self.start_operation(index)
            }
            LibraryCall::Receive if self.rendezvous && entry.tag & RTS != 0 => {
                let length = entry.data as usize;
                if length != expected {
                    return Err(self.length_error(peer, expected, Some(length)));
                }
                // A request to send; the message itself is still to come.
                self.start_operation(index)
            }
            LibraryCall::Receive if entry.len != expected => {
                Err(self.length_error(peer, expected, Some(entry.len)))
            }
            _ => {
                self.complete_operation(slot);
                Ok(())
            }
        }
    }

    /// Returns the message of a failed operation; true for a receive.
    pub(super) fn failed_message(&self, context: *mut c_void) -> Option<(TaggedMessage, bool)> {
        let slot = *self.slots.0.iter().find(|slot| slot.cast::<c_void>() == context)?;
        // SAFETY: one of the slots.
        unsafe { Some(((*slot).message, (*slot).call == LibraryCall::Receive)) }
    }

    /// Called after polls without a completion. After a long wait, senders send requests.
    pub(super) fn on_idle(&mut self) -> Result<(), Error> {
        if self.awaiting_cts == 0 {
            return Ok(());
        }
        self.idle += 1;
        if self.idle < POLLS_BEFORE_RTS {
            return Ok(());
        }
        self.idle = 0;
        for position in 0..self.slots.0.len() {
            let slot = self.slots.0[position];
            // SAFETY: only this type uses this part of a slot.
            let (needs_rts, message) = unsafe {
                let needs_rts = (*slot).call == LibraryCall::AwaitCts && !(*slot).done && !(*slot).rts_sent;
                (*slot).rts_sent |= needs_rts;
                (needs_rts, (*slot).message)
            };
            if needs_rts {
                let rts = self.take_slot(LibraryCall::SendRts, message);
                self.start_operation(rts)?;
            }
        }
        Ok(())
    }

    /// True when the operation is complete. This frees its number.
    pub(crate) fn is_done(&mut self, index: u32) -> bool {
        // SAFETY: only this type, borrowed exclusively, uses this part of a slot.
        let done = unsafe { (*self.slots.0[index as usize]).done };
        if done {
            self.free.push(index);
        }
        done
    }
}
