//! Threads that notice failures and completions while operations of a group are under way.
//!
//! NCCL's operations wait on the GPU for other ranks, and calls of NCCL may wait on the host; neither notices
//! a rank that has failed, is missing, or has called something else. The threads run only while there is
//! something to watch.
//!
//! CUDA calls of one thread can block those of others, for instance during a copy of pageable memory that
//! waits for an operation. Only an abort ends that, so the thread that aborts does not query events: the
//! other one does.

mod state;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread;
use std::time::{Duration, Instant};

use state::{BegunReport, Failure, NotedCall, UnderWay, WatchState};

use super::Mark;
use crate::Error;
use crate::job::guard::{call_guarded, enter_group_thread};
use crate::lock::lock;
use crate::log;
use crate::nccl::{self, AbortHandle, Communicator};
use crate::world::{self, Awaited, COMPARE_AFTER, Called, Handle, Reason, Wait};

/// Interval of the threads' queries, and of those of events while a future waits.
const INTERVAL: Duration = Duration::from_millis(5);
const INTERVAL_OF_FUTURES: Duration = Duration::from_micros(100);
/// Replaces [`COMPARE_AFTER`] once a rank has timed out. Shorter than `REPORT_TIME`.
const COMPARE_WANTED_AFTER: Duration = Duration::from_millis(50);
/// Time from a failure to the abort of NCCL's work, in which the other ranks learn of the failure. The kernel
/// of an aborted rank does not wait any more, and sends undefined data, with which operations of other ranks
/// complete.
const ABORT_AFTER: Duration = Duration::from_millis(100);

/// The communicator of a group, which one thread at a time uses; none once it has ended.
pub(crate) type Watched = Mutex<Option<Communicator>>;

/// State of a group's operations. While its lock is held, no call of CUDA is made, and none of the world,
/// which can be the program's.
pub(crate) struct GroupWatch {
    world: Handle,
    rank: usize,
    /// Ranks of the job by rank of the group.
    ranks: Vec<usize>,
    /// Identity of the communicator: the same on all its ranks.
    topic: u64,
    abort: AbortHandle,
    state: Mutex<WatchState>,
    changed: Condvar,
    has_failed: AtomicBool,
}

/// An exchange that ends when this is dropped, also by a panic.
struct NotedExchange<'a> {
    watch: &'a GroupWatch,
    /// Its beginning, while its number changes if an earlier call is refused.
    since: Instant,
}

impl Drop for NotedExchange<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.watch.state);
        if let Some(index) = state.exchanges.iter().position(|exchange| exchange.since == self.since) {
            state.exchanges.remove(index);
        }
    }
}

/// A thread's report of the group's failure to the world. Dropping it stops the group, also after a panic.
struct Report<'a>(&'a GroupWatch);

impl Drop for Report<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.0.state);
        state.end_report();
        self.0.has_failed.store(true, Ordering::Release);
        self.0.changed.notify_all();
    }
}

impl GroupWatch {
    pub(crate) fn new(world: Handle, ranks: Vec<usize>, topic: u64, abort: AbortHandle) -> Arc<Self> {
        Arc::new(Self {
            rank: world.rank(),
            ranks,
            world,
            topic,
            abort,
            state: Mutex::default(),
            changed: Condvar::new(),
            has_failed: AtomicBool::new(false),
        })
    }

    /// Returns the error that has stopped the group or the job, if any.
    pub(crate) fn check_failure(&self) -> Result<(), Error> {
        // A program that has waited for a stream can be earlier than the thread that queries events.
        let compared = self.first_of_steps();
        compared.iter().try_for_each(|mark| self.poll_mark(mark).map(drop))?;
        self.stop_error().map_or_else(|| Ok(self.world.check()?), Err)
    }

    /// Fails if the job has failed: an operation may then have completed with undefined data of a rank that
    /// has aborted.
    pub(super) fn check_job(&self) -> Result<(), Error> {
        self.stop_on_error(self.world.check())
    }

    /// Operations under way whose ranks' steps are compared.
    fn first_of_steps(&self) -> Vec<Arc<Mark>> {
        let state = lock(&self.state);
        let marks = state.under_way.iter().map(|each| &each.mark);
        marks.filter(|mark| mark.comparison.is_some()).map(Arc::clone).collect()
    }

