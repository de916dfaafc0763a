//! Media that carry the messages.

use std::fmt;
use std::str::FromStr;

/// What carries the messages, as far as the choice of an algorithm goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Medium {
    /// All ranks share memory: messages are cheap, and copied by the processors.
    SharedMemory,
    /// Some ranks are reached through a network, or its loopback.
    Network,
    /// As [`Network`](Self::Network), and several ranks share a host. What the table has for this comes first, then what
    /// it has for a network.
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
