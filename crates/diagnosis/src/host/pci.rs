//! Functions on the PCI bus, and their links.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::files::{driver_of_device, names_in_folder, read_hexadecimal, read_number, read_text};

/// The folder of all functions.
pub(crate) const DEVICES: &str = "sys/bus/pci/devices";
/// NVIDIA's number on the PCI bus.
const NVIDIA: u32 = 0x10de;

/// A function on the PCI bus.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// `0000:00:06.0`.
    pub(crate) bus_id: String,
    /// Its real folder.
    pub(crate) folder: PathBuf,
    /// Number of the manufacturer.
    pub(crate) vendor: u32,
    /// The manufacturer's number of the device.
    pub(crate) device: u32,
    /// Class of devices, of six hexadecimal digits.
    pub(crate) class: u32,
}

/// A device on the PCI bus and its driver.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnPci {
    /// `0000:00:06.0`.
    pub bus_id: String,
    /// The device's driver.
    pub driver: Option<String>,
}

/// Reads all functions, in the order of their bus IDs.
pub(crate) fn read_functions(root: &Path) -> Vec<Function> {
    let devices = root.join(DEVICES);
    let function = |bus_id: String| {
        let folder = folder_of_function(&devices.join(&bus_id));
        let read = |file: &str| read_hexadecimal(&folder.join(file)).unwrap_or_default();
        Function { vendor: read("vendor"), device: read("device"), class: read("class"), folder, bus_id }
    };
    let mut functions: Vec<Function> = names_in_folder(&devices).into_iter().map(function).collect();
    // The natural order of names takes the digits of hexadecimal numbers apart.
    functions.sort_by(|one, other| one.bus_id.cmp(&other.bus_id));
    functions
}

impl Function {
    /// Returns true for a GPU of NVIDIA: a VGA or 3D controller.
    pub(crate) fn is_gpu(&self) -> bool {
        self.vendor == NVIDIA && matches!(self.class >> 8, 0x0300 | 0x0302)
    }

    /// Returns true for an NVSwitch: a bridge of NVIDIA of another kind than PCI.
    pub(crate) fn is_nvswitch(&self) -> bool {
        self.vendor == NVIDIA && self.class >> 8 == 0x0680
    }

    /// Returns the bus ID and the driver.
    pub(crate) fn on_pci(&self) -> OnPci {
        OnPci { bus_id: self.bus_id.clone(), driver: driver_of_device(&self.folder) }
    }
}

/// Returns the real folder of the PCI function of a device's folder. A virtual device may follow the
/// function: `0000:00:03.0/virtio2`.
pub(crate) fn folder_of_function(device: &Path) -> PathBuf {
    let real = device.canonicalize().ok();
    real.and_then(|real| real.ancestors().find(|path| has_bus_id(path)).map(Path::to_owned))
        .unwrap_or_else(|| device.to_owned())
}

/// Returns the bus ID of the PCI function of a device's folder.
pub(crate) fn bus_id(device: &Path) -> Option<String> {
    bus_ids_in_path(&device.canonicalize().ok()?).pop()
}

/// Returns the bus IDs in a real path: the ports above a function, the root port first, and the function.
pub(crate) fn bus_ids_in_path(real: &Path) -> Vec<String> {
    real.iter().filter_map(|name| name.to_str()).filter(|name| is_bus_id(name)).map(str::to_owned).collect()
}

fn has_bus_id(path: &Path) -> bool {
    path.file_name().and_then(|name| name.to_str()).is_some_and(is_bus_id)
}

