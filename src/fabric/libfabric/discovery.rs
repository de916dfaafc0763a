//! What libfabric offers on this machine: the answer of `fi_getinfo` as plain values.

use std::collections::BTreeSet;
use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

use fabric_sys::{Fabric, Version, fi_info, fi_type, fid_nic};

use crate::fabric::error::{Error, Failure};
use crate::fabric::libfabric::provider::{InfoList, InfoQuery, none_if_no_data, set_string, text};

/// How endpoints send: what `fi_ep_attr::type` is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointType {
    /// `FI_EP_RDM`: reliable messages to any number of peers.
    Rdm,
    /// `FI_EP_MSG`: a reliable connection to one peer.
    Msg,
    /// `FI_EP_DGRAM`: datagrams, which may be lost.
    Dgram,
}

impl EndpointType {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Rdm, Self::Msg, Self::Dgram];

    /// libfabric's name: `FI_EP_RDM`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Rdm => "FI_EP_RDM",
            Self::Msg => "FI_EP_MSG",
            Self::Dgram => "FI_EP_DGRAM",
        }
    }

    const fn raw(self) -> fabric_sys::fi_ep_type {
        match self {
            Self::Rdm => fabric_sys::FI_EP_RDM,
            Self::Msg => fabric_sys::FI_EP_MSG,
            Self::Dgram => fabric_sys::FI_EP_DGRAM,
        }
    }
}

impl fmt::Display for EndpointType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A text that names no type of endpoint.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is none of FI_EP_RDM, FI_EP_MSG, FI_EP_DGRAM")]
pub struct UnknownEndpointType(String);

/// Reads `FI_EP_RDM` and `rdm`, upper or lower case.
impl FromStr for EndpointType {
    type Err = UnknownEndpointType;

    fn from_str(text: &str) -> Result<Self, UnknownEndpointType> {
        let upper = text.to_ascii_uppercase();
        let short = upper.strip_prefix("FI_EP_").unwrap_or(&upper);
        Self::ALL
            .into_iter()
            .find(|kind| kind.name().strip_prefix("FI_EP_") == Some(short))
            .ok_or_else(|| UnknownEndpointType(text.to_owned()))
    }
}

/// Something that an endpoint can do: a bit of `fi_info::caps`.
///
/// There are no others than those of [`Capability::ALL`]: a bit that this build does not know may mean something else
/// to the next libfabric.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Capability {
    name: &'static str,
    bit: u64,
}

impl Capability {
    /// All that may be asked for, and that every libfabric from 1.17 on knows. First the kinds of transfers, then what
    /// qualifies them.
    pub const ALL: &'static [Self] = &[
        Self::new("FI_MSG", fabric_sys::FI_MSG),
        Self::new("FI_TAGGED", fabric_sys::FI_TAGGED),
        Self::new("FI_RMA", fabric_sys::FI_RMA),
        Self::new("FI_ATOMIC", fabric_sys::FI_ATOMIC),
        Self::new("FI_COLLECTIVE", fabric_sys::FI_COLLECTIVE),
        Self::new("FI_MULTICAST", fabric_sys::FI_MULTICAST),
        Self::new("FI_HMEM", fabric_sys::FI_HMEM),
        Self::new("FI_DIRECTED_RECV", fabric_sys::FI_DIRECTED_RECV),
        Self::new("FI_NAMED_RX_CTX", fabric_sys::FI_NAMED_RX_CTX),
        Self::new("FI_READ", fabric_sys::FI_READ),
        Self::new("FI_WRITE", fabric_sys::FI_WRITE),
        Self::new("FI_RECV", fabric_sys::FI_RECV),
        Self::new("FI_SEND", fabric_sys::FI_SEND),
        Self::new("FI_REMOTE_READ", fabric_sys::FI_REMOTE_READ),
        Self::new("FI_REMOTE_WRITE", fabric_sys::FI_REMOTE_WRITE),
        Self::new("FI_MULTI_RECV", fabric_sys::FI_MULTI_RECV),
        Self::new("FI_SOURCE", fabric_sys::FI_SOURCE),
        Self::new("FI_SOURCE_ERR", fabric_sys::FI_SOURCE_ERR),
        Self::new("FI_RMA_EVENT", fabric_sys::FI_RMA_EVENT),
        Self::new("FI_RMA_PMEM", fabric_sys::FI_RMA_PMEM),
        Self::new("FI_TRIGGER", fabric_sys::FI_TRIGGER),
        Self::new("FI_FENCE", fabric_sys::FI_FENCE),
        Self::new("FI_LOCAL_COMM", fabric_sys::FI_LOCAL_COMM),
        Self::new("FI_REMOTE_COMM", fabric_sys::FI_REMOTE_COMM),
        Self::new("FI_SHARED_AV", fabric_sys::FI_SHARED_AV),
    ];

    const fn new(name: &'static str, bit: u64) -> Self {
        Self { name, bit }
    }

    /// libfabric's name: `FI_TAGGED`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl fmt::Debug for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name)
    }
}

