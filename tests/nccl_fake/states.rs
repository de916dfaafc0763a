//! Communicators that are revoked, finalized, suspended, moved or aborted: allowed operations, and their end.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Graph, Grow, Memory, MemoryStatistics, ResultCode, Shrink,
    Signal, Split, WindowKind, group,
};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, REMOTE_ERROR};

type Result<T = ()> = std::result::Result<T, Error>;

const REVOKED: &str = "its operations have been stopped: split or shrink it, or make a new one";
const FINALIZED: &str = "it has been finalized: make a new one";
const SUSPENDED: &str = "it is suspended: resume it first";

#[track_caller]
fn refused<T>(result: Result<T>, operation: &str, reason: &str) {
    let error = result.err().unwrap().to_string();
    assert_eq!(error, format!("{operation}: the communicator cannot be used: {reason}"));
}

/// Everything that needs a working communicator, none of which reaches NCCL.
fn works_no_more(fake: &Fake, communicator: &Communicator, memory: &mut Memory, reason: &str) {
    fake.log();
    {
        let mut view = memory.slice_mut::<f32>(..2).unwrap();
        refused(communicator.all_reduce_in_place(&mut view, Sum), "ncclAllReduce", reason);
        refused(communicator.send(&view.as_view(), 0), "ncclSend", reason);
        refused(
            group(|group| group.on(communicator).broadcast_in_place(&mut view, 0)),
            "ncclBroadcast",
            reason,
        );
    }
    refused(communicator.scaled_sum(1.0f32), "ncclRedOpCreatePreMulSum", reason);
    refused(communicator.register(memory), "ncclCommRegister", reason);
    refused(communicator.window(memory, WindowKind::Plain), "ncclCommWindowRegister", reason);
    refused(communicator.grow_id(), "ncclCommGetUniqueId", reason);
    refused(communicator.revoke(), "ncclCommRevoke", reason);
    refused(communicator.finalize(), "ncclCommFinalize", reason);
    refused(communicator.suspend(), "ncclCommSuspend", reason);
    // A window waits for the memory's zeroes first.
    let log = fake.log();
    assert!(log.len() == 1 && log[0].starts_with("synchronize"), "{log:#?}");
    assert_eq!(communicator.device().unwrap(), 0);
    communicator.async_error().unwrap();
    communicator.memory_statistics().unwrap();
}

#[test]
fn a_revoked_communicator_can_be_split_and_shrunk_and_nothing_else() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    fake.set(Knob::Hang, 1);
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    communicator.revoke().unwrap();
    // Hanging work no longer hangs.
    communicator.stream().synchronize().unwrap();
    works_no_more(&fake, &communicator, &mut memory, REVOKED);
    refused(communicator.resume(), "ncclCommResume", REVOKED);
    let rest = communicator.shrink(&Shrink::without(&[0])).unwrap();
    let part = communicator.split(&Split::color(0)).unwrap();
    fake.log();
    rest.broadcast_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), 0).unwrap();
    communicator.close().unwrap();
    drop((rest, part));
    assert_eq!(fake.log()[1..], ["destroy comm1", "destroy comm2", "destroy comm3"]);
}

#[test]
fn a_finalized_communicator_can_only_be_closed() {
    let fake = Fake::new();
    for closed in [true, false] {
        let communicator = fake.communicator(&Config::new());
        let mut memory = fake.memory(communicator.stream(), 8);
        communicator.finalize().unwrap();
        works_no_more(&fake, &communicator, &mut memory, FINALIZED);
        refused(communicator.resume(), "ncclCommResume", FINALIZED);
        refused(communicator.split(&Split::color(0)), "ncclCommSplit", FINALIZED);
        refused(communicator.shrink(&Shrink::without(&[0]).abort()), "ncclCommShrink", FINALIZED);
        refused(communicator.grow(&Grow::to(3)), "ncclCommGrow", FINALIZED);
        fake.log();
        if closed {
            communicator.close().unwrap();
        } else {
            drop(communicator);
        }
        assert!(fake.log()[0].starts_with("destroy comm"));
    }
}

