//! The state of a ladder in the process of rank 0.

use std::io::ErrorKind;
use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::bench::{Connection, Observer, Start};
use engine::request::Request;
use engine::supervision::{CLOSED_PIPE, FAILED, Stop, WRONG_DATA, print_message};
use engine::sweep::SweepEvent;
use judge::Verdict;
use record::provenance::now_utc;
use record::{Measurement, Run, RunOutcome};

use super::model::{Facts, LadderFile, LateRank, Rung, RungEnd, Step};
use super::{FAILED_RUNG, LadderArguments, NOT_WHOLE, file, report, small_bytes};
use crate::command::judge::LoadedBasis;
use crate::command::pairs::{ProcessHost, Units};
use crate::exit::{ExitError, SUCCESS, print_text};

/// Least time of a start in seconds in which a late rank is named.
const LATE_S: f64 = 0.1;
/// Least ratio of a late rank's time to the median.
const LATE_RATIO: f64 = 1.5;

/// A ladder, shared with the ranks' threads and the thread that ends the process early.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) arguments: LadderArguments,
    basis: LoadedBasis,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    processes: Vec<ProcessHost>,
    /// Number of ranks; 0 before it is known.
    ranks: usize,
    /// Absent before the ladder is planned.
    units: Option<Units>,
    /// Numbers of units of the rungs that are still to be measured.
    left: Vec<usize>,
    /// Number of units of the rung that is measured.
    current: Option<usize>,
    /// The run that goes on.
    run: Option<Run>,
    facts: Facts,
    earlier: Option<LadderFile>,
    rungs: Vec<Rung>,
    /// Number of units of the last rung, if it failed.
    failed_units: Option<usize>,
    /// The first error of standard output.
    output_error: Option<ErrorKind>,
    /// Message of a failure before the first rung.
    failure: Option<String>,
    is_ended: bool,
}

impl State {
    /// Prints lines of the table. An error ends nothing before the end: the file has all rungs.
    fn print_lines(&mut self, text: &str) {
        if let Err(ExitError::Output(error)) = print_text(text)
            && self.output_error.is_none()
        {
            if error.kind() != ErrorKind::BrokenPipe {
                print_message(format_args!("error: writing to standard output: {error}"));
            }
            self.output_error = Some(error.kind());
        }
    }
}

impl Session {
    pub(super) fn new(
        arguments: LadderArguments,
        basis: LoadedBasis,
        earlier: Option<LadderFile>,
        request: &Request,
    ) -> Self {
        let facts = Facts {
            program: request.program.clone(),
            command: request.command.clone(),
            started_at: now_utc(),
            collective: arguments.collective.collective_name().to_owned(),
            provider: arguments.provider.clone(),
            iterations: arguments.iterations as usize,
            ..Facts::default()
        };
        let state = State { facts, earlier, ..State::default() };
        Self { arguments, basis, state: Mutex::new(state) }
    }

    pub(super) fn set_processes(&self, processes: Vec<ProcessHost>) {
        self.lock_state().processes = processes;
    }

    /// Returns the large size that was asked for.
    pub(super) fn asked_bytes(&self) -> Option<u64> {
        self.arguments.bytes.map(|size| size.0)
    }

    /// Begins with the number of ranks and the large size.
    pub(super) fn begin_ladder(&self, ranks: usize, bytes: u64) {
        let state = &mut *self.lock_state();
        (state.ranks, state.facts.bytes) = (ranks, bytes);
    }

    /// Chooses the next step. At the end it writes the files.
    pub(super) fn choose_step(&self) -> Step {
        let state = &mut *self.lock_state();
        if let Some(message) = state.failure.take() {
            return Step::End(self.end_ladder(state, &RunOutcome::Failed { message }));
        }
        if state.units.is_none()
            && let Err(reason) = self.plan_rungs(state)
        {
            return Step::Refuse(reason);
        }
        if let Some(units) = state.failed_units.filter(|_| !self.arguments.keep_going)
            && !state.left.is_empty()
        {
            let message = format!("the rung of {units} {}s failed", state.facts.unit.unit_name());
            return Step::End(self.end_ladder(state, &RunOutcome::Failed { message }));
        }
        let Some(units) = state.units.as_ref().filter(|_| !state.left.is_empty()) else {
            return Step::End(self.end_ladder(state, &RunOutcome::Complete));
        };
        let count = state.left.remove(0);
        state.current = Some(count);
        let ranks = units.units.iter().take(count).flat_map(|unit| unit.ranks.iter().copied());
        let mut ranks: Vec<usize> = ranks.collect();
        ranks.sort_unstable();
        Step::Measure(ranks)
    }

