//! The table of nccl-tests and rccl-tests: its columns by their names, and its rows.

use crate::run::Placement;

/// A column, by its name in the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    Size,
    Count,
    Type,
    Operator,
    Root,
    Time,
    CpuTime,
    Algbw,
    Busbw,
    /// Number of wrong elements.
    Wrong,
    /// Largest difference from the expected values (releases before 2.13).
    Error,
    /// Two words: date and time of day.
    TimeStamp,
    /// A column that is not read.
    Other,
}

/// The columns of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Columns {
    columns: Vec<Column>,
    /// True when times are in milliseconds, as in the first releases.
    has_milliseconds: bool,
}

/// A number as it was printed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Printed {
    pub(super) value: f64,
    /// Largest difference between the printed number and the number before it was rounded.
    pub(super) rounding: f64,
}

/// The verification in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Check {
    /// There is no such column, or it has `N/A`.
    NotAvailable,
    /// Number of wrong elements.
    Wrong(u64),
    /// Largest difference. The foot of the table says if it is within bounds.
    Difference,
}

/// One placement of a row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Half {
    pub(super) placement: Placement,
    /// Microseconds; absent when the row has the host's time instead.
    pub(super) time: Option<Printed>,
    /// The host's time, in microseconds.
    pub(super) cpu_time: Option<Printed>,
    pub(super) algbw: Printed,
    pub(super) busbw: Printed,
    pub(super) check: Check,
}

/// A row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) bytes: u64,
    pub(super) count: u64,
    pub(super) data_type: String,
    pub(super) op: Option<String>,
    pub(super) root: Option<usize>,
    pub(super) halves: Vec<Half>,
}

impl Columns {
    /// Reads the names of the columns. `None` for another line.
    pub(super) fn from_names(text: &str) -> Option<Self> {
        let columns: Vec<Column> = text.split_whitespace().map(Column::from_name).collect();
        let count = |column| columns.iter().filter(|&&each| each == column).count();
        let times = count(Column::Time) + count(Column::CpuTime);
        let is_table = columns.starts_with(&[Column::Size, Column::Count, Column::Type])
            && (1..=2).contains(&times)
            && count(Column::Algbw) == times
            && count(Column::Busbw) == times;
        is_table.then(|| Self { columns, has_milliseconds: text.starts_with("bytes") })
    }

    /// True when the table has an operator's column.
    pub(super) fn has_operator(&self) -> bool {
        self.columns.contains(&Column::Operator)
    }

    /// True when the table has a root's column.
    pub(super) fn has_root(&self) -> bool {
        self.columns.contains(&Column::Root)
    }

    /// True when the table counts wrong elements.
    pub(super) fn counts_wrong(&self) -> bool {
        self.columns.contains(&Column::Wrong)
    }

    /// Returns true for a line that begins like a row.
    pub(super) fn begins_row(line: &str) -> bool {
        let mut words = line.split_whitespace();
        let mut is_number = || words.next().is_some_and(|word| word.parse::<u64>().is_ok());
        is_number() && is_number()
    }

    /// Returns true for a line of numbers, which can be the rest of a row.
    pub(super) fn continues_row(line: &str) -> bool {
        let is_cell = |word: &str| word == "N/A" || word.parse::<f64>().is_ok();
        !line.is_empty() && line.split_whitespace().all(is_cell)
    }

    /// Returns true for a text with fewer words than a row.
    pub(super) fn is_part(&self, line: &str) -> bool {
        line.split_whitespace().count() < self.columns.len()
    }

    /// Reads a row; `None` when it does not have the columns of the table.
    pub(super) fn read_row(&self, line: &str, placements: &[Placement]) -> Option<Row> {
        let mut words: Vec<&str> = line.split_whitespace().collect();
        let time_stamps = self.columns.iter().filter(|&&column| column == Column::TimeStamp).count();
        let expected = self.columns.len() + time_stamps;
        let operator = self.columns.iter().position(|&column| column == Column::Operator);
        // The operator's cell can be blank.
        if let Some(place) = operator
            && words.len() + 1 == expected
        {
            words.insert(place.min(words.len()), "");
        }
        if words.len() != expected {
            return None;
        }
        let mut row = Row {
            bytes: words[0].parse().ok()?,
            count: words[1].parse().ok()?,
            data_type: words[2].to_owned(),
            op: None,
            root: None,
            halves: Vec::new(),
        };
        let mut halves = HalfReader { has_milliseconds: self.has_milliseconds, ..HalfReader::default() };
        let mut words = words.into_iter();
        for &column in &self.columns {
            let word = words.next()?;
            match column {
                Column::Size | Column::Count | Column::Type | Column::Other => {}
                Column::Operator => {
                    row.op = Some(word.to_owned()).filter(|op| !op.is_empty() && op != "none")
                }
                Column::Root => row.root = usize::try_from(word.parse::<i64>().ok()?).ok(),
                Column::TimeStamp => drop(words.next()?),
                column => halves.read_cell(column, word)?,
            }
        }
        let found = halves.finish()?;
        let default = [Placement::OutOfPlace, Placement::InPlace];
        let placements = if placements.len() == found.len() { placements } else { &default };
        let named = found.into_iter().zip(placements);
        row.halves = named.filter_map(|(half, &placement)| Some(Half { placement, ..half? })).collect();
        (!row.halves.is_empty()).then_some(row)
    }
}

