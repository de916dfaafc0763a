//! Groups: launched together or not at all.

mod nested;
mod simulated;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use collectives::ReduceOp;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Graph, Memory, ResultCode, Shrink, Split, WindowKind, group,
    simulate, windows,
};

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, not_allowed};

const CANCELLED: &str = "ncclGroupStart: cancelled, because a group in it failed or panicked";

/// Two communicators on one stream, with a buffer of 8 bytes each.
fn pair(fake: &Fake) -> ([Communicator; 2], [Memory; 2]) {
    let first = fake.communicator(&Config::new());
    let second = first.split(&Split::color(0)).unwrap();
    let memory = [fake.memory(first.stream(), 8), fake.memory(first.stream(), 8)];
    fake.log();
    ([first, second], memory)
}

fn line(comm: usize, memory: usize) -> String {
    format!("launch all_reduce comm{comm} m{memory}->m{memory} count 2 type 7 op 0 s1 device 0")
}

fn first_words(fake: &Fake) -> Vec<String> {
    fake.log().iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

#[test]
fn a_group_launches_at_its_end_over_all_communicators() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let communicators = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    let mut memory: Vec<_> = streams.iter().map(|stream| fake.memory(stream, 64)).collect();
    let mut views: Vec<_> = memory.iter_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap()).collect();
    let answer = group(|group| {
        for (communicator, view) in communicators.iter().zip(&mut views) {
            group.on(communicator).all_reduce_in_place(view, ReduceOp::Sum)?;
        }
        assert_eq!(fake.log(), [""; 0], "nothing is launched inside the group");
        Ok::<_, Error>(42)
    });
    assert_eq!(answer.unwrap(), 42);
    assert_eq!(
        fake.log(),
        [
            "launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0",
            "launch all_reduce comm2 m2->m2 count 2 type 7 op 0 s2 device 1",
        ]
    );
}

#[test]
fn hole_1_events_of_a_group_are_ordered_after_the_launch() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = communicator.stream().context().new_stream().unwrap();
    let (send, mut receive) = (fake.memory(&other, 64), fake.memory(communicator.stream(), 64));
    let part = send.slice::<f32>(..2).unwrap();
    let mut all = receive.slice_mut::<f32>(..4).unwrap();
    group(|group| group.on(&communicator).all_gather(&part, &mut all)).unwrap();
    assert_eq!(
        fake.log(),
        [
            "e1 records s2",
            "s1 waits e1",
            "launch all_gather comm1 m1->m2 count 2 type 7 op -1 s1 device 0",
            "e1 records s1",
            "s2 waits e1",
        ]
    );
}

#[test]
fn hole_5_an_error_inside_a_group_cancels_it_and_not_the_next() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = [fake.memory(communicator.stream(), 64), fake.memory(communicator.stream(), 64)];
    let [first, second] = &mut memory;
    let mut view = first.slice_mut::<f32>(..2).unwrap();
    let result: Result<(), Error> = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)?;
        Err(Error::Rank { rank: 9, size: 3 })
    });
    assert!(matches!(result, Err(Error::Rank { rank: 9, size: 3 })), "the closure's own error");
    assert_eq!(fake.log(), [""; 0]);

    // NCCL refuses the second operation: its error is returned, and NCCL does not launch the first one
    // either.
    let mut other = second.slice_mut::<f32>(..2).unwrap();
    fake.set(Knob::NcclResult, 5);
    let result = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)?;
        group.on(&communicator).all_reduce_in_place(&mut other, ReduceOp::Sum)
    });
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclAllReduce", code: ResultCode(5), .. })));
    assert_eq!(fake.log(), ["group of 0 cancelled"]);

    group(|group| group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)).unwrap();
    assert_eq!(fake.log().len(), 1);
    assert!(communicator.async_error().is_ok());
}

#[test]
fn hole_5_a_panic_inside_a_group_cancels_it_and_not_the_next() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        group(|group| -> Result<(), Error> {
            group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)?;
            panic!("in the middle of the group");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), [""; 0]);
    // Neither the thread nor the communicator stays in a group.
    communicator.all_reduce_in_place(&mut view, ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0"]);
}

