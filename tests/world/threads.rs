//! Several ranks in one process.

use crate::job::{all_ended, assert_all_well, assert_barriers_hold, soon, start_job};
use collectives::world::{self, Called, Error, Handle, Position, World};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("threads::ranks_are_numbered_by_process_then_thread", ranks_are_numbered_by_process_then_thread),
    ("threads::barriers_hold_under_stress", barriers_hold_under_stress),
    ("threads::gathered_messages_are_in_rank_order", gathered_messages_are_in_rank_order),
    ("threads::a_thread_that_panics_is_named", a_thread_that_panics_is_named),
    ("threads::a_thread_that_leaves_is_named", a_thread_that_leaves_is_named),
    ("threads::a_thread_that_reports_its_failure_is_named", a_thread_that_reports_its_failure_is_named),
    ("threads::of_another_process_that_failed_are_named", of_another_process_that_failed_are_named),
    ("threads::calls_after_a_failure_do_not_hide_it", calls_after_a_failure_do_not_hide_it),
    ("threads::a_late_thread_is_named", a_late_thread_is_named),
    ("threads::a_late_thread_of_another_process_is_named", a_late_thread_of_another_process_is_named),
    ("threads::different_collectives_are_an_error", different_collectives_are_an_error),
    (
        "threads::a_second_call_of_a_rank_does_not_change_its_first",
        a_second_call_of_a_rank_does_not_change_its_first,
    ),
    ("threads::a_call_never_gets_the_messages_of_another", a_call_never_gets_the_messages_of_another),
    ("threads::processes_with_different_counts_are_an_error", processes_with_different_counts_are_an_error),
    ("threads::of_several_processes_meet", of_several_processes_meet),
    ("threads::see_a_process_that_died", see_a_process_that_died),
];

