//! Rows of a collective: the median of all cycles.

use record::statistics::find_median;
use record::{Placement, Run};
use serde::Serialize;

/// Values that distinguish the rows of a collective.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RowKey {
    /// The type, by NCCL's name.
    pub data_type: String,
    /// The operator; absent where nothing is reduced.
    pub op: Option<String>,
    /// The root.
    pub root: Option<usize>,
    /// Placement of the input.
    pub placement: Placement,
    /// Size in bytes.
    pub bytes: u64,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    /// Values that distinguish it.
    #[serde(flatten)]
    pub key: RowKey,
    /// Bus bandwidth in GB/s, median of the cycles.
    pub busbw_gbps: f64,
}

impl Row {
    /// Returns true when expectations are meant for its type and operator: a sum of numbers of at least 16
    /// bits is bound by links, not by arithmetic.
    pub(super) fn is_comparable(&self) -> bool {
        let is_fast_type = !self.key.data_type.starts_with("f8");
        is_fast_type && self.key.op.as_deref().is_none_or(|op| op == "sum")
    }

    /// Returns true when the row has at least this bandwidth, within half of the last printed digit.
    pub(super) fn reaches(&self, least_gbps: f64) -> bool {
        self.busbw_gbps + 0.005 >= least_gbps
    }
}

/// Returns the rows of a collective in the order of their first measurements, without those in place whose
/// result is undefined, and without those of zero bandwidth.
pub(super) fn collect_rows(run: &Run, collective: &str) -> Vec<Row> {
    let has_in_place = collective
        .parse::<record::collective::Collective>()
        .map_or(true, record::collective::Collective::has_in_place);
    let mut rows: Vec<(RowKey, Vec<f64>)> = Vec::new();
    for measurement in run.measurements.iter().filter(|each| each.collective == collective) {
        let is_defined = has_in_place || measurement.placement == Placement::OutOfPlace;
        if !is_defined || !measurement.busbw_gbps.is_finite() || measurement.busbw_gbps <= 0.0 {
            continue;
        }
        let key = RowKey {
            data_type: measurement.data_type.clone(),
            op: measurement.op.clone(),
            root: measurement.root,
            placement: measurement.placement,
            bytes: measurement.bytes,
        };
        match rows.iter_mut().find(|(other, _)| *other == key) {
            Some((_, values)) => values.push(measurement.busbw_gbps),
            None => rows.push((key, vec![measurement.busbw_gbps])),
        }
    }
    let row = |(key, values): (RowKey, Vec<f64>)| Some(Row { key, busbw_gbps: find_median(&values)? });
    rows.into_iter().filter_map(row).collect()
}
