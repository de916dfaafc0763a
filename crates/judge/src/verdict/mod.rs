//! The verdict about a run: does the machine reach what it should?

mod checks;
mod rows;
#[cfg(test)]
mod tests;

use record::collective::Collective;
use record::{Measurement, Registration, Run, RunOutcome};
use serde::{Deserialize, Serialize};

use crate::ceiling::{Ceiling, find_ceiling};
use crate::expectation::{Expectation, Expected, Trust};
use crate::machine::{Machine, Nics, Told, is_of_nccl};
pub use rows::{Row, RowKey};

/// Share of the fastest known machine below which unknown NICs are no explanation.
const FAR_BELOW: f64 = 0.5;

/// A grade. The greater one counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Grade {
    /// Nothing is known to compare with.
    #[default]
    Unknown,
    /// All that was compared is as expected.
    Pass,
    /// Something is unusual.
    Warn,
    /// The machine or the measurement is at fault.
    Fail,
}

impl Grade {
    /// Returns the word for reports.
    pub const fn grade_word(self) -> &'static str {
        match self {
            Self::Unknown => "UNKNOWN",
            Self::Pass => "PASS",
            Self::Warn => "WARN",
            Self::Fail => "FAIL",
        }
    }
}

/// The verdict about a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Verdict {
    /// The worst grade of the run and its collectives; [`Grade::Unknown`] when nothing could be compared.
    pub grade: Grade,
    /// The machine.
    pub machine: Machine,
    /// Reasons that concern the whole run.
    pub reasons: Vec<Reason>,
    /// Variables of the run that lower the bandwidth.
    pub variables: Vec<Variable>,
    /// The collectives, in the order of their first measurements.
    pub collectives: Vec<CollectiveVerdict>,
}

/// A variable of the environment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Variable {
    /// Name.
    pub name: String,
    /// Value.
    pub value: String,
}

/// The verdict about a collective.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CollectiveVerdict {
    /// Name on the command line: `allreduce`.
    pub collective: String,
    /// Its grade.
    pub grade: Grade,
    /// The highest bandwidth that the links permit.
    pub ceiling: Option<Ceiling>,
    /// The row with the highest bandwidth.
    pub best: Option<Row>,
    /// The comparison with an expectation that decided the grade.
    pub comparison: Option<Comparison>,
    /// Reasons.
    pub reasons: Vec<Reason>,
}

/// A comparison with an expectation.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// The row of the largest compared size.
    pub row: Row,
    /// The expectation for that size.
    pub expected: Expected,
    /// Number of compared rows.
    pub rows: usize,
    /// Number of these below the least bandwidth.
    pub below: usize,
    /// The row that is farthest below, with the expectation for its size.
    pub farthest: Option<(Row, Expected)>,
    /// State of NVLS that the expectation is for; `None` when both reach the same.
    pub nvls: Option<bool>,
    /// Source of the expectation.
    pub source: String,
    /// Date of the source.
    pub date: String,
    /// Reliability of the source.
    pub trust: Trust,
}

/// A reason for a grade.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Reason {
    /// Measurements have wrong data.
    WrongData {
        /// Number of measurements.
        measurements: usize,
    },
    /// The run failed.
    RunFailed,
    /// The run was interrupted, or the file ends before the run.
    NotWhole,
    /// No data was verified.
    NotVerified,
    /// Measurements without a usable time or bandwidth.
    UnusableValues {
        /// Number of measurements.
        measurements: usize,
    },
    /// A row is above the ceiling: the measurement is at fault.
    AboveCeiling {
        /// The row.
        row: Row,
        /// The ceiling in GB/s.
        ceiling_gbps: f64,
    },
    /// Rows are below the least bandwidth of the expectation.
    BelowExpectation,
    /// A GPU has fewer active NVLinks than usual.
    FewNvLinks {
        /// Number of active NVLinks.
        active: u32,
        /// Number of NVLinks of the kind of GPU.
        usual: u32,
    },
    /// GPUs that are always connected by NVLink are no faster than their links to the host.
    NotOverNvLink {
        /// The row.
        row: Row,
        /// Rate of the NVLinks of a GPU in GB/s.
        nvlink_gbps: f64,
        /// Rate of the link to the host in GB/s.
        host_gbps: f64,
    },
    /// A host sends no more than one of its NICs carries.
    OneNic {
        /// The row.
        row: Row,
        /// The data sent by a host in Gbit/s.
        sent_gbits: f64,
    },
    /// Hosts exchange less than is usual for their GPUs. The machine's NICs are not known.
    SlowNetwork {
        /// The row.
        row: Row,
        /// The data sent by a host in Gbit/s.
        sent_gbits: f64,
    },
    /// The NICs are not known, and the fastest known machine reaches more than twice as much.
    FarBelowFastest {
        /// The row.
        row: Row,
        /// The bandwidth of the fastest machine in GB/s.
        typical_gbps: f64,
        /// Its NICs.
        nics: Nics,
    },
    /// GPUs without NVLink reach less than 30 % of their links to the host.
    SlowHostLink {
        /// The row.
        row: Row,
        /// Rate of the link to the host in GB/s.
        host_gbps: f64,
    },
    /// The bandwidth is that of a machine without NVLS, and it is not known if NVLS is used.
    WithoutNvls {
        /// The row.
        row: Row,
        /// The bandwidth with NVLS in GB/s, where it is known.
        typical_gbps: Option<f64>,
    },
    /// The bandwidth falls with the size.
    Dip {
        /// The smaller size.
        before: Row,
        /// The larger size.
        after: Row,
    },
    /// In place and out of place differ.
    PlacementsDiffer {
        /// Bandwidth in place divided by that out of place, median of the sizes.
        ratio: f64,
    },
    /// Ranks differ in their own times.
    RanksDiffer {
        /// The rank with the longest times.
        rank: usize,
        /// Its time divided by the shortest one, median of the sizes.
        ratio: f64,
    },
    /// The two directions of a pair of ranks differ.
    DirectionsDiffer {
        /// The faster direction.
        pair: [usize; 2],
        /// Its bandwidth divided by that of the other direction.
        ratio: f64,
    },
    /// There is nothing to compare with.
    NotCompared {
        /// The obstacle fact.
        obstacle: Obstacle,
    },
}

