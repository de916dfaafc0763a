//! The identity of rows and tables: measurements with equal keys are compared.

use serde::Serialize;

use crate::collective::Collective;
use crate::run::{Measurement, Placement};

/// The identity of a row: measurements with equal keys are compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct Key {
    /// The table that the row belongs to.
    #[serde(flatten)]
    pub table: TableKey,
    /// Placement of the input.
    pub placement: Placement,
    /// Size in bytes.
    pub bytes: u64,
}

/// The identity of a table: rows that differ in placement and size only.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct TableKey {
    /// Name of the collective.
    pub collective: String,
    /// Name of the element type.
    pub data_type: String,
    /// Operator, where the collective reduces.
    pub op: Option<String>,
    /// Root rank, where the collective has one.
    pub root: Option<usize>,
    /// The group, where there are several.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<usize>,
    /// The ranks of a pair, where pairs were measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pair: Option<[usize; 2]>,
}

impl TableKey {
    /// The key of a measurement.
    pub fn from_measurement(measurement: &Measurement) -> Self {
        Self {
            collective: measurement.collective.clone(),
            data_type: measurement.data_type.clone(),
            // nccl-tests names an operator of sendrecv, too.
            op: measurement
                .op
                .clone()
                .filter(|_| measurement.collective.parse().map_or(true, Collective::is_reduction)),
            root: measurement.root,
            group: measurement.group,
            pair: measurement.pair,
        }
    }

    /// The key in words: `broadcast float root 1`.
    pub fn table_name(&self) -> String {
        let op = self.op.as_ref().map(|op| format!(" {op}")).unwrap_or_default();
        let root = self.root.map(|root| format!(" root {root}")).unwrap_or_default();
        let group = self.group.map(|group| format!(" group {group}")).unwrap_or_default();
        let pair = self.pair.map(|[one, other]| format!(" ranks {one} and {other}")).unwrap_or_default();
        format!("{} {}{op}{root}{group}{pair}", self.collective, self.data_type)
    }
}

impl Key {
    pub(super) fn from_row(measurement: &Measurement) -> Self {
        Self {
            table: TableKey::from_measurement(measurement),
            placement: measurement.placement,
            bytes: measurement.bytes,
        }
    }

    /// False for rows that no run verifies: without an element, and in place where the collective has no such
    /// form.
    pub(super) fn is_verifiable(&self) -> bool {
        let has_in_place = || self.table.collective.parse().map_or(true, Collective::has_in_place);
        self.bytes > 0 && (self.placement == Placement::OutOfPlace || has_in_place())
    }

    /// The key in words: `allreduce float sum, 8 bytes in-place`.
    pub fn row_name(&self) -> String {
        format!("{}, {} bytes {}", self.table.table_name(), self.bytes, self.placement.placement_name())
    }
}

/// Keys by their table: `allreduce float sum (62 rows)`.
pub(super) fn list_keys<'a>(keys: impl Iterator<Item = &'a Key>) -> Vec<String> {
    let mut tables: Vec<(&TableKey, usize)> = Vec::new();
    for key in keys {
        match tables.iter_mut().find(|(table, _)| **table == key.table) {
            Some((_, count)) => *count += 1,
            None => tables.push((&key.table, 1)),
        }
    }
    let rows = |count| if count == 1 { "1 row".to_owned() } else { format!("{count} rows") };
    tables.iter().map(|&(table, count)| format!("{} ({})", table.table_name(), rows(count))).collect()
}
