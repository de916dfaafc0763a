//! Checks that need no expectation: links, and values of a run against each other.

use std::collections::BTreeMap;

use record::collective::Collective;
use record::statistics::find_median;
use record::{Placement, Run};

use super::{Reason, Row, Variable};
use crate::ceiling::Ceiling;
use crate::machine::{FASTEST_PCIE_GBPS, Machine, count_nvlinks};

// Limits chosen between the differences of healthy runs (measurements/results) and the faults of public
// reports.

/// Smallest size in bytes whose bandwidth is that of links, not of latency.
const LARGE: u64 = 64 << 20;
/// Smallest size in bytes at which every collective uses the whole link: NCCL sends up to 64 MiB to a peer
/// over few channels.
const WHOLE_LINK: u64 = 128 << 20;
/// Smallest size in bytes from which bandwidth must not fall. Below, protocols change with the size.
const RISING: u64 = 16 << 20;
/// Share of the bandwidth that a larger size keeps at least.
const KEPT: f64 = 0.9;
/// Largest ratio of the two placements or directions of the same transfer.
const ALIKE: f64 = 1.1;
/// Largest ratio of the times of two ranks.
const RANKS_ALIKE: f64 = 1.2;
/// Share by which a row may exceed a ceiling, for rounding.
const ROUNDING: f64 = 1.005;
/// Gbit/s up to which a network is suspicious between hosts with several GPUs that have NVLink.
const SLOW_WITH_NVLINK_GBITS: f64 = 100.0;
/// Gbit/s up to which a network is suspicious between any hosts with GPUs.
const SLOW_GBITS: f64 = 25.0;
/// Share of the link to the host below which GPUs without NVLink are suspicious.
const SLOW_HOST_LINK: f64 = 0.3;

/// Variables that lower the bandwidth, with values that do not.
const SLOWING: [(&str, &[&str]); 13] = [
    ("NCCL_P2P_DISABLE", &["0"]),
    ("NCCL_P2P_LEVEL", &["NVL", "PIX", "PXB", "PHB", "SYS"]),
    ("NCCL_SHM_DISABLE", &["0"]),
    ("NCCL_IB_DISABLE", &["0"]),
    ("NCCL_NET", &["IB", "AWS Libfabric", "Libfabric"]),
    ("NCCL_NET_GDR_LEVEL", &["PIX", "PXB", "PHB", "SYS"]),
    ("NCCL_ALGO", &[]),
    ("NCCL_PROTO", &[]),
    ("NCCL_MAX_NCHANNELS", &[]),
    ("NCCL_MAX_CTAS", &[]),
    ("NCCL_NTHREADS", &[]),
    ("NCCL_BUFFSIZE", &[]),
    ("NCCL_NVLS_ENABLE", &["1", "2"]),
];

/// Returns the run's variables that lower the bandwidth.
pub(super) fn find_slowing_variables(run: &Run) -> Vec<Variable> {
    let set = SLOWING.iter().filter_map(|(name, harmless)| {
        let value = run.provenance.environment.get(*name)?.trim();
        let slows = !value.is_empty() && !harmless.iter().any(|other| other.eq_ignore_ascii_case(value));
        slows.then(|| Variable { name: (*name).to_owned(), value: value.to_owned() })
    });
    set.collect()
}

/// Returns a reason when a GPU on rank 0's host has fewer active NVLinks than usual. A virtual machine with a
/// single GPU has none.
pub(super) fn check_nvlinks(run: &Run, machine: &Machine) -> Option<Reason> {
    let [active, usual] = count_nvlinks(run, machine).filter(|_| machine.ranks_per_host > Some(1))?;
    let is_always = machine.gpu.is_some_and(|kind| !kind.optional);
    (is_always && active < usual).then_some(Reason::FewNvLinks { active, usual })
}

