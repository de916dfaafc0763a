//! Derived communicators: split, shrunk, grown, joined, blocking and non-blocking.

use std::thread;
use std::time::Duration;

use collectives::ReduceOp::Sum;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Grow, ResultCode, Shrink, Split, UniqueId, group,
};

use crate::fake::{Fake, Knob};
use crate::{IN_PROGRESS, REMOTE_ERROR, not_allowed};

fn key(color: i32) -> Option<Split> {
    Some(Split::color(color))
}

#[track_caller]
fn inside_group<T>(result: Result<T, Error>) {
    assert!(matches!(result, Err(Error::InsideGroup { .. })));
}

#[test]
fn a_part_has_nccls_rank_and_size_and_the_same_stream() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new());
    fake.set(Knob::SplitSize, 1);
    let child = parent.split(&Split::color(3).key(4)).unwrap();
    assert_eq!((child.rank(), child.size()), (0, 1));
    assert_eq!(child.stream(), parent.stream());
    parent.split_none().unwrap();
    let config = Config::new().blocking(false).network("Socket");
    let other = parent.stream().context().new_stream().unwrap();
    let own = parent.split(&Split::color(i32::MAX).key(-1).config(&config).stream(&other)).unwrap();
    assert_eq!(own.stream(), &other);
    let elsewhere = Split::color(0).stream(&fake.stream(1));
    assert!(matches!(parent.split(&elsewhere), Err(Error::WrongDevice { .. })));
    assert_eq!(
        fake.log(),
        [
            "split comm1 color 3 key 4 into comm2 rank 0/1 device 0 inheriting",
            "split comm1 color -1 key 0 into nothing",
            "split comm1 color 2147483647 key -1 into comm3 rank 0/1 device 0 non-blocking over Socket",
        ]
    );
    // A part outlives the original.
    parent.close().unwrap();
    let mut memory = fake.memory(child.stream(), 8);
    child.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    drop(own);
    drop(child);
    assert_eq!(
        fake.log(),
        ["launch all_reduce comm2 m1->m1 count 2 type 7 op 0 s1 device 0", "destroy comm3", "destroy comm2"]
    );
}

#[test]
fn monarch_7_colors_are_the_users_and_not_negative() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new());
    for color in [-1, i32::MIN] {
        let wanted = format!(
            "ncclCommSplit: color {color}: colors are 0 to 2147483647; ranks that do not take part have none"
        );
        assert_eq!(parent.split(&Split::color(color)).unwrap_err().to_string(), wanted);
        assert_eq!(parent.split_pending(&Split::color(color)).unwrap_err().to_string(), wanted);
    }
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn several_ranks_of_a_thread_are_split_together() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let parents = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    fake.log();
    let keys = [key(0), None];
    let parts = Communicator::split_all(parents.iter().zip(keys)).unwrap();
    assert_eq!(parts.iter().map(Option::is_some).collect::<Vec<_>>(), [true, false]);
    assert_eq!(
        fake.log(),
        [
            "split comm1 color 0 key 0 into comm3 rank 0/2 device 0 inheriting",
            "split comm2 color -1 key 0 into nothing",
        ]
    );
    drop(parts);
    fake.log();
    // The second one is invalid: neither is split.
    let result = Communicator::split_all(parents.iter().zip([key(0), key(-5)]));
    let text = "ncclCommSplit: color -5: colors are 0 to 2147483647; ranks that do not take part have none";
    not_allowed(result, text);
    assert_eq!(fake.log()[1..], ["group of 0 cancelled"]);
    parents.into_iter().for_each(|parent| parent.close().unwrap());
}

#[test]
fn shrinking_ignores_duplicate_ranks() {
    let fake = Fake::new();
    let parent = fake.rank(fake.library(), 1, 4, &Config::new());
    let wrong = |ranks: &[usize], reason: &str| {
        let error = parent.shrink(&Shrink::without(ranks)).unwrap_err().to_string();
        assert_eq!(error, format!("ncclCommShrink: cannot exclude {ranks:?} of 4: {reason}"));
        assert!(parent.shrink_pending(&Shrink::without(ranks).abort()).is_err());
    };
    wrong(&[], "there must be at least one");
    wrong(&[0, 1], "a rank cannot exclude itself: only the ranks that remain shrink a communicator");
    wrong(&[4], "a rank to exclude does not exist");
    wrong(&[usize::MAX], "a rank to exclude does not exist");
    assert_eq!(fake.log(), [""; 0]);
    let child = parent.shrink(&Shrink::without(&[3, 0, 3])).unwrap();
    assert_eq!((child.rank(), child.size()), (0, 2));
    let config = Config::new().blocking(false);
    let other = parent.shrink(&Shrink::without(&[2]).abort().config(&config)).unwrap();
    assert_eq!((other.rank(), other.size()), (1, 3));
    assert_eq!(
        fake.log(),
        [
            "shrink comm1 without 0,3 flags 0 into comm2 rank 0/2 device 0 inheriting",
            "shrink comm1 without 2 flags 1 into comm3 rank 1/3 device 0 non-blocking",
        ]
    );
}

