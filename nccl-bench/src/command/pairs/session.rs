//! The state of a search in the process of rank 0.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::bench::{Connection, Observer, Start};
use engine::request::Request;
use engine::supervision::{Stop, WRONG_DATA, print_message};
use engine::sweep::SweepEvent;
use judge::pairs::{Conclusion, Options, PairResult, Purpose, Round, Search, Statistic, Verdict};
use record::RunOutcome;
use record::provenance::now_utc;
use serde::{Deserialize, Serialize};

use super::report::{format_bandwidth, render_report};
use super::results::{Facts, MeasuredPair, MeasuredRound, State, combine_groups};
use super::units::{ProcessHost, Units};
use super::{CANNOT_TELL, PairsArguments, SLOW, file};
use crate::exit::{SUCCESS, print_text};

/// Share that a part may be slower, unseen in the noise, before nothing is concluded.
const MOST_DETECTABLE: f64 = 0.1;

/// A search, shared with the ranks' threads and the thread that ends the process early.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) arguments: PairsArguments,
    state: Mutex<State>,
}

/// The next step, which rank 0 sends to all processes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Step {
    /// Measures the groups at the same time; all ranks as one group before the first round.
    Measure(Option<Vec<Vec<usize>>>),
    /// Ends with this refusal.
    Refuse(String),
    /// Ends with this exit code.
    End(u8),
}

impl Session {
    pub(super) fn new(arguments: PairsArguments, request: &Request) -> Self {
        let facts = Facts {
            program: request.program.clone(),
            command: request.command.clone(),
            started_at: now_utc(),
            bytes: request.settings.min_bytes,
            ..Facts::default()
        };
        Self { arguments, state: Mutex::new(State { facts, ..State::default() }) }
    }

    pub(super) fn set_processes(&self, processes: Vec<ProcessHost>) {
        self.lock_state().processes = processes;
    }

    /// Chooses the next step. At the end it prints the report.
    pub(super) fn choose_step(&self) -> Step {
        let state = &mut *self.lock_state();
        if state.ranks == 0 {
            return Step::Measure(None);
        }
        if state.search.is_none() {
            match self.start_search(state) {
                Ok(search) => state.search = Some(search),
                Err(reason) => return Step::Refuse(reason),
            }
        }
        let Some((units, search)) = &state.search else { return Step::End(CANNOT_TELL) };
        state.round = search.next_round();
        match &state.round {
            Some(round) => Step::Measure(Some(units.list_groups(&round.pairs))),
            None => Step::End(self.report_end(state, &RunOutcome::Complete)),
        }
    }

    fn start_search(&self, state: &State) -> Result<(Units, Search), String> {
        let units = Units::new(self.arguments.per, &state.processes, state.ranks)?;
        let options = Options {
            rounds: self.arguments.rounds as usize,
            least_shortfall: self.arguments.limit,
            most_detectable: MOST_DETECTABLE.max(self.arguments.limit),
            statistic: units.choose_statistic(),
            hosts: units.shared_hosts(),
            ..Options::default()
        };
        let search = Search::new(units.units.len(), options).map_err(|error| error.to_string())?;
        Ok((units, search))
    }

    /// Records the round whose run has ended.
    pub(super) fn end_run(&self) {
        let state = &mut *self.lock_state();
        let measurements = std::mem::take(&mut state.measurements);
        let (Some(round), Some((units, search))) = (state.round.take(), &mut state.search) else {
            state.has_wrong_start =
                measurements.iter().any(|measured| measured.wrong.is_some_and(|wrong| wrong > 0));
            return;
        };
        let pairs = combine_groups(&round, units.groups_per_pair(), &measurements);
        let results: Vec<PairResult> = pairs
            .iter()
            .map(|measured| PairResult { pair: measured.pair, bandwidths: measured.gbps.clone() })
            .collect();
        let number = state.rounds.len() + 1;
        print_message(describe_round(
            &round,
            number,
            search.survey_rounds(),
            &pairs,
            units.choose_statistic(),
        ));
        // The results are those of this round's pairs.
        if let Err(error) = search.record_round(&results) {
            print_message(format_args!("nccl-bench: {error}"));
        }
        state.rounds.push(MeasuredRound { purpose: round.purpose, pairs });
    }

