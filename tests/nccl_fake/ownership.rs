//! Safe programs that once made NCCL use freed memory or left work unordered: each is now refused, ordered,
//! or an owner.

use std::mem;
use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    Collectives, Config, Error, Graph, Memory, Shrink, Signal, Split, WindowKind, group,
};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, DevicePtrMut, DriverError};

use crate::IN_PROGRESS;
use crate::fake::{Fake, Knob, worker};

const NOTED: DriverError = DriverError(CUresult::CUDA_ERROR_INVALID_VALUE);
const LAUNCH: &str = "launch all_reduce comm1 m1->m1 count 4 type 7 op 0 s1 device 0";

/// Effect of a failed destructor of cudarc, on any thread.
fn note(context: &CudaContext) {
    context.record_err::<()>(Err(NOTED));
}

fn is_noted(result: Result<(), Error>) {
    assert!(matches!(result, Err(Error::Cuda { error: NOTED, .. })), "{result:?}");
}

/// cudarc then waits for no event and records none.
#[test]
fn an_error_that_cudarc_has_noted_ends_a_call_before_anything_is_queued() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let (stream, context) = (communicator.stream().clone(), communicator.stream().context().clone());
    let other = context.new_stream().unwrap();
    let mut data = stream.alloc_zeros::<f32>(4).unwrap();
    other.memcpy_htod(&[1.0f32; 4], &mut data).unwrap();
    note(&context);
    fake.log();
    is_noted(communicator.all_reduce_in_place(&mut data, Sum));
    note(&context);
    is_noted(group(|group| group.on(&communicator).all_reduce_in_place(&mut data, Sum)));
    let log = fake.log();
    assert!(!log.iter().any(|line| line.contains("all_reduce")), "{log:#?}");
    // Reported once: the next call waits for the copy, and records.
    communicator.all_reduce_in_place(&mut data, Sum).unwrap();
    let log = fake.log();
    let launched = log.iter().position(|line| line == LAUNCH).unwrap();
    assert!(log[..launched].iter().any(|line| line.starts_with("s1 waits")), "{log:#?}");
    assert!(log[launched..].iter().any(|line| line.ends_with("records s1")), "{log:#?}");
}

/// A memory has no events, so none is missed: code that checks for the error finds it.
#[test]
fn an_error_that_cudarc_has_noted_is_no_matter_of_buffers_without_events() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let context = communicator.stream().context();
    let mut memory = fake.memory(communicator.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..).unwrap();
    note(context);
    communicator.all_reduce_in_place(&mut view, Sum).unwrap();
    group(|group| group.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
    assert_eq!(fake.log(), [LAUNCH; 2]);
    assert_eq!(context.check_err(), Err(NOTED));
}

/// The events after the work are not recorded then, so the work must be done before the buffer is used again.
#[test]
fn an_error_recorded_during_a_call_is_returned_once_the_work_is_done() {
    for grouped in [false, true] {
        let fake = Fake::new();
        let communicator = fake.communicator(&Config::new());
        let context = communicator.stream().context().clone();
        let _other = context.new_stream().unwrap();
        let mut data = communicator.stream().alloc_zeros::<f32>(4).unwrap();
        drop(data.device_ptr_mut(communicator.stream()));
        fake.log();
        fake.set(Knob::CallMillis, -1);
        let result = thread::scope(|scope| {
            scope.spawn(|| {
                fake.until("inside NCCL");
                note(&context);
                fake.set(Knob::CallMillis, 0);
            });
            if grouped {
                group(|group| group.on(&communicator).all_reduce_in_place(&mut data, Sum))
            } else {
                communicator.all_reduce_in_place(&mut data, Sum)
            }
        });
        is_noted(result);
        let log = fake.log();
        let launched = log.iter().position(|line| line == LAUNCH).unwrap();
        assert!(log[launched..].contains(&"synchronize s1".to_owned()), "{log:#?}");
    }
}

/// Another thread's copy on the communicator's stream goes to that stream and not into the graph.
#[test]
fn a_copy_of_another_thread_is_not_captured() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream().clone();
    let (mut memory, mut theirs) = (fake.memory(&stream, 16), fake.memory(&stream, 16));
    let mut slice = stream.alloc_zeros::<f32>(2).unwrap();
    let mut view = memory.slice_mut::<f32>(..4).unwrap();
    fake.log();
    fake.set(Knob::CallMillis, -1);
    let graph = thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("inside NCCL");
            let host = vec![1.0f32, 2.0];
            stream.memcpy_htod(&host, &mut theirs.slice_mut::<f32>(..2).unwrap()).unwrap();
            stream.memcpy_htod(&host, &mut slice).unwrap();
            fake.set(Knob::CallMillis, 0);
        });
        Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap()
    });
    drop((theirs, slice));
    fake.log();
    graph.launch().unwrap();
    let log = fake.log();
    assert_eq!(log[0], "launch graph1 on s1");
    assert_eq!(log.len(), 2, "nothing but the collective: {log:#?}");
}