/// A text that names no capability.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{0}' is none of {known}", known = Capability::ALL.iter().map(|each| each.name).collect::<Vec<_>>().join(", "))]
pub struct UnknownCapability(String);

/// Reads `FI_TAGGED` and `tagged`, upper or lower case.
impl FromStr for Capability {
    type Err = UnknownCapability;

    fn from_str(text: &str) -> Result<Self, UnknownCapability> {
        let upper = text.to_ascii_uppercase();
        let short = upper.strip_prefix("FI_").unwrap_or(&upper);
        Self::ALL
            .iter()
            .find(|capability| capability.name.strip_prefix("FI_") == Some(short))
            .copied()
            .ok_or_else(|| UnknownCapability(text.to_owned()))
    }
}

/// What is wanted of an [`Info`]; what is left out may be anything.
///
/// All modes and all kinds of registration (`mode`, `mr_mode`) are accepted, so that nothing is missing because of them:
/// [`Info`] says which of them a provider needs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hints {
    /// libfabric's name of a provider: `tcp`, `efa`, `verbs;ofi_rxm`. That of one also brings those that are built on
    /// it: `tcp` also `tcp;ofi_rxm`.
    pub provider: Option<String>,
    /// The name of a fabric, upper or lower case.
    pub fabric: Option<String>,
    /// The name of a domain, upper or lower case: a network interface or a device.
    pub domain: Option<String>,
    /// The type of endpoints.
    pub endpoint: Option<EndpointType>,
    /// What endpoints must be able to do, all of it.
    pub capabilities: Vec<Capability>,
    /// The address of a peer that must be reachable: a host's name, or what the provider takes.
    pub node: Option<String>,
    /// The peer's port.
    pub service: Option<String>,
}

