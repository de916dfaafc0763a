//! The output files of a plot.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail, ensure};
use record::files::replacement;

/// First line of each file that is written, by which a later plot knows that it may replace it.
pub(super) const MARK: &str = "<!-- made by nccl-bench plot -->\n";

/// Writes all files, or none where one must not be replaced.
///
/// # Errors
/// When a file exists that must not be replaced, or when a file cannot be written.
pub(super) fn write_all(texts: &[(PathBuf, String)], force: bool, inputs: &[PathBuf]) -> anyhow::Result<()> {
    for (path, _) in texts {
        refuse_unrelated(path, force, inputs)?;
    }
    texts.iter().try_for_each(|(path, text)| write_whole(path, text))
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

/// Refuses to replace files that no plot has written, unless `force` is set, and the inputs in any case.
fn refuse_unrelated(path: &Path, force: bool, inputs: &[PathBuf]) -> anyhow::Result<()> {
    let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
    ensure!(metadata.is_file(), "{} is no file; name another --output", path.display());
    let same =
        |input: &PathBuf| matches!((input.canonicalize(), path.canonicalize()), (Ok(a), Ok(b)) if a == b);
    ensure!(!inputs.iter().any(same), "{} holds results to draw; name another --output", path.display());
    if force {
        return Ok(());
    }
    let mut start = Vec::new();
    let read = fs::File::open(path).and_then(|file| file.take(256).read_to_end(&mut start));
    let earlier = read.is_ok() && String::from_utf8_lossy(&start).contains(MARK);
    ensure!(
        earlier,
        "{} exists and is no plot of nccl-bench; name another --output, or use --force to replace it",
        path.display()
    );
    Ok(())
}

/// Writes a file under another name and renames it: a reader never sees half of it, and a full disk leaves the previous file
/// as it was.
fn write_whole(path: &Path, text: &str) -> anyhow::Result<()> {
    // A symbolic link stays one.
    let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let written = replacement::write(&target, |out| out.write_all(text.as_bytes()));
    written.with_context(|| format!("{} cannot be written; name another --output", path.display()))
}
