//! Reading of an answer of RAS in either form.

use super::malformed::Malformed;
use super::status::{Format, Status};
use super::{json, text};

/// Reads an answer.
///
/// # Errors
/// The fault of an unreadable answer.
pub fn parse_answer(bytes: &[u8], format: Format) -> Result<Status, Malformed> {
    let content = String::from_utf8_lossy(bytes);
    match format {
        Format::Json => json::parse_json(&content),
        Format::Text => text::parse_text(&content),
    }
}
