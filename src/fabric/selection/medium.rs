//! Media of a communicator.

use std::fmt;
use std::str::FromStr;

/// Medium of a communicator, for the selection of algorithms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// All ranks share memory: messages are cheap, and copied by the processors.
    SharedMemory,
    /// Some ranks are reached through a network, or its loopback.
    Network,
    /// [`Network`](Self::Network) where several ranks share a host. Its rules come before those for a network.
    Hosts,
}

impl Medium {
    /// Every medium.
    pub const ALL: [Self; 3] = [Self::SharedMemory, Self::Network, Self::Hosts];

    /// The name: `shared-memory`, `network`, `hosts`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SharedMemory => "shared-memory",
            Self::Network => "network",
            Self::Hosts => "hosts",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl FromStr for Medium {
    type Err = UnknownMedium;

    fn from_str(text: &str) -> Result<Self, UnknownMedium> {
        Self::ALL
            .into_iter()
            .find(|medium| medium.name() == text)
            .ok_or_else(|| UnknownMedium { text: text.to_owned() })
    }
}

/// A text that names no medium.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is none of {}", Medium::ALL.map(Medium::name).join(", "))]
pub struct UnknownMedium {
    text: String,
}
