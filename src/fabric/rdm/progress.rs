//! Submission of operations, and completions.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;
use std::time::Instant;

use fabric_sys::{fi_addr_t, fi_cq_tagged_entry};

use super::slots::{OperationSlot, OperationState};
use super::{Completion, Endpoint, Operation, Peer};
use crate::fabric::error::Error;
use crate::fabric::libfabric::objects::{EndpointObjects, FailedOperation};

/// Completions per read of the queue.
const BATCH: usize = 16;
/// Polls without a completion between two yields of the processor.
const POLLS_PER_YIELD: u32 = 1000;
/// Polls without a completion between two checks of the world and the timeout.
const POLLS_PER_CHECK: u32 = 1 << 13;
/// Longest sleep between two such checks.
const LONGEST_SLEEP_MS: c_int = 100;

impl Endpoint {
    /// Makes progress, for peers that read or write here; returns true after a completion. It may be called
    /// for any time with nothing in flight.
    ///
    /// # Errors
    /// The errors of [`Endpoint::scope`].
    pub fn progress(&mut self) -> Result<bool, Error> {
        if self.in_flight == 0 {
            self.idle_since = None;
        }
        self.poll_queue()
    }

    /// Polls the queue once, on behalf of a wait.
    pub(super) fn poll_queue(&mut self) -> Result<bool, Error> {
        let mut entries = [const { MaybeUninit::<fi_cq_tagged_entry>::uninit() }; BATCH];
        let queue = self.objects_mut("fi_cq_read")?.cq;
        // SAFETY: the queue is open and of this format; the count is the array's.
        let count = unsafe { fabric_sys::fi_cq_read(queue, entries.as_mut_ptr().cast(), BATCH) };
        self.record_completions(&entries, count)
    }

    /// Polls once, after the pause, or sleeps until a completion.
    fn wait_once(&mut self) -> Result<(), Error> {
        if !self.options.blocking {
            if !self.options.pause.is_zero() {
                let start = Instant::now();
                while start.elapsed() < self.options.pause {
                    std::hint::spin_loop();
                }
            }
            return self.poll_queue().map(drop);
        }
        let mut entries = [const { MaybeUninit::<fi_cq_tagged_entry>::uninit() }; BATCH];
        let queue = self.objects_mut("fi_cq_sread")?.cq;
        // SAFETY: as in `poll_queue`; the queue was opened for it.
        let count = unsafe {
            fabric_sys::fi_cq_sread(queue, entries.as_mut_ptr().cast(), BATCH, ptr::null(), LONGEST_SLEEP_MS)
        };
        match -count as c_int {
            fabric_sys::FI_EAGAIN | fabric_sys::FI_EINTR => self.check_wait(),
            _ => self.record_completions(&entries, count).map(drop),
        }
    }

    /// Records the entries read from the queue; `count` is their number or libfabric's error.
    fn record_completions(
        &mut self,
        entries: &[MaybeUninit<fi_cq_tagged_entry>],
        count: isize,
    ) -> Result<bool, Error> {
        if count > 0 {
            for entry in &entries[..count as usize] {
                // SAFETY: the library has written this many.
                let entry = unsafe { entry.assume_init_ref() };
                let received = entry.flags & fabric_sys::FI_RECV != 0;
                self.complete_operation(entry.op_context, |len| {
                    OperationState::Done(Completion {
                        len: if received { entry.len } else { len },
                        tag: entry.tag,
                    })
                });
            }
            self.reset_wait();
            return Ok(true);
        }
        match -count as c_int {
            fabric_sys::FI_EAGAIN => self.on_idle().map(|()| false),
            code if code == fabric_sys::FI_EAVAIL as c_int => self.read_error().map(|()| true),
            code => {
                self.peer_lost = true;
                Err(self.call_failure("fi_cq_read", code, None))
            }
        }
    }

    /// Records the end of the operation with this context.
    fn complete_operation(&mut self, context: *mut c_void, state: impl FnOnce(usize) -> OperationState) {
        if context.is_null() {
            return;
        }
        // SAFETY: the library returns the pointer from `start_operation`: the context at the beginning of a
        // slot in flight.
        let slot = unsafe { &mut *context.cast::<OperationSlot>() };
        slot.state = state(slot.len);
        self.in_flight -= 1;
    }

    #[cold]
    fn read_error(&mut self) -> Result<(), Error> {
        self.peer_lost = true;
        let failed = self.objects_mut("fi_cq_readerr")?.read_error();
        let FailedOperation { context, code, text, .. } =
            failed.map_err(|code| self.call_failure("fi_cq_readerr", code, None))?;
        if context.is_null() {
            return Err(self.call_failure("an injected operation", code, text));
        }
        // SAFETY: as in `complete_operation`.
        let name = unsafe { (*context.cast::<OperationSlot>()).name };
        if let Error::Call(failure) = self.call_failure(name, code, text) {
            self.last_failure = Some(failure);
        }
        self.complete_operation(context, |_| OperationState::Failed(code));
        Ok(())
    }

    /// Restarts the timeout: time spent computing or injecting is not a wait.
    #[inline]
    pub(super) fn reset_wait(&mut self) {
        self.idle = 0;
        self.idle_since = None;
    }

    /// Called after a poll without a completion.
    fn on_idle(&mut self) -> Result<(), Error> {
        self.idle = self.idle.wrapping_add(1);
        if self.idle.is_multiple_of(POLLS_PER_YIELD) {
            std::thread::yield_now();
        }
        if self.idle.is_multiple_of(POLLS_PER_CHECK) { self.check_wait() } else { Ok(()) }
    }

