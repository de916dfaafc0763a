//! Communicators that outlive a run: a later run over the same ranks with the same options uses them again.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use collectives::fabric::{Communicator, Options};
use collectives::world;

use crate::request::Binding;

/// Maximum number of unused communicators of a process. The oldest is closed first.
const MAX_UNUSED: usize = 64;

/// The communicators of a process that no run uses. Clones share them.
#[derive(Clone)]
pub struct Connections {
    unused: Arc<Mutex<Vec<(ConnectionKey, Communicator)>>>,
    /// Maximum number of communicators.
    limit: usize,
}

impl Default for Connections {
    fn default() -> Self {
        Self { unused: Arc::default(), limit: MAX_UNUSED }
    }
}

impl fmt::Debug for Connections {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_list().entries(self.lock_unused().iter().map(|(key, _)| key)).finish()
    }
}

/// A rank of the job, and the ranks that it connects with, itself included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ConnectionPlace {
    pub(crate) rank: usize,
    pub(crate) members: Vec<usize>,
}

/// The identity of a communicator.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ConnectionKey {
    place: ConnectionPlace,
    /// The options and the binding, as text made for comparison.
    options: String,
}

/// A communicator in use. Dropping it keeps the communicator for a later run.
pub(super) struct HeldCommunicator {
    key: ConnectionKey,
    /// `None` only while it is dropped.
    communicator: Option<Communicator>,
    connections: Connections,
}

impl Connections {
    /// Closes each communicator at the end of its run.
    pub(crate) fn without_reuse() -> Self {
        Self { limit: 0, ..Self::default() }
    }

    /// Connects the ranks of `world`, or returns their communicator of an earlier run. Collective.
    pub(super) fn connect_ranks(
        &self,
        place: &ConnectionPlace,
        world: &world::Handle,
        options: &Options,
        binding: Binding,
    ) -> anyhow::Result<HeldCommunicator> {
        let key = ConnectionKey { place: place.clone(), options: format!("{binding:?} {options:?}") };
        let kept = self.take_unused(&key);
        // A rank has no communicator if it failed to connect, or has closed this one to make room.
        let all_have = world.all_gather(&[u8::from(kept.is_some())])?.iter().all(|has| has == &[1]);
        let communicator = match kept.filter(|_| all_have) {
            Some(communicator) => communicator,
            // Room for the next attempt: unused communicators have memory and open files.
            None => Communicator::new(world.clone(), options).inspect_err(|_| self.close_unused())?,
        };
        Ok(HeldCommunicator { key, communicator: Some(communicator), connections: self.clone() })
    }

    fn take_unused(&self, key: &ConnectionKey) -> Option<Communicator> {
        let mut kept = self.lock_unused();
        let index = kept.iter().position(|(other, _)| other == key)?;
        Some(kept.remove(index).1)
    }

    fn keep_unused(&self, key: ConnectionKey, communicator: Communicator) {
        let mut kept = self.lock_unused();
        kept.push((key, communicator));
        let oldest = (kept.len() > self.limit).then(|| kept.remove(0));
        drop(kept);
        drop(oldest);
    }

    fn close_unused(&self) {
        let unused = std::mem::take(&mut *self.lock_unused());
        drop(unused);
    }

    fn lock_unused(&self) -> MutexGuard<'_, Vec<(ConnectionKey, Communicator)>> {
        self.unused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldCommunicator {
    pub(super) fn communicator_ref(&self) -> Option<&Communicator> {
        self.communicator.as_ref()
    }

    pub(super) fn communicator_mut(&mut self) -> anyhow::Result<&mut Communicator> {
        self.communicator.as_mut().ok_or_else(|| anyhow::anyhow!("the communicator is closed"))
    }
}

impl Drop for HeldCommunicator {
    fn drop(&mut self) {
        if let Some(communicator) = self.communicator.take().filter(|_| !std::thread::panicking()) {
            self.connections.keep_unused(self.key.clone(), communicator);
        }
    }
}
