//! Axes: positions of values, and ticks.

use super::{Metric, Scale, text};

/// Smallest drawn value, except for 0 on a linear axis.
pub(super) const SMALLEST: f64 = 1e-12;
/// Largest drawn value.
pub(super) const LARGEST: f64 = 1e15;

/// Minimum vertical distance of two labels.
const ROW: f64 = 26.0;
/// Minimum horizontal distance of the centres of two labels: the width of `512 KiB` in a wide font, and a
/// gap.
const COLUMN: f64 = 60.0;

/// A line across the plot.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Tick {
    /// Its value.
    pub(super) value: f64,
    /// Its label; `None` without space for one.
    pub(super) label: Option<String>,
}

/// One axis: values from `low` to `high` are drawn between the positions `from` and `to`.
#[derive(Clone, Debug)]
pub(super) struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    /// Its ticks, ascending.
    pub(super) ticks: Vec<Tick>,
}

impl Axis {
    /// Returns the axis of message sizes, which must not be 0; `None` without sizes.
    pub(super) fn of_sizes(sizes: &[u64], (from, to): (f64, f64)) -> Option<Self> {
        let (smallest, largest) = (*sizes.iter().min()?, *sizes.iter().max()?);
        let (mut low, mut high) = (smallest as f64, largest as f64);
        if smallest == largest {
            (low, high) = (low / 2.0, high * 2.0);
        }
        let mut axis = Self { scale: Scale::Log, low, high, from, to, ticks: Vec::new() };
        let exponents = low.log2().ceil() as i32..=high.log2().floor() as i32;
        let fits = |step: i32| axis.value_position(2f64.powi(step)) - axis.value_position(1.0) >= COLUMN;
        let step = [1, 2, 3, 5, 10].into_iter().find(|&step| fits(step)).unwrap_or(20);
        let labelled = exponents.clone().filter(|exponent| exponent % step == 0).count();
        axis.ticks = if labelled >= 2 && smallest != largest {
            let label =
                |exponent: i32| (exponent % step == 0).then(|| text::size_text(2f64.powi(exponent) as u64));
            exponents.map(|exponent| Tick { value: 2f64.powi(exponent), label: label(exponent) }).collect()
        } else {
            // Fewer than two labelled powers of two: ticks at the sizes themselves.
            let mut sorted = sizes.to_vec();
            sorted.sort_unstable();
            sorted.dedup();
            let mut free_from = f64::NEG_INFINITY;
            let tick = |size: u64| {
                let label = text::size_text(size);
                let (at, half) = (axis.value_position(size as f64), 4.0 * label.len() as f64 + 6.0);
                (at - half >= free_from).then(|| {
                    free_from = at + half;
                    Tick { value: size as f64, label: Some(label) }
                })
            };
            sorted.into_iter().filter_map(tick).collect()
        };
        Some(axis)
    }

    /// Returns the axis of a metric's values; `None` without values.
    pub(super) fn of_values(
        metric: Metric,
        bandwidths: Scale,
        values: &[f64],
        pixels: (f64, f64),
    ) -> Option<Self> {
        match (metric, bandwidths) {
            (Metric::Time, _) => Self::logarithmic_axis(values, pixels, time_text),
            (_, Scale::Log) => Self::logarithmic_axis(values, pixels, number_text),
            (_, Scale::Linear) => Self::linear_axis(values, pixels),
        }
    }

