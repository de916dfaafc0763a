//! Registrations, windows, and one-sided operations.

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Graph, Memory, ResultCode, Signal, WindowKind, group, windows,
};
use half::f16;

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, REMOTE_ERROR, not_allowed};

type Result<T = ()> = std::result::Result<T, Error>;

#[test]
fn registered_memory_is_used_and_taken_back_after_the_work() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let registered = communicator.register(&memory).unwrap();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(2..4).unwrap(), Sum).unwrap();
    communicator.send(&memory.slice::<u8>(3..5).unwrap(), 0).unwrap();
    fake.set(Knob::StreamBusy, 3);
    drop(registered);
    assert_eq!(
        fake.log(),
        [
            "register comm1 m1 bytes 64 as reg1",
            "launch all_reduce comm1 m1+8->m1+8 count 2 type 7 op 0 s1 device 0",
            "launch send comm1 m1+3->null count 2 type 1 op -1 peer 0 s1 device 0",
            "deregister reg1 comm1",
        ]
    );
    // The memory is unchanged and can be registered again.
    drop(communicator.register(&memory).unwrap());
    drop(memory);
    assert_eq!(fake.log()[1..], ["deregister reg2 comm1", "synchronize s1", "ncclMemFree m1"]);
}

#[test]
fn windows_of_every_kind_are_registered_and_taken_back() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    for kind in [WindowKind::Plain, WindowKind::Symmetric, WindowKind::SymmetricOrdered] {
        let window = communicator.window(&memory, kind).unwrap();
        assert!(window.is_active());
        assert_eq!(window.bytes(), 64);
        assert_eq!(window.address().unwrap(), memory.slice::<u8>(..0).unwrap().address());
        communicator.broadcast_in_place(&mut memory.slice_mut::<f32>(1..2).unwrap(), 0).unwrap();
    }
    let launch = "launch broadcast comm1 m1+4->m1+4 count 1 type 7 op -1 root 0 s1 device 0";
    let expected = [(1, 0), (2, 1), (3, 3)].map(|(number, flags)| {
        let window = format!("window comm1 m1 bytes 64 flags {flags} as win{number}");
        // The memory's zeroes are written before another rank may write into it.
        ["synchronize s1".to_owned(), window, launch.to_owned(), format!("deregister win{number} comm1")]
    });
    assert_eq!(fake.log(), expected.concat());
    assert_eq!(WindowKind::default(), WindowKind::Symmetric);
}

#[test]
fn what_the_library_is_too_old_for_is_refused() {
    let fake = Fake::new();
    let old = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let missing = |error: Error, wanted: &str| {
        assert!(matches!(error, Error::MissingSymbol(_)), "{error}");
        assert!(error.to_string().starts_with(wanted), "{error}");
    };
    let memory = fake.memory(old.stream(), 64);
    missing(old.register(&memory).unwrap_err(), "ncclCommRegister needs NCCL 2.19");
    missing(old.window(&memory, WindowKind::Plain).unwrap_err(), "ncclCommWindowRegister needs NCCL 2.27");
    let middle = fake.rank(fake.library_2_28(), 1, 2, &Config::new());
    let memory = fake.memory(middle.stream(), 64);
    let error = middle.window(&memory, WindowKind::SymmetricOrdered).unwrap_err();
    assert!(matches!(error, Error::TooOld { what: "WindowKind::SymmetricOrdered", .. }), "{error}");
    assert_eq!(fake.log(), [""; 0]);
    let window = middle.window(&memory, WindowKind::Symmetric).unwrap();
    missing(window.address().unwrap_err(), "ncclWinGetUserPtr needs NCCL 2.29");
    let part = memory.slice::<f32>(..1).unwrap();
    // SAFETY: it is refused.
    let put = unsafe { middle.put(&part, &window, 0, Signal::new(0)) };
    missing(put.unwrap_err(), "ncclPutSignal needs NCCL 2.29");
    missing(middle.signal(Signal::new(0)).unwrap_err(), "ncclSignal needs NCCL 2.29");
    missing(middle.wait_signals(&[(Signal::new(0), 1)]).unwrap_err(), "ncclWaitSignal needs NCCL 2.29");
    fake.log();
    let grouped = group(|group| group.on(&middle).signal(Signal::new(0)));
    missing(grouped.unwrap_err(), "ncclSignal needs NCCL 2.29");
    assert_eq!(fake.log(), [""; 0]);
    drop(window);
    assert_eq!(fake.log(), ["deregister win1 comm1"]);
}

