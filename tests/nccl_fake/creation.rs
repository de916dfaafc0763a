//! Creation of communicators, and allocation of memory.

use std::time::Duration;

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Config, Error, Memory, ResultCode, device_count};

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, REMOTE_ERROR, not_allowed};

#[test]
fn hole_12_a_communicator_is_created_and_used_on_its_own_device() {
    let fake = Fake::new();
    let (first, second) = (fake.stream(0), fake.stream(1));
    let mut memory = fake.memory(&first, 64);
    let make =
        |stream, rank| Communicator::builder(fake.library(), stream).rank(rank, 2).id(&fake.id()).init();
    let communicators = [make(&first, 0).unwrap(), make(&second, 1).unwrap()];
    assert_eq!(fake.log(), ["init comm1 rank 0/2 device 0", "init comm2 rank 1/2 device 1"]);
    // Device 1 is current after the second one was created.
    communicators[0].all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0"]);
}

#[test]
fn hole_12_work_that_nccl_leaves_to_the_current_device_finds_its_own() {
    let fake = Fake::new();
    let (first, second) = (fake.stream(0), fake.stream(1));
    let default = first.context().default_stream();
    let mut memory = fake.memory(&first, 64);
    let alone =
        |stream| Communicator::builder(fake.library(), stream).rank(0, 1).id(&fake.id()).init().unwrap();
    let (own, by_default) = (alone(&first), alone(&default));
    let mut all_reduce = |communicator: &Communicator, op| {
        // Device 1 is current.
        let _other = fake.memory(&second, 64);
        fake.log();
        communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), op).unwrap();
        fake.log().into_iter().find(|line| line.starts_with("launch")).unwrap()
    };
    // The scaling kernel.
    let sum = own.scaled_sum(0.5f32).unwrap();
    let mut view = fake.memory(&first, 64);
    let _other = fake.memory(&second, 64);
    fake.log();
    own.all_reduce_in_place(&mut view.slice_mut::<f32>(..2).unwrap(), &sum).unwrap();
    assert!(fake.log()[0].ends_with("s1 device 0"));
    drop(sum);
    assert!(all_reduce(&by_default, ReduceOp::Sum).ends_with("s0 device 0"));
}

/// The default stream is that of the current context.
#[test]
fn hole_12_the_default_stream_is_that_of_the_communicators_device() {
    let fake = Fake::new();
    let default = fake.stream(0).context().default_stream();
    let communicator =
        Communicator::builder(fake.library(), &default).rank(0, 2).id(&fake.id()).init().unwrap();
    let mut memory = fake.memory(&default, 8);
    let _makes_device_1_current = fake.memory(&fake.stream(1), 8);
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..).unwrap(), ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s0 device 0"]);
}

#[test]
fn hole_12_a_thread_without_a_context_gets_the_communicators() {
    let fake = Fake::new();
    let stream = fake.stream(1);
    let mut memory = fake.memory(&stream, 64);
    let communicator =
        Communicator::builder(fake.library(), &stream).rank(0, 2).id(&fake.id()).init().unwrap();
    fake.log();
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let view = &mut view;
    std::thread::scope(|scope| {
        let call = move || communicator.all_reduce_in_place(view, ReduceOp::Sum).map(|()| communicator);
        drop(scope.spawn(call).join().unwrap().unwrap());
    });
    assert_eq!(fake.log()[0], "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 1");
}

#[test]
fn hole_14_an_initialisation_that_never_completes_reaches_its_deadline() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    let start =
        || Communicator::builder(fake.library(), &stream).rank(0, 2).id(&fake.id()).init_pending().unwrap();
    let mut pending = start();
    assert_eq!(fake.log(), ["init comm1 rank 0/2 device 0 non-blocking"]);
    assert!(!pending.poll().unwrap());
    let error = pending.wait(Duration::from_millis(30)).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: "ncclCommInitRankConfig", .. }), "{error}");
    assert_eq!(fake.log(), ["abort comm1"]);

    drop(start());
    assert_eq!(fake.log(), ["init comm2 rank 0/2 device 0 non-blocking", "abort comm2"]);

    let config = Config::new().blocking(false).deadline(Duration::from_millis(30));
    let result =
        Communicator::builder(fake.library(), &stream).rank(0, 2).id(&fake.id()).config(&config).init();
    assert!(matches!(result, Err(Error::Deadline { .. })));
    assert_eq!(fake.log(), ["init comm3 rank 0/2 device 0 non-blocking", "abort comm3"]);
}

#[test]
fn hole_14_a_pending_communicator_completes_fails_or_is_aborted() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let start = || {
        fake.set(Knob::AsyncResult, IN_PROGRESS);
        Communicator::builder(fake.library(), &stream).rank(0, 2).id(&fake.id()).init_pending().unwrap()
    };
    let mut pending = start();
    fake.set(Knob::AsyncResult, 0);
    assert!(pending.poll().unwrap());
    let communicator = pending.wait(Duration::ZERO).unwrap();
    assert_eq!((communicator.rank(), communicator.size()), (0, 2));
    communicator.close().unwrap();

    let mut pending = start();
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    assert!(matches!(pending.poll(), Err(Error::Nccl { code: ResultCode(6), .. })));
    drop(pending);

    let pending = start();
    pending.abort_handle().abort().unwrap();
    assert!(matches!(pending.wait(Duration::from_secs(60)), Err(Error::Aborted { .. })));
    let ends: Vec<_> = fake.log().into_iter().filter(|line| !line.starts_with("init")).collect();
    assert_eq!(ends, ["destroy comm1", "abort comm2", "abort comm3"]);
}

