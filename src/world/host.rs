//! Identity and addresses of this host.

use super::limits::MAX_NAME;
use std::env;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

/// A host of the job.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Its name, for messages.
    pub name: String,
    /// Equal for two processes if and only if they share a host: its name and the kernel's boot identifier,
    /// or the value of `NCCL_HOSTID`, as in NCCL, without surrounding white space.
    pub id: String,
}

/// Returns the identity of this process's machine: equal for all processes of one machine, also of containers
/// with other names, and independent of `NCCL_HOSTID`. The kernel's boot identifier; without one,
/// [`Host::id`].
pub fn machine() -> String {
    match boot_id() {
        boot if boot.is_empty() => host().id,
        boot => boot,
    }
}

fn boot_id() -> String {
    static BOOT_ID: OnceLock<String> = OnceLock::new();
    let read = || fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned();
    BOOT_ID.get_or_init(read).clone()
}

/// Returns the host of this process. Its name is the one at the first call.
pub fn host() -> Host {
    host_named(&host_name(), env::var("NCCL_HOSTID").ok().as_deref())
}

/// The host with this name and, if set, the identity of `NCCL_HOSTID`.
fn host_named(name: &str, host_id: Option<&str>) -> Host {
    // A value from a file ends with a line break; other ranks may lack it.
    let id = host_id
        .map(str::trim)
        .filter(|id| !id.is_empty())
        .map_or_else(|| format!("{name} {}", boot_id()), str::to_owned);
    Host { name: truncate_name(escape_controls(name)), id: truncate_name(escape_controls(&id)) }
}

/// Escapes control characters: the wire format refuses them in names. Distinct texts stay distinct.
fn escape_controls(text: &str) -> String {
    let visible = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(visible).collect()
}

fn host_name() -> String {
    static NAME: OnceLock<String> = OnceLock::new();
    let read = || {
        let name = fs::read("/proc/sys/kernel/hostname").unwrap_or_default();
        match name.trim_ascii() {
            b"" => "unknown".to_owned(),
            name => String::from_utf8_lossy(name).into_owned(),
        }
    };
    NAME.get_or_init(read).clone()
}

/// Returns the addresses of this host's active interfaces, except loopback and link-local ones; IPv4 first.
pub fn addresses() -> Vec<IpAddr> {
    let mut first = std::ptr::null_mut();
    // SAFETY: the pointer is valid for writes.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return Vec::new();
    }
    let mut addresses = Vec::new();
    let mut next = first;
    // SAFETY: the list is valid until it is freed below, and each entry's pointer is null or leads to the
    // next.
    while let Some(interface) = unsafe { next.as_ref() } {
        next = interface.ifa_next;
        let up = interface.ifa_flags & (libc::IFF_UP as libc::c_uint) != 0;
        if interface.ifa_addr.is_null() || !up {
            continue;
        }
        // SAFETY: not null, so it is an address, and its family says what it is; the casts follow the family,
        // and an address need not be aligned for its own type.
        let address = unsafe {
            match i32::from(interface.ifa_addr.cast::<libc::sa_family_t>().read_unaligned()) {
                libc::AF_INET => {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned();
                    Some(IpAddr::V4(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr))))
                }
                libc::AF_INET6 => {
                    let address = interface.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned();
                    Some(IpAddr::V6(Ipv6Addr::from(address.sin6_addr.s6_addr)))
                }
                _ => None,
            }
        };
        addresses.extend(address.filter(|address| match address {
            IpAddr::V4(address) => !address.is_loopback() && !address.is_link_local(),
            IpAddr::V6(address) => !address.is_loopback() && !address.is_unicast_link_local(),
        }));
    }
    // SAFETY: the list came from `getifaddrs`, is freed once, and nothing refers to it any more.
    unsafe { libc::freeifaddrs(first) };
    addresses.sort_by_key(IpAddr::is_ipv6);
    addresses
}

/// Truncates a text to [`MAX_NAME`] bytes at a character boundary.
fn truncate_name(mut text: String) -> String {
    while text.len() > MAX_NAME {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::tcp::wire::{Frame, FrameDecoder, JobMember};
    use super::*;

    #[test]
    fn this_host_has_a_name_and_a_stable_identity() {
        let first = host();
        assert!(!first.name.is_empty() && first.id.contains(&first.name));
        assert_eq!(first, host());
    }

    #[test]
    fn the_machine_is_the_same_whatever_the_host_is_called() {
        let ids =
            [host_named("node1", None).id, host_named("pod-2", None).id, host_named("node1", Some("x")).id];
        assert!(ids[0] != ids[1] && ids[0] != ids[2], "{ids:?}");
        // Each of the first two has it, and NCCL_HOSTID replaces it.
        assert!(!machine().is_empty() && ids[..2].iter().all(|id| id.ends_with(&machine())), "{ids:?}");
    }

    #[test]
    fn names_and_identities_can_be_sent_to_other_ranks() {
        let id = |host_id| host_named("node1", Some(host_id)).id;
        // Read from a file.
        assert_eq!((id("rack 7"), id(" rack 7\r\n")), ("rack 7".to_owned(), "rack 7".to_owned()));
        // Distinct hosts stay distinct.
        assert_eq!((id("a\tb"), id("a b")), ("a\\tb".to_owned(), "a b".to_owned()));
        // Same as unset.
        assert_eq!(host_named("node1", Some("\n")), host_named("node1", None));
        assert!(host_named("node1", None).id.starts_with("node1 "));
        for host_id in [None, Some("a\nb"), Some("\x1b[2J\u{85}"), Some("\x01\x02".repeat(200).as_str())] {
            let member = JobMember { host: host_named("no\x07de", host_id), local: None };
            let hello = Frame::Hello(1, 2, String::new(), member);
            let mut decoder = FrameDecoder::new();
            decoder.push_bytes(&hello.encode_first());
            assert_eq!(decoder.next_frame(), Ok(Some(hello)), "{host_id:?}");
        }
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let cut = truncate_name("ä".repeat(MAX_NAME));
        assert_eq!(cut, "ä".repeat(MAX_NAME / 2));
    }
}
