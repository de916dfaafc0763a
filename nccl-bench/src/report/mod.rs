//! Reports on a terminal: the text of nccl-tests, the table of pairs of ranks, and progress.

pub mod pairs;
pub mod progress;
pub mod table;
pub mod text;

use std::fmt::Debug;
use std::io;

use engine::backend::MemoryUse;
use record::Measurement;

/// The text of a run on standard output.
///
/// All methods fail when the output is full, or closed ([`io::ErrorKind::BrokenPipe`]).
pub trait Report: Debug + Send {
    /// Writes a measurement.
    fn write_measurement(&mut self, measurement: &Measurement) -> io::Result<()>;

    /// Begins a collective's section. `reduced_to` is the largest size in bytes where memory did not allow
    /// the requested one.
    fn begin_section(&mut self, _collective: &str, _reduced_to: Option<u64>) -> io::Result<()> {
        Ok(())
    }

    /// Writes lines as comments.
    fn write_comment(&mut self, _lines: &str) -> io::Result<()> {
        Ok(())
    }

    /// Ends the section. `memory` is the memory use (`-M`).
    fn end_section(&mut self, _memory: Option<MemoryUse>) -> io::Result<()> {
        Ok(())
    }

    /// Ends the report of an incomplete run with the reason.
    fn stop_report(&mut self, _why: &str) -> io::Result<()> {
        Ok(())
    }
}