#[test]
fn hole_13_shrinking_after_a_death_ends_what_hangs() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new());
    let mut memory = fake.memory(parent.stream(), 8);
    fake.set(Knob::Hang, 1);
    parent.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    let rest = parent.shrink(&Shrink::without(&[0]).abort()).unwrap();
    // Does not wait forever.
    parent.stream().synchronize().unwrap();
    // Its operations stopped at different steps on different ranks.
    let refused = parent.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum);
    let reason = "its operations have been stopped: split or shrink it, or make a new one";
    assert!(matches!(refused, Err(Error::Unusable { reason: given, .. }) if given == reason));
    parent.abort_handle().abort().unwrap();
    rest.close().unwrap();
    let log = fake.log();
    assert_eq!(log[1], "shrink comm1 without 0 flags 1 into comm2 rank 0/1 device 0 inheriting");
    assert_eq!(log[2..], ["synchronize s1", "abort comm1", "destroy comm2"]);
}

#[test]
fn several_ranks_of_a_thread_shrink_together() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1), fake.stream(2)];
    let parents = Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap();
    fake.log();
    let rest = [&parents[0], &parents[2]];
    let shrink = |ranks: &[usize]| Communicator::shrink_all(rest, &Shrink::without(ranks));
    let children = shrink(&[1]).unwrap();
    assert_eq!(
        children.iter().map(|child| (child.rank(), child.size())).collect::<Vec<_>>(),
        [(0, 2), (1, 2)]
    );
    fake.log();
    let itself = "a rank cannot exclude itself: only the ranks that remain shrink a communicator";
    not_allowed(shrink(&[2]), &format!("ncclCommShrink: cannot exclude [2] of 3: {itself}"));
    assert_eq!(
        fake.log(),
        ["shrink comm1 without 2 flags 0 into comm6 rank 0/2 device 0 inheriting", "group of 0 cancelled",]
    );
}

#[test]
fn a_communicator_grows_and_new_ranks_join_it() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new());
    for size in [0, 2, 1 << 31] {
        let error = parent.grow(&Grow::to(size)).unwrap_err();
        assert!(matches!(error, Error::Rank { rank: 2, size: seen } if seen == size), "{error}");
        assert!(parent.grow_pending(&Grow::to(size)).is_err());
    }
    assert_eq!(fake.log(), [""; 0]);
    let id = parent.grow_id().unwrap();
    let unused = parent.grow_id().unwrap_err();
    assert!(matches!(unused, Error::Nccl { operation: "ncclCommGetUniqueId", code: ResultCode(5), .. }));
    let grown = parent.grow(&Grow::to(4).id(&id)).unwrap();
    assert_eq!((grown.rank(), grown.size()), (1, 4));
    let other = parent.grow(&Grow::to(3).config(&Config::new())).unwrap();
    assert_eq!((other.rank(), other.size()), (1, 3));
    let join = |rank, id: &UniqueId| {
        Communicator::builder(fake.library(), &fake.stream(2)).rank(rank, 4).id(id).join()
    };
    let joined = join(3, &id).unwrap();
    assert_eq!((joined.rank(), joined.size()), (3, 4));
    assert!(matches!(join(4, &id), Err(Error::Rank { rank: 4, size: 4 })));
    assert!(matches!(join(3, &fake.id()), Err(Error::Nccl { operation: "ncclCommGrow", .. })));
    drop((joined, other, grown, parent));
    assert_eq!(
        fake.log(),
        [
            "grow_id comm1",
            "grow comm1 to 4 with an id into comm2 rank 1/4 device 0 inheriting",
            "grow comm1 to 3 into comm3 rank 1/3 device 0",
            "grow nothing to 4 with an id into comm4 rank 3/4 device 2",
            "destroy comm4",
            "destroy comm3",
            "destroy comm2",
            "destroy comm1",
        ]
    );
}

