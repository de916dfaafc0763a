//! The output files of a plot.

use std::path::{Path, PathBuf};

use anyhow::bail;

use super::png;
use crate::command::output_file::Maker;

/// First line of each written file. A later plot may replace a file with this line.
pub(super) const MARK: &str = "<!-- made by nccl-bench plot -->\n";

/// Description of the files of `plot`.
const MAKER: Maker =
    Maker { mark: MARK, product: "plot", advice: "name another --output", input: "holds results to draw" };

/// Writes all files, or none if one of them must not be replaced.
///
/// # Errors
/// When an existing file must not be replaced, or when a file cannot be written.
pub(super) fn write_all(files: &[(PathBuf, Vec<u8>)], force: bool, inputs: &[PathBuf]) -> anyhow::Result<()> {
    MAKER.write_all(files, force, inputs)
}

/// The type of an output file.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum FileType {
    Html,
    Svg,
    Png,
}

impl FileType {
    /// Returns the suffix of such a file.
    pub(super) fn file_suffix(self) -> &'static str {
        match self {
            Self::Html => "html",
            Self::Svg => "svg",
            Self::Png => "png",
        }
    }

    /// Returns the content of a drawing in this type.
    pub(super) fn of_drawing(self, svg: String) -> anyhow::Result<Vec<u8>> {
        if self == Self::Png { png::draw_png(&svg, MARK) } else { Ok(svg.into_bytes()) }
    }

    pub(super) fn from_path(path: &Path) -> anyhow::Result<Self> {
        let suffix = path.extension().map(|suffix| suffix.to_string_lossy().to_ascii_lowercase());
        match suffix.as_deref() {
            Some("html" | "htm") => Ok(Self::Html),
            Some("svg") => Ok(Self::Svg),
            Some("png") => Ok(Self::Png),
            Some("pdf" | "jpg" | "jpeg") => bail!(
                "--output {} is not written: name a drawing (.svg), and convert it, as with rsvg-convert -f \
                 pdf x.svg -o x.pdf; or name a picture (.png)",
                path.display()
            ),
            _ => bail!(
                "--output {} must end in .html (a page), .svg (a drawing) or .png (a picture)",
                path.display()
            ),
        }
    }
}

/// Returns a name acceptable to any file system.
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
