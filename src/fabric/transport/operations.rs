//! The operations of an endpoint: deferred, in flight and complete.
//!
//! # Long messages in shared memory
//! When the `shm` provider copies, a long unexpected message blocks all later messages to the same rank. With three
//! ranks or more, ranks that wait for such later ones can deadlock. So there long messages use a rendezvous: a receiver
//! that has posted its buffer sends an empty message with the tag's [`CTS`] bit (clear to send), which the sender waits
//! for. A sender that has waited for long sends one with the [`RTS`] bit (request to send) and its message's length, so
//! that a receiver that expects a short message reports the mismatch.
//!
//! # Headers of TCP
//! Linux copies data to send with `rep movsb`, which is 16 times slower on some processors (measured on AMD's Zen 4)
//! when the target lies 1 to 15 bytes after the source modulo 4096. The target usually begins with a page and the
//! provider's header of 24 bytes, and long vectors lie 16 bytes after the start of a page when `malloc` allocates them:
//! 8 bytes before their target. Completion data, which is never read, makes the header 32 bytes long, and the distance
//! a multiple of 16 for all vectors with `malloc`'s alignment.

use std::ffi::{c_int, c_void};
use std::ptr;

use fabric_sys::{fi_addr_t, fi_context2, fi_cq_tagged_entry, fid_ep};

/// Tag bit of a clear-to-send message, from receiver to sender.
pub(super) const CTS: u64 = 1 << 63;
/// Tag bit of a request-to-send message, from sender to receiver.
pub(super) const RTS: u64 = 1 << 62;
/// Tag bits of the caller.
pub(super) const CALLER_BITS: u64 = RTS - 1;

/// Polls without a completion after which waiting senders send requests.
const POLLS_BEFORE_RTS: u32 = 1 << 16;

/// The next call of the library for an operation.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LibraryCall {
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
    /// Calls of one queue to one peer keep their order; those of different queues do not wait for each other.
    const QUEUES: usize = 3;

    const fn queue(self) -> usize {
        match self {
            Self::Receive | Self::AwaitCts => 0,
            Self::Inject | Self::Send | Self::SendData => 1,
            Self::SendCts | Self::SendRts => 2,
        }
    }

    const fn name(self) -> &'static str {
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

/// A failure, for the endpoint's error text.
pub(super) enum OperationError {
    Call { name: &'static str, peer: usize, code: c_int },
    Length { peer: usize, expected: usize, received: usize },
}

/// The operations of one endpoint.
pub(super) struct Operations {
    slots: Vec<*mut PostedOperation>,
    free: Vec<u32>,
    /// Calls that the library had no room for, oldest first.
    deferred: Vec<u32>,
    /// Number of deferred calls by peer and queue.
    blocked: Vec<u32>,
    /// By peer and queue, the last pass over `deferred` that found no room.
    stuck: Vec<u64>,
    pass: u64,
    awaiting_cts: usize,
    idle: u32,
    inject_size: usize,
    /// True when messages carry completion data.
    data: bool,
    rendezvous: bool,
}

impl Operations {
    pub(super) fn new(ranks: usize, inject_size: usize, data: bool) -> Self {
        Self {
            slots: Vec::new(),
            free: Vec::new(),
            deferred: Vec::new(),
            blocked: vec![0; ranks * LibraryCall::QUEUES],
            stuck: vec![0; ranks * LibraryCall::QUEUES],
            pass: 0,
            awaiting_cts: 0,
            idle: 0,
            inject_size,
            data,
            rendezvous: false,
        }
    }

    /// Has long messages wait for their receivers. On all ranks or none.
    pub(super) fn enable_rendezvous(&mut self) {
        self.rendezvous = true;
    }

    /// Operations that are not complete.
    #[cfg(test)]
    pub(super) fn in_flight(&self) -> usize {
        // SAFETY: only this type uses this part of a slot; free ones are done.
        self.slots.iter().filter(|&&slot| unsafe { !(*slot).done }).count()
    }

