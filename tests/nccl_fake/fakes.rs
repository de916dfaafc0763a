//! Tests of the fakes: their results, and the mistakes that they detect, through the raw functions.

mod exchange;
mod graphs;
mod order;
mod texts;
mod workers;

use std::ffi::{CStr, c_char, c_void};
use std::ptr::{self, null_mut};
use std::sync::Arc;
use std::thread;

use cudarc::driver::CudaStream;
use cudarc::driver::sys::CUstreamCaptureMode;
use nccl_sys::*;

use crate::IN_PROGRESS;
use crate::fake::{Fake, Knob, worker};

const OK: ncclResult_t = ncclResult_t::ncclSuccess;
const REFUSED: ncclResult_t = ncclResult_t::ncclInvalidArgument;
const FLOAT: ncclDataType_t = ncclDataType_t::ncclFloat32;
const SUM: ncclRedOp_t = ncclRedOp_t::ncclSum;
const CAPTURE: CUstreamCaptureMode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;

/// Rank 1 of a communicator of two ranks, on a stream of its own with a buffer of 64 bytes, all raw.
struct World<'a> {
    fake: &'a Fake,
    nccl: &'static Nccl,
    stream: Arc<CudaStream>,
    comm: ncclComm_t,
    memory: *mut c_void,
}

impl<'a> World<'a> {
    fn new(fake: &'a Fake, blocking: bool) -> Self {
        fake.set(Knob::Worker, worker::OFF);
        let nccl = fake.library().raw();
        let stream = fake.stream(0);
        let mut world = Self { fake, nccl, stream, comm: null_mut(), memory: null_mut() };
        let mut config = ncclConfig_t { blocking: blocking.into(), ..Default::default() };
        let mut id = ncclUniqueId { internal: [0; 128] };
        // SAFETY: our own library.
        unsafe {
            assert_eq!(nccl.ncclGetUniqueId(&mut id), OK);
            assert_eq!(nccl.ncclCommInitRankConfig(&mut world.comm, 2, id, 1, &mut config), OK);
            assert_eq!(nccl.ncclMemAlloc(&mut world.memory, 64).unwrap(), OK);
        }
        fake.log();
        world
    }

    fn stream(&self) -> cudaStream_t {
        self.stream.cu_stream().cast()
    }

    fn at(&self, offset: usize) -> *mut c_void {
        self.memory.wrapping_byte_add(offset)
    }

    fn all_reduce(&self, op: ncclRedOp_t) -> ncclResult_t {
        // SAFETY: our own library, which reads nothing.
        unsafe { self.nccl.ncclAllReduce(self.memory, self.memory, 2, FLOAT, op, self.comm, self.stream()) }
    }

    fn async_error(&self) -> ncclResult_t {
        let mut code = OK;
        // SAFETY: our own library.
        assert_eq!(unsafe { self.nccl.ncclCommGetAsyncError(self.comm, &mut code) }, OK);
        code
    }

    #[track_caller]
    fn logs(&self, lines: &[&str]) {
        assert_eq!(self.fake.log(), lines);
    }

    /// The one mistake that was detected.
    #[track_caller]
    fn bug(&self, words: &str) {
        let log = self.fake.log_with_bugs();
        let bugs: Vec<_> = log.iter().filter(|line| line.starts_with("BUG")).collect();
        assert!(bugs.len() == 1 && bugs[0].contains(words), "{words}: {log:#?}");
    }
}

const LINE: &str = "all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0";

#[test]
fn each_version_has_the_functions_of_its_time() {
    let fake = Fake::new();
    for library in [fake.library(), fake.library_2_28(), fake.old_library()] {
        for &(name, since) in API {
            assert_eq!(
                library.raw().has(name),
                since <= library.version(),
                "{name} in {}",
                library.version()
            );
        }
    }
    assert_eq!(fake.library_2_28().version(), Version::new(2, 28, 9));
}