    /// Returns true if the operation has ended. Stops the group if its ranks were in different steps.
    pub(super) fn poll_mark(&self, mark: &Mark) -> Result<bool, Error> {
        let is_complete = mark.is_complete()?;
        // The numbers of steps, too, can be undefined after a failure of the job.
        if let Some(comparison) =
            mark.comparison.as_ref().filter(|_| is_complete && self.world.check().is_ok())
            && let Some(error) = comparison.find_mismatch()?
        {
            // The ranks of other groups do not compare it.
            let reason = Some(Reason::from(error));
            self.stop_with_failure(Failure { error: error.clone().in_job(&self.ranks), reason });
        }
        Ok(is_complete)
    }

    /// The error that has stopped the group.
    pub(crate) fn stop_error(&self) -> Option<Error> {
        if self.has_failed.load(Ordering::Acquire) { lock(&self.state).failure.clone() } else { None }
    }

    pub(crate) fn set_timeout(&self, limit: Option<Duration>) {
        lock(&self.state).timeout = limit;
    }

    pub(crate) fn operation_timeout(&self) -> Option<Duration> {
        lock(&self.state).timeout
    }

    /// Notes that this rank calls an operation, which may wait inside NCCL.
    pub(crate) fn enter_call(&self, operation: &str) -> Result<(), Error> {
        let mut state = lock(&self.state);
        let call = state.begin_call(operation)?;
        state.inside = Some(call);
        self.wake_threads(&state);
        Ok(())
    }

    /// Notes that the call has returned: with the end of the operation on the stream, or with the error of a
    /// call that has sent nothing.
    pub(crate) fn leave_call(&self, queued: Result<&Arc<Mark>, &Error>) {
        let mut state = lock(&self.state);
        let inside = state.inside.take();
        match (queued, inside) {
            (Ok(mark), Some(call)) => {
                state.under_way.push_back(UnderWay { mark: Arc::clone(mark), call });
                self.wake_threads(&state);
            }
            (Err(error), Some(call)) if error.is_refusal() => state.forget_call(call.number),
            _ => {}
        }
    }

    /// Watches an exchange of messages without NCCL, as an operation.
    pub(crate) fn during_exchange<T>(
        &self,
        operation: &str,
        call: impl FnOnce() -> Result<T, world::Error>,
    ) -> Result<T, Error> {
        let mut state = lock(&self.state);
        let exchange = state.begin_call(operation)?;
        let since = exchange.since;
        state.exchanges.push(exchange);
        self.wake_threads(&state);
        drop(state);
        let exchange = NotedExchange { watch: self, since };
        let result = call();
        drop(exchange);
        result.map_err(|error| {
            // The others wait for this rank if it alone was refused.
            let is_own = self.stop_error().is_none() && self.world.check().is_ok();
            let reason = is_own.then(|| Reason::from(&error));
            self.stop_with_failure(Failure { error: error.into(), reason })
        })
    }

    /// Watches a call that ends the communicator, which may take as long as other ranks use theirs. Tells
    /// ranks that still call operations that this one has left.
    pub(crate) fn during_close<T>(&self, call: impl FnOnce() -> T) -> T {
        let mut state = lock(&self.state);
        let number = state.number;
        let left = Called { place: 0, number, what: world::LEFT.to_owned() };
        let operation = "closing the group".to_owned();
        state.inside = Some(NotedCall { since: Instant::now(), operation, number });
        state.closing = true;
        self.wake_threads(&state);
        drop(state);
        if self.stop_error().is_none() {
            self.world.compare(self.rank, self.topic, &[left]);
        }
        let value = call();
        lock(&self.state).inside = None;
        value
    }

    /// Waits for the group's operations before `communicator` ends. The other ranks learn of a failure before
    /// it is aborted.
    pub(crate) fn settle_operations(&self, communicator: &Communicator) {
        let drained = match communicator.drain_work() {
            // Operations that were queued before the capture can be waited for.
            Err(nccl::Error::Stream { .. }) => self.wait_for_marks(communicator),
            drained => drained.map_err(Error::from),
        };
        let Err(error) = drained else { return };
        if matches!(error, Error::Nccl(nccl::Error::Aborted { .. })) {
            return;
        }
        if self.stop_error().is_none() {
            log::warn(format_args!("closing a group: {error}"));
        }
        self.stop_with(error);
        thread::sleep(ABORT_AFTER);
    }

