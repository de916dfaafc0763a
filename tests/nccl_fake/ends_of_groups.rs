//! The drop of a group's last handle while an operation is under way.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::{Arc, Barrier, Mutex, mpsc};
use std::task::{Context, Wake};
use std::thread;
use std::time::{Duration, Instant};

use collectives::Error;
use collectives::ReduceOp::Sum;
use collectives::job::{Group, Job};
use collectives::world::{self, Position, World};
use cudarc::driver::CudaContext;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::REMOTE_ERROR;
use crate::fake::{Fake, Knob, aborts};
use crate::jobs::with_groups;
use crate::subscriber::EventSubscriber;

#[test]
fn an_operation_that_nccl_fails_is_an_error() {
    let fake = Fake::new();
    let results = with_groups(&fake, 1, |group| {
        fake.set(Knob::Hang, 1);
        let data = group.stream().unwrap().alloc_zeros::<f32>(5).unwrap();
        let work = group.all_reduce(data, Sum);
        fake.set(Knob::AsyncResult, REMOTE_ERROR);
        drop(group);
        fake.set(Knob::AsyncResult, 0);
        work.wait().map(drop)
    });
    assert!(matches!(results[..], [Err(Error::Nccl(_))]), "{results:?}");
}

#[test]
fn an_operation_before_a_capture_is_waited_for() {
    let fake = Fake::new();
    let ending = Barrier::new(2);
    let results = with_groups(&fake, 2, |group| {
        let (rank, stream) = (group.rank(), group.stream().unwrap().clone());
        let data = stream.clone_htod(&[1.0_f32; 5]).unwrap();
        if rank == 1 {
            ending.wait();
        }
        let work = group.all_reduce(data, Sum);
        if rank == 0 {
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
            ending.wait();
            drop(group);
            stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        }
        let data = work.wait()?;
        let values = stream.clone_dtoh(&data).unwrap();
        stream.synchronize().unwrap();
        Ok::<_, Error>(values)
    });
    assert_eq!(results.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), [[2.0; 5], [2.0; 5]]);
}

/// A world over which failures of other ranks take 50 ms.
struct Late {
    inner: world::Handle,
    seen: Mutex<Option<Instant>>,
}

impl World for Late {
    fn position(&self) -> Position {
        self.inner.position()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.inner.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        self.inner.all_gather(mine)
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.inner)
    }

    fn check(&self) -> Result<(), world::Error> {
        let error = match self.inner.check() {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let seen = *self.seen.lock().unwrap().get_or_insert_with(Instant::now);
        if seen.elapsed() < Duration::from_millis(50) { Ok(()) } else { Err(error) }
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.inner.abort(code, message)
    }
}

/// Rank 0 fails, or panics, and ends its group in a capture or outside of one, while it and rank 1 wait for
/// rank 2.
#[test]
fn other_ranks_learn_of_a_failure_before_the_end_of_the_group_aborts() {
    for (is_captured, panics) in [(false, false), (false, true), (true, false), (true, true)] {
        let fake = Fake::new();
        let jobs = Job::new(world::single()).threads(3).unwrap();
        let library = fake.library();
        fake.set(Knob::MovesData, aborts::MISLEAD);
        let (called, ended) = (Barrier::new(2), Barrier::new(2));
        let run = |job: Job| {
            let rank = job.rank();
            let late = Late { inner: Arc::clone(job.world()), seen: Mutex::default() };
            let job = if rank == 1 { Job::new(Arc::new(late)) } else { job };
            let group = job.group_on_gpu(library, &CudaContext::new(job.local_rank()).unwrap()).unwrap();
            let stream = Arc::clone(group.stream().unwrap());
            if rank == 2 {
                ended.wait();
                return;
            }
            let work = group.all_reduce(stream.clone_htod(&[1.0_f32; 5]).unwrap(), Sum);
            called.wait();
            if rank == 1 {
                let result = work.wait().map(drop);
                ended.wait();
                assert!(result.is_err(), "{is_captured} {panics}");
                return;
            }
            if is_captured {
                stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
            }
            if panics {
                let ended = AssertUnwindSafe(move || {
                    let _group = group;
                    panic!("on purpose");
                });
                catch_unwind(ended).unwrap_err();
            } else {
                job.fail("a reason");
                while group.check().is_ok() {
                    thread::yield_now();
                }
                drop(group);
            }
            if is_captured {
                drop(stream.end_capture(CUgraphInstantiate_flags(0)));
            }
        };
        let run = &run;
        thread::scope(|scope| jobs.into_iter().for_each(|job| drop(scope.spawn(move || run(job)))));
    }
}

/// Drops a group when it is woken, and reports when that has returned.
struct DropGroup(Mutex<Option<Group>>, mpsc::Sender<()>);

impl Wake for DropGroup {
    fn wake(self: Arc<Self>) {
        drop(self.0.lock().unwrap().take());
        self.1.send(()).unwrap();
    }
}

/// Rank 1 calls the second operation once the waker of rank 0's first one has returned.
#[test]
fn a_waker_that_drops_the_last_handle_does_not_wait_for_later_operations() {
    let fake = Fake::new();
    let polled = Barrier::new(2);
    let (sender, returned) = mpsc::channel();
    let (sender, returned) = (Mutex::new(Some(sender)), Mutex::new(returned));
    let results = with_groups(&fake, 2, |group| {
        let memory = || group.stream().unwrap().alloc_zeros::<f32>(5).unwrap();
        if group.rank() == 1 {
            polled.wait();
            group.all_reduce(memory(), Sum).wait().unwrap();
            let in_time = returned.lock().unwrap().recv_timeout(Duration::from_secs(60)).is_ok();
            group.all_reduce(memory(), Sum).wait().unwrap();
            return in_time;
        }
        let (first, second) = (group.all_reduce(memory(), Sum), group.all_reduce(memory(), Sum));
        let sender = sender.lock().unwrap().take().unwrap();
        let waker = Arc::new(DropGroup(Mutex::new(Some(group)), sender)).into();
        let mut first = pin!(first);
        assert!(first.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        polled.wait();
        second.wait().unwrap();
        true
    });
    assert_eq!(results, [true, true], "the waker waits for the second operation");
}

/// The last group of the process, for a subscriber of the log.
static LAST: Mutex<Option<Group>> = Mutex::new(None);

/// The thread that closes a group logs that it was aborted; the subscriber drops the last group there.
#[test]
fn a_subscriber_can_drop_the_last_group_on_a_closing_thread() {
    let fake = Fake::new();
    let group = || {
        let context = CudaContext::new(0).unwrap();
        Job::new(world::single()).group_on_gpu(fake.library(), &context).unwrap()
    };
    let (first, last) = (group(), group());
    *LAST.lock().unwrap() = Some(last);
    let (sender, dropped) = mpsc::channel();
    // The closing thread has no subscriber of its own.
    tracing::subscriber::set_global_default(EventSubscriber(move || {
        // Events of other tests' threads do not count.
        if thread::current().name() != Some("collectives") {
            return;
        }
        let Some(last) = LAST.lock().unwrap().take() else { return };
        let result = catch_unwind(AssertUnwindSafe(|| drop(last)));
        sender.send(result.map_err(|_| "it panicked")).unwrap();
    }))
    .unwrap();
    let stream = first.stream().unwrap().clone();
    stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
    drop(first);
    let result = dropped.recv_timeout(Duration::from_secs(60)).expect("no warning of the closing thread");
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    assert_eq!(result, Ok(()));
}