#[test]
fn memory_of_another_device_is_refused_and_so_are_groups() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let elsewhere = fake.memory(&fake.stream(1), 64);
    let wrong = |error: Error| {
        assert!(
            matches!(error, Error::WrongDevice { buffer: "memory", expected: 0, found: 1, .. }),
            "{error}"
        );
    };
    wrong(communicator.register(&elsewhere).unwrap_err());
    wrong(communicator.window(&elsewhere, WindowKind::Plain).unwrap_err());
    let memory = fake.memory(communicator.stream(), 64);
    let _library = fake.library();
    group(|_| {
        assert!(matches!(communicator.register(&memory), Err(Error::InsideGroup { .. })));
        let refused = communicator.window(&memory, WindowKind::Plain).map(drop);
        assert!(matches!(refused, Err(Error::InsideGroup { .. })));
        let refused = windows([(&communicator, &memory)], WindowKind::Plain).map(drop);
        assert!(matches!(refused, Err(Error::InsideGroup { .. })));
        Ok::<_, Error>(())
    })
    .unwrap();
    for _ in 0..2 {
        fake.set(Knob::ManagementResult, 3);
        let error = communicator.window(&memory, WindowKind::Plain).unwrap_err();
        assert!(matches!(
            error,
            Error::Nccl { operation: "ncclCommWindowRegister", code: ResultCode(3), .. }
        ));
    }
    fake.set(Knob::ManagementResult, 3);
    assert!(matches!(communicator.register(&memory), Err(Error::Nccl { operation: "ncclCommRegister", .. })));
    fake.log();
    // Refused memory is not registered, and freed.
    drop(memory);
    assert_eq!(fake.log(), ["synchronize s1", "ncclMemFree m2"]);
}

#[test]
fn windows_of_several_ranks_are_made_together_or_not_at_all() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let ranks = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    let memory = streams.each_ref().map(|stream| fake.memory(stream, 32));
    let [first, second] = &memory;
    let made = windows(ranks.iter().zip([first, second]), WindowKind::Symmetric).unwrap();
    assert!(made.iter().all(|window| window.is_active()));
    drop(made);
    assert_eq!(
        fake.log(),
        [
            "synchronize s1",
            "synchronize s2",
            "window comm1 m1 bytes 32 flags 1 as win1",
            "window comm2 m2 bytes 32 flags 1 as win2",
            "deregister win1 comm1",
            "deregister win2 comm2",
        ]
    );
    let wrong = fake.memory(&streams[0], 32);
    let result = windows(ranks.iter().zip([first, &wrong]), WindowKind::Symmetric).map(drop);
    assert!(matches!(result, Err(Error::WrongDevice { .. })));
    assert!(!fake.log().iter().any(|line| line.starts_with("window")));
    // NCCL refuses the second.
    fake.set(Knob::ManagementResult, 3);
    let result = windows(ranks.iter().zip([first, second]), WindowKind::Symmetric).map(drop);
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclCommWindowRegister", .. })));
    assert_eq!(fake.log().last().unwrap(), "group of 0 cancelled");
    assert!(windows::<Memory>([], WindowKind::Plain).unwrap().is_empty());
}

#[test]
fn where_nccl_makes_no_windows_collectives_work_as_ever() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 64), fake.memory(communicator.stream(), 64)];
    let [first, second] = &mut memory;
    fake.set(Knob::NoWindows, 1);
    let window = communicator.window(first, WindowKind::Symmetric).unwrap();
    let registration = communicator.register(second).unwrap();
    assert!(!window.is_active());
    assert_eq!(window.address().unwrap(), 0);
    communicator.all_reduce_in_place(&mut first.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    fake.log();
    // SAFETY: it is refused.
    let put = unsafe { communicator.put(&first.slice::<f32>(..1).unwrap(), &window, 0, Signal::new(0)) };
    let wanted = "ncclPutSignal: NCCL made no window for the memory here (Window::is_active)";
    assert_eq!(put.unwrap_err().to_string(), wanted);
    drop((window, registration));
    drop(memory);
    let log = fake.log();
    assert_eq!(log, ["synchronize s1", "ncclMemFree m1", "synchronize s1", "ncclMemFree m2"]);
}

