//! The choice between GPUs and hosts, which is the same on all ranks.

use std::collections::HashMap;

use cudarc::driver::CudaContext;

use crate::job::backend::GroupDevice;
use crate::nccl::{self, Library};
use crate::world::{self, Members, Part, World};

/// First byte of a rank's message.
const HAS: u8 = 1;
const LACKS: u8 = 0;

/// This rank's device if every rank has one of its own, otherwise the reason of the first rank that has none.
/// Collective.
pub(crate) fn choose_device(
    part: &Part,
    members: &Members,
) -> Result<Result<GroupDevice, String>, world::Error> {
    let own = find_device(part);
    let message = match &own {
        Ok((_, identity)) => [&[HAS], identity.as_bytes()].concat(),
        Err(reason) => [&[LACKS], reason.as_bytes()].concat(),
    };
    let all = part.all_gather(&message)?;
    Ok(match (own, lacking_reason(&all, &members.of_job)) {
        (Ok((device, _)), None) => Ok(device),
        (_, Some(reason)) => Err(reason),
        (Err(reason), None) => Err(reason),
    })
}

/// The device of this rank: the one whose number is the rank's on its host, or the only one that it sees.
fn find_device(part: &Part) -> Result<(GroupDevice, String), String> {
    let library = Library::load().map_err(|error| error.to_string())?;
    let count = nccl::device_count().map_err(|error| error.to_string())?;
    let (rank, ranks) = (part.local_rank(), part.local_size());
    let ordinal = match count {
        1 => 0,
        _ if rank < count => rank,
        _ => return Err(format!("it sees {count} GPUs, for {ranks} ranks of its host")),
    };
    let context =
        CudaContext::new(ordinal).map_err(|error| format!("device {ordinal} cannot be used: {error}"))?;
    let uuid = context.uuid().map_err(|error| format!("device {ordinal} cannot be identified: {error}"))?;
    let identity = format!("{:?} {}", uuid.bytes, world::host().id);
    Ok((GroupDevice { library, context }, identity))
}

/// The reason why not every rank has a GPU of its own, if so.
fn lacking_reason(all: &[Vec<u8>], ranks: &[usize]) -> Option<String> {
    let mut owners = HashMap::new();
    all.iter().zip(ranks).find_map(|(message, &rank)| match message.split_first() {
        Some((&HAS, identity)) => owners
            .insert(identity, rank)
            .map(|other| format!("ranks {other} and {rank} have the same GPU; start one rank for each GPU")),
        message => {
            let reason =
                message.map_or_else(String::new, |(_, text)| String::from_utf8_lossy(text).into_owned());
            Some(format!("rank {rank} has no GPU of its own: {reason}"))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_used_only_if_every_rank_has_its_own() {
        let gpu = |name: &str| [&[HAS], name.as_bytes()].concat();
        let none = |reason: &str| [&[LACKS], reason.as_bytes()].concat();
        assert_eq!(lacking_reason(&[gpu("a"), gpu("b")], &[0, 1]), None);
        let shared = lacking_reason(&[gpu("a"), gpu("b"), gpu("a")], &[4, 5, 6]).unwrap();
        assert_eq!(shared, "ranks 4 and 6 have the same GPU; start one rank for each GPU");
        let lacks = lacking_reason(&[gpu("a"), none("no driver"), none("other")], &[4, 5, 6]).unwrap();
        assert_eq!(lacks, "rank 5 has no GPU of its own: no driver");
        assert!(lacking_reason(&[vec![]], &[0]).is_some());
    }
}
