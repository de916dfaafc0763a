//! Generated bindings: made by bindgen, committed, and made again by CI to compare.

mod fabric;
mod nccl;

use std::io::Write as _;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use clap::{Args, ValueEnum};

use crate::{cache, generated};

#[derive(Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail when the committed bindings differ from what would be generated
    #[arg(long)]
    check: bool,
    /// Only this crate's; all when left out
    library: Option<Library>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Library {
    /// nccl-sys, from NCCL's nccl.h
    Nccl,
    /// fabric-sys, from libfabric's headers
    Fabric,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let libraries = arguments.library.map_or(Library::value_variants().to_vec(), |library| vec![library]);
    for library in libraries {
        let (path, generated) = match library {
            Library::Nccl => nccl::generate()?,
            Library::Fabric => fabric::generate()?,
        };
        generated::put(&path, &generated, arguments.check)?;
    }
    Ok(())
}

/// Formats generated text as `cargo fmt` would.
fn rustfmt(text: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition=2024", "--config-path"])
        .arg(cache::repository()?.join("rustfmt.toml"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run rustfmt")?;
    child.stdin.take().context("rustfmt has no standard input")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt: {}", output.status);
    Ok(String::from_utf8(output.stdout)?)
}
