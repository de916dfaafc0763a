//! Output files of a command. An earlier file is replaced only if it is empty, or was made by the same
//! command.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, ensure};
use record::files::replacement;

/// Description of one command's files.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maker {
    /// Mark near the start of each file. A later run may replace a file with this mark.
    pub(super) mark: &'static str,
    /// The file in words: `plot`.
    pub(super) product: &'static str,
    /// The advice to use another path: `name another --output`.
    pub(super) advice: &'static str,
    /// The content of the inputs: `holds results to draw`.
    pub(super) input: &'static str,
}

impl Maker {
    /// Writes all files, or none if one of them must not be replaced.
    ///
    /// # Errors
    /// When an existing file must not be replaced, or when a file cannot be written.
    pub(super) fn write_all<T: AsRef<[u8]>>(
        &self,
        files: &[(PathBuf, T)],
        force: bool,
        inputs: &[PathBuf],
    ) -> anyhow::Result<()> {
        for (path, _) in files {
            self.refuse_unrelated(path, force, inputs)?;
        }
        files.iter().try_for_each(|(path, content)| self.write_whole(path, content.as_ref()))
    }

    /// Refuses to replace files not written by this command, unless `force` is set. Refuses to replace the
    /// inputs in any case.
    ///
    /// # Errors
    /// When the file must not be replaced.
    pub(super) fn refuse_unrelated(
        &self,
        path: &Path,
        force: bool,
        inputs: &[PathBuf],
    ) -> anyhow::Result<()> {
        let Self { mark, product, advice, input: holds } = self;
        let Ok(metadata) = fs::metadata(path) else { return Ok(()) };
        ensure!(metadata.is_file(), "{} is not a file; {advice}", path.display());
        let same =
            |input: &PathBuf| matches!((input.canonicalize(), path.canonicalize()), (Ok(a), Ok(b)) if a == b);
        ensure!(!inputs.iter().any(same), "{} {holds}; {advice}", path.display());
        let is_own = |start: &[u8]| String::from_utf8_lossy(start).contains(mark);
        ensure!(
            force || !replacement::is_foreign(path, is_own),
            "{} exists and is not a {product} of nccl-bench; {advice}, or use --force to replace it",
            path.display()
        );
        Ok(())
    }

    /// Writes a file under another name and renames it. A reader never sees half of it, and a full disk
    /// leaves the previous file unchanged.
    fn write_whole(&self, path: &Path, content: &[u8]) -> anyhow::Result<()> {
        // A symbolic link is kept.
        let target = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let written = replacement::write_file(&target, |out| out.write_all(content));
        written.with_context(|| format!("{} cannot be written; {}", path.display(), self.advice))
    }
}
