//! Disk space for a file written at the end of the run, and the file's content when the disk is full.

use std::fs::File;
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use super::replacement;
use crate::run::{LeftOut, Run, RunOutcome};

/// Bytes by which the reserve grows: a block of most file systems.
const BLOCK: [u8; 4096] = [0; 4096];
/// Bytes reserved for the outcome and the notes.
const END: u64 = 4096;

/// Disk space for the measurements so far, held by an unnamed file in the folder of the result file. Dropping
/// it frees the space.
#[derive(Debug)]
pub(super) struct Reserve {
    space: File,
    /// Length of `space`.
    held: u64,
    /// Least length of the file, if it was written now.
    needed: u64,
    /// Number of measurements with reserved space.
    measurements: usize,
}

impl Reserve {
    /// Reserves space for the file `target`, which already has the facts known at the start of the run.
    ///
    /// # Errors
    /// When there is no space.
    pub(super) fn reserve_beside(target: &Path) -> io::Result<Self> {
        let space = tempfile::tempfile_in(replacement::parent_folder(target))?;
        let needed = target.metadata()?.len() + END;
        let mut reserve = Self { space, held: 0, needed, measurements: 0 };
        reserve.grow_space(needed)?;
        Ok(reserve)
    }

    /// Reserves space for a measurement of so many bytes.
    ///
    /// # Errors
    /// When there is no space for it.
    pub(super) fn add_measurement(&mut self, bytes: u64) -> io::Result<()> {
        self.grow_space(self.needed + bytes)?;
        self.needed += bytes;
        self.measurements += 1;
        Ok(())
    }

    /// Returns the number of measurements with reserved space.
    pub(super) fn measurement_count(&self) -> usize {
        self.measurements
    }

    fn grow_space(&mut self, needed: u64) -> io::Result<()> {
        while self.held < needed {
            // After an error the file can have a part of the block.
            self.space.seek(SeekFrom::Start(self.held))?;
            self.space.write_all(&BLOCK)?;
            self.held += BLOCK.len() as u64;
        }
        Ok(())
    }
}

/// Returns the run with its first measurements only. It is not complete.
pub(super) fn shorten_run(run: &Run, measurements: usize, reason: &io::Error) -> Run {
    let (kept, missing) = run.measurements.split_at(measurements);
    let left_out = LeftOut {
        measurements: missing.len(),
        wrong_measurements: missing.iter().filter(|each| each.is_wrong()).count(),
    };
    let note = format!("the last {} measurement(s) are not in the file: {reason}", missing.len());
    let outcome = match &run.outcome {
        RunOutcome::Complete => RunOutcome::Failed { message: note.clone() },
        outcome => outcome.clone(),
    };
    Run {
        outcome,
        measurements: kept.to_vec(),
        notes: [&run.notes[..], &[note]].concat(),
        left_out: Some(left_out),
        ..run.clone()
    }
}

pub(super) fn is_no_space(error: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
    matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
}
