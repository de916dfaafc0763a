//! The libraries and devices that each process found, known to all processes.

use collectives::world::{self, World};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::agreement::gather;

/// The result of one process's search.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Discovery<T> {
    /// The name of the process's host.
    pub host: String,
    /// Identity of the host, which distinguishes hosts of the same name.
    pub host_id: String,
    /// The search's result, or the reason for which nothing can be used.
    pub result: Result<T, String>,
}

/// Sends this process's result to all others. Returns the results of all processes, in rank order.
pub(super) fn exchange<T>(process: &dyn World, result: Result<T, String>) -> anyhow::Result<Vec<Discovery<T>>>
where
    T: Serialize + DeserializeOwned,
{
    let world::Host { name: host, id: host_id } = world::host();
    gather(process, &Discovery { host, host_id, result })
}
