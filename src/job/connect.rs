//! The connection of a group's ranks by one of the backends.

use std::sync::Arc;

use super::backend::{Backend, Choice, GroupDevice};
use super::connection::GroupConnection;
use crate::Error;
use crate::world::{Members, Part, World};

/// Connects the ranks. With [`Backend::Auto`] on hosts, also returns the reason against GPUs. Collective.
pub(super) fn connect_ranks(
    part: &Arc<Part>,
    members: &Members,
    choice: Choice,
) -> Result<(GroupConnection, Option<String>), Error> {
    compare_choices(part, members, &choice)?;
    let reason = match choice.backend {
        Backend::Host => None,
        backend => match on_gpus(part, members, choice.device)? {
            Ok(connection) => return Ok((connection, None)),
            Err(reason) if backend == Backend::Gpu => {
                return Err(Error::Job(format!("Backend::Gpu: {reason}")));
            }
            Err(reason) => Some(reason),
        },
    };
    Ok((on_hosts(part, members)?, reason))
}

/// Refuses ranks that ask for different backends, before they exchange anything else.
fn compare_choices(part: &Part, members: &Members, choice: &Choice) -> Result<(), Error> {
    let own = match choice {
        Choice { device: Some(_), .. } => "group_on_gpu".to_owned(),
        Choice { backend, device: None } => format!("group with Backend::{backend:?}"),
    };
    let all = part.all_gather(own.as_bytes())?;
    let (Some(first), Some(peer)) = (all.first(), all.iter().position(|other| all.first() != Some(other)))
    else {
        return Ok(());
    };
    let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
    let mismatch =
        Error::Mismatch { rank: 0, called: text(first), peer, peer_called: all.get(peer).map(text) };
    Err(mismatch.in_job(&members.of_job))
}

/// Connects the ranks over their GPUs; returns the reason if a rank has none.
#[cfg(feature = "nccl")]
fn on_gpus(
    part: &Arc<Part>,
    members: &Members,
    device: Option<GroupDevice>,
) -> Result<Result<GroupConnection, String>, Error> {
    let device =
        match device.map_or_else(|| super::gpu::choose_device(part, members), |device| Ok(Ok(device)))? {
            Ok(device) => device,
            Err(reason) => return Ok(Err(reason)),
        };
    Ok(Ok(GroupConnection::Gpu(super::gpu::GpuGroup::connect_part(part, device)?)))
}

#[cfg(not(feature = "nccl"))]
fn on_gpus(_: &Part, _: &Members, _: Option<GroupDevice>) -> Result<Result<GroupConnection, String>, Error> {
    Ok(Err("the program was built without the feature `nccl` of the crate `collectives`".to_owned()))
}

#[cfg(feature = "fabric")]
fn on_hosts(part: &Arc<Part>, members: &Members) -> Result<GroupConnection, Error> {
    super::host::HostGroup::connect_part(part, members.of_job.clone()).map(GroupConnection::Host)
}

#[cfg(not(feature = "fabric"))]
fn on_hosts(_: &Arc<Part>, _: &Members) -> Result<GroupConnection, Error> {
    let reason = "groups on hosts need the feature `fabric` of the crate `collectives`";
    Err(Error::Job(reason.to_owned()))
}
