//! Unordered work on the same memory, and use of freed memory.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraphInstantiate_flags, CUstream};
use cudarc::driver::{CudaStream, result};
use nccl_sys::*;

use super::{CAPTURE, FLOAT, OK, REFUSED, SUM, World};
use crate::fake::Fake;

impl World<'_> {
    fn second_stream(&self) -> Arc<CudaStream> {
        self.stream.context().new_stream().unwrap()
    }

    fn nothing_wrong(&self) {
        self.fake.log();
    }

    fn free(&self) {
        // SAFETY: our own library.
        assert_eq!(unsafe { self.nccl.ncclMemFree(self.memory) }.unwrap(), OK);
    }
}

fn set(memory: *mut c_void, bytes: usize, stream: CUstream) {
    // SAFETY: the fake does not access memory that is not allocated.
    let _refused = unsafe { result::memset_d8_async(memory as u64, 0, bytes, stream) };
}

fn read(memory: *mut c_void, stream: CUstream) {
    let mut bytes = [0; 8];
    // SAFETY: the fake does not access memory that is not allocated, and copies immediately.
    let _refused = unsafe { result::memcpy_dtoh_async(&mut bytes, memory as u64, stream) };
}

#[test]
fn two_streams_without_order_race() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let (first, second) = (world.stream.clone(), world.second_stream());
    world.all_reduce(SUM);
    read(world.at(4), second.cu_stream());
    world.bug("copy from m1+4 on s2 races for m1 with all_reduce comm1 m1->m1");
    set(world.at(8), 8, second.cu_stream());
    world.nothing_wrong();
    world.all_reduce(SUM);
    world.bug(
        "all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0 races for m1 with copy from m1+4 on s2",
    );

    // Two reads are allowed.
    first.wait(&second.record_event(None).unwrap()).unwrap();
    read(world.at(32), first.cu_stream());
    read(world.at(32), second.cu_stream());
    world.nothing_wrong();
    set(world.at(36), 1, first.cu_stream());
    world.bug("set m1+36 on s1 races for m1 with copy from m1+32 on s2");
}

#[test]
fn events_order_what_was_queued_before_them() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let (second, third) = (world.second_stream(), world.second_stream());
    let early = world.stream.record_event(None).unwrap();
    world.all_reduce(SUM);
    // Through an unrelated stream.
    second.wait(&world.stream.record_event(None).unwrap()).unwrap();
    third.wait(&second.record_event(None).unwrap()).unwrap();
    set(world.memory, 64, third.cu_stream());
    world.stream.wait(&third.record_event(None).unwrap()).unwrap();
    world.all_reduce(SUM);
    world.nothing_wrong();
    second.wait(&early).unwrap();
    read(world.memory, second.cu_stream());
    world.bug("copy from m1 on s2 races for m1 with set m1 on s3");
}

#[test]
fn what_the_host_has_waited_for_is_before_all_that_follows() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let second = world.second_stream();
    let event = world.stream.record_event(None).unwrap();
    let waits: [&dyn Fn(); 4] = [
        &|| world.stream.synchronize().unwrap(),
        // SAFETY: the stream lives.
        &|| unsafe { sys::cuStreamQuery(world.stream.cu_stream()) }.result().unwrap(),
        &|| event.synchronize().unwrap(),
        // The first query always finds the work under way.
        &|| assert!(event.is_complete() || event.is_complete()),
    ];
    for wait in waits {
        world.all_reduce(SUM);
        event.record(&world.stream).unwrap();
        wait();
        set(world.memory, 8, second.cu_stream());
        second.synchronize().unwrap();
        world.nothing_wrong();
        // The wait does not cover the other stream's own work.
        set(world.memory, 8, second.cu_stream());
        wait();
        world.all_reduce(SUM);
        world.bug("races for m1 with set m1 on s2");
        second.synchronize().unwrap();
    }
    for stream in [world.stream.cu_stream(), second.cu_stream()] {
        set(world.memory, 8, stream);
        world.stream.context().synchronize().unwrap();
    }
    world.nothing_wrong();
}

#[test]
fn the_default_stream_is_ordered_with_blocking_streams_alone() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let blocking = result::stream::create(result::stream::StreamKind::Default).unwrap();
    let default = null_mut();
    set(world.memory, 8, blocking);
    set(world.memory, 8, default);
    set(world.memory, 8, blocking);
    world.nothing_wrong();
    world.all_reduce(SUM);
    world.bug("races for m1 with set m1 on s2");
    set(world.memory, 8, default);
    world.bug("set m1 on default races for m1 with all_reduce");
}

#[test]
fn memory_is_freed_after_all_that_uses_it() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let second = world.second_stream();
    world.all_reduce(SUM);
    second.synchronize().unwrap();
    world.free();
    world.bug("ncclMemFree m1 races for m1 with all_reduce");
    let world = World::new(&fake, true);
    world.all_reduce(SUM);
    world.stream.synchronize().unwrap();
    world.free();
    world.nothing_wrong();

    // In the order of a stream.
    // SAFETY: asks for memory and frees it; the fake says what is wrong with that.
    unsafe {
        let address = result::malloc_async(world.stream.cu_stream(), 8).unwrap();
        set(address as *mut c_void, 8, world.stream.cu_stream());
        result::free_async(address, second.cu_stream()).unwrap();
    }
    world.bug("free m3 on s2 races for m3 with set m3 on s3");
}

