//! Ranks of a TCP rendezvous, each in a process of its own.

use crate::job::{
    Ended, Process, all_ended, assert_all_well, assert_barriers_hold, free_port, rank, soon, start,
    start_job, start_rank, tcp_rank,
};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("tcp::ranks_meet_wait_and_gather", ranks_meet_wait_and_gather),
    ("tcp::long_messages_are_gathered", long_messages_are_gathered),
    ("tcp::barriers_hold", barriers_hold),
    ("tcp::a_killed_rank_takes_the_others_down", a_killed_rank_takes_the_others_down),
    ("tcp::a_stopped_rank_takes_the_others_down", a_stopped_rank_takes_the_others_down),
    ("tcp::a_failure_is_reported_by_every_operation", a_failure_is_reported_by_every_operation),
    ("tcp::a_rank_that_says_it_failed_is_named", a_rank_that_says_it_failed_is_named),
    ("tcp::late_ranks_are_named", late_ranks_are_named),
    ("tcp::a_limit_is_for_those_that_keep_others_waiting", a_limit_is_for_those_that_keep_others_waiting),
    ("tcp::notes_reach_rank_zero", notes_reach_rank_zero),
    ("tcp::a_process_does_its_last_act_before_it_ends", a_process_does_its_last_act_before_it_ends),
    ("tcp::an_abort_ends_all_with_its_code", an_abort_ends_all_with_its_code),
    ("tcp::a_panic_is_told", a_panic_is_told),
    ("tcp::a_rank_that_leaves_early_is_named", a_rank_that_leaves_early_is_named),
    ("tcp::ranks_may_leave_at_different_times", ranks_may_leave_at_different_times),
    ("tcp::different_collectives_are_an_error", different_collectives_are_an_error),
    ("tcp::strangers_do_not_disturb", strangers_do_not_disturb),
    ("tcp::a_wrong_key_is_turned_away", a_wrong_key_is_turned_away),
    ("tcp::a_missing_rank_is_named", a_missing_rank_is_named),
    ("tcp::an_absent_rank_zero_is_told", an_absent_rank_zero_is_told),
    ("tcp::a_rank_started_twice_is_told", a_rank_started_twice_is_told),
    ("tcp::a_rank_waits_for_a_rank_zero_that_stood_still", a_rank_waits_for_a_rank_zero_that_stood_still),
    ("tcp::sizes_that_differ_are_told", sizes_that_differ_are_told),
    ("tcp::a_port_in_use_is_told", a_port_in_use_is_told),
    ("tcp::torchruns_own_port_is_left_alone", torchruns_own_port_is_left_alone),
    ("tcp::slurm_steps_meet", slurm_steps_meet),
    ("tcp::ipv6_and_names_work", ipv6_and_names_work),
    ("tcp::hosts_are_told_apart", hosts_are_told_apart),
    ("tcp::a_limit_beyond_the_clock_is_as_good_as_none", a_limit_beyond_the_clock_is_as_good_as_none),
];

/// Time limit for the end of all ranks after a failure.
const LIMIT: Duration = Duration::from_secs(10);

fn ranks_meet_wait_and_gather() {
    for size in 1..=8 {
        let port = free_port();
        // Rank 0 comes last in half of the cases.
        let mut order: Vec<usize> = (0..size).collect();
        if size % 2 == 0 {
            order.reverse();
        }
        let mut job: Vec<(usize, Process)> = order
            .into_iter()
            .map(|rank| {
                (rank, start_rank(rank, size, port, "print barriers:5 gather:6 check fast-barriers:200"))
            })
            .collect();
        job.sort_by_key(|(rank, _)| *rank);
        let job: Vec<Ended> = job.iter_mut().map(|(_, process)| process.ended(soon())).collect();
        assert_all_well(&job);
        for (rank, ended) in job.iter().enumerate() {
            let how = if size == 1 {
                "one process".to_owned()
            } else {
                format!("TCP rendezvous at 127.0.0.1:{port}")
            };
            let line = format!("rank {rank} of {size}, {rank} of {size} here, {how}");
            assert_eq!(ended.stdout.lines().next(), Some(line.as_str()));
        }
    }
}

