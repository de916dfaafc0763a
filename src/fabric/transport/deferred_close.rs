//! Deferred closing of the endpoints of several ranks in one process.
//!
//! The `shm` provider lets ranks of one process write into each other's memory directly, without a mapping of
//! their own, and closing an endpoint unmaps its memory even while another rank writes there. So such
//! endpoints of a job are closed together, when this process has no rank of the job left. Until then nothing
//! polls them, so they move no data to or from the buffers of operations in flight.
//!
//! The ranks find each other by a world, perhaps the program's own, so an endpoint uses another one of this
//! process only after it was found here.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, Weak};

use crate::fabric::error::Error;
use crate::fabric::shared_memory::shm;
use crate::fabric::transport::endpoint::TaggedEndpoint;
use crate::lock::lock;
use crate::world;

/// Stage of an endpoint during its connection. See [`TaggedEndpoint::announce_to`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd)]
pub(crate) enum Stage {
    Opened,
    /// It has announced itself to all others.
    Announced,
    /// It has read the others' announcements.
    Connected,
}

/// Endpoints in shared memory of one job in this process.
#[derive(Default)]
pub(crate) struct DeferredClose {
    /// Endpoints of ranks that have left, closed with the last handle.
    left: Mutex<Vec<TaggedEndpoint>>,
    /// Stages by address, also of ranks that have left.
    stages: Mutex<BTreeMap<Vec<u8>, Stage>>,
}

impl Drop for DeferredClose {
    fn drop(&mut self) {
        lock(&self.left).iter_mut().for_each(TaggedEndpoint::discard_messages);
    }
}

/// By name of the job.
static JOBS: Mutex<BTreeMap<Vec<u8>, Weak<DeferredClose>>> = Mutex::new(BTreeMap::new());

impl DeferredClose {
    /// Returns the handle shared by the ranks of this process in the job of this unique name.
    pub(crate) fn of_job(name: &[u8]) -> Arc<Self> {
        let mut jobs = lock(&JOBS);
        jobs.retain(|_, closing| closing.strong_count() > 0);
        jobs.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
            let closing = Arc::<Self>::default();
            jobs.insert(name.to_vec(), Arc::downgrade(&closing));
            closing
        })
    }

    /// Sets the stage of an endpoint. Its rank must hold this handle.
    pub(crate) fn register_stage(&self, address: &[u8], stage: Stage) {
        lock(&self.stages).insert(address.to_vec(), stage);
    }

    /// Checks an address: if it is of this process, its endpoint must be closed together with the caller's,
    /// and must have reached `stage`.
    pub(crate) fn check_address(&self, address: &[u8], stage: Stage) -> Result<(), Error> {
        if !shm::is_address(address) {
            let problem = "a world has gathered an address over shm that is not one of this library";
            return Err(world::Error::Mismatch(problem.to_owned()).into());
        }
        if !shm::is_of_this_process(address) {
            return Ok(());
        }
        let problem = match lock(&self.stages).get(address) {
            Some(&reached) if reached >= stage => return Ok(()),
            Some(_) => "a world has gathered messages before all ranks have sent theirs",
            None => "a world has gathered an address of this process that no rank of the job has",
        };
        Err(world::Error::Mismatch(problem.to_owned()).into())
    }

    pub(crate) fn add_endpoint(&self, endpoint: TaggedEndpoint) {
        lock(&self.left).push(endpoint);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_of_this_process_is_used_from_its_stage_on() {
        let closing = DeferredClose::default();
        let address = shm::new_address().unwrap().into_bytes();
        closing.check_address(b"fi_shm://collectives-1-1-0123456789abcdef", Stage::Connected).unwrap();
        let foreign = closing.check_address(b"fi_shm://any-file", Stage::Opened).unwrap_err().to_string();
        assert!(foreign.contains("not one of this library"), "{foreign}");
        let unknown = closing.check_address(&address, Stage::Opened).unwrap_err().to_string();
        assert!(unknown.contains("that no rank of the job has"), "{unknown}");
        closing.register_stage(&address, Stage::Announced);
        closing.check_address(&address, Stage::Opened).unwrap();
        closing.check_address(&address, Stage::Announced).unwrap();
        let early = closing.check_address(&address, Stage::Connected).unwrap_err().to_string();
        assert!(early.contains("before all ranks have sent theirs"), "{early}");
    }
}