/// One way to use libfabric on this machine: a provider with a fabric, a domain, and a type of endpoints.
///
/// Names are libfabric's own, so that those of a newer library than this build knows are there, too.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Info {
    /// The provider: `tcp`, `shm`, `efa`, `verbs;ofi_rxm`.
    pub provider: String,
    /// The provider's own version.
    pub provider_version: Version,
    /// The fabric: endpoints of one fabric may reach each other.
    pub fabric: String,
    /// The domain: a network interface or a device.
    pub domain: String,
    /// The type of endpoints: `FI_EP_RDM`.
    pub endpoint: String,
    /// What goes over the wire: `FI_PROTO_EFA`.
    pub protocol: String,
    /// The protocol's version.
    pub protocol_version: u32,
    /// What addresses are: `FI_SOCKADDR_IN`.
    pub address_format: String,
    /// The address that endpoints get, where it is an internet address or a text.
    pub address: Option<String>,
    /// What endpoints can do: `FI_MSG`, `FI_TAGGED`.
    pub capabilities: BTreeSet<String>,
    /// What the program must do for the provider: `FI_CONTEXT`.
    pub mode: BTreeSet<String>,
    /// How memory must be registered: `FI_MR_LOCAL`. Empty when it need not be.
    pub mr_mode: BTreeSet<String>,
    /// How threads may share the domain's objects: `FI_THREAD_SAFE`.
    pub threading: String,
    /// What drives connections and registrations: `FI_PROGRESS_AUTO` for the provider, `FI_PROGRESS_MANUAL` for the
    /// program's calls.
    pub control_progress: String,
    /// What drives transfers.
    pub data_progress: String,
    /// The kind of address vectors: `FI_AV_TABLE`.
    pub address_vector: String,
    /// Which messages stay in order: `FI_ORDER_SAS`.
    pub message_order: BTreeSet<String>,
    /// The longest message whose buffer can be used again at once, in bytes.
    pub inject_size: usize,
    /// The longest message, in bytes.
    pub max_message_size: usize,
    /// Sends that may be in flight.
    pub transmit_size: usize,
    /// Receives that may be posted.
    pub receive_size: usize,
    /// The most buffers that one send gathers.
    pub transmit_segments: usize,
    /// The most buffers that one receive scatters to.
    pub receive_segments: usize,
    /// The most remote buffers of one RMA operation.
    pub rma_segments: usize,
    /// The length of the data that a message's completion brings to the receiver, in bytes.
    pub completion_data_size: usize,
    /// The length of a registration's key, in bytes.
    pub key_size: usize,
    /// The most endpoints of a domain.
    pub endpoints: usize,
    /// The most completion queues of a domain.
    pub completion_queues: usize,
    /// The device, where the provider tells of it.
    pub nic: Option<Nic>,
}

/// A network device: `fid_nic`. What a provider does not tell is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Nic {
    /// Its name in the operating system: `rdmap0s6`, `eth0`.
    pub device: Option<String>,
    /// The model, as the vendor numbers them.
    pub device_id: Option<String>,
    /// The model's version.
    pub device_version: Option<String>,
    /// The vendor's number.
    pub vendor_id: Option<String>,
    /// The driver: `efa`, `mlx5_core`.
    pub driver: Option<String>,
    /// The version of the firmware.
    pub firmware: Option<String>,
    /// The place on the PCI bus: `0000:00:1d.0`.
    pub pci: Option<String>,
    /// The link.
    pub link: Option<Link>,
}

/// The link of a network device.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Link {
    /// The address of the port.
    pub address: Option<String>,
    /// The longest packet, in bytes; 0 when it is not known.
    pub mtu: usize,
    /// Bits per second; 0 when it is not known.
    pub speed: usize,
    /// Whether it is up.
    pub state: LinkState,
    /// `Ethernet`, `InfiniBand`.
    pub network: Option<String>,
}

/// Whether a link is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkState {
    /// The provider does not say.
    Unknown,
    /// It is down.
    Down,
    /// It is up.
    Up,
}

impl LinkState {
    /// The state in a word: `up`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Down => "down",
            Self::Up => "up",
        }
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// A provider that the loaded libfabric has, whether or not it can be used here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// libfabric's name.
    pub name: String,
    /// The provider's own version.
    pub version: Version,
}

