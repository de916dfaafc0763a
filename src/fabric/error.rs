//! Errors of the host backend.

use std::fmt;
use std::time::Duration;

use fabric_sys::{Fabric, LoadError};

use super::shared_memory::shm;
use crate::world::{self, Mismatch, Reason, Timeout};

/// An error of the host backend.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The buffers do not fit the operation. Nothing was sent; the communicator remains usable.
    #[error("{operation}: {problem}")]
    Length {
        /// The operation: `all_gather`.
        operation: &'static str,
        /// The buffer, its number of elements, and the number it needs.
        problem: String,
    },
    /// There is no such root or peer. Nothing was sent; the communicator remains usable.
    #[error("{operation}: {problem}")]
    Rank {
        /// The operation: `broadcast`.
        operation: &'static str,
        /// The named rank, and the valid ranks.
        problem: String,
    },
    /// An earlier operation failed or panicked, and took the communicator's connections with it.
    #[error(
        "{operation}: the communicator is closed, because an earlier operation failed and ended the job; \
         see the error of the earlier operation"
    )]
    Closed {
        /// The requested operation.
        operation: &'static str,
    },
    /// The options name an algorithm unsuitable for this collective.
    #[error(
        "{collective} on {ranks} ranks: algorithm '{algorithm}' does not support it; choose one of \
         {choices}, or none"
    )]
    Algorithm {
        /// The collective.
        collective: super::Collective,
        /// The requested algorithm.
        algorithm: super::Algorithm,
        /// The number of ranks.
        ranks: usize,
        /// Suitable algorithms.
        choices: String,
    },
    /// Another rank failed.
    #[error(transparent)]
    World(#[from] world::Error),
    /// libfabric was not found.
    #[error(transparent)]
    Library(#[from] &'static LoadError),
    /// The provider cannot be used here.
    #[error("provider '{provider}': {problem}")]
    Provider {
        /// The provider's name.
        provider: String,
        /// The reason, and the alternatives.
        problem: String,
    },
    /// A call of libfabric failed.
    #[error("{0}")]
    Call(Failure),
    /// An endpoint ([`rdm`](super::rdm)) does not support the operation.
    #[error("{operation} over {provider}: {problem}")]
    Endpoint {
        /// The function of libfabric.
        operation: &'static str,
        /// The provider.
        provider: String,
        /// The reason.
        problem: String,
    },
    /// The timeout of a communicator ([`Communicator::set_timeout`](super::Communicator::set_timeout)) or of
    /// an endpoint ([`rdm`](super::rdm)) has passed.
    #[error("{}", Timeout::timeout_text(operation, *limit, late))]
    TimedOut {
        /// The operation: `all_reduce`, or `waiting over tcp` for an endpoint.
        operation: String,
        /// The timeout.
        limit: Duration,
        /// Ranks of the world, with their hosts, that did not confirm, when asked, that they wait in the
        /// operation: they have not called it, are busy, or have continued. At most 32, in rank order. Also
        /// empty if the ranks could not be asked, and for endpoints.
        late: Vec<(usize, String)>,
    },
    /// Another rank could not open its endpoints.
    #[error("rank {rank} could not open its endpoint: {problem}")]
    Peer {
        /// The rank.
        rank: usize,
        /// Its error.
        problem: String,
    },
    /// Two ranks called different operations.
    #[error("{}", Mismatch::mismatch_text(*rank, called, *peer, peer_called.as_deref()))]
    Mismatch {
        /// The rank that detected it.
        rank: usize,
        /// Its call: `all_reduce of 100 float, sum`.
        called: String,
        /// The other rank.
        peer: usize,
        /// The peer's call; `None` if it is not known, because an earlier call differs.
        peer_called: Option<String>,
    },
    /// A message was not as long as the receiver expected.
    #[error(
        "rank {rank} expected {expected} bytes from rank {peer} over {provider} and got {}: the ranks do not \
         call the same operations in the same order with the same lengths",
        received.map_or_else(|| "more".to_owned(), |received| received.to_string())
    )]
    MessageLength {
        /// The receiving rank.
        rank: usize,
        /// The sending rank.
        peer: usize,
        /// The provider.
        provider: String,
        /// Bytes expected.
        expected: usize,
        /// Bytes sent; none if the provider reports only that there are more.
        received: Option<usize>,
    },
}

impl Error {
    /// Returns the reason that this rank reports when an operation fails with this error.
    pub(crate) fn to_reason(&self, operation: &str) -> Reason {
        match self.clone() {
            Self::Mismatch { rank, called, peer, peer_called } => {
                Reason::Mismatch(Mismatch { rank, called, peer, peer_called })
            }
            other => Reason::Reported(format!("{operation}: {other}")),
        }
    }
}

