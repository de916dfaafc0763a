//! A result that one thread delivers and another waits for.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use std::thread::{self, ThreadId};

use super::guard::call_guarded;
use super::under_way::UnderWay;
use super::work_error::FailedWork;
use crate::Error;
use crate::lock::lock;
use crate::world::sync::SpinPark;

/// The place of a result.
pub(crate) struct ResultSlot<T> {
    content: Mutex<SlotContent<T>>,
    done: AtomicBool,
    waiter: SpinPark,
    /// True to spin at the beginning of a wait.
    spin: bool,
    /// The thread that delivers the result, which cannot wait for it.
    from: Option<ThreadId>,
}

struct SlotContent<T> {
    result: Option<Result<T, FailedWork<T>>>,
    waker: Option<Waker>,
}

impl<T> ResultSlot<T> {
    /// A slot and the promise to fill it, which the thread `from` does. Set `spin` if a core is free while a
    /// thread waits.
    pub(crate) fn new(spin: bool, from: Option<ThreadId>) -> (Arc<Self>, Promise<T>) {
        let content = Mutex::new(SlotContent { result: None, waker: None });
        let (done, waiter) = (AtomicBool::new(false), SpinPark::default());
        let slot = Arc::new(Self { content, done, waiter, spin, from });
        (Arc::clone(&slot), Promise(slot))
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::SeqCst)
    }

    fn fill_result(&self, result: Result<T, FailedWork<T>>) {
        let mut content = lock(&self.content);
        if self.is_done() {
            return;
        }
        content.result = Some(result);
        let waker = content.waker.take();
        self.done.store(true, Ordering::SeqCst);
        drop(content);
        self.waiter.notify_waiters();
        if let Some(waker) = waker {
            call_guarded("the waker of a future", || waker.wake());
        }
    }
}

impl<T> UnderWay<T> for Arc<ResultSlot<T>> {
    fn is_done(&self) -> bool {
        ResultSlot::is_done(self)
    }

    fn wait_for_result(self) -> Result<T, FailedWork<T>> {
        if !self.is_done() && self.from == Some(thread::current().id()) {
            return Err(waits_for_itself().into());
        }
        self.waiter.wait_until(self.spin, None, || self.is_done());
        let result = lock(&self.content).result.take();
        result.wait_for_result()
    }

    fn poll_result(&mut self, waker: &Waker) -> Poll<Result<T, FailedWork<T>>> {
        // Cloning and dropping a waker run code of the program, which must not happen under the lock.
        let waker = waker.clone();
        let mut content = lock(&self.content);
        if self.is_done() {
            let result = content.result.take();
            return Poll::Ready(result.wait_for_result());
        }
        let replaced = content.waker.replace(waker);
        drop(content);
        drop(replaced);
        Poll::Pending
    }
}

/// The error of a wait on the thread whose progress it stops.
pub(crate) fn waits_for_itself() -> Error {
    Error::Job(
        "a waker of a future, or the drop of a buffer, cannot wait for an operation of the group, because \
         it blocks the group's progress"
            .to_owned(),
    )
}

/// The duty to fill a slot. Dropping it fills the slot with an error.
pub(crate) struct Promise<T>(Arc<ResultSlot<T>>);

impl<T> Promise<T> {
    pub(crate) fn fill_slot(self, result: Result<T, FailedWork<T>>) {
        self.0.fill_result(result);
    }
}

impl<T> Drop for Promise<T> {
    fn drop(&mut self) {
        if !self.0.is_done() {
            let error = Error::Job("the group ended before this operation began".to_owned());
            self.0.fill_result(Err(error.into()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::{RawWaker, RawWakerVTable};
    use std::thread;

    #[test]
    fn a_result_is_delivered_once_to_a_waiting_thread() {
        let (mut slot, promise) = ResultSlot::new(false, None);
        let waiting = thread::spawn({
            let slot = Arc::clone(&slot);
            move || slot.wait_for_result().map_err(Error::from)
        });
        assert!(!slot.is_done());
        promise.fill_slot(Ok(5));
        assert_eq!(waiting.join().unwrap().unwrap(), 5);
        assert!(slot.is_done());
        assert!(matches!(slot.poll_result(Waker::noop()), Poll::Ready(Err(_))));
    }

    #[test]
    fn a_promise_that_is_not_kept_is_an_error() {
        let (slot, promise) = ResultSlot::<u8>::new(false, None);
        drop(promise);
        assert!(matches!(slot.wait_for_result().map_err(Error::from), Err(Error::Job(_))));
    }

    #[test]
    fn a_waker_that_panics_harms_nothing() {
        const TABLE: RawWakerVTable = RawWakerVTable::new(
            |_| RawWaker::new(std::ptr::null(), &TABLE),
            |_| panic!("this waker panics"),
            |_| {},
            |_| {},
        );
        // SAFETY: the functions do not use the pointer.
        let waker = unsafe { Waker::from_raw(RawWaker::new(std::ptr::null(), &TABLE)) };
        let (mut slot, promise) = ResultSlot::new(false, None);
        assert!(slot.poll_result(&waker).is_pending());
        promise.fill_slot(Ok(7));
        assert_eq!(slot.wait_for_result().map_err(Error::from).unwrap(), 7);
    }
}
