//! The interfaces that libfabric reports (`fi_getinfo`), in the form of the JSON output.

use std::collections::BTreeSet;

use collectives::fabric;
use serde::Serialize;

/// An interface: a provider with a fabric, a domain, and an endpoint type. Names are libfabric's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "fields are named as libfabric names them")]
pub struct Entry {
    pub provider: String,
    pub provider_version: String,
    pub fabric: String,
    pub domain: String,
    pub endpoint: String,
    pub protocol: String,
    pub protocol_version: u32,
    pub address_format: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub capabilities: BTreeSet<String>,
    pub mode: BTreeSet<String>,
    pub mr_mode: BTreeSet<String>,
    pub threading: String,
    pub control_progress: String,
    pub data_progress: String,
    pub address_vector: String,
    pub message_order: BTreeSet<String>,
    pub inject_bytes: usize,
    pub max_message_bytes: usize,
    pub transmit_size: usize,
    pub receive_size: usize,
    pub transmit_segments: usize,
    pub receive_segments: usize,
    pub rma_segments: usize,
    pub completion_data_bytes: usize,
    pub key_bytes: usize,
    pub max_endpoints: usize,
    pub max_completion_queues: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nic: Option<Nic>,
}

/// The device of an entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "fields are named as libfabric names them")]
pub struct Nic {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_version: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vendor_id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub driver: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub firmware: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<Link>,
}

/// The link of a device. A number that the provider does not report is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[allow(missing_docs, reason = "fields are named as libfabric names them")]
pub struct Link {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    pub mtu_bytes: usize,
    pub bits_per_second: usize,
    pub state: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub network: Option<String>,
}

impl From<fabric::Info> for Entry {
    fn from(info: fabric::Info) -> Self {
        Self {
            provider: info.provider,
            provider_version: info.provider_version.to_string(),
            fabric: info.fabric,
            domain: info.domain,
            endpoint: info.endpoint,
            protocol: info.protocol,
            protocol_version: info.protocol_version,
            address_format: info.address_format,
            address: info.address,
            capabilities: info.capabilities,
            mode: info.mode,
            mr_mode: info.mr_mode,
            threading: info.threading,
            control_progress: info.control_progress,
            data_progress: info.data_progress,
            address_vector: info.address_vector,
            message_order: info.message_order,
            inject_bytes: info.inject_size,
            max_message_bytes: info.max_message_size,
            transmit_size: info.transmit_size,
            receive_size: info.receive_size,
            transmit_segments: info.transmit_segments,
            receive_segments: info.receive_segments,
            rma_segments: info.rma_segments,
            completion_data_bytes: info.completion_data_size,
            key_bytes: info.key_size,
            max_endpoints: info.endpoints,
            max_completion_queues: info.completion_queues,
            nic: info.nic.map(Nic::from),
        }
    }
}

impl From<fabric::Nic> for Nic {
    fn from(nic: fabric::Nic) -> Self {
        Self {
            device: nic.device,
            device_id: nic.device_id,
            device_version: nic.device_version,
            vendor_id: nic.vendor_id,
            driver: nic.driver,
            firmware: nic.firmware,
            pci: nic.pci,
            link: nic.link.map(|link| Link {
                address: link.address,
                mtu_bytes: link.mtu,
                bits_per_second: link.speed,
                state: link.state.name().to_owned(),
                network: link.network,
            }),
        }
    }
}
