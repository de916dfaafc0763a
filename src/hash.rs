//! Hashes independent of the host, the program's version and the compiler.

/// Returns the FNV-1a hash.
pub(crate) fn fnv1a_hash(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
