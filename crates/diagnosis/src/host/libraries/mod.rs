//! Libraries available to a job on a host: their places, versions and builds, and the one in use.

mod cache;
mod elf;
mod findings;
mod known;
mod search;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub(super) use findings::{judge_libraries, library_sections};
pub(super) use known::known_faults_section as known_faults;
pub use search::SearchPaths;
pub(super) use search::find_libraries;

/// Kind of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LibraryKind {
    /// NCCL.
    Nccl,
    /// Network plugin of NCCL.
    NetPlugin,
    /// Tuner plugin of NCCL.
    TunerPlugin,
    /// Another plugin of NCCL: environment, profiler, in-network collectives.
    Plugin,
    /// libfabric.
    Libfabric,
    /// Library of the NVIDIA driver.
    Driver,
    /// NVML.
    Nvml,
    /// RDMA.
    Verbs,
}

/// A library found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Library {
    /// Kind.
    pub kind: LibraryKind,
    /// Name requested by programs: `libnccl.so.2`.
    pub name: String,
    /// First path found.
    pub path: String,
    /// The file, when the path is a link to it.
    pub file: String,
    /// Source of the path: `LD_LIBRARY_PATH`, `ld.so.cache`, `Python`, or a folder.
    pub found: String,
    /// True if the loader takes this file for the name.
    pub first: bool,
    /// Version: `2.28.9`.
    pub version: Option<String>,
    /// Build suffix of the version: `+cuda13.0`.
    pub suffix: Option<String>,
    /// GNU build ID.
    pub build_id: Option<String>,
    /// Bytes.
    pub size: u64,
    /// Interfaces of a plugin: `ncclNetPlugin_v10`.
    pub interfaces: Vec<String>,
    /// Reason why the file cannot be a library here.
    pub problem: Option<String>,
}

impl Library {
    /// Returns the version and build: `2.28.9+cuda13.0, build 1a2b3c4d`.
    pub fn version_and_build(&self) -> String {
        let version = self.version.as_deref().unwrap_or("unknown version");
        let build = self.build_id.as_ref().map(|id| format!(", build {}", id.get(..12).unwrap_or(id)));
        format!("{version}{}{}", self.suffix.as_deref().unwrap_or_default(), build.unwrap_or_default())
    }
}

/// Returns the kind of a library by its file name, and the name requested by programs.
pub(super) fn kind_of_file(file: &str) -> Option<(LibraryKind, String)> {
    let (stem, rest) = file.split_once(".so")?;
    if !(rest.is_empty() || rest.starts_with('.')) {
        return None;
    }
    let kind = match stem {
        "libnccl" => LibraryKind::Nccl,
        "libfabric" => LibraryKind::Libfabric,
        "libcuda" => LibraryKind::Driver,
        "libnvidia-ml" => LibraryKind::Nvml,
        "libibverbs" | "libefa" | "libmlx5" => LibraryKind::Verbs,
        _ if stem.starts_with("libnccl-net") => LibraryKind::NetPlugin,
        _ if stem.starts_with("libnccl-tuner") || stem.starts_with("libnccl-ofi-tuner") => {
            LibraryKind::TunerPlugin
        }
        _ if ["libnccl-env", "libnccl-profiler", "libnccl-gin"].iter().any(|name| stem.starts_with(name)) => {
            LibraryKind::Plugin
        }
        _ => return None,
    };
    // Programs ask for the first number, as in `libnccl.so.2`. Plugins have none.
    let number = rest.trim_start_matches('.').split('.').next().unwrap_or_default();
    let name = match kind {
        LibraryKind::Nccl => "libnccl.so.2".to_owned(),
        // A number with more digits is a driver's version: `libcuda.so.580.95.05`.
        LibraryKind::Libfabric | LibraryKind::Driver | LibraryKind::Nvml | LibraryKind::Verbs
            if (1..3).contains(&number.len()) =>
        {
            format!("{stem}.so.{number}")
        }
        LibraryKind::Libfabric | LibraryKind::Driver | LibraryKind::Nvml | LibraryKind::Verbs => {
            format!("{stem}.so.1")
        }
        _ => format!("{stem}.so"),
    };
    Some((kind, name))
}
