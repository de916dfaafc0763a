//! Exchange of values between all ranks, as JSON.

use collectives::world::World;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Sends a value of this rank to all other ranks. Returns the values of all ranks, in order. Collective.
///
/// # Errors
/// When another rank has failed, or has sent something else.
pub fn gather_json<T: Serialize + DeserializeOwned>(world: &dyn World, own: &T) -> anyhow::Result<Vec<T>> {
    let all = world.all_gather(&serde_json::to_vec(own)?)?;
    Ok(all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
}
