//! Signals that end a run (SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM, SIGXCPU), and a
//! closed standard output.
//!
//! All threads block these signals, and one thread waits for them. So signal handlers of libraries, such as
//! libfabric's providers, never run. They would end the process with an exit code of their own.
//!
//! The first signal requests a stop after the current measurement, on all ranks at the same point. A process
//! still running 0.2 s later saves its results. Two seconds after the signal, or on a second one, it ends
//! itself and the job, and waits up to five seconds for files being written. Signals within 0.3 s of the
//! first count as one, because `timeout` and launchers send two.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::sync::{Arc, Barrier, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use collectives::world::{self, World};
use nix::sys::signal::{SigHandler, SigSet};

use super::signal::{Signal, WAITED, interrupted_outcome, signal_code};
use super::{Salvage, start_thread};
use crate::gather::gather_json;
use record::RunOutcome;

/// Time from the signal until a process that is still running saves its results. It is shorter than the
/// second after which mpirun kills.
const SAVE_AFTER: Duration = Duration::from_millis(200);
/// Time after the first signal during which another one counts as the same request.
const SAME_REQUEST: Duration = Duration::from_millis(300);
/// Time from saving to the end of the process.
const END_AFTER: Duration = Duration::from_millis(1800);

/// Receiver of the signals: the most recently installed request. `None` before the first installation.
static CURRENT: Mutex<Option<Interrupt>> = Mutex::new(None);

/// A request to stop the run. Clones share their state. The default does not receive signals.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<InterruptState>);

#[derive(Debug, Default)]
struct InterruptState {
    requested: AtomicI32,
    /// Time of the first signal.
    signalled: OnceLock<Instant>,
    /// True when the process is ending normally.
    done: AtomicBool,
    world: Mutex<Option<Weak<dyn World>>>,
    salvage: Salvage,
}

impl Interrupt {
    /// Takes over the signals. On a signal, `salvage` saves the results. A signal ignored at the start of the
    /// process stays without effect: `nohup` ignores SIGHUP, and a shell script ignores SIGINT for background
    /// commands. It is blocked as well, because a library's handler would replace SIG_IGN. Call this first in
    /// `main`: threads already running would not block the signals. A later call only redirects the signals
    /// to its own request.
    ///
    /// # Errors
    /// When the signal thread cannot be started.
    pub fn install(salvage: Salvage) -> io::Result<Self> {
        let interrupt = Self(Arc::new(InterruptState { salvage, ..InterruptState::default() }));
        let mut current = lock_mutex(&CURRENT);
        if current.is_none() {
            take_over()?;
        }
        *current = Some(interrupt.clone());
        Ok(interrupt)
    }

    /// Makes a signal stop all ranks together. A process that does not stop then ends the job through
    /// `process`. Before this call, a signal ends the process at once, because there is nothing to save.
    pub fn set_world(&self, process: &world::Handle) {
        *lock_mutex(&self.0.world) = Some(Arc::downgrade(process));
    }

    /// Returns the signal that requested a stop, as far as this process knows. It costs a single atomic load.
    /// Ranks exchange its number, so all stop at the same point.
    pub fn requested_signal(&self) -> Option<Signal> {
        Signal::try_from(self.0.requested.load(Ordering::SeqCst)).ok()
    }

    /// Returns the signal that requested a stop of any process. If the processes have different signals, it
    /// is the greatest. Collective.
    ///
    /// # Errors
    /// When another process has failed.
    pub fn requested_by_any(&self, process: &dyn World) -> anyhow::Result<Option<Signal>> {
        let own = self.requested_signal().map_or(0, |signal| signal as i32);
        let all: Vec<i32> = gather_json(process, &own)?;
        Ok(all.into_iter().filter_map(|number| Signal::try_from(number).ok()).max())
    }

