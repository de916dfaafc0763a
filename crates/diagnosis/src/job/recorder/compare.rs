//! Comparison of a collective between ranks.

use std::collections::BTreeMap;

use super::dump::CollectiveEntry;
use super::groups::GroupRecord;

/// Operations with the same number of input elements on all ranks. Sizes of other operations may differ: of
/// an all-to-all with splits, or a gather.
const EQUAL_INPUTS: [&str; 8] = [
    "all_reduce",
    "all_reduce_barrier",
    "allreduce_coalesced",
    "broadcast",
    "reduce",
    "all_gather",
    "_all_gather_base",
    "_reduce_scatter_base",
];

/// A property of a collective. It must be the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallProperty {
    /// The operation.
    Operation,
    /// The number of elements.
    Size,
    /// The data type.
    Type,
}

/// Writes a property of an operation.
type Shown = fn(&CollectiveEntry) -> String;

/// A collective called by ranks with different arguments.
#[derive(Debug)]
pub(super) struct Mismatch {
    /// Its sequence number.
    pub sequence: i64,
    /// Its operation, on the first rank.
    pub operation: String,
    /// The property that differs.
    pub property: CallProperty,
    /// The ranks by value, most ranks first.
    pub values: Vec<(String, Vec<u32>)>,
}

/// Finds the first collective of a group called by ranks with different arguments.
pub(super) fn first_mismatch(group: &GroupRecord<'_>) -> Option<Mismatch> {
    let mut by_sequence: BTreeMap<i64, Vec<(u32, &[&CollectiveEntry])>> = BTreeMap::new();
    for (&rank, record) in &group.records {
        for (&sequence, entries) in &record.collectives {
            by_sequence.entry(sequence).or_default().push((rank, entries));
        }
    }
    by_sequence.into_iter().find_map(|(sequence, calls)| {
        let operation = name(calls.first()?.1.first()?).to_owned();
        let properties: [(CallProperty, Shown); 3] = [
            (CallProperty::Operation, |entry| name(entry).to_owned()),
            (CallProperty::Size, shapes_text),
            (CallProperty::Type, |entry| entry.input_dtypes.join(", ")),
        ];
        properties.into_iter().find_map(|(property, value)| {
            let is_comparable =
                property == CallProperty::Operation || EQUAL_INPUTS.contains(&operation.as_str());
            let same = |entries: &[&CollectiveEntry]| comparison_key(entries, property);
            if !is_comparable || calls.iter().all(|(_, entries)| same(entries) == same(calls[0].1)) {
                return None;
            }
            let mut values: BTreeMap<String, (String, Vec<u32>)> = BTreeMap::new();
            for (rank, entries) in &calls {
                let text: Vec<String> = entries.iter().map(|entry| value(entry)).collect();
                let group = values.entry(same(entries)).or_insert_with(|| (text.join("; "), Vec::new()));
                group.1.push(*rank);
            }
            let mut values: Vec<(String, Vec<u32>)> = values.into_values().collect();
            values.sort_by_key(|(_, ranks)| (std::cmp::Reverse(ranks.len()), ranks.first().copied()));
            Some(Mismatch { sequence, operation: operation.clone(), property, values })
        })
    })
}

/// Returns the operation without the name of the library: `all_reduce`.
pub(super) fn name(entry: &CollectiveEntry) -> &str {
    entry.profiling_name.split_once(':').map_or(entry.profiling_name.as_str(), |(_, name)| name)
}

/// Returns a text for comparison: equal properties have equal texts.
fn comparison_key(entries: &[&CollectiveEntry], property: CallProperty) -> String {
    let one = |entry: &&CollectiveEntry| match property {
        CallProperty::Operation => name(entry).to_owned(),
        // NCCL sees the number of elements, not the shape.
        CallProperty::Size => {
            let elements = entry.input_sizes.iter().map(|dimensions| {
                dimensions
                    .iter()
                    .fold(1_i64, |product, dimension| product.saturating_mul(*dimension))
                    .to_string()
            });
            elements.collect::<Vec<_>>().join(",")
        }
        CallProperty::Type => entry.input_dtypes.join(","),
    };
    entries.iter().map(one).collect::<Vec<_>>().join(";")
}

/// Returns the shapes: `[1024, 2]`.
fn shapes_text(entry: &CollectiveEntry) -> String {
    let shapes: Vec<String> = entry.input_sizes.iter().map(|dimensions| format!("{dimensions:?}")).collect();
    if shapes.is_empty() { "no input".to_owned() } else { shapes.join(", ") }
}