fn long_messages_are_gathered() {
    // Larger than socket buffers, so that sending has to wait for the receivers.
    let job =
        all_ended(&mut start_job(4, "gather-bytes:10000000 gather-bytes:0 gather-bytes:3000001"), soon());
    assert_all_well(&job);
    let job = all_ended(&mut start_job(2, "gather-bytes:16777217"), soon());
    for ended in job {
        assert!(ended.stderr.contains("16777217 bytes is too long"), "{ended:?}");
    }
}

fn barriers_hold() {
    let job = all_ended(&mut start_job(4, "barriers:100"), soon());
    assert_all_well(&job);
    assert_barriers_hold(&job.iter().map(|ended| ended.stdout.as_str()).collect::<Vec<_>>(), 100);
}

/// Waits until all ranks are at their last step, in which they hang.
fn let_them_get_stuck() {
    thread::sleep(Duration::from_millis(1500));
}

/// Panics unless all ranks but `dead` exit with code 1 and exactly one line that names it and the reason.
fn assert_taken_down(job: &mut [Process], dead: usize, reason: &str, by: Instant) {
    for (rank, process) in job.iter_mut().enumerate().filter(|(rank, _)| *rank != dead) {
        let ended = process.ended(by);
        assert_eq!(ended.code, Some(1), "rank {rank}: {ended:?}");
        assert_eq!(ended.stderr.lines().count(), 1, "rank {rank}: {ended:?}");
        assert!(ended.stderr.starts_with(&format!("rank {dead} on host ")), "rank {rank}: {ended:?}");
        assert!(ended.stderr.contains(reason), "rank {rank}: {ended:?}");
    }
}

fn a_killed_rank_takes_the_others_down() {
    for dead in [0, 1, 3] {
        let mut job = start_job(4, "exit-on-failure barriers:2 stuck");
        let_them_get_stuck();
        job[dead].signal(libc::SIGKILL);
        assert_taken_down(&mut job, dead, "died: its connection", Instant::now() + LIMIT);
    }
}

fn a_stopped_rank_takes_the_others_down() {
    for dead in [0, 2] {
        let mut job = start_job(3, "exit-on-failure barriers:2 stuck");
        let_them_get_stuck();
        assert!(job.iter_mut().all(Process::is_running));
        job[dead].signal(libc::SIGSTOP);
        assert_taken_down(&mut job, dead, "died: nothing was heard from it for 8 s", Instant::now() + LIMIT);
    }
}

fn a_failure_is_reported_by_every_operation() {
    for waiting in ["barriers:1", "gather:2", "check-until-failed"] {
        let mut job = start_job(3, &format!("barriers:1 stuck@1 {waiting}"));
        let_them_get_stuck();
        job[1].signal(libc::SIGKILL);
        let by = Instant::now() + LIMIT;
        for rank in [0, 2] {
            let ended = job[rank].ended(by);
            assert_eq!(ended.code, Some(3), "{ended:?}");
            assert!(ended.stderr.starts_with("error: rank 1 on host "), "{ended:?}");
        }
    }
}

fn a_rank_that_says_it_failed_is_named() {
    for failing in [0, 1] {
        // It leaves without a failure afterwards.
        let mut job =
            start_job(3, &format!("barriers:1 fail@{failing}:lost check-until-failed@{}", (failing + 1) % 3));
        for (rank, ended) in all_ended(&mut job, soon()).into_iter().enumerate() {
            if rank == (failing + 1) % 3 {
                assert_eq!(ended.code, Some(3), "{ended:?}");
                assert!(ended.stderr.starts_with(&format!("error: rank {failing} on host ")), "{ended:?}");
                assert!(ended.stderr.ends_with(" failed: lost\n"), "{ended:?}");
            } else {
                assert_eq!(ended.code, Some(0), "{ended:?}");
            }
        }
        let mut job =
            start_job(2, &format!("exit-on-failure barriers:1 fail@{failing}:lost stuck@{}", 1 - failing));
        let ended = all_ended(&mut job, soon());
        assert_eq!((ended[failing].code, ended[failing].stderr.as_str()), (Some(0), ""), "it lives on");
        let other = &ended[1 - failing];
        assert_eq!(other.code, Some(1), "{other:?}");
        assert!(other.stderr.starts_with(&format!("rank {failing} on host ")), "{other:?}");
    }
}

