//! A rank is killed in each phase of a job.

use crate::job::{Ended, Process, command, reserve_port, soon, start};
use crate::rank::{CARRIERS, OPERATIONS, shared_memory_of};
use collectives::fabric::{Communicator, Options};
use collectives::world;
use std::collections::BTreeSet;
use std::process::Command;
use std::time::{Duration, Instant};
use std::{env, fs, thread};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("death_while_the_ranks_meet", death_while_the_ranks_meet),
    ("death_at_each_step_of_connecting", death_at_each_step_of_connecting),
    ("death_between_operations", death_between_operations),
    ("death_in_the_middle_of_an_operation", death_in_the_middle_of_an_operation),
    ("death_that_the_library_notices_first", death_that_the_library_notices_first),
    ("death_while_closing", death_while_closing),
    ("ranks_that_leave_are_told_to_those_that_wait", ranks_that_leave_are_told_to_those_that_wait),
    (
        "ranks_that_have_left_are_told_to_those_that_come_late",
        ranks_that_have_left_are_told_to_those_that_come_late,
    ),
    ("survivors_remove_what_the_dead_left", survivors_remove_what_the_dead_left),
    ("the_next_job_removes_what_the_dead_left", the_next_job_removes_what_the_dead_left),
    ("connected_ranks_leave_nothing_when_all_are_killed", connected_ranks_leave_nothing_when_all_are_killed),
];

const RANKS: usize = 3;
const PROVIDERS: [&str; 2] = ["shm", "tcp"];

/// A rank of a job in which `fault` happens.
fn rank(rank: usize, port: u16, fault: &str) -> Command {
    let mut command = command(env::current_exe().unwrap().to_str().unwrap());
    command
        .env("HOST_FAULT", fault)
        .env("NCCL_BENCH_RANK", rank.to_string())
        .env("NCCL_BENCH_SIZE", RANKS.to_string())
        .env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"))
        // Less than the limit of `soon`: ranks that do not meet say so.
        .env("NCCL_BENCH_TIMEOUT", "30");
    command
}

/// Exit of the ranks of a job, and the files that they have left in `/dev/shm`. Nothing else may be left.
fn play(fault: &str) -> (Vec<Ended>, Vec<String>) {
    let (port, temporary) = (reserve_port(), tempfile::tempdir().unwrap());
    let mut job: Vec<Process> = (0..RANKS)
        .map(|number| {
            let mut command = rank(number, port, fault);
            command.env("TMPDIR", temporary.path());
            start(command)
        })
        .collect();
    let ended: Vec<Ended> = job.iter_mut().map(|process| process.ended(soon())).collect();
    let left: Vec<_> = fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{fault}: {left:?}");
    let left = job.iter().flat_map(|process| shared_memory_of(process.child.id())).collect();
    (ended, left)
}

/// Panics unless the victim was killed and every other rank has ended with an error that names it.
fn assert_named(fault: &str, ended: &[Ended], victim: usize) {
    for (rank, ended) in ended.iter().enumerate() {
        if rank == victim {
            assert_eq!((ended.code, ended.stderr.as_str()), (None, ""), "{fault}: {ended:?}");
            continue;
        }
        assert_eq!(ended.code, Some(3), "{fault}, rank {rank}: {ended:?}");
        let named = ended.stderr.starts_with("error: ") && ended.stderr.contains(&format!("rank {victim}"));
        assert!(named, "{fault}, rank {rank}: {ended:?}");
    }
}

/// Panics unless the others name the victim, and nothing is left, at the latest after another start.
fn check(carrier: &str, operation: &str, phase: &str, victim: usize) {
    let fault = format!("{carrier} {operation} {phase} {victim}");
    let (ended, left) = play(&fault);
    assert_named(&fault, &ended, victim);
    assert_gone(&fault, left);
}

/// Panics unless these names are gone once a communicator is made on this host.
fn assert_gone(fault: &str, mut names: Vec<String>) {
    if !names.is_empty() {
        // The survivors were faster than the kernel with the end of the victim.
        let mut options = Options::default();
        options.provider = Some("shm".to_owned());
        drop(Communicator::new(world::single(), &options).unwrap());
        names.retain(|name| fs::exists(format!("/dev/shm/{name}")).unwrap());
    }
    assert!(names.is_empty(), "{fault}: {names:?}");
}

