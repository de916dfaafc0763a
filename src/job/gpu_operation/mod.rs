//! Operations under way on a group's stream, and the threads that watch them.

mod steps;
mod watch;

use std::sync::Arc;
use std::sync::Mutex;
use std::task::{Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::CudaStream;

pub(crate) use steps::{Comparison, FirstCall, SpareMemory};
pub(crate) use watch::{GroupWatch, Watched};

use super::held::HeldBuffers;
use super::under_way::UnderWay;
use super::work_error::FailedWork;
use crate::Error;
use crate::lock::lock;
use crate::nccl;
use crate::nccl::cuda::{self, Event};

/// Times after which a wait yields, and after which it sleeps.
const SPIN: Duration = Duration::from_micros(50);
const YIELD: Duration = Duration::from_millis(1);
/// Polling interval of a wait that sleeps.
const SLEEP: Duration = Duration::from_micros(100);

/// Refuses a stream that is being captured.
pub(crate) fn refuse_captured(operation: &'static str, stream: &CudaStream) -> Result<(), Error> {
    // A default stream is that of the current context.
    let checked =
        cuda::bind_context(stream.context()).and_then(|()| cuda::refuse_captured(operation, stream));
    checked.map_err(|error| match error {
        nccl::Error::Stream { .. } => Error::Buffer(format!(
            "{operation}: the stream is being captured for a CUDA graph: end the capture first"
        )),
        other => of_driver(other),
    })
}

/// The error of a call of the CUDA driver.
pub(crate) fn of_driver(error: nccl::Error) -> Error {
    match error {
        nccl::Error::Cuda { error, .. } => error.into(),
        other => other.into(),
    }
}

/// The end of an operation on the group's stream.
pub(crate) struct Mark {
    event: Event,
    waker: Mutex<Option<Waker>>,
    /// Comparison of the ranks' steps; only for the first operation of a step.
    comparison: Option<Comparison>,
}

impl Mark {
    /// Records the work that is queued on the stream.
    pub(crate) fn record_work(
        stream: &CudaStream,
        comparison: Option<Comparison>,
    ) -> Result<Arc<Self>, Error> {
        let recorded =
            Event::new(stream.context()).and_then(|event| event.record_stream(stream).map(|()| event));
        let (event, waker) = (recorded.map_err(of_driver)?, Mutex::new(None));
        Ok(Arc::new(Self { event, waker, comparison }))
    }

    fn is_complete(&self) -> Result<bool, Error> {
        self.event.is_complete().map_err(of_driver)
    }
}

/// An operation under way, and its buffers.
pub(crate) struct GpuOperation<B> {
    buffers: HeldBuffers<B>,
    mark: Arc<Mark>,
    watch: Arc<GroupWatch>,
}

impl<B> GpuOperation<B> {
    pub(crate) fn new(mark: Arc<Mark>, watch: Arc<GroupWatch>, buffers: HeldBuffers<B>) -> Self {
        Self { buffers, mark, watch }
    }

    /// The end of the operation; `None` while it is under way. After a failure the buffers have no defined
    /// contents, even if the operation has ended since.
    fn poll_end(&self) -> Option<Result<(), Error>> {
        let complete = self.watch.poll_mark(&self.mark);
        if let Some(error) = self.watch.stop_error() {
            return Some(Err(error));
        }
        match complete {
            Ok(true) => Some(self.watch.check_job()),
            Ok(false) => None,
            Err(error) => Some(Err(self.watch.stop_with(error))),
        }
    }

    fn take_buffers(&mut self) -> Result<B, FailedWork<B>> {
        self.buffers.take().ok_or_else(|| Error::result_taken().into())
    }
}

impl<B> UnderWay<B> for GpuOperation<B> {
    fn is_done(&self) -> bool {
        self.poll_end().is_some()
    }

    fn wait_for_result(mut self) -> Result<B, FailedWork<B>> {
        self.watch.stop_on_error(cuda::bind_context(self.mark.event.context()))?;
        let start = Instant::now();
        let result = loop {
            if let Some(result) = self.poll_end() {
                break result;
            }
            match start.elapsed() {
                waited if waited < SPIN => std::hint::spin_loop(),
                waited if waited < YIELD => thread::yield_now(),
                _ => thread::sleep(SLEEP),
            }
        };
        result?;
        self.take_buffers()
    }

    /// Makes a stream wait for the operation, also after a failure, since the operation may still use memory
    /// that is freed in the order of this stream.
    fn wait_on(mut self, stream: &CudaStream) -> Result<B, FailedWork<B>> {
        match refuse_captured("wait_on", stream) {
            Err(error) if error.is_refusal() => return Err(error.into()),
            other => self.watch.stop_on_error(other)?,
        }
        self.watch.stop_on_error(self.mark.event.make_wait(stream).map_err(of_driver))?;
        match self.watch.stop_error() {
            Some(error) => Err(error.into()),
            None => self.take_buffers(),
        }
    }

    fn poll_result(&mut self, waker: &Waker) -> Poll<Result<B, FailedWork<B>>> {
        if let Err(error) = self.watch.stop_on_error(cuda::bind_context(self.mark.event.context())) {
            return Poll::Ready(Err(error.into()));
        }
        // Registered before the query, so that an end in between is not missed.
        let waker = waker.clone();
        let replaced = lock(&self.mark.waker).replace(waker);
        drop(replaced);
        match self.poll_end() {
            Some(result) => Poll::Ready(result.map_err(FailedWork::from).and_then(|()| self.take_buffers())),
            None => {
                self.watch.hurry_queries();
                Poll::Pending
            }
        }
    }
}
