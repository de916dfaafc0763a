//! Threads that the system refuses.

use std::os::unix::process::CommandExt as _;
use std::process::Command;

use crate::process::{bench, start, start_job};
use crate::{Tests, tests};

pub(crate) const TESTS: Tests = tests![
    a_rank_without_a_thread_says_so_to_all,
    an_endpoint_without_a_thread_says_so_to_both,
    a_command_without_a_thread_says_so,
];

/// The end of each message.
const ADVICE: &str = "raise the limit on processes and threads (ulimit -u; of a container or pod: pids.max, \
                      podPidsLimit) or on memory (ulimit -v), or start fewer ranks on this host";

/// A command with address space for 25 threads, whose stacks are a gigabyte each, and for 7 gigabytes
/// besides.
fn with_few_threads(arguments: &str) -> Command {
    let mut command = bench(arguments);
    command.env("RUST_MIN_STACK", (1_u64 << 30).to_string());
    // SAFETY: `setrlimit` may be called between `fork` and `exec`, and only reads the struct.
    unsafe {
        command.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 32 << 30, rlim_max: 32 << 30 };
            match libc::setrlimit(libc::RLIMIT_AS, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    command
}

fn a_rank_without_a_thread_says_so_to_all() {
    let arguments = "allreduce --backend fabric --provider tcp -t 64 -e 8 -n 1";
    let mut job = start_job(2, || with_few_threads(arguments), &[]);
    for process in &mut job {
        let ended = process.ended();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(
            ended.stderr.contains(" could not be started: Resource temporarily unavailable"),
            "{ended:?}"
        );
        assert!(ended.stderr.contains("nccl-bench: the thread 'rank "), "{ended:?}");
        assert!(ended.stderr.contains(ADVICE), "{ended:?}");
    }
}

fn an_endpoint_without_a_thread_says_so_to_both() {
    let address = format!("127.0.0.1:{}", crate::process::reserve_port());
    let arguments = "fabric bw -p tcp -e 8 -n 2 --endpoints 64";
    let sides =
        ["--listen", "--connect"].map(|how| start(with_few_threads(&format!("{arguments} {how} {address}"))));
    for mut process in sides {
        let ended = process.ended();
        assert_eq!(ended.code, Some(1), "{ended:?}");
        assert!(ended.stderr.contains("nccl-bench: the thread 'endpoint "), "{ended:?}");
        assert!(ended.stderr.contains(ADVICE), "{ended:?}");
    }
}

fn a_command_without_a_thread_says_so() {
    let mut command = bench("fabric info");
    // No stack can be so large.
    command.env("RUST_MIN_STACK", (1_u64 << 50).to_string());
    let ended = start(command).ended();
    assert_eq!(ended.code, Some(1), "{ended:?}");
    let message =
        "error: the thread 'signals' could not be started: Resource temporarily unavailable (os error 11); ";
    assert_eq!((ended.stdout.as_str(), ended.stderr), ("", format!("{message}{ADVICE}\n")));
}
