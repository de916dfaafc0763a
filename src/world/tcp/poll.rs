//! Waiting until one of several connections has something to do.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// What to wait for, and afterwards what has happened, for each of several connections in order.
#[derive(Default)]
pub(crate) struct Poll<'a> {
    entries: Vec<libc::pollfd>,
    /// Keeps the descriptors open while they are waited for.
    borrowed: std::marker::PhantomData<BorrowedFd<'a>>,
}

impl<'a> Poll<'a> {
    /// Adds a connection to wait until it can be read, or also written; returns its number.
    pub(crate) fn add(&mut self, connection: &'a impl AsRawFd, write: bool) -> usize {
        let events = if write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        self.entries.push(libc::pollfd { fd: connection.as_raw_fd(), events, revents: 0 });
        self.entries.len() - 1
    }

    /// Waits until a connection is ready or the time is over, which is rounded up to milliseconds.
    ///
    /// # Errors
    /// When the system has no memory for it.
    pub(crate) fn wait(&mut self, timeout: Duration) -> io::Result<()> {
        let milliseconds = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        // SAFETY: the entries are valid for reads and writes of their number, and every descriptor is open: the
        // connections are borrowed for the lifetime of `self`.
        let count = unsafe {
            libc::poll(self.entries.as_mut_ptr(), self.entries.len() as libc::nfds_t, milliseconds)
        };
        if count >= 0 {
            return Ok(());
        }
        for entry in &mut self.entries {
            entry.revents = 0;
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::Interrupted { Ok(()) } else { Err(error) }
    }

    /// Whether reading from connection `number` would give bytes, an end or an error.
    pub(crate) fn readable(&self, number: usize) -> bool {
        self.entries[number].revents & !libc::POLLOUT != 0
    }

    /// Whether connection `number` takes bytes.
    pub(crate) fn writable(&self, number: usize) -> bool {
        self.entries[number].revents & libc::POLLOUT != 0
    }
}
