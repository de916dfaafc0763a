//! The error of an answer or a file that cannot be read.

use std::fmt;

/// An answer or a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed(String);

impl Malformed {
    /// The fault in the text.
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