impl From<Timeout> for Error {
    fn from(timeout: Timeout) -> Self {
        let Timeout { operation, limit, late } = timeout;
        Self::TimedOut { operation, limit, late }
    }
}

/// A failed call of libfabric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// libfabric's function: `fi_tsend`.
    pub operation: &'static str,
    /// The provider, as libfabric names it.
    pub provider: String,
    /// The rank at the other end, where there is one.
    pub peer: Option<usize>,
    /// libfabric's error number, positive.
    pub code: i32,
    /// libfabric's text for it, and the provider's own if it has one.
    pub text: String,
    /// Advice for the user.
    pub advice: String,
}

impl Failure {
    /// Returns the error of a call of `library` with this number, with the provider's own text, if any.
    #[cold]
    pub(crate) fn of_call(
        library: &Fabric,
        provider: &str,
        operation: &'static str,
        peer: Option<usize>,
        code: i32,
        own: Option<String>,
    ) -> Error {
        let mut text = library.fi_strerror(code);
        if let Some(own) = own.filter(|own| *own != text) {
            text = format!("{text}: {own}");
        }
        let advice = match code {
            fabric_sys::FI_ENOSPC | fabric_sys::FI_ENOMEM if provider == "shm" => advice_without_memory(
                shm::shortage_of_endpoint().or_else(|| {
                    let is_full = code == fabric_sys::FI_ENOSPC;
                    is_full.then(|| "make room in /dev/shm (containers: a larger --shm-size)".to_owned())
                }),
                address_space_limit(),
                "free memory of this host (containers: raise the limit of memory)",
            ),
            fabric_sys::FI_ENOMEM => advice_without_memory(
                None,
                address_space_limit(),
                "free memory, or raise the limit of locked memory (ulimit -l)",
            ),
            code => code_advice(code).to_owned(),
        };
        Error::Call(Self { operation, provider: provider.to_owned(), peer, code, text, advice })
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operation, provider, peer, code, text, advice } = self;
        write!(formatter, "{operation} over {provider}")?;
        if let Some(peer) = peer {
            write!(formatter, " with rank {peer}")?;
        }
        write!(formatter, ": {text} (error {code}); {advice}")
    }
}

/// Returns the advice for error numbers unrelated to memory.
fn code_advice(code: i32) -> &'static str {
    match code {
        fabric_sys::FI_ECONNREFUSED
        | fabric_sys::FI_ECONNRESET
        | fabric_sys::FI_ECONNABORTED
        | fabric_sys::FI_ENOTCONN
        | fabric_sys::FI_ESHUTDOWN => "check whether that rank has ended early",
        fabric_sys::FI_EHOSTUNREACH | fabric_sys::FI_ENETUNREACH | fabric_sys::FI_ETIMEDOUT => {
            "choose an interface that all hosts reach (FI_TCP_IFACE=<name>) and look for a firewall; ranks \
             of one host need the loopback interface (ip link set lo up)"
        }
        fabric_sys::FI_EMFILE => "raise the limit of open files (ulimit -n)",
        libc::EFBIG => "raise the limit of the size of files (ulimit -f)",
        _ => "set FI_LOG_LEVEL=warn for more messages of libfabric",
    }
}

/// Returns the advice after a refusal of memory: lack of space in shared memory, the limit of the process in
/// bytes, or `otherwise`.
fn advice_without_memory(shortage: Option<String>, limit: Option<u64>, otherwise: &str) -> String {
    match (shortage, limit) {
        (Some(shortage), _) => shortage,
        (None, Some(limit)) => {
            format!(
                "the memory of this process is limited to {} KiB: raise that limit (ulimit -v)",
                limit >> 10
            )
        }
        (None, None) => otherwise.to_owned(),
    }
}

/// The limit of this process's address space in bytes, if it has one.
fn address_space_limit() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the limit is valid for writes.
    let is_known = unsafe { libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) } == 0;
    (is_known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_memory_is_put_down_to_the_limit_where_shared_memory_has_room() {
        let limited = advice_without_memory(None, Some(1 << 45), "free memory");
        assert_eq!(
            limited,
            "the memory of this process is limited to 34359738368 KiB: raise that limit (ulimit -v)"
        );
        let short = advice_without_memory(Some("make room".to_owned()), Some(1 << 45), "free memory");
        assert_eq!(
            (short.as_str(), advice_without_memory(None, None, "free memory").as_str()),
            ("make room", "free memory")
        );
        let library = Fabric::load().unwrap();
        let full = Failure::of_call(library, "shm", "fi_enable", None, fabric_sys::FI_ENOSPC, None);
        assert!(full.to_string().contains("/dev/shm"), "{full}");
    }
}
