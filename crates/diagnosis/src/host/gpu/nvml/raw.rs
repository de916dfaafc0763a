//! Calls of NVML missing in the wrapper: values of one link, remapped rows, the fabric.

use std::mem;

use nvml_wrapper::Nvml;
use nvml_wrapper_sys::bindings::{field_id, nvmlFieldValue_t, nvmlGpuFabricInfo_v3_t};

use super::super::{Fabric, Rows};
use super::NvmlDevice;

/// Receive errors, recovery events, and blocks sent again by the physical layer: of GPUs since Blackwell.
const LINK_COUNTERS: [(u32, &str); 3] = [
    (field_id::NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, "receive errors"),
    (field_id::NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, "recovery events"),
    // NVML_FI_DEV_NVLINK_PLR_XMIT_RETRY_BLOCKS, missing in the bindings.
    (295, "retried blocks"),
];

/// Returns the replaced rows of memory.
pub(super) fn remapped_rows(nvml: &Nvml, device: &NvmlDevice<'_>) -> Option<Rows> {
    let call = nvml.lib().nvmlDeviceGetRemappedRows.as_ref().ok()?;
    let (mut corrected, mut uncorrected, mut pending, mut failed) = (0, 0, 0, 0);
    // SAFETY: the handle belongs to this open library, and all pointers are valid for the call.
    let code = unsafe { call(device.handle(), &mut corrected, &mut uncorrected, &mut pending, &mut failed) };
    (code == 0).then_some(Rows { corrected, uncorrected, pending: pending != 0, failed: failed != 0 })
}

/// Returns NVML's advice for this GPU (driver 570 and later).
pub(super) fn recovery_action(nvml: &Nvml, device: &NvmlDevice<'_>) -> Option<u32> {
    read_number(nvml, device, field_id::NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
}

/// Returns the number of NVLinks.
pub(super) fn link_count(nvml: &Nvml, device: &NvmlDevice<'_>) -> Option<u32> {
    read_number(nvml, device, field_id::NVML_FI_DEV_NVLINK_LINK_COUNT)
}

/// Returns the number of links of NVLink-C2C, if the first one is active. It represents all.
pub(super) fn c2c_links(nvml: &Nvml, device: &NvmlDevice<'_>) -> Option<u32> {
    let active = read_number(nvml, device, field_id::NVML_FI_DEV_C2C_LINK_GET_STATUS) == Some(1);
    read_number(nvml, device, field_id::NVML_FI_DEV_C2C_LINK_COUNT).filter(|count| active && *count > 0)
}

/// Returns the speed of a link in Mbit/s.
pub(super) fn link_speed(nvml: &Nvml, device: &NvmlDevice<'_>, link: u32) -> Option<u64> {
    read_fields(nvml, device, &[(field_id::NVML_FI_DEV_NVLINK_GET_SPEED, link)]).first().copied().flatten()
}

/// Returns the error counters of a link available on the GPU.
pub(super) fn link_counters(
    nvml: &Nvml,
    device: &NvmlDevice<'_>,
    link: u32,
) -> impl Iterator<Item = (&'static str, u64)> + use<> {
    let values = read_fields(nvml, device, &LINK_COUNTERS.map(|(id, _)| (id, link)));
    LINK_COUNTERS.into_iter().zip(values).filter_map(|((_, name), value)| Some((name, value?)))
}

/// Returns the value of a field of the GPU, or of its first link.
fn read_number(nvml: &Nvml, device: &NvmlDevice<'_>, field: u32) -> Option<u32> {
    let value = read_fields(nvml, device, &[(field, 0)]).first().copied().flatten()?;
    u32::try_from(value).ok()
}

/// Returns values of fields, each of a scope such as a link, or `None` for a field missing in the GPU or the
/// driver.
fn read_fields(nvml: &Nvml, device: &NvmlDevice<'_>, fields: &[(u32, u32)]) -> Vec<Option<u64>> {
    let Ok(call) = nvml.lib().nvmlDeviceGetFieldValues.as_ref() else { return Vec::new() };
    let mut raw: Vec<nvmlFieldValue_t> = fields
        .iter()
        .map(|&(field, scope)| {
            // SAFETY: a plain structure of numbers, and zeros are valid for all of them.
            let zero: nvmlFieldValue_t = unsafe { mem::zeroed() };
            nvmlFieldValue_t { fieldId: field, scopeId: scope, ..zero }
        })
        .collect();
    let Ok(count) = i32::try_from(raw.len()) else { return Vec::new() };
    // SAFETY: the handle belongs to this open library, and the array has as many elements as the call is
    // told.
    if unsafe { call(device.handle(), count, raw.as_mut_ptr()) } != 0 {
        return Vec::new();
    }
    raw.iter().map(number_of_field).collect()
}

/// Returns the value of a field as a nonnegative number.
fn number_of_field(raw: &nvmlFieldValue_t) -> Option<u64> {
    if raw.nvmlReturn != 0 {
        return None;
    }
    // SAFETY: all fields of the union are numbers. The type says which of them is valid, and the rest is
    // zero.
    unsafe {
        match raw.valueType {
            1 => Some(u64::from(raw.value.uiVal)),
            2 => Some(raw.value.ulVal),
            3 => Some(raw.value.ullVal),
            4 => u64::try_from(raw.value.sllVal).ok(),
            5 => u64::try_from(raw.value.siVal).ok(),
            6 => Some(u64::from(raw.value.usVal)),
            _ => None,
        }
    }
}

/// Returns the membership in a fabric, or `None` if the GPU has none.
pub(super) fn read_fabric(nvml: &Nvml, device: &NvmlDevice<'_>) -> Option<Fabric> {
    let call = nvml.lib().nvmlDeviceGetGpuFabricInfoV.as_ref().ok()?;
    // NVML's version of a structure is its size and its number. The second ends before `healthSummary`.
    let sizes = [
        (3, mem::size_of::<nvmlGpuFabricInfo_v3_t>()),
        (2, mem::offset_of!(nvmlGpuFabricInfo_v3_t, healthSummary)),
    ];
    for (version, size) in sizes {
        // SAFETY: a plain structure of numbers, and zeros are valid for all of them.
        let mut info: nvmlGpuFabricInfo_v3_t = unsafe { mem::zeroed() };
        info.version = u32::try_from(size).ok()? | (version << 24);
        // SAFETY: the handle belongs to this open library, and the structure is at least as long as its
        // version says.
        if unsafe { call(device.handle(), &mut info) } != 0 {
            continue;
        }
        let cluster: String = info.clusterUuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let state = u32::from(info.state);
        return (state != 0).then(|| Fabric {
            state,
            status: info.status,
            cluster: Some(cluster).filter(|text| text.bytes().any(|digit| digit != b'0')),
            clique: info.cliqueId,
            health: Some(info.healthMask),
        });
    }
    None
}