/// NCCL is aborted at the deadline, which would wait for a graph of this thread.
#[test]
fn deadlines_and_watchdogs_do_not_affect_graphs() {
    let fake = Fake::new();
    let config = Config::new().blocking(false).deadline(Duration::from_millis(50));
    let communicator = fake.communicator(&config);
    let mut memory = fake.memory(communicator.stream(), 16);
    let mut view = memory.slice_mut::<f32>(..4).unwrap();
    // NCCL would accept it and return success.
    fake.set(Knob::Worker, worker::OFF);
    let captured = Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, Sum));
    assert!(captured.unwrap_err().to_string().contains("must be blocking"));
    fake.log();
    fake.set(Knob::NcclResult, IN_PROGRESS);
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    let result = communicator.all_reduce_in_place(&mut view, Sum);
    assert!(matches!(result, Err(Error::Deadline { .. })), "{result:?}");
    assert_eq!(fake.log().last().unwrap(), "abort comm1");
}

/// A window's memory may belong to another stream than the communicator's, on which it is read.
#[test]
fn waiting_for_signals_orders_the_streams_of_all_windows() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (memory, mut own) = (fake.memory(&other, 64), fake.memory(communicator.stream(), 64));
    let _windows = [&memory, &own].map(|memory| communicator.window(memory, WindowKind::Symmetric).unwrap());
    fake.log();
    let wait = "launch wait_signals comm1 1 times peer 0 signal 0 context 0 s1 device 0";
    communicator.wait_signals(&[(Signal::new(0), 1)]).unwrap();
    assert_eq!(fake.log(), [wait, "e1 records s1", "s2 waits e1"]);
    group(|group| group.on(&communicator).wait_signals(&[(Signal::new(0), 1)])).unwrap();
    assert_eq!(fake.log(), [wait, "e1 records s1", "s2 waits e1"]);
    let graph =
        Graph::capture(|capture| capture.on(&communicator).wait_signals(&[(Signal::new(0), 1)])).unwrap();
    fake.log();
    graph.launch().unwrap();
    assert!(fake.log().last().unwrap().starts_with("s2 waits"));
    // Other operations are not ordered with the windows' streams.
    communicator.broadcast_in_place(&mut own.slice_mut::<f32>(..2).unwrap(), 0).unwrap();
    assert_eq!(fake.log(), ["launch broadcast comm1 m2->m2 count 2 type 7 op -1 root 0 s1 device 0"]);
}

/// Other ranks still write into them.
#[test]
fn a_graph_that_waits_for_signals_orders_the_streams_of_windows_that_are_made_later() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (memory, own) = (fake.memory(&other, 64), fake.memory(communicator.stream(), 64));
    let mut buffer = fake.memory(communicator.stream(), 8);
    let waits = [(Signal::new(0), 1)];
    let alone = Graph::capture(|capture| capture.on(&communicator).wait_signals(&waits)).unwrap();
    let grouped = Graph::capture(|capture| {
        capture.group(|capture| capture.on(&communicator).wait_signals(&waits))?;
        capture.on(&communicator).all_reduce_in_place(&mut buffer.slice_mut::<f32>(..)?, Sum)
    });
    let grouped: Result<_, Error> = grouped;
    let without = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut buffer.slice_mut::<f32>(..)?, Sum)
    });
    let without: Result<_, Error> = without;
    let _windows = [&memory, &own].map(|memory| communicator.window(memory, WindowKind::Symmetric).unwrap());
    for (graph, launched, ordered) in
        [(alone, 1, true), (grouped.unwrap(), 2, true), (without.unwrap(), 1, false)]
    {
        fake.log();
        graph.launch().unwrap();
        let log = fake.log();
        let after = &log[1 + launched..];
        let is_ordered = matches!(after, [records, waits]
            if records.ends_with("records s1") && waits.starts_with("s2 waits"));
        assert!(if ordered { is_ordered } else { after.is_empty() }, "{log:#?}");
    }
}

/// Waiting for the work would invalidate the capture, and end the communicator.
#[test]
fn a_registration_dropped_during_a_capture_lasts_until_the_communicator_ends() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let stream = communicator.stream().clone();
    let memory = fake.memory(communicator.stream(), 8);
    let registration = communicator.register(&memory).unwrap();
    let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
    stream.begin_capture(mode).unwrap();
    fake.log();
    drop(registration);
    drop(memory);
    assert_eq!(fake.log(), [""; 0]);
    stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
    communicator.async_error().unwrap();
    fake.log();
    drop(communicator);
    assert_eq!(fake.log(), ["deregister reg1 comm1", "destroy comm1", "synchronize s1", "ncclMemFree m1"]);
}

