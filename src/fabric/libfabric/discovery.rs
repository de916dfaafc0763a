//! Discovery of libfabric's providers on this machine: the results of `fi_getinfo` as plain values.

use std::collections::BTreeSet;
use std::ffi::{CString, c_int, c_void};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs as _, UdpSocket};

use fabric_sys::{Fabric, Version, fi_info, fi_type, fid_nic};

use crate::fabric::error::{Error, Failure};
use crate::fabric::libfabric::provider::{InfoList, InfoQuery, copy_text, set_string};

mod capability;
mod info;

pub use capability::{Capability, EndpointType};
pub use info::{Hints, Info, Link, Nic, Registered};

/// Lists the entries of `library` on this machine that match `hints`, best first; may be empty.
///
/// Uses `fi_getinfo`. It can take 0.1 seconds: providers look for their devices.
///
/// # Errors
/// [`Error::Call`] with libfabric's error, for instance for a hint with a zero byte.
pub fn discover(library: &'static Fabric, hints: &Hints) -> Result<Vec<Info>, Error> {
    let provider = hints.provider.as_deref();
    let bytes = |text: &Option<String>| {
        text.as_deref().map(CString::new).transpose().map_err(|_| {
            let provider = provider.unwrap_or("any provider");
            Failure::of_call(library, provider, "fi_getinfo", None, fabric_sys::FI_EINVAL, None)
        })
    };
    let (node, service) = (bytes(&hints.node)?, bytes(&hints.service)?);
    let question = InfoQuery { provider, node: node.as_deref(), service: service.as_deref(), flags: 0 };
    let list = InfoList::query_with_hints(library, &question, |entry| {
        // SAFETY: `query_with_hints` passes an entry with all its attributes and null names; nothing else
        // uses it.
        unsafe {
            (*entry).caps = hints.capabilities.iter().fold(0, |bits, capability| bits | capability.bit);
            (*entry).mode = !0;
            (*(*entry).domain_attr).mr_mode = EVERY_REGISTRATION;
            if let Some(kind) = hints.endpoint {
                (*(*entry).ep_attr).type_ = kind.raw_type();
            }
            if let Some(name) = &hints.fabric {
                set_string(&raw mut (*(*entry).fabric_attr).name, name)?;
            }
            if let Some(name) = &hints.domain {
                set_string(&raw mut (*(*entry).domain_attr).name, name)?;
            }
        }
        Ok(())
    })?;
    let named = |wanted: &Option<String>, name: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(name))
    };
    // shm ignores the node, and reaches this host alone.
    let elsewhere = hints.node.as_deref().is_some_and(|node| !is_this_host(node));
    Ok(list
        .iter()
        .filter(|entry| {
            !(elsewhere && entry.provider_name().split(';').any(|part| SHARED_MEMORY.contains(&part)))
        })
        // Some providers ignore the hints for domain and fabric; shm does.
        .filter(|entry| {
            named(&hints.domain, &entry.domain_name()) && named(&hints.fabric, &entry.fabric_name())
        })
        // SAFETY: an entry of the list, live meanwhile.
        .map(|entry| unsafe { entry_info(library, entry.as_ptr()) })
        .collect())
}

/// Lists the providers of `library`, including providers without a device here; but libfabric 1.17 omits
/// `efa` and `verbs` without devices.
///
/// Uses `fi_getinfo` with `FI_PROV_ATTR_ONLY`.
///
/// # Errors
/// [`Error::Call`] with libfabric's error.
pub fn registered(library: &'static Fabric) -> Result<Vec<Registered>, Error> {
    let question = InfoQuery { flags: fabric_sys::FI_PROV_ATTR_ONLY, ..InfoQuery::default() };
    let mut providers: Vec<Registered> = Vec::new();
    for entry in InfoList::query_with_hints(library, &question, |_| Ok(()))?.iter() {
        // SAFETY: the entry is live and its fabric's attributes are there.
        let version = unsafe { Version::from_raw((*(*entry.as_ptr()).fabric_attr).prov_version) };
        let provider = Registered { name: entry.provider_name(), version };
        if !providers.contains(&provider) {
            providers.push(provider);
        }
    }
    Ok(providers)
}

/// Providers over shared memory.
const SHARED_MEMORY: [&str; 2] = ["shm", "sm2"];

/// True for a name or address of this host, and for an address in a provider's own format: `fi_shm://1234`.
fn is_this_host(node: &str) -> bool {
    // Only an address of this host can be bound to.
    let is_here = |address: SocketAddr| UdpSocket::bind(address).is_ok();
    node.contains("://") || (node, 0).to_socket_addrs().is_ok_and(|mut all| all.any(is_here))
}

/// All kinds of registration, without the obsolete basic and scalable ones.
const EVERY_REGISTRATION: c_int = !((fabric_sys::FI_MR_BASIC.0 | fabric_sys::FI_MR_SCALABLE.0) as c_int);

