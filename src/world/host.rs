//! Which host this process runs on.

use super::wire::MAX_NAME;
use std::env;
use std::fs;

/// A host as the ranks tell it to each other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Host {
    /// Its name, for messages.
    pub name: String,
    /// Equal for two processes exactly when they share one host: its name and the kernel's boot identifier, or
    /// the value of `NCCL_HOSTID`, with which NCCL too is told where a host begins and ends.
    pub id: String,
}

/// The host of this process.
pub fn host() -> Host {
    let name = name();
    let id = env::var("NCCL_HOSTID").ok().filter(|id| !id.is_empty()).unwrap_or_else(|| {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        format!("{name} {}", boot.trim())
    });
    Host { name: shortened(name), id: shortened(id) }
}

fn name() -> String {
    let mut buffer = [0_u8; 256];
    // SAFETY: the buffer is valid for writes of the length given, which leaves room for a final zero.
    let status = unsafe { libc::gethostname(buffer.as_mut_ptr().cast(), buffer.len() - 1) };
    let length = buffer.iter().position(|&byte| byte == 0).unwrap_or(0);
    if status == 0 && length > 0 {
        String::from_utf8_lossy(&buffer[..length]).into_owned()
    } else {
        "unknown".to_owned()
    }
}

/// As much of a text as fits into the rendezvous' greeting.
fn shortened(mut text: String) -> String {
    while text.len() > MAX_NAME {
        text.pop();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_a_name_and_a_stable_identity() {
        let first = host();
        assert!(!first.name.is_empty() && first.id.contains(&first.name));
        assert_eq!(first, host());
    }

    #[test]
    fn a_long_name_is_cut_between_characters() {
        let cut = shortened("ä".repeat(MAX_NAME));
        assert_eq!(cut, "ä".repeat(MAX_NAME / 2));
    }
}
