//! The connection of a group's ranks by one of the backends.

use std::sync::Arc;

use super::backend::Backend;
use super::buffer::{Backing, Connection};
#[cfg(feature = "nccl")]
use super::gpu::{self, Device, GpuGroup};
#[cfg(feature = "fabric")]
use super::host::HostGroup;
use crate::Error;
use crate::world::{Members, Part, World};

/// The backend of a new group.
pub(super) enum Choice {
    Backend(Backend),
    /// GPUs; this rank uses this device.
    #[cfg(feature = "nccl")]
    Device(Device),
}

/// Connects the ranks. With [`Backend::Auto`] on hosts, also returns the reason against GPUs. Collective.
pub(super) fn connect(
    part: &Arc<Part>,
    members: &Members,
    choice: Choice,
) -> Result<(Connection, Option<String>), Error> {
    compare(part, members, &choice)?;
    match choice {
        Choice::Backend(Backend::Host) => Ok((on_hosts(part, members)?, None)),
        #[cfg(feature = "nccl")]
        Choice::Device(device) => Ok((on_gpus(part, device)?, None)),
        Choice::Backend(backend) => {
            let reason = match choose(part, members)? {
                #[cfg(feature = "nccl")]
                Ok(device) => return Ok((on_gpus(part, device)?, None)),
                #[cfg(not(feature = "nccl"))]
                Ok(never) => match never {},
                Err(reason) => reason,
            };
            if backend == Backend::Gpu {
                return Err(Error::Job(format!("Backend::Gpu: {reason}")));
            }
            Ok((on_hosts(part, members)?, Some(reason)))
        }
    }
}

/// Refuses ranks that ask for different backends, before they exchange anything else.
fn compare(part: &Part, members: &Members, choice: &Choice) -> Result<(), Error> {
    let own = match choice {
        Choice::Backend(backend) => format!("group with Backend::{backend:?}"),
        #[cfg(feature = "nccl")]
        Choice::Device(_) => "group_on_gpu".to_owned(),
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

#[cfg(feature = "nccl")]
fn choose(part: &Part, members: &Members) -> Result<Result<Device, String>, Error> {
    Ok(gpu::choose(part, members)?)
}

#[cfg(not(feature = "nccl"))]
fn choose(_: &Part, _: &Members) -> Result<Result<std::convert::Infallible, String>, Error> {
    Ok(Err("the program was built without the feature `nccl` of the crate `collectives`".to_owned()))
}

#[cfg(feature = "nccl")]
fn on_gpus(part: &Arc<Part>, device: Device) -> Result<Connection, Error> {
    GpuGroup::connect(part, device).map(|gpu| Connection(Backing::Gpu(gpu)))
}

#[cfg(feature = "fabric")]
fn on_hosts(part: &Arc<Part>, members: &Members) -> Result<Connection, Error> {
    HostGroup::connect(part, members.of_job.clone()).map(|host| Connection(Backing::Host(host)))
}

#[cfg(not(feature = "fabric"))]
fn on_hosts(_: &Arc<Part>, _: &Members) -> Result<Connection, Error> {
    let reason = "groups on hosts need the feature `fabric` of the crate `collectives`";
    Err(Error::Job(reason.to_owned()))
}
