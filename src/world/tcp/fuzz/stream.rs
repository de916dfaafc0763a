//! A stream in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;

/// A stream in memory between an untrusted peer and rank 0.
#[derive(Default)]
pub(crate) struct PeerStream {
    pub(crate) incoming: VecDeque<u8>,
    /// The peer has closed its sending side.
    pub(crate) ended: bool,
    /// Writing to the peer fails.
    pub(crate) broken: bool,
    pub(crate) consumed: Vec<u8>,
    pub(crate) replied: Vec<u8>,
}

/// Rank 0's handle of a [`PeerStream`].
pub(crate) struct SharedStream(pub(crate) Rc<RefCell<PeerStream>>);

impl SharedStream {
    /// True if `poll` would report the stream readable.
    pub(crate) fn ready(&self) -> bool {
        let wire = self.0.borrow();
        !wire.incoming.is_empty() || wire.ended
    }
}

impl Read for SharedStream {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.0.borrow_mut();
        if wire.incoming.is_empty() {
            return if wire.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = wire.incoming.read(buffer)?;
        wire.consumed.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

impl Write for SharedStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.0.borrow_mut();
        if wire.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        wire.replied.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
