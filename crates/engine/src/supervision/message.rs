//! Messages on standard error.

use std::fmt::Display;
use std::io::{self, Write as _};

/// Writes a message and a line break on standard error, in a single write: the processes of a job share it,
/// and would mix their messages otherwise. Nothing happens if standard error is closed.
pub fn print_message(message: impl Display) {
    let line = format!("{message}\n");
    let _ = io::stderr().write_all(line.as_bytes());
}