/// NCCL waits for the work itself. Only objects that must be deregistered before need the work to be done.
#[test]
fn finalizing_waits_for_the_work_where_there_is_something_to_take_back() {
    let fake = Fake::new();
    let config = Config::new().deadline(std::time::Duration::from_millis(20));
    for registered in [false, true] {
        let communicator = fake.communicator(&config);
        let memory = fake.memory(communicator.stream(), 8);
        let registration = communicator.register(&memory).unwrap();
        let _kept = registered.then_some(registration);
        fake.set(Knob::StreamBusy, i32::MAX);
        let result = communicator.finalize();
        fake.set(Knob::StreamBusy, 0);
        assert_eq!(matches!(result, Err(Error::Deadline { .. })), registered, "{result:?}");
        assert_eq!(result.is_ok(), !registered);
    }
}

#[test]
fn a_suspended_communicator_works_again_when_it_is_resumed() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let statistics = |suspended| -> MemoryStatistics {
        let statistics = communicator.memory_statistics().unwrap();
        assert_eq!((statistics.suspendable, statistics.persistent, statistics.total), (1000, 200, 1200));
        assert_eq!(statistics.suspended, suspended);
        statistics
    };
    assert_ne!(statistics(false), {
        fake.set(Knob::StreamBusy, 3);
        communicator.suspend().unwrap();
        statistics(true)
    });
    assert_eq!(fake.log(), ["suspend comm1 flags 1"]);
    works_no_more(&fake, &communicator, &mut memory, SUSPENDED);
    refused(communicator.split(&Split::color(0)), "ncclCommSplit", SUSPENDED);
    refused(communicator.shrink(&Shrink::without(&[0])), "ncclCommShrink", SUSPENDED);
    communicator.resume().unwrap();
    // The second call has no effect.
    communicator.resume().unwrap();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    assert_eq!(
        fake.log(),
        ["resume comm1", "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0"]
    );
    communicator.suspend().unwrap();
    communicator.close().unwrap();
    assert_eq!(fake.log(), ["suspend comm1 flags 1", "destroy comm1"]);
}

/// Brings a communicator into a state.
type Change = fn(&Communicator) -> Result;
const CHANGES: [(&str, Change); 4] = [
    ("ncclCommRevoke", Communicator::revoke),
    ("ncclCommFinalize", Communicator::finalize),
    ("ncclCommSuspend", Communicator::suspend),
    ("ncclCommResume", |communicator| communicator.suspend().and_then(|()| communicator.resume())),
];

#[test]
fn an_abort_ends_a_communicator_in_every_state() {
    let fake = Fake::new();
    for (_, change) in CHANGES {
        let communicator = fake.communicator(&Config::new());
        change(&communicator).unwrap();
        fake.log();
        communicator.abort_handle().abort().unwrap();
        let log = fake.log();
        assert!(log.len() == 1 && log[0].starts_with("abort comm"), "{log:#?}");
        for (_, change) in CHANGES {
            assert!(matches!(change(&communicator), Err(Error::Aborted { .. })));
        }
        assert!(matches!(communicator.memory_statistics(), Err(Error::Aborted { .. })));
        assert!(matches!(communicator.close(), Err(Error::Aborted { .. })));
        assert_eq!(fake.log(), [""; 0], "aborted once");
    }
}

#[test]
fn a_change_of_state_is_waited_for_fails_or_is_missing() {
    let fake = Fake::new();
    let name = |lines: Vec<String>| lines.last().unwrap().split(' ').next().unwrap().to_owned();
    for (operation, change) in CHANGES {
        if operation == "ncclCommResume" {
            continue;
        }
        // In the background.
        let config = Config::new().blocking(false).deadline(std::time::Duration::from_millis(20));
        let communicator = fake.communicator(&config);
        fake.set(Knob::ManagementResult, IN_PROGRESS);
        change(&communicator).unwrap();
        assert!(operation.to_lowercase().ends_with(&name(fake.log())));
        drop(communicator);
        fake.log();

        // Refused: nothing has changed, unless NCCL has begun to end it.
        let communicator = fake.communicator(&Config::new());
        fake.set(Knob::ManagementResult, 5);
        let error = change(&communicator).unwrap_err();
        assert!(
            matches!(error, Error::Nccl { operation: seen, code: ResultCode(5), .. } if seen == operation)
        );
        if operation == "ncclCommFinalize" {
            refused(change(&communicator), operation, FINALIZED);
        } else {
            change(&communicator).unwrap();
        }
        drop(communicator);

        // Inside a group.
        let communicator = fake.communicator(&Config::new());
        group(|_| {
            let refused = change(&communicator);
            assert!(matches!(refused, Err(Error::InsideGroup { operation: seen }) if seen == operation));
            Ok::<_, Error>(())
        })
        .unwrap();
    }
    let old = fake.rank(fake.old_library(), 1, 2, &Config::new());
    assert!(matches!(old.revoke(), Err(Error::MissingSymbol(_))));
    assert!(matches!(old.suspend(), Err(Error::MissingSymbol(_))));
    assert!(matches!(old.memory_statistics(), Err(Error::MissingSymbol(_))));
    old.finalize().unwrap();
}

