//! The tables of nccl-tests: their heads and rows.

use std::sync::LazyLock;

use memchr::memmem::Finder;

use super::digest::TestTables;

/// Words of the head, in all versions.
static HEAD: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"algbw   busbw"));

/// Size from which the bandwidth does not fall on a sound network, and the share of the bandwidth before it
/// below which it has fallen. NCCL changes its algorithm between sizes.
const DROP_FROM: u64 = 256 << 10;
const DROP: f64 = 0.6;

/// Beginnings of the names of types.
const TYPES: [&str; 6] = ["float", "half", "double", "int", "uint", "bfloat"];

/// The reader of tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    found: TestTables,
    /// The last row of the open table.
    last: Option<Row>,
}

impl Tables {
    /// Notes a line of another program.
    pub(super) fn note_line(&mut self, line: &[u8]) {
        if let Some(row) = parse_row(line) {
            self.found.rows += 1;
            self.note_drop(&row);
            self.found.size = self.found.size.max(row.size);
            self.found.bandwidth = self.found.bandwidth.max(row.bandwidth);
        } else if HEAD.find(line).is_some() {
            // A head has two lines, and only one of them has these words.
            self.found.heads += 1;
            self.last = None;
        }
    }

    /// Notes a row with much less bandwidth than the one before it, of a smaller size.
    fn note_drop(&mut self, row: &Row) {
        let before = self.last.replace(*row);
        let is_drop = |before: &Row| {
            before.size >= DROP_FROM && row.size > before.size && row.bandwidth < DROP * before.bandwidth
        };
        let share = |[(_, before), (_, after)]: [(u64, f64); 2]| after / before;
        let Some(before) = before.filter(is_drop) else { return };
        let drop = [(before.size, before.bandwidth), (row.size, row.bandwidth)];
        if self.found.drop.is_none_or(|known| share(drop) < share(known)) {
            self.found.drop = Some(drop);
        }
    }

    /// Returns the facts about all tables.
    pub(super) fn into_tables(self) -> TestTables {
        self.found
    }
}

/// A row of a table.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Row {
    size: u64,
    bandwidth: f64,
}

/// Reads a row, after the labels of launchers: `1024 256 float sum -1 12.1 0.08 0.15 0 11.9 0.09 0.15 0`. Old
/// versions have no root, and no operator for some operations.
fn parse_row(line: &[u8]) -> Option<Row> {
    // The last column of a row: 0, N/A, 1e+00.
    let (b'0'..=b'9' | b'A') = line.trim_ascii_end().last()? else { return None };
    let line = std::str::from_utf8(line).ok()?;
    let words: Vec<&str> = line.split_ascii_whitespace().collect();
    let is_type = |word: &str| TYPES.iter().any(|kind| word.starts_with(kind));
    let at = (2..words.len()).find(|&at| {
        is_type(words[at]) && words[at - 1].parse::<u64>().is_ok() && words[at - 2].parse::<u64>().is_ok()
    })?;
    let rest = &words[at + 1..];
    // Time, bandwidth of the algorithm, bandwidth of the bus, wrong values; out of place and in place.
    let columns = &rest[rest.len() % 4..];
    if !(4..=8).contains(&columns.len()) {
        return None;
    }
    let mut bandwidths = columns.chunks(4).map(|columns| columns[2].parse::<f64>().ok());
    let bandwidth = bandwidths.try_fold(0.0, |most: f64, bandwidth| Some(most.max(bandwidth?)))?;
    columns[0].parse::<f64>().ok()?;
    Some(Row { size: words[at - 2].parse().ok()?, bandwidth })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_all_versions_are_read() {
        for (line, size, bandwidth) in [
            ("   1024    256  float  sum  -1  12.1  0.08  0.15  0  11.9  0.09  0.16  0", 1024, 0.16),
            ("268435456 67108864 float sum 122131 2.20 4.33 2e-06 122131 2.19 4.32 2e-06", 268_435_456, 4.33),
            (
                "536870912  2097152  float  1041974  0.52  0.51  0e+00  1041299  0.52  0.51  1e+00",
                536_870_912,
                0.51,
            ),
            ("[1,0]<stdout>:  8  2  float  sum  -1  45.8  0.00  0.00  N/A  45.2  0.00  0.00  N/A", 8, 0.0),
            ("0: 8 2 half none 0 45.8 0.01 0.02 0", 8, 0.02),
        ] {
            assert_eq!(parse_row(line.as_bytes()), Some(Row { size, bandwidth }), "{line}");
        }
        for line in ["", "8 2 float", "step 3 of 8 took 12 s", "8 2 float sum -1 x 0.1 0.1 0", "1 2 a 3 4 5"]
        {
            assert_eq!(parse_row(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn the_tables_are_summed_up() {
        let mut tables = Tables::default();
        for line in [
            "#       size         count      type   redop    root     time   algbw   busbw #wrong",
            "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)",
            "8 2 float sum -1 1.0 0.1 0.2 0 1.0 0.1 0.3 0",
            "16 4 float sum -1 1.0 0.1 0.5 0 1.0 0.1 0.4 0",
        ] {
            tables.note_line(line.as_bytes());
        }
        let expected = TestTables { heads: 1, rows: 2, size: 16, bandwidth: 0.5, drop: None };
        assert_eq!(tables.into_tables(), expected);
    }

    #[test]
    fn a_size_with_much_less_bandwidth_than_a_smaller_one_is_noted() {
        let drop_of = |rows: &[(u64, f64)]| {
            let mut tables = Tables::default();
            for (size, bandwidth) in rows {
                tables.note_line(format!("{size} 4 float sum -1 1.0 0.1 {bandwidth} 0").as_bytes());
            }
            tables.into_tables().drop
        };
        assert_eq!(drop_of(&[(1 << 20, 0.69), (2 << 20, 0.03)]), Some([(1 << 20, 0.69), (2 << 20, 0.03)]));
        assert_eq!(drop_of(&[(1 << 20, 10.0), (2 << 20, 6.1), (4 << 20, 12.0)]), None);
        let rows = [(1 << 20, 1.0), (2 << 20, 0.5), (4 << 20, 4.0), (8 << 20, 0.4)];
        assert_eq!(drop_of(&rows), Some([(4 << 20, 4.0), (8 << 20, 0.4)]));
        // Small sizes, and the start of another table.
        assert_eq!(drop_of(&[(1 << 10, 0.69), (2 << 10, 0.03)]), None);
        assert_eq!(drop_of(&[(8 << 20, 10.0), (1 << 20, 1.0)]), None);
    }
}