    /// Waits until the operations under way have ended, without their stream.
    fn wait_for_marks(&self, communicator: &Communicator) -> Result<(), Error> {
        let marks: Vec<Arc<Mark>> =
            lock(&self.state).under_way.iter().map(|each| Arc::clone(&each.mark)).collect();
        for mark in marks {
            while !mark.is_complete()? {
                communicator.async_error()?;
                self.stop_error().map_or(Ok(()), Err)?;
                thread::sleep(INTERVAL_OF_FUTURES);
            }
        }
        // After a failure, operations are no longer under way, and may not have ended.
        self.stop_error().map_or(Ok(()), Err)
    }

    /// Stops the group if a call of CUDA or NCCL has failed, since the other ranks may wait for this one.
    pub(crate) fn stop_on_error<T, E: Into<Error>>(&self, result: Result<T, E>) -> Result<T, Error> {
        result.map_err(|error| self.stop_with(error.into()))
    }

    /// Stops the group with this error, or an earlier one, which it returns: tells the other ranks, and makes
    /// [`guard_group`](Self::guard_group) abort NCCL's work. The world knows of the failure before this
    /// rank's operations return it, except those that the world itself asks for meanwhile.
    pub(crate) fn stop_with(&self, error: Error) -> Error {
        let error = match error {
            // Perhaps only the consequence of another rank's failure.
            Error::Nccl(_) if self.stop_error().is_none() => {
                world::cause(&*self.world).map_or(error, Error::from)
            }
            other => other,
        };
        let reason = match &error {
            // The others know it.
            Error::RankFailed { .. } | Error::Mismatch { .. } | Error::TimedOut { .. } | Error::World(_) => {
                None
            }
            error => Some(Reason::from(error)),
        };
        self.stop_with_failure(Failure { error, reason })
    }

    fn stop_with_failure(&self, failure: Failure) -> Error {
        // The world returns this rank's own failure, too: a thread that meets it gets the error itself.
        let begun = lock(&self.state).begin_report(failure);
        let BegunReport { failure: Failure { error, reason }, is_first } = match begun {
            Ok(begun) => begun,
            Err(earlier) => return earlier,
        };
        let report = Report(self);
        // The world may have it from the first thread, which may still be inside of the program's code.
        if let Some(reason) = reason.filter(|_| is_first || self.world.check().is_ok()) {
            self.world.fail(reason);
        }
        drop(report);
        error
    }

    /// Shortens the interval of queries for a future.
    pub(super) fn hurry_queries(&self) {
        let mut state = lock(&self.state);
        if !state.hurried {
            state.hurried = true;
            self.changed.notify_all();
        }
    }

    /// Ends the threads once nothing is under way.
    pub(crate) fn end_threads(&self) {
        let mut state = lock(&self.state);
        state.ending = true;
        self.changed.notify_all();
    }