/// NCCL's own thread writes the handle of a non-blocking communicator's window.
#[test]
fn hole_14_a_window_is_waited_for() {
    for answer in [0, IN_PROGRESS] {
        let fake = Fake::new();
        let deadline = std::time::Duration::from_millis(20);
        let communicator = fake.communicator(&Config::new().blocking(false).deadline(deadline));
        let memory = fake.memory(communicator.stream(), 64);
        let made = "window comm1 m1 bytes 64 flags 1 as win1";
        fake.set(Knob::ManagementResult, answer);
        drop(communicator.window(&memory, WindowKind::Symmetric).unwrap());
        assert_eq!(fake.log(), ["synchronize s1", made, "deregister win1 comm1"]);

        fake.set(Knob::ManagementResult, answer);
        fake.set(Knob::AsyncResult, IN_PROGRESS);
        let error = communicator.window(&memory, WindowKind::Symmetric).map(drop).unwrap_err();
        assert!(matches!(error, Error::Deadline { operation: "ncclCommWindowRegister", .. }), "{error}");
        assert_eq!(fake.log()[2..], ["abort comm1"]);
        fake.set(Knob::AsyncResult, 0);
    }
}

#[test]
fn if_the_work_fails_the_communicator_is_aborted_with_all_its_objects() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 64), fake.memory(communicator.stream(), 64)];
    let [first, second] = &mut memory;
    let window = communicator.window(first, WindowKind::Symmetric).unwrap();
    let registration = communicator.register(second).unwrap();
    fake.log();
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    drop(window);
    assert_eq!(fake.log(), ["abort comm1"]);
    drop(registration);
    assert_eq!(fake.log(), [""; 0]);
    drop(memory);
    assert_eq!(fake.log().len(), 4, "freed");
}

/// NCCL's abort waits for the graphs, which end before it.
#[test]
fn when_the_work_fails_the_communicator_is_aborted_after_its_graphs() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 64), fake.memory(communicator.stream(), 64)];
    let [shared, other] = &mut memory;
    let mut view = other.slice_mut::<f32>(..2).unwrap();
    let graph = Graph::capture(|capture| capture.on(&communicator).broadcast_in_place(&mut view, 0)).unwrap();
    let window = communicator.window(shared, WindowKind::Symmetric).unwrap();
    fake.log();
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    drop(window);
    assert_eq!(fake.log(), ["destroy graph1", "abort comm1"]);
    assert!(matches!(graph.launch(), Err(Error::Aborted { operation: "cuGraphLaunch" })));
    drop(graph);
    drop(memory);
    let freed = ["synchronize s1", "ncclMemFree m1", "synchronize s1", "ncclMemFree m2"];
    assert_eq!(fake.log(), freed);
    drop(communicator);
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn one_sided_operations_reach_nccl_immediately_and_in_groups() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let memory = fake.memory(communicator.stream(), 64);
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    let part = memory.slice::<f32>(2..4).unwrap();
    let signal = Signal { index: 1, context: 2, ..Signal::new(0) };
    let lines = [
        "launch put comm1 m1+8->win1+56 count 2 type 7 peer 0 signal 1 context 2 flags 0 s1 device 0",
        "launch signal comm1 peer 0 signal 1 context 2 flags 0 s1 device 0",
        "launch wait_signals comm1 3 times peer 0 signal 1 context 2, 1 times peer 1 signal 0 context 0 s1 \
         device 0",
    ];
    let waits = [(signal, 3), (Signal::new(1), 1)];
    fake.log();
    // SAFETY: the fake does nothing with it.
    unsafe { communicator.put(&part, &window, 14, signal) }.unwrap();
    communicator.signal(signal).unwrap();
    communicator.wait_signals(&waits).unwrap();
    assert_eq!(fake.log(), lines);
    group(|group| {
        let on = group.on(&communicator);
        // SAFETY: the fake does nothing with it.
        unsafe { on.put(&part, &window, 14, signal) }?;
        on.signal(signal)?;
        on.wait_signals(&waits)?;
        assert_eq!(fake.log(), [""; 0]);
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), lines);
}

