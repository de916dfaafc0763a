//! The machine's GPUs, with a rank on each: one thread each, or all in one.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use collectives::nccl::{
    AbortHandle, Collectives, Communicator, Config, Error, Library, UniqueId, Version, device_count,
};
use cudarc::driver::{CudaContext, CudaStream};

#[derive(Clone, Copy)]
pub(crate) struct Gpus {
    pub(crate) library: Library,
    pub(crate) count: usize,
}

impl Gpus {
    /// Says which NCCL it is, and how many GPUs there are.
    pub(crate) fn all() -> Self {
        let (library, count) = (Library::load().unwrap(), device_count().unwrap());
        println!("  NCCL {} on {count} GPUs", library.version());
        Self { library, count }
    }

    /// Whether NCCL has functions of this version, so that the test goes one way or the other, and says which.
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

    pub(crate) fn stream(&self, device: usize) -> Arc<CudaStream> {
        CudaContext::new(device).unwrap().new_stream().unwrap()
    }

    pub(crate) fn streams(&self) -> Vec<Arc<CudaStream>> {
        (0..self.count).map(|device| self.stream(device)).collect()
    }

    /// Whether NCCL reduces 8-bit floating-point numbers on these GPUs: Hopper or newer, since 2.24.
    pub(crate) fn reduce_fp8(&self) -> bool {
        (0..self.count)
            .all(|device| CudaContext::new(device).unwrap().compute_capability().unwrap() >= (9, 0))
    }

    /// One communicator on each GPU, all in this thread.
    pub(crate) fn together(&self, config: &Config) -> Vec<Communicator> {
        Communicator::init_all(self.library, &self.streams(), config).unwrap()
    }

    /// Runs a rank on each GPU, each in its own thread.
    pub(crate) fn ranks(&self, config: &Config, body: impl Fn(&Communicator) + Sync) {
        self.owned_ranks(config, |communicator| {
            body(&communicator);
            communicator.async_error().unwrap();
            communicator.close().unwrap();
        });
    }

    /// As [`ranks`](Self::ranks), for bodies that end their communicators themselves.
    pub(crate) fn owned_ranks(&self, config: &Config, body: impl Fn(Communicator) + Sync) {
        let id = UniqueId::new(self.library).unwrap();
        self.threads(|rank, crew| {
            let stream = self.stream(rank);
            let communicator =
                Communicator::init(self.library, &stream, rank, self.count, &id, config).unwrap();
            crew.watch(&communicator);
            body(communicator);
        });
    }

    /// Runs a thread for each GPU. When one panics, the communicators of all are aborted, so that nobody waits for it.
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

/// That the loaded NCCL lacks the function, by name.
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
