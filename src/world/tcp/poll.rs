//! Waiting for events on several connections.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

/// Safe wrapper of `poll(2)`.
#[derive(Default)]
pub(crate) struct Poll<'a> {
    entries: Vec<libc::pollfd>,
    /// Keeps the descriptors open.
    borrowed: std::marker::PhantomData<BorrowedFd<'a>>,
}

impl<'a> Poll<'a> {
    /// Adds a connection to wait until it is readable or, if `write` is set, writable. Returns its index.
    pub(crate) fn add_connection(&mut self, connection: &'a impl AsRawFd, write: bool) -> usize {
        let events = if write { libc::POLLIN | libc::POLLOUT } else { libc::POLLIN };
        self.entries.push(libc::pollfd { fd: connection.as_raw_fd(), events, revents: 0 });
        self.entries.len() - 1
    }

    /// Waits until a connection is ready or `timeout`, rounded up to milliseconds, has passed.
    ///
    /// # Errors
    /// If `poll` fails for lack of memory.
    pub(crate) fn wait_for_ready(&mut self, timeout: Duration) -> io::Result<()> {
        let milliseconds = timeout.as_micros().div_ceil(1000).min(i32::MAX as u128) as i32;
        // SAFETY: the entries are valid for reads and writes of their number, and every descriptor is open:
        // the connections are borrowed for the lifetime of `self`.
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

    /// True if a read from connection `index` returns bytes, end of file or an error.
    pub(crate) fn is_readable(&self, index: usize) -> bool {
        self.entries[index].revents & !libc::POLLOUT != 0
    }

    pub(crate) fn is_writable(&self, index: usize) -> bool {
        self.entries[index].revents & libc::POLLOUT != 0
    }
}