#[test]
fn hole_6_one_sided_operations_stay_inside_their_window() {
    let fake = Fake::new();
    let (communicator, other) = (fake.communicator(&Config::new()), fake.communicator(&Config::new()));
    let memory = fake.memory(communicator.stream(), 64);
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    let part = memory.slice::<f32>(..2).unwrap();
    fake.log();
    // SAFETY: all of them are refused.
    let put = |by: &Communicator, offset, peer| unsafe { by.put(&part, &window, offset, Signal::new(peer)) };
    // Past the end, and past everything.
    for offset in [15, 16, usize::MAX - 3, usize::MAX] {
        let result = put(&communicator, offset, 0);
        assert!(matches!(result, Err(Error::View { len: 16, .. })), "{offset}: {result:?}");
    }
    let wrong = |result: Result, wanted: &str| assert_eq!(result.unwrap_err().to_string(), wanted);
    wrong(put(&other, 0, 0), "ncclPutSignal: the window was made with another communicator");
    let no_rank = "rank 2 of 2: a rank is at least 0 and below the size, and the size is between 1 and \
                   2147483647";
    wrong(put(&communicator, 0, 2), no_rank);
    wrong(communicator.signal(Signal::new(2)), no_rank);
    let none = "ncclWaitSignal: 0 signals to wait for; between 1 and 2147483647 are possible";
    not_allowed(communicator.wait_signals(&[]), none);
    wrong(communicator.wait_signals(&[(Signal::new(0), 1), (Signal::new(2), 1)]), no_rank);
    let many = 1 << 31;
    wrong(
        communicator.wait_signals(&[(Signal::new(0), many)]),
        "ncclWaitSignal: 2147483648 signals to wait for; between 1 and 2147483647 are possible",
    );
    wrong(
        communicator.wait_signals(&[(Signal::new(0), 0)]),
        "ncclWaitSignal: 0 signals to wait for; between 1 and 2147483647 are possible",
    );
    assert_eq!(fake.log(), [""; 0]);
}

