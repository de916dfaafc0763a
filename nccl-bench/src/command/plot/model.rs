//! The model of a plot: the measurements of all runs, by collective and size.

use super::axis::{Axis, Scale};
use super::{Metric, NothingToDraw, Options, Spread, text};
use record::{Algorithm, Measurement, Placement, Run};

/// The content of a plot.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    /// The runs, with unique names.
    pub(super) runs: Vec<(String, &'a Run)>,
    /// One per collective, type, operator and root, in the order of the first measurement.
    pub(super) sections: Vec<Section<'a>>,
    /// The options of the drawing.
    pub(super) options: &'a Options,
    /// The time that all lines show.
    pub(super) source: Source,
}

/// The measurements that share charts.
#[derive(Debug)]
pub(super) struct Section<'a> {
    pub(super) collective: &'a str,
    pub(super) data_type: &'a str,
    pub(super) op: Option<&'a str>,
    pub(super) root: Option<usize>,
    /// One per run and placement.
    pub(super) series: Vec<Series<'a>>,
}

/// A line of a chart.
#[derive(Debug)]
pub(super) struct Series<'a> {
    /// Index in [`Picture::runs`].
    pub(super) run: usize,
    pub(super) placement: Placement,
    /// By size, ascending.
    pub(super) points: Vec<Point<'a>>,
}

/// The measurements of one size: several with `-N`, or where sizes were rounded to the same one.
#[derive(Debug)]
pub(super) struct Point<'a> {
    pub(super) bytes: u64,
    pub(super) measurements: Vec<&'a Measurement>,
    source: Source,
}

/// The time of a measurement that is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// The mean of all operations, as in the table of a run.
    Mean,
    /// The median of operations that were timed one by one. The mean may be of other operations, and lie outside of their
    /// range.
    Median,
}

impl<'a> Picture<'a> {
    /// Sorts measurements into sections.
    pub(super) fn new(runs: &'a [(String, Run)], options: &'a Options) -> Result<Self, NothingToDraw> {
        if runs.iter().all(|(_, run)| run.measurements.is_empty()) {
            return Err(NothingToDraw::NoMeasurement);
        }
        let mut sections: Vec<Section<'a>> = Vec::new();
        for (index, (_, run)) in runs.iter().enumerate() {
            for measurement in run.measurements.iter().filter(|each| options.placements.has(each.placement)) {
                let section = match sections.iter().position(|section| section.is_of(measurement)) {
                    Some(found) => &mut sections[found],
                    None => {
                        sections.push(Section::of(measurement));
                        let last = sections.len() - 1;
                        &mut sections[last]
                    }
                };
                section.add(index, measurement);
            }
        }
        for section in &mut sections {
            // Out-of-place before in-place, so that a legend and a table have the order of the runs.
            section.series.sort_by_key(|series| (series.run, series.placement));
        }
        if sections.is_empty() {
            return Err(NothingToDraw::NoPlacement);
        }
        let source = source(&sections, options.spread);
        let series = sections.iter_mut().flat_map(|section| &mut section.series);
        series.flat_map(|series| &mut series.points).for_each(|point| point.source = source);
        let picture = Self { runs: distinct(runs), sections, options, source };
        let mut points =
            picture.sections.iter().flat_map(|section| &section.series).flat_map(|each| &each.points);
        if points.clone().all(|point| point.bytes == 0) {
            return Err(NothingToDraw::OnlySizeZero);
        }
        if !points
            .any(|point| options.metrics.iter().any(|&metric| point.drawn(metric, options.scale).is_some()))
        {
            return Err(NothingToDraw::NoValue);
        }
        Ok(picture)
    }

    /// Data type, operator and root of a section.
    pub(super) fn detail(section: &Section) -> String {
        let op = section.op.map(|op| format!(", {op}")).unwrap_or_default();
        let root = section.root.map(|root| format!(", root {root}")).unwrap_or_default();
        format!("{}{op}{root}", section.data_type)
    }

    /// The name of a section: its collective, and where several sections have that collective, its
    /// [detail](Self::detail).
    pub(super) fn name(&self, section: &Section) -> String {
        let alike = self.sections.iter().filter(|other| other.collective == section.collective);
        if alike.count() == 1 {
            section.collective.to_owned()
        } else {
            format!("{} {}", section.collective, Self::detail(section))
        }
    }

    /// The heading of a section's algorithms, with the libraries that chose them: `algorithm (NCCL)`. `None`
    /// when no algorithm is known.
    pub(super) fn algorithm_heading(&self, section: &Section) -> Option<String> {
        let mut names: Vec<&str> = Vec::new();
        for series in section.series.iter().filter(|series| series.points.iter().any(Point::is_explained)) {
            let name = text::library_name(self.runs[series.run].1);
            if !names.contains(&name) {
                names.push(name);
            }
        }
        (!names.is_empty()).then(|| format!("algorithm ({})", names.join(", ")))
    }
}

