//! Probe for cross-memory attach between the ranks of a host, in the same way as `shm` probes.

use std::hash::{BuildHasher, RandomState};

/// A word of this process that others try to read. It must live until they have tried.
pub(crate) struct CmaProbe(Box<u64>);

impl CmaProbe {
    /// A random word.
    pub(crate) fn new() -> Self {
        Self(Box::new(RandomState::new().hash_one(std::process::id())))
    }

    /// Process, address and value, for the other ranks.
    pub(crate) fn to_message(&self) -> [u8; 24] {
        let address = std::ptr::from_ref::<u64>(&self.0) as u64;
        let mut message = [0; 24];
        for (field, value) in
            message.chunks_exact_mut(8).zip([u64::from(std::process::id()), address, *self.0])
        {
            field.copy_from_slice(&value.to_le_bytes());
        }
        message
    }
}

/// True when this thread can read the word of another process, or its own. Settings
/// (`kernel.yama.ptrace_scope`), system call filters, and other users or namespaces may forbid it.
pub(crate) fn can_read(probe: &[u8]) -> bool {
    let field = |index: usize| Some(u64::from_le_bytes(*probe.get(8 * index..)?.first_chunk()?));
    let (Some(process), Some(address), Some(value)) = (field(0), field(1), field(2)) else { return false };
    let (Ok(process), Ok(address)) = (libc::pid_t::try_from(process), usize::try_from(address)) else {
        return false;
    };
    let mut found = 0_u64;
    let local = libc::iovec { iov_base: (&raw mut found).cast(), iov_len: size_of::<u64>() };
    let remote =
        libc::iovec { iov_base: std::ptr::without_provenance_mut(address), iov_len: size_of::<u64>() };
    // SAFETY: `local` is a word of this function's; the kernel checks the other side.
    let read = unsafe { libc::process_vm_readv(process, &raw const local, 1, &raw const remote, 1, 0) };
    read == size_of::<u64>() as isize && found == value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_read_where_it_is_and_nowhere_else() {
        let probe = CmaProbe::new();
        let message = probe.to_message();
        assert!(can_read(&message));
        for field in 0..3 {
            let mut other = message;
            // Another process or none, another address, another value.
            other[8 * field + 2] ^= 1;
            assert!(!can_read(&other), "{field}");
        }
        assert!(!can_read(&message[..23]) && !can_read(&[]) && !can_read(&[0xff; 24]));
    }
}
