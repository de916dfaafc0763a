use super::*;
use crate::world::{Awaited, Host, Timeout};
use std::io::Read;
use std::sync::{Weak, mpsc};
use std::time::Instant;

fn positions(members: &[(&str, Option<(u32, u32)>)]) -> Vec<(usize, usize)> {
    let members: Vec<JobMember> = members
        .iter()
        .map(|&(host, local)| JobMember { host: Host { name: host.to_owned(), id: host.to_owned() }, local })
        .collect();
    (0..members.len()).map(|rank| local_position(&members, rank)).collect()
}

/// A rank compares its calls with the latest ones of rank 0 if it begins to wait after rank 0 has left.
#[test]
fn calls_are_compared_with_those_of_a_rank_0_that_has_left() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = |rank| RendezvousConfig::new(rank, 2, &address).unwrap();
    let other = thread::spawn({
        let config = config(1);
        move || join_world(&config, &Options::default(), None).unwrap()
    });
    let zero = join_world(&config(0), &Options::default(), Some(listener)).unwrap();
    let other = other.join().unwrap();
    let call = |number, what: &str| Called { place: 0, number, what: what.to_owned() };
    zero.compare(0, 7, &[call(2, "nothing more, and left"), call(1, "barrier")]);
    let leaving = thread::spawn(move || drop(zero));
    // Fails once rank 0 has left.
    other.barrier().unwrap_err();
    other.compare(1, 7, &[call(1, "barrier"), call(2, "barrier")]);
    let waited = Instant::now();
    while other.check().is_ok() {
        assert!(waited.elapsed() < Duration::from_secs(60), "no difference was found");
        thread::sleep(Duration::from_millis(1));
    }
    let error = other.check().unwrap_err().to_string();
    assert!(error.starts_with("rank 0 called nothing more, and left while rank 1 called barrier"), "{error}");
    drop(other);
    leaving.join().unwrap();
}

/// Rank 0 of 2 without a service thread, and the other end of its connection.
fn root() -> (TcpState, UnixStream) {
    let (own, other) = UnixStream::pair().unwrap();
    other.set_nonblocking(true).unwrap();
    let connection = FrameConnection::new(std::os::fd::OwnedFd::from(own).into()).unwrap();
    let (wake, _) = UnixStream::pair().unwrap();
    let host = Host { name: "a".to_owned(), id: "a".to_owned() };
    let members = vec![JobMember { host, local: None }; 2];
    (TcpState::new(0, members, vec![None, Some(connection)], Options::default(), wake), other)
}

/// A process that exits as soon as it sees a failure has sent it to the others.
#[test]
fn a_failure_is_sent_before_it_is_visible() {
    for _ in 0..200 {
        let (state, mut other) = root();
        thread::scope(|scope| {
            scope.spawn(|| {
                state.fail_all(
                    state.rank_failed(1, Reason::Other("called nothing more, and left".to_owned())),
                    1,
                )
            });
            while state.failure.get().is_none() {
                std::hint::spin_loop();
            }
            let mut frame = [0; 1024];
            assert!(other.read(&mut frame).is_ok_and(|length| length > 0), "the failure was seen first");
        });
    }
}

#[test]
fn the_first_reason_of_an_end_is_the_only_one() {
    let (state, mut other) = root();
    let error = state.rank_failed(1, Reason::Died("its connection closed".to_owned()));
    assert_eq!(state.begin_end(), Ok(()));
    assert!(state.ignores_silence());
    state.fail_all(error.clone(), 1);
    state.fail_own(1, None, "lost its peer".into());
    assert!(state.failure.get().is_none());
    let sent = other.read(&mut [0; 1024]).map_err(|error| error.kind());
    assert_eq!(sent, Err(io::ErrorKind::WouldBlock), "the others read it");
    // The others end because of a failure sent by rank 0.
    state.follow_failure(error.clone(), 3);
    assert_eq!(state.begin_end(), Err((error, 3)));

    let (state, _other) = root();
    let error = state.rank_failed(1, Reason::Died("its connection closed".to_owned()));
    state.fail_all(error.clone(), 1);
    assert_eq!(state.begin_end(), Err((error, 1)));
    assert!(!state.ignores_silence());

    // A failure of its own is not another reason.
    let (state, _other) = root();
    state.fail_own(1, None, "lost its device".into());
    assert_eq!(state.begin_end(), Ok(()));
}

#[test]
fn ranks_are_counted_by_host() {
    let counted = positions(&[("a", None), ("b", None), ("a", None), ("a", None)]);
    assert_eq!(counted, [(0, 3), (0, 1), (1, 3), (2, 3)]);
}

#[test]
fn consistent_local_ranks_of_the_launcher_are_used() {
    assert_eq!(positions(&[("a", Some((1, 2))), ("a", Some((0, 2)))]), [(1, 2), (0, 2)]);
    // One host, two containers with names of their own.
    assert_eq!(positions(&[("a", Some((0, 2))), ("b", Some((1, 2)))]), [(0, 2), (1, 2)]);
    // Two launchers on one host.
    assert_eq!(positions(&[("a", Some((0, 1))), ("a", Some((0, 1)))]), [(0, 2), (1, 2)]);
    assert_eq!(positions(&[("a", Some((0, 2))), ("a", None)]), [(0, 2), (1, 2)]);
}

