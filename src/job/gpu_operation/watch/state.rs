//! The calls and operations of a group that are under way.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use super::super::Mark;
use crate::Error;
use crate::world::{Called, Reason};

/// Number of the last calls that are compared.
const CALLS: usize = 64;

#[derive(Default)]
pub(super) struct WatchState {
    pub(super) under_way: VecDeque<UnderWay>,
    /// A call that is inside NCCL.
    pub(super) inside: Option<NotedCall>,
    /// Exchanges of messages without NCCL, which other threads may run during a call.
    pub(super) exchanges: Vec<NotedCall>,
    pub(super) calls: VecDeque<Called>,
    pub(super) number: u64,
    pub(super) failure: Option<Error>,
    /// The next [`failure`](Self::failure), while threads report it to the world.
    reported: Option<Failure>,
    /// The threads inside of the report.
    reporters: Vec<ThreadId>,
    pub(super) timeout: Option<Duration>,
    /// True while a future waits.
    pub(super) hurried: bool,
    /// Number of threads that sleep until there is something to watch.
    pub(super) sleeping: usize,
    /// True while the communicator is being closed, which has no timeout.
    pub(super) closing: bool,
    pub(super) ending: bool,
}

impl WatchState {
    pub(super) fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.inside.is_none() && self.exchanges.is_empty()
    }

    /// Notes a call of this rank.
    pub(super) fn begin_call(&mut self, operation: &str) -> Result<NotedCall, Error> {
        if let Some(error) = &self.failure {
            return Err(error.clone());
        }
        let (operation, number) = (operation.to_owned(), self.number);
        self.number += 1;
        if self.calls.len() == CALLS {
            self.calls.pop_front();
        }
        self.calls.push_back(Called { place: 0, number, what: operation.clone() });
        Ok(NotedCall { since: Instant::now(), operation, number })
    }

    /// Begins this thread's report of a failure, or of an earlier one.
    ///
    /// # Errors
    /// The error of the group if it is reported, or if this thread is inside of its report.
    pub(super) fn begin_report(&mut self, failure: Failure) -> Result<BegunReport, Error> {
        if let Some(earlier) = &self.failure {
            return Err(earlier.clone());
        }
        let is_first = self.reported.is_none();
        let failure = self.reported.get_or_insert(failure).clone();
        let thread = thread::current().id();
        if self.reporters.contains(&thread) {
            return Err(failure.error);
        }
        self.reporters.push(thread);
        Ok(BegunReport { failure, is_first })
    }

    /// Ends the report of this thread: the world knows of the failure.
    pub(super) fn end_report(&mut self) {
        let thread = thread::current().id();
        self.reporters.retain(|reporter| *reporter != thread);
        self.failure = self.reported.as_ref().map(|reported| reported.error.clone());
    }

    /// Forgets a call that was refused. Calls that began after it get the numbers that they have on ranks
    /// without it.
    pub(super) fn forget_call(&mut self, number: u64) {
        self.calls.retain(|call| call.number != number);
        let later = self.calls.iter_mut().map(|call| &mut call.number);
        let later = later.chain(self.exchanges.iter_mut().map(|call| &mut call.number));
        later.filter(|later| **later > number).for_each(|later| *later -= 1);
        self.number -= 1;
    }
}

/// An error that stops a group.
#[derive(Clone)]
pub(super) struct Failure {
    pub(super) error: Error,
    /// The reason that the world is to tell the other ranks; `None` if they know it.
    pub(super) reason: Option<Reason>,
}

/// A report that a thread has begun.
pub(super) struct BegunReport {
    pub(super) failure: Failure,
    /// False if another thread also reports the failure.
    pub(super) is_first: bool,
}

/// A call of this rank that others may have to join.
#[derive(Clone)]
pub(super) struct NotedCall {
    /// Its beginning, or time since which it is the first one under way.
    pub(super) since: Instant,
    pub(super) operation: String,
    /// Number of the call, as in [`Called::number`].
    pub(super) number: u64,
}

pub(super) struct UnderWay {
    pub(super) mark: Arc<Mark>,
    pub(super) call: NotedCall,
}