/// NCCL 2.27 to 2.30 keep a pointer to the text, which derived communicators inherit.
#[test]
fn a_part_owns_the_texts_that_it_inherits() {
    let fake = Fake::new();
    let name = "a name that is longer than what an allocator keeps for itself";
    let parent = fake.communicator(&Config::new().name(name).network("Socket"));
    let part = parent.split(&Split::color(0)).unwrap();
    let smaller = part.shrink(&Shrink::without(&[0])).unwrap();
    drop(part);
    drop(parent);
    let others: Vec<_> = (0..64).map(|_| vec![b'x'; name.len() + 1]).collect();
    drop(smaller);
    drop(others);
    // The fake compares the text at the end of a communicator.
    assert_eq!(fake.log().last().unwrap(), "destroy comm3");
}

/// Memory is freed in the order of its own stream only: the host waits for a copy on another device's.
/// (Copies between devices are cudarc's: docs/limits.md.)
#[test]
fn a_copy_on_a_stream_of_another_device_is_waited_for() {
    let fake = Fake::new();
    let memory = fake.memory(&fake.stream(0), 16);
    let other = fake.stream(1);
    fake.log();
    other.clone_dtoh(&memory.slice::<f32>(..4).unwrap()).unwrap();
    drop(memory);
    let log = fake.log();
    let at = |wanted: &str| log.iter().position(|line| line == wanted).unwrap_or_else(|| panic!("{log:#?}"));
    assert!(at("synchronize s2") < at("ncclMemFree m1"), "{log:#?}");
}

/// One memory, two communicators, whose registrations end in any order and on any thread.
#[test]
fn registrations_are_not_shared() {
    let fake = Fake::new();
    let (first, second) = (fake.communicator(&Config::new()), fake.communicator(&Config::new()));
    let memory = Memory::try_from(first.stream().alloc_zeros::<f32>(4).unwrap()).unwrap();
    let registrations =
        [first.register(&memory).unwrap(), second.register(&memory.slice::<f32>(1..3).unwrap()).unwrap()];
    let window = first.window(&memory, WindowKind::Plain).unwrap();
    drop(memory);
    drop(first);
    fake.log();
    let [one, two] = registrations;
    thread::scope(|scope| scope.spawn(move || drop((one, window))).join().unwrap());
    assert_eq!(fake.log(), [""; 0], "the communicator took both back, and the other still knows the memory");
    drop(two);
    let log = fake.log();
    assert_eq!(log[0], "deregister reg2 comm2");
    assert!(log[1..].contains(&"free m1 on s1".to_owned()), "{log:#?}");
}

#[test]
fn a_leaked_communicator_keeps_its_registered_memory() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().name("forgotten"));
    let mut memory = fake.memory(communicator.stream(), 16);
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)
    })
    .unwrap();
    mem::forget(communicator);
    drop(memory);
    graph.launch().unwrap();
    fake.log();
    drop(graph);
    assert_eq!(fake.log(), ["destroy graph1", "synchronize s1", "ncclMemFree m1"]);
}

/// Versions whose symmetric kernels do not wait for a preceding kernel that triggers programmatic launch
/// early.
#[test]
fn operations_in_symmetric_windows_are_ordered_after_earlier_work() {
    let fake = Fake::new();
    let log_of = |library, config: &Config, kind| {
        let communicator = fake.rank(library, 1, 2, config);
        let mut memory = Memory::alloc(library, communicator.stream(), 16).unwrap();
        let mut view = memory.slice_mut::<f32>(..).unwrap();
        communicator.all_reduce_in_place(&mut view, Sum).unwrap();
        let window = communicator.window(&memory, kind).unwrap();
        let mut view = memory.slice_mut::<f32>(..).unwrap();
        fake.log();
        communicator.all_reduce_in_place(&mut view, Sum).unwrap();
        group(|group| group.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
        drop(window);
        let log = fake.log();
        drop((memory, communicator));
        fake.log();
        log.into_iter()
            .filter(|line| line.starts_with("a byte") || line.starts_with("launch"))
            .collect::<Vec<_>>()
    };
    let count = |log: &[String], start: &str| log.iter().filter(|line| line.starts_with(start)).count();
    let fenced = log_of(fake.library_2_28(), &Config::new(), WindowKind::Symmetric);
    assert_eq!((count(&fenced, "a byte"), count(&fenced, "launch")), (2, 2), "{fenced:#?}");
    assert!(fenced[0].starts_with("a byte") && fenced[2].starts_with("a byte"), "{fenced:#?}");
    for (library, config, kind) in [
        (fake.library_2_28(), Config::new().symmetric_fence(false), WindowKind::Symmetric),
        (fake.library_2_28(), Config::new(), WindowKind::Plain),
        (fake.library(), Config::new(), WindowKind::Symmetric),
    ] {
        let log = log_of(library, &config, kind);
        assert_eq!((count(&log, "a byte"), count(&log, "launch")), (0, 2), "{log:#?}");
    }
}
