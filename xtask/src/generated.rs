//! Generated text, committed and compared in CI.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Writes the text; with `check`, fails where the committed text differs.
pub(crate) fn put(path: &Path, generated: &str, check: bool) -> Result<()> {
    let file = path.display();
    if !check {
        return fs::write(path, generated).with_context(|| format!("cannot write {file}"));
    }
    let committed = fs::read_to_string(path).with_context(|| format!("cannot read {file}"))?;
    if committed == generated {
        return Ok(());
    }
    let lines = committed.lines().zip(generated.lines()).zip(1..);
    match lines.into_iter().find(|((old, new), _)| old != new) {
        Some(((old, new), line)) => {
            bail!("{file}:{line}: committed `{old}`, generated `{new}`: run the same command without --check")
        }
        None => bail!("{file} and the generated text differ in length: run the same command without --check"),
    }
}
