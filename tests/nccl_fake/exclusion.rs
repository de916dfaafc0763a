//! While a thread is inside NCCL with a communicator, no other thread is, for all calls: the fake detects
//! two.

use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    AbortHandle, Collectives, Communicator, Config, Error, Graph, Memory, Split, WindowKind, group, windows,
};

use crate::fake::{Fake, Knob};

/// A communicator, its abort handle, and a buffer.
fn fresh(fake: &Fake) -> (Communicator, AbortHandle, Memory) {
    let communicator = fake.communicator(&Config::new());
    let (handle, memory) = (communicator.abort_handle(), fake.memory(communicator.stream(), 8));
    (communicator, handle, memory)
}

/// Another thread aborts the communicator while the call is inside NCCL.
#[track_caller]
fn excludes_an_abort(fake: &Fake, handle: &AbortHandle, call: impl FnOnce()) {
    fake.set(Knob::CallMillis, -1);
    thread::scope(|scope| {
        scope.spawn(|| {
            fake.until("inside NCCL");
            let (starts, started) = mpsc::channel();
            let abort = scope.spawn(move || {
                starts.send(()).unwrap();
                handle.abort().unwrap();
            });
            started.recv().unwrap();
            // Time for the abort to enter NCCL, if it does.
            thread::sleep(Duration::from_millis(50));
            fake.set(Knob::CallMillis, 0);
            abort.join().unwrap();
        });
        call();
    });
    let log = fake.log();
    assert_eq!(log[0], "leaving NCCL", "{log:#?}");
    assert!(log.iter().any(|line| line.starts_with("abort comm")), "{log:#?}");
}

#[test]
fn operations_exclude_an_abort() {
    let fake = Fake::new();
    let (communicator, handle, mut memory) = fresh(&fake);
    let mut view = memory.slice_mut::<f32>(..).unwrap();
    excludes_an_abort(&fake, &handle, || communicator.all_reduce_in_place(&mut view, Sum).unwrap());

    let (communicator, handle, mut memory) = fresh(&fake);
    let mut view = memory.slice_mut::<f32>(..).unwrap();
    excludes_an_abort(&fake, &handle, || {
        group(|group| group.on(&communicator).all_reduce_in_place(&mut view, Sum)).unwrap();
    });

    // NCCL waits for the graph, which ends in either order.
    let (communicator, handle, mut memory) = fresh(&fake);
    let mut view = memory.slice_mut::<f32>(..).unwrap();
    excludes_an_abort(&fake, &handle, || {
        drop(Graph::capture(|capture| capture.on(&communicator).all_reduce_in_place(&mut view, Sum)));
    });
}

#[test]
fn what_makes_something_of_a_communicator_excludes_an_abort() {
    let fake = Fake::new();
    let calls: [fn(&Communicator, &Memory); 5] = [
        |communicator, _| drop(communicator.split(&Split::color(0))),
        |communicator, memory| drop(communicator.register(memory)),
        |communicator, memory| drop(communicator.window(memory, WindowKind::Symmetric)),
        |communicator, _| drop(communicator.scaled_sum(2.0f32)),
        |communicator, _| drop(communicator.grow_id()),
    ];
    for call in calls {
        let (communicator, handle, memory) = fresh(&fake);
        excludes_an_abort(&fake, &handle, || call(&communicator, &memory));
    }
}

#[test]
fn what_changes_or_asks_a_communicator_excludes_an_abort() {
    let fake = Fake::new();
    let calls: [fn(&Communicator); 4] = [
        |communicator| communicator.revoke().unwrap(),
        |communicator| communicator.finalize().unwrap(),
        |communicator| communicator.suspend().unwrap(),
        |communicator| drop(communicator.memory_statistics()),
    ];
    for call in calls {
        let (communicator, handle, _memory) = fresh(&fake);
        excludes_an_abort(&fake, &handle, || call(&communicator));
    }
}

#[test]
fn what_is_taken_back_excludes_an_abort() {
    let fake = Fake::new();
    let (communicator, handle, memory) = fresh(&fake);
    let registration = communicator.register(&memory).unwrap();
    excludes_an_abort(&fake, &handle, || drop(registration));
    let (communicator, handle, memory) = fresh(&fake);
    let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
    excludes_an_abort(&fake, &handle, || drop(window));
    let (communicator, handle, _memory) = fresh(&fake);
    let sum = communicator.scaled_sum(2.0f32).unwrap();
    excludes_an_abort(&fake, &handle, || drop(sum));
}

