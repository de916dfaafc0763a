//! The machine's GPUs, with a rank on each, or several if they share: one thread per rank, or all in one
//! thread.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use collectives::nccl::{
    AbortHandle, Builder, Communicator, Config, Error, Library, UniqueId, Version, device_count,
};
use cudarc::driver::{CudaContext, CudaStream};

#[derive(Clone, Copy)]
pub(crate) struct Gpus {
    pub(crate) library: Library,
    /// Number of ranks.
    pub(crate) count: usize,
    devices: usize,
}

impl Gpus {
    /// Prints the version of NCCL and the number of GPUs.
    pub(crate) fn all() -> Self {
        let library = Library::load().unwrap();
        let (count, devices) = (crate::gpu::ranks().unwrap(), device_count().unwrap());
        let shared = if count > devices { format!(", shared by {count} ranks") } else { String::new() };
        println!("  NCCL {} on {devices} GPUs{shared}", library.version());
        Self { library, count, devices }
    }

    /// True if ranks share a GPU.
    pub(crate) fn are_shared(&self) -> bool {
        self.count > self.devices
    }

    /// GPU of a rank, assigned round-robin.
    pub(crate) fn device(&self, rank: usize) -> usize {
        rank % self.devices
    }

    /// True if NCCL has functions of this version. Prints which path the test takes.
    pub(crate) fn has(&self, function: &str) -> bool {
        let has = self.library.raw().has(function);
        if !has {
            println!("  without {function}: the error is tested");
        }
        has
    }

    pub(crate) fn is_at_least(&self, major: u32, minor: u32, patch: u32) -> bool {
        self.library.version() >= Version::new(major, minor, patch)
    }

    /// A stream on the GPU of a rank.
    pub(crate) fn stream(&self, rank: usize) -> Arc<CudaStream> {
        CudaContext::new(self.device(rank)).unwrap().new_stream().unwrap()
    }

    pub(crate) fn streams(&self) -> Vec<Arc<CudaStream>> {
        (0..self.count).map(|rank| self.stream(rank)).collect()
    }

    /// True if NCCL reduces 8-bit floating-point numbers on these GPUs: Hopper or newer, since 2.24.
    pub(crate) fn reduce_fp8(&self) -> bool {
        (0..self.devices)
            .all(|device| CudaContext::new(device).unwrap().compute_capability().unwrap() >= (9, 0))
    }

    /// Communicator of one rank.
    pub(crate) fn rank<'a>(&self, stream: &'a Arc<CudaStream>, rank: usize) -> Builder<'a> {
        Communicator::builder(self.library, stream).rank(rank, self.count)
    }

    /// Communicators of all ranks in this thread.
    pub(crate) fn together(&self, config: &Config) -> Vec<Communicator> {
        Communicator::init_all(self.library, &self.streams(), config).unwrap()
    }

    /// Runs each rank in its own thread.
    pub(crate) fn ranks(&self, config: &Config, body: impl Fn(&Communicator) + Sync) {
        self.owned_ranks(config, |communicator| {
            body(&communicator);
            communicator.async_error().unwrap();
            communicator.close().unwrap();
        });
    }

    /// Like [`ranks`](Self::ranks), for bodies that end their communicators themselves.
    pub(crate) fn owned_ranks(&self, config: &Config, body: impl Fn(Communicator) + Sync) {
        let id = UniqueId::new(self.library).unwrap();
        self.threads(|rank, crew| {
            let stream = self.stream(rank);
            let communicator = self.rank(&stream, rank).id(&id).config(config).init().unwrap();
            crew.watch(&communicator);
            body(communicator);
        });
    }

    /// Runs a thread per rank. If one panics, the communicators of all are aborted, so that none waits for
    /// it.
    pub(crate) fn threads(&self, body: impl Fn(usize, &Crew) + Sync) {
        let crew = Crew::default();
        thread::scope(|scope| {
            for rank in 0..self.count {
                let (body, crew) = (&body, &crew);
                scope.spawn(move || {
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| body(rank, crew))) {
                        crew.abort();
                        resume_unwind(panic);
                    }
                });
            }
        });
    }
}

/// The communicators of a test's threads.
#[derive(Default)]
pub(crate) struct Crew(Mutex<Vec<AbortHandle>>);

impl Crew {
    pub(crate) fn watch(&self, communicator: &Communicator) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(communicator.abort_handle());
    }

    fn abort(&self) {
        let handles = self.0.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for handle in handles {
            if let Err(error) = handle.abort() {
                eprintln!("after a panic: {error}");
            }
        }
    }
}

/// Asserts the error of a function that the loaded NCCL lacks.
#[track_caller]
pub(crate) fn missing<T>(result: Result<T, Error>, function: &str) {
    match result {
        Err(Error::MissingSymbol(error)) => {
            assert!(error.to_string().contains(function), "{error}");
        }
        Err(error) => panic!("{function}: {error}"),
        Ok(_) => panic!("{function} is missing, and yet it worked"),
    }
}
