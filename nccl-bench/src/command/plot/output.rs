//! The output files of a plot.

use std::path::{Path, PathBuf};

use anyhow::bail;

use crate::command::output_file::Maker;

/// First line of each file that is written, by which a later plot knows that it may replace it.
pub(super) const MARK: &str = "<!-- made by nccl-bench plot -->\n";

/// The files of `plot`.
const MAKER: Maker =
    Maker { mark: MARK, product: "plot", advice: "name another --output", input: "holds results to draw" };

/// Writes all files, or none where one must not be replaced.
///
/// # Errors
/// When a file exists that must not be replaced, or when a file cannot be written.
pub(super) fn write_all(texts: &[(PathBuf, String)], force: bool, inputs: &[PathBuf]) -> anyhow::Result<()> {
    MAKER.write_all(texts, force, inputs)
}

/// The type of an output file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileType {
    Html,
    Svg,
}

impl FileType {
    pub(super) fn of(path: &Path) -> anyhow::Result<Self> {
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        match suffix.as_deref() {
            Some("html" | "htm") => Ok(Self::Html),
            Some("svg") => Ok(Self::Svg),
            Some("png" | "pdf" | "jpg" | "jpeg") => bail!(
                "--output {} is not written: name a drawing (.svg), and convert it: rsvg-convert x.svg -o x.png, or a browser: \
                 chromium --headless --screenshot=x.png x.svg",
                path.display()
            ),
            _ => bail!("--output {} must end in .html (a page) or .svg (a drawing)", path.display()),
        }
    }
}

/// A name that any file system accepts.
pub(super) fn file_name(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() || character == '_' {
            name.push(character);
        } else if !name.ends_with('-') {
            name.push('-');
        }
    }
    name
}
