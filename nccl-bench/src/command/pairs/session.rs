//! The state of a search in the process of rank 0.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::bench::{Connection, Observer, Start};
use engine::request::Request;
use engine::supervision::{Stop, WRONG_DATA, print_message};
use engine::sweep::SweepEvent;
use judge::pairs::{Conclusion, Options, PairResult, Purpose, Round, Search, Verdict, find_pair_bandwidth};
use record::provenance::now_utc;
use record::{Measurement, Provenance, RunOutcome};
use serde::Serialize;

use super::report::{format_bandwidth, render_report};
use super::steps::Step;
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

/// What was measured so far.
#[derive(Debug, Default)]
pub(super) struct State {
    processes: Vec<ProcessHost>,
    /// Absent before all ranks are known.
    pub(super) search: Option<(Units, Search)>,
    /// The round that is measured.
    round: Option<Round>,
    /// Results of the run that goes on.
    measurements: Vec<Measurement>,
    ranks: usize,
    pub(super) facts: Facts,
    pub(super) rounds: Vec<MeasuredRound>,
    /// Data was wrong in the exchange among all ranks before the first round.
    pub(super) has_wrong_start: bool,
    /// True once the report was printed.
    is_reported: bool,
}

/// Facts about the measurements.
#[derive(Clone, Debug, Default, Serialize)]
pub(super) struct Facts {
    pub(super) program: String,
    pub(super) command: Vec<String>,
    pub(super) started_at: String,
    pub(super) provenance: Provenance,
    /// Bytes that a rank sends and receives at a time.
    pub(super) bytes: u64,
}

/// A round with its results.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MeasuredRound {
    pub(super) purpose: Purpose,
    pub(super) pairs: Vec<MeasuredPair>,
}

/// A pair with its results in a round.
#[derive(Clone, Debug, Serialize)]
pub(super) struct MeasuredPair {
    /// Numbers of the units.
    pub(super) pair: [usize; 2],
    /// Bandwidth of each repeat in GB/s in each direction, of all ranks of the pair together.
    pub(super) gbps: Vec<f64>,
    /// Wrong elements.
    pub(super) wrong: u64,
}

impl MeasuredPair {
    /// The bandwidth that counts.
    pub(super) fn bandwidth(&self) -> Option<f64> {
        find_pair_bandwidth(&self.gbps)
    }
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
        print_message(describe_round(&round, number, search.survey_rounds(), &pairs));
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

/// Combines the groups of each pair of a round: their data in the time of the slowest.
fn combine_groups(round: &Round, groups: usize, measurements: &[Measurement]) -> Vec<MeasuredPair> {
    let of_group = |number: usize| {
        // A single group has no number.
        measurements.iter().find(|measured| measured.group.unwrap_or(0) == number)
    };
    let combine = |(number, &pair): (usize, &[usize; 2])| {
        let own: Option<Vec<&Measurement>> = (number * groups..(number + 1) * groups).map(of_group).collect();
        let own = own.unwrap_or_default();
        let bytes: u64 = own.iter().map(|measured| measured.bytes).sum();
        let repeats = own.iter().map(|measured| repeats_us(measured).len()).min().unwrap_or(0);
        let slowest = |repeat: usize| own.iter().map(|each| repeats_us(each)[repeat]).fold(0.0, f64::max);
        MeasuredPair {
            pair,
            gbps: (0..repeats).map(|repeat| bytes as f64 / slowest(repeat) / 1e3).collect(),
            wrong: own.iter().filter_map(|measured| measured.wrong).sum(),
        }
    };
    round.pairs.iter().enumerate().map(combine).collect()
}

/// Microseconds of each repeat. The record has only the median of a single one.
fn repeats_us(measurement: &Measurement) -> &[f64] {
    match &measurement.rounds_us[..] {
        [] => std::slice::from_ref(&measurement.time_us),
        rounds => rounds,
    }
}

fn describe_round(round: &Round, number: usize, survey: usize, pairs: &[MeasuredPair]) -> String {
    let mut bandwidths: Vec<f64> = pairs.iter().filter_map(MeasuredPair::bandwidth).collect();
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