#[test]
fn every_operation_arrives() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let World { nccl, comm, .. } = world;
    let (stream, memory, part, null) = (world.stream(), world.memory, world.at(24), null_mut());
    let text = c"ring/ll";
    let mut settings = ncclCollConfig_t { maxCTAs: 4, algSelection: text.as_ptr(), ..Default::default() };
    let defaults = ncclCollConfig_t::default();
    settings.minCTAs = 1;
    settings.CTAPolicy = 2;
    settings.userProfilerTag = 5;
    let (settings, none) = (&raw const settings, &raw const defaults);
    // SAFETY: our own library.
    unsafe {
        nccl.ncclReduce(part, memory, 2, FLOAT, SUM, 1, comm, stream);
        nccl.ncclReduce(part, null, 2, FLOAT, SUM, 0, comm, stream);
        nccl.ncclBroadcast(memory, memory, 2, FLOAT, 0, comm, stream);
        nccl.ncclReduceScatter(memory, part, 2, FLOAT, SUM, comm, stream);
        nccl.ncclSend(part, 2, FLOAT, 0, comm, stream);
        nccl.ncclRecv(part, 2, FLOAT, 0, comm, stream);
        nccl.ncclAlltoAll(memory, world.at(32), 4, FLOAT, comm, stream).unwrap();
        nccl.ncclGather(memory, null, 2, FLOAT, 0, comm, stream).unwrap();
        nccl.ncclScatter(memory, part, 2, FLOAT, 1, comm, stream).unwrap();
        nccl.ncclAllReduceConfig(memory, memory, 2, FLOAT, SUM, comm, stream, settings).unwrap();
        nccl.ncclReduceConfig(memory, memory, 2, FLOAT, SUM, 1, comm, stream, none).unwrap();
        nccl.ncclGatherConfig(memory, memory, 2, FLOAT, 1, comm, stream, ptr::null()).unwrap();
        assert_eq!(nccl.ncclSend(part, 2, FLOAT, 2, comm, stream), REFUSED, "no such peer");
    }
    let end = "count 2 type 7 op -1";
    let launched = [
        "reduce comm1 m1+24->m1 count 2 type 7 op 0 root 1 s1 device 0",
        "reduce comm1 m1+24->null count 2 type 7 op 0 root 0 s1 device 0",
        &format!("broadcast comm1 m1->m1 {end} root 0 s1 device 0"),
        "reduce_scatter comm1 m1->m1+24 count 2 type 7 op 0 s1 device 0",
        &format!("send comm1 m1+24->null {end} peer 0 s1 device 0"),
        &format!("recv comm1 null->m1+24 {end} peer 0 s1 device 0"),
        "all_to_all comm1 m1->m1+32 count 4 type 7 op -1 s1 device 0",
        &format!("gather comm1 m1->null {end} root 0 s1 device 0"),
        &format!("scatter comm1 m1->m1+24 {end} root 1 s1 device 0"),
        &format!("{LINE} with settings min_ctas 1 max_ctas 4 policy 2 algorithm ring/ll tag 5"),
        "reduce comm1 m1->m1 count 2 type 7 op 0 root 1 s1 device 0 with settings",
        &format!("gather comm1 m1->m1 {end} root 1 s1 device 0 without settings"),
    ];
    assert_eq!(fake.log(), launched.map(|line| format!("launch {line}")));

    // SAFETY: as above.
    unsafe { nccl.ncclAllGather(part, world.at(56), 2, FLOAT, comm, stream) };
    world.bug("uses 16 bytes at m1+56, which has 8");
    // SAFETY: as above.
    unsafe { nccl.ncclSend(ptr::dangling(), 2, FLOAT, 0, comm, stream) };
    world.bug("uses 8 bytes at unknown, which has 0");
}

#[test]
fn a_simulated_group_launches_nothing() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let mut estimate = ncclSimInfo_t::default();
    fake.set(Knob::SimulatedMicros, 42);
    // SAFETY: our own library.
    unsafe {
        world.nccl.ncclGroupStart();
        world.nccl.ncclGroupStart();
        assert_eq!(world.all_reduce(SUM), OK);
        assert_eq!(world.nccl.ncclGroupEnd(), OK);
        assert_eq!(world.nccl.ncclGroupSimulateEnd(&mut estimate).unwrap(), OK);
        assert_eq!(world.nccl.ncclGroupEnd(), ncclResult_t::ncclInvalidUsage);
    }
    assert_eq!(estimate.estimatedTime.to_bits(), 42.0f32.to_bits());
    world.logs(&["simulate 1 operations"]);
}