/// Lists what `library` offers on this machine and fits `hints`, best first. Empty when nothing does.
///
/// Uses `fi_getinfo`, which can take 0.1 seconds: providers look for their devices.
///
/// # Errors
/// [`Error::Call`] with what libfabric says, for instance of a hint with a zero byte in it.
pub fn discover(library: &'static Fabric, hints: &Hints) -> Result<Vec<Info>, Error> {
    let provider = hints.provider.as_deref();
    let bytes = |text: &Option<String>| {
        text.as_deref().map(CString::new).transpose().map_err(|_| refused(library, provider))
    };
    let (node, service) = (bytes(&hints.node)?, bytes(&hints.service)?);
    let question = InfoQuery { provider, node: node.as_deref(), service: service.as_deref(), flags: 0 };
    let answer = InfoList::query(library, &question, |entry| {
        // SAFETY: `query` passes an entry that nobody else has, with all its attributes, whose names are null.
        unsafe {
            (*entry).caps = hints.capabilities.iter().fold(0, |bits, capability| bits | capability.bit);
            (*entry).mode = EVERY_MODE;
            (*(*entry).domain_attr).mr_mode = EVERY_REGISTRATION;
            if let Some(kind) = hints.endpoint {
                (*(*entry).ep_attr).type_ = kind.raw();
            }
            if let Some(name) = &hints.fabric {
                set_string(&raw mut (*(*entry).fabric_attr).name, name)?;
            }
            if let Some(name) = &hints.domain {
                set_string(&raw mut (*(*entry).domain_attr).name, name)?;
            }
        }
        Ok(())
    });
    let Some(list) = none_if_no_data(answer)? else { return Ok(Vec::new()) };
    let named = |wanted: &Option<String>, name: &str| {
        wanted.as_deref().is_none_or(|wanted| wanted.eq_ignore_ascii_case(name))
    };
    Ok(list
        .iter()
        // Some providers answer whatever domain or fabric is asked for; shm does.
        .filter(|entry| named(&hints.domain, &entry.domain()) && named(&hints.fabric, &entry.fabric_name()))
        // SAFETY: an entry of the list, which is live meanwhile.
        .map(|entry| unsafe { info(library, entry.as_ptr()) })
        .collect())
}

/// Lists the providers that `library` has, also those that find no device here; but libfabric 1.17 leaves out `efa`
/// and `verbs` where they find none.
///
/// Uses `fi_getinfo` with `FI_PROV_ATTR_ONLY`.
///
/// # Errors
/// [`Error::Call`] with what libfabric says.
pub fn registered(library: &'static Fabric) -> Result<Vec<Registered>, Error> {
    let question = InfoQuery { flags: fabric_sys::FI_PROV_ATTR_ONLY, ..InfoQuery::default() };
    let Some(list) = none_if_no_data(InfoList::query(library, &question, |_| Ok(())))? else {
        return Ok(Vec::new());
    };
    let mut providers: Vec<Registered> = Vec::new();
    for entry in list.iter() {
        // SAFETY: the entry is live and its fabric's attributes are there.
        let version = unsafe { Version::from_raw((*(*entry.as_ptr()).fabric_attr).prov_version) };
        let provider = Registered { name: entry.provider(), version };
        if !providers.contains(&provider) {
            providers.push(provider);
        }
    }
    Ok(providers)
}

/// All modes that this build knows.
const EVERY_MODE: u64 = fabric_sys::FI_CONTEXT
    | fabric_sys::FI_CONTEXT2
    | fabric_sys::FI_MSG_PREFIX
    | fabric_sys::FI_ASYNC_IOV
    | fabric_sys::FI_RX_CQ_DATA
    | fabric_sys::FI_BUFFERED_RECV;

/// All kinds of registration that this build knows.
const EVERY_REGISTRATION: c_int = fabric_sys::FI_MR_LOCAL
    | fabric_sys::FI_MR_RAW
    | fabric_sys::FI_MR_VIRT_ADDR
    | fabric_sys::FI_MR_ALLOCATED
    | fabric_sys::FI_MR_PROV_KEY
    | fabric_sys::FI_MR_MMU_NOTIFY
    | fabric_sys::FI_MR_RMA_EVENT
    | fabric_sys::FI_MR_ENDPOINT
    | fabric_sys::FI_MR_HMEM
    | fabric_sys::FI_MR_COLLECTIVE;

fn refused(library: &Fabric, provider: Option<&str>) -> Error {
    Error::Call(Failure {
        operation: "fi_getinfo",
        provider: provider.unwrap_or("any provider").to_owned(),
        peer: None,
        code: fabric_sys::FI_EINVAL,
        text: library.fi_strerror(fabric_sys::FI_EINVAL),
    })
}

