//! NCCL's version numbers.

use std::fmt;

/// A version of NCCL. Patch 0 stands for "the first release of the minor version".
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2 in every NCCL supported by this crate.
    pub major: u32,
    /// 28 in 2.28.9.
    pub minor: u32,
    /// 9 in 2.28.9.
    pub patch: u32,
}

impl Version {
    /// A version from its three numbers.
    #[must_use]
    pub const fn new(major: u32, minor: u32, patch: u32) -> Self {
        Self { major, minor, patch }
    }

    /// Decodes the number of `ncclGetVersion`: 22809 is 2.28.9; up to 2.8 it was 2806 for 2.8.6.
    #[must_use]
    pub const fn from_code(code: u32) -> Self {
        if code < 10_000 {
            Self::new(code / 1_000, code % 1_000 / 100, code % 100)
        } else {
            Self::new(code / 10_000, code % 10_000 / 100, code % 100)
        }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)?;
        if self.patch == 0 { Ok(()) } else { write!(formatter, ".{}", self.patch) }
    }
}

#[cfg(test)]
mod tests {
    use super::Version;

    #[test]
    fn codes_of_both_encodings() {
        assert_eq!(Version::from_code(22_809), Version::new(2, 28, 9));
        assert_eq!(Version::from_code(21_803), Version::new(2, 18, 3));
        assert_eq!(Version::from_code(2_806), Version::new(2, 8, 6));
        assert!(Version::new(2, 28, 7) < Version::new(2, 30, 0));
    }

    #[test]
    fn patch_zero_is_not_shown() {
        assert_eq!(Version::new(2, 28, 9).to_string(), "2.28.9");
        assert_eq!(Version::new(2, 28, 0).to_string(), "2.28");
    }
}