/// Reason for which a collective is not compared with an expectation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Obstacle {
    /// The ranks measured without NCCL.
    OtherLibrary,
    /// The ranks, their hosts or GPUs are not in the record.
    UnknownRanks,
    /// The kind of GPU is not known.
    UnknownGpu,
    /// The buffers were in symmetric memory, for which NCCL has other kernels.
    SymmetricMemory,
    /// The ranks share GPUs.
    SharedGpus,
    /// There is one rank only.
    SingleRank,
    /// The ranks measured in groups.
    Groups,
    /// The ranks measured in pairs, or the collective is not known.
    UnknownCollective,
    /// The NICs of the hosts are not known.
    UnknownNics,
    /// No expectation fits the machine and the collective.
    NoExpectation,
    /// All sizes are below the expectation's.
    SmallSizes,
}

impl Reason {
    /// Returns the grade that follows from the reason. That of [`Reason::BelowExpectation`] depends on the
    /// comparison.
    const fn grade(&self) -> Grade {
        match self {
            Self::WrongData { .. }
            | Self::RunFailed
            | Self::AboveCeiling { .. }
            | Self::NotOverNvLink { .. }
            | Self::OneNic { .. }
            | Self::BelowExpectation => Grade::Fail,
            Self::SlowNetwork { .. }
            | Self::FewNvLinks { .. }
            | Self::FarBelowFastest { .. }
            | Self::NotCompared { obstacle: Obstacle::SharedGpus }
            | Self::SlowHostLink { .. }
            | Self::WithoutNvls { .. }
            | Self::Dip { .. }
            | Self::PlacementsDiffer { .. }
            | Self::RanksDiffer { .. }
            | Self::DirectionsDiffer { .. } => Grade::Warn,
            Self::NotWhole | Self::NotVerified | Self::UnusableValues { .. } | Self::NotCompared { .. } => {
                Grade::Unknown
            }
        }
    }

    /// Returns true for a low bandwidth, which variables can explain.
    pub const fn is_low(&self) -> bool {
        matches!(
            self,
            Self::BelowExpectation
                | Self::NotOverNvLink { .. }
                | Self::OneNic { .. }
                | Self::SlowNetwork { .. }
                | Self::FarBelowFastest { .. }
                | Self::SlowHostLink { .. }
        )
    }

    /// Returns true for a reason that makes a PASS a WARN.
    const fn forbids_pass(&self) -> bool {
        matches!(self, Self::NotWhole | Self::NotVerified | Self::UnusableValues { .. })
    }
}

/// Judges a run by its machine's links, by expectations, and by itself. Of several lists of `expectations`,
/// the first one with an expectation for the machine counts.
pub fn judge_run(run: &Run, told: Told, expectations: &[&[Expectation]]) -> Verdict {
    let machine = Machine::from_run(run, told);
    let mut reasons = judge_record(run);
    reasons.extend(checks::check_nvlinks(run, &machine));
    reasons.extend(checks::check_directions(run));
    let mut collectives: Vec<CollectiveVerdict> = Vec::new();
    for measurement in &run.measurements {
        let name = &measurement.collective;
        if collectives.iter().all(|verdict| verdict.collective != *name) {
            collectives.push(judge_collective(run, name, &machine, expectations));
        }
    }
    let of_collectives = collectives.iter().map(|verdict| verdict.grade);
    let grade = match reasons.iter().map(Reason::grade).chain(of_collectives).max() {
        // Nothing passes that is not whole or not verified.
        Some(Grade::Pass) if reasons.iter().any(Reason::forbids_pass) => Grade::Warn,
        other => other.unwrap_or(Grade::Unknown),
    };
    Verdict { grade, machine, reasons, variables: checks::find_slowing_variables(run), collectives }
}

