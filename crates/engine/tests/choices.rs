//! A process prepares the record of NCCL's choices before it has a second thread, which would be too
//! late.

#![allow(clippy::unwrap_used, reason = "a test may fail loudly")]

use std::env;

use engine::collective::Collective;
use engine::process::Process;
use engine::request::{BackendChoice, Request};

/// Without the harness of tests, which starts threads.
fn main() {
    const PLUGIN: &str = "NCCL_PROFILER_PLUGIN";
    // The user's settings would take precedence, and with a rank other than 0 nothing is recorded.
    let settings: Vec<_> = env::vars_os().map(|(name, _)| name).collect();
    for name in settings.iter().filter(|name| name.to_string_lossy().starts_with("NCCL_")) {
        // SAFETY: this is the only thread.
        unsafe { env::remove_var(name) };
    }
    let request = Request {
        backend: BackendChoice::Nccl,
        log_choices: true,
        ..Request::new(vec![Collective::AllReduce])
    };
    let process = Process::start_for(&request).unwrap();
    assert_eq!(env::var(PLUGIN).as_deref(), Ok("STATIC_PLUGIN"));
    assert!(env::var("NCCL_DEBUG_FILE").is_ok_and(|path| path.starts_with("/proc/")), "{process:?}");
    println!("ok");
}