fn late_ranks_are_named() {
    for (late, call, name) in [(2, "fast-barriers:1", "a barrier"), (0, "gather:1", "an all_gather")] {
        let mut job = start_job(3, &format!("limit:1500 note@{late}:loading barriers:1 stuck@{late} {call}"));
        for rank in (0..3).filter(|&rank| rank != late) {
            let ended = job[rank].ended(soon());
            assert_eq!(ended.code, Some(3), "{ended:?}");
            assert!(ended.stderr.starts_with(&format!("error: rank {late} on host ")), "{ended:?}");
            let reason = format!(" did not come to {name} within 1.5 s (last heard of it: loading)\n");
            assert!(ended.stderr.ends_with(&reason), "{ended:?}");
        }
    }
    let mut job = start_job(4, "limit:1500 barriers:1 stuck@1 stuck@3 fast-barriers:1");
    for rank in [0, 2] {
        let ended = job[rank].ended(soon());
        assert!(ended.stderr.contains("within 1.5 s; neither did rank 3 on host "), "{ended:?}");
    }
}

fn a_limit_is_for_those_that_keep_others_waiting() {
    // No rank waits while all compute for longer than the limit.
    let job = all_ended(&mut start_job(3, "limit:20000 barriers:20 gather:4"), soon());
    assert_all_well(&job);
    let job = all_ended(&mut start_job(2, "limit:4000 barriers:2 sleep:6000 barriers:2"), soon());
    assert_all_well(&job);
}

fn notes_reach_rank_zero() {
    let job = all_ended(
        &mut start_job(3, "note:old note@0:zero note@1:one note@2:two fast-barriers:1 notes"),
        soon(),
    );
    assert_all_well(&job);
    assert_eq!(job[0].stdout, "heard: true\nheard: true\nnotes: zero, one, two\n");
    assert_eq!(job[1].stdout, "heard: true\nheard: true\nnotes: \n");
    let alone = all_ended(&mut start_job(1, "note:old notes"), soon());
    assert_eq!(alone[0].stdout, "heard: false\nnotes: \n");
}

fn a_process_does_its_last_act_before_it_ends() {
    let mut job = start_job(3, "exit-on-failure last-act barriers:2 kill@1 stuck");
    for rank in [0, 2] {
        let ended = job[rank].ended(soon());
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stdout.contains("\nkept although rank 1 on host "), "{ended:?}");
    }
    // A rank that has left without a failure does not exit with the others.
    let mut job = start_job(3, "exit-on-failure last-act barriers:1 sleep@1:500 kill@1 stuck@2");
    let first = job[0].ended(soon());
    assert_eq!((first.code, first.stderr.as_str()), (Some(0), ""), "{first:?}");
    let last = job[2].ended(soon());
    assert_eq!(last.code, Some(1), "rank 0 still passed it on: {last:?}");
    assert!(last.stderr.contains("rank 1 on host "), "{last:?}");
}

fn an_abort_ends_all_with_its_code() {
    for aborting in [0, 2] {
        let mut job = start_job(3, &format!("exit-on-failure barriers:2 abort@{aborting}:42 stuck"));
        for (rank, ended) in all_ended(&mut job, Instant::now() + LIMIT).into_iter().enumerate() {
            assert_eq!(ended.code, Some(42), "rank {rank}: {ended:?}");
            assert_eq!(ended.stderr.lines().count(), 1, "rank {rank}: {ended:?}");
            assert!(ended.stderr.starts_with(&format!("rank {aborting} on host ")), "rank {rank}: {ended:?}");
            assert!(ended.stderr.contains("the test wants it"), "rank {rank}: {ended:?}");
            assert_eq!(ended.stderr.contains("aborted with exit code 42"), rank != aborting, "{ended:?}");
        }
    }
}