    fn take(&mut self, call: LibraryCall, message: TaggedMessage) -> u32 {
        let index = self.free.pop().unwrap_or_else(|| {
            let index = self.slots.len() as u32;
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
            self.slots.push(Box::into_raw(Box::new(slot)));
            self.free.reserve(self.slots.len());
            self.deferred.reserve(self.slots.len());
            index
        });
        let slot = self.slots[index as usize];
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

    /// Posts a receive.
    ///
    /// # Safety
    /// The endpoint is open, and the memory writable and left alone until the operation is complete or the endpoint
    /// closed.
    pub(super) unsafe fn receive(
        &mut self,
        ep: *mut fid_ep,
        message: TaggedMessage,
    ) -> Result<u32, OperationError> {
        let index = self.take(LibraryCall::Receive, message);
        // SAFETY: passed on to the caller.
        unsafe { self.start(ep, index)? };
        if self.rendezvous && message.len > self.inject_size {
            let cts = self.take(LibraryCall::SendCts, message);
            // SAFETY: passed on to the caller.
            unsafe { self.start(ep, cts)? };
        }
        Ok(index)
    }

    /// Posts a send. None when it is already complete.
    ///
    /// # Safety
    /// The endpoint is open, and the memory readable and left unchanged until the operation is complete or the
    /// endpoint closed.
    pub(super) unsafe fn send(
        &mut self,
        ep: *mut fid_ep,
        message: TaggedMessage,
    ) -> Result<Option<u32>, OperationError> {
        let call = match message.len {
            len if len <= self.inject_size => LibraryCall::Inject,
            _ if self.rendezvous => LibraryCall::AwaitCts,
            _ if self.data => LibraryCall::SendData,
            _ => LibraryCall::Send,
        };
        if call == LibraryCall::Inject && self.blocked[message.peer * LibraryCall::QUEUES + call.queue()] == 0
        {
            // The usual case of a short message needs no slot.
            // SAFETY: passed on to the caller.
            let result = unsafe {
                fabric_sys::fi_tinject(ep, message.data.cast(), message.len, message.address, message.tag)
            };
            if result == 0 {
                return Ok(None);
            }
        }
        if call == LibraryCall::AwaitCts {
            self.awaiting_cts += 1;
        }
        let index = self.take(call, message);
        // SAFETY: passed on to the caller.
        unsafe { self.start(ep, index)? };
        Ok(Some(index))
    }

    /// Calls the library for an operation, or defers it.
    ///
    /// # Safety
    /// As for the operation.
    unsafe fn start(&mut self, ep: *mut fid_ep, index: u32) -> Result<(), OperationError> {
        // SAFETY: only this type uses this part of a slot.
        let (call, peer) = unsafe {
            let slot = self.slots[index as usize];
            ((*slot).call, (*slot).message.peer)
        };
        let queue = peer * LibraryCall::QUEUES + call.queue();
        // SAFETY: passed on to the caller.
        if self.blocked[queue] > 0 || !unsafe { self.call(ep, index)? } {
            self.deferred.push(index);
            self.blocked[queue] += 1;
        }
        Ok(())
    }

    /// Calls the library for an operation. False when it has no room.
    ///
    /// # Safety
    /// As for the operation.
    unsafe fn call(&mut self, ep: *mut fid_ep, index: u32) -> Result<bool, OperationError> {
        let slot = self.slots[index as usize];
        let context = slot.cast::<c_void>();
        let none = ptr::null_mut();
        // SAFETY: only this type uses this part of a slot.
        let (call, TaggedMessage { peer, address, tag, data, len }) =
            unsafe { ((*slot).call, (*slot).message) };
        // SAFETY: the endpoint is open and the memory good, as the caller promises; the context stays where it is
        // until the operation is complete or the endpoint closed.
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
            return Err(OperationError::Call { name: call.name(), peer, code: -result as c_int });
        }
        if matches!(call, LibraryCall::Inject | LibraryCall::SendCts | LibraryCall::SendRts) {
            self.complete(slot);
        }
        Ok(true)
    }

