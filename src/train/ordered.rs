//! Memory that the program's streams and the group's operations use in turns.

use std::mem;

use super::bucket::Bucket;
use super::failure::warn_of_leak;
use super::streams::{OnGroup, OnProgram, Streams};
use crate::Error;
use crate::job::Group;
use crate::purpose::Purpose;

/// Memory of a reducer or optimizer; none by default.
pub(super) trait Releasable: Default {
    /// Frees the memory, whose release is ordered with the registered streams, after the program's uses on
    /// others.
    fn release(self);
}

/// Memory `M` of a reducer or optimizer, with the streams that use it. Each access orders the streams before
/// it returns the memory; the drop releases the memory after its last use, or leaks it. A step is
///
/// ```text
/// join_streams, on_program (copies), start_operation, on_group (its results), on_program (the program's use)
/// ```
pub(super) struct Ordered<B: Bucket, M: Releasable> {
    group: Group,
    streams: B::Streams,
    memory: M,
    /// True if the group's stream may have a result for which the program's streams have not waited.
    has_result: bool,
    /// Subject of the warning of a leak.
    owner: &'static str,
}

impl<B: Bucket, M: Releasable> Ordered<B, M> {
    /// Memory that `allocate` fills in. Its parts are released if it fails.
    pub(super) fn new(
        group: &Group,
        owner: &'static str,
        allocate: impl FnOnce(&mut OnGroup<'_, B::Streams>, &mut M) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let streams = B::streams(group)?;
        // Memory that is cleared in a capture belongs to its graph.
        streams.check_callable()?;
        // A stream of the program waits for the group's when it is registered.
        let mut ordered =
            Self { group: group.clone(), streams, memory: M::default(), has_result: false, owner };
        allocate(&mut OnGroup { streams: &mut ordered.streams }, &mut ordered.memory)?;
        Ok(ordered)
    }

    /// The group, for anything but operations on the memory.
    pub(super) fn as_group(&self) -> &Group {
        &self.group
    }

    /// Refuses a call whose operations would be refused now, in a capture or an NCCL group, before it changes
    /// anything.
    pub(super) fn check_callable(&self) -> Result<(), Error> {
        self.streams.check_callable()
    }

    /// Registers the stream of a view's memory, before the view is copied.
    pub(super) fn register_view(&mut self, view: &B::View<'_>) -> Result<(), Error> {
        B::register(&mut self.streams, view)
    }

    /// Makes the program's streams wait for each other: one may still read what another one overwrites.
    pub(super) fn join_streams(&mut self) -> Result<(), Error> {
        // Also with one: a stream that is registered later waits for the group's stream only.
        if self.streams.has_program_streams() {
            self.streams.make_group_wait()?;
            self.streams.make_program_wait()?;
            self.has_result = false;
        }
        Ok(())
    }

    /// The memory, for copies on the program's streams.
    pub(super) fn on_program(&mut self) -> Result<(OnProgram<'_, B::Streams>, &mut M), Error> {
        if self.has_result {
            self.streams.make_program_wait()?;
            self.has_result = false;
        }
        Ok((OnProgram { streams: &self.streams }, &mut self.memory))
    }

    /// The memory, to be read on the program's streams.
    pub(super) fn read_memory(&self) -> Result<&M, Error> {
        if self.has_result {
            return Err(Error::Job("the streams have not waited for the results".to_owned()));
        }
        Ok(&self.memory)
    }

    /// Calls code of the program, which uses the memory on its streams, and may have begun a capture or made
    /// copies without events when it returns.
    pub(super) fn call_program(
        &mut self,
        call: impl FnOnce(&mut M) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.on_program().map(drop)?;
        let check = UnwindingCheck(&self.streams);
        let called = call(&mut self.memory);
        mem::forget(check);
        // Also after an error: the memory may be in use.
        let checked = self.check_callable();
        called.and(checked)
    }

    /// The memory, and the group for an operation that takes a part of it. The program keeps the other parts.
    pub(super) fn start_operation(&mut self, purpose: Purpose) -> Result<(Group, &mut M), Error> {
        self.streams.make_group_wait()?;
        Ok((self.group.with_purpose(purpose), &mut self.memory))
    }

    /// The memory, for the results of operations and for work on them:
    /// [`start_operation`](Self::start_operation) has ordered it.
    pub(super) fn on_group(&mut self) -> (OnGroup<'_, B::Streams>, &mut M) {
        self.has_result = true;
        (OnGroup { streams: &mut self.streams }, &mut self.memory)
    }

    /// Frees the memory, which the program may still read, and then allocates it again. There is none after
    /// an error.
    pub(super) fn renew_memory(
        &mut self,
        allocate: impl FnOnce(&mut OnGroup<'_, B::Streams>, &mut M) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.streams.make_group_wait()?;
        self.has_result = true;
        mem::take(&mut self.memory).release();
        allocate(&mut OnGroup { streams: &mut self.streams }, &mut self.memory)
            .inspect_err(|_| mem::take(&mut self.memory).release())
    }
}

/// Waits for copies without events when code of the program panics: the memory may be in use.
struct UnwindingCheck<'a, S: Streams>(&'a S);

impl<S: Streams> Drop for UnwindingCheck<'_, S> {
    fn drop(&mut self) {
        _ = self.0.check_callable();
    }
}

impl<B: Bucket, M: Releasable> Drop for Ordered<B, M> {
    fn drop(&mut self) {
        let memory = mem::take(&mut self.memory);
        match self.streams.settle_memory() {
            // Before the group ends, which runs code of the program.
            Ok(()) => memory.release(),
            Err(error) => {
                warn_of_leak(self.owner, &error);
                mem::forget(memory);
            }
        }
    }
}