    /// Chooses the rungs, and prints the head of the table with the rungs of an earlier ladder.
    fn plan_rungs(&self, state: &mut State) -> Result<(), String> {
        state.facts.small_bytes = small_bytes(self.arguments.collective);
        let least = 2 * state.facts.small_bytes;
        if state.facts.bytes < least {
            return Err(format!("the large size (-e) is at least {least} bytes"));
        }
        let units = Units::new(self.arguments.per, &state.processes, state.ranks)?;
        state.left = report::list_rungs(&self.arguments.steps, units.units.len())?;
        (state.facts.unit, state.facts.unit_ranks) = (units.unit, units.groups_per_pair());
        state.facts.units = units.units.iter().map(|unit| unit.label.clone()).collect();
        state.facts.backend = state.run.take().map(|run| run.provenance.backend).unwrap_or_default();
        if let Some(earlier) = &state.earlier {
            state.rungs = file::choose_rungs(earlier, &state.facts)?;
            state.left.retain(|count| state.rungs.iter().all(|rung| rung.units != *count));
        }
        state.units = Some(units);
        let mut text = report::render_head(&state.facts);
        for rung in &state.rungs {
            text += &report::render_rung(rung, &state.rungs);
        }
        state.print_lines(&text);
        Ok(())
    }

    /// Records the rung whose run has ended: prints its line, and writes the file.
    pub(super) fn end_rung(&self, end: &RungEnd) {
        let state = &mut *self.lock_state();
        let Some(units) = state.current.take() else {
            // Rank 0 alone, before the first rung.
            if let RungEnd::Failed(message) = end {
                state.failure = Some(message.clone());
            }
            return;
        };
        let run = state.run.take();
        let mut rung = match (end, run) {
            (RungEnd::Measured, Some(run)) => {
                let run = Run { outcome: RunOutcome::Complete, ..run };
                describe_rung(&run, &state.facts, &self.basis.judge_run(&run))
            }
            (RungEnd::Measured, None) => Rung::default(),
            (RungEnd::Failed(message), _) => Rung { failure: Some(message.clone()), ..Rung::default() },
        };
        rung.units = units;
        state.failed_units = rung.is_failed().then_some(units);
        state.rungs.push(rung.clone());
        state.rungs.sort_by_key(|rung| rung.units);
        let line = report::render_rung(&rung, &state.rungs);
        state.print_lines(&line);
        self.write_file(state, &RunOutcome::Running);
    }

    /// Writes the file when the ladder ends early.
    pub(super) fn save_early(&self, outcome: &RunOutcome) {
        self.end_ladder(&mut self.lock_state(), outcome);
    }

    /// Writes the file, once, and returns the exit code.
    fn end_ladder(&self, state: &mut State, outcome: &RunOutcome) -> u8 {
        if std::mem::replace(&mut state.is_ended, true) {
            return NOT_WHOLE;
        }
        if let RunOutcome::Failed { message } = outcome {
            print_message(format_args!("nccl-bench: {message}"));
        }
        if *outcome != RunOutcome::Complete && state.units.is_some() {
            state.print_lines("# The ladder was not measured to its end\n");
        }
        let is_written = self.write_file(state, outcome);
        match outcome {
            _ if state.rungs.iter().any(Rung::is_wrong) => WRONG_DATA,
            _ if !is_written => FAILED,
            _ if state.output_error == Some(ErrorKind::BrokenPipe) => CLOSED_PIPE,
            _ if state.output_error.is_some() => FAILED,
            _ if state.rungs.iter().any(Rung::is_failed) => FAILED_RUNG,
            RunOutcome::Complete => SUCCESS,
            _ => NOT_WHOLE,
        }
    }

    /// Writes all rungs so far. Returns false, with a message, if it cannot.
    fn write_file(&self, state: &State, outcome: &RunOutcome) -> bool {
        // Only rank 0 plans the ladder. Before, an earlier file has more.
        if state.units.is_none() {
            return true;
        }
        let (facts, rungs) = (state.facts.clone(), state.rungs.clone());
        let written = file::write_file(&self.arguments, facts, rungs, outcome.clone());
        if let Err(error) = &written {
            print_message(format_args!("error: {error:#}"));
        }
        written.is_ok()
    }

    fn lock_state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observer for Session {
    fn open_outputs(&self) -> Result<(), Stop> {
        file::refuse_unrelated(&self.arguments).map_err(|error| Stop::Refused(format!("{error:#}")))
    }

    fn start_run(&self, start: Start<'_>) -> anyhow::Result<()> {
        self.lock_state().run = Some(start.run);
        Ok(())
    }

    fn note_connection(&self, connection: Connection) -> anyhow::Result<()> {
        if let Some(run) = &mut self.lock_state().run {
            run.start_phases = connection.phases;
        }
        Ok(())
    }

    fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        if let SweepEvent::Measured(measurement, _) = event
            && let Some(run) = &mut self.lock_state().run
        {
            run.measurements.push(measurement.clone());
        }
        Ok(())
    }

