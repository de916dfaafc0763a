//! The model of a plot: the measurements of all runs, by collective and size.

use super::axis::Axis;
use super::{Metric, NothingToDraw, PlotOptions, Scale, Spread, text};
use record::matching::TableKey;
use record::statistics::find_median;
use record::{Algorithm, Measurement, Placement, Run};

/// The content of a plot.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    /// The runs, with unique names.
    pub(super) runs: Vec<(String, &'a Run)>,
    /// One per collective, type, operator and root, in the order of the first measurement.
    pub(super) sections: Vec<Section<'a>>,
    /// The options of the drawing.
    pub(super) options: &'a PlotOptions,
    /// The metrics of the options, each once.
    pub(super) metrics: Vec<Metric>,
    /// True when lines show medians of operations that were timed one by one, with their range as a band. The
    /// mean time can be that of other operations, and lie outside of this range.
    pub(super) medians: bool,
}

/// The measurements that share charts.
#[derive(Debug)]
pub(super) struct Section<'a> {
    pub(super) key: TableKey,
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
    /// See [`Picture::medians`].
    is_median: bool,
}

impl<'a> Picture<'a> {
    /// Sorts measurements into sections.
    pub(super) fn new(runs: &'a [(String, Run)], options: &'a PlotOptions) -> Result<Self, NothingToDraw> {
        if runs.iter().all(|(_, run)| run.measurements.is_empty()) {
            return Err(NothingToDraw::NoMeasurement);
        }
        let measurements = || {
            let all = runs.iter().enumerate();
            let all =
                all.flat_map(|(index, (_, run))| run.measurements.iter().map(move |each| (index, each)));
            all.filter(|(_, each)| options.placements.has_placement(each.placement))
        };
        // All lines show medians, or all show means, so that they can be compared.
        let medians =
            options.spread != Spread::None && measurements().all(|(_, each)| each.statistics.is_some());
        let mut sections: Vec<Section<'a>> = Vec::new();
        for (run, measurement) in measurements() {
            let key = TableKey::from_measurement(measurement);
            let index = sections.iter().position(|section| section.key == key).unwrap_or_else(|| {
                sections.push(Section { key, series: Vec::new() });
                sections.len() - 1
            });
            sections[index].add_measurement(run, measurement, medians);
        }
        for section in &mut sections {
            // Out-of-place before in-place, so that a legend and a table have the order of the runs.
            section.series.sort_by_key(|series| (series.run, series.placement));
        }
        let mut metrics: Vec<Metric> = Vec::new();
        for &metric in &options.metrics {
            if !metrics.contains(&metric) {
                metrics.push(metric);
            }
        }
        let points: Vec<&Point> = sections.iter().flat_map(Section::all_points).collect();
        if sections.is_empty() {
            return Err(NothingToDraw::NoPlacement);
        } else if points.iter().all(|point| point.bytes == 0) {
            return Err(NothingToDraw::OnlySizeZero);
        } else if !points
            .iter()
            .any(|point| metrics.iter().any(|&metric| point.drawable_value(metric, options.scale).is_some()))
        {
            return Err(NothingToDraw::NoValue);
        }
        Ok(Self { runs: distinct_labels(runs), sections, options, metrics, medians })
    }

    /// The name of a section: its collective, and where several sections have that collective, its
    /// [detail](Section::detail).
    pub(super) fn section_name(&self, section: &Section) -> String {
        let collective = &section.key.collective;
        let alike = self.sections.iter().filter(|other| other.key.collective == *collective);
        if alike.count() == 1 { collective.clone() } else { format!("{collective} {}", section.detail()) }
    }
}

impl<'a> Section<'a> {
    fn add_measurement(&mut self, run: usize, measurement: &'a Measurement, is_median: bool) {
        let (placement, bytes) = (measurement.placement, measurement.bytes);
        let known = self.series.iter().position(|each| each.run == run && each.placement == placement);
        let index = known.unwrap_or_else(|| {
            self.series.push(Series { run, placement, points: Vec::new() });
            self.series.len() - 1
        });
        let points = &mut self.series[index].points;
        match points.binary_search_by_key(&bytes, |point| point.bytes) {
            Ok(found) => points[found].measurements.push(measurement),
            Err(place) => points.insert(place, Point { bytes, measurements: vec![measurement], is_median }),
        }
    }

    /// Data type, operator, root, group and pair: `float, sum, root 0`.
    pub(super) fn detail(&self) -> String {
        let op = self.key.op.as_ref().map(|op| format!(", {op}")).unwrap_or_default();
        let root = self.key.root.map(|root| format!(", root {root}")).unwrap_or_default();
        let group = self.key.group.map(|group| format!(", group {group}")).unwrap_or_default();
        let pair = self.key.pair.map(|[one, other]| format!(", ranks {one} and {other}"));
        format!("{}{op}{root}{group}{}", self.key.data_type, pair.unwrap_or_default())
    }

    /// All points.
    pub(super) fn all_points(&self) -> impl Iterator<Item = &Point<'a>> + Clone {
        self.series.iter().flat_map(|series| &series.points)
    }

    /// Maximum number of measurements of one size by one run.
    pub(super) fn most_repeats(&self) -> usize {
        self.all_points()
            .filter(|point| point.bytes > 0)
            .map(|point| point.measurements.len())
            .max()
            .unwrap_or(0)
    }
}