impl<'a> Section<'a> {
    fn of(measurement: &'a Measurement) -> Self {
        Self {
            collective: &measurement.collective,
            data_type: &measurement.data_type,
            op: measurement.op.as_deref(),
            root: measurement.root,
            series: Vec::new(),
        }
    }

    fn is_of(&self, measurement: &Measurement) -> bool {
        self.collective == measurement.collective
            && self.data_type == measurement.data_type
            && self.op == measurement.op.as_deref()
            && self.root == measurement.root
    }

    fn add(&mut self, run: usize, measurement: &'a Measurement) {
        let placement = measurement.placement;
        let known = self.series.iter().position(|each| each.run == run && each.placement == placement);
        let index = known.unwrap_or_else(|| {
            self.series.push(Series { run, placement, points: Vec::new() });
            self.series.len() - 1
        });
        let points = &mut self.series[index].points;
        match points.binary_search_by_key(&measurement.bytes, |point| point.bytes) {
            Ok(found) => points[found].measurements.push(measurement),
            Err(place) => {
                let (bytes, measurements) = (measurement.bytes, vec![measurement]);
                points.insert(place, Point { bytes, measurements, source: Source::Mean });
            }
        }
    }

    /// All points.
    pub(super) fn points(&self) -> impl Iterator<Item = &Point<'a>> {
        self.series.iter().flat_map(|series| &series.points)
    }

    /// True when it has measurements of this placement.
    pub(super) fn has(&self, placement: Placement) -> bool {
        self.series.iter().any(|series| series.placement == placement)
    }

    /// Maximum number of measurements of one size by one run.
    pub(super) fn repeats(&self) -> usize {
        self.points().filter(|point| point.bytes > 0).map(|point| point.measurements.len()).max().unwrap_or(0)
    }
}

impl Point<'_> {
    /// The value in a chart, the median of several measurements; `None` when none of them is a number.
    pub(super) fn value(&self, metric: Metric) -> Option<f64> {
        self.of(metric, self.source)
    }

    /// The value as in the table of a run: [`value`](Self::value) from the mean of all operations.
    pub(super) fn mean(&self, metric: Metric) -> Option<f64> {
        self.of(metric, Source::Mean)
    }

    fn of(&self, metric: Metric, source: Source) -> Option<f64> {
        let timed = self.measurements.iter().filter(|each| each.time_us.is_finite() && each.time_us > 0.0);
        let value = |each: &&Measurement| match (source, &each.statistics) {
            (Source::Median, Some(found)) => Some(metric.at(each, found.median_us)),
            (Source::Median, None) => None,
            (Source::Mean, _) => Some(metric.of(each)),
        };
        let mut values: Vec<f64> =
            timed.filter_map(value).filter(|value| value.is_finite() && *value >= 0.0).collect();
        values.sort_unstable_by(f64::total_cmp);
        let middle = values.len() / 2;
        let upper = *values.get(middle)?;
        Some(if values.len() % 2 == 1 { upper } else { f64::midpoint(values[middle - 1], upper) })
    }

    /// The value, if a chart can show it.
    pub(super) fn drawn(&self, metric: Metric, scale: Scale) -> Option<f64> {
        let scale = metric.scale(scale);
        self.value(metric).filter(|&value| self.bytes > 0 && Axis::holds(scale, value))
    }

    /// The lowest and highest value of the operations whose median is drawn.
    pub(super) fn spread(&self, metric: Metric, spread: Spread, scale: Scale) -> Option<(f64, f64)> {
        if self.source == Source::Mean {
            return None;
        }
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for measurement in &self.measurements {
            let statistics = measurement.statistics.as_ref()?;
            let slowest = match spread {
                Spread::None => return None,
                Spread::P95 => statistics.p95_us,
                Spread::Max => statistics.max_us,
            };
            for time_us in [statistics.min_us, slowest] {
                let value = metric.at(measurement, time_us);
                low = low.min(value);
                high = high.max(value);
            }
        }
        let scale = metric.scale(scale);
        (Axis::holds(scale, low) && Axis::holds(scale, high)).then_some((low, high))
    }

    /// True when a measurement has the algorithm that the library chose.
    pub(super) fn is_explained(&self) -> bool {
        self.measurements.iter().any(|each| each.algorithm.is_some())
    }

    /// Wrong elements; `None` when nothing was verified.
    pub(super) fn wrong(&self) -> Option<u64> {
        let verified = self.measurements.iter().filter_map(|each| each.wrong);
        verified.reduce(u64::saturating_add)
    }

    /// True when an element is wrong.
    pub(super) fn is_wrong(&self) -> bool {
        self.wrong().is_some_and(|wrong| wrong > 0)
    }

    /// The time that is drawn.
    pub(super) fn source(&self) -> Source {
        self.source
    }

    /// The algorithm that the library chose, from the first measurement that has it.
    pub(super) fn algorithm(&self) -> Option<&Algorithm> {
        self.measurements.iter().find_map(|each| each.algorithm.as_ref())
    }

    /// The algorithm that the library chose: `ring, ll128, 16 channels`. Several, if the choice changed
    /// between measurements.
    pub(super) fn algorithms(&self) -> Option<String> {
        let mut found: Vec<String> = Vec::new();
        for chosen in self.measurements.iter().filter_map(|each| each.algorithm.as_ref()) {
            let protocol = chosen.protocol.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
            let channels = match chosen.channels {
                Some(1) => ", 1 channel".to_owned(),
                Some(count) => format!(", {count} channels"),
                None => String::new(),
            };
            let text = format!("{}{protocol}{channels}", chosen.algorithm);
            if !found.contains(&text) {
                found.push(text);
            }
        }
        (!found.is_empty()).then(|| found.join(" | "))
    }

    /// The numbers, part by part.
    pub(super) fn details(&self) -> Vec<String> {
        let mut parts = Vec::new();
        if self.source == Source::Median {
            parts.push(format!("median {}", numbers(|metric| self.value(metric)).join(", ")));
            if let [one] = self.measurements[..]
                && let Some(found) = &one.statistics
            {
                let times = [
                    ("min", found.min_us),
                    ("p95", found.p95_us),
                    ("p99", found.p99_us),
                    ("max", found.max_us),
                ];
                let times = times.map(|(name, us)| format!("{name} {}", text::digits(us)));
                parts.push(format!("{} µs", times.join(", ")));
            }
            parts.push(format!("mean of all operations: {}", numbers(|metric| self.mean(metric)).join(", ")));
        } else {
            parts.extend(numbers(|metric| self.value(metric)));
        }
        if self.measurements.len() > 1 {
            parts.push(format!("median of {} measurements", self.measurements.len()));
        }
        parts.extend(self.algorithms());
        match self.wrong() {
            None => parts.push("not verified".to_owned()),
            Some(0) => {}
            Some(wrong) => parts.push(format!("WRONG DATA: {}", text::counted(wrong as usize, "element"))),
        }
        parts
    }
}