#[test]
fn a_communicator_is_made_from_several_ids() {
    let fake = Fake::new();
    let stream = fake.stream(0);
    let make = |library, ids: usize| {
        let ids: Vec<_> = (0..ids).map(|_| fake.id()).collect();
        Communicator::builder(library, &stream).rank(1, 2).ids(&ids).init()
    };
    for count in [0, 3] {
        let wanted = format!(
            "ncclCommInitRankConfig: {count} unique ids for 2 ranks: there must be at least one, at most \
             one for each rank, and exactly one for a communicator that grows"
        );
        assert_eq!(make(fake.library(), count).unwrap_err().to_string(), wanted);
    }
    let error = make(fake.old_library(), 2).unwrap_err().to_string();
    assert!(error.starts_with("ncclCommInitRankScalable needs NCCL 2.23"), "{error}");
    assert!(!fake.log().iter().any(|line| line.starts_with("init")));
    let communicator = make(fake.library(), 2).unwrap();
    assert_eq!((communicator.rank(), communicator.size()), (1, 2));
    assert_eq!(fake.log(), ["init comm1 rank 1/2 device 0 from 2 ids"]);
}

#[test]
fn old_libraries_and_groups_make_none() {
    let fake = Fake::new();
    let old = fake.rank(fake.old_library(), 1, 2, &Config::new());
    let needs = |error: Error, wanted: &str| {
        assert!(matches!(error, Error::MissingSymbol(_)), "{error}");
        assert!(error.to_string().starts_with(wanted), "{error}");
    };
    let (stream, id) = (old.stream(), fake.id());
    needs(old.shrink(&Shrink::without(&[0])).unwrap_err(), "ncclCommShrink needs NCCL 2.27");
    needs(old.grow_id().unwrap_err(), "ncclCommGetUniqueId needs NCCL 2.29");
    needs(old.grow(&Grow::to(3)).unwrap_err(), "ncclCommGrow needs NCCL 2.29");
    let joined = Communicator::builder(fake.old_library(), stream).rank(2, 3).id(&id).join();
    needs(joined.unwrap_err(), "ncclCommGrow needs NCCL 2.29");
    let error = old.split(&Split::color(0).config(&Config::new().name("part"))).unwrap_err();
    assert!(matches!(error, Error::TooOld { what: "Config::name", .. }), "{error}");
    assert_eq!(fake.log(), ["pool0 opens to 1", "pool0 opens to 2"]);
    old.close().unwrap();

    let parent = fake.communicator(&Config::new());
    let library = fake.library();
    group(|_| {
        inside_group(parent.split(&Split::color(0)));
        inside_group(parent.split_pending(&Split::color(0)));
        inside_group(Communicator::split_all([(&parent, key(0))]));
        inside_group(parent.shrink(&Shrink::without(&[0])));
        inside_group(parent.shrink_pending(&Shrink::without(&[0])));
        inside_group(Communicator::shrink_all([&parent], &Shrink::without(&[0])));
        inside_group(parent.grow(&Grow::to(3)));
        inside_group(parent.grow_pending(&Grow::to(3)));
        inside_group(parent.grow_id());
        inside_group(Communicator::builder(library, parent.stream()).rank(2, 3).id(&id).join());
        inside_group(Communicator::builder(library, parent.stream()).ids(&[]).init());
        Ok::<_, Error>(())
    })
    .unwrap();
    assert_eq!(fake.log(), [""; 0]);
}

#[test]
fn a_part_that_nccl_refuses_leaves_the_whole_as_it_was() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new());
    fake.set(Knob::ManagementResult, 3);
    let error = parent.split(&Split::color(0)).unwrap_err();
    assert!(matches!(error, Error::Nccl { operation: "ncclCommSplit", code: ResultCode(3), .. }), "{error}");
    fake.set(Knob::ManagementResult, 3);
    let result = Communicator::split_all([(&parent, key(0))]);
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclCommSplit", code: ResultCode(3), .. })));
    assert_eq!(fake.log(), ["group of 0 cancelled"]);
    parent.split(&Split::color(0)).unwrap();
}

/// A non-blocking parent that NCCL is working on.
fn busy(fake: &Fake, config: &Config) -> Communicator {
    fake.set(Knob::AsyncResult, 0);
    let parent = fake.communicator(&config.clone().blocking(false));
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    parent
}

