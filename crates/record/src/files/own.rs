//! Recognition of the files that this crate writes, by their first bytes.

/// Beginnings of the formats that do not depend on the run: JSON Lines, CSV and Markdown.
const BEGINNINGS: [&[u8]; 3] =
    [br#"{"kind":"run","schema_version":"#, b"collective,data_type,op,root,placement,", b"# nccl-bench: "];

/// Returns true for the start of a result file, in any of the formats.
pub(super) fn is_result(start: &[u8]) -> bool {
    BEGINNINGS.iter().any(|beginning| start.starts_with(beginning)) || is_json(start)
}

/// Native JSON begins with its version and its program.
fn is_json(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    let words: String = text.split_ascii_whitespace().collect();
    let version = words.strip_prefix("{\"schema_version\":").unwrap_or_default();
    version.trim_start_matches(|letter: char| letter.is_ascii_digit()).starts_with(",\"program\":\"")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{csv, json, json_lines, markdown};
    use crate::sample;

    #[test]
    fn each_format_is_recognized_by_its_first_bytes() {
        let run = sample::full();
        let mut texts = vec![Vec::new(); 4];
        json::write(&run, &mut texts[0]).unwrap();
        json_lines::write(&run, &mut texts[1]).unwrap();
        csv::write(&run, &mut texts[2]).unwrap();
        markdown::write(&run, &mut texts[3]).unwrap();
        for text in &texts {
            assert!(is_result(&text[..64]), "{}", String::from_utf8_lossy(&text[..64]));
        }
        // As jq or another program prints it.
        assert!(is_result(b"{\"schema_version\":1,\"program\":\"nccl-bench 0.1.0\""));
        let other = include_bytes!("../../tests/data/all_reduce.json");
        for text in
            [&other[..256], b"# Notes\n", b"{\"schema_version\": 1, \"name\": 2}", b"collective\n", b"["]
        {
            assert!(!is_result(text), "{}", String::from_utf8_lossy(text));
        }
    }
}
