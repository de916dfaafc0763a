//! Endpoint types and capabilities.

use std::fmt;
use std::str::FromStr;

use crate::UnknownName;

/// Type of an endpoint: `fi_ep_attr::type`. `FI_EP_RDM` and `rdm` are parsed, in upper or lower case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndpointType {
    /// `FI_EP_RDM`: reliable messages to any number of peers.
    Rdm,
    /// `FI_EP_MSG`: a reliable connection to one peer.
    Msg,
    /// `FI_EP_DGRAM`: datagrams; they may be lost.
    Dgram,
}

impl EndpointType {
    /// All types.
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

    pub(super) const fn raw_type(self) -> fabric_sys::fi_ep_type {
        match self {
            Self::Rdm => fabric_sys::FI_EP_RDM,
            Self::Msg => fabric_sys::FI_EP_MSG,
            Self::Dgram => fabric_sys::FI_EP_DGRAM,
        }
    }
}

/// A capability of an endpoint: a bit of `fi_info::caps`. `FI_TAGGED` and `tagged` are parsed, in upper or
/// lower case.
///
/// Only the values of [`Capability::ALL`] exist: a bit unknown to this build may have another meaning in the
/// next libfabric.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capability {
    name: &'static str,
    pub(super) bit: u64,
}

impl Capability {
    /// All capabilities known to every libfabric from 1.17 on. First the kinds of transfers, then their
    /// modifiers.
    pub const ALL: [Self; 25] = [
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

/// Implements `Display`, `FromStr` and `Serialize` for a type; the names of its values have this prefix.
macro_rules! prefixed {
    ($type:ty, $prefix:literal) => {
        impl fmt::Display for $type {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(self.name())
            }
        }

        /// Reads names, upper or lower case, with and without their prefix.
        impl FromStr for $type {
            type Err = UnknownName;

            fn from_str(text: &str) -> Result<Self, UnknownName> {
                let upper = text.to_ascii_uppercase();
                let short = upper.strip_prefix($prefix).unwrap_or(&upper);
                let found = Self::ALL.iter().find(|each| each.name().strip_prefix($prefix) == Some(short));
                found.copied().ok_or_else(|| UnknownName::new(text, &Self::ALL.map(Self::name)))
            }
        }

        /// Serialises as the name.
        #[cfg(feature = "serde")]
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}

prefixed!(EndpointType, "FI_EP_");
prefixed!(Capability, "FI_");