fn ranks_that_leave_are_told_to_those_that_wait() {
    thread::scope(|scope| {
        for (carrier, victim) in CARRIERS.into_iter().flat_map(|carrier| [(carrier, 0), (carrier, 1)]) {
            scope.spawn(move || {
                for operation in ["all_reduce", "barrier", "send_recv", "all_to_all_v"] {
                    leave(carrier, operation, "leaves", victim);
                }
            });
        }
    });
}

/// Rank 2 waits for rank 1, which waits for rank 0 and fails: rank 0 passes that on though it has left.
fn ranks_that_have_left_are_told_to_those_that_come_late() {
    thread::scope(|scope| {
        for carrier in CARRIERS {
            scope.spawn(move || leave(carrier, "send_recv", "left", 0));
        }
    });
}

/// Panics unless a victim that leaves succeeds, and every other rank that waits for it fails with an error
/// that names it.
fn leave(carrier: &str, operation: &str, phase: &str, victim: usize) {
    let fault = format!("{carrier} {operation} {phase} {victim}");
    let (ended, left) = play(&fault);
    assert_eq!(left, Vec::<String>::new(), "{fault}");
    for (rank, ended) in ended.iter().enumerate() {
        if rank == victim {
            assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{fault}: {ended:?}");
            continue;
        }
        let named = ended.stderr.contains(&format!("rank {victim}"));
        assert!(ended.code == Some(3) && named, "{fault}, rank {rank}: {ended:?}");
        // Over TCP the end of the connection may be seen first.
        let told = ended.stderr.contains("called nothing more, and left");
        assert!(told || carrier == "tcp", "{fault}, rank {rank}: {ended:?}");
    }
}

fn death_while_the_ranks_meet() {
    for victim in [0, 1] {
        let port = reserve_port();
        let mut job: Vec<Process> = (0..2)
            .map(|number| {
                let mut command = rank(number, port, "tcp barrier close 0");
                command.env("NCCL_BENCH_TIMEOUT", "3");
                start(command)
            })
            .collect();
        while !is_connected(port) {
            assert!(job.iter_mut().all(Process::is_running));
            thread::sleep(Duration::from_millis(5));
        }
        job[victim].signal(libc::SIGKILL);
        let ended = job[1 - victim].ended(soon());
        assert_eq!(ended.code, Some(3), "{ended:?}");
        // The other rank that is missing was never started.
        let named = ["rank 1, 2", "rank 0"][1 - victim];
        assert!(ended.stderr.starts_with("error: ") && ended.stderr.contains(named), "{ended:?}");
        assert_eq!(job[victim].ended(soon()).code, None);
    }
}

/// True when a process is connected to this port of this host.
fn is_connected(port: u16) -> bool {
    let local = format!("0100007F:{port:04X}");
    let table = fs::read_to_string("/proc/net/tcp").unwrap();
    table.lines().any(|line| {
        let mut words = line.split_whitespace().skip(1);
        words.next() == Some(&local) && words.nth(1) == Some("01")
    })
}

fn death_at_each_step_of_connecting() {
    for (provider, first) in PROVIDERS.into_iter().zip([0, 1]) {
        for step in 1.. {
            let victim = (first + step) % 2;
            let fault = format!("{provider} barrier connect:{step} {victim}");
            let (ended, left) = play(&fault);
            if ended.iter().all(|ended| ended.code == Some(0)) {
                // It has connected and closed before that.
                assert!(step > 5, "{fault}");
                assert_eq!(left, Vec::<String>::new(), "{fault}");
                break;
            }
            assert_named(&fault, &ended, victim);
            assert_gone(&fault, left);
        }
    }
}

fn death_between_operations() {
    for (provider, first) in PROVIDERS.into_iter().zip([0, 1]) {
        for (number, operation) in OPERATIONS.into_iter().enumerate() {
            check(provider, operation, "between", (first + number) % 2);
        }
    }
}

fn death_in_the_middle_of_an_operation() {
    for (first, carrier) in CARRIERS.into_iter().enumerate() {
        for (number, operation) in OPERATIONS.into_iter().enumerate() {
            let victim = (first + number) % 2;
            check(carrier, operation, "middle", victim);
            // The root is rank 0.
            if ["broadcast", "reduce", "gather", "scatter"].contains(&operation) {
                check(carrier, operation, "middle", 1 - victim);
            }
        }
    }
}

