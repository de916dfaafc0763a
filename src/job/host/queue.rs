//! Operations of a group in the order of the calls, on a progress thread or on the calling one.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::Duration;

use crate::job::guard::{call_guarded, enter_group_thread};
use crate::job::slot::{Promise, ResultSlot, waits_for_itself};
use crate::job::under_way::UnderWay as _;
use crate::lock::lock;
use crate::purpose::Purpose;
use crate::world::Handle;
use crate::world::sync::SpinPark;
use crate::{Error, fabric};

/// A queued operation.
pub(super) trait QueuedOperation: Send {
    fn run_with(&mut self, communicator: &mut fabric::Communicator) -> Result<(), fabric::Error>;

    /// Delivers the buffers after [`QueuedOperation::run_with`], or the error, for which it may not have run.
    fn deliver_result(self: Box<Self>, result: Result<(), Error>);
}

/// The communicator of a group and its operations.
pub(super) struct Queue {
    entries: Mutex<Entries>,
    /// Counts the changes of `entries` for which the progress thread waits.
    changes: AtomicUsize,
    progress: SpinPark,
    /// Used by the thread that has made `Entries::busy` true.
    communicator: Mutex<Option<fabric::Communicator>>,
    world: Handle,
    /// Ranks of the job by rank of the group.
    ranks: Vec<usize>,
    /// Longest time that an operation waits for other ranks.
    timeout: Mutex<Option<Duration>>,
    /// True if this host has a core for each of the two threads of every rank.
    spin: bool,
    /// The progress thread.
    thread: OnceLock<ThreadId>,
}

#[derive(Default)]
struct Entries {
    waiting: VecDeque<QueueEntry>,
    /// True while a thread uses the communicator.
    busy: bool,
    ending: bool,
    /// Error of the operation that has stopped the group.
    failure: Option<Error>,
}

enum QueueEntry {
    Operation(Box<dyn QueuedOperation>),
    /// The turn of a thread that waits to use the communicator.
    Turn(Promise<()>),
}

enum Next {
    Run(QueueEntry),
    Wait,
    End,
}

/// The calling thread's use of the communicator.
struct Turn<'a>(&'a Queue);

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut entries = lock(&self.0.entries);
        entries.busy = false;
        // Waking the progress thread for nothing takes longer than a small operation.
        let idle = entries.waiting.is_empty() && !entries.ending;
        drop(entries);
        if !idle {
            self.0.notify_change();
        }
    }
}

impl Queue {
    /// The queue and its progress thread.
    pub(super) fn start_thread(
        communicator: fabric::Communicator,
        world: Handle,
        ranks: Vec<usize>,
        spin: bool,
    ) -> Result<(Arc<Self>, JoinHandle<()>), Error> {
        let queue = Arc::new(Self {
            entries: Mutex::default(),
            changes: AtomicUsize::new(0),
            progress: SpinPark::default(),
            communicator: Mutex::new(Some(communicator)),
            world,
            ranks,
            timeout: Mutex::new(None),
            spin,
            thread: OnceLock::new(),
        });
        let thread = thread::Builder::new().name("collectives".to_owned()).spawn({
            let queue = Arc::clone(&queue);
            move || queue.run_progress()
        });
        let thread =
            thread.map_err(|error| Error::Job(format!("the progress thread cannot be started: {error}")))?;
        let _ = queue.thread.set(thread.thread().id());
        Ok((queue, thread))
    }

    pub(super) fn set_timeout(&self, limit: Option<Duration>) {
        *lock(&self.timeout) = limit;
    }

    pub(super) fn operation_timeout(&self) -> Option<Duration> {
        *lock(&self.timeout)
    }

    /// The error that has stopped the group.
    pub(super) fn stop_error(&self) -> Option<Error> {
        lock(&self.entries).failure.clone()
    }

    pub(super) fn push_operation(&self, operation: Box<dyn QueuedOperation>) {
        self.change_entries(|entries| entries.waiting.push_back(QueueEntry::Operation(operation)));
    }

    /// Runs a call on this thread, once the operations before are complete.
    pub(super) fn run_here<R>(
        &self,
        purpose: Option<Purpose>,
        call: impl FnOnce(&mut fabric::Communicator) -> Result<R, fabric::Error>,
    ) -> Result<R, Error> {
        let _turn = self.take_turn()?;
        self.call_communicator(|communicator| communicator.with_purpose(purpose, call))
    }

