//! Calls that Ctrl-C can interrupt, and objects that a forked process must leave alone.

use std::process;
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use collectives::Error;
use pyo3::prelude::*;

use crate::error::{CollectiveError, exception};

/// A waiting thread looks for signals (Ctrl-C) at this interval.
pub(crate) const SIGNALS: Duration = Duration::from_millis(100);

/// An object of the process that made it. A forked process has its memory, but not its threads, and shares
/// its sockets: there it is neither used nor dropped.
pub(crate) struct Owned<T: Send + Sync> {
    // `None` once it is being dropped.
    value: Option<Arc<T>>,
    process: u32,
}

impl<T: Send + Sync> Owned<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Some(Arc::new(value)), process: process::id() }
    }

    /// The object.
    ///
    /// # Errors
    /// In a forked process.
    pub(crate) fn get(&self) -> PyResult<&Arc<T>> {
        match &self.value {
            Some(value) if self.process == process::id() => Ok(value),
            _ => Err(CollectiveError::new_err(format!(
                "this object belongs to process {}, and process {} was forked from it: use the object in \
                 the first process only, or start the processes with multiprocessing's method \"spawn\" and \
                 call init() in each",
                self.process,
                process::id()
            ))),
        }
    }
}

impl<T: Send + Sync> Drop for Owned<T> {
    fn drop(&mut self) {
        let Some(value) = self.value.take() else { return };
        if self.process == process::id() {
            // The last one waits for operations under way, while other threads use Python, unless it is
            // ending.
            let mut value = Some(value);
            Python::try_attach(|py| py.detach(|| drop(value.take())));
        } else {
            std::mem::forget(value);
        }
    }
}

/// Calls a function on a thread of its own and without the GIL, and waits for its result. On an error of
/// Python (Ctrl-C), the function continues.
pub(crate) fn interruptible<T: Send + 'static>(
    py: Python<'_>,
    call: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> PyResult<T> {
    let (sender, mut receiver) = mpsc::sync_channel(1);
    // Nobody receives the result after an error of Python.
    thread::Builder::new().name("nccl_collectives".to_owned()).spawn(move || drop(sender.send(call())))?;
    loop {
        let result;
        (result, receiver) = py.detach(move || (receiver.recv_timeout(SIGNALS), receiver));
        match result {
            Ok(result) => return result.map_err(|error| exception(py, error)),
            Err(RecvTimeoutError::Timeout) => py.check_signals()?,
            Err(RecvTimeoutError::Disconnected) => {
                return Err(CollectiveError::new_err("the thread of the call has panicked"));
            }
        }
    }
}