    /// Returns the position of a value.
    pub(super) fn value_position(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear => (value - self.low) / (self.high - self.low),
            Scale::Log => (value / self.low).ln() / (self.high / self.low).ln(),
        };
        self.from + share * (self.to - self.from)
    }

    /// Returns true when an axis of this scale can show the value.
    pub(super) fn holds_value(scale: Scale, value: f64) -> bool {
        (SMALLEST..=LARGEST).contains(&value) || (scale == Scale::Linear && value == 0.0)
    }

    fn linear_axis(values: &[f64], (from, to): (f64, f64)) -> Option<Self> {
        let largest = values.iter().copied().reduce(f64::max)?;
        let most = ((to - from).abs() / ROW / 1.5).max(2.0);
        let step = if largest > 0.0 { round_step(largest / most) } else { 1.0 };
        let count = (largest / step).ceil().max(1.0);
        let ticks = (0..=count as u32)
            .map(|index| f64::from(index) * step)
            .map(|value| Tick { value, label: Some(number_text(value)) })
            .collect();
        Some(Self { scale: Scale::Linear, low: 0.0, high: count * step, from, to, ticks })
    }

    fn logarithmic_axis(values: &[f64], (from, to): (f64, f64), label: fn(f64) -> String) -> Option<Self> {
        let smallest = values.iter().copied().reduce(f64::min)?;
        let largest = values.iter().copied().reduce(f64::max)?;
        // Outwards to the next 1, 2 or 5, so no value is on the frame and the axis is not empty.
        let low = *list_steps(smallest / 10.0, smallest * 0.97).last()?;
        let high = *list_steps(largest * 1.03, largest * 10.0).first()?;
        let mut axis = Self { scale: Scale::Log, low, high, from, to, ticks: Vec::new() };
        let distance = |factor: f64| (axis.value_position(low * factor) - axis.value_position(low)).abs();
        let decades =
            [1, 2, 3, 5, 10].into_iter().find(|&step| distance(10f64.powi(step)) >= ROW).unwrap_or(20);
        // Labels at 1, 2 and 5 where all fit (the distance from 1 to 2 is the shortest), else at powers of
        // ten.
        let fine = distance(2.0) >= ROW;
        axis.ticks = list_steps(low, high)
            .into_iter()
            .filter(|&value| fine || decades == 1 || is_power(value, decades))
            .map(|value| Tick { value, label: (fine || is_power(value, decades)).then(|| label(value)) })
            .collect();
        Some(axis)
    }
}

/// Returns true for a power of `10^decades`.
fn is_power(value: f64, decades: i32) -> bool {
    let exponent = value.log10();
    (exponent - exponent.round()).abs() < 1e-6 && exponent.round() as i32 % decades == 0
}

/// Returns all of 1, 2 and 5 times powers of ten from `low` to `high`.
fn list_steps(low: f64, high: f64) -> Vec<f64> {
    let inside = low * (1.0 - 1e-9)..=high * (1.0 + 1e-9);
    (low.log10().floor() as i32..=high.log10().floor() as i32)
        .flat_map(|exponent| [1.0, 2.0, 5.0].map(|first: f64| decimal_value(first, exponent)))
        .filter(|value| inside.contains(value))
        .collect()
}

/// Returns `first * 10^exponent`, without the rounding error of a negative power.
fn decimal_value(first: f64, exponent: i32) -> f64 {
    if exponent < 0 { first / 10f64.powi(-exponent) } else { first * 10f64.powi(exponent) }
}

/// Returns the smallest of 1, 2, 2.5 and 5 times a power of ten not below `least`.
fn round_step(least: f64) -> f64 {
    let exponent = least.log10().floor() as i32;
    let firsts = [1.0, 2.0, 2.5, 5.0, 10.0];
    firsts
        .map(|first| decimal_value(first, exponent))
        .into_iter()
        .find(|&step| step >= least)
        .unwrap_or(least)
}

/// Returns a time in its unit: `20 µs`, `5 ms`, `100 ns`.
fn time_text(us: f64) -> String {
    const UNITS: [(f64, &str); 3] = [(1e6, "s"), (1e3, "ms"), (1.0, "µs")];
    let (factor, unit) =
        UNITS.into_iter().find(|(factor, _)| us >= factor * (1.0 - 1e-9)).unwrap_or((1e-3, "ns"));
    format!("{} {unit}", number_text(us / factor))
}

