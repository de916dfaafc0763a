//! Addresses of RAS.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};

/// Address of NCCL's RAS, unless `NCCL_RAS_ADDR` names another one.
pub const DEFAULT_ADDRESS: &str = "localhost:28028";

/// The port of [`DEFAULT_ADDRESS`].
const DEFAULT_PORT: u16 = 28028;

/// Finds the addresses of `host:port`, `[IPv6]:port`, or a host with the default port.
///
/// # Errors
/// The reason why the host's name has no address.
pub(super) fn resolve_address(text: &str) -> io::Result<Vec<SocketAddr>> {
    let text = text.trim();
    let bare = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(address) = bare.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, DEFAULT_PORT)]);
    }
    let found = if text.contains(':') {
        text.to_socket_addrs()?.collect::<Vec<_>>()
    } else {
        (text, DEFAULT_PORT).to_socket_addrs()?.collect()
    };
    if found.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address"));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_port_or_the_default_one() {
        let first = |text| resolve_address(text).unwrap()[0].to_string();
        assert_eq!(first("127.0.0.1:5"), "127.0.0.1:5");
        assert_eq!(first("[::1]:7"), "[::1]:7");
        assert_eq!(first("::1"), "[::1]:28028");
        assert_eq!(first("[::1]"), "[::1]:28028");
        assert_eq!(first("192.0.2.3"), "192.0.2.3:28028");
        assert!(resolve_address("127.0.0.1:99999").is_err());
        assert!(resolve_address("").is_err());
    }
}
