//! All facts of a host, and their reading.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::counters::{self, Counter};
use super::gpu::{self, Gpus};
use super::kernel::{self, KernelMessages};
use super::libraries::{self, Library, SearchPaths};
use super::nic::{self, Nic};
use super::rdma::SERVICE;
use super::system::{self, System};
use crate::knowledge::rules::Rules;

/// Facts of a host, as one process sees them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Machine, kernel, limits, services.
    pub system: System,
    /// GPUs.
    pub gpus: Gpus,
    /// RDMA devices.
    pub nics: Vec<Nic>,
    /// Error counters of RDMA devices.
    pub counters: Vec<Counter>,
    /// Libraries available to a job.
    pub libraries: Vec<Library>,
    /// Messages of the kernel.
    pub messages: KernelMessages,
    /// Variables, for comparison with the host.
    pub environment: Vec<(String, String)>,
}

/// Source of the facts.
#[derive(Clone, Debug)]
pub struct Source {
    /// Root of the files, `/` except in tests.
    pub root: PathBuf,
    /// Time between the two readings of counters, or zero for one reading.
    pub interval: Duration,
    /// True to ask NVML. NVML does not know a root.
    pub nvml: bool,
    /// Variables with folders of libraries.
    pub paths: SearchPaths,
    /// Value of [`SERVICE`].
    pub service: Option<std::ffi::OsString>,
    /// Variables, for comparison with the host.
    pub environment: Vec<(String, String)>,
}

/// Variables, for comparison with the host.
const VARIABLES: [&str; 2] = ["NCCL_IB_HCA", "NCCL_IB_GID_INDEX"];

impl Source {
    /// Returns the source of this host's facts.
    pub fn this_host(interval: Duration) -> Self {
        let variable = |name: &str| Some((name.to_owned(), std::env::var(name).ok()?));
        Self {
            root: PathBuf::from("/"),
            interval,
            nvml: true,
            paths: SearchPaths::of_environment(),
            service: std::env::var_os(SERVICE),
            environment: VARIABLES.into_iter().filter_map(variable).collect(),
        }
    }

    /// Returns a source with the files below a root, without NVML and without this process's environment.
    pub fn files_below(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            interval: Duration::ZERO,
            nvml: false,
            paths: SearchPaths::default(),
            service: None,
            environment: Vec::new(),
        }
    }
}

impl Facts {
    /// Reads all facts, and the counters again after the interval.
    pub fn read(source: &Source, rules: &Rules) -> Self {
        let root = &source.root;
        let reading = source.nvml.then(gpu::nvml::NvmlReading::start_reading);
        let mut facts = Self {
            nics: nic::read_nics(root),
            counters: nic::read_all_counters(root),
            system: system::read_system(root, source.service.as_deref()),
            environment: source.environment.clone(),
            ..Self::default()
        };
        if let Some(reading) = &reading {
            facts.gpus = reading.first_reading();
        }
        gpu::nvml::on_bus(&mut facts.gpus, root);
        let libraries = || libraries::find_libraries(root, &source.paths);
        // Large files are read while the counters count.
        facts.libraries = thread::scope(|scope| {
            let found = thread::Builder::new().spawn_scoped(scope, libraries);
            facts.messages = kernel::read_messages(root, rules);
            if !source.interval.is_zero() && (!facts.counters.is_empty() || !facts.gpus.counters.is_empty()) {
                thread::sleep(source.interval);
                counters::complete_counters(&mut facts.counters, &nic::read_all_counters(root));
                if let Some(reading) = &reading {
                    reading.complete_counters(&mut facts.gpus);
                }
            }
            match found {
                Ok(found) => found.join().unwrap_or_default(),
                Err(_) => libraries(),
            }
        });
        facts
    }
}
