//! The libraries and devices that each process found, known to all processes.

use collectives::world::{self, World};
use serde::{Deserialize, Serialize};

use crate::supervision::Stop;

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
pub(super) fn exchange<T>(process: &dyn World, result: Result<T, String>) -> Result<Vec<Discovery<T>>, Stop>
where
    T: Serialize + for<'de> Deserialize<'de>,
{
    let world::Host { name: host, id: host_id } = world::host();
    let own = Discovery { host, host_id, result };
    let all = process.all_gather(&serde_json::to_vec(&own)?)?;
    Ok(all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
}