const SPLIT: &str = "split comm1 color 0 key 0 into comm2 rank 1/2 device 0 non-blocking inheriting";

/// NCCL returns "success" or "in progress" for a non-blocking parent while it continues, and the handle is
/// null until it has finished.
#[test]
fn hole_14_a_part_is_waited_for_until_the_parent_is_done() {
    for answer in [0, IN_PROGRESS] {
        let fake = Fake::new();
        let parent = busy(&fake, &Config::new());
        fake.set(Knob::ManagementResult, answer);
        let child = thread::scope(|scope| {
            scope.spawn(|| {
                assert_eq!(fake.until(SPLIT), [SPLIT]);
                fake.set(Knob::AsyncResult, 0);
            });
            parent.split(&Split::color(0)).unwrap()
        });
        assert_eq!((child.rank(), child.size()), (1, 2));
        drop((child, parent));
        assert_eq!(fake.log(), ["destroy comm2", "destroy comm1"]);
    }
}

#[test]
fn hole_14_a_part_that_never_completes_reaches_its_parents_deadline() {
    for answer in [0, IN_PROGRESS] {
        let fake = Fake::new();
        let parent = busy(&fake, &Config::new().deadline(Duration::from_millis(20)));
        fake.set(Knob::ManagementResult, answer);
        let error = parent.split(&Split::color(0)).unwrap_err();
        assert!(matches!(error, Error::Deadline { operation: "ncclCommSplit", .. }), "{error}");
        // NCCL cannot abort one without the other.
        assert!(matches!(parent.split(&Split::color(0)), Err(Error::Aborted { .. })));
        drop(parent);
        assert_eq!(fake.log(), [SPLIT, "abort comm1"]);
    }
}

#[test]
fn hole_14_a_pending_part_is_polled_and_waited_for() {
    for answer in [0, IN_PROGRESS] {
        let fake = Fake::new();
        let parent = busy(&fake, &Config::new());
        fake.set(Knob::ManagementResult, answer);
        let mut pending = parent.split_pending(&Split::color(0)).unwrap();
        assert!(!pending.poll().unwrap());
        group(|_| {
            inside_group(pending.poll());
            Ok::<_, Error>(())
        })
        .unwrap();
        fake.set(Knob::AsyncResult, 0);
        assert!(pending.poll().unwrap());
        assert!(pending.poll().unwrap());
        let child = pending.wait(Duration::ZERO).unwrap();
        assert_eq!((child.rank(), child.size()), (1, 2));
        assert_eq!(fake.log(), [SPLIT]);
    }
}

#[test]
fn hole_14_a_pending_part_that_is_dropped_ends_what_nccl_is_working_on() {
    let fake = Fake::new();
    let parent = busy(&fake, &Config::new());
    drop(parent.split_pending(&Split::color(0)).unwrap());
    assert_eq!(fake.log(), [SPLIT, "abort comm1"]);
    assert!(matches!(parent.async_error(), Err(Error::Aborted { .. })));
    drop(parent);

    let parent = busy(&fake, &Config::new());
    let error = parent.shrink_pending(&Shrink::without(&[0])).unwrap().wait(Duration::ZERO).unwrap_err();
    assert!(matches!(error, Error::Deadline { operation: "ncclCommShrink", .. }), "{error}");
    assert_eq!(fake.log()[1..], ["abort comm3"]);

    // A finished one ends alone.
    let parent = busy(&fake, &Config::new());
    let pending = parent.split_pending(&Split::color(0)).unwrap();
    fake.set(Knob::AsyncResult, 0);
    drop(pending);
    parent.close().unwrap();
    assert_eq!(fake.log()[1..], ["abort comm6", "destroy comm5"]);
    // Inside a group.
    let parent = busy(&fake, &Config::new());
    let pending = parent.split_pending(&Split::color(0)).unwrap();
    fake.log();
    group(|_| {
        inside_group(pending.wait(Duration::ZERO));
        assert_eq!(fake.log(), ["abort comm7"]);
        Ok::<_, Error>(())
    })
    .unwrap();
}

