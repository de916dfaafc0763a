//! Parts of text: columns, and safe text for a terminal.

/// Space between the columns of a table.
const GAP: &str = "  ";

/// Returns texts in columns, without space at the ends of lines.
pub(in crate::command) fn align_columns(rows: &[Vec<String>]) -> Vec<String> {
    let rows: Vec<Vec<String>> =
        rows.iter().map(|row| row.iter().map(|cell| plain_line(cell)).collect()).collect();
    let mut widths: Vec<usize> = Vec::new();
    for row in &rows {
        // A single cell is a remark across all columns.
        for (index, cell) in row.iter().enumerate().filter(|_| row.len() > 1) {
            let width = textwrap::core::display_width(cell);
            match widths.get_mut(index) {
                Some(widest) => *widest = width.max(*widest),
                None => widths.push(width),
            }
        }
    }
    let line = |row: &Vec<String>| {
        let cells = row.iter().enumerate();
        let cells = cells.map(|(index, cell)| pad_text(cell, widths.get(index).copied().unwrap_or(0)));
        cells.collect::<Vec<_>>().join(GAP).trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Pads a text to the width of a column.
pub(super) fn pad_text(text: &str, width: usize) -> String {
    let missing = width.saturating_sub(textwrap::core::display_width(text));
    format!("{text}{}", " ".repeat(missing))
}

/// Returns a text in one line, with escapes for characters with an effect on a terminal or on the order of
/// text.
pub(in crate::command) fn plain_line(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '\n' | '\t' | '\r' => plain.push(' '),
            '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}' => {
                plain.extend(character.escape_unicode());
            }
            control if control.is_control() => plain.extend(control.escape_default()),
            other => plain.push(other),
        }
    }
    plain
}
