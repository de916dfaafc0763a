//! NCCL's last warning in the error of a program: PyTorch writes it on the line after `Last error:`, JAX
//! between quotes.

use memchr::memmem::Finder;

/// Words before the warning in a line of JAX.
const JAX: &[u8] = b"Last NCCL warning(error): '";

/// The state of the search for quoted warnings.
#[derive(Debug)]
pub(super) struct Quotes {
    jax: Finder<'static>,
    /// True after a line with `Last error:` at its end.
    is_next: bool,
}

impl Default for Quotes {
    fn default() -> Self {
        Self { jax: Finder::new(JAX), is_next: false }
    }
}

impl Quotes {
    /// Begins another input.
    pub(super) fn begin_input(&mut self) {
        self.is_next = false;
    }

    /// Returns true for a warning of NCCL, by the line before it. Lines without text are not passed to this
    /// function.
    pub(super) fn is_quote(&mut self, line: &[u8]) -> bool {
        std::mem::replace(&mut self.is_next, line.trim_ascii_end().ends_with(b"Last error:"))
    }

    /// Returns the warning within a line.
    pub(super) fn quoted_warning<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        let start = self.jax.find(line)? + JAX.len();
        let rest = line.get(start..)?;
        Some(&rest[..memchr::memrchr(b'\'', rest).unwrap_or(rest.len())])
    }
}