    fn finish_run(&self, _outcome: RunOutcome) -> anyhow::Result<()> {
        Ok(())
    }

    fn salvage_results(&self, outcome: RunOutcome) {
        self.save_early(&outcome);
    }
}

/// Returns the rung of a run.
fn describe_rung(run: &Run, facts: &Facts, verdict: &Verdict) -> Rung {
    let of_size = |is_wanted: &dyn Fn(&Measurement) -> bool| {
        run.measurements.iter().find(|measurement| is_wanted(measurement))
    };
    let small = of_size(&|measurement| measurement.bytes <= facts.small_bytes);
    // Memory can have reduced the large size to none.
    let large = of_size(&|measurement| measurement.bytes > facts.bytes / 2);
    let judged = verdict.collectives.first();
    let wrong: Vec<u64> = run.measurements.iter().filter_map(|measurement| measurement.wrong).collect();
    Rung {
        units: 0,
        ranks: run.ranks.len(),
        failure: None,
        start_phases: run.start_phases.clone(),
        late_rank: find_late_rank(run),
        latency_us: small.map(|measurement| measurement.time_us),
        busbw_gbps: large.map(|measurement| measurement.busbw_gbps),
        wrong: (!wrong.is_empty()).then(|| wrong.iter().sum()),
        grade: verdict.grade,
        typical_gbps: judged
            .and_then(|judged| judged.comparison.as_ref())
            .map(|compared| compared.expected.typical_gbps),
        ceiling_gbps: judged.and_then(|judged| judged.ceiling.as_ref()).map(|ceiling| ceiling.busbw_gbps),
    }
}

/// Returns the rank whose start took clearly longer than the median. Ranks wait for each other, so that a
/// small difference is chance.
fn find_late_rank(run: &Run) -> Option<LateRank> {
    let longest = run.start_phases.iter().max_by(|one, other| one.longest_s.total_cmp(&other.longest_s))?;
    let is_late = longest.longest_s > LATE_S && longest.longest_s > LATE_RATIO * longest.median_s;
    let rank = run.ranks.get(longest.slowest_rank).filter(|_| is_late)?;
    Some(LateRank { rank: longest.slowest_rank, host: rank.host.clone() })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, FromArgMatches as _};

    use super::*;
    use crate::command::judge::JudgeBasis;

    /// A ladder of four hosts with two ranks each, whose first rung fails.
    fn failed_ladder(options: &str) -> Session {
        let command = LadderArguments::augment_args(clap::Command::new("ladder"));
        let matches = command.get_matches_from(format!("ladder -e 1M {options}").split_whitespace());
        let arguments = LadderArguments::from_arg_matches(&matches).unwrap();
        let basis = JudgeBasis::default().load_basis().unwrap();
        let session = Session::new(arguments, basis, None, &Request::new(vec![]));
        let host = |name: &str| ProcessHost { name: name.to_owned(), id: name.to_owned() };
        session.set_processes(["a", "b", "c", "d"].map(host).to_vec());
        session.begin_ladder(8, 1 << 20);
        assert_eq!(session.choose_step(), Step::Measure(vec![0, 1, 2, 3]));
        session.end_rung(&RungEnd::Failed("rank 3 has no GPU".to_owned()));
        session
    }

    #[test]
    fn a_failed_rung_ends_the_ladder() {
        let session = failed_ladder("");
        assert_eq!(session.choose_step(), Step::End(FAILED_RUNG));
    }

    #[test]
    fn a_ladder_that_keeps_going_measures_the_next_rung_and_fails_at_its_end() {
        let session = failed_ladder("--keep-going");
        assert_eq!(session.choose_step(), Step::Measure((0..8).collect()));
        session.end_rung(&RungEnd::Measured);
        assert_eq!(session.choose_step(), Step::End(FAILED_RUNG));
        assert_eq!(session.lock_state().rungs.len(), 2);
    }

    #[test]
    fn a_failure_before_the_first_rung_ends_the_ladder() {
        let command = LadderArguments::augment_args(clap::Command::new("ladder"));
        let matches = command.get_matches_from(["ladder"]);
        let arguments = LadderArguments::from_arg_matches(&matches).unwrap();
        let basis = JudgeBasis::default().load_basis().unwrap();
        let session = Session::new(arguments, basis, None, &Request::new(vec![]));
        session.end_rung(&RungEnd::Failed("no GPU".to_owned()));
        assert_eq!(session.choose_step(), Step::End(NOT_WHOLE));
    }
}