    /// Runs the operation on this thread, or returns it if others are before it.
    pub(super) fn try_here<O: QueuedOperation>(&self, mut operation: Box<O>) -> Option<Box<O>> {
        let mut entries = lock(&self.entries);
        if entries.busy || !entries.waiting.is_empty() {
            return Some(operation);
        }
        entries.busy = true;
        drop(entries);
        let turn = Turn(self);
        let result = self.call_communicator(|communicator| operation.run_with(communicator));
        drop(turn);
        operation.deliver_result(result);
        None
    }

    /// Ends the progress thread once all operations are complete; with `discard`, those that have not begun
    /// fail.
    pub(super) fn end_thread(&self, discard: bool) {
        let mut discarded = VecDeque::new();
        self.change_entries(|entries| {
            entries.ending = true;
            if discard {
                discarded = std::mem::take(&mut entries.waiting);
            }
        });
    }

    /// True on the progress thread.
    fn is_here(&self) -> bool {
        self.thread.get() == Some(&thread::current().id())
    }

    /// A place for a result that the progress thread delivers.
    pub(super) fn new_slot<T>(&self) -> (Arc<ResultSlot<T>>, Promise<T>) {
        ResultSlot::new(self.spin, self.thread.get().copied())
    }

    fn take_turn(&self) -> Result<Turn<'_>, Error> {
        if self.is_here() {
            return Err(waits_for_itself());
        }
        let mut entries = lock(&self.entries);
        if !entries.busy && entries.waiting.is_empty() {
            entries.busy = true;
            return Ok(Turn(self));
        }
        drop(entries);
        let (slot, promise) = self.new_slot();
        self.change_entries(|entries| entries.waiting.push_back(QueueEntry::Turn(promise)));
        slot.wait_for_result()?;
        Ok(Turn(self))
    }

    fn change_entries(&self, change: impl FnOnce(&mut Entries)) {
        change(&mut lock(&self.entries));
        self.notify_change();
    }

    /// Tells the progress thread of a change.
    fn notify_change(&self) {
        self.changes.fetch_add(1, Ordering::SeqCst);
        self.progress.notify_waiters();
    }

    fn next_entry(&self) -> Next {
        let mut entries = lock(&self.entries);
        if entries.busy {
            return Next::Wait;
        }
        match entries.waiting.pop_front() {
            Some(entry) => {
                entries.busy = true;
                Next::Run(entry)
            }
            None if entries.ending => Next::End,
            None => Next::Wait,
        }
    }

    fn run_progress(&self) {
        enter_group_thread();
        loop {
            let seen = self.changes.load(Ordering::SeqCst);
            match self.next_entry() {
                Next::Run(QueueEntry::Operation(mut operation)) => {
                    let turn = Turn(self);
                    let result = self.call_communicator(|communicator| operation.run_with(communicator));
                    drop(turn);
                    call_guarded("the waker of a future, or the drop of a buffer,", || {
                        operation.deliver_result(result)
                    });
                }
                Next::Run(QueueEntry::Turn(promise)) => promise.fill_slot(Ok(())),
                Next::Wait => {
                    self.progress.wait_until(self.spin, None, || self.changes.load(Ordering::SeqCst) != seen);
                }
                Next::End => break,
            }
        }
        // Dropped without the lock: the drop can log, and a subscriber of the log is the program's code.
        let communicator = lock(&self.communicator).take();
        drop(communicator);
    }

    /// Calls the communicator, unless an operation before has failed. This thread has the turn.
    fn call_communicator<R>(
        &self,
        call: impl FnOnce(&mut fabric::Communicator) -> Result<R, fabric::Error>,
    ) -> Result<R, Error> {
        if let Some(error) = self.stop_error() {
            return Err(error);
        }
        let mut communicator = lock(&self.communicator);
        let Some(communicator) = communicator.as_mut() else {
            return Err(Error::Job("the group has ended".to_owned()));
        };
        communicator.set_timeout(self.operation_timeout());
        // Checked first: after a failure, the ranks' calls differ, and an error about that would hide the
        // failure's reason.
        let checked = || self.world.check().map_err(fabric::Error::World);
        let result = match catch_unwind(AssertUnwindSafe(|| checked().and_then(|()| call(communicator)))) {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error @ fabric::Error::Mismatch { .. })) => Error::from(error).in_job(&self.ranks),
            Ok(Err(error)) => error.into(),
            Err(_) => {
                self.world.fail("an operation of its group panicked".into());
                Error::Fabric(fabric::Error::Closed { operation: "an operation that panicked" })
            }
        };
        if !result.is_refusal() {
            lock(&self.entries).failure.get_or_insert_with(|| result.clone());
        }
        Err(result)
    }
}