#[test]
fn users_operators_belong_to_one_communicator_and_type() {
    let fake = Fake::new();
    let (world, other) = (World::new(&fake, true), World::new(&fake, true));
    let mut ops = [SUM; 2];
    let mut scalar = 0.5f32;
    let (host, device) =
        (ncclScalarResidence_t::ncclScalarHostImmediate, ncclScalarResidence_t::ncclScalarDevice);
    let nccl = world.nccl;
    // SAFETY: our own library.
    unsafe {
        nccl.ncclRedOpCreatePreMulSum(&mut ops[0], (&raw mut scalar).cast(), FLOAT, host, world.comm);
        nccl.ncclRedOpCreatePreMulSum(&mut ops[1], world.at(4), FLOAT, device, world.comm);
        world.all_reduce(ops[0]);
        world.logs(&[
            "scaled_sum comm1 type 7 scalar 0000003f as op5",
            "scaled_sum comm1 type 7 scalar m1+4 as op6",
            "launch all_reduce comm1 m1->m1 count 2 type 7 op 5 s1 device 0",
        ]);
        other.all_reduce(ops[0]);
        world.bug("use of op5 with comm2");
        let byte = ncclDataType_t::ncclInt8;
        nccl.ncclAllReduce(world.memory, world.memory, 2, byte, ops[0], world.comm, world.stream());
        world.bug("op5 is for type 7, not 0");
        nccl.ncclRedOpDestroy(ops[0], other.comm);
        world.bug("of op5 with comm2");
        assert_eq!(nccl.ncclRedOpDestroy(ops[0], world.comm), OK);
        world.logs(&["destroy op5 comm1"]);
        nccl.ncclRedOpDestroy(ops[0], world.comm);
        world.bug("of op5, which is gone");
        world.stream.synchronize().unwrap();
        nccl.ncclMemFree(world.memory).unwrap();
        world.bug("m1 freed while");
        nccl.ncclCommDestroy(world.comm);
        world.bug("comm1 destroyed while op6 lives");
        nccl.ncclRedOpDestroy(ops[1], world.comm);
        world.bug("comm1 which is dead");
    }
}

#[test]
fn registrations_and_windows_hold_memory_and_end_before_their_communicator() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let (nccl, comm, memory) = (world.nccl, world.comm, world.memory);
    let (mut handle, mut window, mut address) = (null_mut(), null_mut(), null_mut());
    let mut waits = ncclWaitSignalDesc_t { opCnt: 3, peer: 0, sigIdx: 1, ctx: 2 };
    // SAFETY: our own library.
    unsafe {
        assert_eq!(nccl.ncclCommRegister(comm, world.at(8), 16, &mut handle).unwrap(), OK);
        assert_eq!(nccl.ncclCommWindowRegister(comm, memory, 64, &mut window, 1).unwrap(), OK);
        assert_eq!(nccl.ncclWinGetUserPtr(comm, window, &mut address).unwrap(), OK);
        assert_eq!(address, memory);
        let (stream, put) = (world.stream(), world.at(4));
        assert_eq!(nccl.ncclPutSignal(put, 2, FLOAT, 0, window, 16, 1, 2, 3, comm, stream).unwrap(), OK);
        assert_eq!(nccl.ncclSignal(0, 1, 2, 0, comm, stream).unwrap(), OK);
        assert_eq!(nccl.ncclWaitSignal(1, &mut waits, comm, stream).unwrap(), OK);
        world.logs(&[
            "register comm1 m1+8 bytes 16 as reg1",
            "window comm1 m1 bytes 64 flags 1 as win1",
            "launch put comm1 m1+4->win1+16 count 2 type 7 peer 0 signal 1 context 2 flags 3 s1 device 0",
            "launch signal comm1 peer 0 signal 1 context 2 flags 0 s1 device 0",
            "launch wait_signals comm1 3 times peer 0 signal 1 context 2 s1 device 0",
        ]);
        nccl.ncclPutSignal(put, 2, FLOAT, 0, window, 60, 1, 2, 3, comm, stream).unwrap();
        world.bug("put of 8 bytes at win1+60");
        fake.set(Knob::DisposalResult, 3);
        assert_eq!(nccl.ncclCommDeregister(comm, handle).unwrap().0, 3);
        world.logs(&[]);
        nccl.ncclCommDeregister(comm, handle).unwrap();
        world.logs(&["deregister reg1 comm1"]);
        nccl.ncclCommDeregister(comm, handle).unwrap();
        world.bug("of reg1, which is gone");
        world.stream.synchronize().unwrap();
        nccl.ncclMemFree(memory).unwrap();
        world.bug("m1 freed while registered");
        nccl.ncclCommDestroy(comm);
        world.logs(&["destroy comm1", "comm1 destroyed while win1 lives"]);
        nccl.ncclCommWindowDeregister(comm, window).unwrap();
        world.bug("comm1 which is dead");
    }
    let world = World::new(&fake, true);
    fake.set(Knob::NoWindows, 1);
    // SAFETY: our own library.
    unsafe {
        assert_eq!(nccl.ncclCommWindowRegister(world.comm, world.memory, 64, &mut window, 1).unwrap(), OK);
        assert!(window.is_null());
        assert_eq!(nccl.ncclCommWindowDeregister(world.comm, window).unwrap(), OK);
    }
}

