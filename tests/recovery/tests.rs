//! Jobs that lose ranks.

use crate::play::{Play, time_of};
use std::fs;

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("any_rank_may_be_killed", any_rank_may_be_killed),
    ("several_ranks_may_be_killed_at_once", several_ranks_may_be_killed_at_once),
    ("a_shrunk_job_may_lose_more_ranks", a_shrunk_job_may_lose_more_ranks),
    ("ranks_may_be_killed_while_the_job_shrinks", ranks_may_be_killed_while_the_job_shrinks),
    ("ranks_of_several_hosts_find_each_other", ranks_of_several_hosts_find_each_other),
    ("ranks_may_leave_on_purpose", ranks_may_leave_on_purpose),
    ("a_rank_that_does_not_call_is_left_out_and_told", a_rank_that_does_not_call_is_left_out_and_told),
    ("a_stopped_rank_is_left_out_and_told", a_stopped_rank_is_left_out_and_told),
    ("a_rank_does_not_go_on_where_as_many_may_live", a_rank_does_not_go_on_where_as_many_may_live),
    ("ranks_of_threads_go_on_without_a_process", ranks_of_threads_go_on_without_a_process),
    ("a_process_that_has_lost_a_thread_is_left_out", a_process_that_has_lost_a_thread_is_left_out),
    ("a_process_that_exits_on_failure_is_refused", a_process_that_exits_on_failure_is_refused),
];

/// All ranks of four as bits.
const ALL: u64 = 0b1111;

fn any_rank_may_be_killed() {
    for carrier in ["shm", "tcp", "group"] {
        for victim in [0, 1, 3] {
            let mut play = Play::start(4, carrier, &format!("3:{victim}:kill"), 3, &[]);
            let left: Vec<usize> = (0..4).filter(|&rank| rank != victim).collect();
            let ended = play.assert_goes_on(&left, ALL & !(1 << victim));
            let died = time_of(&ended[victim], "dies");
            let seconds = |what: &str| {
                let last = left.iter().map(|&rank| time_of(&ended[rank], what)).max().unwrap();
                (last - died) as f64 / 1e9
            };
            let (failure, shrunk, result) = (seconds("failure"), seconds("shrunk"), seconds("result"));
            println!(
                "rank {victim} of 4 killed, {carrier}: noticed by all after {failure:.3} s, shrunk after \
                 {shrunk:.3} s, first result after {result:.3} s"
            );
            assert!(result < 10.0);
            for process in &play.processes {
                assert_eq!(shared_memory_of(process.child.id()), Vec::<String>::new());
            }
        }
    }
}

/// The names in `/dev/shm` that a process has made.
fn shared_memory_of(process: u32) -> Vec<String> {
    let names = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    // libfabric's own names begin with the process' number.
    let of_it =
        |name: &String| name.contains(&format!("-{process}-")) || name.starts_with(&format!("{process}:"));
    names.map(|name| name.to_string_lossy().into_owned()).filter(of_it).collect()
}

fn several_ranks_may_be_killed_at_once() {
    Play::start(4, "shm", "2:0:kill 2:2:kill", 2, &[]).assert_goes_on(&[1, 3], 0b1010);
    Play::start(4, "tcp", "2:0:kill 2:1:kill 2:3:kill", 1, &[]).assert_goes_on(&[2], 0b100);
}

fn a_shrunk_job_may_lose_more_ranks() {
    Play::start(4, "shm", "2:1:kill 6:0:kill 9:3:kill", 1, &[]).assert_goes_on(&[2], 0b100);
    Play::start(4, "group", "2:0:kill 6:1:kill", 2, &[]).assert_goes_on(&[2, 3], 0b1100);
}

fn ranks_may_be_killed_while_the_job_shrinks() {
    // It forms the new world, and dies at some moment of that.
    for milliseconds in [0, 3, 10, 20, 40, 80, 200] {
        let fates = format!("2:1:kill failure:0:kill-soon={milliseconds}");
        Play::start(4, "shm", &fates, 2, &[]).assert_goes_on(&[2, 3], 0b1100);
        let fates = format!("2:0:kill failure:3:kill-soon={milliseconds}");
        Play::start(4, "tcp", &fates, 2, &[]).assert_goes_on(&[1, 2], 0b110);
    }
}