    /// Prints and writes what there is when the search ends early.
    pub(super) fn save_early(&self, outcome: RunOutcome) {
        let state = &mut *self.lock_state();
        if let RunOutcome::Failed { message } = &outcome {
            print_message(format_args!("nccl-bench: {message}"));
        }
        self.report_end(state, &outcome);
    }

    /// Prints the report and writes the files, once. Returns the exit code.
    fn report_end(&self, state: &mut State, outcome: &RunOutcome) -> u8 {
        if std::mem::replace(&mut state.is_reported, true) {
            return CANNOT_TELL;
        }
        let Some((units, search)) = &state.search else { return CANNOT_TELL };
        let conclusion = search.conclude();
        let written = file::write_files(&self.arguments, state, units, &conclusion, outcome);
        let printed = print_text(&render_report(state, units, &conclusion, outcome));
        let code = exit_code(state, &conclusion, outcome);
        if let Err(error) = printed {
            return error.report_error();
        }
        if let Err(error) = written {
            print_message(format_args!("error: {error:#}"));
            return if code == SUCCESS { CANNOT_TELL } else { code };
        }
        code
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
        let state = &mut *self.lock_state();
        state.measurements.clear();
        if state.ranks == 0 {
            state.ranks = start.run.ranks.len();
            state.facts.provenance = start.run.provenance;
            state.facts.bytes = start.reduced_to.unwrap_or(state.facts.bytes);
        }
        Ok(())
    }

    fn note_connection(&self, connection: Connection) -> anyhow::Result<()> {
        let state = &mut *self.lock_state();
        // The first run is one of all ranks.
        if state.facts.provenance.transport.is_none() {
            state.facts.provenance.transport = connection.transport;
        }
        Ok(())
    }

    fn receive_event(&self, event: SweepEvent<'_>) -> anyhow::Result<()> {
        if let SweepEvent::Measured(measurement, _) = event {
            self.lock_state().measurements.push(measurement.clone());
        }
        Ok(())
    }

    fn finish_run(&self, _outcome: RunOutcome) -> anyhow::Result<()> {
        Ok(())
    }

    fn salvage_results(&self, outcome: RunOutcome) {
        self.save_early(outcome);
    }
}

fn describe_round(
    round: &Round,
    number: usize,
    survey: usize,
    pairs: &[MeasuredPair],
    statistic: Statistic,
) -> String {
    let mut bandwidths: Vec<f64> = pairs.iter().filter_map(|pair| pair.bandwidth(statistic)).collect();
    bandwidths.sort_unstable_by(f64::total_cmp);
    let range = match &bandwidths[..] {
        [] => "nothing measured".to_owned(),
        [one] => format!("{} GB/s", format_bandwidth(*one)),
        [low, .., high] => format!("{} to {} GB/s", format_bandwidth(*low), format_bandwidth(*high)),
    };
    let place = match round.purpose {
        Purpose::Survey => format!("round {number} of {survey}"),
        Purpose::Confirmation => format!("confirmation {}", number - survey.min(number)),
    };
    format!("{place}, {} pairs: {range}", pairs.len())
}

/// Exit code of a search.
fn exit_code(state: &State, conclusion: &Conclusion, outcome: &RunOutcome) -> u8 {
    let has_wrong = state.has_wrong_start
        || state.rounds.iter().flat_map(|round| &round.pairs).any(|pair| pair.wrong > 0);
    match conclusion.verdict {
        _ if has_wrong => WRONG_DATA,
        _ if *outcome != RunOutcome::Complete => CANNOT_TELL,
        Verdict::Slow => SLOW,
        Verdict::CannotTell => CANNOT_TELL,
        Verdict::Alike | Verdict::SeenOnce => SUCCESS,
    }
}