/// Returns the row that is farthest above the ceiling.
pub(super) fn check_ceiling(rows: &[Row], ceiling: Option<&Ceiling>) -> Option<Reason> {
    let ceiling_gbps = ceiling?.busbw_gbps;
    let row = find_fastest(rows.iter())?;
    (row.busbw_gbps > ceiling_gbps * ROUNDING)
        .then(|| Reason::AboveCeiling { row: row.clone(), ceiling_gbps })
}

/// Returns a reason when large transfers are no faster than a slower link would make them.
pub(super) fn check_links(rows: &[Row], machine: &Machine, collective: Collective) -> Option<Reason> {
    let largest = rows.iter().map(|row| row.key.bytes).max().filter(|&bytes| bytes >= WHOLE_LINK)?;
    let row = find_fastest(rows.iter().filter(|row| row.key.bytes == largest))?.clone();
    match machine.hosts? {
        _ if machine.shares_gpus || collective == Collective::AllToAllV => None,
        1 => check_host(row, machine),
        _ => check_network(row, machine, collective),
    }
}

fn check_host(row: Row, machine: &Machine) -> Option<Reason> {
    let host_gbps = machine.host_gbps?;
    let is_always = machine.gpu.is_some_and(|kind| !kind.optional);
    match machine.nvlink_gbps.filter(|_| is_always) {
        // A link to the host by NVLink-C2C is too fast to tell.
        Some(nvlink_gbps) if row.busbw_gbps <= host_gbps && host_gbps <= FASTEST_PCIE_GBPS => {
            Some(Reason::NotOverNvLink { row, nvlink_gbps, host_gbps })
        }
        None if !is_always && row.busbw_gbps < host_gbps * SLOW_HOST_LINK => {
            Some(Reason::SlowHostLink { row, host_gbps })
        }
        _ => None,
    }
}

/// Checks the data that hosts exchange. Between hosts a ring carries what the bus bandwidth counts, over the
/// NICs of each host.
fn check_network(row: Row, machine: &Machine, collective: Collective) -> Option<Reason> {
    let is_ring =
        matches!(collective, Collective::AllReduce | Collective::AllGather | Collective::ReduceScatter);
    if !is_ring || machine.gpu.is_some_and(|kind| kind.multi_host) {
        return None;
    }
    let sent_gbits = row.busbw_gbps * 8.0;
    let has_nvlink = machine.gpu.is_some_and(|kind| kind.nvlink_gbps.is_some() && !kind.optional);
    let has_several = machine.ranks_per_host.is_some_and(|count| count > 1);
    let is_wide = has_nvlink && has_several;
    let slow_gbits = if is_wide { SLOW_WITH_NVLINK_GBITS } else { SLOW_GBITS };
    match machine.nics {
        // A single GPU of a host can use one NIC only.
        Some(nics) if nics.count > 1 && has_several => {
            (sent_gbits <= nics.gbits).then_some(Reason::OneNic { row, sent_gbits })
        }
        Some(_) => None,
        None => (sent_gbits <= slow_gbits).then_some(Reason::SlowNetwork { row, sent_gbits }),
    }
}

fn find_fastest<'a>(rows: impl Iterator<Item = &'a Row>) -> Option<&'a Row> {
    rows.max_by(|one, other| one.busbw_gbps.total_cmp(&other.busbw_gbps))
}

/// Returns the deepest fall of bandwidth from one size to a larger one.
pub(super) fn check_dips(rows: &[Row]) -> Option<Reason> {
    let large: Vec<&Row> = rows.iter().filter(|row| row.key.bytes >= RISING).collect();
    let mut deepest: Option<(f64, &Row, &Row)> = None;
    for after in &large {
        let smaller = large.iter().copied().filter(|row| is_smaller_size(row, after));
        let Some(before) = find_fastest(smaller) else { continue };
        let kept = after.busbw_gbps / before.busbw_gbps;
        if kept < deepest.map_or(KEPT, |(kept, ..)| kept) {
            deepest = Some((kept, before, after));
        }
    }
    deepest.map(|(_, before, after)| Reason::Dip { before: before.clone(), after: after.clone() })
}

