//! Saving of results when a run ends early: on a signal, after a timeout, or after a rank's failure.

use std::fmt;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use collectives::world::{self, Error, World};

use super::print_message;
use super::signal::{interrupted_outcome, signal_of_code};
use record::RunOutcome;

/// Time limit of saving.
const LIMIT: Duration = Duration::from_secs(5);

type Hook = Box<dyn FnOnce(RunOutcome) + Send>;

/// Saves the results once, whichever thread ends the process: a rank's, the watchdog, the signal thread, or
/// the world.
///
/// Clones share the hook.
#[derive(Clone, Default)]
pub struct Salvage(Arc<SalvageState>);

#[derive(Default)]
struct SalvageState {
    state: Mutex<HookState>,
    ended: Condvar,
}

#[derive(Default)]
struct HookState {
    /// `None` before it is set, while it runs, and afterwards.
    ready: Option<Hook>,
    running: bool,
    /// True once a thread ends the job.
    ending: bool,
    /// Exit code of a failure instead of the caller's.
    failure_code: Option<u8>,
}

impl fmt::Debug for Salvage {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Salvage")
    }
}

impl Salvage {
    /// Sets the hook that saves the results. It runs at most once, on a thread of its own, perhaps while
    /// ranks are still measuring, and is abandoned after five seconds. So it must not wait for a lock that a
    /// rank could hold forever.
    pub fn set_hook(&self, hook: impl FnOnce(RunOutcome) + Send + 'static) {
        let mut state = self.lock_state();
        if !state.running {
            state.ready = Some(Box::new(hook));
        }
    }

    /// Removes the hook, because the run saves its results itself. Waits for a running hook, at most five
    /// seconds.
    pub fn remove_hook(&self) {
        let mut state = self.lock_state();
        state.ready = None;
        self.await_hook(state);
    }

    /// Runs the hook, and waits for it at most five seconds. Returns false when it has not finished. Does
    /// nothing when there is no hook, or it has run already.
    pub fn run_hook(&self, outcome: RunOutcome) -> bool {
        let mut state = self.lock_state();
        let hook = state.ready.take();
        state.running |= hook.is_some();
        drop(state);
        if let Some(hook) = hook {
            let ended = Ended(self.clone());
            // If no thread can be started, the closure is dropped, which also ends it.
            let _ = thread::Builder::new().name("salvage".to_owned()).spawn(move || {
                // Ended also when the hook panics.
                let _ended = ended;
                hook(outcome);
            });
        }
        self.await_hook(self.lock_state())
    }

    /// Sets the exit code of every failure; signals keep theirs.
    pub fn set_failure_code(&self, code: u8) {
        self.lock_state().failure_code = Some(code);
    }

    /// Returns the exit code of a run with `outcome`: the one set for failures, otherwise the caller's
    /// `code`.
    fn exit_code(&self, outcome: &RunOutcome, code: u8) -> i32 {
        i32::from(self.failure_code(outcome).unwrap_or(code))
    }

    /// Returns the exit code set for failures, if this outcome is a failure.
    fn failure_code(&self, outcome: &RunOutcome) -> Option<u8> {
        self.lock_state().failure_code.filter(|_| matches!(outcome, RunOutcome::Failed { .. }))
    }

    /// Also runs the hook when the world ends this process because another rank has failed, or was
    /// interrupted. With an exit code for failures ([`Salvage::set_failure_code`]) the process ends here
    /// after a failure, since the world has a code of its own.
    pub fn watch_world(&self, process: &dyn World) {
        let salvage = self.clone();
        process.before_exit(Box::new(move |error, code| {
            let outcome = outcome_of(error, code);
            salvage.run_hook(outcome.clone());
            let of_failure = salvage.failure_code(&outcome);
            if let Some(code) = of_failure {
                print_message(format_args!("nccl-bench: {error}"));
                // SAFETY: it does not depend on consistent state of this process. Exit handlers could wait
                // for a blocked thread.
                unsafe { libc::_exit(i32::from(code)) };
            }
        }));
    }

    /// Saves the results with `outcome`, and ends the job with an exit code and a message. If another rank is
    /// known to have failed, that failure is the outcome instead. Signals, the watchdog and failed ranks all
    /// end here; only the first of them counts.
    pub fn end_job(&self, world: &dyn World, outcome: RunOutcome, code: u8, message: &str) -> ! {
        self.end_with(world, outcome, code, &format!("nccl-bench: {message}"))
    }

    fn end_with(&self, world: &dyn World, outcome: RunOutcome, code: u8, line: &str) -> ! {
        self.claim_end();
        // Before saving, which takes time: a failure found by the world meanwhile would be a second reason.
        let outcome = match world.begin_end() {
            Ok(()) => outcome,
            Err((error, code)) => outcome_of(&error, code),
        };
        let code = self.exit_code(&outcome, code);
        self.run_hook(outcome);
        world.abort(code, line)
    }

