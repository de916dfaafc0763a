//! A square of pairs as text and as a picture.

use std::collections::BTreeMap;

use diagnosis::examination::{Cell, Grade, Matrix};

use super::layout::{align_columns, plain_line};
use crate::command::markup::{Px, escape_xml};

/// Number of labels up to which a text has all cells.
const LARGEST_TEXT: usize = 16;
/// Number of labels up to which the cells of a picture have texts.
const LARGEST_WITH_TEXTS: usize = 24;
/// Smallest size of a cell for lines between cells.
const SMALLEST_WITH_LINES: f64 = 6.0;
/// Width of a letter in a picture.
const LETTER: f64 = 7.4;

/// Returns the lines of a matrix: all cells of a small one, the number of pairs by text of a large one.
pub(in crate::command) fn matrix_lines(matrix: &Matrix) -> Vec<String> {
    let mut lines =
        if matrix.labels.len() <= LARGEST_TEXT { list_all_cells(matrix) } else { count_pairs(matrix) };
    let longest = matrix.legend.iter().map(|(text, _)| text.chars().count()).max().unwrap_or(0);
    lines.extend(
        matrix
            .legend
            .iter()
            .map(|(text, words)| format!("{:longest$}  {}", plain_line(text), plain_line(words))),
    );
    lines
}

/// Returns all cells.
fn list_all_cells(matrix: &Matrix) -> Vec<String> {
    let mut rows = vec![std::iter::once(String::new()).chain(matrix.labels.iter().cloned()).collect()];
    for (label, cells) in matrix.labels.iter().zip(&matrix.cells) {
        let texts = cells.iter().map(|cell| if cell.text.is_empty() { "." } else { &cell.text });
        rows.push(std::iter::once(label.clone()).chain(texts.map(str::to_owned)).collect::<Vec<_>>());
    }
    align_columns(&rows)
}

/// Returns the number of pairs by text.
fn count_pairs(matrix: &Matrix) -> Vec<String> {
    let mut counts: BTreeMap<(Grade, &str), usize> = BTreeMap::new();
    for cell in matrix.cells.iter().flatten().filter(|cell| !cell.text.is_empty()) {
        *counts.entry((cell.grade, &cell.text)).or_default() += 1;
    }
    let mut rows: Vec<Vec<String>> = counts
        .into_iter()
        .map(|((_, text), count)| vec![text.to_owned(), format!("{count} pairs")])
        .collect();
    rows.push(vec![format!("{0} x {0}: the page (--html FILE) has all pairs", matrix.labels.len())]);
    align_columns(&rows)
}

/// Positions in a picture.
struct MatrixFrame {
    /// Size of a cell.
    cell: f64,
    /// Space for the labels of the rows.
    left: f64,
    /// Space for the labels of the columns.
    top: f64,
    /// Interval of the written labels.
    step: usize,
    /// True if the cells have texts.
    texts: bool,
    /// True if the labels of the columns are turned.
    turned: bool,
}

impl MatrixFrame {
    fn new(matrix: &Matrix) -> Self {
        let count = matrix.labels.len();
        let longest = |texts: &mut dyn Iterator<Item = &String>| {
            texts.map(|text| text.chars().count().min(24)).max().unwrap_or(0) as f64 * LETTER
        };
        let texts = count <= LARGEST_WITH_TEXTS;
        let text = longest(&mut matrix.cells.iter().flatten().map(|cell| &cell.text));
        let cell = match count {
            _ if texts => (text + 8.0).clamp(26.0, 72.0),
            0..=64 => 12.0,
            65..=128 => 7.0,
            _ => 4.0,
        };
        // A power of two puts the labels on the first ranks of nodes.
        let step = if texts { 1 } else { ((32.0 / cell).ceil() as usize).next_power_of_two() };
        let label = longest(&mut matrix.labels.iter());
        let turned = label + 4.0 > cell * step as f64;
        Self { cell, left: label + 10.0, top: if turned { label + 10.0 } else { 20.0 }, step, texts, turned }
    }

    fn column_x(&self, column: usize) -> f64 {
        self.left + column as f64 * self.cell
    }

    fn row_y(&self, row: usize) -> f64 {
        self.top + row as f64 * self.cell
    }
}

