//! Rows of tables: exports of CloudWatch Logs Insights.

use memchr::memmem;

/// Names of the column with the text.
const NAMES: [&[u8]; 2] = [b"@message", b"message"];

/// Returns the column of the text, if a line is the head of a table.
pub(super) fn find_text_column(line: &[u8]) -> Option<usize> {
    let columns = line.split(|byte| *byte == b',').map(|name| name.trim_ascii());
    let mut columns = columns
        .map(|name| name.strip_prefix(b"\"").and_then(|name| name.strip_suffix(b"\"")).unwrap_or(name));
    let column = columns.position(|name| NAMES.contains(&name))?;
    memchr::memchr(b',', line).map(|_| column)
}

/// Extracts the text of a row: of this column, or of a last column in quotes after a time. Returns false for
/// other text.
pub(super) fn extract_text(line: &[u8], column: Option<usize>, out: &mut Vec<u8>) -> bool {
    if let Some(column) = column {
        let mut rest = line;
        for _ in 0..column {
            let Some(after) = field_length(rest).and_then(|length| rest.get(length + 1..)) else {
                return false;
            };
            rest = after;
        }
        append_field(&rest[..field_length(rest).unwrap_or(rest.len())], out);
        return true;
    }
    let start = match line {
        [b'0'..=b'9', ..] if line.ends_with(b"\"") => memmem::find(line, b",\""),
        _ => None,
    };
    let Some(start) = start.filter(|start| !line[..*start].contains(&b'"')) else { return false };
    append_field(&line[start + 1..], out);
    true
}

/// Returns the length of the field at the beginning of a row, or `None` for a field without an end.
fn field_length(row: &[u8]) -> Option<usize> {
    let mut is_quoted = false;
    row.iter().position(|byte| {
        is_quoted ^= *byte == b'"';
        *byte == b',' && !is_quoted
    })
}

/// Appends a field without its quotes.
fn append_field(field: &[u8], out: &mut Vec<u8>) {
    let Some(text) = field.strip_prefix(b"\"") else { return out.extend_from_slice(field) };
    let mut bytes = text.strip_suffix(b"\"").unwrap_or(text).iter().peekable();
    while let Some(byte) = bytes.next() {
        out.push(*byte);
        if *byte == b'"' {
            bytes.next_if(|next| **next == b'"');
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_its_text_in_the_column_of_the_head() {
        let column = find_text_column(b"@timestamp,@message,@logStream");
        assert_eq!(column, Some(1));
        assert_eq!(find_text_column(b"\"message\",\"time\""), Some(0));
        assert_eq!(find_text_column(b"message"), None);
        let text = |line: &str, column| {
            let mut out = Vec::new();
            extract_text(line.as_bytes(), column, &mut out).then(|| String::from_utf8(out).unwrap())
        };
        for (line, expected) in [
            ("2026-11-24 13:42:01,a b,stream", "a b"),
            ("2026-11-24 13:42:01,\"a, \"\"b\"\"\",stream", "a, \"b\""),
            ("2026-11-24 13:42:01,\"a", "a"),
        ] {
            assert_eq!(text(line, column).as_deref(), Some(expected), "{line}");
        }
        assert_eq!(text("other", column), None);
        assert_eq!(text("1,\"a\"", None).as_deref(), Some("a"));
        assert_eq!(text("\"1\",\"a\"", None), None);
    }
}