impl Point<'_> {
    /// The value in a chart, the median of several measurements; `None` when none of them is a number.
    pub(super) fn chart_value(&self, metric: Metric) -> Option<f64> {
        if !self.is_median {
            return self.mean_value(metric);
        }
        self.median_value(|each| Some(metric.value_if_time(each, each.statistics.as_ref()?.median_us)))
    }

    /// The value as in the table of a run: [`chart_value`](Self::chart_value) from the mean of all
    /// operations.
    pub(super) fn mean_value(&self, metric: Metric) -> Option<f64> {
        self.median_value(|each| Some(metric.value_of(each)))
    }

    fn median_value(&self, value: impl Fn(&Measurement) -> Option<f64>) -> Option<f64> {
        let timed = self.measurements.iter().filter(|each| each.time_us.is_finite() && each.time_us > 0.0);
        let values = timed.filter_map(|each| value(each)).filter(|value| value.is_finite() && *value >= 0.0);
        find_median(&values.collect::<Vec<f64>>())
    }

    /// The value, if a chart can show it.
    pub(super) fn drawable_value(&self, metric: Metric, scale: Scale) -> Option<f64> {
        let scale = metric.axis_scale(scale);
        self.chart_value(metric).filter(|&value| self.bytes > 0 && Axis::holds_value(scale, value))
    }

    /// The lowest and highest value of the operations whose median is drawn.
    pub(super) fn value_spread(&self, metric: Metric, options: &PlotOptions) -> Option<(f64, f64)> {
        if !self.is_median {
            return None;
        }
        let (mut low, mut high) = (f64::INFINITY, f64::NEG_INFINITY);
        for measurement in &self.measurements {
            let statistics = measurement.statistics.as_ref()?;
            let slowest = match options.spread {
                Spread::None => return None,
                Spread::P95 => statistics.p95_us,
                Spread::Max => statistics.max_us,
            };
            for time_us in [statistics.min_us, slowest] {
                let value = metric.value_if_time(measurement, time_us);
                low = low.min(value);
                high = high.max(value);
            }
        }
        let scale = metric.axis_scale(options.scale);
        (Axis::holds_value(scale, low) && Axis::holds_value(scale, high)).then_some((low, high))
    }

    /// Wrong elements; `None` when nothing was verified.
    pub(super) fn wrong_elements(&self) -> Option<u64> {
        let verified = self.measurements.iter().filter_map(|each| each.wrong);
        verified.reduce(u64::saturating_add)
    }

    /// True when an element is wrong.
    pub(super) fn is_wrong(&self) -> bool {
        self.wrong_elements().is_some_and(|wrong| wrong > 0)
    }

    /// The algorithm that the library chose, from the first measurement that has it.
    pub(super) fn first_algorithm(&self) -> Option<&Algorithm> {
        self.measurements.iter().find_map(|each| each.algorithm.as_ref())
    }

    /// The algorithm that the library chose: `ring, ll128, 16 channels`. Several, if the choice changed
    /// between measurements.
    pub(super) fn algorithms_text(&self) -> Option<String> {
        let mut found: Vec<String> = Vec::new();
        for chosen in self.measurements.iter().filter_map(|each| each.algorithm.as_ref()) {
            let Algorithm { algorithm, protocol, channels } = chosen;
            let protocol = protocol.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
            let channels = channels.map(|count| format!(", {}", text::count_text(count as usize, "channel")));
            let text = format!("{algorithm}{protocol}{}", channels.unwrap_or_default());
            if !found.contains(&text) {
                found.push(text);
            }
        }
        (!found.is_empty()).then(|| found.join(" | "))
    }

    /// The numbers, part by part.
    pub(super) fn list_details(&self) -> Vec<String> {
        let mut parts = Vec::new();
        if self.is_median {
            parts.push(format!("median {}", metric_numbers(|metric| self.chart_value(metric)).join(", ")));
            if let [one] = self.measurements[..]
                && let Some(found) = &one.statistics
            {
                let times = [
                    ("min", found.min_us),
                    ("p95", found.p95_us),
                    ("p99", found.p99_us),
                    ("max", found.max_us),
                ];
                let times = times.map(|(name, us)| format!("{name} {}", text::value_text(us)));
                parts.push(format!("{} µs", times.join(", ")));
            }
            parts.push(format!(
                "mean of all operations: {}",
                metric_numbers(|metric| self.mean_value(metric)).join(", ")
            ));
        } else {
            parts.extend(metric_numbers(|metric| self.chart_value(metric)));
        }
        if self.measurements.len() > 1 {
            parts.push(format!("median of {} measurements", self.measurements.len()));
        }
        parts.extend(self.algorithms_text());
        match self.wrong_elements() {
            None => parts.push("not verified".to_owned()),
            Some(0) => {}
            Some(wrong) => parts.push(format!("WRONG DATA: {}", text::count_text(wrong as usize, "element"))),
        }
        parts
    }
}

/// The labels, with numbers appended to equal ones.
fn distinct_labels(runs: &[(String, Run)]) -> Vec<(String, &Run)> {
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
fn metric_numbers(value: impl Fn(Metric) -> Option<f64>) -> Vec<String> {
    let shown = [(Metric::Time, "µs"), (Metric::Algbw, "GB/s"), (Metric::Busbw, "GB/s")];
    let text = |(metric, unit): (Metric, _)| {
        Some(format!("{} {} {unit}", metric.metric_name(), text::value_text(value(metric)?)))
    };
    shown.into_iter().filter_map(text).collect()
}