/// Returns true for `0000:1b:00.0`.
pub(crate) fn is_bus_id(name: &str) -> bool {
    let mut parts = name.split([':', '.']);
    let hexadecimal = |part: Option<&str>, least: usize| {
        part.is_some_and(|part| part.len() >= least && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    hexadecimal(parts.next(), 4)
        && hexadecimal(parts.next(), 2)
        && hexadecimal(parts.next(), 2)
        && hexadecimal(parts.next(), 1)
        && parts.next().is_none()
        && name.contains('.')
}

/// A PCIe link: present and largest rate. Fields are `None` if the machine does not provide them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PcieLink {
    /// Present transfer rate per lane in GT/s.
    pub gts: Option<f64>,
    /// Present number of lanes.
    pub width: Option<u32>,
    /// Largest transfer rate supported by both ends.
    pub max_gts: Option<f64>,
    /// Largest number of lanes supported by both ends.
    pub max_width: Option<u32>,
}

impl PcieLink {
    /// Reads the link of the function in this folder.
    pub(crate) fn read(folder: &Path) -> Self {
        let rate = |file: &str| read_text(&folder.join(file)).as_deref().and_then(read_rate);
        // 255: the kernel could not read it.
        let width =
            |file: &str| read_number(&folder.join(file)).filter(|width: &u32| (1..=32).contains(width));
        Self {
            gts: rate("current_link_speed"),
            width: width("current_link_width"),
            max_gts: rate("max_link_speed"),
            max_width: width("max_link_width"),
        }
    }

    /// Reads the same link. The port above limits its largest rate and width.
    pub(crate) fn read_with_port(folder: &Path) -> Self {
        let own = Self::read(folder);
        let Some(port) = folder.parent().filter(|port| has_bus_id(port)).map(Self::read) else {
            return own;
        };
        Self {
            max_gts: own.max_gts.map(|gts| port.max_gts.map_or(gts, |port| gts.min(port))),
            max_width: own.max_width.map(|width| port.max_width.map_or(width, |port| width.min(port))),
            ..own
        }
    }

    /// Returns the link in short: `Gen5 x16`. Empty for an unknown link.
    pub fn short_text(&self) -> String {
        let generation = self.gts.and_then(pcie_generation).map(|generation| format!("Gen{generation}"));
        let width = self.width.map(|width| format!("x{width}"));
        [generation, width].into_iter().flatten().collect::<Vec<_>>().join(" ")
    }

    /// Returns the one-way bandwidth in GB/s, without the protocol's overhead.
    pub fn gbytes_per_s(&self) -> Option<f64> {
        // 8b/10b up to 5 GT/s, 128b/130b from 8 GT/s, and 242/256 with FLITs.
        let gts = self.gts?;
        let coded = if gts < 8.0 {
            0.8
        } else if gts < 64.0 {
            128.0 / 130.0
        } else {
            242.0 / 256.0
        };
        Some(gts * coded * f64::from(self.width?) / 8.0)
    }
}

/// Returns the PCIe generation of a transfer rate in GT/s.
pub(crate) fn pcie_generation(gts: f64) -> Option<u32> {
    [2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0]
        .iter()
        .position(|rate| (rate - gts).abs() < 0.1)
        .map(|at| at as u32 + 1)
}

/// Returns the transfer rate of a PCIe generation in GT/s.
pub(crate) fn transfer_rate(generation: u32) -> Option<f64> {
    [2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0].get(generation.checked_sub(1)? as usize).copied()
}

/// Returns the transfer rate in a text of the kernel or of NCCL: `32.0 GT/s PCIe`, `16 GT/s`. Returns `None`
/// for `Unknown`.
pub(crate) fn read_rate(text: &str) -> Option<f64> {
    let rate: f64 = text.split_whitespace().next()?.parse().ok()?;
    (rate.is_finite() && rate > 0.0 && rate < 1000.0).then_some(rate)
}

/// Returns a bus ID in the kernel's form: `0000:1b:00.0`. NVML has eight digits for the domain, and capitals.
pub(crate) fn normal_bus_id(text: &str) -> String {
    let lower = text.trim().to_ascii_lowercase();
    match lower.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => lower,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bus_ids_are_written_as_the_kernel_does() {
        assert_eq!(normal_bus_id("00000000:1B:00.0"), "0000:1b:00.0");
        assert_eq!(normal_bus_id("10000:E1:00.0"), "10000:e1:00.0");
        assert_eq!(normal_bus_id("00000002:0F:00.0"), "0002:0f:00.0");
        assert_eq!(normal_bus_id("0000:00:06.0\n"), "0000:00:06.0");
        assert_eq!(normal_bus_id("日本語日本:1"), "日本語日本:1");
    }

    #[test]
    fn rates_are_read_as_the_kernel_and_nccl_write_them() {
        for (text, expected) in [
            ("32.0 GT/s PCIe", Some(32.0)),
            ("16 GT/s", Some(16.0)),
            ("2.5 GT/s PCIe", Some(2.5)),
            ("Unknown", None),
            ("", None),
            ("nan GT/s", None),
            ("-5 GT/s", None),
            ("inf", None),
        ] {
            assert_eq!(read_rate(text), expected, "{text}");
        }
    }

    #[test]
    fn the_link_in_short_has_what_is_known() {
        let link = |gts, width| PcieLink { gts, width, ..PcieLink::default() };
        assert_eq!(link(Some(32.0), Some(16)).short_text(), "Gen5 x16");
        assert_eq!(link(None, Some(16)).short_text(), "x16");
        assert_eq!(link(Some(8.0), None).short_text(), "Gen3");
        assert_eq!(link(None, None).short_text(), "");
        let gbytes = link(Some(32.0), Some(16)).gbytes_per_s().unwrap();
        assert!((gbytes - 63.0).abs() < 0.1, "{gbytes}");
        assert_eq!((transfer_rate(0), transfer_rate(5), transfer_rate(9)), (None, Some(32.0), None));
    }
}