#[test]
fn communicators_are_derived() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let (nccl, comm) = (world.nccl, world.comm);
    let mut config = ncclConfig_t::default();
    let mut new = [null_mut(); 6];
    let (mut excluded, mut id) = ([0], ncclUniqueId { internal: [0; 128] });
    // SAFETY: our own library.
    unsafe {
        fake.set(Knob::SplitSize, 1);
        nccl.ncclCommSplit(comm, 3, 4, &mut new[0], null_mut());
        nccl.ncclCommSplit(comm, -1, 0, &mut new[1], &mut config);
        nccl.ncclCommShrink(comm, excluded.as_mut_ptr(), 1, &mut new[2], &mut config, 1).unwrap();
        assert_eq!(nccl.ncclCommGetUniqueId(comm, &mut id).unwrap(), OK);
        assert_eq!(nccl.ncclCommGetUniqueId(comm, &mut id).unwrap(), ncclResult_t::ncclInvalidUsage);
        nccl.ncclCommGrow(comm, 3, ptr::null(), -1, &mut new[3], null_mut()).unwrap();
        nccl.ncclCommGrow(null_mut(), 3, &id, 2, &mut new[4], &mut config).unwrap();
        nccl.ncclGetUniqueId(&mut id);
        nccl.ncclCommInitRankScalable(&mut new[5], 3, 1, 1, &mut id, &mut config).unwrap();
    }
    world.logs(&[
        "split comm1 color 3 key 4 into comm2 rank 0/1 device 0 inheriting",
        "split comm1 color -1 key 0 into nothing",
        "shrink comm1 without 0 flags 1 into comm3 rank 0/1 device 0",
        "grow_id comm1",
        "grow comm1 to 3 into comm4 rank 1/3 device 0 inheriting",
        "grow nothing to 3 with an id into comm5 rank 2/3 device 0",
        "init comm6 rank 1/3 device 0 from 1 ids",
    ]);
    assert_eq!(new.map(|comm| comm.is_null()), [false, true, false, false, false, false]);
    let (mut rank, mut size, mut device) = (0, 0, 9);
    // SAFETY: our own library.
    unsafe {
        nccl.ncclCommUserRank(new[4], &mut rank);
        nccl.ncclCommCount(new[4], &mut size);
        nccl.ncclCommCuDevice(new[4], &mut device);
    }
    assert_eq!((rank, size, device), (2, 3, 0));
    fake.set(Knob::ManagementResult, 3);
    // SAFETY: our own library.
    assert_eq!(unsafe { nccl.ncclCommSplit(comm, 0, 0, &mut new[0], null_mut()) }.0, 3);
}

