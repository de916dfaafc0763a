//! Rows of tables: exports of CloudWatch Logs Insights.

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

/// Extracts the text of a row: of this column, or of the column after a time. Returns false for
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
    // `2026-11-24 13:42:01.123,text`. Python writes a comma before the milliseconds.
    let Some((time, text)) = line.split_at_checked(24).filter(|_| is_row_with_time(line)) else {
        return false;
    };
    out.extend_from_slice(&time[..23]);
    out.push(b' ');
    append_field(text, out);
    true
}

/// Returns true for a row without a head: a time with milliseconds, and a text.
pub(super) fn is_row_with_time(line: &[u8]) -> bool {
    matches!(line.get(..24), Some([b'0'..=b'9', _, _, _, b'-', .., b'.', _, _, _, b',']))
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
        let time = "2026-11-24 13:42:01.123";
        for row in [format!("{time},\"a\""), format!("{time},a")] {
            assert_eq!(text(&row, None), Some(format!("{time} a")));
        }
        assert_eq!(text("2026-11-24 13:42:01,123 INFO a", None), None);
    }
}
