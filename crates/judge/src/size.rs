//! Sizes in files of expectations: `64M` is 64 MiB.

/// Parses a number of bytes, with K, M, G or T for powers of 1024.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let shift = match &text[digits.len()..] {
        "" | "B" => 0,
        "K" => 10,
        "M" => 20,
        "G" => 30,
        "T" => 40,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_binary() {
        let parsed = ["8", "8B", "64M", "2G", "1T"].map(parse_size);
        assert_eq!(parsed, [8, 8, 64 << 20, 2 << 30, 1 << 40].map(Some));
        for text in ["", "M", "1.5G", "-1", "1X", "1KB", "99999999999T"] {
            assert_eq!(parse_size(text), None, "{text}");
        }
    }
}
