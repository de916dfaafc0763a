//! Resolving and formatting addresses.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

pub(crate) type Resolve<'a> = &'a dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

pub(crate) fn resolve_host(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

/// Formats ascending numbers as ranges: `1-3, 7`.
pub(crate) fn format_ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, other| one + 1 == *other);
    let ranges = runs.map(|run| match run {
        [one] => one.to_string(),
        [one, other] => format!("{one}, {other}"),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    });
    ranges.collect::<Vec<_>>().join(", ")
}

/// Groups values by key, in the order of their first values.
pub(crate) fn group_by_key<K: PartialEq, V>(items: impl IntoIterator<Item = (K, V)>) -> Vec<(K, Vec<V>)> {
    let mut groups: Vec<(K, Vec<V>)> = Vec::new();
    for (key, value) in items {
        match groups.iter_mut().find(|(known, _)| *known == key) {
            Some((_, values)) => values.push(value),
            None => groups.push((key, vec![value])),
        }
    }
    groups
}

/// Formats `host:port`, with brackets around an IPv6 address.
pub(crate) fn format_address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
