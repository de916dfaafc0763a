//! The error of an unreadable answer or file.

use std::fmt;

/// An unreadable answer or file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    /// Creates the error with this fault of the text.
    pub fn new(fault: impl fmt::Display) -> Self {
        Self(fault.to_string())
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for Malformed {}
