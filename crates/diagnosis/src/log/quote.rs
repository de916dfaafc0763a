//! NCCL's last warning in the error of a program: PyTorch writes it on the line after `Last error:`, JAX and
//! XLA behind words of their own, mostly between quotes. Some programs write the lines of PyTorch as one.

use memchr::memmem::{self, Finder};

/// Words before the warning in a line of JAX.
const JAX: &[u8] = b"Last NCCL warning(error)";

/// Words that XLA adds to [`JAX`].
const UNRELATED: &[u8] = b" log entry (may be unrelated)";

/// Words before the warning in a line of PyTorch's error, and words in its beginning.
const TORCH: &[u8] = b" Last error: ";
const TORCH_ERROR: &[u8] = b"NCCL version ";

/// The state of the search for quoted warnings.
#[derive(Debug)]
pub(super) struct Quotes {
    jax: Finder<'static>,
    torch: Finder<'static>,
    /// The labels before `Last error:`, after a line with these words at its end.
    labels: Option<Vec<u8>>,
    /// True if a line without text came after `Last error:`.
    has_gap: bool,
}

impl Default for Quotes {
    fn default() -> Self {
        Self { jax: Finder::new(JAX), torch: Finder::new(TORCH), labels: None, has_gap: false }
    }
}

impl Quotes {
    /// Begins another input.
    pub(super) fn begin_input(&mut self) {
        self.labels = None;
    }

    /// Notes a line without text.
    pub(super) fn note_gap(&mut self) {
        self.has_gap = true;
    }

    /// Returns the warning of NCCL in a line if the last line with text ends with `Last error:`. Also returns
    /// true if both lines have the same labels, which are then cut off, and no other line is between them.
    pub(super) fn next_warning<'a>(&mut self, line: &'a [u8]) -> Option<(&'a [u8], bool)> {
        let labels = line.trim_ascii_end().strip_suffix(b"Last error:").map(<[u8]>::to_vec);
        let has_gap = std::mem::take(&mut self.has_gap);
        let labels = std::mem::replace(&mut self.labels, labels)?;
        let text = line.strip_prefix(&labels[..]);
        Some((text.unwrap_or(line), !has_gap && text.is_some_and(is_warning_text)))
    }

    /// Returns the warning within a line.
    pub(super) fn quoted_warning<'a>(&self, line: &'a [u8]) -> Option<&'a [u8]> {
        let Some(start) = self.jax.find(line).map(|start| start + JAX.len()) else {
            let start = self.torch.find(line)?;
            memmem::find(&line[..start], TORCH_ERROR)?;
            return line.get(start + TORCH.len()..);
        };
        let rest = line.get(start..)?;
        let rest = rest.strip_prefix(UNRELATED).unwrap_or(rest);
        let rest = rest.strip_prefix(b":").unwrap_or(rest).strip_prefix(b" ")?;
        let Some(quoted) = rest.strip_prefix(b"'") else { return Some(rest) };
        Some(&quoted[..memchr::memrchr(b'\'', quoted).unwrap_or(quoted.len())])
    }
}

/// Returns false for a line of a traceback or stack where a warning is expected.
pub(super) fn is_warning_text(quote: &[u8]) -> bool {
    let others: [&[u8]; 4] = [b"Exception raised from ", b"Traceback ", b"frame #", b"Last NCCL"];
    quote.iter().filter(|byte| byte.is_ascii_alphabetic()).count() > 5
        && !others.iter().any(|other| quote.trim_ascii_start().starts_with(other))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_in_the_error_of_xla_is_found_with_and_without_quotes() {
        let operation = "INTERNAL: NCCL operation ncclGroupEnd() failed: unhandled cuda error.";
        for (text, warning) in [
            (
                " Last NCCL warning(error): 'Cuda failure 2 'out of memory''.",
                "Cuda failure 2 'out of memory'",
            ),
            (
                " Last NCCL warning(error) log entry (may be unrelated) 'Cuda failure 2 'out of memory''.",
                "Cuda failure 2 'out of memory'",
            ),
            (" Last NCCL warning(error) log entry (may be unrelated): Cuda failure", "Cuda failure"),
            (" Last NCCL warning(error) log entry (may be unrelated) '", ""),
        ] {
            let line = format!("{operation}{text}");
            let quotes = Quotes::default();
            assert_eq!(quotes.quoted_warning(line.as_bytes()), Some(warning.as_bytes()), "{line}");
        }
        assert_eq!(Quotes::default().quoted_warning(operation.as_bytes()), None);
    }
}