    /// Checks the world and the timeout.
    #[cold]
    fn check_wait(&mut self) -> Result<(), Error> {
        if let Some(world) = &self.options.world {
            world.check().inspect_err(|_| self.peer_lost = true)?;
        }
        if let Some(timeout) = self.options.timeout {
            let idle_since = *self.idle_since.get_or_insert_with(Instant::now);
            if idle_since.elapsed() > timeout {
                self.peer_lost = true;
                let operation = format!("waiting over {}", self.provider);
                return Err(Error::TimedOut { operation, limit: timeout, late: Vec::new() });
            }
        }
        Ok(())
    }

    /// Starts an operation: retries until the library has space for it.
    pub(super) fn start_operation(
        &mut self,
        name: &'static str,
        len: usize,
        peer: Option<Peer>,
        call: impl Fn(&EndpointObjects, fi_addr_t, *mut c_void) -> isize,
    ) -> Result<Operation, Error> {
        let slot = self.slots.take_slot(name, len);
        if let Err(error) =
            self.submit_call(name, len, peer, |objects, address| call(objects, address, slot.cast()))
        {
            self.slots.release_slot(slot);
            return Err(error);
        }
        self.in_flight += 1;
        // SAFETY: a slot of this endpoint.
        let (index, generation) = unsafe { ((*slot).index, (*slot).generation) };
        Ok(Operation { endpoint: self.id, slot: index, generation })
    }

    /// Injects: the operation is complete when the call returns.
    pub(super) fn inject_message(
        &mut self,
        name: &'static str,
        len: usize,
        peer: Peer,
        call: impl Fn(&EndpointObjects, fi_addr_t) -> isize,
    ) -> Result<(), Error> {
        if len > self.longest_inject {
            let problem = format!(
                "{len} bytes are more than {}, the limit of an injected operation",
                self.longest_inject
            );
            return Err(self.endpoint_error(name, problem));
        }
        self.submit_call(name, len, Some(peer), call)
    }

    fn submit_call(
        &mut self,
        name: &'static str,
        len: usize,
        peer: Option<Peer>,
        call: impl Fn(&EndpointObjects, fi_addr_t) -> isize,
    ) -> Result<(), Error> {
        if peer.is_some_and(|peer| peer.endpoint != self.id) {
            return Err(self.endpoint_error(name, "the peer belongs to another endpoint".to_owned()));
        }
        if len > self.longest_message {
            return Err(self.call_failure(name, fabric_sys::FI_EMSGSIZE, None));
        }
        let address = peer.map_or(fabric_sys::FI_ADDR_UNSPEC, |peer| peer.address);
        loop {
            let result = call(self.objects_mut(name)?, address);
            if result == 0 {
                self.reset_wait();
                return Ok(());
            }
            let code = -result as c_int;
            if code != fabric_sys::FI_EAGAIN {
                self.peer_lost = true;
                return Err(self.call_failure(name, code, None));
            }
            self.poll_queue()?;
        }
    }

    pub(super) fn wait_for(&mut self, operation: &Operation) -> Result<Completion, Error> {
        if operation.endpoint != self.id {
            return Err(
                self.endpoint_error("waiting", "the operation belongs to another endpoint".to_owned())
            );
        }
        let slot = self.slots.all.get(operation.slot as usize).map(|slot| slot.as_ptr());
        // SAFETY: a slot of this endpoint.
        let known = slot.filter(|&slot| unsafe { (*slot).generation } == operation.generation);
        let Some(slot) = known else {
            return Err(self.endpoint_error("waiting", "the operation belongs to another scope".to_owned()));
        };
        self.reset_wait();
        loop {
            // SAFETY: as above.
            let (state, name) = unsafe { ((*slot).state, (*slot).name) };
            match state {
                OperationState::InFlight => self.wait_once()?,
                OperationState::Done(completion) => {
                    self.slots.release_slot(slot);
                    return Ok(completion);
                }
                OperationState::Failed(code) => {
                    self.slots.release_slot(slot);
                    return Err(match &self.last_failure {
                        Some(failure) if failure.code == code => Error::Call(failure.clone()),
                        _ => self.call_failure(name, code, None),
                    });
                }
                OperationState::Free => {
                    return Err(self.endpoint_error("waiting", "the operation has ended already".to_owned()));
                }
            }
        }
    }

    /// Waits until nothing is in flight, and frees operations that were not waited for; returns the first
    /// error of these.
    pub(super) fn wait_for_all(&mut self) -> Result<(), Error> {
        self.reset_wait();
        while self.in_flight > 0 {
            self.wait_once()?;
        }
        let mut failed = None;
        for index in 0..self.slots.all.len() {
            let slot = self.slots.all[index].as_ptr();
            // SAFETY: a slot of this endpoint.
            match unsafe { (*slot).state } {
                OperationState::Free => {}
                OperationState::Failed(code) => {
                    // SAFETY: as above.
                    failed = failed.or(Some((unsafe { (*slot).name }, code)));
                    self.slots.release_slot(slot);
                }
                OperationState::InFlight | OperationState::Done(_) => self.slots.release_slot(slot),
            }
        }
        match failed {
            None => Ok(()),
            Some((name, code)) => Err(self.call_failure(name, code, None)),
        }
    }
}