/// # Safety
/// `entry` must be a live entry of `library` with all its attributes.
unsafe fn entry_info(library: &Fabric, entry: *const fi_info) -> Info {
    // SAFETY: the caller guarantees the entry; every libfabric from 1.17 on has these fields, names are null
    // or texts, and each value is described by its own kind.
    unsafe {
        let (fabric, domain, endpoint) = ((*entry).fabric_attr, (*entry).domain_attr, (*entry).ep_attr);
        let (transmit, receive) = ((*entry).tx_attr, (*entry).rx_attr);
        let name = |value: *const c_void, kind| value_name(library, value, kind);
        let names = |value: *const u64, kind| flag_names(&value_name(library, value.cast(), kind));
        Info {
            provider: copy_text((*fabric).prov_name),
            provider_version: Version::from_raw((*fabric).prov_version).to_string(),
            fabric: copy_text((*fabric).name),
            domain: copy_text((*domain).name),
            endpoint: name((&raw const (*endpoint).type_).cast(), fabric_sys::FI_TYPE_EP_TYPE),
            protocol: name((&raw const (*endpoint).protocol).cast(), fabric_sys::FI_TYPE_PROTOCOL),
            protocol_version: (*endpoint).protocol_version,
            address_format: name((&raw const (*entry).addr_format).cast(), fabric_sys::FI_TYPE_ADDR_FORMAT),
            address: endpoint_address((*entry).addr_format, (*entry).src_addr, (*entry).src_addrlen),
            capabilities: names(&raw const (*entry).caps, fabric_sys::FI_TYPE_CAPS),
            mode: names(&raw const (*entry).mode, fabric_sys::FI_TYPE_MODE),
            mr_mode: flag_names(&name((&raw const (*domain).mr_mode).cast(), fabric_sys::FI_TYPE_MR_MODE)),
            threading: name((&raw const (*domain).threading).cast(), fabric_sys::FI_TYPE_THREADING),
            control_progress: name(
                (&raw const (*domain).control_progress).cast(),
                fabric_sys::FI_TYPE_PROGRESS,
            ),
            data_progress: name((&raw const (*domain).data_progress).cast(), fabric_sys::FI_TYPE_PROGRESS),
            address_vector: name((&raw const (*domain).av_type).cast(), fabric_sys::FI_TYPE_AV_TYPE),
            message_order: names(&raw const (*transmit).msg_order, fabric_sys::FI_TYPE_MSG_ORDER),
            inject_bytes: (*transmit).inject_size,
            max_message_bytes: (*endpoint).max_msg_size,
            transmit_size: (*transmit).size,
            receive_size: (*receive).size,
            transmit_segments: (*transmit).iov_limit,
            receive_segments: (*receive).iov_limit,
            rma_segments: (*transmit).rma_iov_limit,
            completion_data_bytes: (*domain).cq_data_size,
            key_bytes: (*domain).mr_key_size,
            max_endpoints: (*domain).ep_cnt,
            max_completion_queues: (*domain).cq_cnt,
            nic: (!(*entry).nic.is_null()).then(|| nic_info((*entry).nic)),
        }
    }
}

/// # Safety
/// `nic` must be live.
unsafe fn nic_info(nic: *const fid_nic) -> Nic {
    let mut found = Nic::default();
    // SAFETY: the caller guarantees the device; its attributes are null or live, and their names null or
    // texts. The location is a PCI address if its type says so.
    unsafe {
        let named = |pointer| Some(copy_text(pointer)).filter(|text| !text.is_empty());
        let device = (*nic).device_attr;
        if !device.is_null() {
            found.device = named((*device).name);
            found.device_id = named((*device).device_id);
            found.device_version = named((*device).device_version);
            found.vendor_id = named((*device).vendor_id);
            found.driver = named((*device).driver);
            found.firmware = named((*device).firmware);
        }
        let bus = (*nic).bus_attr;
        if !bus.is_null() && (*bus).bus_type == fabric_sys::FI_BUS_PCI {
            let place = (*bus).attr.pci;
            found.pci = Some(format!(
                "{:04x}:{:02x}:{:02x}.{:x}",
                place.domain_id, place.bus_id, place.device_id, place.function_id
            ));
        }
        let link = (*nic).link_attr;
        if !link.is_null() {
            found.link = Some(Link {
                address: named((*link).address),
                mtu_bytes: (*link).mtu,
                bits_per_second: (*link).speed,
                state: match (*link).state {
                    fabric_sys::FI_LINK_UP => "up",
                    fabric_sys::FI_LINK_DOWN => "down",
                    _ => "unknown",
                }
                .to_owned(),
                network: named((*link).network_type),
            });
        }
    }
    found
}

/// libfabric's name of a value.
///
/// # Safety
/// `value` must point to a live value of the kind named by `kind`.
unsafe fn value_name(library: &Fabric, value: *const c_void, kind: fi_type) -> String {
    // SAFETY: passed on to the caller.
    unsafe { library.fi_tostr(value, kind) }.unwrap_or_default()
}

/// The names in libfabric's text of a set of bits.
fn flag_names(text: &str) -> BTreeSet<String> {
    text.split([',', '|', '[', ']', ' ']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// An internet address, with the port if there is one, or a text address.
///
/// # Safety
/// `address` must be null or point to `length` bytes.
unsafe fn endpoint_address(format: u32, address: *const c_void, length: usize) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so it points to `length` bytes, as the caller promises.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
    address_text(format, bytes)
}

fn address_text(format: u32, bytes: &[u8]) -> Option<String> {
    // The family comes first, in 2 bytes, and then the port; an IPv6 address follows 4 bytes of flow
    // information.
    let port = || Some(u16::from_be_bytes(*bytes.get(2..4)?.first_chunk()?));
    let ported = |address: String, port: u16| if port == 0 { address } else { format!("{address}:{port}") };
    match format {
        fabric_sys::FI_SOCKADDR_IN => {
            let address = Ipv4Addr::from(*bytes.get(4..8)?.first_chunk::<4>()?);
            Some(ported(address.to_string(), port()?))
        }
        fabric_sys::FI_SOCKADDR_IN6 => {
            let address = Ipv6Addr::from(*bytes.get(8..24)?.first_chunk::<16>()?);
            let port = port()?;
            Some(if port == 0 { address.to_string() } else { ported(format!("[{address}]"), port) })
        }
        fabric_sys::FI_ADDR_STR => {
            let text = bytes.split(|&byte| byte == 0).next()?;
            Some(String::from_utf8_lossy(text).into_owned()).filter(|text| !text.is_empty())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
