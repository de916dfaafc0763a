//! Generated text that is committed, and compared in CI.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

/// Writes the text; with `check`, fails where the committed text differs.
pub(crate) fn put(path: &Path, generated: &str, check: bool) -> Result<()> {
    if check { compare(path, generated) } else { write(path, generated) }
}

fn write(path: &Path, generated: &str) -> Result<()> {
    fs::write(path, generated).with_context(|| format!("cannot write {}", path.display()))
}

fn compare(path: &Path, generated: &str) -> Result<()> {
    let committed = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    let Some(line) = (0..).zip(committed.lines().zip(generated.lines())).find(|(_, (old, new))| old != new)
    else {
        if committed.len() == generated.len() {
            return Ok(());
        }
        bail!(
            "{} and the generated text differ in length: run the same command without --check",
            path.display()
        );
    };
    let (number, (old, new)) = line;
    bail!(
        "{}:{}: committed `{old}`, generated `{new}`: run the same command without --check",
        path.display(),
        number + 1
    );
}
