//! Sizes of the sweep and its buffers, limited by the memory of all ranks.

use std::collections::BTreeSet;

use collectives::{DataType, world};

use crate::backend::{BufferSizes, RankDevice};
use crate::collective::{Collective, Counts, Participant};
use crate::gather::gather_json;
use crate::groups::Groups;
use crate::request::{Request, Size};
use crate::supervision::Stop;

/// Returns the sweep's largest size, the sizes of the buffers, and the size to which a larger requested one
/// was reduced. The same on every rank. A rank that does not measure has no device.
pub(crate) fn agree_on_sizes(
    request: &Request,
    default_max_bytes: u64,
    device: Option<&RankDevice>,
    groups: &Groups,
    world: &dyn world::World,
) -> Result<(u64, BufferSizes, Option<u64>), Stop> {
    let host = world::host().name;
    let own = device
        .map(|device| (device.capacity, format!("{} of rank {} on {host}", device.memory, world.rank())));
    let (capacity, owner) = gather_json(world, &own)?.into_iter().flatten().min().unwrap_or_default();
    sizes_within(request, default_max_bytes, (capacity, &owner), groups)
}

/// [`agree_on_sizes`] with the least memory of a rank, in bytes, and its name.
pub(crate) fn sizes_within(
    request: &Request,
    default_max_bytes: u64,
    (capacity, owner): (u64, &str),
    groups: &Groups,
) -> Result<(u64, BufferSizes, Option<u64>), Stop> {
    let sizes: BTreeSet<usize> = groups.group_sizes().collect();
    let fitting = largest_fitting(request, capacity, &sizes);
    if request.settings.min_bytes > fitting {
        return Err(Stop::Refused(format!(
            "size {} does not fit: {owner} has room for buffers of {} at most ({})",
            Size(request.settings.min_bytes),
            Size(fitting),
            request.names.field_name("max_bytes"),
        )));
    }
    let asked = request.max_bytes;
    let default = || default_max_bytes.min(power_of_two_below(fitting)).max(request.settings.min_bytes);
    let max_bytes = asked.map_or_else(default, |asked| asked.min(fitting));
    let buffer_sizes = buffer_sizes(request, max_bytes, capacity, &sizes)?;
    Ok((max_bytes, buffer_sizes, asked.filter(|&asked| asked > fitting).map(|_| fitting)))
}

/// Sizes of the two buffers. Both have room for the largest size, so that operations move on through both
/// alike; if memory is short, the send buffer has only room for what is sent.
fn buffer_sizes(
    request: &Request,
    max_bytes: u64,
    capacity: u64,
    group_sizes: &BTreeSet<usize>,
) -> Result<BufferSizes, Stop> {
    let receive = usize::try_from(max_bytes)?;
    let send = if max_bytes.saturating_mul(2) <= capacity {
        receive
    } else {
        usize::try_from(largest_sent(request, max_bytes, group_sizes))?
    };
    Ok(BufferSizes { send, receive })
}

/// Maximum number of bytes that a rank of groups of these sizes sends for a size.
fn largest_sent(request: &Request, max_bytes: u64, group_sizes: &BTreeSet<usize>) -> u64 {
    let bytes = |collective: &Collective, data_type: DataType| match collective {
        // A row of the matrix has at most the size.
        Collective::AllToAllV => max_bytes,
        _ => {
            let count = |&ranks: &usize| {
                let participant = Participant { rank: 0, ranks, root: Some(0) };
                Counts::new(*collective, max_bytes, data_type, participant, None).send
            };
            (group_sizes.iter().map(count).max().unwrap_or(0) * data_type.size()) as u64
        }
    };
    let all = request
        .collectives
        .iter()
        .flat_map(|collective| request.data_types.iter().map(move |&data_type| bytes(collective, data_type)));
    all.max().unwrap_or(max_bytes)
}

/// The largest size whose buffers fit into `capacity` bytes, rounded down to MiB if it is larger.
fn largest_fitting(request: &Request, capacity: u64, group_sizes: &BTreeSet<usize>) -> u64 {
    const MIB: u64 = 1 << 20;
    let needed = |max_bytes: u64| max_bytes + largest_sent(request, max_bytes, group_sizes);
    let (mut fits, mut too_much) = (0, capacity + 1);
    while too_much - fits > 1 {
        let middle = fits + (too_much - fits) / 2;
        if needed(middle) <= capacity { fits = middle } else { too_much = middle }
    }
    if fits > MIB { fits / MIB * MIB } else { fits }
}

fn power_of_two_below(bytes: u64) -> u64 {
    bytes.checked_ilog2().map_or(0, |exponent| 1 << exponent)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Collective::{AllGather, AllReduce};

    #[test]
    fn buffers_are_as_large_as_the_collective_needs() {
        let (capacity, eight) = (9 << 30, BTreeSet::from([8]));
        let reduce = Request::new(vec![AllReduce]);
        assert_eq!(largest_fitting(&reduce, capacity, &eight), (9 << 30) / 2);
        let gather = Request::new(vec![AllGather]);
        // The receive buffer and an eighth of it.
        assert_eq!(largest_fitting(&gather, capacity, &eight), 8 << 30);
        let both = Request::new(vec![AllGather, AllReduce]);
        assert_eq!(largest_fitting(&both, capacity, &eight), (9 << 30) / 2);
        let room = |max_bytes| buffer_sizes(&gather, max_bytes, capacity, &eight).unwrap();
        let gib = 1_usize << 30;
        assert_eq!(room(8 << 30), BufferSizes { send: gib, receive: 8 * gib });
        assert_eq!(room(4 << 30), BufferSizes { send: 4 * gib, receive: 4 * gib });
    }
}
