//! A thread that ends with its owner.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::supervision::start_thread;

/// A thread with an owner: dropping this value asks the thread to end, and joins it.
#[derive(Debug)]
pub(super) struct Worker {
    owner: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The thread's view of its [`Worker`].
pub(super) struct WorkerOwner(Receiver<()>);

impl Worker {
    pub(super) fn start(name: &str, body: impl FnOnce(&WorkerOwner) + Send + 'static) -> io::Result<Self> {
        let (owner, receiver) = mpsc::channel();
        let thread = start_thread(name, move || body(&WorkerOwner(receiver)))?;
        Ok(Self { owner: Some(owner), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.owner.take());
        if let Some(thread) = self.thread.take() {
            // A panic of the thread only ends its work.
            let _ = thread.join();
        }
    }
}

impl WorkerOwner {
    /// Waits for the drop of the [`Worker`], at most for `time`. Returns true after the drop.
    pub(super) fn dropped_within(&self, time: Duration) -> bool {
        self.0.recv_timeout(time) != Err(RecvTimeoutError::Timeout)
    }
}
