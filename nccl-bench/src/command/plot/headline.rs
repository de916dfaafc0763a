//! The headline of a run: its peak bandwidth, its machine and versions, and whether its data was verified.

use super::axis;
use super::model::{Picture, Point, Section, Series, Source};
use super::{Metric, text};
use record::Run;

/// The headline of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Headline {
    /// The highest bus bandwidth: `366.85 GB/s`.
    pub(super) peak: String,
    /// The metric of the peak, and the collective, size and placement that it was measured with.
    pub(super) peak_of: String,
    /// Machine and versions, line by line.
    pub(super) facts: Vec<String>,
    /// The result of verification in words: `Data verified in all 62 measurements: none wrong`.
    pub(super) verification: String,
    /// True when some data was verified and none of it is wrong.
    pub(super) is_verified: bool,
}

impl Headline {
    /// Makes the headline of run `index`; its peak is the highest in `sections`.
    pub(super) fn new(picture: &Picture, sections: &[Section], index: usize) -> Self {
        let (_, run) = &picture.runs[index];
        let (peak, peak_of) = peak(sections, index);
        let (verification, is_verified) = verification(run);
        Self { peak, peak_of, facts: facts(run), verification, is_verified }
    }
}

/// The highest bus bandwidth of a run, and where it was measured. Measurements with wrong data do not count.
/// A single rank has no bus bandwidth: its peak is the algorithm bandwidth.
fn peak(sections: &[Section], run: usize) -> (String, String) {
    let find = |metric: Metric| {
        let series = sections.iter().flat_map(|section| {
            section.series.iter().filter(|series| series.run == run).map(move |series| (section, series))
        });
        let right = series.flat_map(|(section, series)| {
            let points = series.points.iter().filter(|point| !point.is_wrong());
            points.map(move |point| (section, series, point))
        });
        let valued = right.filter_map(|(section, series, point)| {
            let value = point.value(metric).filter(|&value| value > 0.0 && value <= axis::LARGEST)?;
            Some((metric, value, section, series, point))
        });
        valued.max_by(|one, other| one.1.total_cmp(&other.1))
    };
    match find(Metric::Busbw).or_else(|| find(Metric::Algbw)) {
        Some((metric, value, section, series, point)) => (
            format!("{} GB/s", text::digits(value)),
            format!("peak {}: {}", metric.title(), place(section, series, point)),
        ),
        None => ("no peak".to_owned(), "no bandwidth of correct data was measured".to_owned()),
    }
}

fn place(section: &Section, series: &Series, point: &Point) -> String {
    let median = if point.source() == Source::Median { ", median time" } else { "" };
    let verified = if point.wrong().is_none() { ", not verified" } else { "" };
    let (size, placement) = (text::bytes(point.bytes), text::placement_name(series.placement));
    format!("{}, {size}, {placement}{median}{verified}", section.collective)
}

fn facts(run: &Run) -> Vec<String> {
    let mut versions = vec![text::library(run)];
    versions.extend(run.provenance.cuda_driver.as_ref().map(|version| format!("CUDA {version} (driver)")));
    versions.extend(run.provenance.transport.clone());
    let program: Vec<String> =
        [run.program.clone(), began(run)].into_iter().filter(|text| !text.is_empty()).collect();
    let facts = [text::machine(run), versions.join(" · "), program.join(" · ")];
    facts.into_iter().filter(|fact| !fact.is_empty()).collect()
}

/// The start of a run: `2026-11-22 08:30 UTC`. A local time, which nccl-tests writes, is kept as it is.
fn began(run: &Run) -> String {
    match run.started_at.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => run.started_at.replace('T', " "),
    }
}

/// Returns the result of verification in words, and true when some data was verified and none of it is wrong.
fn verification(run: &Run) -> (String, bool) {
    let all = run.measurements.len();
    let verified = run.measurements.iter().filter(|each| each.wrong.is_some()).count();
    let wrong = wrong_measurements(run);
    if verified == 0 {
        ("Data not verified".to_owned(), false)
    } else if wrong > 0 {
        (format!("WRONG DATA in {wrong} of {}", text::counted(verified, "verified measurement")), false)
    } else if verified < all {
        (format!("Data verified in {verified} of {all} measurements: none wrong there"), true)
    } else {
        (format!("Data verified in all {}: none wrong", text::counted(all, "measurement")), true)
    }
}

fn wrong_measurements(run: &Run) -> usize {
    run.measurements.iter().filter(|each| each.wrong.is_some_and(|wrong| wrong > 0)).count()
}

/// Sentences, to follow the run's name, that say whether it is incomplete, has wrong data, was not verified
/// or is empty.
pub(super) fn problems(run: &Run) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some((_, text)) = text::unfinished(&run.outcome) {
        let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
        problems
            .push(format!("{text}{end} This is not a complete run: only what was measured before is shown."));
    }
    let wrong = wrong_measurements(run);
    if wrong > 0 {
        problems.push(format!("has wrong data in {}.", text::counted(wrong, "measurement")));
    }
    if run.measurements.iter().all(|each| each.wrong.is_none()) && !run.measurements.is_empty() {
        problems.push("was not verified: its data may be wrong.".to_owned());
    }
    if run.measurements.is_empty() {
        problems.push("holds no measurement.".to_owned());
    }
    problems
}