#[test]
fn holes_2_and_4_other_operations_are_refused_inside_a_group() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let [spare, closing, aborting] = [0; 3].map(|_| fake.communicator(&Config::new()));
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let stream = communicator.stream();
    let (library, id, config) = (fake.library(), fake.id(), Config::new());
    let refused =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::InsideGroup { .. })), "{result:?}");
    group(|_| {
        refused(communicator.all_reduce_in_place(&mut view, ReduceOp::Sum));
        refused(communicator.async_error());
        refused(group(|_| Ok(())));
        refused(Communicator::builder(library, stream).rank(0, 1).id(&id).config(&config).init().map(drop));
        refused(Communicator::builder(library, stream).id(&id).config(&config).init_pending().map(drop));
        refused(Communicator::init_all(library, &[], &config).map(drop));
        // NCCL's own group is started after the closure.
        closing.close()?;
        drop(spare);
        aborting.abort_handle().abort()?;
        assert_eq!(fake.log(), ["destroy comm3", "destroy comm2", "abort comm4"]);
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn a_group_refuses_communicators_of_another_library() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let other = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let (mut view, mut theirs) = (memory.slice_mut::<f32>(..2).unwrap(), fake.memory(other.stream(), 64));
    fake.log();
    let wrong = |error: Error| assert!(matches!(error, Error::WrongLibrary { .. }), "{error}");
    let none = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)?;
        group.on(&other).all_reduce_in_place(&mut theirs, ReduceOp::Sum)
    });
    wrong(none.unwrap_err());
    wrong(Communicator::split_all([&communicator, &other].map(|each| (each, None))).unwrap_err());
    let shrunk = Communicator::shrink_all([&communicator, &other], &Shrink::without(&[0]));
    wrong(shrunk.unwrap_err());
    let pairs = [(&communicator, &memory), (&other, &memory)];
    wrong(windows(pairs, WindowKind::Plain).unwrap_err());
    assert_eq!(fake.log(), [""; 0]);
}

/// NCCL would hang, or one rank would write past the end of another's buffer.
#[test]
fn ranks_of_one_communicator_in_a_group_are_compared() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let ranks = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    let mut memory = streams.each_ref().map(|stream| fake.memory(stream, 64));
    let [one, two] = memory.each_mut();
    let (mut four, mut five) = (one.slice_mut::<f32>(..4).unwrap(), two.slice_mut::<f32>(..5).unwrap());
    fake.log();
    let wrong = |result: Result<(), Error>, wanted: &str| {
        let start = "the ranks of a communicator do not agree: ";
        let text = result.unwrap_err().to_string();
        assert_eq!(text.split_once(start).unwrap().1, wanted);
        assert_eq!(fake.log(), [""; 0]);
    };
    wrong(
        group(|group| {
            group.on(&ranks[0]).all_reduce_in_place(&mut four, ReduceOp::Sum)?;
            group.on(&ranks[1]).all_reduce_in_place(&mut five, ReduceOp::Sum)
        }),
        "rank 0 calls ncclAllReduce of 4 float with operator 0, rank 1 ncclAllReduce of 5 float with \
         operator 0",
    );
    wrong(
        group(|group| {
            group.on(&ranks[1]).broadcast_in_place(&mut five, 0)?;
            group.nested(|group| group.on(&ranks[0]).broadcast_in_place(&mut four, 1))
        }),
        "rank 1 calls ncclBroadcast of 5 float with root 0, rank 0 ncclBroadcast of 4 float with root 1",
    );
    wrong(
        group(|group| {
            group.on(&ranks[1]).send(&five, 0)?;
            group.on(&ranks[0]).recv(&mut four, 1)
        }),
        "rank 1 sends 5 float to rank 0, but rank 0 receives 4 float",
    );
    wrong(
        Graph::capture(|capture| {
            capture.group(|capture| {
                capture.on(&ranks[0]).send(&four, 1)?;
                capture.on(&ranks[1]).all_reduce_in_place(&mut five, ReduceOp::Sum)
            })
        })
        .map(drop),
        "rank 0 sends 4 float to rank 1, but rank 1 receives nothing",
    );
    // Ranks elsewhere and other communicators are not compared.
    let more = fake.memory(&streams[0], 64);
    let one_more = more.slice::<f32>(..1).unwrap();
    let parts = Communicator::split_all(ranks.iter().zip([0, 1].map(|color| Some(Split::color(color)))));
    let parts: Vec<_> = parts.unwrap().into_iter().flatten().collect();
    fake.log();
    group(|group| {
        group.on(&parts[0]).broadcast_in_place(&mut four, 0)?;
        group.on(&parts[1]).broadcast_in_place(&mut five, 0)?;
        group.on(&ranks[0]).send(&one_more, 1)
    })
    .unwrap();
    assert_eq!(fake.log().len(), 3);
}

/// The first rank has none of the collectives of the two that differ.
#[test]
fn every_pair_of_ranks_in_a_group_is_compared() {
    let fake = Fake::new();
    let streams = [0, 1, 2].map(|device| fake.stream(device));
    let ranks = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    let mut memory = streams.each_ref().map(|stream| fake.memory(stream, 16));
    let [one, two, three] = memory.each_mut().map(|each| each.slice_mut::<f32>(..).unwrap());
    let (one, mut other) = one.split_at_mut(2).unwrap();
    let (mut two, mut more) = two.split_at_mut(2).unwrap();
    let (mut three, mut much) = three.split_at_mut(2).unwrap();
    fake.log();
    let result = group(|group| {
        group.on(&ranks[0]).send(&one, 0)?;
        group.on(&ranks[0]).recv(&mut other, 0)?;
        group.on(&ranks[1]).all_reduce_in_place(&mut two, ReduceOp::Sum)?;
        group.on(&ranks[2]).all_reduce_in_place(&mut three, ReduceOp::Sum)?;
        group.on(&ranks[1]).broadcast_in_place(&mut more, 1)?;
        group.on(&ranks[2]).broadcast_in_place(&mut much, 2)
    });
    let reason =
        "rank 1 calls ncclBroadcast of 2 float with root 1, rank 2 ncclBroadcast of 2 float with root 2";
    let error = result.unwrap_err().to_string();
    assert!(error.ends_with(reason), "{error}");
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn a_group_in_progress_is_waited_for() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new().deadline(Duration::from_millis(30)));
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let result = group(|group| {
        fake.set(Knob::NcclResult, IN_PROGRESS);
        fake.set(Knob::AsyncResult, IN_PROGRESS);
        group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)
    });
    assert!(matches!(result, Err(Error::Deadline { operation: "ncclGroupEnd", .. })));
    assert_eq!(fake.log(), ["launch all_reduce comm1 m1->m1 count 2 type 7 op 0 s1 device 0", "abort comm1"]);
}