/// Returns the picture, an SVG element. Its colours are classes of the page's style sheet: `fastest`, `fast`,
/// `staged`, `slow`, `nothing`.
pub(in crate::command) fn draw_picture(matrix: &Matrix, name: &str) -> String {
    let frame = MatrixFrame::new(matrix);
    let count = matrix.labels.len();
    let (width, height) = (frame.column_x(count) + 4.0, frame.row_y(count) + 4.0);
    let mut svg = format!(
        "<svg class=\"matrix\" role=\"img\" aria-label=\"{}\" viewBox=\"0 0 {} {}\" width=\"{}\" \
         height=\"{}\">\n",
        escape_xml(name),
        Px(width),
        Px(height),
        Px(width),
        Px(height)
    );
    svg += &draw_labels(matrix, &frame);
    let side = Px(frame.cell * count as f64);
    svg += &format!(
        "<rect class=\"nothing\" x=\"{}\" y=\"{}\" width=\"{side}\" height=\"{side}\"/>\n",
        Px(frame.left),
        Px(frame.top)
    );
    for (row, cells) in matrix.cells.iter().enumerate() {
        svg += &draw_row(matrix, &frame, row, cells);
    }
    svg + &draw_grid(count, &frame) + "</svg>\n"
}

/// Draws lines between the cells.
fn draw_grid(count: usize, frame: &MatrixFrame) -> String {
    if frame.cell < SMALLEST_WITH_LINES {
        return String::new();
    }
    let (left, top) = (frame.left, frame.top);
    let (right, bottom) = (frame.column_x(count), frame.row_y(count));
    let lines = (1..count).map(|index| {
        let (x, y) = (Px(frame.column_x(index)), Px(frame.row_y(index)));
        format!("M{x} {}V{}M{} {y}H{}", Px(top), Px(bottom), Px(left), Px(right))
    });
    format!("<path class=\"lines\" d=\"{}\"/>\n", lines.collect::<String>())
}

/// Draws the names of rows and columns.
fn draw_labels(matrix: &Matrix, frame: &MatrixFrame) -> String {
    let mut svg = String::new();
    let half = frame.cell / 2.0;
    for (index, label) in matrix.labels.iter().enumerate().step_by(frame.step) {
        let label = escape_xml(&shorten_label(label));
        let y = Px(frame.row_y(index) + half + 4.0);
        svg += &format!("<text class=\"end\" x=\"{}\" y=\"{y}\">{label}</text>\n", Px(frame.left - 6.0));
        let (x, y) = (frame.column_x(index) + half, frame.top - 6.0);
        svg += &if frame.turned {
            let turn = format!("rotate(-90 {} {})", Px(x + 4.0), Px(y));
            format!("<text x=\"{}\" y=\"{}\" transform=\"{turn}\">{label}</text>\n", Px(x + 4.0), Px(y))
        } else {
            format!("<text class=\"middle\" x=\"{}\" y=\"{}\">{label}</text>\n", Px(x), Px(y))
        };
    }
    svg
}

/// Draws the cells of a row. Equal neighbours of a large matrix are one shape.
fn draw_row(matrix: &Matrix, frame: &MatrixFrame, row: usize, cells: &[Cell]) -> String {
    let mut svg = String::new();
    let label = |index: usize| matrix.labels.get(index).map_or("", String::as_str);
    let mut from = 0;
    while let Some(cell) = cells.get(from) {
        let same = |next: &&Cell| *next == cell && !frame.texts;
        let to = from + 1 + cells[from + 1..].iter().take_while(same).count();
        if !cell.text.is_empty() {
            let (x, y) = (frame.column_x(from), frame.row_y(row));
            let receivers = match to - from {
                1 => label(from).to_owned(),
                _ => format!("{} to {}", label(from), label(to - 1)),
            };
            let width = frame.cell * (to - from) as f64;
            svg += &format!(
                "<rect class=\"{}\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"><title>{}</title></rect>\n",
                grade_class(cell.grade),
                Px(x),
                Px(y),
                Px(width),
                Px(frame.cell),
                escape_xml(&format!("{} → {receivers}: {}", label(row), cell.text))
            );
            if frame.texts {
                svg += &format!(
                    "<text class=\"middle on-{}\" x=\"{}\" y=\"{}\">{}</text>\n",
                    grade_class(cell.grade),
                    Px(x + frame.cell / 2.0),
                    Px(y + frame.cell / 2.0 + 4.0),
                    escape_xml(&shorten_label(&cell.text))
                );
            }
        }
        from = to;
    }
    svg
}

/// Returns the class of a grade in the style sheet.
pub(in crate::command) fn grade_class(grade: Grade) -> &'static str {
    match grade {
        Grade::Fastest => "fastest",
        Grade::Fast => "fast",
        Grade::Staged => "staged",
        Grade::Slow => "slow",
        Grade::None => "nothing",
    }
}

/// Returns at most 24 letters.
fn shorten_label(text: &str) -> String {
    text.chars().take(24).collect()
}
