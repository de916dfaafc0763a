//! Ranks of communicators over host buffers that wait for others: their sleep, wake-up and timeouts.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::env;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use collectives::ReduceOp;
use collectives::fabric::{Communicator, Error, Options};
use collectives::job::{Backend, Job};
use collectives::world::{self, World};

#[allow(dead_code, reason = "shared with other tests, which use all of it")]
mod host;
#[allow(dead_code, reason = "shared with other tests, which use all of it")]
mod port;

use host::{on_every_rank, over};

/// Longer than any wait of these tests, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_millis(300);

/// Runs `body` on `ranks` ranks with a communicator each, and returns their results in rank order. Panics
/// when one hangs.
fn results<T: Send + 'static>(
    ranks: usize,
    options: &Options,
    body: impl Fn(Communicator) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let (sender, receiver) = mpsc::channel();
    for handle in world::threads(world::single(), ranks).unwrap() {
        let (sender, options, body) = (sender.clone(), options.clone(), body.clone());
        thread::spawn(move || {
            let rank = handle.rank();
            let communicator = Communicator::new(handle, &options).unwrap();
            sender.send((rank, body(communicator))).unwrap();
        });
    }
    let mut results: Vec<_> = (0..ranks).map(|_| receiver.recv_timeout(PATIENCE).unwrap()).collect();
    results.sort_by_key(|(rank, _)| *rank);
    results.into_iter().map(|(_, result)| result).collect()
}

/// Rank 1 has a timeout, and rank 0 none; rank 2 is alive, but calls nothing until both have failed.
fn assert_times_out(provider: &str, operation: &'static str) {
    let (sender, failed) = mpsc::channel();
    let failed = Arc::new(std::sync::Mutex::new(failed));
    let errors = results(3, &over(provider), move |mut communicator| {
        let mut data = [1.0_f32; 4];
        communicator.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
        assert_eq!(data, [3.0; 4]);
        let rank = communicator.rank();
        if rank == 1 {
            communicator.set_timeout(Some(LIMIT));
        }
        if rank == 2 {
            for _ in 0..2 {
                failed.lock().unwrap().recv_timeout(PATIENCE).unwrap();
            }
        }
        let mut run = || match operation {
            "all_reduce" => communicator.all_reduce_in_place(&mut data, ReduceOp::Sum),
            "recv" if rank < 2 => communicator.recv(&mut data, 2),
            _ => communicator.barrier(),
        };
        let start = Instant::now();
        // Rank 2 may find all the data of its first operation in the segment.
        let error = run().and_then(|()| run()).unwrap_err();
        let waited = start.elapsed();
        assert!(matches!(run().unwrap_err(), Error::Closed { .. }));
        if rank < 2 {
            sender.send(()).unwrap();
        }
        (error, waited)
    });
    let [(first, _), (second, waited), (third, _)] = &errors[..] else { panic!("three ranks") };
    let Error::TimedOut { operation: named, limit: LIMIT, late } = second else {
        panic!("{provider}: {second:?}")
    };
    assert_eq!(named, operation, "{provider}");
    // Rank 0 waits, and reports its call when rank 1 has waited for too long, perhaps not in time on a busy
    // machine.
    let late: Vec<usize> = late.iter().map(|(rank, _)| *rank).collect();
    assert!(late == [2] || late == [0, 2], "{provider}: {late:?}");
    assert!(*waited >= LIMIT, "{provider}: {waited:?}");
    let expected = second.to_string();
    assert!(
        expected.starts_with(&format!("{operation}: not complete after 0.3 s, the timeout; ")),
        "{expected}"
    );
    // The others get the same reason, also the one that has no timeout, and the one that calls something
    // later.
    for other in [first, third] {
        assert!(
            matches!(other, Error::World(_)) && other.to_string().contains(&expected),
            "{provider}: {other:?}"
        );
    }
}

#[test]
fn an_operation_that_waits_too_long_fails_on_all_ranks_in_shared_memory() {
    assert_times_out("shm", "all_reduce");
    assert_times_out("shm", "barrier");
    assert_times_out("shm", "recv");
}

#[test]
fn an_operation_that_waits_too_long_fails_on_all_ranks_over_a_network() {
    assert_times_out("tcp", "all_reduce");
    assert_times_out("tcp", "barrier");
    assert_times_out("tcp", "recv");
}

/// A world in which another rank has waited for too long once this one has reported its calls.
struct Asking {
    world: world::Handle,
    reports: Arc<AtomicUsize>,
}

impl World for Asking {
    fn position(&self) -> world::Position {
        self.world.position()
    }

    fn describe(&self) -> String {
        self.world.describe()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.world.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        self.world.all_gather(mine)
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.world)
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[world::Called]) {
        assert!(calls.iter().any(|call| call.what == "barrier"), "{calls:?}");
        self.reports.fetch_add(1, Ordering::SeqCst);
        self.world.compare(rank, topic, calls);
    }

    fn wants_calls(&self) -> bool {
        self.reports.load(Ordering::SeqCst) > 0
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.world.abort(code, message)
    }
}

