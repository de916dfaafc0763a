//! Messages of threads about a communicator that a later line names.

use std::collections::BTreeMap;

use super::text;

/// Largest number of threads with such messages.
const THREADS: usize = 4096;
/// Largest number of messages of a thread.
const MESSAGES: usize = 64;

/// The messages, by the unique number of the thread.
#[derive(Debug, Default)]
pub(super) struct Deferred(BTreeMap<u64, Vec<Box<[u8]>>>);

impl Deferred {
    /// Keeps a message, unless there are too many.
    pub(super) fn keep_message(&mut self, thread: u64, message: &[u8]) {
        if message.len() > text::TEXT || self.0.len() >= THREADS && !self.0.contains_key(&thread) {
            return;
        }
        let messages = self.0.entry(thread).or_default();
        if messages.len() < MESSAGES {
            messages.push(message.into());
        }
    }

    /// Returns the messages of a thread, and forgets them.
    pub(super) fn take_messages(&mut self, thread: u64) -> Vec<Box<[u8]>> {
        if self.0.is_empty() { Vec::new() } else { self.0.remove(&thread).unwrap_or_default() }
    }

    /// Returns the threads with messages.
    pub(super) fn threads(&self) -> Vec<u64> {
        self.0.keys().copied().collect()
    }
}