#[test]
fn a_child_of_a_non_blocking_communicator_exists_once_the_parent_reports_success() {
    let fake = Fake::new();
    let world = World::new(&fake, false);
    let mut child = null_mut();
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    // SAFETY: our own library.
    unsafe {
        assert_eq!(world.nccl.ncclCommSplit(world.comm, 0, 0, &mut child, null_mut()), OK);
        assert!(child.is_null());
        assert_eq!(world.async_error(), ncclResult_t::ncclInProgress);
        fake.log();
        world.all_reduce(SUM);
        world.bug("before the call before has completed");
        fake.set(Knob::AsyncResult, 0);
        assert_eq!(world.async_error(), OK);
        assert!(!child.is_null());

        // In a group, the parent is queried after the group's end.
        fake.set(Knob::AsyncResult, IN_PROGRESS);
        world.nccl.ncclGroupStart();
        assert_eq!(world.nccl.ncclCommSplit(world.comm, 0, 0, &mut child, null_mut()), OK);
        assert_eq!(world.nccl.ncclGroupEnd(), ncclResult_t::ncclInProgress);
        assert!(child.is_null());
        // The slot must stay valid for NCCL.
        child = ptr::dangling_mut();
        fake.set(Knob::AsyncResult, 0);
        assert_eq!(world.async_error(), OK);
        world.bug("a place was reused");

        // A failed or aborted communicator is never created.
        for failure in [6, 0] {
            fake.set(Knob::AsyncResult, IN_PROGRESS);
            assert_eq!(world.nccl.ncclCommSplit(world.comm, 0, 0, &mut child, null_mut()), OK);
            fake.set(Knob::AsyncResult, failure);
            if failure == 0 {
                assert_eq!(world.nccl.ncclCommAbort(world.comm), OK);
            } else {
                assert_eq!(world.async_error().0, 6);
                fake.set(Knob::AsyncResult, 0);
                world.async_error();
            }
            assert!(child.is_null());
        }
    }
}

#[test]
fn management_of_a_communicator() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let (nccl, comm) = (world.nccl, world.comm);
    let mut bytes = [0; 4];
    // SAFETY: our own library.
    unsafe {
        nccl.ncclCommSuspend(comm, 1).unwrap();
        for (stat, bytes) in (0..).zip(&mut bytes) {
            assert_eq!(nccl.ncclCommMemStats(comm, ncclCommMemStat_t(stat), bytes).unwrap(), OK);
        }
        assert_eq!(bytes, [1000, 1, 200, 1200]);
        world.logs(&["suspend comm1 flags 1"]);
        world.all_reduce(SUM);
        world.bug("on comm1 which is suspended");
        nccl.ncclCommResume(comm).unwrap();
        world.logs(&["resume comm1"]);
        fake.set(Knob::ManagementResult, IN_PROGRESS);
        assert_eq!(nccl.ncclCommRevoke(comm, 0).unwrap(), ncclResult_t::ncclInProgress);
        assert_eq!(world.async_error(), OK);
        assert_eq!(world.all_reduce(SUM), ncclResult_t::ncclInvalidUsage);
        assert_eq!(nccl.ncclCommFinalize(comm), REFUSED);
        assert_eq!(nccl.ncclCommDestroy(comm), OK);
        world.logs(&["revoke comm1", "destroy comm1"]);
        world.async_error_of_the_dead();
        let other = World::new(&fake, true);
        assert_eq!(nccl.ncclCommFinalize(other.comm), OK);
        other.logs(&["finalize comm2"]);
        other.all_reduce(SUM);
        other.bug("after it was finalized");
    }
}

impl World<'_> {
    fn async_error_of_the_dead(&self) {
        let mut code = OK;
        // SAFETY: our own library, which never frees communicators.
        assert_eq!(unsafe { self.nccl.ncclCommGetAsyncError(self.comm, &mut code) }, REFUSED);
        self.bug("which is dead");
    }
}

/// Passes handles to other threads, which the fake must detect.
struct Across<T>(T);
// SAFETY: the fake's own handles, whose misuse it is built for.
unsafe impl<T> Sync for Across<T> {}