/// Once without being asked, and once more.
#[test]
fn a_rank_that_waits_reports_its_calls_when_they_are_wanted() {
    for provider in ["shm", "tcp"] {
        let reports = Arc::new(AtomicUsize::new(0));
        thread::scope(|scope| {
            for (rank, world) in world::threads(world::single(), 2).unwrap().into_iter().enumerate() {
                let asking: world::Handle =
                    Arc::new(Asking { world: world.clone(), reports: Arc::clone(&reports) });
                let (reports, options) = (&reports, over(provider));
                scope.spawn(move || {
                    let world = if rank == 0 { asking } else { world };
                    let mut communicator = Communicator::new(world, &options).unwrap();
                    let start = Instant::now();
                    while rank == 1 && reports.load(Ordering::SeqCst) < 2 {
                        assert!(start.elapsed() < PATIENCE, "no report");
                        thread::sleep(Duration::from_millis(1));
                    }
                    communicator.barrier().unwrap();
                    // Leaving is a report, too.
                    assert!(rank == 1 || reports.load(Ordering::SeqCst) == 2);
                });
            }
        });
    }
}

/// The limit is of each operation's wait, not of all waits together, and the time between operations does not
/// count.
#[test]
fn ranks_that_are_late_within_the_timeout_are_waited_for() {
    for provider in ["shm", "tcp"] {
        on_every_rank(2, &over(provider), |communicator| {
            communicator.set_timeout(Some(PATIENCE));
            communicator.barrier().unwrap();
            communicator.set_timeout(Some(Duration::from_secs(10)));
            for late in [0, 1, 0, 1] {
                if communicator.rank() == late {
                    thread::sleep(Duration::from_millis(30));
                }
                let mut sum = [communicator.rank() as u64 + 1];
                communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [3]);
            }
            // None again: this wait is longer than the limit before.
            communicator.set_timeout(Some(Duration::from_millis(1)));
            communicator.set_timeout(None);
            if communicator.rank() == 0 {
                thread::sleep(Duration::from_millis(100));
            }
            communicator.barrier().unwrap();
        });
    }
}

/// Processor time of this thread.
fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the time.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// A rank that polls takes all the time. The bound is far above what sleeping takes
/// (`measurements/tools/host_waiting.rs` measures it).
#[test]
fn a_rank_that_waits_leaves_the_processor_to_others() {
    const LATE: Duration = Duration::from_secs(1);
    for (provider, operation) in [("shm", "barrier"), ("shm", "recv"), ("tcp", "barrier"), ("tcp", "recv")] {
        on_every_rank(2, &over(provider), |communicator| {
            communicator.barrier().unwrap();
            let is_late = communicator.rank() == 0;
            if is_late {
                thread::sleep(LATE);
            }
            let (start, used) = (Instant::now(), thread_time());
            let mut data = [7_u8];
            match operation {
                "recv" if is_late => communicator.send(&data, 1).unwrap(),
                "recv" => communicator.recv(&mut data, 0).unwrap(),
                _ => communicator.barrier().unwrap(),
            }
            let (waited, used) = (start.elapsed(), thread_time() - used);
            assert!(
                is_late || used < waited.mul_f64(0.3),
                "{operation} over {provider}: {used:?} of {waited:?}"
            );
        });
    }
}

/// Sums of all ranks, of which another one is late each time; more ranks than processors.
fn sums_with_late_ranks(communicator: &mut Communicator) {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    for operation in 0..4 * ranks {
        if operation % ranks == rank {
            thread::sleep(Duration::from_millis(3));
        }
        // Short and long messages, in the segment and beside it.
        for count in [1, 3000, 200_000] {
            let mut sum = vec![(rank + operation) as u64; count];
            communicator.all_reduce_in_place(&mut sum, ReduceOp::Sum).unwrap();
            let expected = (0..ranks).map(|rank| (rank + operation) as u64).sum::<u64>();
            assert!(sum.iter().all(|&value| value == expected), "{operation} of {count}");
        }
        let mut root = [if operation % ranks == rank { operation } else { usize::MAX } as u64];
        communicator.broadcast_in_place(&mut root, operation % ranks).unwrap();
        assert_eq!(root, [operation as u64]);
    }
}

#[test]
fn ranks_that_sleep_are_woken_with_more_ranks_than_processors() {
    on_every_rank(9, &over("shm"), sums_with_late_ranks);
    on_every_rank(5, &over("tcp"), sums_with_late_ranks);
}

