//! Recognition of this crate's files by their first bytes.

/// Returns true for the start of a result file, in any of the formats; false for reports of other commands
/// and other texts.
pub(super) fn is_result(start: &[u8]) -> bool {
    let text = String::from_utf8_lossy(start);
    text.starts_with("collective,data_type,op,root,placement,") || is_markdown(&text) || is_json(&text)
}

/// Returns true for Markdown: a title, and the outcome below it.
fn is_markdown(text: &str) -> bool {
    let title = text.strip_prefix("# nccl-bench: ").and_then(|rest| rest.split_once('\n'));
    title.is_some_and(|(_, rest)| rest.starts_with("\n**"))
}

/// Returns true for native JSON, or a first line of JSON Lines. They begin with the version, the program and
/// its command.
fn is_json(text: &str) -> bool {
    let words: String = text.split_ascii_whitespace().collect();
    let fields = words.strip_prefix("{\"kind\":\"run\",").or_else(|| words.strip_prefix('{'));
    let version = fields.and_then(|fields| fields.strip_prefix("\"schema_version\":"));
    let rest = version.map(|version| version.trim_start_matches(|letter: char| letter.is_ascii_digit()));
    let program = rest.and_then(|rest| rest.strip_prefix(",\"program\":\"nccl-bench"));
    program
        .and_then(|program| program.split_once('"'))
        .is_some_and(|(_, rest)| rest.starts_with(",\"command\":["))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::{csv, json, json_lines, markdown};
    use crate::sample;

    #[test]
    fn each_format_is_recognized_by_its_first_bytes() {
        let run = sample::full_run();
        let mut texts = vec![Vec::new(); 4];
        json::write_json(&run, &mut texts[0]).unwrap();
        json_lines::write_lines(&run, &mut texts[1]).unwrap();
        csv::write_csv(&run, &mut texts[2]).unwrap();
        markdown::write_markdown(&run, &mut texts[3]).unwrap();
        for text in &texts {
            assert!(is_result(&text[..256]), "{}", String::from_utf8_lossy(&text[..256]));
        }
        // As jq or another program prints it.
        assert!(is_result(b"{\"schema_version\":1,\"program\":\"nccl-bench 0.1.0\",\"command\":[]"));
        let other = include_bytes!("../../tests/data/all_reduce.json");
        assert!(!is_result(&other[..256]));
        for text in [
            "# Notes\n",
            "# nccl-bench: my own notes on it\nimportant\n",
            "{\"schema_version\": 1, \"name\": 2}",
            "{\"schema_version\":1,\"program\":\"other tool\",\"command\":[]}",
            // A report of the doctor.
            "{\"schema_version\": 1, \"program\": \"nccl-bench 0.1.0\", \"health\": \"healthy\"}",
            "{\"kind\":\"run\",\"schema_version\":1,\"mine\":2}",
            "collective\n",
            "[",
        ] {
            assert!(!is_result(text.as_bytes()), "{text}");
        }
    }
}
