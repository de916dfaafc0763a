//! Addresses of rank 0, and how they are written.

use std::io;
use std::net::{SocketAddr, ToSocketAddrs};

/// The addresses of a name, or of an address, with a port.
pub(crate) type Resolve<'a> = &'a dyn Fn(&str, u16) -> io::Result<Vec<SocketAddr>>;

/// As the system does.
pub(crate) fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    (host, port).to_socket_addrs().map(Iterator::collect)
}

/// Numbers in ascending order as people write them: `1-3, 7`.
pub(crate) fn ranges(numbers: &[usize]) -> String {
    let mut parts: Vec<(usize, usize)> = Vec::new();
    for &number in numbers {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => parts.push((number, number)),
        }
    }
    let parts = parts.iter().map(|&(first, last)| match last - first {
        0 => first.to_string(),
        1 => format!("{first}, {last}"),
        _ => format!("{first}-{last}"),
    });
    parts.collect::<Vec<_>>().join(", ")
}

/// `host:port`, with brackets around an IPv6 address.
pub(crate) fn written(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