/// NCCL 2.28.9 gives wrong results with such offsets.
#[test]
fn misaligned_offsets_are_refused() {
    let fake = Fake::new();
    let misread = |library, kind, operation: &dyn Fn(&Communicator, &Memory, &mut Memory) -> Result| {
        let communicator = fake.rank(library, 1, 2, &Config::new());
        let (send, mut receive) = (memory(&communicator), memory(&communicator));
        let _windows = [&send, &receive].map(|memory| communicator.window(memory, kind).unwrap());
        matches!(operation(&communicator, &send, &mut receive), Err(Error::Misaligned { .. }))
    };
    let apart = |offset| {
        move |communicator: &Communicator, send: &Memory, receive: &mut Memory| {
            communicator
                .all_gather(&send.slice::<u8>(offset..offset + 3)?, &mut receive.slice_mut::<u8>(1..7)?)
        }
    };
    // Rank 1's part begins at byte 3, and both ranks must agree.
    let in_place = |communicator: &Communicator, _: &Memory, receive: &mut Memory| {
        let first = fake.rank(communicator.library(), 0, 2, &Config::new());
        let mut room = memory(&first);
        let _of_rank_0 = first.window(&room, WindowKind::Symmetric)?;
        let answer = first.all_gather_in_place(&mut room.slice_mut::<u8>(..6)?);
        assert!(matches!(answer, Err(Error::Misaligned { .. })), "{answer:?}");
        communicator.all_gather_in_place(&mut receive.slice_mut::<u8>(..6)?)
    };
    let grouped = |communicator: &Communicator, send: &Memory, receive: &mut Memory| {
        let (send, mut receive) = (send.slice::<u8>(2..5)?, receive.slice_mut::<u8>(..6)?);
        group(|group| group.on(communicator).all_gather(&send, &mut receive))
    };
    let reduced = |offset: usize, target: usize| {
        move |communicator: &Communicator, send: &Memory, receive: &mut Memory| {
            let mut receive = receive.slice_mut::<u8>(target..target + 3)?;
            communicator.all_reduce(&send.slice::<u8>(offset..offset + 3)?, &mut receive, Sum)
        }
    };
    // The parts of two bytes begin at bytes 4 and 6.
    let scattered = |communicator: &Communicator, send: &Memory, receive: &mut Memory| {
        communicator.reduce_scatter(&send.slice::<u8>(4..8)?, &mut receive.slice_mut::<u8>(..2)?, Sum)
    };
    // Parts of one element of two bytes, which begin at bytes 4 and 6.
    let halves = |communicator: &Communicator, _: &Memory, receive: &mut Memory| {
        communicator.all_gather_in_place(&mut receive.slice_mut::<f16>(2..4)?)
    };
    // Offset and parts are odd, their sum is even.
    let both = |communicator: &Communicator, _: &Memory, receive: &mut Memory| {
        communicator.reduce_scatter_in_place(&mut receive.slice_mut::<u8>(2..6)?, Sum)
    };
    // The offset of the buffer counts; it ends with the window.
    let last = |communicator: &Communicator, _: &Memory, receive: &mut Memory| {
        communicator.reduce_scatter_in_place(&mut receive.slice_mut::<u8>(58..64)?, Sum)
    };
    let aligned = |communicator: &Communicator, _: &Memory, receive: &mut Memory| {
        communicator.reduce_scatter_in_place(&mut receive.slice_mut::<u8>(4..12)?, Sum)?;
        communicator.all_gather_in_place(&mut receive.slice_mut::<u8>(4..12)?)?;
        communicator.all_reduce_in_place(&mut receive.slice_mut::<u8>(4..7)?, Sum)
    };
    let broadcast = |communicator: &Communicator, _: &Memory, receive: &mut Memory| {
        communicator.broadcast_in_place(&mut receive.slice_mut::<u8>(1..7)?, 0)
    };
    let old = fake.library_2_28();
    assert!(misread(old, WindowKind::Symmetric, &apart(2)));
    assert!(misread(old, WindowKind::Symmetric, &in_place));
    assert!(misread(old, WindowKind::Symmetric, &grouped));
    assert!(misread(old, WindowKind::Symmetric, &reduced(2, 0)));
    assert!(misread(old, WindowKind::Symmetric, &scattered));
    assert!(misread(old, WindowKind::Symmetric, &halves));
    assert!(misread(old, WindowKind::Symmetric, &both));
    assert!(misread(old, WindowKind::Symmetric, &last));
    assert!(!misread(old, WindowKind::Symmetric, &aligned));
    // Only what is read counts.
    assert!(!misread(old, WindowKind::Symmetric, &apart(4)));
    assert!(!misread(old, WindowKind::Symmetric, &reduced(4, 1)));
    assert!(!misread(old, WindowKind::Symmetric, &broadcast));
    assert!(!misread(old, WindowKind::Plain, &apart(2)));
    assert!(!misread(fake.library(), WindowKind::Symmetric, &apart(2)));
}

fn memory(communicator: &Communicator) -> Memory {
    Memory::alloc(communicator.library(), communicator.stream(), 64).unwrap()
}

/// Each operation writes the byte on the current stream of the communicator.
#[test]
fn the_byte_of_the_fence_is_freed_after_the_last_stream_that_wrote_it() {
    let fake = Fake::new();
    let mut communicator = fake.rank(fake.library_2_28(), 1, 2, &Config::new());
    let (first, second) =
        (communicator.stream().clone(), communicator.stream().context().new_stream().unwrap());
    let mut memory = fake.memory(&first, 64);
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    communicator.set_stream(&second).unwrap();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..).unwrap(), Sum).unwrap();
    assert!(fake.log().contains(&"a byte is written on s2".to_owned()));
    // An abort does not wait for a stream.
    communicator.abort_handle().abort().unwrap();
    drop((window, communicator));
    assert_eq!(fake.log(), ["abort comm1", "synchronize s2", "cuMemFree m2"]);
}

/// The error is that of other code.
#[test]
fn what_is_received_is_there_also_when_cudarc_has_noted_an_error_before_the_wait() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let memory = fake.memory(&other, 64);
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    fake.log();
    let error = cudarc::driver::DriverError(cudarc::driver::sys::CUresult::CUDA_ERROR_INVALID_VALUE);
    communicator.stream().context().record_err(Err::<(), _>(error));
    communicator.wait_signals(&[(Signal::new(0), 1)]).unwrap();
    assert_eq!(communicator.stream().context().check_err(), Err(error));
    let mut host = [0f32; 16];
    other.memcpy_dtoh(&memory.slice::<f32>(..).unwrap(), &mut host).unwrap();
    fake.log();
    drop(window);
}
