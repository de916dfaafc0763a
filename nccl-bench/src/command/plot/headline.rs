//! The headline of a run: its peak bandwidth, its machine and versions, and the result of verification.

use super::axis;
use super::model::{Picture, Section};
use super::{Metric, text};
use record::Run;

/// Smallest size in bytes of a peak. The bandwidth of smaller sizes can be a cache's.
const LARGE: u64 = 1 << 20;

/// The headline of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Headline {
    /// The highest bus bandwidth: `366.85 GB/s`.
    pub(super) peak: String,
    /// The metric of the peak, and its collective, size and placement.
    pub(super) peak_of: String,
    /// Machine, versions and the result of verification, line by line.
    pub(super) facts: Vec<String>,
}

impl Headline {
    /// Makes the headline of run `index`; its peak is the highest in `sections`.
    pub(super) fn new(picture: &Picture, sections: &[Section], index: usize) -> Self {
        let (_, run) = &picture.runs[index];
        let (peak, peak_of) = find_peak(picture, sections, index);
        let mut versions = vec![text::library_text(run)];
        versions
            .extend(run.provenance.cuda_driver.as_ref().map(|version| format!("CUDA {version} (driver)")));
        versions.extend(run.provenance.transport.clone());
        let program = [run.program.clone(), start_time(run)].into_iter().filter(|text| !text.is_empty());
        let program = program.collect::<Vec<_>>().join(" · ");
        let mut facts = vec![text::machine_text(run), versions.join(" · "), program, verification_text(run)];
        facts.retain(|fact| !fact.is_empty());
        Self { peak, peak_of, facts }
    }
}

/// Returns the highest bus bandwidth of a run, with its metric, collective, size and placement. Only sizes
/// from [`LARGE`] on count if there are any. A single rank has no bus bandwidth: its peak is the algorithm
/// bandwidth.
fn find_peak(picture: &Picture, sections: &[Section], run: usize) -> (String, String) {
    let places = [(Metric::Busbw, LARGE), (Metric::Busbw, 0), (Metric::Algbw, LARGE), (Metric::Algbw, 0)];
    let found = places.iter().find_map(|&(metric, least)| {
        let (value, place) = find_highest(picture, sections, run, metric, least)?;
        let sizes = if least < LARGE { format!(" below {}", text::size_text(LARGE)) } else { String::new() };
        Some((
            format!("{} GB/s", text::value_text(value)),
            format!("peak {}{sizes}: {place}", metric.metric_title()),
        ))
    });
    found.unwrap_or_else(|| ("no peak".to_owned(), "no bandwidth of correct data was measured".to_owned()))
}

/// Returns the highest value of `metric` from a size on, with its collective, size and placement.
/// Measurements with wrong data do not count.
fn find_highest(
    picture: &Picture,
    sections: &[Section],
    run: usize,
    metric: Metric,
    least: u64,
) -> Option<(f64, String)> {
    let mut best: Option<(f64, String)> = None;
    let series =
        sections.iter().flat_map(|section| section.series.iter().map(move |series| (section, series)));
    for (section, series) in series.filter(|(_, series)| series.run == run) {
        for point in series.points.iter().filter(|point| point.bytes >= least && !point.is_wrong()) {
            let value = point.chart_value(metric).filter(|&value| value > 0.0 && value <= axis::LARGEST);
            let Some(value) = value.filter(|&value| best.as_ref().is_none_or(|(best, _)| value >= *best))
            else {
                continue;
            };
            let (size, placement) = (text::size_text(point.bytes), series.placement.placement_name());
            let median = if picture.medians { ", median time" } else { "" };
            let verified = if point.wrong_elements().is_none() { ", not verified" } else { "" };
            let collective = &section.key.collective;
            best = Some((value, format!("{collective}, {size}, {placement}{median}{verified}")));
        }
    }
    best
}

/// Returns the start of a run: `2026-11-22 08:30 UTC`. A local time, as written by nccl-tests, is kept
/// unchanged.
fn start_time(run: &Run) -> String {
    match run.started_at.parse::<jiff::Timestamp>() {
        Ok(time) => time.strftime("%Y-%m-%d %H:%M UTC").to_string(),
        Err(_) => run.started_at.replace('T', " "),
    }
}

/// Returns the result of verification.
fn verification_text(run: &Run) -> String {
    let all = run.measurements.len();
    let verified = run.measurements.iter().filter(|each| each.wrong.is_some()).count();
    let wrong = count_wrong(run);
    if verified == 0 {
        "Data not verified".to_owned()
    } else if wrong > 0 {
        format!("WRONG DATA in {wrong} of {}", text::count_text(verified, "verified measurement"))
    } else if verified < all {
        format!("Data verified in {verified} of {all} measurements: none wrong there")
    } else {
        format!("Data verified in all {}: none wrong", text::count_text(all, "measurement"))
    }
}

/// Counts the measurements with wrong data, also among those left out of the file.
fn count_wrong(run: &Run) -> usize {
    let own = run.measurements.iter().filter(|each| each.wrong.is_some_and(|wrong| wrong > 0)).count();
    own + run.left_out.map_or(0, |left_out| left_out.wrong_measurements)
}

/// Returns sentences about an incomplete, wrong, unverified or empty run, to follow its name.
pub(super) fn list_problems(run: &Run) -> Vec<String> {
    let mut problems = Vec::new();
    if let Some((_, text)) = text::describe_unfinished(&run.outcome) {
        let end = if text.ends_with(['.', '!', '?']) { "" } else { "." };
        problems.push(format!(
            "{text}{end} This is not a complete run: only the measurements before its end are shown."
        ));
    }
    let wrong = count_wrong(run);
    if wrong > 0 {
        problems.push(format!("has wrong data in {}.", text::count_text(wrong, "measurement")));
    }
    if run.measurements.is_empty() {
        problems.push("holds no measurement.".to_owned());
    } else if run.measurements.iter().all(|each| each.wrong.is_none()) {
        problems.push("was not verified: its data may be wrong.".to_owned());
    }
    problems
}