/// # Safety
/// `entry` must be a live entry of `library` with all its attributes.
unsafe fn info(library: &Fabric, entry: *const fi_info) -> Info {
    // SAFETY: the caller vouches for the entry; fields are those that every libfabric from 1.17 on has, names are null
    // or texts, and each value is described as what it is.
    unsafe {
        let (fabric, domain, endpoint) = ((*entry).fabric_attr, (*entry).domain_attr, (*entry).ep_attr);
        let (transmit, receive) = ((*entry).tx_attr, (*entry).rx_attr);
        let name = |value: *const c_void, kind| value_name(library, value, kind);
        let names = |value: *const u64, kind| flag_names(&value_name(library, value.cast(), kind));
        Info {
            provider: text((*fabric).prov_name),
            provider_version: Version::from_raw((*fabric).prov_version),
            fabric: text((*fabric).name),
            domain: text((*domain).name),
            endpoint: name((&raw const (*endpoint).type_).cast(), fabric_sys::FI_TYPE_EP_TYPE),
            protocol: name((&raw const (*endpoint).protocol).cast(), fabric_sys::FI_TYPE_PROTOCOL),
            protocol_version: (*endpoint).protocol_version,
            address_format: name((&raw const (*entry).addr_format).cast(), fabric_sys::FI_TYPE_ADDR_FORMAT),
            address: address((*entry).addr_format, (*entry).src_addr, (*entry).src_addrlen),
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
            inject_size: (*transmit).inject_size,
            max_message_size: (*endpoint).max_msg_size,
            transmit_size: (*transmit).size,
            receive_size: (*receive).size,
            transmit_segments: (*transmit).iov_limit,
            receive_segments: (*receive).iov_limit,
            rma_segments: (*transmit).rma_iov_limit,
            completion_data_size: (*domain).cq_data_size,
            key_size: (*domain).mr_key_size,
            endpoints: (*domain).ep_cnt,
            completion_queues: (*domain).cq_cnt,
            nic: (!(*entry).nic.is_null()).then(|| nic((*entry).nic)),
        }
    }
}

/// # Safety
/// `nic` must be live.
unsafe fn nic(nic: *const fid_nic) -> Nic {
    let mut found = Nic::default();
    // SAFETY: the caller vouches for the device; its attributes are null or live, and their names null or texts. The
    // place is that of a PCI bus when its type says so.
    unsafe {
        let named = |pointer| Some(text(pointer)).filter(|text| !text.is_empty());
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
                mtu: (*link).mtu,
                speed: (*link).speed,
                state: match (*link).state {
                    fabric_sys::FI_LINK_UP => LinkState::Up,
                    fabric_sys::FI_LINK_DOWN => LinkState::Down,
                    _ => LinkState::Unknown,
                },
                network: named((*link).network_type),
            });
        }
    }
    found
}

/// libfabric's name of a value.
///
/// # Safety
/// `value` must point to a live value of the kind that `kind` names.
unsafe fn value_name(library: &Fabric, value: *const c_void, kind: fi_type) -> String {
    // SAFETY: passed on to the caller.
    unsafe { library.fi_tostr(value, kind) }.unwrap_or_default()
}

/// The names in libfabric's text of a set of bits.
fn flag_names(text: &str) -> BTreeSet<String> {
    text.split([',', '|', '[', ']', ' ']).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// An internet address, without the port when there is none, or the text that the address is.
///
/// # Safety
/// `address` must be null or point to `length` bytes.
unsafe fn address(format: u32, address: *const c_void, length: usize) -> Option<String> {
    if address.is_null() {
        return None;
    }
    // SAFETY: not null, so that many bytes as the caller vouches.
    let bytes = unsafe { std::slice::from_raw_parts(address.cast::<u8>(), length) };
    address_text(format, bytes)
}

fn address_text(format: u32, bytes: &[u8]) -> Option<String> {
    // The family comes first, in 2 bytes, and then the port; an IPv6 address follows 4 bytes of flow information.
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