#[test]
fn a_state_change_that_never_completes_reaches_its_deadline() {
    let fake = Fake::new();
    let config = Config::new().blocking(false).deadline(std::time::Duration::from_millis(20));
    for change in [Communicator::revoke, Communicator::finalize] {
        fake.set(Knob::AsyncResult, 0);
        let communicator = fake.communicator(&config);
        fake.set(Knob::ManagementResult, IN_PROGRESS);
        fake.set(Knob::AsyncResult, IN_PROGRESS);
        assert!(matches!(change(&communicator), Err(Error::Deadline { .. })));
        assert!(fake.log()[1].starts_with("abort comm"));
    }
    // Queued work is waited for before the memory is released.
    fake.set(Knob::AsyncResult, 0);
    let communicator = fake.communicator(&config);
    fake.set(Knob::StreamBusy, i32::MAX);
    assert!(matches!(communicator.suspend(), Err(Error::Deadline { operation: "ncclCommSuspend", .. })));
    assert_eq!(fake.log(), ["abort comm3"], "not suspended");
    assert!(matches!(communicator.suspend(), Err(Error::Aborted { .. })));
    fake.set(Knob::StreamBusy, 0);
    let communicator = fake.communicator(&config);
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    assert!(matches!(communicator.suspend(), Err(Error::Nccl { code: ResultCode(6), .. })));
    assert_eq!(fake.log(), ["abort comm4"], "not suspended");
}

#[test]
fn a_communicator_moves_to_another_stream_of_its_device() {
    let fake = Fake::new();
    let mut communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let mut memory = fake.memory(&other, 8);
    communicator.set_stream(&other).unwrap();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    let launch = "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s2 device 0";
    assert_eq!(fake.log(), ["e1 records s1", "s2 waits e1", launch]);
    // One that cannot move keeps its stream.
    let error = communicator.set_stream(&fake.stream(1)).unwrap_err();
    assert!(matches!(error, Error::WrongDevice { buffer: "stream", expected: 0, found: 1, .. }), "{error}");
    let per_thread = communicator.stream().context().per_thread_stream();
    assert!(matches!(communicator.set_stream(&per_thread), Err(Error::Stream { .. })));
    group(|_| {
        assert!(matches!(communicator.set_stream(&other), Err(Error::InsideGroup { .. })));
        Ok::<_, Error>(())
    })
    .unwrap();
    fake.log();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    assert_eq!(fake.log(), [launch]);
    // Ending it waits for the new stream.
    let registration = communicator.register(&memory).unwrap();
    fake.set(Knob::StreamBusy, 3);
    drop(registration);
    drop(communicator);
    assert_eq!(fake.log()[1..], ["deregister reg1 comm1", "destroy comm1"]);
}

/// A graph runs on the stream that the communicator had at the capture.
#[test]
fn the_stream_that_a_communicator_had_before_is_waited_for_too() {
    let fake = Fake::new();
    let mut communicator = fake.communicator(&Config::new().deadline(Duration::from_millis(30)));
    let before = communicator.stream().clone();
    let mut memory = fake.memory(&before, 8);
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, Sum)
    })
    .unwrap();
    communicator.set_stream(&before.context().new_stream().unwrap()).unwrap();
    fake.log();
    fake.set(Knob::Hang, 1);
    graph.launch().unwrap();
    assert_eq!(fake.log()[0], "launch graph1 on s1");
    assert!(matches!(communicator.close(), Err(Error::Deadline { .. })));
    assert_eq!(fake.log(), ["destroy graph1", "abort comm1"]);
}