    /// Returns for the first thread only. Other threads sleep until it has ended the process, so the saved
    /// results, the message and the exit code have one reason.
    fn claim_end(&self) {
        while mem::replace(&mut self.lock_state().ending, true) {
            thread::sleep(Duration::from_secs(3600));
        }
    }

    /// Ends a rank after its failure. When another rank failed first, the saved outcome and the message name
    /// that rank instead.
    pub fn end_rank(&self, rank: &dyn World, code: u8, message: &str) -> ! {
        let cause = match rank.check() {
            Err(error @ Error::RankFailed { rank: failed, .. }) if failed != rank.rank() => Some(error),
            _ => None,
        };
        let outcome = match (&cause, rank.size()) {
            (Some(cause), _) => cause.to_string(),
            (None, 1) => format!("nccl-bench: {message}"),
            (None, _) => {
                format!("rank {} on host {}: nccl-bench: {message}", rank.rank(), world::host().name)
            }
        };
        let outcome = RunOutcome::Failed { message: outcome };
        match cause {
            Some(cause) => self.end_with(rank, outcome, code, &cause.to_string()),
            None => self.end_job(rank, outcome, code, message),
        }
    }

    fn lock_state(&self) -> MutexGuard<'_, HookState> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits while the hook runs, up to [`LIMIT`]. Returns false when it is still running.
    fn await_hook(&self, state: MutexGuard<'_, HookState>) -> bool {
        let ended = self.0.ended.wait_timeout_while(state, LIMIT, |state| state.running);
        !ended.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }
}

/// Returns the outcome of a run ended by the failure or interruption of another rank.
fn outcome_of(error: &Error, code: i32) -> RunOutcome {
    let failed = || RunOutcome::Failed { message: error.to_string() };
    signal_of_code(code).map_or_else(failed, interrupted_outcome)
}

/// Marks the hook as ended when it is dropped.
struct Ended(Salvage);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.lock_state().running = false;
        self.0.0.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    fn failed() -> RunOutcome {
        RunOutcome::Failed { message: "lost".to_owned() }
    }

    #[test]
    fn what_was_measured_is_saved_once() {
        let salvage = Salvage::default();
        assert!(salvage.run_hook(failed()), "there is nothing to save");
        let saved = Arc::new(AtomicUsize::new(0));
        for _ in 0..2 {
            let saved = Arc::clone(&saved);
            salvage.set_hook(move |outcome| {
                assert_eq!(outcome, failed());
                saved.fetch_add(1, Ordering::SeqCst);
            });
        }
        assert!(salvage.clone().run_hook(failed()));
        assert!(salvage.run_hook(failed()));
        assert_eq!(saved.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn a_failure_has_the_exit_code_that_was_set_and_a_signal_keeps_its_own() {
        let salvage = Salvage::default();
        let interrupted = RunOutcome::Interrupted { signal: "SIGINT".to_owned() };
        assert_eq!((salvage.exit_code(&failed(), 1), salvage.exit_code(&interrupted, 130)), (1, 130));
        salvage.set_failure_code(2);
        assert_eq!((salvage.exit_code(&failed(), 1), salvage.exit_code(&interrupted, 130)), (2, 130));
    }

    #[test]
    fn a_run_that_saves_its_results_itself_is_not_disturbed() {
        let salvage = Salvage::default();
        let saved = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&saved);
        salvage.set_hook(move |_| counter.store(1, Ordering::SeqCst));
        salvage.remove_hook();
        assert!(salvage.run_hook(failed()));
        assert_eq!(saved.load(Ordering::SeqCst), 0);
    }

    #[test]
    fn whoever_comes_second_waits_for_the_first() {
        let salvage = Salvage::default();
        let (started, has_started) = mpsc::channel();
        let (go, going) = mpsc::channel::<()>();
        let saved = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&saved);
        salvage.set_hook(move |_| {
            started.send(()).unwrap();
            going.recv().unwrap();
            counter.fetch_add(1, Ordering::SeqCst);
        });
        let first = thread::spawn({
            let salvage = salvage.clone();
            move || salvage.run_hook(failed())
        });
        has_started.recv().unwrap();
        go.send(()).unwrap();
        assert!(salvage.run_hook(failed()));
        assert_eq!(saved.load(Ordering::SeqCst), 1);
        assert!(first.join().unwrap());
    }

    #[test]
    fn a_hook_that_panics_or_is_stuck_holds_nobody_up() {
        let salvage = Salvage::default();
        salvage.set_hook(|_| std::panic::resume_unwind(Box::new("as the test wants it")));
        assert!(salvage.run_hook(failed()));
        let (_go, going) = mpsc::channel::<()>();
        salvage.set_hook(move |_| going.recv().unwrap());
        assert!(!salvage.run_hook(failed()));
    }
}