/// Returns the reasons that lie in the record, not in bandwidths.
fn judge_record(run: &Run) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let wrong = run.measurements.iter().filter(|measurement| measurement.is_wrong()).count()
        + run.left_out.map_or(0, |left_out| left_out.wrong_measurements);
    if wrong > 0 {
        reasons.push(Reason::WrongData { measurements: wrong });
    }
    match run.outcome {
        RunOutcome::Complete if run.left_out.is_none() => {}
        RunOutcome::Failed { .. } => reasons.push(Reason::RunFailed),
        RunOutcome::Complete | RunOutcome::Running | RunOutcome::Interrupted { .. } => {
            reasons.push(Reason::NotWhole);
        }
    }
    if run.measurements.iter().all(|measurement| measurement.wrong.is_none()) {
        reasons.push(Reason::NotVerified);
    }
    let unusable = run.measurements.iter().filter(|measurement| !is_usable(measurement)).count();
    if unusable > 0 {
        reasons.push(Reason::UnusableValues { measurements: unusable });
    }
    reasons
}

/// Returns true for a measurement without data, or with a time and a bandwidth.
fn is_usable(measurement: &Measurement) -> bool {
    let Measurement { bytes, time_us, busbw_gbps, .. } = measurement;
    *bytes == 0 || (time_us.is_finite() && *time_us >= 0.0 && busbw_gbps.is_finite() && *busbw_gbps >= 0.0)
}

fn judge_collective(
    run: &Run,
    name: &str,
    machine: &Machine,
    expectations: &[&[Expectation]],
) -> CollectiveVerdict {
    // A single rank has no bus bandwidth.
    let rows = if machine.ranks == Some(1) { Vec::new() } else { rows::collect_rows(run, name) };
    // The ranks of the record are those of all groups.
    let has_groups = run.measurements.iter().any(|measurement| measurement.group.is_some());
    let collective = name.parse::<Collective>().ok().filter(|_| run.settings.pairs.is_none() && !has_groups);
    let ceiling = collective.and_then(|collective| find_ceiling(machine, collective));
    let mut reasons = Vec::new();
    reasons.extend(checks::check_dips(&rows));
    reasons.extend(checks::check_placements(&rows, collective));
    let mut comparison = None;
    let mut obstacle = Some(if has_groups { Obstacle::Groups } else { Obstacle::UnknownCollective });
    if let Some(collective) = collective {
        reasons.extend(checks::check_ceiling(&rows, ceiling.as_ref()));
        reasons.extend(checks::check_links(&rows, machine, collective));
        reasons.extend(checks::check_ranks(run, collective));
        (comparison, obstacle) =
            match compare_with_expectations(&rows, machine, collective, expectations, run) {
                Ok((compared, found)) => {
                    reasons.extend(found);
                    (compared, None)
                }
                Err(obstacle) => (None, Some(obstacle)),
            };
        let is_unsure = obstacle.is_none() && comparison.is_none();
        obstacle = obstacle.or(is_unsure.then_some(Obstacle::UnknownNics));
    }
    reasons.extend(obstacle.map(|obstacle| Reason::NotCompared { obstacle }));
    let mut grade = reasons.iter().map(Reason::grade).max().unwrap_or(Grade::Unknown);
    if let Some(compared) = &comparison {
        let is_only_below = reasons
            .iter()
            .all(|reason| reason.grade() != Grade::Fail || matches!(reason, Reason::BelowExpectation));
        grade = match grade {
            Grade::Fail if is_only_below && !compared.is_decisive() => Grade::Warn,
            other => other.max(Grade::Pass),
        };
    }
    let best = rows.iter().max_by(|one, other| one.busbw_gbps.total_cmp(&other.busbw_gbps)).cloned();
    CollectiveVerdict { collective: name.to_owned(), grade, ceiling, best, comparison, reasons }
}

