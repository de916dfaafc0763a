//! `nccl-bench fabric pingpong`, `bw` and `rma`: tests of pairs of ranks.
//!
//! The ranks join over TCP in `rendezvous`; the engine measures.

mod arguments;
mod rendezvous;
mod wait_notice;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use collectives::fabric::Library;
use engine::bench::Bench;
use engine::pairs::{PairRequest, check_provider};
use engine::process::Process;
use engine::supervision::{REFUSED, Signal, Stop, Verdict, print_message};

pub(super) use arguments::Asked;
#[cfg(test)]
pub(in crate::command) use arguments::NAMES;
pub use arguments::{Bandwidth, Inject, PingPong, Remote, TransferArguments, Windowed};

use crate::command::Context;
use crate::command::measure::{Recorder, has_terminal_of_its_own};

/// Runs a test, and returns the exit code.
///
/// # Errors
/// When the ranks cannot join, or the provider cannot be used.
pub(super) fn run_transfer(asked: Asked<'_>, context: &Context<'_>) -> Result<u8, Stop> {
    asked.check_arguments()?;
    let Asked { arguments, request } = asked;
    let process = Process::start()?;
    Library::load().map_err(|error| Stop::Refused(error.to_string()))?;
    // Before this side waits for the other. Ranks of a launcher are all here, and report to each other.
    if arguments.listen.is_some() || arguments.connect.is_some() {
        check_provider(&request)?;
    }
    let process = process.join_world(rendezvous::join_world(arguments, |request| context.join_job(request))?);
    let size = process.job_world().size();
    if size < 2 {
        return Err(Stop::Refused("this test needs two ranks; only one was started".to_owned()));
    }
    let starts = if arguments.all_pairs { size - 1 } else { 1 };
    let pairs = (0..starts).flat_map(|one| (one + 1..size).map(move |other| [one, other])).collect();
    let recorder = Recorder::of_pairs(arguments.output.clone(), arguments.force);
    let begun = recorder.begun_flag();
    let request = PairRequest { pairs, ..request };
    // All processes are refused with the same message; one of them prints it.
    let prints = process.job_world().rank() == 0 || request.reports || has_terminal_of_its_own();
    match Bench::open(&process, None).run_last(&request, Arc::new(recorder)) {
        Ok(verdict) => {
            // A table ends with the signal. It came before there was one.
            if let Verdict::Stopped(signal) = verdict
                && signal != Signal::SIGPIPE
                && prints
                && !begun.load(Ordering::SeqCst)
            {
                print_message(format_args!("nccl-bench: ended by {signal}"));
            }
            Ok(verdict.verdict_code())
        }
        Err(stop) if stop.refusal_text().is_some() && !prints => Ok(REFUSED),
        Err(stop) => Err(stop),
    }
}
