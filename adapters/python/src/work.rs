//! Operations under way.

use std::future::Future;
use std::mem;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread, ThreadId};
use std::time::{Duration, Instant};

use collectives::Error;
use collectives::cudarc::driver::CudaStream;
use collectives::job;
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::device::Streams;
use crate::error::exception;
use crate::process::{Owned, SIGNALS};
use crate::tensor::Tensor;

/// Interval of a thread's checks for another waiter of the same operation.
const OTHER_WAITER: Duration = Duration::from_millis(1);

/// An operation of any buffers.
pub(crate) trait Operating: Send {
    fn is_done(&self) -> bool;
    /// Its result, or `None` after `limit`.
    fn wait_for(&mut self, limit: Duration) -> Option<Result<(), Error>>;
    fn wait_on(self: Box<Self>, stream: &CudaStream) -> Result<(), Error>;
}

pub(crate) type Running = Box<dyn Operating>;

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl<B: Send> Operating for job::Work<B> {
    fn is_done(&self) -> bool {
        self.is_done()
    }

    fn wait_for(&mut self, limit: Duration) -> Option<Result<(), Error>> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let end = Instant::now() + limit;
        loop {
            if let Poll::Ready(result) = Pin::new(&mut *self).poll(&mut Context::from_waker(&waker)) {
                return Some(result.map(drop));
            }
            let left = end.checked_duration_since(Instant::now())?;
            thread::park_timeout(left);
        }
    }

    fn wait_on(self: Box<Self>, stream: &CudaStream) -> Result<(), Error> {
        (*self).wait_on(stream).map(drop)
    }
}

/// A running operation with its tensors.
pub(crate) struct Pending {
    running: Option<Running>,
    tensors: Vec<Tensor>,
    /// For tensors of a device.
    streams: Option<Streams>,
}

/// Operations whose [`Work`] was dropped before their end: their tensors must stay until then.
static ABANDONED: Mutex<Vec<Pending>> = Mutex::new(Vec::new());

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pending {
    pub(crate) fn new(running: Running, tensors: Vec<Tensor>, streams: Option<Streams>) -> Self {
        let mut abandoned = lock(&ABANDONED);
        let done = abandoned.extract_if(.., |pending| pending.is_done()).collect::<Vec<_>>();
        drop(abandoned);
        // Their tensors are released without the lock, since that may run code of Python.
        drop(done);
        Self { running: Some(running), tensors, streams }
    }

    fn is_done(&self) -> bool {
        self.running.as_ref().is_none_or(|running| running.is_done())
    }

    /// Waits for the end of the operation: the host does, or with `block = false` and for tensors of a device
    /// their stream alone. Without the GIL. On an error of Python (Ctrl-C), the operation continues.
    pub(crate) fn wait(&mut self, py: Python<'_>, block: bool) -> PyResult<()> {
        if let Some(streams) = self.streams.as_ref().filter(|_| !block) {
            // The operation continues.
            py.detach(|| streams.refuse_captured()).map_err(|error| exception(py, error))?;
            let Some(running) = self.running.take() else { return Ok(()) };
            let result = py.detach(|| running.wait_on(&streams.framework));
            return self.end(py, result);
        }
        while let Some(running) = &mut self.running {
            if let Some(result) = py.detach(|| running.wait_for(SIGNALS)) {
                self.running = None;
                return self.end(py, result);
            }
            py.check_signals()?;
        }
        Ok(())
    }

    fn end(&mut self, py: Python<'_>, result: Result<(), Error>) -> PyResult<()> {
        result.map_err(|error| {
            py.detach(|| self.release());
            exception(py, error)
        })
    }

    /// Releases the tensors after a failure.
    fn release(&mut self) {
        if let Some(streams) = &self.streams {
            streams.release(mem::take(&mut self.tensors));
        }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        let Some(running) = &mut self.running else { return };
        match running.wait_for(Duration::ZERO) {
            Some(Ok(())) => return,
            Some(Err(_)) => return self.release(),
            None => {}
        }
        let left = Self {
            running: self.running.take(),
            tensors: mem::take(&mut self.tensors),
            streams: self.streams.take(),
        };
        lock(&ABANDONED).push(left);
    }
}

enum State {
    Pending(Pending),
    /// This thread waits for it.
    Waited(ThreadId),
    Done,
}

/// An operation under way, from an operation with `async_op=True`.
#[pyclass(frozen, module = "nccl_collectives")]
pub(crate) struct Work(Owned<Mutex<State>>);

impl Work {
    pub(crate) fn new(pending: Pending) -> Self {
        Self(Owned::new(Mutex::new(State::Pending(pending))))
    }

    /// Takes the operation, for the thread that waits for it; `None` once it is done.
    fn take(&self, py: Python<'_>) -> PyResult<Option<Pending>> {
        let own = self.0.get()?;
        loop {
            let state = mem::replace(&mut *lock(own), State::Waited(thread::current().id()));
            match state {
                State::Pending(pending) => return Ok(Some(pending)),
                State::Done => {
                    *lock(own) = State::Done;
                    return Ok(None);
                }
                State::Waited(waiter) => {
                    *lock(own) = State::Waited(waiter);
                    if waiter == thread::current().id() {
                        let reason = "this thread waits for the operation already: a signal handler cannot";
                        return Err(PyRuntimeError::new_err(reason));
                    }
                    py.detach(|| thread::sleep(OTHER_WAITER));
                }
            }
            py.check_signals()?;
        }
    }
}

#[pymethods]
impl Work {
    /// Waits until the tensors can be used again, and raises the error of the operation. For tensors of a
    /// GPU, the current stream of the operation's call waits, and the host does not, unless `block` is true;
    /// the group's timeout and failures of other ranks are noticed by waits of the host. A second call
    /// returns at once.
    #[pyo3(signature = (block = false))]
    fn wait(&self, py: Python<'_>, block: bool) -> PyResult<()> {
        let Some(mut pending) = self.take(py)? else { return Ok(()) };
        let result = pending.wait(py, block);
        let interrupted = pending.running.is_some();
        *lock(self.0.get()?) = if interrupted { State::Pending(pending) } else { State::Done };
        result
    }

    /// True once the operation has ended, or has failed.
    fn is_done(&self) -> PyResult<bool> {
        Ok(match &*lock(self.0.get()?) {
            State::Pending(pending) => pending.is_done(),
            State::Waited(_) => false,
            State::Done => true,
        })
    }

    fn __repr__(&self) -> PyResult<String> {
        Ok(format!("<nccl_collectives.Work done={}>", if self.is_done()? { "True" } else { "False" }))
    }
}
