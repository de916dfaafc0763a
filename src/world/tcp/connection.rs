//! Connections to other ranks.

use crate::lock::lock;
use std::collections::VecDeque;
use std::io::{self, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Maximum number of bytes read from or written to one connection before the others are served.
pub(crate) const MAX_BYTES_PER_TURN: usize = 1 << 20;

/// A connection to another rank. Sending never blocks: bytes refused by the socket are queued.
pub(crate) struct FrameConnection {
    pub(crate) stream: TcpStream,
    queue: Mutex<Queue>,
    open: AtomicBool,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<Arc<[u8]>>,
    /// Number of sent bytes of the first frame.
    sent: usize,
}

impl FrameConnection {
    pub(crate) fn new(stream: TcpStream) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        Ok(Self { stream, queue: Mutex::default(), open: AtomicBool::new(true) })
    }

    /// Sends or queues a frame. Returns `false` if bytes are queued; [`FrameConnection::flush_queue`] sends
    /// them once the connection is writable.
    pub(crate) fn send_frame(&self, bytes: &Arc<[u8]>) -> bool {
        if !self.is_open() {
            return true;
        }
        let mut queue = lock(&self.queue);
        queue.frames.push_back(Arc::clone(bytes));
        self.drain_queue(&mut queue)
    }

    /// Sends queued bytes without blocking. Returns `true` if none are left.
    pub(crate) fn flush_queue(&self) -> bool {
        self.drain_queue(&mut lock(&self.queue))
    }

    /// Number of queued frames, and of sent bytes of the first one. Changes with every byte sent.
    pub(crate) fn queue_backlog(&self) -> (usize, usize) {
        let queue = lock(&self.queue);
        (queue.frames.len(), queue.sent)
    }

    fn drain_queue(&self, queue: &mut Queue) -> bool {
        let mut total = 0;
        while let Some(first) = queue.frames.front() {
            if total >= MAX_BYTES_PER_TURN {
                return false;
            }
            let end = first.len().min(queue.sent + MAX_BYTES_PER_TURN);
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
                    // Reading reports the error.
                    queue.frames.clear();
                    queue.sent = 0;
                }
            }
        }
        true
    }

    pub(crate) fn is_idle(&self) -> bool {
        lock(&self.queue).frames.is_empty()
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    pub(crate) fn close_stream(&self) {
        self.open.store(false, Ordering::SeqCst);
        // Fails if the peer has closed the connection already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}
