//! Rendezvous over TCP.

use crate::job::{
    Process, all_ended, assert_all_well, rank, reserve_port, soon, start, start_rank, tcp_rank,
};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("rendezvous::untrusted_peers_do_not_disturb", untrusted_peers_do_not_disturb),
    ("rendezvous::a_wrong_key_is_rejected", a_wrong_key_is_rejected),
    ("rendezvous::a_missing_rank_is_named", a_missing_rank_is_named),
    ("rendezvous::an_absent_rank_zero_is_reported", an_absent_rank_zero_is_reported),
    ("rendezvous::a_rank_started_twice_is_reported", a_rank_started_twice_is_reported),
    ("rendezvous::a_rank_waits_for_a_suspended_rank_zero", a_rank_waits_for_a_suspended_rank_zero),
    ("rendezvous::sizes_that_differ_are_reported", sizes_that_differ_are_reported),
    ("rendezvous::a_port_in_use_is_reported", a_port_in_use_is_reported),
    ("rendezvous::the_port_of_torchrun_itself_is_not_used", the_port_of_torchrun_itself_is_not_used),
    ("rendezvous::slurm_steps_connect", slurm_steps_connect),
    ("rendezvous::ipv6_and_names_work", ipv6_and_names_work),
    ("rendezvous::hosts_are_distinguished", hosts_are_distinguished),
    ("rendezvous::a_limit_beyond_the_clock_counts_as_none", a_limit_beyond_the_clock_counts_as_none),
];

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

fn untrusted_peers_do_not_disturb() {
    let port = reserve_port();
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

fn a_wrong_key_is_rejected() {
    let port = reserve_port();
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
    let port = reserve_port();
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
            "the rendezvous at 127.0.0.1:{port} failed: after 1.5 s, 3 of 6 ranks are missing: rank 2, 4, 5; \
             present: rank 1, 3 on "
        );
        assert!(ended.stderr.contains(&expected), "{ended:?}");
    }
}

fn an_absent_rank_zero_is_reported() {
    let port = reserve_port();
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

fn a_rank_started_twice_is_reported() {
    let port = reserve_port();
    let mut zero = start_rank(0, 3, port, "print");
    let mut one = start_rank(1, 3, port, "print");
    thread::sleep(Duration::from_millis(500));
    let again = start_rank(1, 3, port, "print").ended(soon());
    assert_eq!(again.code, Some(3), "{again:?}");
    assert!(again.stderr.contains("rank 1 of 3 was started twice"), "{again:?}");
    let mut two = start_rank(2, 3, port, "print");
    assert_all_well(&[zero.ended(soon()), one.ended(soon()), two.ended(soon())]);
}

fn a_rank_waits_for_a_suspended_rank_zero() {
    let port = reserve_port();
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

fn sizes_that_differ_are_reported() {
    let port = reserve_port();
    let mut zero = start_rank(0, 3, port, "print");
    let ended = start_rank(1, 4, port, "print").ended(soon());
    // Rank 0 does not wait for a rank that cannot come.
    for ended in [ended, zero.ended(soon())] {
        assert_eq!(ended.code, Some(3), "{ended:?}");
        assert!(ended.stderr.contains("was started as one of 4 ranks but rank 0 as one of 3"), "{ended:?}");
    }
}

fn a_port_in_use_is_reported() {
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

fn the_port_of_torchrun_itself_is_not_used() {
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

fn slurm_steps_connect() {
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
        let address = format!("{host}:{}", reserve_port());
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

fn hosts_are_distinguished() {
    let port = reserve_port();
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

fn a_limit_beyond_the_clock_counts_as_none() {
    let port = reserve_port();
    let start = |number: usize| {
        let mut command = tcp_rank(number, 2, port, "print barriers:2");
        command.env("NCCL_BENCH_TIMEOUT", "1e19").env("NCCL_BENCH_DEAD_AFTER", "1e19");
        start(command)
    };
    assert_all_well(&all_ended(&mut [start(0), start(1)], soon()));
}
