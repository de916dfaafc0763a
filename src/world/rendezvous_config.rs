//! Configuration of a rendezvous.

use super::Error;
use super::limits::{MAX_NAME, MAX_RANKS};

/// A rank, and the meeting address of the ranks of its job: the parameters of [`tcp`](super::tcp).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RendezvousConfig {
    /// This rank, `0..size`.
    pub rank: usize,
    /// Number of ranks, at most 262144.
    pub size: usize,
    /// Names or addresses of rank 0's host. The other ranks try each in turn until rank 0 of this job
    /// answers.
    pub hosts: Vec<String>,
    /// Ports of rank 0. It listens on the first available one.
    pub ports: Vec<u16>,
    /// Identifies the job among others at the same address. Not a secret. At most 255 bytes, without control
    /// characters.
    pub key: String,
    /// Local rank and local size, if the launcher gives them. Otherwise, or if two ranks of a host have the
    /// same, ranks are counted by host.
    pub local: Option<(usize, usize)>,
}

impl RendezvousConfig {
    /// Creates the configuration of rank `rank` of `size`. `address` is `host:port` or `[IPv6]:port` of
    /// rank 0.
    ///
    /// # Errors
    /// If the address has no port, `rank` is not below `size`, or `size` is above 262144.
    pub fn new(rank: usize, size: usize, address: &str) -> Result<Self, Error> {
        let (host, port) = host_and_port(address).ok_or_else(|| {
            Error::Environment(format!(
                "`{address}` is not an address such as node1:29500 or [fd00::1]:29500"
            ))
        })?;
        Self { rank, size, hosts: vec![host], ports: vec![port], ..Self::default() }.check_config()
    }

    pub(crate) fn check_config(self) -> Result<Self, Error> {
        let Self { rank, size, .. } = self;
        let wrong = |message: String| Err(Error::Environment(message));
        if rank >= size {
            return wrong(format!(
                "rank {rank} of {size} is impossible: ranks count from 0 to the size less one"
            ));
        }
        if size > MAX_RANKS {
            return wrong(format!(
                "{size} ranks are more than the {MAX_RANKS} of a rendezvous: check the variable with the \
                 number of ranks, such as NCCL_BENCH_SIZE or WORLD_SIZE"
            ));
        }
        if self.key.len() > MAX_NAME {
            return wrong(format!("the job's key has {} bytes, more than {MAX_NAME}", self.key.len()));
        }
        if let Some(control) = self.key.chars().find(|character| character.is_control()) {
            return wrong(format!(
                "the job's key has the control character {control:?}, but control characters are not \
                 allowed: set NCCL_BENCH_KEY to one line of text, the same on all ranks"
            ));
        }
        if size > 1 && (self.hosts.is_empty() || self.ports.is_empty()) {
            return wrong(
                "a rendezvous needs rank 0's host and port; set NCCL_BENCH_ADDR to host:port".to_owned(),
            );
        }
        Ok(self)
    }
}

fn host_and_port(address: &str) -> Option<(String, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = match bracketed {
        Some(host) => host,
        // Without brackets, the port of an IPv6 address is ambiguous.
        None if host.contains(':') => return None,
        None => host,
    };
    let port = port.parse().ok().filter(|&port| port != 0)?;
    (!host.is_empty()).then(|| (host.to_owned(), port))
}
