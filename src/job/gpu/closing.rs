//! Threads that destroy the communicators of groups.
//!
//! NCCL frees the objects of all ranks of a process when the last of these ranks destroys its communicator
//! (`ncclCommDestroy`). The CUDA calls for the device of another rank wait while a thread of that rank copies
//! pageable memory, and the copy can wait for an operation of another group, which the destroying rank is
//! still to call. So a rank does not wait until its communicator is destroyed: a thread does, and is joined
//! when the process has no group any more.

use std::mem;
use std::sync::Mutex;
use std::thread::{self, JoinHandle};

use crate::job::guard::{enter_group_thread, is_group_thread};
use crate::lock::lock;
use crate::log;
use crate::nccl::{self, Communicator};

static CLOSINGS: Mutex<Closings> = Mutex::new(Closings { groups: 0, threads: Vec::new() });

struct Closings {
    /// Number of groups of the process that have not ended, counting each rank's.
    groups: usize,
    threads: Vec<JoinHandle<()>>,
}

/// Counts an open group of this process. Dropping the last one waits until all communicators are destroyed.
pub(super) struct OpenGroup(());

impl OpenGroup {
    pub(super) fn new() -> Self {
        lock(&CLOSINGS).groups += 1;
        Self(())
    }
}

impl Drop for OpenGroup {
    fn drop(&mut self) {
        let mut closings = lock(&CLOSINGS);
        closings.groups -= 1;
        // A thread of a group may be what a communicator waits for.
        if closings.groups > 0 || is_group_thread() {
            return;
        }
        let threads = mem::take(&mut closings.threads);
        drop(closings);
        for thread in threads {
            if thread.join().is_err() {
                log::warn(format_args!("a thread that closes a group has panicked"));
            }
        }
    }
}

/// Destroys a communicator on a thread of its own, after `settle` there, which waits for its work.
pub(super) fn close_in_background(
    communicator: Communicator,
    settle: impl FnOnce(&Communicator) + Send + 'static,
) {
    let close = move || {
        // A subscriber of the log can drop the last group here, which must not wait for this thread.
        enter_group_thread();
        settle(&communicator);
        match communicator.close() {
            Ok(()) | Err(nccl::Error::Aborted { .. }) => {}
            Err(error) => log::warn(format_args!("closing a group: {error}")),
        }
    };
    // If there is no thread, the communicator is dropped here, which closes it.
    match thread::Builder::new().name("collectives".to_owned()).spawn(close) {
        Ok(thread) => {
            let mut closings = lock(&CLOSINGS);
            closings.threads.retain(|thread| !thread.is_finished());
            closings.threads.push(thread);
        }
        Err(error) => log::warn(format_args!("a group is closed without a thread: {error}")),
    }
}