/// Survivors get an error of the library before the world knows of the death; they still name the victim.
fn death_that_the_library_notices_first() {
    for carrier in ["shm-messages", "tcp"] {
        for (number, operation) in ["all_reduce", "all_gather", "send_recv"].into_iter().enumerate() {
            let victim = number % 2;
            let fault = format!("{carrier} {operation} unnoticed {victim}");
            let (ended, left) = play(&fault);
            assert_named(&fault, &ended, victim);
            for ended in ended.iter().filter(|ended| ended.code.is_some()) {
                let first = format!("error: rank {victim} on host ");
                assert!(ended.stderr.starts_with(&first), "{fault}: {ended:?}");
            }
            assert_gone(&fault, left);
        }
    }
}

fn death_while_closing() {
    for provider in PROVIDERS {
        for victim in [0, 1] {
            check(provider, "all_reduce", "close", victim);
        }
    }
}

/// Also when rank 0, which compares the calls, is not one of those that wait.
pub(crate) fn mismatches_are_told_to_all_processes() {
    for provider in PROVIDERS {
        for (operation, victim) in [("all_reduce", 1), ("all_to_all_v", 2), ("exchange", 0)] {
            let fault = format!("{provider} {operation} mismatch {victim}");
            let (ended, left) = play(&fault);
            assert_eq!(left, Vec::<String>::new(), "{fault}");
            for ended in &ended {
                let (right, wrong) = ("of 300000 float", "of 300001 float");
                let told = ended.stderr.contains(right) && ended.stderr.contains(wrong);
                assert!(told && ended.code == Some(3), "{fault}: {ended:?}");
                assert!(ended.stderr.contains(&format!("rank {victim} called ")), "{fault}: {ended:?}");
            }
        }
    }
}

fn survivors_remove_what_the_dead_left() {
    // A survivor can be done before the kernel is with the victim: then it is not this job's fault.
    let clean = (0..5).any(|_| {
        let (ended, left) = play("shm all_reduce middle 1");
        assert_named("shm", &ended, 1);
        let clean = left.is_empty();
        assert_gone("shm", left);
        clean
    });
    assert!(clean, "the survivors of five jobs have left what the victims had");
}

fn the_next_job_removes_what_the_dead_left() {
    let port = reserve_port();
    let mut job: Vec<Process> =
        (0..RANKS).map(|number| start(rank(number, port, "shm barrier named 9"))).collect();
    while job.iter().any(|process| shared_memory_of(process.child.id()).is_empty()) {
        assert!(job.iter_mut().all(Process::is_running));
        thread::sleep(Duration::from_millis(5));
    }
    for process in &job {
        process.signal(libc::SIGKILL);
    }
    for process in &mut job {
        assert_eq!(process.ended(soon()).code, None);
    }
    let left: Vec<String> = job.iter().flat_map(|process| shared_memory_of(process.child.id())).collect();
    // Another job on this machine may have been faster.
    assert_gone("shm", left);
}

fn connected_ranks_leave_nothing_when_all_are_killed() {
    let port = reserve_port();
    let mut job: Vec<Process> =
        (0..RANKS).map(|number| start(rank(number, port, "shm barrier stuck 9"))).collect();
    let by = soon();
    while !job.iter().all(|process| has_mapped_what_has_no_name(process.child.id())) {
        assert!(Instant::now() < by && job.iter_mut().all(Process::is_running));
        thread::sleep(Duration::from_millis(5));
    }
    for process in &job {
        process.signal(libc::SIGKILL);
    }
    for process in &mut job {
        assert_eq!(process.ended(soon()).code, None);
        assert_eq!(shared_memory_of(process.child.id()), Vec::<String>::new());
    }
}

/// True when a process has mapped the memory of all ranks' endpoints and their board, none of which has a
/// name any more.
fn has_mapped_what_has_no_name(process: u32) -> bool {
    let maps = fs::read_to_string(format!("/proc/{process}/maps")).unwrap_or_default();
    let nameless = maps.lines().filter(|line| line.ends_with(" (deleted)"));
    let nameless: BTreeSet<&str> =
        nameless.filter_map(|line| line.split_once("/dev/shm/collectives-")).map(|(_, name)| name).collect();
    nameless.len() == RANKS + 1
}