/// Returns true when `row` differs from `other` only by a smaller size.
fn is_smaller_size(row: &Row, other: &Row) -> bool {
    let (one, two) = (&row.key, &other.key);
    one.bytes < two.bytes
        && one.data_type == two.data_type
        && one.op == two.op
        && one.root == two.root
        && one.placement == two.placement
}

/// Returns a reason when large transfers in place and out of place differ. A hypercube copies a rank's own
/// part only out of place.
pub(super) fn check_placements(rows: &[Row], collective: Option<Collective>) -> Option<Reason> {
    if collective == Some(Collective::Hypercube) {
        return None;
    }
    let in_place = rows.iter().filter(|row| row.key.placement == Placement::InPlace);
    let large = in_place.filter(|row| row.key.bytes >= LARGE);
    let ratios: Vec<f64> = large
        .filter_map(|row| {
            let key = super::RowKey { placement: Placement::OutOfPlace, ..row.key.clone() };
            let other = rows.iter().find(|other| other.key == key)?;
            Some(row.busbw_gbps / other.busbw_gbps)
        })
        .collect();
    let ratio = find_median(&ratios)?;
    (!is_alike(ratio, ALIKE)).then_some(Reason::PlacementsDiffer { ratio })
}

fn is_alike(ratio: f64, limit: f64) -> bool {
    (limit.recip()..=limit).contains(&ratio)
}

/// Returns a reason when the ranks' own times of large transfers differ, in a collective without a root.
pub(super) fn check_ranks(run: &Run, collective: Collective) -> Option<Reason> {
    if collective.has_root() || collective == Collective::AllToAllV {
        return None;
    }
    let mut ratios: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut measurements = 0;
    for measurement in &run.measurements {
        if measurement.collective != collective.collective_name() || measurement.bytes < LARGE {
            continue;
        }
        let times = || measurement.per_rank.iter().map(|rank| rank.time_us).enumerate();
        let valid = || times().filter(|(_, time)| time.is_finite() && *time > 0.0);
        let slowest = valid().max_by(|one, other| one.1.total_cmp(&other.1));
        let shortest = valid().map(|(_, time)| time).min_by(f64::total_cmp);
        if let (Some((rank, longest)), Some(shortest)) = (slowest, shortest) {
            ratios.entry(rank).or_default().push(longest / shortest);
            measurements += 1;
        }
    }
    let (rank, ratios) = ratios.into_iter().max_by_key(|(_, ratios)| ratios.len())?;
    let ratio = find_median(&ratios)?;
    let is_steady = 2 * ratios.len() > measurements;
    (is_steady && ratio > RANKS_ALIKE).then_some(Reason::RanksDiffer { rank, ratio })
}

/// Returns the pair of ranks whose two directions differ most, at their largest common size.
pub(super) fn check_directions(run: &Run) -> Option<Reason> {
    let mut largest: BTreeMap<([usize; 2], &str), (u64, f64)> = BTreeMap::new();
    for measurement in &run.measurements {
        let Some(pair) = measurement.pair else { continue };
        let bandwidth = measurement.busbw_gbps;
        let entry = largest.entry((pair, &measurement.collective)).or_default();
        if bandwidth.is_finite() && bandwidth > 0.0 && measurement.bytes > entry.0 {
            *entry = (measurement.bytes, bandwidth);
        }
    }
    let ratios = largest.iter().filter_map(|((pair, test), (bytes, bandwidth))| {
        let (others, other) = largest.get(&([pair[1], pair[0]], *test))?;
        (bytes == others && *bytes > 0).then(|| (*pair, bandwidth / other))
    });
    let (pair, ratio) = ratios.max_by(|one, other| one.1.total_cmp(&other.1))?;
    (ratio > ALIKE).then_some(Reason::DirectionsDiffer { pair, ratio })
}
