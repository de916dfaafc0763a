//! The processes of one start.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

use engine::supervision::{Interrupt, Signal};
use rustix::process::{Pid, Signal as KillSignal, kill_process_group};

/// Polling interval. A start takes seconds, and polling takes microseconds.
const POLL: Duration = Duration::from_millis(20);
/// Time from the signal to the processes until they are killed. Launchers kill their ranks within seconds.
const KILL_AFTER: Duration = Duration::from_secs(10);

/// End of the first process of a start.
#[derive(Debug)]
pub(super) enum ChildEnd {
    /// It has ended by itself.
    Ended(ExitStatus),
    /// This process received a signal, and ended it.
    Stopped(Signal),
}

/// Runs a command to its end. It has a process group of its own, which is ended by a signal to this process.
///
/// # Errors
/// When it cannot be started or waited for.
pub(super) fn run_child(command: &mut Command, interrupt: &Interrupt) -> io::Result<ChildEnd> {
    command.process_group(0);
    // SAFETY: the function makes only calls that are allowed between `fork` and `exec`.
    unsafe { command.pre_exec(reset_signals) };
    let mut child = command.spawn()?;
    loop {
        let ended = child.try_wait()?;
        // A batch system sends a signal to all processes: then it ended because of this one.
        if let Some(status) =
            ended.filter(|status| status.success() || interrupt.requested_signal().is_none())
        {
            return Ok(ChildEnd::Ended(status));
        }
        if let Some(signal) = interrupt.requested_signal() {
            // Otherwise this process would end without its report.
            interrupt.mark_done();
            end_group(&mut child, signal)?;
            return Ok(ChildEnd::Stopped(signal));
        }
        thread::sleep(POLL);
    }
}

/// Passes the signal on, and kills what is left later.
fn end_group(child: &mut Child, signal: Signal) -> io::Result<()> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let send = |signal: KillSignal| {
        // It fails when all of them have ended.
        let _ = group.map(|group| kill_process_group(group, signal));
    };
    send(KillSignal::from_named_raw(signal as i32).unwrap_or(KillSignal::TERM));
    let by = Instant::now() + KILL_AFTER;
    while Instant::now() < by {
        if child.try_wait()?.is_some() {
            return Ok(());
        }
        thread::sleep(POLL);
    }
    send(KillSignal::KILL);
    child.wait().map(drop)
}

/// Gives a new process the usual signals, which this process blocks or ignores, and ends it with this one.
fn reset_signals() -> io::Result<()> {
    // SAFETY: zeros are a valid value of this plain C struct.
    let mut none: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is valid for writes and then for reads; a null pointer means that nothing is returned.
    let error = unsafe {
        libc::sigemptyset(&raw mut none);
        libc::pthread_sigmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut())
    };
    if error != 0 {
        return Err(io::Error::from_raw_os_error(error));
    }
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_DFL) };
    // SAFETY: the arguments are those of this request.
    if unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
