//! Tables as text and Markdown, and the values in their cells.

use std::io::{self, Write};

/// A table with text aligned to the left and numbers to the right.
pub(super) struct Table {
    pub(super) head: Vec<String>,
    /// True for columns of text.
    pub(super) left: Vec<bool>,
    pub(super) rows: Vec<Vec<String>>,
}

impl Table {
    fn column_widths(&self) -> Vec<usize> {
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.chain([&self.head[column]]).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        (0..self.head.len()).map(width).collect()
    }

    fn pad_cells(&self, cells: &[String]) -> Vec<String> {
        let cell = |((cell, width), left): ((&String, usize), &bool)| {
            if *left { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
        };
        cells.iter().zip(self.column_widths()).zip(&self.left).map(cell).collect()
    }

    pub(super) fn write_text(&self, out: &mut impl Write) -> io::Result<()> {
        for cells in [&self.head].into_iter().chain(&self.rows) {
            writeln!(out, "{}", format!("  {}", self.pad_cells(cells).join("  ")).trim_end())?;
        }
        Ok(())
    }

    pub(super) fn write_markdown(&self, out: &mut impl Write) -> io::Result<()> {
        let rule: Vec<String> = self
            .column_widths()
            .into_iter()
            .zip(&self.left)
            .map(|(width, left)| {
                let dashes = "-".repeat(width.max(3) - usize::from(!left));
                if *left { dashes } else { format!("{dashes}:") }
            })
            .collect();
        writeln!(out, "| {} |", self.pad_cells(&self.head).join(" | "))?;
        writeln!(out, "| {} |", rule.join(" | "))?;
        for cells in &self.rows {
            writeln!(out, "| {} |", self.pad_cells(cells).join(" | "))?;
        }
        Ok(())
    }
}

/// Escapes text for a cell of a Markdown table.
pub(super) fn escape_cell(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() || letter == '|' { ' ' } else { letter }).collect()
}

/// Writes a value with three to four significant digits.
pub(super) fn format_number(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value < 1.0 => format!("{value:.4}"),
        Some(value) if value < 1000.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.0}"),
    }
}

/// Writes a probability with three decimals. One that rounds to 0 is not 0.
pub(super) fn format_probability(p: f64) -> String {
    if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") }
}

/// Returns the error of the output. The conversion of `csv` loses its kind, which tells a closed output.
pub(super) fn convert_csv_error(error: csv::Error) -> io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => io::Error::other(format!("{other:?}")),
    }
}
