//! The loader's cache (`/etc/ld.so.cache`), in the format of glibc 2.2 and later.

/// Begin of the cache.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Bytes of the header.
const HEADER: usize = 48;
/// Bytes of an entry.
const ENTRY: usize = 24;

/// Names and paths, in the order of the cache.
pub(super) fn parse_entries(bytes: &[u8]) -> Vec<(String, String)> {
    // An older format may come first.
    let Some(start) = bytes.windows(MAGIC.len()).position(|window| window == MAGIC) else {
        return Vec::new();
    };
    let cache = &bytes[start..];
    let number = |at: usize| -> Option<usize> {
        usize::try_from(u32::from_le_bytes(*cache.get(at..)?.first_chunk()?)).ok()
    };
    let text = |at: usize| -> Option<String> {
        let rest = cache.get(at..)?;
        let end = rest.iter().take(4096).position(|byte| *byte == 0)?;
        Some(String::from_utf8_lossy(&rest[..end]).into_owned())
    };
    let count = number(MAGIC.len()).unwrap_or(0).min(cache.len() / ENTRY);
    let entry = |index: usize| {
        let at = HEADER + index * ENTRY;
        Some((text(number(at + 4)?)?, text(number(at + 8)?)?))
    };
    (0..count).filter_map(entry).collect()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a cache with these entries.
    pub(in super::super) fn make_cache(entries: &[(&str, &str)]) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(u32::try_from(entries.len()).unwrap().to_le_bytes());
        bytes.resize(HEADER, 0);
        let mut texts = Vec::new();
        let base = HEADER + entries.len() * ENTRY;
        for (name, path) in entries {
            let mut place = |text: &str| {
                let at = u32::try_from(base + texts.len()).unwrap();
                texts.extend(text.as_bytes());
                texts.push(0);
                at
            };
            let (name, path) = (place(name), place(path));
            bytes.extend([0x0303_u32, name, path, 0, 0, 0].map(u32::to_le_bytes).concat());
        }
        bytes.extend(texts);
        bytes
    }

    #[test]
    fn entries_are_read_behind_an_older_cache_and_from_a_torn_one() {
        let mut bytes = b"ld.so-1.7.0\0\0\0\0\0".to_vec();
        bytes.extend(make_cache(&[
            ("libnccl.so.2", "/usr/lib/libnccl.so.2"),
            ("libm.so.6", "/lib/libm.so.6"),
        ]));
        let expected = [("libnccl.so.2", "/usr/lib/libnccl.so.2"), ("libm.so.6", "/lib/libm.so.6")]
            .map(|(name, path)| (name.to_owned(), path.to_owned()));
        assert_eq!(parse_entries(&bytes), expected);
        for length in 0..bytes.len() {
            assert!(parse_entries(&bytes[..length]).len() < 2);
        }
        let mut hostile = make_cache(&[("a", "b")]);
        hostile[20..24].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(parse_entries(&hostile).len() <= hostile.len() / ENTRY);
    }

    #[test]
    fn the_cache_of_this_machine_knows_its_c_library() {
        let Ok(bytes) = std::fs::read("/etc/ld.so.cache") else { return };
        assert!(parse_entries(&bytes).iter().any(|(name, _)| name == "libc.so.6"));
    }
}