/// Returns the text of a tick's value, without digits from rounding errors.
fn number_text(value: f64) -> String {
    if value != 0.0 && !(1e-4..1e6).contains(&value.abs()) {
        return format!("{value:.0e}");
    }
    let text = format!("{value:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(axis: &Axis) -> Vec<&str> {
        axis.ticks.iter().filter_map(|tick| tick.label.as_deref()).collect()
    }

    fn assert_inside_and_monotone(axis: &Axis) {
        let positions: Vec<f64> = axis.ticks.iter().map(|tick| axis.value_position(tick.value)).collect();
        let (low, high) = (axis.from.min(axis.to), axis.from.max(axis.to));
        assert!(positions.iter().all(|at| (low - 1e-6..=high + 1e-6).contains(at)), "{axis:?} {positions:?}");
        let direction = (axis.to - axis.from).signum();
        assert!(positions.windows(2).all(|pair| (pair[1] - pair[0]) * direction > 0.0), "{positions:?}");
    }

    #[test]
    fn sizes_of_a_full_sweep_have_labels_at_every_third_power() {
        let sizes: Vec<u64> = (3..=33).map(|exponent| 1 << exponent).collect();
        let axis = Axis::of_sizes(&sizes, (60.0, 740.0)).unwrap();
        assert_eq!(
            labels(&axis),
            [
                "8 B", "64 B", "512 B", "4 KiB", "32 KiB", "256 KiB", "2 MiB", "16 MiB", "128 MiB", "1 GiB",
                "8 GiB"
            ]
        );
        assert_eq!(axis.ticks.len(), 31);
        assert!(
            (axis.value_position(8.0) - 60.0).abs() < 1e-9
                && (axis.value_position(8.0 * 1024f64.powi(3)) - 740.0).abs() < 1e-9
        );
        // The middle of 2^3 and 2^33.
        assert!((axis.value_position(262_144.0) - 400.0).abs() < 1e-9);
        assert_inside_and_monotone(&axis);
    }

    #[test]
    fn one_size_and_sizes_between_powers_have_ticks() {
        let axis = Axis::of_sizes(&[1000], (0.0, 600.0)).unwrap();
        assert_eq!(labels(&axis), ["1000 B"]);
        assert!((axis.value_position(1000.0) - 300.0).abs() < 1e-9);
        let axis = Axis::of_sizes(&[1100, 1300, 1500, 1100], (0.0, 600.0)).unwrap();
        assert_eq!(labels(&axis), ["1100 B", "1300 B", "1500 B"]);
        let axis = Axis::of_sizes(&(1000..=1100).collect::<Vec<_>>(), (0.0, 600.0)).unwrap();
        assert!((4..=10).contains(&labels(&axis).len()), "{:?}", labels(&axis));
        assert_inside_and_monotone(&axis);
        let axis = Axis::of_sizes(&[1, u64::MAX], (0.0, 600.0)).unwrap();
        assert!(labels(&axis).contains(&"1 B") && labels(&axis).contains(&"1 PiB"), "{:?}", labels(&axis));
        assert_inside_and_monotone(&axis);
        assert!(Axis::of_sizes(&[], (0.0, 600.0)).is_none());
    }

    #[test]
    fn times_are_labelled_in_their_units() {
        let axis = Axis::of_values(Metric::Time, Scale::Linear, &[12.7, 40_982.5], (300.0, 0.0)).unwrap();
        assert_eq!(labels(&axis), ["10 µs", "100 µs", "1 ms", "10 ms"]);
        assert_eq!(axis.ticks.len(), 12);
        assert!(
            (axis.value_position(10.0) - 300.0).abs() < 1e-9 && axis.value_position(50_000.0).abs() < 1e-9
        );
        assert_inside_and_monotone(&axis);
        assert_inside_and_monotone(
            &Axis::of_values(Metric::Time, Scale::Linear, &[SMALLEST, LARGEST], (300.0, 0.0)).unwrap(),
        );
        let one = Axis::of_values(Metric::Time, Scale::Linear, &[100.0], (300.0, 0.0)).unwrap();
        assert_eq!(labels(&one), ["50 µs", "100 µs", "200 µs"]);
        assert_inside_and_monotone(&one);
    }

    #[test]
    fn bandwidths_begin_at_zero_or_go_by_powers_of_ten() {
        let axis = Axis::of_values(Metric::Busbw, Scale::Linear, &[0.0, 366.85], (300.0, 0.0)).unwrap();
        assert_eq!(labels(&axis), ["0", "50", "100", "150", "200", "250", "300", "350", "400"]);
        assert!((axis.value_position(100.0) - 225.0).abs() < 1e-9);
        let axis = Axis::of_values(Metric::Busbw, Scale::Log, &[0.001, 366.85], (300.0, 0.0)).unwrap();
        assert_eq!(labels(&axis), ["0.001", "0.01", "0.1", "1", "10", "100"]);
        let axis = Axis::of_values(Metric::Busbw, Scale::Linear, &[0.0], (300.0, 0.0)).unwrap();
        assert_eq!(labels(&axis), ["0", "1"]);
        assert_inside_and_monotone(
            &Axis::of_values(Metric::Busbw, Scale::Linear, &[LARGEST], (300.0, 0.0)).unwrap(),
        );
        assert_inside_and_monotone(
            &Axis::of_values(Metric::Busbw, Scale::Linear, &[SMALLEST], (300.0, 0.0)).unwrap(),
        );
    }
}
