//! A fault of a value, found by the checks of all kinds of values.

use super::knowledge::VerdictKind;
use crate::finding::Severity;

/// A fault of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadValue {
    pub kind: VerdictKind,
    pub severity: Severity,
    pub reason: String,
    pub remedy: Option<String>,
}

impl BadValue {
    pub(super) fn invalid(reason: String, remedy: Option<String>) -> Self {
        Self { kind: VerdictKind::Invalid, severity: Severity::Degraded, reason, remedy }
    }

    pub(super) fn advice(reason: String, remedy: Option<String>) -> Self {
        Self { kind: VerdictKind::Invalid, severity: Severity::Advice, reason, remedy }
    }

    pub(super) fn into_broken(self) -> Self {
        Self { severity: Severity::Broken, ..self }
    }
}
