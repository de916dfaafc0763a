//! PCI bridges with their access control services (ACS), and the IOMMU.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read as _;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::super::files::{names_in_folder, read_text};
use super::super::pci;

/// Bytes of the configuration space.
const SPACE: usize = 4096;
/// Number of the capability of access control services.
const ACS: u32 = 0x000d;
/// Bits that send traffic between devices through the root complex: requests, and completions.
const REDIRECTS: u16 = 0x0004 | 0x0008;

/// A PCI bridge above a GPU or a network device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bridge {
    /// `0000:16:00.0`.
    pub bus_id: String,
    /// Control bits of its access control services, or `None` if it has none, or if they cannot be read.
    pub control: Option<u16>,
    /// True if its configuration space can be read. This needs root.
    pub readable: bool,
}

/// State of the IOMMU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Iommu {
    /// IOMMUs used by the kernel.
    pub units: usize,
    /// Modes of the groups of devices, with the number of groups: `DMA-FQ`, `identity`.
    pub modes: BTreeMap<String, usize>,
}

impl Bridge {
    /// Returns true if traffic between devices below goes through the root complex.
    pub fn redirects_traffic(&self) -> bool {
        self.control.is_some_and(|control| control & REDIRECTS != 0)
    }
}

impl Iommu {
    pub(super) fn read(root: &Path) -> Self {
        let groups = root.join("sys/kernel/iommu_groups");
        let mut modes = BTreeMap::new();
        for group in names_in_folder(&groups) {
            if let Some(mode) = read_text(&groups.join(group).join("type")) {
                *modes.entry(mode).or_default() += 1;
            }
        }
        Self { units: names_in_folder(&root.join("sys/class/iommu")).len(), modes }
    }

    /// Returns true if addresses of devices are translated.
    pub fn translates_addresses(&self) -> bool {
        self.modes.keys().any(|mode| mode.starts_with("DMA"))
    }
}

/// Returns the bridges above GPUs of NVIDIA and above RDMA devices.
pub(super) fn read_bridges(root: &Path) -> Vec<Bridge> {
    let devices = root.join(pci::DEVICES);
    let mut found: BTreeMap<String, Bridge> = BTreeMap::new();
    for function in pci::read_functions(root) {
        if !function.is_gpu() && !function.folder.join("infiniband").exists() {
            continue;
        }
        let mut above = pci::bus_ids_in_path(&function.folder);
        above.pop();
        for name in above {
            found.entry(name.clone()).or_insert_with(|| read_bridge(&devices.join(&name), name));
        }
    }
    found.into_values().collect()
}

fn read_bridge(folder: &Path, bus_id: String) -> Bridge {
    let mut space = Vec::new();
    let read = fs::File::open(folder.join("config"))
        .and_then(|file| file.take(SPACE as u64).read_to_end(&mut space))
        .unwrap_or(0);
    // Without root the kernel gives the first 64 bytes.
    Bridge { bus_id, control: access_control_register(&space), readable: read > 256 }
}

/// Returns the control register of the access control services in a configuration space.
fn access_control_register(space: &[u8]) -> Option<u16> {
    let word = |at: usize| Some(u32::from_le_bytes(*space.get(at..)?.first_chunk()?));
    let mut at = 0x100;
    // Each capability has at least four bytes, so a circle ends.
    for _ in 0..(SPACE - 0x100) / 4 {
        let header = word(at)?;
        if header & 0xffff == ACS {
            return Some(u16::from_le_bytes(*space.get(at + 6..)?.first_chunk()?));
        }
        at = usize::try_from(header >> 20).ok()?;
        if at < 0x100 {
            return None;
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_control_register_is_found_behind_other_capabilities_and_never_in_a_circle() {
        let mut space = vec![0_u8; SPACE];
        space[0x100..0x104].copy_from_slice(&(0x0001_u32 | 0x1_0000 | 0x148 << 20).to_le_bytes());
        space[0x148..0x14c].copy_from_slice(&(ACS | 0x1_0000).to_le_bytes());
        space[0x14e..0x150].copy_from_slice(&0x001d_u16.to_le_bytes());
        assert_eq!(access_control_register(&space), Some(0x1d));
        space[0x148..0x14c].copy_from_slice(&(0x0002_u32 | 0x148 << 20).to_le_bytes());
        assert_eq!(access_control_register(&space), None);
        assert_eq!(access_control_register(&space[..64]), None);
        assert_eq!(access_control_register(&[0xff; 0x102]), None);
    }
}
