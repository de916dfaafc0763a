//! Signals as exit codes and outcomes.

pub use nix::sys::signal::Signal;
use record::RunOutcome;

/// Signals handled by a thread. Batch systems send SIGUSR1, SIGUSR2 or SIGALRM before a time limit (Slurm's
/// `--signal`), and the kernel sends SIGXCPU at a limit of processor time. Without a handler, each of them
/// ends the process. SIGPIPE is also a reason to stop, but is requested after a failed write
/// ([`Interrupt::request_stop`](super::Interrupt::request_stop)). When ranks have different reasons, the
/// signal with the greatest number counts.
pub(super) const WAITED: [Signal; 8] = [
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGXCPU,
];

/// Returns the exit code of a process ended by a signal: 128 plus its number.
pub fn signal_code(signal: Signal) -> u8 {
    u8::try_from(128 + signal as i32).unwrap_or(u8::MAX)
}

/// Returns the signal of [`WAITED`] with this exit code.
pub(super) fn signal_of_code(code: i32) -> Option<Signal> {
    WAITED.into_iter().find(|&signal| i32::from(signal_code(signal)) == code)
}

/// Returns the outcome of a run ended by a signal.
pub fn interrupted_outcome(signal: Signal) -> RunOutcome {
    RunOutcome::Interrupted { signal: signal.as_str().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        let codes = [
            (Signal::SIGHUP, "SIGHUP", 129),
            (Signal::SIGINT, "SIGINT", 130),
            (Signal::SIGUSR1, "SIGUSR1", 138),
            (Signal::SIGPIPE, "SIGPIPE", 141),
            (Signal::SIGTERM, "SIGTERM", 143),
        ];
        for (signal, name, code) in codes {
            assert_eq!(signal_code(signal), code);
            assert_eq!(interrupted_outcome(signal), RunOutcome::Interrupted { signal: name.to_owned() });
        }
        assert_eq!(signal_of_code(143), Some(Signal::SIGTERM));
        assert_eq!(signal_of_code(152), Some(Signal::SIGXCPU));
        // No rank ends the others for a closed output.
        for other in [0, 1, 2, 4, 7, 15, 128, 141] {
            assert_eq!(signal_of_code(other), None, "{other}");
        }
    }
}
