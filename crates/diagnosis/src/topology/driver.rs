//! GPUs and NVLinks as the NVIDIA driver shows them through NVML.

use nvml_wrapper::enum_wrappers::nv_link::Capability;
use nvml_wrapper::enums::device::SampleValue;
use nvml_wrapper::error::NvmlError;
use nvml_wrapper::structs::device::FieldId;
use nvml_wrapper::sys_exports::field_id::{NVML_FI_DEV_C2C_LINK_COUNT, NVML_FI_DEV_C2C_LINK_GET_STATUS};
use nvml_wrapper::{Device, Nvml};

use super::model::{PcieLink, normal_bus_id, transfer_rate};

/// Largest number of NVLinks of a GPU: 18 of Hopper and Blackwell, and room for later ones.
const MOST_LINKS: u32 = 36;

/// The answer of the driver.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Driver {
    /// The GPUs that this process may use.
    pub gpus: Vec<DriverGpu>,
    /// GPUs that the driver counts, and about which it gave no answer, with the reason.
    pub silent: Vec<String>,
}

/// A GPU.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DriverGpu {
    /// Number in the driver and in `nvidia-smi`.
    pub index: u32,
    /// PCI bus ID, as the kernel writes it.
    pub bus_id: String,
    /// Product.
    pub name: Option<String>,
    /// PCI device number.
    pub device: Option<u32>,
    /// PCIe link.
    pub pcie: PcieLink,
    /// NVLinks; `None` when the driver does not answer.
    pub links: Option<Vec<DriverLink>>,
    /// Active links of NVLink-C2C.
    pub c2c_links: Option<u32>,
}

/// An NVLink.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DriverLink {
    /// True when the link is trained.
    pub is_active: bool,
    /// Bus ID of the other end, where it is visible.
    pub remote: Option<String>,
}

/// Asks the driver. An error says why it does not answer, as a part of a sentence.
pub fn ask() -> Result<Driver, String> {
    let nvml = Nvml::init().map_err(|error| match error {
        NvmlError::LibloadingError(_) => "libnvidia-ml.so.1 is not installed".to_owned(),
        other => other.to_string(),
    })?;
    let count = nvml.device_count().map_err(|error| error.to_string())?;
    let mut driver = Driver::default();
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| read_gpu(&device, index)) {
            Ok(gpu) => driver.gpus.push(gpu),
            Err(error) => driver.silent.push(format!("GPU{index}: {error}")),
        }
    }
    Ok(driver)
}

fn read_gpu(device: &Device<'_>, index: u32) -> Result<DriverGpu, NvmlError> {
    let pci = device.pci_info()?;
    let max_gts = device.max_pcie_link_gen().ok().and_then(transfer_rate);
    Ok(DriverGpu {
        index,
        bus_id: normal_bus_id(&pci.bus_id),
        name: device.name().ok(),
        device: Some(pci.pci_device_id >> 16),
        pcie: PcieLink {
            gts: device.current_pcie_link_gen().ok().and_then(transfer_rate),
            width: device.current_pcie_link_width().ok().filter(|width| *width > 0),
            max_gts,
            max_width: device.max_pcie_link_width().ok().filter(|width| *width > 0),
        },
        links: read_links(device),
        c2c_links: read_c2c_links(device),
    })
}

/// Reads the NVLinks that can carry P2P; `None` when the driver refuses the question for another reason than that
/// there is no such link.
fn read_links(device: &Device<'_>) -> Option<Vec<DriverLink>> {
    let mut links = Vec::new();
    for number in 0..MOST_LINKS {
        let link = device.link_wrapper_for(number);
        match link.is_active() {
            Ok(is_active) => {
                if matches!(link.has_capability(Capability::P2p), Ok(false)) {
                    continue;
                }
                let remote = link.remote_pci_info().ok().map(|pci| normal_bus_id(&pci.bus_id));
                // Invisible devices have an empty bus ID.
                let remote = remote.filter(|bus_id| bus_id.contains(':'));
                links.push(DriverLink { is_active, remote });
            }
            Err(NvmlError::InvalidArg) => break,
            // A GPU without NVLink.
            Err(NvmlError::NotSupported) => {}
            Err(_) => return None,
        }
    }
    Some(links)
}

fn read_c2c_links(device: &Device<'_>) -> Option<u32> {
    let count = field(device, NVML_FI_DEV_C2C_LINK_COUNT)?;
    // NVML selects the link by a scope that the wrapper does not set: link 0 stands for all.
    (count > 0 && field(device, NVML_FI_DEV_C2C_LINK_GET_STATUS) == Some(1)).then_some(count)
}

fn field(device: &Device<'_>, id: u32) -> Option<u32> {
    let sample = device.field_values_for(&[FieldId(id)]).ok()?.pop()?.ok()?;
    match sample.value.ok()? {
        SampleValue::U32(value) => Some(value),
        SampleValue::U64(value) => u32::try_from(value).ok(),
        _ => None,
    }
}