#[test]
fn hole_14_the_abort_handle_of_a_pending_part_ends_its_parent() {
    let fake = Fake::new();
    let parent = busy(&fake, &Config::new());
    let pending = parent.split_pending(&Split::color(0)).unwrap();
    pending.abort_handle().abort().unwrap();
    assert!(matches!(pending.wait(Duration::from_secs(60)), Err(Error::Aborted { .. })));
    assert!(matches!(parent.device(), Err(Error::Aborted { .. })));
    assert_eq!(fake.log(), [SPLIT, "abort comm1"]);
    drop(parent);

    // The communicator itself, if it is not derived.
    let parent = busy(&fake, &Config::new());
    let mut pending = parent.split_pending(&Split::color(0)).unwrap();
    fake.set(Knob::AsyncResult, 0);
    assert!(pending.poll().unwrap());
    fake.log();
    pending.abort_handle().abort().unwrap();
    assert_eq!(fake.log(), ["abort comm4"]);
    assert!(matches!(pending.wait(Duration::ZERO), Err(Error::Aborted { .. })));
    parent.close().unwrap();
}

#[test]
fn hole_14_a_pending_part_fails_with_its_parent() {
    let fake = Fake::new();
    let parent = busy(&fake, &Config::new());
    let mut pending = parent.split_pending(&Split::color(0)).unwrap();
    fake.set(Knob::AsyncResult, REMOTE_ERROR);
    let failed =
        |error: &Error| matches!(error, Error::Nccl { operation: "ncclCommSplit", code: ResultCode(6), .. });
    assert!(pending.poll().as_ref().is_err_and(failed));
    assert!(pending.wait(Duration::from_secs(60)).as_ref().is_err_and(failed));
    assert_eq!(fake.log(), [SPLIT, "abort comm1"]);
    drop(parent);
    assert_eq!(fake.log(), [""; 0], "aborted once");
}

#[test]
fn hole_14_several_parts_are_waited_for_after_their_group() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let config = Config::new().blocking(false).deadline(Duration::from_millis(20));
    let parents = Communicator::init_all(fake.library(), &streams, &config).unwrap();
    fake.log();
    fake.set(Knob::AsyncResult, IN_PROGRESS);
    let result = Communicator::split_all(parents.iter().zip([key(0), key(0)]));
    assert!(matches!(result, Err(Error::Deadline { operation: "ncclCommSplit", .. })));
    assert_eq!(fake.log()[2..], ["abort comm1", "abort comm2"]);
}

#[test]
fn hole_14_what_grows_is_waited_for_itself() {
    let fake = Fake::new();
    let parent = busy(&fake, &Config::new());
    let mut pending = parent.grow_pending(&Grow::to(3)).unwrap();
    assert!(!pending.poll().unwrap());
    fake.set(Knob::AsyncResult, 0);
    let grown = pending.wait(Duration::ZERO).unwrap();
    assert_eq!((grown.rank(), grown.size()), (1, 3));
    assert_eq!(fake.log(), ["grow comm1 to 3 into comm2 rank 1/3 device 0 non-blocking inheriting"]);
}

#[test]
fn objects_of_a_communicator_outlive_its_abort() {
    let fake = Fake::new();
    let parent = fake.communicator(&Config::new());
    let child = parent.split(&Split::color(0)).unwrap();
    parent.abort_handle().abort().unwrap();
    assert!(matches!(parent.split(&Split::color(0)), Err(Error::Aborted { operation: "ncclCommSplit" })));
    let mut memory = fake.memory(child.stream(), 8);
    child.all_reduce_in_place(&mut memory.slice_mut::<f32>(..2).unwrap(), Sum).unwrap();
    child.close().unwrap();
    assert_eq!(fake.log().last().unwrap(), "destroy comm2");
}

/// NCCL would derive both from one parent, on two threads.
#[test]
fn a_communicator_is_not_split_or_shrunk_twice_in_one_group() {
    let fake = Fake::new();
    let streams = [fake.stream(0), fake.stream(1)];
    let [first, second] =
        Communicator::init_all(fake.library(), &streams, &Config::new()).unwrap().try_into().unwrap();
    fake.log();
    let result = Communicator::split_all([(&first, key(0)), (&second, key(0)), (&first, key(1))]);
    let error = result.unwrap_err().to_string();
    assert_eq!(error, "ncclCommSplit: communicator 2 is in the list twice");
    let result = Communicator::shrink_all([&second, &second], &Shrink::without(&[0]));
    let error = result.unwrap_err().to_string();
    assert_eq!(error, "ncclCommShrink: communicator 1 is in the list twice");
    assert_eq!(fake.log(), [""; 0]);
}