#[test]
fn an_abort_does_not_wait_for_the_closure_and_the_group_fails() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let handle = communicator.abort_handle();
    let result = group(|group| {
        group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)?;
        thread::scope(|scope| scope.spawn(|| handle.abort().unwrap()).join().unwrap());
        Ok::<_, Error>(())
    });
    assert!(matches!(result, Err(Error::Aborted { operation: "ncclGroupEnd" })), "{result:?}");
    assert_eq!(fake.log(), ["abort comm1"]);
}

#[test]
fn objects_dropped_in_a_group_end_immediately() {
    let fake = Fake::new();
    for fails in [false, true] {
        let ([communicator, spare], [registered, shared]) = pair(&fake);
        let mut memory = [fake.memory(communicator.stream(), 8), fake.memory(communicator.stream(), 8)];
        let [mut first, mut second] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());
        let (op, kept) = (communicator.scaled_sum(1u8).unwrap(), communicator.scaled_sum(1.0f32).unwrap());
        let registration = communicator.register(&registered).unwrap();
        let window = communicator.window(&shared, WindowKind::Symmetric).unwrap();
        let lone = fake.memory(communicator.stream(), 8);
        let names: Vec<_> = fake.log();
        assert_eq!(names, [""; 0], "logged with the memory");
        let result = group(|group| {
            group.on(&communicator).all_reduce_in_place(&mut first, &kept)?;
            drop(op);
            drop(window);
            drop(registration);
            drop(lone);
            drop(spare);
            group.on(&communicator).all_reduce_in_place(&mut second, ReduceOp::Sum)?;
            assert_eq!(
                first_words(&fake),
                ["destroy", "deregister", "deregister", "synchronize", "ncclMemFree", "destroy"]
            );
            if fails { Err(Error::Rank { rank: 7, size: 2 }) } else { Ok(()) }
        });
        assert_eq!(result.is_err(), fails);
        assert_eq!(first_words(&fake), if fails { vec![] } else { vec!["launch", "launch"] });
        drop(kept);
        communicator.close().unwrap();
        drop((registered, shared));
        fake.log();
    }
}

#[test]
fn a_communicator_that_is_dropped_in_a_group_that_panics_is_aborted() {
    let fake = Fake::new();
    let ([communicator, spare], mut memory) = pair(&fake);
    let mut view = memory[0].slice_mut::<f32>(..2).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        group(|group| -> Result<(), Error> {
            let _owned = spare;
            group.on(&communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)?;
            panic!("in the middle of the group");
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), ["abort comm2"]);
}

/// Operations that were recorded before the panic are not launched, though the closure continues.
#[test]
fn a_panic_that_is_caught_inside_the_group_cancels_it() {
    let fake = Fake::new();
    let communicator = fake.communicator(&Config::new());
    let mut memory = fake.memory(communicator.stream(), 64);
    let mut view = memory.slice_mut::<f32>(..2).unwrap();
    let (communicator, view) = (&communicator, &mut view);
    let result = group(|group| {
        let panicked = catch_unwind(AssertUnwindSafe(move || {
            group.nested(move |group| -> Result<(), Error> {
                group.on(communicator).all_reduce_in_place(view, ReduceOp::Sum)?;
                panic!("in the middle of the nested group");
            })
        }));
        assert!(panicked.is_err());
        Ok::<_, Error>(())
    });
    not_allowed(result, CANCELLED);
    assert_eq!(fake.log(), [""; 0]);
}

/// A buffer that another library has refused is not in the group.
#[test]
fn a_group_is_of_the_library_whose_operations_it_has() {
    let fake = Fake::new();
    let newest = fake.rank(fake.library(), 1, 2, &Config::new());
    let middle = fake.rank(fake.library_2_28(), 1, 2, &Config::new());
    let mut memory = fake.memory(newest.stream(), 64);
    let mut view = memory.slice_mut::<f32>(..).unwrap();
    let part = fake.memory(middle.stream(), 64);
    group(|group| {
        // 2.28 has no one-sided operations.
        assert!(group.on(&middle).signal(collectives::nccl::Signal::new(0)).is_err());
        assert_eq!(part.bytes(), 64);
        group.on(&newest).all_reduce_in_place(&mut view, ReduceOp::Sum)
    })
    .unwrap();
}