fn a_panic_is_told() {
    for panicking in [0, 1] {
        let mut job = start_job(3, &format!("exit-on-failure barriers:1 panic@{panicking} stuck"));
        for (rank, ended) in all_ended(&mut job, Instant::now() + LIMIT).into_iter().enumerate() {
            assert_eq!(ended.code, Some(101), "rank {rank}: {ended:?}");
            let told = ended.stderr.contains(&format!("rank {panicking} on host "))
                && ended.stderr.contains("died: it panicked");
            assert_eq!(told, rank != panicking, "rank {rank}: {ended:?}");
        }
    }
}

fn a_rank_that_leaves_early_is_named() {
    for (size, leaving) in [(3, 0), (3, 2)] {
        let others: Vec<usize> = (0..size).filter(|&rank| rank != leaving).collect();
        let waiting: Vec<String> = others.iter().map(|rank| format!("fast-barriers@{rank}:1")).collect();
        let mut job = start_job(size, &format!("barriers:1 {}", waiting.join(" ")));
        for (rank, ended) in all_ended(&mut job, soon()).into_iter().enumerate() {
            if rank == leaving {
                assert_eq!(ended.code, Some(0), "{ended:?}");
            } else {
                assert_eq!(ended.code, Some(3), "{ended:?}");
                assert!(ended.stderr.contains(&format!("rank {leaving} on host ")), "{ended:?}");
                assert!(ended.stderr.contains("has left the job"), "{ended:?}");
            }
        }
    }
}

fn ranks_may_leave_at_different_times() {
    for late in [0, 1] {
        let job = all_ended(
            &mut start_job(3, &format!("exit-on-failure barriers:1 sleep@{late}:1500 check")),
            soon(),
        );
        assert_all_well(&job);
    }
}

fn different_collectives_are_an_error() {
    let mut job = start_job(3, "barriers:1 gather-bytes@2:5 fast-barriers:1");
    for ended in all_ended(&mut job, soon()) {
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(ended.stderr.contains("rank 0 called barrier while rank 2 called all_gather"), "{ended:?}");
    }
}

