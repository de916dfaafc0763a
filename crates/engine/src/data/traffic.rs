//! The traffic of an alltoallv: generated, or read from a matrix.
//!
//! The variables and their meaning are those of nccl-tests: `NCCL_TESTS_ALLTOALLV_SPREAD`, `_MATRIX_FILE` and
//! `_MATRIX_SCALE`.

use std::fs;
use std::ops::Range;
use std::path::Path;

use collectives::DataType;
use serde::Serialize;

/// Bytes of each pair's part are rounded down to this.
const ALIGNMENT: u64 = 16;

/// The requested traffic.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub enum Pattern {
    /// More to ranks that are farther away: 0 the same to each, 1 nothing to itself and most to the farthest.
    #[serde(rename = "NCCL_TESTS_ALLTOALLV_SPREAD")]
    Spread(f64),
    /// These bytes from each rank (row) to each (column).
    #[serde(rename = "NCCL_TESTS_ALLTOALLV_MATRIX_FILE")]
    Matrix(Matrix),
}

impl Default for Pattern {
    fn default() -> Self {
        Self::Spread(1.0)
    }
}

/// Bytes from each rank to each, read from a file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Matrix {
    rows: Vec<Vec<u64>>,
    /// The factor that was applied to the numbers of the file.
    pub scale: f64,
}

impl Matrix {
    /// Reads a text of numbers, a line for each rank that sends, and multiplies them with `scale`.
    ///
    /// # Errors
    /// When the file cannot be read or is not a square matrix; the message names the line.
    pub fn read_file(path: &Path, scale: f64) -> Result<Self, String> {
        let name = path.display();
        if fs::metadata(path).is_ok_and(|found| !found.is_file()) {
            return Err(format!("{name} cannot be read: it is not a regular file"));
        }
        let text = fs::read_to_string(path).map_err(|error| format!("{name} cannot be read: {error}"))?;
        Self::parse(&text, scale).map_err(|problem| format!("{name}: {problem}"))
    }

    fn parse(text: &str, scale: f64) -> Result<Self, String> {
        let mut rows = Vec::new();
        for (number, line) in (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty()) {
            let cell = |word: &str| match word.parse::<f64>() {
                Ok(bytes) if bytes * scale >= 0.0 && bytes * scale < 2f64.powi(53) => {
                    Ok((bytes * scale) as u64 / ALIGNMENT * ALIGNMENT)
                }
                Ok(_) if scale != 1.0 => Err(format!(
                    "line {number}: '{word}' times {scale:e} (NCCL_TESTS_ALLTOALLV_MATRIX_SCALE) is not a \
                     number of bytes"
                )),
                _ => Err(format!("line {number}: '{word}' is not a number of bytes")),
            };
            rows.push(line.split_whitespace().map(cell).collect::<Result<Vec<_>, _>>()?);
        }
        if rows.is_empty() {
            return Err("it contains no numbers".to_owned());
        }
        match rows.iter().position(|row| row.len() != rows.len()) {
            Some(row) => Err(format!(
                "the matrix must be square: it has {} rows, but row {} has {} numbers",
                rows.len(),
                row + 1,
                rows[row].len()
            )),
            None => Ok(Self { rows, scale }),
        }
    }

    /// Number of ranks of the matrix.
    pub fn rank_count(&self) -> usize {
        self.rows.len()
    }

    /// The most that one of the first `ranks` ranks sends or receives, in bytes.
    pub fn busiest_bytes(&self, ranks: usize) -> u64 {
        let sent = |from: usize| self.rows[from][..ranks].iter().sum();
        let received = |to: usize| self.rows[..ranks].iter().map(|row| row[to]).sum();
        (0..ranks).flat_map(|rank| [sent(rank), received(rank)]).max().unwrap_or(0)
    }
}

/// The elements that each rank sends to every rank, itself included. Parts are ordered by rank in both
/// buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// `send_parts[from][to]`: the elements of rank `from`'s send buffer that go to rank `to`.
    pub send_parts: Vec<Vec<Range<usize>>>,
    /// `receive_parts[to][from]`: the elements of rank `to`'s receive buffer that come from rank `from`.
    pub receive_parts: Vec<Vec<Range<usize>>>,
    /// The reported count: an even part; 0 for a matrix.
    pub parameter: usize,
}

impl Traffic {
    /// The traffic of an operation of `bytes` bytes.
    pub fn new(pattern: &Pattern, bytes: u64, data_type: DataType, ranks: usize) -> Self {
        match pattern {
            Pattern::Spread(spread) => Self::generate_spread(bytes, data_type, ranks, *spread),
            Pattern::Matrix(matrix) => {
                let size = data_type.size() as u64;
                let cell = |from: usize, to: usize| (matrix.rows[from][to] / size) as usize;
                Self::from_cells(ranks, cell)
            }
        }
    }