/// No call of another thread comes between the end of the queued work and NCCL's result.
#[test]
fn a_graph_is_not_launched_once_a_suspension_has_begun() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, Sum)
    })
    .unwrap();
    // The work ends after a launch has been refused.
    fake.set(Knob::StreamBusy, i32::MAX);
    let communicator = thread::scope(|scope| {
        let suspended = scope.spawn(move || communicator.suspend().map(|()| communicator));
        let started = Instant::now();
        let refusal = loop {
            match graph.launch() {
                // Emptied, since launches fill the log within seconds.
                Ok(()) if started.elapsed() < Duration::from_secs(20) => drop(fake.log()),
                result => break result,
            }
        };
        fake.set(Knob::StreamBusy, 0);
        refused(refusal, "cuGraphLaunch", SUSPENDED);
        suspended.join().unwrap().unwrap()
    });
    assert_eq!(fake.log().last().unwrap(), "suspend comm1 flags 1");
    refused(graph.launch(), "cuGraphLaunch", SUSPENDED);
    communicator.resume().unwrap();
    graph.launch().unwrap();
}

/// Its graphs, windows and registrations have ended, and NCCL may have freed resources of operations.
#[test]
fn a_communicator_that_could_not_be_finalized_can_only_be_ended() {
    let ends: [fn(Communicator); 3] = [
        |communicator| communicator.close().unwrap(),
        drop,
        |communicator| communicator.abort_handle().abort().unwrap(),
    ];
    for (end, expected) in ends.into_iter().zip(["destroy comm1", "destroy comm1", "abort comm1"]) {
        let fake = Fake::new();
        let communicator = fake.communicator(&Config::new());
        let mut memory = fake.memory(communicator.stream(), 16);
        let registration = communicator.register(&memory).unwrap();
        let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
        fake.log();
        fake.set(Knob::ManagementResult, 3);
        let error = communicator.finalize().unwrap_err();
        assert!(matches!(error, Error::Nccl { operation: "ncclCommFinalize", code: ResultCode(3), .. }));
        let mut log = fake.log();
        log.sort();
        assert_eq!(log, ["deregister reg1 comm1", "deregister win1 comm1"]);
        assert!(!window.is_active());
        {
            let part = memory.slice::<f32>(..2).unwrap();
            // SAFETY: nothing is written.
            let put = unsafe { communicator.put(&part, &window, 2, Signal::new(0)) };
            let error = put.unwrap_err().to_string();
            assert!(error.contains("NCCL made no window for the memory here"), "{error}");
        }
        drop((window, registration));
        works_no_more(&fake, &communicator, &mut memory, FINALIZED);
        end(communicator);
        assert_eq!(fake.log(), [expected]);
    }
}

/// The same where NCCL's own thread fails.
#[test]
fn a_communicator_whose_finalization_fails_in_the_background_is_aborted() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().blocking(false));
    let mut memory = fake.memory(communicator.stream(), 8);
    fake.set(Knob::ManagementResult, IN_PROGRESS);
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    assert!(matches!(communicator.finalize(), Err(Error::Nccl { code: ResultCode(6), .. })));
    let result = communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum);
    refused(result, "ncclAllReduce", FINALIZED);
    drop(communicator);
    assert_eq!(fake.log(), ["finalize comm1", "abort comm1"]);
}

/// If a capture begins while a communicator is about to be finalized, it keeps its operators.
#[test]
fn operators_outlive_an_end_that_a_capture_prevents() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 8);
    let stream = Arc::clone(communicator.stream());
    let half = communicator.scaled_sum(0.5f32).unwrap();
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..2)?, Sum)
    })
    .unwrap();
    // The work ends after the capture has begun.
    fake.set(Knob::StreamBusy, i32::MAX);
    let result = thread::scope(|scope| {
        scope.spawn(|| {
            while graph.launch().is_ok() {
                // Emptied, since launches fill the log within seconds.
                drop(fake.log());
            }
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        });
        communicator.finalize()
    });
    assert!(matches!(result, Err(Error::Stream { operation: "ncclCommFinalize", .. })), "{result:?}");
    fake.set(Knob::StreamBusy, 0);
    drop(stream.end_capture(CUgraphInstantiate_flags(0)).unwrap());
    fake.log();
    communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), &half).unwrap();
    drop(half);
    let launch = "launch all_reduce comm1 m1->m1 count 2 type 7 op 5 s1 device 0";
    assert_eq!(fake.log(), [launch, "destroy op5 comm1"]);
}