#[test]
fn a_failed_initialisation_frees_everything() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    fake.set(Knob::InitResult, 2);
    let result = Communicator::builder(fake.library(), &streams[0]).rank(0, 2).id(&fake.id()).init();
    assert_eq!(
        result.unwrap_err().to_string(),
        "ncclCommInitRankConfig failed with ncclSystemError (2): fake words (NCCL's last warning: the fake \
         was told to fail); a system call failed: check shared memory, limits and the network"
    );
    assert_eq!(fake.log(), ["init comm1 rank 0/2 device 0", "abort comm1"]);

    fake.set(Knob::InitResult, 2);
    let result = Communicator::init_all(fake.library(), &streams, &Config::new());
    assert!(matches!(result, Err(Error::Nccl { code: ResultCode(2), .. })));
    assert_eq!(fake.log(), ["init comm2 rank 0/2 device 0", "group of 0 cancelled", "abort comm2"]);
}

#[test]
fn ranks_outside_the_size_are_refused() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    for (rank, size) in [(2, 2), (0, 0), (0, 1 << 31), (1 << 32, 1 << 33)] {
        let result = Communicator::builder(fake.library(), &stream).rank(rank, size).id(&fake.id()).init();
        assert!(matches!(result, Err(Error::Rank { .. })), "{rank} {size}");
    }
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn settings_are_passed_to_nccl_and_newer_ones_are_refused() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let init = |library, config: &Config| {
        Communicator::builder(library, &stream).rank(0, 1).id(&fake.id()).config(config).init()
    };
    let config = Config::new().network("Socket").nvlink_centric_sched(true).name("ours");
    drop(init(fake.library(), &config).unwrap());
    assert_eq!(fake.log()[0], "init comm1 rank 0/1 device 0 over Socket");
    let error = init(fake.old_library(), &config).unwrap_err().to_string();
    assert!(
        error.starts_with("Config::nvlink_centric_sched needs NCCL 2.28; loaded 2.18.3 from /"),
        "{error}"
    );
    let error = init(fake.old_library(), &Config::new().name("ours")).unwrap_err();
    assert!(matches!(error, Error::TooOld { what: "Config::name", .. }));
    let wrong = |config: &Config, setting: &str| {
        not_allowed(
            init(fake.library(), config),
            &format!("{setting}: the text must not contain a NUL byte"),
        );
    };
    wrong(&Config::new().network("a\0b"), "Config::network");
    wrong(&Config::new().name("\0"), "Config::name");
    drop(init(fake.old_library(), &Config::new().network("Socket").max_ctas(4)).unwrap());
}

#[test]
fn hole_19_a_missing_function_is_an_error() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    fake.log();
    drop(Memory::alloc(fake.old_library(), &stream, 64).unwrap());
    assert_eq!(fake.log(), ["cuMemAlloc m1", "synchronize s1", "cuMemFree m1"]);
    drop(Memory::alloc(fake.library(), &stream, 0).unwrap());
    assert_eq!(
        fake.log(),
        ["ncclMemAlloc m2", "a byte is written on s1", "synchronize s1", "ncclMemFree m2"]
    );

    let broken = fake.broken().to_string();
    assert!(broken.contains("ncclCommSplit"), "{broken}");
    assert!(broken.contains("pip install nvidia-nccl-cu12"), "{broken}");
    let ancient = fake.ancient().to_string();
    assert!(
        ancient.contains(": NCCL 2.14.3 is older than 2.18, the oldest that is supported\n"),
        "{ancient}"
    );
}

/// NCCL before 2.23 reads and writes the buffers of other GPUs of its process directly.
#[test]
fn memory_of_the_pool_is_opened_to_other_gpus_for_old_libraries() {
    let fake = Fake::new();
    let stream = fake.stream(1);
    fake.log();
    let init = |library| Communicator::builder(library, &stream).rank(0, 1).id(&fake.id()).init().unwrap();
    let _old = init(fake.old_library());
    assert_eq!(fake.log(), ["pool1 opens to 0", "pool1 opens to 2", "init comm1 rank 0/1 device 1"]);
    let _new = init(fake.library());
    assert_eq!(fake.log(), ["init comm1 rank 0/1 device 1"]);
}

#[test]
fn devices_are_counted() {
    let _fake = Fake::new();
    assert_eq!(device_count().unwrap(), 4);
}

#[test]
fn the_raw_handle_can_be_passed_to_other_functions() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (mut rank, mut size) = (0, 0);
    let nccl = fake.library().raw();
    // SAFETY: the communicator is alive, and used by this thread alone.
    unsafe {
        nccl.ncclCommUserRank(communicator.as_raw(), &mut rank);
        nccl.ncclCommCount(communicator.as_raw(), &mut size);
    }
    assert_eq!((rank, size), (1, 2));
}
