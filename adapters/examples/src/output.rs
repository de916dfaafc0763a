//! Standard output.

use std::io::Write as _;

use anyhow::Result;

/// Prints a line.
pub(crate) fn print(line: &str) -> Result<()> {
    Ok(writeln!(std::io::stdout(), "{line}")?)
}
