//! Deferred closing of the endpoints of several ranks in one process.
//!
//! The `shm` provider lets ranks of one process write into each other's memory directly, without a mapping of their
//! own, and closing an endpoint unmaps its memory even while another rank writes there. So such endpoints of a job are
//! closed together, when this process has no rank of the job left. Until then nothing polls them, so they move no data
//! to or from the buffers of operations in flight.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::fabric::transport::endpoint::TaggedEndpoint;

/// Endpoints of ranks that have left, closed with the last handle.
pub(crate) struct DeferredClose(Mutex<Vec<TaggedEndpoint>>);

impl Drop for DeferredClose {
    fn drop(&mut self) {
        let endpoints = self.0.get_mut().unwrap_or_else(PoisonError::into_inner);
        endpoints.iter_mut().for_each(TaggedEndpoint::discard);
    }
}

/// By name of the job.
static JOBS: Mutex<BTreeMap<Vec<u8>, Weak<DeferredClose>>> = Mutex::new(BTreeMap::new());

impl DeferredClose {
    /// The handle that the ranks of this process share in the job of this name, which is unique.
    pub(crate) fn of_job(name: &[u8]) -> Arc<Self> {
        let mut jobs = JOBS.lock().unwrap_or_else(PoisonError::into_inner);
        jobs.retain(|_, closing| closing.strong_count() > 0);
        jobs.get(name).and_then(Weak::upgrade).unwrap_or_else(|| {
            let closing = Arc::new(Self(Mutex::default()));
            jobs.insert(name.to_vec(), Arc::downgrade(&closing));
            closing
        })
    }

    pub(crate) fn add(&self, endpoint: TaggedEndpoint) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(endpoint);
    }
}