impl Column {
    fn from_name(name: &str) -> Self {
        // The first releases have other names.
        match name {
            "size" | "bytes" => Self::Size,
            "count" | "N" => Self::Count,
            "type" => Self::Type,
            "redop" | "op" => Self::Operator,
            "root" => Self::Root,
            "time" => Self::Time,
            "cputime" => Self::CpuTime,
            "algbw" => Self::Algbw,
            "busbw" => Self::Busbw,
            "#wrong" => Self::Wrong,
            "error" | "res" => Self::Error,
            "timestamp" => Self::TimeStamp,
            _ => Self::Other,
        }
    }
}

/// The cells of the placements of a row.
#[derive(Default)]
struct HalfReader {
    has_milliseconds: bool,
    /// Finished placements; `None` for one without values.
    halves: Vec<Option<Half>>,
    is_cpu_time: bool,
    time: Option<Option<Printed>>,
    algbw: Option<Printed>,
    busbw: Option<Printed>,
    check: Option<Check>,
}

impl HalfReader {
    /// Reads a cell; `None` when it is not as the programs print it.
    fn read_cell(&mut self, column: Column, word: &str) -> Option<()> {
        let number = if word == "N/A" { None } else { Some(Printed::from_word(word)?) };
        match column {
            Column::Time | Column::CpuTime => {
                if self.time.is_some() {
                    self.end_half()?;
                }
                self.is_cpu_time = column == Column::CpuTime;
                let factor = if self.has_milliseconds { 1e3 } else { 1.0 };
                self.time = Some(number.map(|time| time.scale_by(factor)));
            }
            Column::Algbw => self.algbw = number,
            Column::Busbw => self.busbw = number,
            Column::Wrong => {
                let is_count = |value: f64| value.is_finite() && value >= 0.0;
                self.check = match number {
                    None => Some(Check::NotAvailable),
                    // A fraction or a large number is still wrong.
                    Some(Printed { value, .. }) if is_count(value) => Some(Check::Wrong(value.ceil() as u64)),
                    Some(_) => return None,
                };
            }
            Column::Error => {
                self.check = Some(number.map_or(Check::NotAvailable, |_| Check::Difference));
            }
            _ => {}
        }
        Some(())
    }

    fn end_half(&mut self) -> Option<()> {
        let time = self.time.take()?;
        let (algbw, busbw) = (self.algbw.take(), self.busbw.take());
        let check = self.check.take().unwrap_or(Check::NotAvailable);
        let is_cpu_time = self.is_cpu_time;
        self.halves.push(match (time, algbw, busbw) {
            (None, None, None) => None,
            (Some(time), Some(algbw), Some(busbw)) => Some(Half {
                placement: Placement::OutOfPlace,
                time: (!is_cpu_time).then_some(time),
                cpu_time: is_cpu_time.then_some(time),
                algbw,
                busbw,
                check,
            }),
            _ => return None,
        });
        Some(())
    }

    fn finish(mut self) -> Option<Vec<Option<Half>>> {
        self.end_half()?;
        Some(self.halves)
    }
}

impl Printed {
    /// Parses a number, also `1.0e+07`, `inf` and `nan`.
    fn from_word(word: &str) -> Option<Self> {
        let value: f64 = word.parse().ok()?;
        let (digits, exponent) = word.split_once(['e', 'E']).unwrap_or((word, "0"));
        let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
        let exponent = exponent.parse::<i32>().unwrap_or(0).saturating_sub(i32::try_from(decimals).ok()?);
        Some(Self { value, rounding: 0.5 * 10_f64.powi(exponent) })
    }

    fn scale_by(self, factor: f64) -> Self {
        Self { value: self.value * factor, rounding: self.rounding * factor }
    }

    /// Returns true when `value` can have been rounded to this number. `error` is the uncertainty of `value`.
    pub(super) fn agrees_with(self, value: f64, error: f64) -> bool {
        // The last part is for the rounding of the arithmetic.
        (self.value - value).abs() <= self.rounding + error + 1e-9 * value.abs()
    }

    /// Returns true with three digits or more.
    pub(super) fn has_three_digits(self) -> bool {
        self.value.is_finite() && self.value >= 200.0 * self.rounding
    }
}
