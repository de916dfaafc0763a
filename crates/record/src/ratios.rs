//! Summary of the ratios of two backends' times (`--vs`).

use crate::run::Measurement;
use crate::statistics::geometric_mean;

/// Ratios of the measured times to the baseline's, collected one at a time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Ratios {
    medians: Vec<f64>,
    bests: Vec<f64>,
    /// The highest ratio of medians, and its measurement in words.
    worst: Option<(f64, String)>,
}

impl Ratios {
    /// Adds a measurement. Measurements without a baseline, without data, or without time are ignored.
    pub fn add_measurement(&mut self, measurement: &Measurement) {
        let Some(versus) = &measurement.versus else { return };
        let is_ratio = |ratio: f64| ratio.is_finite() && ratio > 0.0;
        if measurement.bytes == 0 || !is_ratio(versus.ratio) || !is_ratio(versus.best_ratio) {
            return;
        }
        self.medians.push(versus.ratio);
        self.bests.push(versus.best_ratio);
        if self.worst.as_ref().is_none_or(|(worst, _)| *worst < versus.ratio) {
            self.worst = Some((versus.ratio, describe_measurement(measurement)));
        }
    }

    /// Describes the ratios: `medians 0.874, bests 0.851 in geometric mean of 28; worst 1.121 at 4096 bytes
    /// of float sum, in place`. `None` without ratios.
    pub fn summary_text(&self) -> Option<String> {
        let (worst, what) = self.worst.as_ref()?;
        Some(format!(
            "medians {:.3}, bests {:.3} in geometric mean of {}; worst {worst:.3} at {what}",
            geometric_mean(&self.medians)?,
            geometric_mean(&self.bests)?,
            self.medians.len()
        ))
    }
}

fn describe_measurement(measurement: &Measurement) -> String {
    let Measurement { bytes, data_type, op, root, placement, .. } = measurement;
    let op = op.as_ref().map(|op| format!(" {op}")).unwrap_or_default();
    let root = root.map(|root| format!(", root {root}")).unwrap_or_default();
    format!("{bytes} bytes of {data_type}{op}{root}, {}", placement.placement_words())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Placement, Versus};
    use crate::sample;

    fn measurement(bytes: u64, ratio: f64, best_ratio: f64) -> Measurement {
        let full = sample::sample_measurement("allreduce", Placement::InPlace, bytes, 10.0);
        let versus = full.versus.clone().map(|versus| Versus { ratio, best_ratio, ..versus });
        Measurement { versus, ..full }
    }

    #[test]
    fn the_mean_of_ratios_is_geometric_and_the_worst_is_named() {
        let mut ratios = Ratios::default();
        assert_eq!(ratios.summary_text(), None);
        for (bytes, ratio, best) in [(8, 0.5, 0.25), (16, 2.0, 1.0), (32, 1.0, 0.5)] {
            ratios.add_measurement(&measurement(bytes, ratio, best));
        }
        let expected = "medians 1.000, bests 0.500 in geometric mean of 3; worst 2.000 at 16 bytes of float \
                        sum, in place";
        assert_eq!(ratios.summary_text().as_deref(), Some(expected));
        // Measurements without a ratio are ignored.
        let before = ratios.clone();
        for nothing in [
            measurement(0, 9.0, 9.0),
            measurement(8, f64::NAN, 1.0),
            measurement(8, f64::INFINITY, 1.0),
            measurement(8, 0.0, 1.0),
            Measurement { versus: None, ..measurement(8, 9.0, 9.0) },
        ] {
            ratios.add_measurement(&nothing);
        }
        assert_eq!(ratios, before);
    }
}
