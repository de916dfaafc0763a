//! One failure does not stop the rest: every communicator is waited for, every stream ordered, every graph
//! launched.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Graph, Memory, WindowKind, group, windows,
};
use cudarc::driver::sys::CUresult;
use cudarc::driver::{CudaStream, DevicePtrMut, DriverError};

use crate::fake::{Fake, Knob, worker};

/// Index of the line in the log.
#[track_caller]
fn at(log: &[String], wanted: &str) -> usize {
    log.iter().position(|line| line == wanted).unwrap_or_else(|| panic!("no {wanted:?} in {log:#?}"))
}

fn other_stream(stream: &Arc<CudaStream>) -> Arc<CudaStream> {
    stream.context().new_stream().unwrap()
}

/// Communicators of devices 0 and 1.
fn pair(fake: &Fake, configs: [Config; 2]) -> [Communicator; 2] {
    let mut device = 0;
    configs.map(|config| {
        let stream = fake.stream(device);
        device += 1;
        let builder = Communicator::builder(fake.library(), &stream).rank(0, 2).id(&fake.id());
        builder.config(&config).init().unwrap()
    })
}

/// Non-blocking communicators, the first of which reaches a deadline.
fn one_with_a_deadline(fake: &Fake) -> [Communicator; 2] {
    // Not during their creation.
    fake.set(Knob::Worker, worker::OFF);
    let config = Config::new().blocking(false);
    pair(fake, [config.clone().deadline(Duration::from_millis(20)), config])
}

/// Runs the call while NCCL's worker is held; it starts once the first communicator has been aborted.
fn while_the_first_fails<T>(fake: &Fake, call: impl FnOnce() -> T) -> T {
    fake.log();
    fake.set(Knob::Worker, worker::HELD);
    thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("abort comm1");
            fake.set(Knob::Worker, worker::RUNS);
        });
        call()
    })
}

#[test]
fn a_group_waits_for_each_of_its_communicators() {
    let fake = Fake::new();
    let communicators = one_with_a_deadline(&fake);
    let others = communicators.each_ref().map(|each| other_stream(each.stream()));
    let mut memory = others.each_ref().map(|stream| fake.memory(stream, 8));
    let mut views = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..).unwrap());
    let result = while_the_first_fails(&fake, || {
        group(|group| {
            for (communicator, view) in communicators.iter().zip(&mut views) {
                group.on(communicator).all_reduce_in_place(view, Sum)?;
            }
            Ok(())
        })
    });
    assert!(matches!(result, Err(Error::Deadline { operation: "ncclGroupEnd", .. })), "{result:?}");
    // Later work on the second buffer's stream is ordered after the late work.
    let log = fake.log();
    let launched = at(&log, "launch all_reduce comm2 m2->m2 count 2 type 7 op 0 s2 device 1");
    assert!(log[launched..].iter().any(|line| line.starts_with("s4 waits")), "{log:#?}");
}

#[test]
fn windows_that_are_made_together_are_each_waited_for() {
    let fake = Fake::new();
    let communicators = one_with_a_deadline(&fake);
    let memory = communicators.each_ref().map(|each| fake.memory(each.stream(), 8));
    let result = while_the_first_fails(&fake, || {
        windows(communicators.iter().zip(&memory), WindowKind::Symmetric).map(drop)
    });
    assert!(matches!(result, Err(Error::Deadline { operation: "ncclCommWindowRegister", .. })), "{result:?}");
    // The second one was created and deregistered.
    let log = fake.log();
    at(&log, "deregister win2 comm2");
}

/// A communicator, and buffers of two other streams, s2 and s3.
fn with_others(fake: &Fake) -> (Communicator, [Memory; 2]) {
    let communicator = fake.communicator(&Config::new());
    let others = [0; 2].map(|_| other_stream(communicator.stream()));
    let memory = others.map(|stream| fake.memory(&stream, 8));
    (communicator, memory)
}

#[track_caller]
fn cannot_order<T>(result: Result<T, Error>) {
    let error = result.map(drop).unwrap_err();
    assert!(matches!(error, Error::Cuda { operation: "cuStreamWaitEvent", .. }), "{error}");
}

/// The third record: after the work, for the first of the streams.
const FIRST_AFTERWARDS: i32 = 0b100;

#[test]
fn each_stream_is_ordered_after_a_call() {
    let fake = Fake::new();
    let (communicator, mut memory) = with_others(&fake);
    let [send, receive] = memory.each_mut();
    let (send, mut receive) = (send.slice::<f32>(..).unwrap(), receive.slice_mut::<f32>(..).unwrap());
    let launch = "launch all_reduce comm1 m1->m2 count 2 type 7 op 0 s1 device 0";
    let before = ["e1 records s2", "s1 waits e1", "e1 records s3", "s1 waits e1"];
    let after = [launch, "synchronize s1", "e1 records s1", "s3 waits e1"];
    fake.set(Knob::EventsFail, FIRST_AFTERWARDS);
    cannot_order(communicator.all_reduce(&send, &mut receive, Sum));
    assert_eq!(fake.log(), [before, after].concat());
    fake.set(Knob::EventsFail, FIRST_AFTERWARDS);
    cannot_order(group(|group| group.on(&communicator).all_reduce(&send, &mut receive, Sum)));
    assert_eq!(fake.log(), [before, after].concat());
}