    /// Requests a stop as a signal does, but without a time limit. Only the first request counts.
    pub fn request_stop(&self, signal: Signal) {
        let _ = self.0.requested.compare_exchange(0, signal as i32, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Records that the run has stopped and the process ends normally. Only a second signal still ends it
    /// early.
    pub fn mark_done(&self) {
        self.0.done.store(true, Ordering::SeqCst);
    }

    fn handle_signal(&self, signal: Signal) {
        self.request_stop(signal);
        let now = Instant::now();
        let first = self.0.signalled.set(now).is_ok();
        if lock_mutex(&self.0.world).is_none() {
            // On this thread: a new one would wait for a library being loaded by another thread.
            self.end_process(signal);
        }
        if !first && self.0.signalled.get().is_some_and(|&first| now - first < SAME_REQUEST) {
            return;
        }
        let interrupt = self.clone();
        let started = thread::Builder::new().name("interrupted".to_owned()).spawn(move || {
            if first {
                thread::sleep(SAVE_AFTER);
                if !interrupt.0.done.load(Ordering::SeqCst) {
                    interrupt.0.salvage.run_hook(interrupt.signal_outcome(signal));
                }
                thread::sleep(END_AFTER);
                if interrupt.0.done.load(Ordering::SeqCst) {
                    return;
                }
            }
            interrupt.end_process(signal);
        });
        if started.is_err() {
            self.end_process(signal);
        }
    }

    fn end_process(&self, signal: Signal) -> ! {
        let world = self.current_world().unwrap_or_else(world::single);
        let message = format!("ended by {signal}");
        self.0.salvage.end_job(&*world, self.signal_outcome(signal), signal_code(signal), &message)
    }

    /// Returns the outcome of a run ended by `signal`. When another rank has died, the launcher may have sent
    /// the signal for that reason; the outcome is then that rank's failure.
    fn signal_outcome(&self, signal: Signal) -> RunOutcome {
        let failed = self.current_world().and_then(|world| world.check().err());
        failed.map_or_else(
            || interrupted_outcome(signal),
            |error| RunOutcome::Failed { message: error.to_string() },
        )
    }

    fn current_world(&self) -> Option<world::Handle> {
        lock_mutex(&self.0.world).as_ref()?.upgrade()
    }
}

/// Blocks signals until an [`Interrupt`] is installed, in this thread and in all threads started by it. For
/// programs that first set environment variables, which requires a single-threaded process.
pub fn hold_signals() -> io::Result<()> {
    Ok(WAITED.into_iter().collect::<SigSet>().thread_block()?)
}

/// Blocks the signals, and starts the signal thread.
fn take_over() -> io::Result<()> {
    let ignored: Vec<Signal> = WAITED.into_iter().filter(|&signal| is_ignored(signal)).collect();
    hold_signals()?;
    let signals: SigSet = WAITED.into_iter().collect();
    let started = Arc::new(Barrier::new(2));
    let also_started = Arc::clone(&started);
    let wait = move || {
        also_started.wait();
        while let Ok(signal) = signals.wait() {
            let current = lock_mutex(&CURRENT).clone();
            if let Some(interrupt) = current.filter(|_| !ignored.contains(&signal)) {
                interrupt.handle_signal(signal);
            }
        }
    };
    start_thread("signals", wait)?;
    // A new thread would wait for a library loaded by the caller after this.
    started.wait();
    Ok(())
}

fn lock_mutex<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a write beyond the file size limit (`ulimit -f`) fail with an error, instead of ending the process.
pub fn ignore_file_size_signal() -> io::Result<()> {
    // SAFETY: no handler is installed.
    unsafe { nix::sys::signal::signal(Signal::SIGXFSZ, SigHandler::SigIgn) }?;
    Ok(())
}

fn is_ignored(signal: Signal) -> bool {
    // SAFETY: zeros are a valid value of this plain C struct.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: nothing is installed (the new action is null), and the old one is valid for writes.
    let known = unsafe { libc::sigaction(signal as i32, std::ptr::null(), &raw mut action) } == 0;
    known && action.sa_sigaction == libc::SIG_IGN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_request_counts() {
        let interrupt = Interrupt::default();
        assert_eq!(interrupt.requested_signal(), None);
        interrupt.clone().request_stop(Signal::SIGPIPE);
        interrupt.request_stop(Signal::SIGTERM);
        assert_eq!(interrupt.requested_signal(), Some(Signal::SIGPIPE));
    }
}