impl Metric {
    /// The metric's value in a measurement.
    pub(super) fn of(self, measurement: &Measurement) -> f64 {
        match self {
            Self::Busbw => measurement.busbw_gbps,
            Self::Algbw => measurement.algbw_gbps,
            Self::Time => measurement.time_us,
        }
    }

    /// The metric's value if the operations had taken `time_us`. A bandwidth is inverse to the time.
    fn at(self, measurement: &Measurement, time_us: f64) -> f64 {
        match self {
            Self::Time => time_us,
            Self::Busbw | Self::Algbw => self.of(measurement) * measurement.time_us / time_us,
        }
    }

    /// The scale of its axis: always logarithmic for times.
    pub(super) fn scale(self, bandwidths: Scale) -> Scale {
        match self {
            Self::Time => Scale::Log,
            Self::Busbw | Self::Algbw => bandwidths,
        }
    }

    /// The axis of values between two positions; `None` when there are none.
    pub(super) fn axis(self, values: &[f64], bandwidths: Scale, pixels: (f64, f64)) -> Option<Axis> {
        match self {
            Self::Time => Axis::of_times(values, pixels),
            Self::Busbw | Self::Algbw => Axis::of_bandwidths(values, bandwidths, pixels),
        }
    }

    /// Its name in headings.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Busbw => "bus bandwidth",
            Self::Algbw => "algorithm bandwidth",
            Self::Time => "time per operation",
        }
    }
}

/// Chooses one source for all lines, so that they can be compared: medians when all measurements have
/// statistics, means otherwise.
fn source(sections: &[Section], spread: Spread) -> Source {
    let sampled = |point: &Point| point.measurements.iter().all(|each| each.statistics.is_some());
    let all = sections.iter().flat_map(Section::points).all(sampled);
    if all && spread != Spread::None { Source::Median } else { Source::Mean }
}

/// The labels, with numbers appended to equal ones.
fn distinct(runs: &[(String, Run)]) -> Vec<(String, &Run)> {
    let mut named: Vec<(String, &Run)> = Vec::new();
    for (label, run) in runs {
        let numbered = (2..).map(|number| format!("{label} ({number})"));
        let taken = |name: &String| named.iter().any(|(other, _)| other == name);
        let name = std::iter::once(label.clone()).chain(numbered).find(|name| !taken(name));
        named.push((name.unwrap_or_else(|| label.clone()), run));
    }
    named
}

/// The metrics that have a value: `time 12.50 µs`, `algbw 83.89 GB/s`, ...
fn numbers(value: impl Fn(Metric) -> Option<f64>) -> Vec<String> {
    let shown =
        [(Metric::Time, "time", "µs"), (Metric::Algbw, "algbw", "GB/s"), (Metric::Busbw, "busbw", "GB/s")];
    let text = |(metric, name, unit)| Some(format!("{name} {} {unit}", text::digits(value(metric)?)));
    shown.into_iter().filter_map(text).collect()
}