fn ranks_of_several_hosts_find_each_other() {
    // At the addresses of the network, where there is one.
    let hosts = [("NCCL_HOSTID", "host {rank}")];
    Play::start(4, "tcp", "2:0:kill", 3, &hosts).assert_goes_on(&[1, 2, 3], 0b1110);
    Play::start(3, "group", "2:1:kill 5:0:kill", 1, &hosts).assert_goes_on(&[2], 0b100);
}

fn ranks_may_leave_on_purpose() {
    for leaver in [0, 2] {
        let mut play = Play::start(3, "shm", &format!("2:{leaver}:leave"), 2, &[("RECOVERY_END", "1")]);
        play.wait_until_gone_on();
        play.tell("end");
        let left: Vec<usize> = (0..3).filter(|&rank| rank != leaver).collect();
        play.assert_goes_on(&left, 0b111 & !(1 << leaver));
    }
}

fn a_rank_that_does_not_call_is_left_out_and_told() {
    for late in [0, 2] {
        let fates = format!("2:1:kill failure:{late}:idle");
        let limit = [("RECOVERY_LIMIT", "2000")];
        let mut play = Play::start(4, "shm", &fates, 2, &limit);
        let left: Vec<usize> = [0, 2, 3].into_iter().filter(|&rank| rank != late).collect();
        // It calls when the others have ended: they have told it.
        for &rank in &left {
            play.ended_well(rank);
        }
        play.tell("gone-on");
        play.assert_left_out(late);
    }
}

fn a_stopped_rank_is_left_out_and_told() {
    let more = [("NCCL_BENCH_DEAD_AFTER", "4"), ("RECOVERY_LIMIT", "6000")];
    let mut play = Play::start(3, "shm", "2:2:stop", 2, &more);
    for rank in [0, 1] {
        play.ended_well(rank);
    }
    play.processes[2].signal(libc::SIGCONT);
    play.assert_left_out(2);
}

fn a_rank_does_not_go_on_where_as_many_may_live() {
    let more = [("NCCL_BENCH_DEAD_AFTER", "4"), ("RECOVERY_LIMIT", "3000")];
    let mut play = Play::start(2, "shm", "2:0:stop", 1, &more);
    let ended = play.ended(1);
    assert_eq!(ended.code, Some(3), "{ended:?}");
    assert!(
        ended.stderr.contains("error: rank 1 on host ") && ended.stderr.contains(" cannot continue: rank 0 "),
        "{ended:?}"
    );
    // The other one learns that it has ended, and goes on.
    play.processes[0].signal(libc::SIGCONT);
    play.ended_well(0);
}

fn ranks_of_threads_go_on_without_a_process() {
    let threads = [("RECOVERY_THREADS", "2")];
    let mut play = Play::start(3, "shm", "2:3:kill", 4, &threads);
    let ended: Vec<_> = [0, 2].map(|process| play.ended(process)).into_iter().collect();
    for ended in &ended {
        assert_eq!(ended.code, Some(0), "{ended:?}");
        assert_eq!(ended.stdout.matches("result 110011 of 4 as ").count(), 2, "{ended:?}");
    }
}

fn a_process_that_has_lost_a_thread_is_left_out() {
    let mut play = Play::start(2, "tcp", "2:1:panic", 2, &[("RECOVERY_THREADS", "2")]);
    let ended = play.ended(1);
    assert_eq!(ended.code, Some(0), "{ended:?}");
    assert_eq!(ended.stdout.matches("result 1100 of 2 as ").count(), 2, "{ended:?}");
    let ended = play.ended(0);
    assert!(ended.stderr.contains("error: only 1 of the 2 ranks of this process"), "{ended:?}");
    // One process alone goes on with the threads that are left.
    let mut play = Play::start(1, "shm", "2:1:panic", 3, &[("RECOVERY_THREADS", "4")]);
    let ended = play.ended(0);
    assert_eq!(ended.code, Some(101), "{ended:?}");
    assert_eq!(ended.stdout.matches("result 1101 of 3 as ").count(), 3, "{ended:?}");
}

fn a_process_that_exits_on_failure_is_refused() {
    // All leave, and the calls refuse: there is no other failure.
    let mut play = Play::start(2, "shm", "exit-on-failure", 0, &[("RECOVERY_REFUSED", "1")]);
    for rank in [0, 1] {
        let ended = play.ended(rank);
        assert!(ended.stderr.contains("use `OnFailure::Report`"), "{ended:?}");
        assert_eq!(ended.code, Some(3), "{ended:?}");
    }
}
