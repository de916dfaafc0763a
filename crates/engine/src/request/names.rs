//! Names of a request's fields in messages.

use std::fmt::Display;

/// Function that returns the name of a field of [`Request`](super::Request) or its settings in messages to
/// the user. A program with a command line returns the flag: `-n` for `iterations`. The default is the
/// field's own name.
#[derive(Clone, Copy, Debug)]
pub struct Names(pub fn(&str) -> String);

impl Default for Names {
    fn default() -> Self {
        Self(str::to_owned)
    }
}

impl Names {
    /// Returns the name of a field.
    pub fn field_name(self, field: &str) -> String {
        (self.0)(field)
    }

    /// Returns the name of a field with a value: `-n 20`.
    pub fn with_value(self, field: &str, value: impl Display) -> String {
        format!("{} {value}", self.field_name(field))
    }
}
