//! The worker of non-blocking communicators.

use std::ptr::null_mut;
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::sys::CUgraphInstantiate_flags;
use cudarc::driver::{CudaStream, result};
use nccl_sys::*;

use super::{Across, CAPTURE, LINE, OK, SUM, World};
use crate::fake::{Fake, Knob, worker};

const IN_PROGRESS: ncclResult_t = ncclResult_t::ncclInProgress;

impl<'a> World<'a> {
    /// Non-blocking, with a worker that is held.
    fn held(fake: &'a Fake) -> Self {
        let world = Self::new(fake, false);
        fake.set(Knob::Worker, worker::HELD);
        world
    }

    /// Writes eight bytes of the memory.
    fn set(&self, offset: usize, stream: &CudaStream) {
        // SAFETY: the memory has this number of bytes.
        unsafe { result::memset_d8_async(self.at(offset) as u64, 0, 8, stream.cu_stream()) }.unwrap();
    }

    /// Runs the worker's jobs, and returns their result.
    fn released(&self) -> ncclResult_t {
        self.fake.set(Knob::Worker, worker::RUNS);
        let start = Instant::now();
        loop {
            match self.async_error() {
                IN_PROGRESS => assert!(start.elapsed() < Duration::from_secs(30)),
                code => return code,
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn operations_are_launched_late() {
    let fake = Fake::new();
    let world = World::held(&fake);
    assert_eq!(world.all_reduce(SUM), IN_PROGRESS);
    assert_eq!(world.async_error(), IN_PROGRESS);
    world.logs(&[&format!("queue {LINE}")]);
    world.all_reduce(SUM);
    world.bug("on comm1 before the call before has completed");
    assert_eq!(world.released(), OK);
    world.logs(&[&format!("launch {LINE}")]);

    // Those of a group together.
    fake.set(Knob::Worker, worker::HELD);
    // SAFETY: our own library.
    unsafe { world.nccl.ncclGroupStart() };
    assert_eq!((world.all_reduce(SUM), world.all_reduce(SUM)), (OK, OK));
    world.logs(&[]);
    // SAFETY: our own library.
    assert_eq!(unsafe { world.nccl.ncclGroupEnd() }, IN_PROGRESS);
    assert_eq!(world.async_error(), IN_PROGRESS);
    assert_eq!(world.released(), OK);
    let (queue, launch) = (format!("queue {LINE}"), format!("launch {LINE}"));
    world.logs(&[&queue, &queue, &launch, &launch]);

    // If it is not held.
    assert_eq!(world.all_reduce(SUM), IN_PROGRESS);
    assert_eq!(world.released(), OK);
    world.logs(&[&launch]);

    // After two queries.
    fake.set(Knob::Worker, worker::HELD);
    fake.set(Knob::WorkerPolls, 2);
    world.all_reduce(SUM);
    assert_eq!(world.async_error(), IN_PROGRESS);
    world.logs(&[&queue]);
    world.async_error();
    assert_eq!(fake.until(&launch), [launch]);

    // A blocking communicator has none.
    fake.set(Knob::Worker, worker::HELD);
    let world = World::new(&fake, true);
    assert_eq!(world.all_reduce(SUM), OK);
    assert_eq!(fake.log().len(), 1);
}

#[test]
fn memory_is_not_freed_before_a_late_launch() {
    let fake = Fake::new();
    let world = World::held(&fake);
    world.all_reduce(SUM);
    world.stream.synchronize().unwrap();
    fake.log();
    // SAFETY: our own library.
    unsafe { world.nccl.ncclMemFree(world.memory) }.unwrap();
    world.bug("ncclMemFree m1 races for m1 with all_reduce comm1");
    world.released();
    world.bug(&format!("{LINE} uses m1 after it was freed"));
}

#[test]
fn memory_is_not_used_before_a_late_launch() {
    let fake = Fake::new();
    let world = World::held(&fake);
    let other = world.stream.context().new_stream().unwrap();
    world.all_reduce(SUM);
    world.set(0, &world.stream);
    world.bug(
        "set m1 on s1 races for m1 with all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0, which is \
         yet",
    );
    world.set(8, &world.stream);
    let early = world.stream.record_event(None).unwrap();
    other.wait(&early).unwrap();
    assert_eq!(world.released(), OK);
    fake.log();
    world.set(0, &other);
    world.bug("set m1 on s2 races for m1 with all_reduce");
}

/// Its completion time is unknown, so it must be ordered when it is called.
#[test]
fn a_late_launch_is_ordered_by_what_was_before_the_call() {
    let fake = Fake::new();
    let world = World::held(&fake);
    let other = world.stream.context().new_stream().unwrap();
    world.set(0, &other);
    world.all_reduce(SUM);
    world.bug("all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0 races for m1 with set m1 on s2");
    other.synchronize().unwrap();
    assert_eq!(world.released(), OK);
    fake.log();

    // Two that are late on two streams.
    world.stream.synchronize().unwrap();
    fake.set(Knob::Worker, worker::HELD);
    let second = World { stream: other.clone(), ..world };
    // SAFETY: our own library.
    unsafe { world.nccl.ncclGroupStart() };
    assert_eq!((world.all_reduce(SUM), second.all_reduce(SUM)), (OK, OK));
    // SAFETY: our own library.
    assert_eq!(unsafe { world.nccl.ncclGroupEnd() }, IN_PROGRESS);
    world.bug(
        "all_reduce comm1 m1->m1 count 2 type 7 op 0 s2 device 0 races for m1 with all_reduce comm1 m1->m1",
    );
    assert_eq!(world.released(), OK);
}

#[test]
fn handles_are_written_late() {
    let fake = Fake::new();
    let world = World::held(&fake);
    let (nccl, comm) = (world.nccl, world.comm);
    let (mut part, mut window, mut whole) = (null_mut(), null_mut(), null_mut());
    let mut config = ncclConfig_t { blocking: 0, ..Default::default() };
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: our own library; the slots outlive the work.
    unsafe {
        assert_eq!(nccl.ncclCommSplit(comm, 0, 0, &mut part, null_mut()), OK);
        assert_eq!(world.async_error(), IN_PROGRESS);
        assert!(part.is_null());
        assert_eq!(world.released(), OK);
        assert!(!part.is_null());

        fake.set(Knob::Worker, worker::HELD);
        assert_eq!(nccl.ncclCommWindowRegister(comm, world.memory, 64, &mut window, 1).unwrap(), OK);
        assert_eq!(world.async_error(), IN_PROGRESS);
        assert!(window.is_null());
        assert_eq!(world.released(), OK);
        assert!(!window.is_null());

        // An independent communicator exists immediately, and is busy.
        fake.set(Knob::Worker, worker::HELD);
        nccl.ncclGetUniqueId(&mut id);
        assert_eq!(nccl.ncclCommInitRankConfig(&mut whole, 2, id, 1, &mut config), IN_PROGRESS);
        let whole = World { comm: whole, stream: world.stream.clone(), ..world };
        assert_eq!(whole.async_error(), IN_PROGRESS);
        assert_eq!(whole.released(), OK);
        fake.set(Knob::Worker, worker::HELD);
        assert_eq!(nccl.ncclCommFinalize(whole.comm), IN_PROGRESS);
        fake.log();
        nccl.ncclCommDestroy(whole.comm);
        whole.bug("destroy on comm3 before the call before has completed");
        assert_eq!(whole.released(), OK);
        nccl.ncclCommDestroy(whole.comm);
        whole.logs(&["destroy comm3"]);
    }
}

#[test]
fn an_abort_drops_the_work_or_waits_for_it() {
    let fake = Fake::new();
    let world = World::held(&fake);
    let mut part = null_mut();
    world.all_reduce(SUM);
    fake.log();
    // SAFETY: our own library.
    unsafe { world.nccl.ncclCommAbort(world.comm) };
    world.logs(&["comm1 waits for its worker", &format!("drop {LINE}"), "abort comm1"]);

    let world = Across(World::new(&fake, false));
    let world = &world;
    fake.set(Knob::Worker, worker::HELD_IN_ABORTS);
    // SAFETY: our own library.
    unsafe { world.0.nccl.ncclCommSplit(world.0.comm, 0, 0, &mut part, null_mut()) };
    fake.log();
    thread::scope(|scope| {
        // SAFETY: our own library.
        let abort = scope.spawn(|| unsafe { world.0.nccl.ncclCommAbort(world.0.comm) });
        fake.until("comm2 waits for its worker");
        assert!(!abort.is_finished());
        fake.set(Knob::Worker, worker::RUNS);
        assert_eq!(abort.join().unwrap(), OK);
    });
    world.0.logs(&["abort comm2"]);
    assert!(!part.is_null(), "written during the abort");
}

#[test]
fn a_failed_late_launch_is_reported_afterwards() {
    let fake = Fake::new();
    let world = World::held(&fake);
    world.all_reduce(SUM);
    let other = World { stream: world.stream.context().new_stream().unwrap(), ..World::held(&fake) };
    other.stream.begin_capture(CAPTURE).unwrap();
    assert!(other.stream.synchronize().is_err());
    world.released();
    fake.set(Knob::Worker, worker::HELD);
    // What follows in its group is not launched.
    // SAFETY: our own library.
    unsafe { other.nccl.ncclGroupStart() };
    let second = World { stream: world.stream.clone(), ..other };
    assert_eq!((other.all_reduce(SUM), second.all_reduce(SUM)), (OK, OK));
    // SAFETY: our own library.
    assert_eq!(unsafe { other.nccl.ncclGroupEnd() }, IN_PROGRESS);
    fake.log_with_bugs();
    assert_eq!(other.released(), ncclResult_t::ncclUnhandledCudaError);
    assert_eq!(fake.log(), [""; 0]);
    assert!(other.stream.end_capture(CUgraphInstantiate_flags(0)).is_err());
}

#[test]
fn texts_are_read_late() {
    let fake = Fake::new();
    let world = World::held(&fake);
    let mut text = b"name\0".to_vec();
    let mut config = ncclConfig_t { blocking: 0, commName: text.as_ptr().cast(), ..Default::default() };
    let mut new = [null_mut(); 2];
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: our own library; the slots outlive the work.
    unsafe {
        world.nccl.ncclGetUniqueId(&mut id);
        world.nccl.ncclCommSplit(world.comm, 0, 0, &mut new[0], &mut config);
        text[0] = b'f';
        world.released();
        world.bug("the commName of comm2 is no longer 'name'");
        fake.set(Knob::Worker, worker::HELD);
        world.nccl.ncclCommInitRankConfig(&mut new[1], 2, id, 1, &mut config);
        text[0] = b'g';
        let world = World { comm: new[1], stream: world.stream.clone(), ..world };
        world.released();
        world.bug("the commName of comm3 is no longer 'fame'");
    }
}
