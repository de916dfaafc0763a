//! Worlds of the program that look at the group when the group calls them.

use std::mem;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use collectives::ReduceOp::Sum;
use collectives::job::{Group, Job, Work};
use collectives::world::{Error, Position, Reason, World};
use cudarc::driver::{CudaContext, CudaSlice};

use crate::fake::{Fake, Knob};

/// Time limit of calls that take milliseconds.
const LIMIT: Duration = Duration::from_secs(20);

/// The part of a group that a world looks at.
#[derive(Default)]
struct Status {
    operation: Option<Work<CudaSlice<f32>>>,
    group: Option<Group>,
}

/// A world of one rank that shows a status.
#[derive(Default)]
struct Showing {
    status: Mutex<Status>,
    failed: AtomicBool,
    /// True if the world looks before it notes the failure.
    looks_first: bool,
    /// True once the thread that notices failures has looked.
    looked: AtomicBool,
    /// Failures that the group has reported.
    reasons: Mutex<Vec<String>>,
}

impl Showing {
    /// Looks at the status, not under its lock. Returns false if there is none.
    fn look(&self) -> bool {
        let status = mem::take(&mut *self.status.lock().unwrap());
        let Status { operation: Some(operation), group: Some(group) } = &status else { return false };
        _ = (operation.is_done(), format!("{operation:?}"), group.check());
        *self.status.lock().unwrap() = status;
        true
    }
}

impl World for Showing {
    fn position(&self) -> Position {
        Position { rank: 0, size: 1, local_rank: 0, local_size: 1 }
    }

    fn describe(&self) -> String {
        "a test".to_owned()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.check()
    }

    /// Once there is a status, returns when the thread that notices failures has looked at it.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (shows, start) = (self.status.lock().unwrap().group.is_some(), Instant::now());
        while shows && !self.looked.load(Ordering::SeqCst) && start.elapsed() < LIMIT {
            thread::yield_now();
        }
        self.check().map(|()| vec![mine.to_vec()])
    }

    fn check(&self) -> Result<(), Error> {
        match self.failed.load(Ordering::SeqCst) {
            false => Ok(()),
            true => {
                Err(Error::RankFailed { rank: 0, host: "here".into(), reason: Reason::from("it failed") })
            }
        }
    }

    fn fail(&self, reason: Reason) {
        self.reasons.lock().unwrap().push(reason.to_string());
        if self.looks_first {
            self.look();
        }
        self.failed.store(true, Ordering::SeqCst);
        self.look();
    }

    fn wants_calls(&self) -> bool {
        if self.look() {
            self.looked.store(true, Ordering::SeqCst);
        }
        false
    }

    fn abort(&self, code: i32, _: &str) -> ! {
        std::process::exit(code)
    }
}

/// Runs `call` with a group of this world, on a thread that may hang.
fn with_group(world: Showing, call: impl FnOnce(&Fake, &Showing, &Group) + Send + 'static) {
    let (ended, end) = mpsc::channel();
    // Not joined: if it hangs, it keeps the fake's lock.
    thread::spawn(move || {
        let (fake, world) = (Fake::new(), Arc::new(world));
        let context = CudaContext::new(0).unwrap();
        let group = Job::new(Arc::clone(&world) as _).group_on_gpu(fake.library(), &context).unwrap();
        let buffer = group.stream().unwrap().clone_htod(&[1.0_f32; 8]).unwrap();
        let operation = Some(group.all_reduce(buffer, Sum));
        *world.status.lock().unwrap() = Status { operation, group: Some(group.clone()) };
        call(&fake, &world, &group);
        // The group owns the world, of which another thread may have the status.
        while world.status.lock().unwrap().group.is_none() {
            thread::yield_now();
        }
        let status = mem::take(&mut *world.status.lock().unwrap());
        drop(status);
        drop(group);
        ended.send(()).unwrap();
    });
    assert_eq!(end.recv_timeout(LIMIT * 2), Ok(()));
}

fn fail_barrier(world: Showing) {
    with_group(world, |fake, world, group| {
        // The event of the barrier cannot be recorded.
        fake.set(Knob::EventsFail, 0xff);
        let error = group.barrier().unwrap_err();
        fake.set(Knob::EventsFail, 0);
        assert!(matches!(error, collectives::Error::Cuda(_)), "{error}");
        assert_eq!(*world.reasons.lock().unwrap(), [format!("failed: {error}")]);
        assert_eq!(group.check().unwrap_err().to_string(), error.to_string());
    });
}

#[test]
fn a_world_that_is_told_of_a_failure_can_look_at_the_group() {
    fail_barrier(Showing::default());
}

#[test]
fn a_world_can_look_at_the_group_before_it_notes_a_failure() {
    fail_barrier(Showing { looks_first: true, ..Showing::default() });
}

#[test]
fn a_world_that_is_asked_for_calls_can_look_at_the_group() {
    with_group(Showing::default(), |_, world, group| {
        assert_eq!(group.all_gather_bytes(b"a message").unwrap(), [b"a message"]);
        assert!(world.looked.load(Ordering::SeqCst));
    });
}