/// Started again by the test below, once per rank.
#[test]
#[ignore = "started by another test"]
fn rank_of_several_processes() {
    let world = world::from_environment(&world::Options::from_environment().unwrap()).unwrap();
    for provider in ["shm", "tcp"] {
        let mut communicator = Communicator::new(world.clone(), &over(provider)).unwrap();
        sums_with_late_ranks(&mut communicator);
        communicator.close().unwrap();
    }
    println!("all sums are right");
}

#[test]
fn ranks_that_sleep_are_woken_by_other_processes() {
    const RANKS: usize = 3;
    let port = port::reserve_port();
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["rank_of_several_processes", "--exact", "--ignored", "--nocapture"]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port.to_string())]);
        command.envs([("WORLD_SIZE", RANKS.to_string()), ("RANK", rank.to_string())]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    let ranks: Vec<_> = (0..RANKS).map(start).collect();
    for rank in ranks {
        let output = rank.wait_with_output().unwrap();
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(output.status.success() && out.contains("all sums are right"), "{out}{err}");
    }
}

/// Started again by the tests below, once per process. Calls an operation; the ranks of `LATE` call it only
/// when it has failed.
#[test]
#[ignore = "started by another test"]
fn process_with_late_ranks() {
    let late = env::var("LATE").unwrap();
    let job = Job::new(world::from_environment(&world::Options::from_environment().unwrap()).unwrap());
    let ranks = job.threads(env::var("THREADS").unwrap().parse().unwrap()).unwrap();
    thread::scope(|scope| {
        for job in ranks {
            let late = &late;
            scope.spawn(move || {
                let group = job.group(Backend::Host).unwrap();
                group.set_timeout(Some(Duration::from_secs(3)));
                group.barrier().unwrap();
                let is_late = late.split(' ').any(|rank| rank == job.rank().to_string());
                if is_late && env::var("STOPS").is_ok() {
                    // SAFETY: `raise` touches no memory.
                    unsafe { libc::raise(libc::SIGSTOP) };
                }
                let start = Instant::now();
                while is_late && group.world().check().is_ok() {
                    assert!(start.elapsed() < PATIENCE, "no failure");
                    thread::sleep(Duration::from_millis(1));
                }
                let error = group.all_reduce(vec![1.0_f32; 5], ReduceOp::Sum).wait().unwrap_err();
                println!("error: {error}");
            });
        }
    });
}

/// Starts processes of `threads` ranks, of which `late` are late.
fn start_with_late_ranks(processes: usize, threads: usize, late: &str, more: &[(&str, &str)]) -> Vec<Child> {
    let port = port::reserve_port();
    let start = |rank: usize| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(["process_with_late_ranks", "--exact", "--ignored", "--nocapture"]);
        command.envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &port.to_string()), ("LATE", late)]);
        command.envs([("WORLD_SIZE", processes.to_string()), ("RANK", rank.to_string())]);
        command.env("THREADS", threads.to_string()).envs(more.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    };
    (0..processes).map(start).collect()
}

/// Checks that each rank of a process tells this error.
fn assert_told(output: &Output, threads: usize, error: &str) {
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{out}{err}");
    let told: Vec<_> = out.lines().filter_map(|line| Some(line.split_once("error: ")?.1)).collect();
    assert_eq!(told, vec![error; threads], "{out}{err}");
}

/// One late rank, two, rank 0, and ranks that are threads: all ranks name them, also those that are late.
#[test]
fn late_ranks_of_other_processes_are_named() {
    let cases = [(3, 1, "2"), (4, 1, "0 2"), (2, 2, "3"), (2, 2, "1 2")];
    let jobs = cases.map(|(processes, threads, late)| start_with_late_ranks(processes, threads, late, &[]));
    for ((_, threads, late), job) in cases.into_iter().zip(jobs) {
        let host = world::host().name;
        let named: Vec<_> = late.split(' ').map(|rank| format!("rank {rank} on host {host}")).collect();
        let named = named.join(", ");
        let error = format!(
            "all_reduce has not finished within 3 s; these ranks have not called it, are busy, or have \
             continued: {named}"
        );
        for process in job {
            assert_told(&process.wait_with_output().unwrap(), threads, &error);
        }
    }
}

/// The others do not wait for the answer of rank 0, which they would take for dead only after ten minutes.
#[test]
fn a_rank_0_that_hangs_does_not_hide_the_timeout() {
    let more = [("STOPS", "1"), ("NCCL_BENCH_DEAD_AFTER", "600")];
    let start = Instant::now();
    let mut job = start_with_late_ranks(3, 1, "0", &more).into_iter();
    let mut zero = job.next().unwrap();
    let others: Vec<_> = job.map(|process| process.wait_with_output().unwrap()).collect();
    zero.kill().unwrap();
    zero.wait().unwrap();
    for output in others {
        let error = "all_reduce has not finished within 3 s: a rank has not called it, or is slow; look at \
                     the other ranks";
        assert_told(&output, 1, error);
    }
    assert!(start.elapsed() < Duration::from_secs(300), "{:?}", start.elapsed());
}
