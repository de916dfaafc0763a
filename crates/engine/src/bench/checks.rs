//! Checks of a request that need the backend's capabilities, the number of ranks, or the largest size.

use collectives::DataType;

use crate::backend::Capabilities;
use crate::collective::{Collective, Counts, Participant};
use crate::data::traffic::{Pattern, Traffic};
use crate::groups::Groups;
use crate::request::{Request, Roots, Size, Sweep};
use crate::supervision::Stop;

/// Reduces the lists that were given as `all` to the capabilities of the backend.
pub(super) fn limit_to_capabilities(request: &Request, capabilities: &Capabilities) -> Request {
    let mut request = request.clone();
    if request.all.data_types {
        keep_supported(&mut request.data_types, &capabilities.data_types, &mut request.notes);
    }
    if request.all.ops {
        keep_supported(&mut request.ops, &capabilities.ops, &mut request.notes);
    }
    request
}

/// Keeps supported items, and adds a note for each of the others.
fn keep_supported<T: PartialEq + std::fmt::Display>(
    asked: &mut Vec<T>,
    known: &[T],
    notes: &mut Vec<String>,
) {
    asked.retain(|each| {
        let is_known = known.contains(each);
        if !is_known {
            notes.push(format!("{each} is skipped: this backend does not support it"));
        }
        is_known
    });
}

/// Refuses a request that these groups of a job's `ranks` ranks cannot carry out.
///
/// # Errors
/// [`Stop::Refused`] with the reason.
pub fn check_ranks(request: &Request, ranks: usize, groups: &Groups) -> Result<(), Stop> {
    let names = request.names;
    if let Some(fault) = request.fault.filter(|fault| fault.rank >= ranks) {
        return Err(Stop::Refused(format!(
            "{} names rank {}, but there are {ranks} ranks, counted from 0",
            names.field_name("fault"),
            fault.rank
        )));
    }
    let impossible = request.collectives.iter().find_map(|collective| {
        Some((collective, groups.group_sizes().find(|&ranks| !collective.runs_over(ranks))?))
    });
    if let Some((collective, ranks)) = impossible.filter(|_| !request.all.collectives) {
        return Err(Stop::Refused(format!(
            "{collective} needs 2, 4, 8, ... ranks, but there are {ranks}: change the \
             number, or omit {collective}"
        )));
    }
    let (smallest, largest) = (groups.smallest_size(), groups.largest_size());
    let rooted = request.collectives.iter().any(|collective| collective.has_root());
    if let Roots::One(root) = request.roots
        && rooted
        && root >= smallest
    {
        let smallest = if groups.group_count() > 1 {
            format!("the smallest group has {smallest}")
        } else {
            format!("there are {smallest}")
        };
        let asked = names.with_value("roots", root);
        return Err(Stop::Refused(format!("{asked}: {smallest} ranks, counted from 0")));
    }
    if let Pattern::Matrix(matrix) = &request.variables.pattern
        && request.collectives.contains(&Collective::AllToAllV)
    {
        if matrix.rank_count() < largest {
            return Err(Stop::Refused(format!(
                "NCCL_TESTS_ALLTOALLV_MATRIX_FILE has {} rows, but there are {largest} ranks",
                matrix.rank_count()
            )));
        }
        let busiest = matrix.busiest_bytes(largest);
        if request.max_bytes.is_some_and(|max| max < busiest) {
            let [min, max] = ["min_bytes", "max_bytes"].map(|field| names.with_value(field, busiest));
            return Err(Stop::Refused(format!(
                "NCCL_TESTS_ALLTOALLV_MATRIX_FILE has a rank that sends or receives {busiest} bytes: give \
                 {min} {max}"
            )));
        }
    }
    Ok(())
}

/// Refuses sizes that give no rank an element, such as 8 bytes of an alltoall among 8 ranks. For lists given
/// as `all`, one case with elements is enough.
pub(super) fn check_elements(request: &Request, sweep: Sweep, groups: &Groups) -> Result<(), Stop> {
    let (ranks, largest) = (groups.largest_size(), sweep.list_sizes().last().unwrap_or(0));
    let participant = Participant { rank: 0, ranks, root: Some(0) };
    let has_elements = |collective: Collective, data_type: DataType| match collective {
        Collective::AllToAllV => {
            Traffic::new(&request.variables.pattern, largest, data_type, ranks).busiest_elements() > 0
        }
        _ => Counts::new(collective, largest, data_type, participant, None).parameter > 0,
    };
    let types = &request.data_types;
    let is_measured = |collective: Collective| match request.all.data_types {
        true => types.iter().any(|&data_type| has_elements(collective, data_type)),
        false => types.iter().all(|&data_type| has_elements(collective, data_type)),
    };
    let mut empty = request.collectives.iter().filter(|&&collective| !is_measured(collective));
    let enough = if request.all.collectives { request.collectives.len() - 1 } else { 0 };
    if empty.clone().count() <= enough {
        return Ok(());
    }
    let first = empty.next();
    let is_of_matrix =
        first == Some(&Collective::AllToAllV) && matches!(request.variables.pattern, Pattern::Matrix(_));
    let also = if is_of_matrix { ", or a matrix with larger entries" } else { "" };
    Err(Stop::Refused(format!(
        "{}: the largest size, {}, gives no rank an element among {ranks} ranks: give a larger size \
         ({}){also}",
        first.map_or("", |collective| collective.collective_name()),
        Size(largest),
        request.names.field_name("max_bytes"),
    )))
}

/// Refuses to corrupt an element that is not verified.
pub(super) fn check_fault(request: &Request, max_bytes: u64, groups: &Groups) -> Result<(), Stop> {
    let Some(fault) = request.fault else { return Ok(()) };
    let asked = request.names.field_name("fault");
    let Some(position) = groups.rank_position(fault.rank) else {
        return Err(Stop::Refused(format!(
            "{asked} names rank {}, but this rank does not measure",
            fault.rank
        )));
    };
    let roots = match request.roots {
        Roots::One(root) => root..root + 1,
        Roots::All => 0..groups.smallest_size(),
    };
    let rank = position.rank;
    let verified = roots.flat_map(|root| {
        let participant = Participant { rank, ranks: position.ranks, root: Some(root) };
        let has_result =
            move |collective: &&Collective| **collective != Collective::Gather || participant.is_root();
        request.collectives.iter().filter(has_result).flat_map(move |&collective| {
            // In alltoallv every rank receives; how much depends on the pattern.
            request.data_types.iter().map(move |&data_type| {
                Counts::new(collective, max_bytes, data_type, participant, None).receive
            })
        })
    });
    match verified.max() {
        Some(largest) if fault.index < largest => Ok(()),
        Some(largest) => Err(Stop::Refused(format!(
            "{asked} names element {}, but the largest result has {largest}, counted from 0",
            fault.index
        ))),
        None => Err(Stop::Refused(format!(
            "{asked} names rank {}, but this rank has no verified result: name another rank, or another {}",
            fault.rank,
            request.names.field_name("roots"),
        ))),
    }
}
