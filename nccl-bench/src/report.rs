//! The text report on standard output, printed by rank 0 while the sweep runs.

use std::io::{self, Write};

use crate::collective::Placement;
use crate::sweep::Measurement;
use crate::table;

/// How many ranks with wrong data a row names.
const NAMED_RANKS: usize = 8;

/// Writes rows as their measurements arrive.
#[derive(Debug)]
pub struct TextReport<W> {
    out: W,
    notes: Vec<String>,
}

impl<W: Write> TextReport<W> {
    /// Writes to `out`.
    pub fn new(out: W) -> Self {
        Self { out, notes: Vec::new() }
    }

    /// Writes a finished text and flushes it.
    ///
    /// # Errors
    /// When the output is closed or full.
    pub fn text(&mut self, text: &str) -> io::Result<()> {
        self.out.write_all(text.as_bytes())?;
        self.out.flush()
    }

    /// Writes one placement's part of a row; the row ends after the second one, with what was wrong in it below.
    ///
    /// # Errors
    /// When the output is closed or full.
    pub fn measurement(&mut self, measurement: &Measurement) -> io::Result<()> {
        let work = &measurement.work;
        if measurement.placement == Placement::OutOfPlace {
            write!(self.out, "{}", table::row_start(&work.counts, work.data_type, work.op))?;
        }
        let half = table::row_half(measurement.seconds, measurement.bandwidth, measurement.wrong);
        write!(self.out, "{half}")?;
        self.notes.extend(notes(measurement));
        if measurement.placement == Placement::InPlace {
            writeln!(self.out)?;
            for note in self.notes.drain(..) {
                writeln!(self.out, "# {note}")?;
            }
        }
        self.out.flush()
    }
}

/// What was wrong, a line per rank: `WRONG out-of-place: rank 1 has 3 wrong elements; the first, ...`.
fn notes(measurement: &Measurement) -> impl Iterator<Item = String> + '_ {
    let placement = measurement.placement.name();
    let named = measurement.mismatches.iter().take(NAMED_RANKS).map(move |(rank, found)| {
        let first = found.first.map(|first| format!("; the first: {first}")).unwrap_or_default();
        format!("WRONG {placement}: rank {rank} has {} wrong elements{first}", found.wrong)
    });
    let unnamed = measurement.mismatches.len().saturating_sub(NAMED_RANKS);
    named.chain((unnamed > 0).then(|| format!("WRONG {placement}: so have {unnamed} more ranks")))
}
