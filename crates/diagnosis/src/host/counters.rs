//! Counters of devices, read twice.

use serde::{Deserialize, Serialize};

use crate::examination::{Body, Section};
use crate::words::or_dash;

/// A counter of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counter {
    /// The device and its part: `mlx5_0 port 1`, `GPU 3 NVLink 7`.
    pub device: String,
    /// The counter: `link_downed`.
    pub name: String,
    /// Value at the first reading.
    pub value: u64,
    /// Growth until the second reading, or `None` without one.
    pub growth: Option<u64>,
}

impl Counter {
    /// Creates a counter with one reading.
    pub fn new(device: impl Into<String>, name: impl Into<String>, value: u64) -> Self {
        Self { device: device.into(), name: name.into(), value, growth: None }
    }

    /// Returns true if the counter grew between the two readings.
    pub fn has_grown(&self) -> bool {
        self.growth.is_some_and(|growth| growth > 0)
    }
}

/// Completes the counters of a first reading with a second one. A counter reset in between counts from zero.
pub fn complete_counters(first: &mut [Counter], second: &[Counter]) {
    for (index, counter) in first.iter_mut().enumerate() {
        let same = |other: &&Counter| other.device == counter.device && other.name == counter.name;
        // Readings of one device have one order, so the search is for devices added or removed in between.
        let later = second.get(index).filter(same).or_else(|| second.iter().find(same));
        counter.growth = later.map(|later| later.value.checked_sub(counter.value).unwrap_or(later.value));
    }
}

/// Returns a table of the nonzero counters.
pub(super) fn counter_table(title: &str, device: &str, counters: &[Counter]) -> Option<Section> {
    let counted = counters.iter().filter(|counter| counter.value > 0 || counter.has_grown());
    let row = |counter: &Counter| {
        vec![counter.device.clone(), counter.name.clone(), counter.value.to_string(), or_dash(counter.growth)]
    };
    let rows: Vec<Vec<String>> = counted.map(row).collect();
    let columns = [device, "counter", "value", "growth"].map(str::to_owned).to_vec();
    (!rows.is_empty()).then(|| Section { title: title.to_owned(), body: Body::Table { columns, rows } })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_of_the_same_counter_even_when_others_came_or_went() {
        let mut first = [
            Counter::new("a", "x", 5),
            Counter::new("gone", "x", 5),
            Counter::new("b", "x", 9),
            Counter::new("c", "x", 7),
        ];
        let second = [Counter::new("a", "x", 5), Counter::new("b", "x", 12), Counter::new("c", "x", 2)];
        complete_counters(&mut first, &second);
        assert_eq!(first.each_ref().map(|counter| counter.growth), [Some(0), None, Some(3), Some(2)]);
        assert!(!first[0].has_grown() && !first[1].has_grown() && first[2].has_grown());
    }
}