    /// Notes that an operation is complete.
    fn complete(&mut self, slot: *mut PostedOperation) {
        // SAFETY: one of the slots, which the library is done with.
        unsafe {
            (*slot).done = true;
            if (*slot).detached {
                self.free.push((*slot).index);
            }
        }
    }

    /// Tries the deferred calls again.
    ///
    /// # Safety
    /// As for the operations.
    pub(super) unsafe fn retry(&mut self, ep: *mut fid_ep) -> Result<(), OperationError> {
        if self.deferred.is_empty() {
            return Ok(());
        }
        self.pass += 1;
        let mut kept = 0;
        for position in 0..self.deferred.len() {
            let index = self.deferred[position];
            // SAFETY: only this type uses this part of a slot.
            let (call, peer) = unsafe {
                let slot = self.slots[index as usize];
                ((*slot).call, (*slot).message.peer)
            };
            let queue = peer * LibraryCall::QUEUES + call.queue();
            // SAFETY: passed on to the caller.
            if self.stuck[queue] != self.pass && unsafe { self.call(ep, index)? } {
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
    /// As for the operations; `entry` must be a completion of this endpoint.
    pub(super) unsafe fn completed(
        &mut self,
        ep: *mut fid_ep,
        entry: &fi_cq_tagged_entry,
    ) -> Result<(), OperationError> {
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
                unsafe {
                    (*slot).call = LibraryCall::Send;
                    self.start(ep, index)
                }
            }
            LibraryCall::Receive if self.rendezvous && entry.tag & RTS != 0 => {
                let length = entry.data as usize;
                if length != expected {
                    return Err(OperationError::Length { peer, expected, received: length });
                }
                // A request to send; the message itself is still to come.
                // SAFETY: as for the operation.
                unsafe { self.start(ep, index) }
            }
            LibraryCall::Receive if entry.len != expected => {
                Err(OperationError::Length { peer, expected, received: entry.len })
            }
            _ => {
                self.complete(slot);
                Ok(())
            }
        }
    }

    /// The message of an operation that failed; true for a receive.
    pub(super) fn failed(&self, context: *mut c_void) -> Option<(TaggedMessage, bool)> {
        let slot = *self.slots.iter().find(|slot| slot.cast::<c_void>() == context)?;
        // SAFETY: one of the slots.
        unsafe { Some(((*slot).message, (*slot).call == LibraryCall::Receive)) }
    }

    /// Called after polls without a completion. Senders that have waited for long send requests.
    ///
    /// # Safety
    /// As for the operations.
    pub(super) unsafe fn idle(&mut self, ep: *mut fid_ep) -> Result<(), OperationError> {
        if self.awaiting_cts == 0 {
            return Ok(());
        }
        self.idle += 1;
        if self.idle < POLLS_BEFORE_RTS {
            return Ok(());
        }
        self.idle = 0;
        for position in 0..self.slots.len() {
            let slot = self.slots[position];
            // SAFETY: only this type uses this part of a slot.
            let (needs_rts, message) = unsafe {
                let needs_rts = (*slot).call == LibraryCall::AwaitCts && !(*slot).done && !(*slot).rts_sent;
                (*slot).rts_sent |= needs_rts;
                (needs_rts, (*slot).message)
            };
            if needs_rts {
                let rts = self.take(LibraryCall::SendRts, message);
                // SAFETY: passed on to the caller.
                unsafe { self.start(ep, rts)? };
            }
        }
        Ok(())
    }

    /// True when the operation is complete, which frees its number.
    pub(super) fn is_done(&mut self, index: u32) -> bool {
        // SAFETY: only this type, borrowed exclusively, uses this part of a slot.
        let done = unsafe { (*self.slots[index as usize]).done };
        if done {
            self.free.push(index);
        }
        done
    }
}

impl Drop for Operations {
    fn drop(&mut self) {
        for &slot in &self.slots {
            // SAFETY: made by `Box::into_raw`, dropped once; the endpoint that knew the address is closed, as its
            // owner declares it before this.
            drop(unsafe { Box::from_raw(slot) });
        }
    }
}