fn each<T: Send>(worlds: Vec<Handle>, work: impl Fn(Handle) -> T + Sync) -> Vec<thread::Result<T>> {
    thread::scope(|scope| {
        let threads: Vec<_> = worlds
            .into_iter()
            .map(|world| {
                let work = &work;
                scope.spawn(move || work(world))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    })
}

fn ranks_are_numbered_by_process_then_thread() {
    let worlds = world::threads(world::single(), 3).unwrap();
    let numbers: Vec<_> = worlds
        .iter()
        .map(|world| (world.rank(), world.size(), world.local_rank(), world.local_size()))
        .collect();
    assert_eq!(numbers, [(0, 3, 0, 3), (1, 3, 1, 3), (2, 3, 2, 3)]);
    assert_eq!(worlds[0].describe(), "one process, 3 ranks per process");
    assert!(matches!(world::threads(world::single(), 0), Err(Error::Mismatch(_))));
}

fn barriers_hold_under_stress() {
    const ROUNDS: usize = 3000;
    for count in [1, 2, 3, 8, 32] {
        let entered = AtomicUsize::new(0);
        let rounds = if count > 8 { ROUNDS / 10 } else { ROUNDS };
        for result in each(world::threads(world::single(), count).unwrap(), |world| {
            for round in 1..=rounds {
                entered.fetch_add(1, Ordering::SeqCst);
                world.barrier().unwrap();
                let now = entered.load(Ordering::SeqCst);
                // All have entered this barrier, and none the one after next.
                assert!(now >= round * count && now < (round + 1) * count + count, "{now} in round {round}");
                if (round + world.rank()) % 64 == 0 {
                    thread::yield_now();
                }
            }
        }) {
            result.unwrap();
        }
    }
}

fn gathered_messages_are_in_rank_order() {
    for result in each(world::threads(world::single(), 5).unwrap(), |world| {
        for round in 0..500_usize {
            let message = |rank: usize| vec![rank as u8; (rank + round) % 7];
            let all = world.all_gather(&message(world.rank())).unwrap();
            assert_eq!(all, (0..5).map(message).collect::<Vec<_>>());
        }
    }) {
        result.unwrap();
    }
}

fn a_thread_that_panics_is_named() {
    let results = each(world::threads(world::single(), 4).unwrap(), |world| {
        world.barrier().unwrap();
        if world.rank() == 2 {
            std::panic::resume_unwind(Box::new("without a message"));
        }
        (world.barrier().unwrap_err(), world.check().unwrap_err())
    });
    for (rank, result) in results.into_iter().enumerate() {
        if rank == 2 {
            assert!(result.is_err());
            continue;
        }
        for error in <[Error; 2]>::from(result.unwrap()) {
            assert!(matches!(error, Error::RankFailed { rank: 2, .. }), "{error}");
            assert!(error.to_string().ends_with("died: its thread panicked"), "{error}");
        }
    }
}

fn a_thread_that_leaves_is_named() {
    let results = each(world::threads(world::single(), 3).unwrap(), |world| {
        world.barrier().unwrap();
        if world.rank() == 1 {
            return None;
        }
        world.all_gather(&[1]).err()
    });
    for (rank, result) in results.into_iter().enumerate() {
        match result.unwrap() {
            None => assert_eq!(rank, 1),
            Some(Error::RankFailed { rank: 1, reason, .. }) => {
                assert!(matches!(reason, world::Reason::Left(_)), "{reason}")
            }
            Some(other) => panic!("{other}"),
        }
    }
}

fn a_thread_that_reports_its_failure_is_named() {
    let results = each(world::threads(world::single(), 3).unwrap(), |world| {
        world.barrier().unwrap();
        if world.rank() == 1 {
            world.fail("lost".into());
            return None;
        }
        while world.check().is_ok() {
            thread::yield_now();
        }
        Some((world.check().unwrap_err(), world.barrier().unwrap_err()))
    });
    for result in results {
        let Some((checked, waited)) = result.unwrap() else { continue };
        assert!(matches!(&checked, Error::RankFailed { rank: 1, reason, .. } if *reason == "lost".into()));
        assert_eq!(waited, checked);
    }
}

fn a_late_thread_is_named() {
    let waiting = AtomicUsize::new(2);
    let results = each(world::threads(world::single(), 3).unwrap(), |world| {
        world.set_limit(Some(Duration::from_millis(500)));
        world.barrier().unwrap();
        if world.rank() == 1 {
            // It keeps its number until the others have given up.
            while waiting.load(Ordering::SeqCst) > 0 {
                thread::sleep(Duration::from_millis(5));
            }
            return world.barrier().unwrap_err();
        }
        let error = world.barrier().unwrap_err();
        assert_eq!(world.check(), Err(error.clone()));
        waiting.fetch_sub(1, Ordering::SeqCst);
        error
    });
    for result in results {
        let error = result.unwrap();
        assert!(matches!(&error, Error::RankFailed { rank: 1, .. }), "{error}");
        assert!(error.to_string().ends_with(" did not come to a barrier within 0.5 s"), "{error}");
    }
}

fn a_late_thread_of_another_process_is_named() {
    let mut job = start_job(2, "threads:2 limit:1500 barriers:1 stuck@3 fast-barriers:1");
    let ended = job[0].ended(soon());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    // Either the other thread of that process or rank 0 notices first.
    let named =
        ended.stderr.contains("rank 3 on host") || ended.stderr.contains("the process of ranks 2 to 3");
    assert!(named && ended.stderr.contains("did not come to a barrier within 1.5 s"), "{ended:?}");
}

fn of_another_process_that_failed_are_named() {
    let mut job = start_job(2, "threads:2 barriers:1 fail@3:lost check-until-failed@0");
    let ended = job[0].ended(soon());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    let named = ended.stderr.contains("rank 3 on host") && ended.stderr.contains(" failed: lost");
    assert!(named && !ended.stderr.contains("rank 2"), "{ended:?}");
}

/// A process of which another one has failed.
struct Orphaned(Handle);

impl World for Orphaned {
    fn position(&self) -> Position {
        self.0.position()
    }

    fn describe(&self) -> String {
        self.0.describe()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.0.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        self.0.all_gather(mine)
    }

    fn check(&self) -> Result<(), Error> {
        Err(Error::RankFailed { rank: 5, host: "node2".to_owned(), reason: "lost".into() })
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.0.abort(code, message)
    }
}

fn calls_after_a_failure_do_not_hide_it() {
    let worlds = world::threads(Arc::new(Orphaned(world::single())), 2).unwrap();
    for (world, what) in worlds.iter().zip(["all_reduce", "nothing more, and left"]) {
        world.compare(world.rank(), 7, &[Called { place: 0, number: 1, what: what.to_owned() }]);
    }
    for world in worlds {
        assert!(matches!(world.check(), Err(Error::RankFailed { reason, .. })
                if reason == "lost (the process of ranks 10 to 11)".into()));
    }
}

fn different_collectives_are_an_error() {
    let results = each(world::threads(world::single(), 2).unwrap(), |world| match world.rank() {
        0 => world.barrier().unwrap_err().to_string(),
        _ => world.all_gather(&[]).unwrap_err().to_string(),
    });
    for result in results {
        assert!(result.unwrap().starts_with("rank 0 called barrier while rank 1 called all_gather"));
    }
}

fn processes_with_different_counts_are_an_error() {
    let port = crate::job::reserve_port();
    let mut job = [
        crate::job::start_rank(0, 2, port, "threads:2 print"),
        crate::job::start_rank(1, 2, port, "threads:3 print"),
    ];
    for ended in all_ended(&mut job, soon()) {
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(ended.stderr.contains("every process needs the same number of threads"), "{ended:?}");
    }
}

fn of_several_processes_meet() {
    let job = all_ended(&mut start_job(2, "threads:3 print gather:5 barriers:30 gather:3"), soon());
    assert_all_well(&job);
    let outputs: Vec<&str> = job.iter().map(|ended| ended.stdout.as_str()).collect();
    assert_barriers_hold(&outputs, 30);
    for (process, output) in outputs.iter().enumerate() {
        for thread in 0..3 {
            let rank = process * 3 + thread;
            assert!(
                output.contains(&format!("rank {rank} of 6, {rank} of 6 here, TCP rendezvous at")),
                "{output}"
            );
        }
    }
}

fn see_a_process_that_died() {
    let mut job = start_job(2, "threads:2 barriers:1 vanish@3 barriers:1");
    let first = job[0].ended(soon());
    assert_eq!(first.code, Some(3), "{first:?}");
    assert!(first.stderr.contains("rank 2 on host"), "{first:?}");
    assert!(first.stderr.contains("the process of ranks 2 to 3"), "{first:?}");
}

fn a_second_call_of_a_rank_does_not_change_its_first() {
    let mut worlds = world::threads(world::single(), 2).unwrap();
    let (last, first) = (worlds.pop().unwrap(), worlds.pop().unwrap());
    let (sender, results) = mpsc::channel();
    thread::scope(|scope| {
        for message in [1, 2] {
            let (first, sender) = (&first, sender.clone());
            scope.spawn(move || sender.send((message, first.all_gather(&[message]))).unwrap());
        }
        // The one that came second.
        let (refused, error) = results.recv().unwrap();
        assert!(
            matches!(&error, Err(Error::Mismatch(text)) if text.contains("two collective calls")),
            "{error:?}"
        );
        let all = last.all_gather(&[9]).unwrap();
        assert_eq!(all, [[3 - refused], [9]]);
        assert_eq!(results.recv().unwrap(), (3 - refused, Ok(all)));
    });
}

/// Two threads use one rank, against the rule: the first may wake only when the second's call has ended.
fn a_call_never_gets_the_messages_of_another() {
    for _ in 0..200 {
        let worlds = world::threads(world::single(), 2).unwrap();
        let [zero, one]: [Handle; 2] = worlds.try_into().map_err(|_| "two ranks").unwrap();
        let has_first = AtomicUsize::new(0);
        let first = thread::scope(|scope| {
            let first = scope.spawn(|| zero.all_gather(b"a").map(|all| all[1].clone()));
            scope.spawn(|| {
                while has_first.load(Ordering::SeqCst) == 0 {
                    std::hint::spin_loop();
                }
                zero.all_gather(b"b").map(drop)
            });
            scope.spawn(|| {
                let first = one.all_gather(b"1");
                has_first.store(1, Ordering::SeqCst);
                first.and_then(|_| one.all_gather(b"2")).map(drop)
            });
            first.join().unwrap()
        });
        assert!(first.as_ref().map_or(true, |message| message == b"1"), "{first:?}");
    }
}