/// The ranks 1 and 2 time out at the same time; 0 and 3 have reported other calls, or none.
#[test]
fn a_timeout_names_the_ranks_that_have_not_reported_the_call() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let rank = |rank: usize, listener| {
        let world =
            join_world(&RendezvousConfig::new(rank, 4, &address).unwrap(), &Options::default(), listener)
                .unwrap();
        let call = |number| Called { place: 0, number, what: "barrier".to_owned() };
        if rank < 3 {
            world.compare(rank, 7, &[call(4), call(4 + rank.min(1) as u64)]);
        }
        world.barrier().unwrap();
        if rank == 1 || rank == 2 {
            let awaited = (0..5).map(|rank| Awaited { rank, place: 0, number: 5 }).collect();
            let operation = format!("barrier of {rank}");
            assert!(world.time_out(&Wait {
                rank,
                topic: 7,
                operation,
                limit: Duration::from_secs(3),
                awaited
            }));
        }
        let waited = Instant::now();
        while world.check().is_ok() {
            assert!(waited.elapsed() < Duration::from_secs(60), "no failure");
            thread::sleep(Duration::from_millis(1));
        }
        // The request came first.
        assert!(world.wants_calls());
        world.check().unwrap_err()
    };
    let errors: Vec<Error> = thread::scope(|scope| {
        let rank = &rank;
        let others: Vec<_> = (1..4).map(|number| scope.spawn(move || rank(number, None))).collect();
        let zero = rank(0, Some(listener));
        [zero].into_iter().chain(others.into_iter().map(|other| other.join().unwrap())).collect()
    });
    let Error::RankFailed { rank, reason, .. } = &errors[0] else { panic!("{errors:?}") };
    assert!([1, 2].contains(rank), "{errors:?}");
    let host = crate::world::host().name;
    let late = vec![(0, host.clone()), (3, host)];
    let timeout = Timeout { operation: format!("barrier of {rank}"), limit: Duration::from_secs(3), late };
    assert_eq!(*reason, Reason::TimedOut(timeout));
    assert!(errors.iter().all(|error| *error == errors[0]), "{errors:?}");
}

/// Messages of the program reach rank 0, and the other ranks from there, also after a failure.
#[test]
fn posted_messages_arrive_after_a_failure() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let until = |world: &dyn World, count: usize| {
        let begun = Instant::now();
        let mut taken = Vec::new();
        while taken.len() < count {
            assert!(begun.elapsed() < Duration::from_secs(60), "only {taken:?} arrived");
            taken.extend(world.take_posted());
            thread::yield_now();
        }
        taken
    };
    let rank = |rank: usize, listener: Option<TcpListener>| {
        let config = RendezvousConfig::new(rank, 3, &address).unwrap();
        let world = join_world(&config, &Options::default(), listener).unwrap();
        world.barrier().unwrap();
        if rank == 1 {
            world.fail("on purpose".into());
        }
        while world.check().is_ok() {
            thread::yield_now();
        }
        if rank == 0 {
            let mut taken = until(&world, 2);
            taken.sort_unstable();
            assert_eq!(taken, [(1, vec![1; 3 << 20]), (2, vec![2; 3 << 20])]);
            assert!(world.is_connected_to(1) && world.is_connected_to(2) && !world.is_connected_to(0));
            assert!(world.post(vec![7]));
            // The others leave once they have it.
            let begun = Instant::now();
            while world.is_connected_to(1) || world.is_connected_to(2) {
                assert!(begun.elapsed() < Duration::from_secs(60));
                thread::yield_now();
            }
        } else {
            assert!(world.post(vec![rank as u8; 3 << 20]));
            assert_eq!(until(&world, 1), [(0, vec![7])]);
        }
    };
    thread::scope(|scope| {
        let rank = &rank;
        for number in 1..3 {
            scope.spawn(move || rank(number, None));
        }
        rank(0, Some(listener));
    });
}

/// Sets a hook when it is dropped.
struct SetsHook(Weak<Tcp>);

impl Drop for SetsHook {
    fn drop(&mut self) {
        if let Some(world) = self.0.upgrade() {
            world.before_exit(Box::new(|_, _| ()));
        }
    }
}

#[test]
fn a_hook_that_is_replaced_is_dropped_without_the_lock() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let config = RendezvousConfig::new(0, 1, &address).unwrap();
    let world = Arc::new(join_world(&config, &Options::default(), Some(listener)).unwrap());
    let (done, end) = mpsc::channel();
    // Not joined before: a thread waiting for its own lock never ends.
    let setting = thread::spawn(move || {
        let owned = SetsHook(Arc::downgrade(&world));
        world.before_exit(Box::new(move |_, _| drop(owned)));
        world.before_exit(Box::new(|_, _| ()));
        done.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(60)).expect("the drop waits for the hook's lock");
    setting.join().unwrap();
}