#[test]
fn two_threads_inside_nccl_are_detected() {
    let fake = Fake::new();
    let world = Across(World::new(&fake, true));
    let world = &world;
    fake.set(Knob::CallMillis, -1);
    thread::scope(|scope| {
        scope.spawn(|| world.0.all_reduce(SUM));
        fake.until("inside NCCL");
        // SAFETY: our own library.
        unsafe { world.0.nccl.ncclCommAbort(world.0.comm) };
        fake.set(Knob::CallMillis, 0);
    });
    world.0.bug("while another thread is inside NCCL");

    // A communicator belongs to the thread's group from its first operation on.
    // SAFETY: our own library.
    unsafe { world.0.nccl.ncclGroupStart() };
    world.0.all_reduce(SUM);
    thread::scope(|scope| scope.spawn(|| world.0.all_reduce(SUM)).join().unwrap());
    world.0.bug("while another thread is inside NCCL");
    // SAFETY: our own library.
    unsafe { world.0.nccl.ncclGroupEnd() };
    world.0.logs(&[&format!("launch {LINE}")]);
    thread::scope(|scope| scope.spawn(|| world.0.all_reduce(SUM)).join().unwrap());
    assert_eq!(fake.log().len(), 1);
}

#[test]
fn parameters_have_one_type_each() {
    let fake = Fake::new();
    let nccl = fake.library().raw();
    let bind = |key: &CStr| {
        let mut handle = null_mut();
        // SAFETY: our own library.
        assert_eq!(unsafe { nccl.ncclParamBind(&mut handle, key.as_ptr()) }.unwrap(), OK);
        handle
    };
    let (mut keys, mut length) = (null_mut(), 0);
    let (mut value, mut text): (*const c_char, *const c_char) = (ptr::null(), ptr::null());
    let (mut byte, mut long, mut wide) = (0, 0, 0);
    let mut bytes = [0u8; 8];
    // SAFETY: our own library.
    unsafe {
        nccl.ncclParamGetAllParameterKeys(&mut keys, &mut length).unwrap();
        assert_eq!((length, CStr::from_ptr(*keys.add(9))), (10, c"NCCL_FAKE_EMPTY"));
        nccl.ncclParamGetParameter(c"NCCL_FAKE_U64".as_ptr(), &mut value, &mut length).unwrap();
        assert_eq!((CStr::from_ptr(value), length), (c"ALL", 3));
        assert_eq!(nccl.ncclParamGetI8(bind(c"NCCL_FAKE_I8"), &mut byte).unwrap(), OK);
        assert_eq!(nccl.ncclParamGetI64(bind(c"NCCL_FAKE_I64"), &mut long).unwrap(), OK);
        assert_eq!(nccl.ncclParamGetU64(bind(c"NCCL_FAKE_U64"), &mut wide).unwrap(), OK);
        assert_eq!((byte, long, wide), (-8, i64::MIN, u64::MAX));
        assert_eq!(nccl.ncclParamGetI64(bind(c"NCCL_FAKE_U64"), &mut long).unwrap(), REFUSED);
        assert_eq!(nccl.ncclParamGetStr(bind(c"NCCL_FAKE_I8"), &mut text).unwrap(), REFUSED);
        assert_eq!(nccl.ncclParamGetStr(bind(c"NCCL_FAKE_TEXT"), &mut text).unwrap(), OK);
        assert_eq!(CStr::from_ptr(text).to_str(), Ok("WARN,ä"));
        let raw = bytes.as_mut_ptr().cast();
        assert_eq!(nccl.ncclParamGet(bind(c"NCCL_FAKE_I16"), raw, 8, &mut length).unwrap(), OK);
        assert_eq!((i16::from_le_bytes([bytes[0], bytes[1]]), length), (-1600, 2));
        assert_eq!(nccl.ncclParamGet(bind(c"NCCL_FAKE_TEXT"), raw, 7, &mut length).unwrap(), REFUSED);
        assert_eq!(nccl.ncclParamBind(&mut null_mut(), c"NOPE".as_ptr()).unwrap(), REFUSED);
        nccl.ncclParamDumpAll().unwrap();
        let secret = ncclEncryptionConfig_t { mode: 1, psk: c"secret".as_ptr(), ..Default::default() };
        assert_eq!(nccl.ncclSetEncryption(&secret).unwrap(), OK);
    }
    assert_eq!(fake.log(), ["dump parameters", "encryption mode 1 psk secret"]);
}