    /// The same for every rank: `spread` (0 to 1) of the bytes grow with the distance to the rank that gets
    /// them.
    pub fn generate_spread(bytes: u64, data_type: DataType, ranks: usize, spread: f64) -> Self {
        let size = data_type.size();
        let count = usize::try_from(bytes).unwrap_or(usize::MAX) / size;
        let parameter = (count / ranks) & !(16 / size - 1);
        let total = (parameter * ranks * size) as f64;
        let n = ranks as f64;
        let bytes_at = |distance: usize| {
            if ranks == 1 {
                return total;
            }
            let even = (1.0 - spread) * total / n;
            even + spread * distance as f64 * total / (n * (n - 1.0) / 2.0)
        };
        let cell = |from: usize, to: usize| {
            let bytes = bytes_at((to + ranks - from) % ranks) as u64 / ALIGNMENT * ALIGNMENT;
            bytes as usize / size
        };
        Self { parameter, ..Self::from_cells(ranks, cell) }
    }

    fn from_cells(ranks: usize, cell: impl Fn(usize, usize) -> usize) -> Self {
        let parts = |cell: &dyn Fn(usize, usize) -> usize| {
            let of_rank = |rank: usize| {
                let mut end = 0;
                let part = |peer: usize| {
                    let start = end;
                    end += cell(rank, peer);
                    start..end
                };
                (0..ranks).map(part).collect()
            };
            (0..ranks).map(of_rank).collect()
        };
        Self { send_parts: parts(&cell), receive_parts: parts(&|to, from| cell(from, to)), parameter: 0 }
    }

    /// Elements that a rank sends in all.
    pub fn sent_elements(&self, rank: usize) -> usize {
        self.send_parts[rank].last().map_or(0, |last| last.end)
    }

    /// Elements that a rank receives in all.
    pub fn received_elements(&self, rank: usize) -> usize {
        self.receive_parts[rank].last().map_or(0, |last| last.end)
    }

    /// The most that one rank sends or receives.
    pub fn busiest_elements(&self) -> usize {
        (0..self.send_parts.len())
            .map(|rank| self.sent_elements(rank).max(self.received_elements(rank)))
            .max()
            .unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_of_one_sends_nothing_to_itself_and_most_to_the_farthest() {
        let traffic = Traffic::generate_spread(6400, DataType::Float32, 4, 1.0);
        // 6400 bytes over distances 0 + 1 + 2 + 3 = 6, in multiples of 16 bytes: 0, 1056, 2128, 3200.
        assert_eq!(traffic.send_parts[0], [0..0, 0..264, 264..796, 796..1596]);
        assert_eq!(traffic.send_parts[3], [0..264, 264..796, 796..1596, 1596..1596]);
        for rank in 0..4 {
            assert_eq!((traffic.sent_elements(rank), traffic.received_elements(rank)), (1596, 1596));
        }
        assert_eq!((traffic.busiest_elements(), traffic.parameter), (1596, 400));
        assert_eq!(traffic.receive_parts[1], [0..264, 264..264, 264..1064, 1064..1596]);
    }

    #[test]
    fn without_spread_all_parts_are_the_same() {
        let traffic = Traffic::generate_spread(6400, DataType::Float32, 4, 0.0);
        for rank in 0..4 {
            assert_eq!(traffic.send_parts[rank], [0..400, 400..800, 800..1200, 1200..1600]);
        }
        assert_eq!(Traffic::generate_spread(64, DataType::Float32, 1, 1.0).send_parts[0][0], 0..16);
    }

    #[test]
    fn a_matrix_is_read_scaled_and_rounded_down() {
        let matrix = Matrix::parse("0 100\n1e3 33\n\n", 2.0).unwrap();
        assert_eq!(matrix, Matrix { rows: vec![vec![0, 192], vec![2000, 64]], scale: 2.0 });
        assert_eq!((matrix.rank_count(), matrix.busiest_bytes(2), matrix.busiest_bytes(1)), (2, 2064, 0));
        let traffic = Traffic::new(&Pattern::Matrix(matrix), 1, DataType::Float16, 2);
        assert_eq!(
            (traffic.sent_elements(1), traffic.received_elements(1), traffic.busiest_elements()),
            (1032, 128, 1032)
        );
        assert_eq!(traffic.parameter, 0);
    }

    #[test]
    fn a_wrong_matrix_is_refused_with_its_place() {
        for (text, problem) in [
            ("", "no numbers"),
            ("1 2\n3", "2 rows, but row 2 has 1 numbers"),
            ("1 2\n3 x", "line 2: 'x' is not a number of bytes"),
            ("-1", "line 1: '-1' is not a number of bytes"),
            ("nan", "'nan' is not a number"),
        ] {
            let error = Matrix::parse(text, 1.0).unwrap_err();
            assert!(error.contains(problem), "{text}: {error}");
        }
    }
}
