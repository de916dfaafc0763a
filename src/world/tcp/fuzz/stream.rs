//! A connection in memory.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::rc::Rc;

/// A connection in memory: what the other side has said, and what it is told.
#[derive(Default)]
pub(crate) struct Wire {
    pub(crate) incoming: VecDeque<u8>,
    /// The other side says nothing more.
    pub(crate) ended: bool,
    /// The other side takes nothing.
    pub(crate) broken: bool,
    pub(crate) taken: Vec<u8>,
    pub(crate) answered: Vec<u8>,
}

/// Rank 0's end of it.
pub(crate) struct End(pub(crate) Rc<RefCell<Wire>>);

impl End {
    /// Whether the system would wake rank 0 for it.
    pub(crate) fn ready(&self) -> bool {
        let wire = self.0.borrow();
        !wire.incoming.is_empty() || wire.ended
    }
}

impl Read for End {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.0.borrow_mut();
        if wire.incoming.is_empty() {
            return if wire.ended { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = wire.incoming.read(buffer)?;
        wire.taken.extend_from_slice(&buffer[..count]);
        Ok(count)
    }
}

impl Write for End {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut wire = self.0.borrow_mut();
        if wire.broken {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        wire.answered.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