#[test]
fn each_stream_is_ordered_after_the_launch_of_a_graph() {
    let fake = Fake::new();
    let (communicator, mut memory) = with_others(&fake);
    let [send, receive] = memory.each_mut();
    let graph = Graph::capture(|capture| {
        capture.on(&communicator).all_reduce(&send.slice::<f32>(..)?, &mut receive.slice_mut(..)?, Sum)
    })
    .unwrap();
    fake.log();
    fake.set(Knob::EventsFail, FIRST_AFTERWARDS);
    cannot_order(graph.launch());
    let log = fake.log();
    let launched = at(&log, "launch graph1 on s1");
    assert!(log[launched..].iter().any(|line| line.starts_with("s3 waits")), "{log:#?}");
    // Nothing orders the first buffer's stream, so the host waits.
    assert_eq!(log.last().unwrap(), "synchronize s1");
}

/// Graphs of two devices, each with a buffer of another stream.
#[test]
fn the_graph_of_each_device_is_launched_and_waited_for() {
    let fake = Fake::new();
    let communicators = pair(&fake, [Config::new(), Config::new()]);
    let mut memory = communicators.each_ref().map(|each| fake.memory(&other_stream(each.stream()), 8));
    let graph = Graph::capture(|capture| {
        for (communicator, memory) in communicators.iter().zip(&mut memory) {
            capture.on(communicator).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)?;
        }
        Ok::<_, Error>(())
    })
    .unwrap();
    fake.log();
    // The first cannot be ordered after its buffer's stream, and is not launched.
    fake.set(Knob::EventsFail, 0b1);
    cannot_order(graph.launch());
    let log = fake.log();
    assert!(!log.contains(&"launch graph1 on s1".to_owned()), "{log:#?}");
    let launched = at(&log, "launch graph2 on s2");
    assert!(log[launched..].iter().any(|line| line.starts_with("s4 waits")), "{log:#?}");
    // Neither stream is ordered after it.
    fake.set(Knob::EventsFail, 0b1010);
    cannot_order(graph.launch());
    let log = fake.log();
    assert!(at(&log, "launch graph1 on s1") < at(&log, "launch graph2 on s2"));
    assert_eq!(log[log.len() - 2..], ["synchronize s1", "synchronize s2"]);
}

/// Errors that cudarc records in both contexts while NCCL is called: the events of neither buffer are
/// recorded.
#[test]
fn each_device_of_a_group_is_asked_for_noted_errors() {
    let fake = Fake::new();
    let communicators = pair(&fake, [Config::new(), Config::new()]);
    let contexts = communicators.each_ref().map(|each| each.stream().context().clone());
    // cudarc tracks events of buffers once a context has a second stream.
    let _others = communicators.each_ref().map(|each| other_stream(each.stream()));
    let mut buffers = communicators.each_ref().map(|each| {
        let mut buffer = each.stream().alloc_zeros::<f32>(2).unwrap();
        drop(buffer.device_ptr_mut(each.stream()));
        buffer
    });
    fake.log();
    fake.set(Knob::CallMillis, -1);
    let result: Result<(), Error> = thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("inside NCCL");
            let error = DriverError(CUresult::CUDA_ERROR_ILLEGAL_ADDRESS);
            contexts.iter().for_each(|context| context.record_err::<()>(Err(error)));
            fake.set(Knob::CallMillis, 0);
        });
        group(|group| {
            for (communicator, buffer) in communicators.iter().zip(&mut buffers) {
                group.on(communicator).all_reduce_in_place(buffer, Sum)?;
            }
            Ok(())
        })
    });
    assert!(matches!(result, Err(Error::Cuda { .. })), "{result:?}");
    let log = fake.log();
    assert!(at(&log, "synchronize s1") < at(&log, "synchronize s2"), "{log:#?}");
}

/// NCCL refuses to deregister the first registration, which then lasts until the communicator has ended.
#[test]
fn each_registration_is_taken_back_when_a_communicator_closes() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let memory = [0; 2].map(|_| fake.memory(communicator.stream(), 8));
    let registrations = memory.each_ref().map(|memory| communicator.register(memory).unwrap());
    drop(memory);
    fake.log();
    fake.set(Knob::DisposalResult, 3);
    communicator.close().unwrap();
    let log = fake.log();
    let destroyed = at(&log, "destroy comm1");
    assert!(at(&log, "deregister reg2 comm1") < destroyed, "{log:#?}");
    drop(registrations);
    assert!(!log.contains(&"ncclMemFree m1".to_owned()), "{log:#?}");
}
