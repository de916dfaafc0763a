//! Errors of loading libfabric.

use std::fmt;

/// A rejected location, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempt {
    /// A path, or a name for the dynamic linker.
    pub place: String,
    /// The reason.
    pub reason: String,
}

/// No usable libfabric was found.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct LoadError {
    pub(crate) attempts: Vec<Attempt>,
}

impl LoadError {
    /// Returns all attempts, in order.
    #[must_use]
    pub fn attempts(&self) -> &[Attempt] {
        &self.attempts
    }
}

impl fmt::Display for LoadError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "no usable libfabric was found.\nTried:")?;
        for Attempt { place, reason } in &self.attempts {
            writeln!(formatter, "  {place}: {reason}")?;
        }
        write!(
            formatter,
            "Install libfabric {} or newer (Debian, Ubuntu: apt-get install libfabric1; Fedora, RHEL: dnf \
             install libfabric; conda: conda install -c conda-forge libfabric; AWS: the EFA installer), or \
             set FABRIC_LIBRARY to the path of libfabric.so.1.",
            crate::MINIMUM_VERSION
        )
    }
}