/// Connects to rank 0 of a waiting job.
fn connect(port: u16) -> TcpStream {
    let by = soon();
    loop {
        match TcpStream::connect((Ipv4Addr::LOCALHOST, port)) {
            Ok(stream) => return stream,
            Err(error) => assert!(Instant::now() < by, "{error}"),
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn strangers_do_not_disturb() {
    let port = free_port();
    let mut job: Vec<Process> =
        (0..2).map(|rank| start_rank(rank, 3, port, "exit-on-failure print gather:4 barriers:3")).collect();
    let mut held: Vec<TcpStream> = Vec::new();
    for bytes in [
        &b""[..],
        b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
        b"NCCLbnch",
        b"NCCLbnch\x01\x00\xff\xff",
        b"NCCLbnch\x09\x00\x10\x00",
        b"NCCLbnch\x01\x00\x04\x00\x01\x00\x00\x00",
        &[0xff; 5000],
    ] {
        let mut stream = connect(port);
        // Rank 0 may close it in the middle.
        let _ = stream.write_all(bytes);
        held.push(stream);
    }
    // More silent connections than rank 0 keeps.
    held.extend((0..300).map(|_| connect(port)));
    // One that closes as soon as it is accepted, and one that sends byte by byte.
    drop(connect(port));
    let mut slow = connect(port);
    for byte in b"NCCLbnch\x01\x00" {
        slow.write_all(&[*byte]).unwrap();
        thread::sleep(Duration::from_millis(10));
    }
    job.push(start_rank(2, 3, port, "exit-on-failure print gather:4 barriers:3"));
    let job = all_ended(&mut job, soon());
    assert_all_well(&job);
    // Other protocols are rejected without a reply.
    let mut answer = Vec::new();
    held[1].set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = held[1].read_to_end(&mut answer);
    assert_eq!(answer, b"");
}

fn a_wrong_key_is_turned_away() {
    let port = free_port();
    let keyed = |rank, size, key, timeout| {
        let mut command = tcp_rank(rank, size, port, "print barriers:3");
        start({
            command.env("NCCL_BENCH_KEY", key).env("NCCL_BENCH_TIMEOUT", timeout);
            command
        })
    };
    let mut first = keyed(0, 2, "ours", "30");
    let stranger = keyed(1, 2, "theirs", "1").ended(soon());
    assert_eq!(stranger.code, Some(3), "{stranger:?}");
    assert!(stranger.stderr.contains("rank 0 of another job listens there"), "{stranger:?}");
    assert!(stranger.stderr.contains(&format!("127.0.0.1:{port}")), "{stranger:?}");
    let mut second = keyed(1, 2, "ours", "30");
    assert_all_well(&[first.ended(soon()), second.ended(soon())]);
}

fn a_missing_rank_is_named() {
    let port = free_port();
    let mut job: Vec<Process> = [0, 1, 3]
        .into_iter()
        .map(|rank| {
            let mut command = tcp_rank(rank, 6, port, "print");
            command.env("NCCL_BENCH_TIMEOUT", "1.5");
            start(command)
        })
        .collect();
    for ended in all_ended(&mut job, soon()) {
        assert_eq!(ended.code, Some(3), "{ended:?}");
        let expected = format!(
            "the rendezvous at 127.0.0.1:{port} failed: after 1.5 s, 3 of 6 ranks are missing: rank 2, 4, 5; present: \
             rank 1, 3 on "
        );
        assert!(ended.stderr.contains(&expected), "{ended:?}");
    }
}

fn an_absent_rank_zero_is_told() {
    let port = free_port();
    let mut command = tcp_rank(1, 2, port, "print");
    command.env("NCCL_BENCH_TIMEOUT", "1");
    let ended = start(command).ended(soon());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    for part in
        [&format!("127.0.0.1:{port}"), "within 1 s", "Connection refused", "rank 1 did not find rank 0"]
    {
        assert!(ended.stderr.contains(part), "{part}: {ended:?}");
    }
}

fn a_rank_started_twice_is_told() {
    let port = free_port();
    let mut zero = start_rank(0, 3, port, "print");
    let mut one = start_rank(1, 3, port, "print");
    thread::sleep(Duration::from_millis(500));
    let again = start_rank(1, 3, port, "print").ended(soon());
    assert_eq!(again.code, Some(3), "{again:?}");
    assert!(again.stderr.contains("rank 1 of 3 was started twice"), "{again:?}");
    let mut two = start_rank(2, 3, port, "print");
    assert_all_well(&[zero.ended(soon()), one.ended(soon()), two.ended(soon())]);
}

fn a_rank_waits_for_a_rank_zero_that_stood_still() {
    let port = free_port();
    let mut zero = start_rank(0, 3, port, "print barriers:2");
    drop(connect(port));
    zero.signal(libc::SIGSTOP);
    let mut others: Vec<Process> = (1..3).map(|rank| start_rank(rank, 3, port, "print barriers:2")).collect();
    // After five seconds without a reply, each closes its connection and connects again.
    thread::sleep(Duration::from_secs(7));
    zero.signal(libc::SIGCONT);
    let mut job = vec![zero.ended(soon())];
    job.extend(all_ended(&mut others, soon()));
    assert_all_well(&job);
}

fn sizes_that_differ_are_told() {
    let port = free_port();
    let _zero = start_rank(0, 3, port, "print");
    let ended = start_rank(1, 4, port, "print").ended(soon());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains("was started as one of 4 ranks but rank 0 as one of 3"), "{ended:?}");
}

fn a_port_in_use_is_told() {
    let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = taken.local_addr().unwrap().port();
    let ended = start_rank(0, 2, port, "print").ended(soon());
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(ended.stderr.contains(&format!("rank 0 cannot listen on port {port}")), "{ended:?}");
    assert!(ended.stderr.contains("MASTER_PORT"), "{ended:?}");
}

/// A port after which `count` more are available, and listeners on it and some of them.
fn listen_on_some(more: &[u16]) -> (u16, Vec<TcpListener>) {
    loop {
        let first = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = first.local_addr().unwrap().port();
        let listeners: Option<Vec<TcpListener>> = more
            .iter()
            .map(|offset| TcpListener::bind((Ipv4Addr::LOCALHOST, port.checked_add(*offset)?)).ok())
            .collect();
        if let Some(mut listeners) = listeners {
            listeners.push(first);
            return (port, listeners);
        }
    }
}

fn torchruns_own_port_is_left_alone() {
    // torchrun's store, and a server that never replies on the next port.
    let (port, _listeners) = listen_on_some(&[1]);
    let start = |number: usize| {
        start(rank(
            "print barriers:2",
            &[
                ("RANK", &number.to_string()),
                ("WORLD_SIZE", "2"),
                ("LOCAL_RANK", &number.to_string()),
                ("LOCAL_WORLD_SIZE", "2"),
                ("MASTER_ADDR", "localhost"),
                ("MASTER_PORT", &port.to_string()),
                ("TORCHELASTIC_RUN_ID", "none"),
            ],
        ))
    };
    let job = all_ended(&mut [start(0), start(1)], soon());
    assert_all_well(&job);
    assert!(job[1].stdout.contains("rank 1 of 2, 1 of 2 here, TCP rendezvous at localhost:"), "{job:?}");
    assert!(!job[1].stdout.contains(&format!("localhost:{port}\n")), "{job:?}");
}

fn slurm_steps_meet() {
    let job_id = std::process::id().to_string();
    let start = |number: usize| {
        start(rank(
            "print gather:3",
            &[
                ("SLURM_PROCID", &number.to_string()),
                ("SLURM_NTASKS", "2"),
                ("SLURM_STEP_ID", "0"),
                ("SLURM_LOCALID", &number.to_string()),
                ("SLURM_JOB_ID", &job_id),
                // No resolver knows the first one; the step's own host is known.
                ("SLURM_JOB_NODELIST", "no-such-host-[07-09].invalid"),
                ("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1"),
            ],
        ))
    };
    assert_all_well(&all_ended(&mut [start(0), start(1)], soon()));
}

fn ipv6_and_names_work() {
    let mut hosts = vec!["localhost".to_owned()];
    if TcpListener::bind("[::1]:0").is_ok() {
        hosts.push("[::1]".to_owned());
    }
    for host in hosts {
        let address = format!("{host}:{}", free_port());
        let start = |number: usize| {
            let mut command = tcp_rank(number, 2, 1, "print barriers:2");
            command.env("NCCL_BENCH_ADDR", &address);
            start(command)
        };
        let job = all_ended(&mut [start(0), start(1)], soon());
        assert_all_well(&job);
        assert!(job[0].stdout.contains(&format!("TCP rendezvous at {address}")), "{job:?}");
    }
}

fn hosts_are_told_apart() {
    let port = free_port();
    let start = |number: usize, host: &str, key: &str| {
        let mut command = tcp_rank(number, 3, port, "print");
        command.env("NCCL_HOSTID", host).env("NCCL_BENCH_KEY", key);
        start(command)
    };
    // A value read from a file ends with a line break, and is the same without.
    let mut job = [start(0, "a\n", "ours"), start(1, "b\r\n", "ours\n"), start(2, "a", " ours")];
    let job = all_ended(&mut job, soon());
    assert_all_well(&job);
    for (rank, here) in ["0 of 2 here", "0 of 1 here", "1 of 2 here"].into_iter().enumerate() {
        assert!(job[rank].stdout.contains(here), "{job:?}");
    }
}

fn a_limit_beyond_the_clock_is_as_good_as_none() {
    let port = free_port();
    let start = |number: usize| {
        let mut command = tcp_rank(number, 2, port, "print barriers:2");
        command.env("NCCL_BENCH_TIMEOUT", "1e19").env("NCCL_BENCH_DEAD_AFTER", "1e19");
        start(command)
    };
    assert_all_well(&all_ended(&mut [start(0), start(1)], soon()));
}