#[test]
fn memory_is_not_used_after_its_end() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let mut handle = null_mut();
    world.free();
    world.nothing_wrong();
    world.all_reduce(SUM);
    let log = fake.log_with_bugs();
    assert!(log[0].ends_with("BUG: all_reduce comm1 uses 8 bytes at freed m1, which has 0"), "{log:#?}");
    set(world.at(8), 8, world.stream.cu_stream());
    world.bug("set freed m1+8 on s1 uses 8 bytes at freed m1+8, which has 0");
    // SAFETY: our own library.
    unsafe { world.nccl.ncclCommRegister(world.comm, world.memory, 8, &mut handle) }.unwrap();
    world.bug("8 bytes at freed m1, which has 0");
    world.free();
    world.bug("ncclMemFree of freed m1, which is no block");

    // It goes between an operation in a group and the group's end.
    let world = World::new(&fake, true);
    // SAFETY: our own library.
    unsafe { world.nccl.ncclGroupStart() };
    world.all_reduce(SUM);
    world.free();
    world.nothing_wrong();
    // SAFETY: our own library.
    unsafe { world.nccl.ncclGroupEnd() };
    world.bug("all_reduce comm2 m2->m2 count 2 type 7 op 0 s2 device 0 uses m2 after it was freed");
}

#[test]
fn a_graph_uses_memory_whenever_it_is_launched_and_where() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let second = world.second_stream();
    world.stream.begin_capture(CAPTURE).unwrap();
    world.all_reduce(SUM);
    let graph = world.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
    set(world.memory, 8, second.cu_stream());
    world.nothing_wrong();
    graph.launch().unwrap();
    world.bug("a graph races for m1 with set m1 on s2");
    read(world.memory, second.cu_stream());
    world.bug("copy from m1 on s2 races for m1 with all_reduce");
    // On another stream than was captured.
    world.stream.synchronize().unwrap();
    // SAFETY: graph and stream live.
    unsafe { result::graph::launch(graph.cu_graph_exec(), second.cu_stream()) }.unwrap();
    set(world.memory, 8, second.cu_stream());
    world.nothing_wrong();
    drop(graph);
    world.stream.synchronize().unwrap();
    second.synchronize().unwrap();
    world.free();
    world.nothing_wrong();
}

#[test]
fn registrations_and_windows_live_as_long_as_work_needs_them() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let (nccl, comm, stream) = (world.nccl, world.comm, world.stream());
    let (mut handle, mut window) = (null_mut(), null_mut());
    // SAFETY: our own library.
    unsafe {
        // Work that is still running.
        nccl.ncclCommRegister(comm, world.memory, 64, &mut handle).unwrap();
        world.all_reduce(SUM);
        assert_eq!(nccl.ncclCommDeregister(comm, handle).unwrap(), OK);
        world.bug("ncclCommDeregister during all_reduce comm1");

        // Work of a graph.
        nccl.ncclCommRegister(comm, world.memory, 64, &mut handle).unwrap();
        world.stream.begin_capture(CAPTURE).unwrap();
        world.all_reduce(SUM);
        let graph = world.stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        graph.launch().unwrap();
        world.stream.synchronize().unwrap();
        nccl.ncclCommDeregister(comm, handle).unwrap();
        world.nothing_wrong();
        graph.launch().unwrap();
        world.bug("a graph uses m1, whose registration or window has ended");
        drop(graph);

        // Work of a group.
        nccl.ncclCommWindowRegister(comm, world.memory, 64, &mut window, 1).unwrap();
        nccl.ncclGroupStart();
        nccl.ncclPutSignal(world.memory, 2, FLOAT, 0, window, 16, 0, 0, 0, comm, stream).unwrap();
        world.stream.synchronize().unwrap();
        nccl.ncclCommWindowDeregister(comm, window).unwrap();
        world.nothing_wrong();
        nccl.ncclGroupEnd();
        let log = fake.log_with_bugs();
        let bugs = log.iter().filter(|line| line.contains("uses m1, whose registration or window"));
        assert_eq!(bugs.count(), 2, "its source and the window: {log:#?}");
        assert_eq!(nccl.ncclCommWindowDeregister(comm, window).unwrap(), REFUSED);
        world.bug("of win1, which is gone");
    }
}

#[test]
fn what_peers_have_put_is_there_after_the_wait_for_their_signals() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let second = world.second_stream();
    let mut window = null_mut();
    let mut waits = ncclWaitSignalDesc_t { opCnt: 1, peer: 0, sigIdx: 0, ctx: 0 };
    // Until the signal, the previous contents may be used.
    set(world.memory, 64, second.cu_stream());
    // SAFETY: our own library.
    unsafe {
        world.nccl.ncclCommWindowRegister(world.comm, world.memory, 64, &mut window, 1).unwrap();
        world.nccl.ncclWaitSignal(1, &mut waits, world.comm, world.stream()).unwrap();
    }
    world.nothing_wrong();
    read(world.memory, second.cu_stream());
    world.bug("copy from m1 on s2 races for m1 with wait_signals comm1");
    second.wait(&world.stream.record_event(None).unwrap()).unwrap();
    read(world.memory, second.cu_stream());
    world.nothing_wrong();
}