    fn wake_threads(&self, state: &WatchState) {
        if state.sleeping > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits for a change of the state.
    fn sleep_until_change<'a>(&self, mut state: MutexGuard<'a, WatchState>) -> MutexGuard<'a, WatchState> {
        state.sleeping += 1;
        let mut state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        state.sleeping -= 1;
        state
    }

    fn sleep_for<'a>(
        &self,
        state: MutexGuard<'a, WatchState>,
        limit: Duration,
    ) -> MutexGuard<'a, WatchState> {
        self.changed.wait_timeout(state, limit).unwrap_or_else(PoisonError::into_inner).0
    }

    /// The body of the thread that notices failures, until the first one; it then aborts NCCL's work, once
    /// the other ranks know of the failure. The thread's context is bound, so that no CUDA call that can
    /// block comes before NCCL's abort.
    pub(crate) fn guard_group(&self, communicator: &Watched) {
        enter_group_thread();
        let mut compared = Instant::now();
        let mut state = lock(&self.state);
        while state.failure.is_none() {
            if state.is_idle() {
                if state.ending {
                    return;
                }
                state = self.sleep_until_change(state);
                continue;
            }
            drop(state);
            self.look_for_failure(communicator, &mut compared);
            state = lock(&self.state);
            if state.failure.is_none() && !state.is_idle() {
                state = self.sleep_for(state, INTERVAL);
            }
        }
        drop(state);
        thread::sleep(ABORT_AFTER);
        while let Err(error) = self.abort.abort() {
            log::warn(format_args!("aborting a group after an error: {error}"));
            // Another thread is inside NCCL, perhaps not for long.
            if !matches!(error, nccl::Error::Busy { .. }) {
                break;
            }
        }
    }

    /// The body of the thread that queries events, until the end.
    pub(crate) fn complete_operations(&self) {
        enter_group_thread();
        let mut state = lock(&self.state);
        loop {
            if state.under_way.is_empty() {
                if state.ending {
                    self.changed.notify_all();
                    return;
                }
                state.hurried = false;
                state = self.sleep_until_change(state);
                continue;
            }
            drop(state);
            self.pop_complete();
            state = lock(&self.state);
            // The operations that have ended are popped before the next wait.
            if !state.under_way.is_empty() {
                let interval = if state.hurried { INTERVAL_OF_FUTURES } else { INTERVAL };
                state = self.sleep_for(state, interval);
            }
        }
    }

    /// Removes the operations that have ended, and wakes their futures. No other thread removes any.
    fn pop_complete(&self) {
        loop {
            let state = lock(&self.state);
            let Some(mark) = state.under_way.front().map(|first| Arc::clone(&first.mark)) else { return };
            drop(state);
            let failed = self.has_failed.load(Ordering::Acquire);
            match if failed { Ok(true) } else { self.poll_mark(&mark) } {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => _ = self.stop_with(error),
            }
            let mut state = lock(&self.state);
            let ended = state.under_way.pop_front();
            if let Some(next) = state.under_way.front_mut() {
                next.call.since = Instant::now();
            }
            drop(state);
            drop(ended);
            let waker = lock(&mark.waker).take();
            if let Some(waker) = waker {
                call_guarded("the waker of a future", || waker.wake());
            }
        }
    }

    /// Looks for a reason to stop the group.
    fn look_for_failure(&self, communicator: &Watched, compared: &mut Instant) {
        let after = if self.world.wants_calls() { COMPARE_WANTED_AFTER } else { COMPARE_AFTER };
        let state = lock(&self.state);
        if state.failure.is_some() {
            return;
        }
        let first = state.under_way.front().map(|first| first.call.clone());
        let closes = first.is_none() && state.closing;
        let operation = first.or_else(|| state.inside.clone());
        // An exchange may wait beside a thread whose operations go on.
        let calls = operation.into_iter().chain(state.exchanges.first().cloned());
        let Some(call) = calls.min_by_key(|call| call.since) else { return };
        let (timeout, waited) = (state.timeout.filter(|_| !closes), call.since.elapsed());
        let compares = !closes && waited > after && compared.elapsed() > after;
        let calls = if compares { state.calls.iter().cloned().collect() } else { Vec::new() };
        drop(state);
        if compares {
            *compared = Instant::now();
            self.world.compare(self.rank, self.topic, &calls);
        }
        let asynchronous = match communicator.try_lock() {
            Ok(communicator) => communicator.as_ref().map_or(Ok(()), Communicator::async_error),
            Err(TryLockError::Poisoned(poisoned)) => {
                poisoned.into_inner().as_ref().map_or(Ok(()), Communicator::async_error)
            }
            Err(TryLockError::WouldBlock) => Ok(()),
        };
        let reason = match (self.world.check(), asynchronous, timeout) {
            (Err(error), ..) => error.into(),
            (Ok(()), Err(error), _) => error.into(),
            (Ok(()), Ok(()), Some(limit)) if waited > limit => self.time_out(call, limit),
            _ => return,
        };
        self.stop_with(reason);
    }

    /// Ends the job because a call has waited for `limit`. Returns the job's error.
    fn time_out(&self, NotedCall { operation, number, .. }: NotedCall, limit: Duration) -> Error {
        let others = (0..self.world.size()).filter(|&rank| rank != self.rank);
        let awaited = others.map(|rank| Awaited { rank, place: 0, number }).collect();
        let calls: Vec<Called> = lock(&self.state).calls.iter().cloned().collect();
        self.world.compare(self.rank, self.topic, &calls);
        let wait = Wait { rank: self.rank, topic: self.topic, operation, limit, awaited };
        world::time_out(&*self.world, wait).map_or_else(Error::from, Error::from)
    }
}