/// The second part of a graph is launched together with the first one.
#[test]
fn a_launch_excludes_what_changes_its_communicators() {
    type Change = fn(&Communicator) -> Result<(), Error>;
    let changes: [(Change, &str); 2] =
        [(Communicator::suspend, "suspend comm2 flags 1"), (Communicator::revoke, "revoke comm2")];
    for (change, line) in changes {
        let fake = Fake::new();
        let (first, _, mut memory) = fresh(&fake);
        let stream = fake.stream(1);
        let builder = Communicator::builder(fake.library(), &stream).rank(0, 2).id(&fake.id());
        let second = builder.init().unwrap();
        let mut other = fake.memory(&stream, 8);
        let graph = Graph::capture(|capture| {
            capture.on(&first).all_reduce_in_place(&mut memory.slice_mut::<f32>(..)?, Sum)?;
            capture.on(&second).all_reduce_in_place(&mut other.slice_mut::<f32>(..)?, Sum)
        })
        .map_err(|error: Error| error)
        .unwrap();
        fake.log();
        fake.set(Knob::CallMillis, -1);
        thread::scope(|scope| {
            let launch = scope.spawn(|| graph.launch());
            fake.until("inside cuGraphLaunch");
            let changed = scope.spawn(move || change(&second).map(|()| second));
            // Time for the change, if it does not wait.
            thread::sleep(Duration::from_millis(50));
            fake.set(Knob::CallMillis, 0);
            launch.join().unwrap().unwrap();
            changed.join().unwrap().unwrap();
        });
        let log = fake.log();
        let at = |wanted: &str| log.iter().position(|line| line == wanted).unwrap();
        assert!(at("launch graph2 on s2") < at(line), "{log:#?}");
    }
}

/// A graph and groups of two communicators take the guards in one order, whatever theirs is.
#[test]
fn launches_and_groups_of_the_same_communicators_do_not_wait_for_each_other() {
    const BATCHES: usize = 100;
    const LAUNCHES: usize = 50;
    let fake = Fake::new();
    let first = fake.communicator(&Config::new());
    let second = first.split(&Split::color(0)).unwrap();
    let mut memory = [0; 4].map(|_| fake.memory(first.stream(), 8));
    let [one, two, ..] = &mut memory;
    let graph: Result<_, Error> = Graph::capture(|capture| {
        capture.on(&first).all_reduce_in_place(&mut one.slice_mut::<f32>(..)?, Sum)?;
        capture.on(&second).all_reduce_in_place(&mut two.slice_mut::<f32>(..)?, Sum)
    });
    let graph = graph.unwrap();
    let grouped = move |order: [&Communicator; 2], memory: &mut [Memory; 4]| -> Result<(), Error> {
        let [_, _, three, four] = memory;
        let (mut three, mut four) = (three.slice_mut::<f32>(..)?, four.slice_mut::<f32>(..)?);
        group(|group| {
            group.on(order[0]).all_reduce_in_place(&mut three, Sum)?;
            group.on(order[1]).all_reduce_in_place(&mut four, Sum)
        })
    };
    let (done, results) = mpsc::channel();
    // Threads that may outlive the test if it fails.
    let start = |mut launch: Box<dyn FnMut(usize) -> Result<(), Error> + Send>| {
        let (go, batches) = mpsc::channel();
        let done = done.clone();
        let run = move || {
            for () in batches {
                done.send((0..LAUNCHES).try_for_each(&mut launch)).unwrap();
            }
        };
        (go, thread::spawn(run))
    };
    let threads = [
        start(Box::new(move |_| graph.launch())),
        start(Box::new(move |round| {
            let order = if round % 2 == 0 { [&first, &second] } else { [&second, &first] };
            grouped(order, &mut memory)
        })),
    ];
    for _ in 0..BATCHES {
        threads.iter().for_each(|(go, _)| go.send(()).unwrap());
        for _ in &threads {
            results.recv_timeout(Duration::from_secs(60)).expect("they wait for each other").unwrap();
        }
        fake.log();
    }
    for (go, thread) in threads {
        drop(go);
        thread.join().unwrap();
    }
}

/// Another thread aborts the first communicator once the calls have reached the second one, inside an NCCL
/// group with both.
fn excludes_an_abort_of_the_first(fake: &Fake, line: &str, first: &Communicator, calls: impl FnOnce()) {
    let handle = first.abort_handle();
    fake.set(Knob::CallMillis, 20);
    let mut log = thread::scope(|scope| {
        let abort = scope.spawn(move || {
            let (since, mut log) = (Instant::now(), Vec::new());
            while !log.iter().any(|seen: &String| seen.starts_with(line)) && since.elapsed().as_secs() < 30 {
                log.extend(fake.log_with_bugs());
            }
            handle.abort().unwrap();
            log
        });
        calls();
        abort.join().unwrap()
    });
    fake.set(Knob::CallMillis, 0);
    assert!(log.iter().any(|seen| seen.starts_with(line)), "{log:#?}");
    log.extend(fake.log_with_bugs());
    assert!(!log.iter().any(|line| line.contains("BUG")), "{log:#?}");
}

/// NCCL uses all communicators of a group until that has ended.
#[test]
fn what_is_made_of_several_communicators_excludes_an_abort() {
    let fake = Fake::new();
    let ranks =
        || -> Vec<_> { (0..4).map(|rank| fake.rank(fake.library(), rank, 4, &Config::new())).collect() };
    let of_windows = ranks();
    let memory: Vec<_> = of_windows.iter().map(|rank| fake.memory(rank.stream(), 64)).collect();
    excludes_an_abort_of_the_first(&fake, "window comm2 ", &of_windows[0], || {
        drop(windows(of_windows.iter().zip(&memory), WindowKind::Symmetric));
    });
    let of_parts = ranks();
    let parts = of_parts.iter().map(|rank| (rank, Some(Split::color(0))));
    excludes_an_abort_of_the_first(&fake, "split comm6 ", &of_parts[0], || {
        drop(Communicator::split_all(parts));
    });
}
