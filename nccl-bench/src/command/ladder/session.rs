//! The state of a ladder in the process of rank 0.

use std::sync::{Mutex, MutexGuard, PoisonError};

use engine::bench::{Observer, Start};
use engine::request::Request;
use engine::supervision::{FAILED, Stop, WRONG_DATA, print_message};
use engine::sweep::SweepEvent;
use judge::{Grade, Verdict};
use record::provenance::now_utc;
use record::{Measurement, Run, RunOutcome, StartPhase};
use serde::{Deserialize, Serialize};

use super::steps::Step;
use super::{FAILED_RUNG, LadderArguments, NOT_WHOLE, file, report, small_bytes};
use crate::command::judge::LoadedBasis;
use crate::command::pairs::{ProcessHost, Unit, Units};
use crate::exit::{SUCCESS, print_text};

/// A ladder, shared with the ranks' threads and the thread that ends the process early.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) arguments: LadderArguments,
    basis: LoadedBasis,
    state: Mutex<State>,
}

/// The end of a run of the bench.
#[derive(Clone, Debug)]
pub(super) enum RungEnd {
    /// All was measured.
    Measured,
    /// It failed with this message.
    Failed(String),
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
    is_ended: bool,
}

/// Facts about the ladder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Facts {
    pub(super) program: String,
    pub(super) command: Vec<String>,
    pub(super) started_at: String,
    pub(super) collective: String,
    pub(super) backend: String,
    /// The small size, for the latency.
    pub(super) small_bytes: u64,
    /// The large size.
    pub(super) bytes: u64,
    /// `host` or `rank`.
    pub(super) unit: String,
    /// Names of all hosts, or numbers of all ranks, in order.
    pub(super) units: Vec<String>,
}

/// The file of a ladder.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct LadderFile {
    pub(super) mark: String,
    #[serde(flatten)]
    pub(super) facts: Facts,
    pub(super) rungs: Vec<Rung>,
    pub(super) outcome: RunOutcome,
}

/// A rung.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Rung {
    /// Number of hosts or ranks that it counts.
    pub(super) units: usize,
    /// Number of ranks.
    pub(super) ranks: usize,
    /// Reason of a rung that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) failure: Option<String>,
    /// Times of the start.
    #[serde(default)]
    pub(super) start_phases: Vec<StartPhase>,
    /// Host of the slowest rank of the longest phase.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) slowest_host: Option<String>,
    /// Time of the small size, in microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) latency_us: Option<f64>,
    /// Bus bandwidth of the large size, in GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) busbw_gbps: Option<f64>,
    /// Wrong elements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) wrong: Option<u64>,
    /// The grade: `PASS`.
    #[serde(default)]
    pub(super) grade: String,
    /// Typical bus bandwidth of equal machines, in GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) typical_gbps: Option<f64>,
    /// The highest bus bandwidth that the links permit, in GB/s.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) ceiling_gbps: Option<f64>,
}

impl Rung {
    /// Returns true for a rung that ends a ladder.
    pub(super) fn is_failed(&self) -> bool {
        self.failure.is_some() || self.is_wrong() || self.grade == Grade::Fail.grade_word()
    }

    fn is_wrong(&self) -> bool {
        self.wrong.is_some_and(|wrong| wrong > 0)
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
        if state.units.is_none()
            && let Err(reason) = self.plan_rungs(state)
        {
            return Step::Refuse(reason);
        }
        let is_over = state.rungs.last().is_some_and(Rung::is_failed) && !self.arguments.keep_going;
        let Some(units) = state.units.as_ref().filter(|_| !is_over && !state.left.is_empty()) else {
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
        let unit = if units.unit == Unit::Host { "host" } else { "rank" };
        state.facts.unit = unit.to_owned();
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
        print_lines(&text);
        Ok(())
    }

    /// Records the rung whose run has ended. Returns true if the ladder may go on.
    pub(super) fn end_rung(&self, end: &RungEnd) -> bool {
        let state = &mut *self.lock_state();
        let Some(units) = state.current.take() else { return matches!(end, RungEnd::Measured) };
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
        state.rungs.push(rung);
        if let Some(rung) = state.rungs.last() {
            print_lines(&report::render_rung(rung, &state.rungs));
        }
        self.write_file(state, &RunOutcome::Running);
        true
    }

    /// Writes the file when the ladder ends early.
    pub(super) fn save_early(&self, outcome: &RunOutcome) {
        if let RunOutcome::Failed { message } = outcome {
            print_message(format_args!("nccl-bench: {message}"));
        }
        self.end_ladder(&mut self.lock_state(), outcome);
    }

    /// Writes the file, once, and returns the exit code.
    fn end_ladder(&self, state: &mut State, outcome: &RunOutcome) -> u8 {
        if std::mem::replace(&mut state.is_ended, true) {
            return NOT_WHOLE;
        }
        if *outcome != RunOutcome::Complete && state.units.is_some() {
            print_lines("# The ladder was not measured to its end\n");
        }
        let is_written = self.write_file(state, outcome);
        match outcome {
            _ if state.rungs.iter().any(Rung::is_wrong) => WRONG_DATA,
            RunOutcome::Complete if !is_written => FAILED,
            RunOutcome::Complete if state.rungs.iter().any(Rung::is_failed) => FAILED_RUNG,
            RunOutcome::Complete => SUCCESS,
            _ => NOT_WHOLE,
        }
    }

    /// Writes all rungs so far. Returns false, with a message, if it cannot.
    fn write_file(&self, state: &State, outcome: &RunOutcome) -> bool {
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

    fn note_start(&self, phases: Vec<StartPhase>) -> anyhow::Result<()> {
        if let Some(run) = &mut self.lock_state().run {
            run.start_phases = phases;
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

/// Prints lines of the table. A closed output ends nothing: the file has all rungs.
fn print_lines(text: &str) {
    let _printed = print_text(text);
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
    let longest = run.start_phases.iter().max_by(|one, other| one.longest_s.total_cmp(&other.longest_s));
    let wrong: Vec<u64> = run.measurements.iter().filter_map(|measurement| measurement.wrong).collect();
    Rung {
        units: 0,
        ranks: run.ranks.len(),
        failure: None,
        start_phases: run.start_phases.clone(),
        slowest_host: longest
            .and_then(|phase| run.ranks.get(phase.slowest_rank))
            .map(|rank| rank.host.clone()),
        latency_us: small.map(|measurement| measurement.time_us),
        busbw_gbps: large.map(|measurement| measurement.busbw_gbps),
        wrong: (!wrong.is_empty()).then(|| wrong.iter().sum()),
        grade: verdict.grade.grade_word().to_owned(),
        typical_gbps: judged
            .and_then(|judged| judged.comparison.as_ref())
            .map(|compared| compared.expected.typical_gbps),
        ceiling_gbps: judged.and_then(|judged| judged.ceiling.as_ref()).map(|ceiling| ceiling.busbw_gbps),
    }
}
