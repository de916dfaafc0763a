//! Connections to other ranks.

use crate::world::sync::lock;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// How much is read from or written to one connection before the others have their turn, in bytes.
pub(crate) const MOST_AT_ONCE: usize = 1 << 20;

/// A connection to another rank. Sending never blocks: what does not fit waits in a queue.
pub(crate) struct Connection {
    pub(crate) stream: TcpStream,
    queue: Mutex<Queue>,
    open: AtomicBool,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Arc<[u8]>>,
    /// How much of the first has been sent.
    sent: usize,
}

impl Connection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, queue: Mutex::default(), open: AtomicBool::new(true) })
    }

    /// Sends, or queues what cannot be sent now: then the answer is `false`, and [`Connection::flush`] is due when
    /// the connection can be written.
    pub(crate) fn send(&self, bytes: &Arc<[u8]>) -> bool {
        if !self.open.load(Ordering::SeqCst) {
            return true;
        }
        let mut queue = lock(&self.queue);
        queue.frames.push_back(Arc::clone(bytes));
        self.drain(&mut queue)
    }

    /// Sends what is queued, as far as possible; whether nothing is left.
    pub(crate) fn flush(&self) -> bool {
        self.drain(&mut lock(&self.queue))
    }

    /// How much is queued, in frames and bytes of the first that have been sent: changes when something is sent.
    pub(crate) fn backlog(&self) -> (usize, usize) {
        let queue = lock(&self.queue);
        (queue.frames.len(), queue.sent)
    }

    fn drain(&self, queue: &mut Queue) -> bool {
        let mut total = 0;
        while let Some(first) = queue.frames.front() {
            if total >= MOST_AT_ONCE {
                return false;
            }
            let end = first.len().min(queue.sent + MOST_AT_ONCE);
            match (&self.stream).write(&first[queue.sent..end]) {
                Ok(count) => {
                    total += count;
                    queue.sent += count;
                    if queue.sent == first.len() {
                        queue.frames.pop_front();
                        queue.sent = 0;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return false,
                Err(_) => {
                    // Reading will tell what has happened to the other side.
                    queue.frames.clear();
                    queue.sent = 0;
                }
            }
        }
        true
    }

    pub(crate) fn idle(&self) -> bool {
        lock(&self.queue).frames.is_empty()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    pub(crate) fn close(&self) {
        self.open.store(false, Ordering::SeqCst);
        // Fails when the other side has gone already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