/// Compares rows with the expectations that fit. The comparison is `None` for want of the NICs.
///
/// # Errors
/// The fact for want of which nothing could be compared.
fn compare_with_expectations(
    rows: &[Row],
    machine: &Machine,
    collective: Collective,
    expectations: &[&[Expectation]],
    run: &Run,
) -> Result<(Option<Comparison>, Option<Reason>), Obstacle> {
    refuse_unknown_machine(machine, run)?;
    let fits = |each: &&Expectation| each.fits_machine(machine, collective);
    let list = expectations.iter().find(|list| list.iter().any(|each| fits(&each))).copied();
    let fitting = |nvls: Option<bool>| {
        let fit = list.unwrap_or_default().iter().filter(fits);
        let mut fit = fit.filter(|each| nvls.is_none() || each.nvls().is_none() || each.nvls() == nvls);
        let first = fit.next()?;
        // Without knowledge of the NICs, the fastest ones.
        let others = fit.filter(|each| machine.nics.is_none() && each.nics().is_some());
        Some(others.fold(first, |best, other| {
            if other.largest_size_gbps() > best.largest_size_gbps() { other } else { best }
        }))
    };
    let Some(first) = fitting(machine.nvls.or(Some(true))).or_else(|| fitting(None)) else {
        let needs_nics = machine.nics.is_none() && !machine.is_one_host();
        return Err(if needs_nics { Obstacle::UnknownNics } else { Obstacle::NoExpectation });
    };
    let compared = compare_rows(rows, first).ok_or(Obstacle::SmallSizes)?;
    if compared.below > 0
        && machine.nics.is_none()
        && let Some(nics) = first.nics()
    {
        let typical_gbps = compared.expected.typical_gbps;
        let is_far = compared.row.busbw_gbps < typical_gbps * FAR_BELOW;
        return Ok((
            None,
            is_far.then_some(Reason::FarBelowFastest { row: compared.row, typical_gbps, nics }),
        ));
    }
    // GPUs with NVLS, and it is not known if they use it: then less is right, but not the best.
    let is_unsure = machine.nvls.is_none() && machine.gpu.is_some_and(|kind| kind.nvls);
    let without_nvls = |row: &Row, typical_gbps| Reason::WithoutNvls { row: row.clone(), typical_gbps };
    if compared.below == 0 {
        let reason = (is_unsure && compared.nvls == Some(false)).then(|| without_nvls(&compared.row, None));
        return Ok((Some(compared), reason));
    }
    let without = fitting(Some(false)).filter(|_| is_unsure && compared.nvls == Some(true));
    if let Some(other) = without.and_then(|without| compare_rows(rows, without))
        && other.below == 0
    {
        let reason = without_nvls(&other.row, Some(compared.expected.typical_gbps));
        return Ok((Some(other), Some(reason)));
    }
    Ok((Some(compared), Some(Reason::BelowExpectation)))
}

fn refuse_unknown_machine(machine: &Machine, run: &Run) -> Result<(), Obstacle> {
    let obstacle = match machine.ranks {
        _ if !is_of_nccl(run) => Obstacle::OtherLibrary,
        None => Obstacle::UnknownRanks,
        Some(1) => Obstacle::SingleRank,
        Some(_) if machine.shares_gpus => Obstacle::SharedGpus,
        Some(_) if machine.gpu.is_none() => Obstacle::UnknownGpu,
        Some(_) if run.settings.registration == Registration::Symmetric => Obstacle::SymmetricMemory,
        Some(_) => return Ok(()),
    };
    Err(obstacle)
}

/// Compares all rows that the expectation has sizes for; `None` without such a row.
fn compare_rows(rows: &[Row], expectation: &Expectation) -> Option<Comparison> {
    let comparable = rows.iter().filter(|row| row.is_comparable());
    let compared: Vec<(&Row, Expected)> =
        comparable.filter_map(|row| Some((row, expectation.find_expected(row.key.bytes)?))).collect();
    let share = |(row, expected): &(&Row, Expected)| row.busbw_gbps / expected.least_gbps;
    let below = compared.iter().filter(|(row, expected)| !row.reaches(expected.least_gbps));
    let farthest = below.clone().min_by(|one, other| share(one).total_cmp(&share(other)));
    let largest = compared.iter().map(|(row, _)| row.key.bytes).max()?;
    let at_largest = compared.iter().filter(|(row, _)| row.key.bytes == largest);
    let (row, expected) = at_largest.min_by(|one, other| one.0.busbw_gbps.total_cmp(&other.0.busbw_gbps))?;
    Some(Comparison {
        row: (*row).clone(),
        expected: *expected,
        rows: compared.len(),
        below: below.count(),
        farthest: farthest.map(|(row, expected)| ((*row).clone(), *expected)),
        nvls: expectation.nvls(),
        source: expectation.source.clone(),
        date: expectation.date.clone(),
        trust: expectation.trust,
    })
}

impl Comparison {
    /// Returns true when rows below the expectation fail the machine: the largest size or half of the rows,
    /// by a source that is trusted.
    fn is_decisive(&self) -> bool {
        let is_largest = !self.row.reaches(self.expected.least_gbps);
        self.trust > Trust::Low && (is_largest || 2 * self.below >= self.rows)
    }
}
