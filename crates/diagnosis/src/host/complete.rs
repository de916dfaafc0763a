//! Completion of findings, and words for lists.

use crate::finding::{Action, Evidence, Finding};

/// Completion of a finding, part by part.
pub(super) trait Complete {
    /// Adds the cause.
    fn cause(self, text: impl Into<String>) -> Self;
    /// Adds the remedy.
    fn remedy(self, text: impl Into<String>) -> Self;
    /// Adds the thing to do with the node.
    fn action(self, action: Action) -> Self;
    /// Adds a place where the fact can be seen, and its text.
    fn seen(self, place: impl Into<String>, text: impl Into<String>) -> Self;
    /// Adds the source of the knowledge.
    fn source(self, text: &str) -> Self;
}

impl Complete for Finding {
    fn cause(self, text: impl Into<String>) -> Self {
        Self { cause: Some(text.into()), ..self }
    }

    fn remedy(self, text: impl Into<String>) -> Self {
        Self { remedy: Some(text.into()), ..self }
    }

    fn action(self, action: Action) -> Self {
        Self { action, ..self }
    }

    fn seen(mut self, place: impl Into<String>, text: impl Into<String>) -> Self {
        self.evidence.push(Evidence { place: place.into(), text: text.into(), ..Evidence::default() });
        self
    }

    fn source(self, text: &str) -> Self {
        Self { source: Some(text.to_owned()), ..self }
    }
}

/// The first names of a list, and the number of the others.
pub(super) fn listed<T: AsRef<str>>(names: &[T]) -> String {
    const SHOWN: usize = 6;
    let shown: Vec<&str> = names.iter().take(SHOWN).map(AsRef::as_ref).collect();
    match names.len().saturating_sub(SHOWN) {
        0 => shown.join(", "),
        more => format!("{} and {more} more", shown.join(", ")),
    }
}

/// A number with its noun: `1 port`, `3 ports`.
pub(super) fn counted(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

/// The verb after a number.
pub(super) fn are(count: usize) -> &'static str {
    if count == 1 { "is" } else { "are" }
}

/// Bytes in the largest binary unit of which there is at least one.
pub(super) fn sized(bytes: u64) -> String {
    let units = [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")];
    match units.into_iter().find(|(shift, _)| bytes >> shift > 0) {
        None => format!("{bytes} bytes"),
        Some((shift, unit)) => {
            let tenths = (u128::from(bytes) * 10) >> shift;
            if tenths % 10 == 0 || tenths >= 1000 {
                format!("{} {unit}", tenths / 10)
            } else {
                format!("{}.{} {unit}", tenths / 10, tenths % 10)
            }
        }
    }
}

/// The value that most have, if more than half do.
pub(super) fn majority<'a, T: PartialEq + ?Sized>(values: &[&'a T]) -> Option<&'a T> {
    let count = |value: &T| values.iter().filter(|other| **other == value).count();
    let most = values.iter().copied().max_by_key(|value| count(value))?;
    (count(most) * 2 > values.len()).then_some(most)
}

/// Text for a fact that may be unknown.
pub(super) fn shown<T: ToString>(value: Option<T>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| value.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_sizes_are_short() {
        assert_eq!(listed(&["a", "b"]), "a, b");
        assert_eq!(listed(&["1", "2", "3", "4", "5", "6", "7", "8"]), "1, 2, 3, 4, 5, 6 and 2 more");
        assert_eq!(
            [sized(64 << 20), sized(1536), sized(12), sized(u64::MAX)],
            ["64 MiB", "1.5 KiB", "12 bytes", "16777215 TiB"]
        );
    }

    #[test]
    fn a_majority_is_more_than_half() {
        assert_eq!(majority(&["a", "b", "a"]), Some("a"));
        assert_eq!(majority(&["a", "b"]), None);
        assert_eq!(majority::<str>(&[]), None);
    }
}
