//! Kinds of GPUs and their links, as data.

use std::sync::OnceLock;

use serde::{Deserialize, Serialize};

/// The compiled-in file of GPUs.
const FILE: &str = include_str!("../data/gpus.toml");

/// A kind of GPU and its links.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct GpuKind {
    /// Name in files of expectations: `H100 PCIe`.
    pub key: String,
    /// Words of the names that drivers report.
    #[serde(skip_serializing)]
    name: Vec<String>,
    /// GB/s of all NVLinks in one direction.
    #[serde(default)]
    pub nvlink_gbps: Option<f64>,
    /// Number of these NVLinks.
    #[serde(default)]
    pub nvlinks: Option<u32>,
    /// The NVLinks need a bridge or another board, or two GPUs share only some of them.
    #[serde(default)]
    pub optional: bool,
    /// GB/s of the link to the host in one direction.
    pub host_gbps: f64,
    /// The NVSwitches of its systems reduce and multicast (NVLink SHARP, NVLS).
    #[serde(default)]
    pub nvls: bool,
    /// NVLink can connect GPUs of several hosts.
    #[serde(default)]
    pub multi_host: bool,
    /// Source of the values.
    pub source: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct GpuFile {
    gpu: Vec<GpuKind>,
}

/// Returns the kind of GPU with a reported name: `NVIDIA H100 80GB HBM3`. Instances of a divided GPU (MIG)
/// have none.
pub fn find_gpu_kind(name: &str) -> Option<&'static GpuKind> {
    let upper = name.to_ascii_uppercase();
    let words: Vec<&str> = upper.split(|letter: char| !letter.is_ascii_alphanumeric()).collect();
    if words.contains(&"MIG") {
        return None;
    }
    let has = |word: &String| words.contains(&word.to_ascii_uppercase().as_str());
    all_gpu_kinds().iter().find(|kind| kind.name.iter().all(has))
}

/// Returns all known kinds of GPUs.
pub fn all_gpu_kinds() -> &'static [GpuKind] {
    static KINDS: OnceLock<Vec<GpuKind>> = OnceLock::new();
    // A test fails for a file that cannot be read.
    KINDS.get_or_init(|| toml::from_str::<GpuFile>(FILE).unwrap_or_default().gpu)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_of_gpus_is_whole() {
        let file: GpuFile = toml::from_str(FILE).unwrap();
        assert!(file.gpu.len() > 30);
        for kind in &file.gpu {
            assert!(kind.host_gbps > 0.0 && kind.nvlink_gbps.is_none_or(|rate| rate > 0.0), "{}", kind.key);
            assert!(!kind.nvls || kind.nvlink_gbps.is_some(), "{}", kind.key);
            // No earlier kind hides it.
            let name = kind.name.join(" ");
            assert_eq!(find_gpu_kind(&name).map(|found| &found.key), Some(&kind.key), "{name}");
        }
    }

    #[test]
    fn names_of_drivers_have_their_kind() {
        for (name, key) in [
            ("NVIDIA H100 80GB HBM3", Some("H100")),
            ("NVIDIA H100 PCIe", Some("H100 PCIe")),
            ("NVIDIA H100 NVL", Some("H100 NVL")),
            ("NVIDIA H200", Some("H200")),
            ("NVIDIA A100-SXM4-80GB", Some("A100")),
            ("NVIDIA A100 80GB PCIe", Some("A100 PCIe")),
            ("NVIDIA A100-PCIE-40GB", Some("A100 PCIe")),
            ("NVIDIA A10G", Some("A10G")),
            ("NVIDIA A10", Some("A10")),
            ("Tesla V100-SXM2-32GB", Some("V100")),
            ("NVIDIA L4", Some("L4")),
            ("NVIDIA GeForce RTX 4090", Some("RTX 4090")),
            ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", None),
            ("NVIDIA GH200 480GB", Some("GH200")),
            ("AMD Instinct MI300X", Some("MI300X")),
            ("host memory", None),
            ("", None),
        ] {
            assert_eq!(find_gpu_kind(name).map(|kind| kind.key.as_str()), key, "{name}");
        }
    }
}
