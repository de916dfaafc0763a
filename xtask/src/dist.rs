//! `cargo xtask dist`: one tarball for a machine with GPUs, MPI and no Rust.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

/// Tests of these names need a GPU and travel with the tarball.
const GPU_TESTS: &str = "gpu_*";

/// Examples of these names need a GPU and travel with the tarball.
const GPU_EXAMPLES: &str = "nccl_*";

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// The target of a cross-compiler, such as aarch64-unknown-linux-gnu; this machine's if not given
    #[arg(long)]
    target: Option<String>,
}

/// Builds the tarball `dist/nccl-bench-<version>-<architecture>-linux.tar.gz` and prints its path.
pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let version = env!("CARGO_PKG_VERSION");
    let target = arguments.target.as_deref();
    let architecture =
        target.map_or(std::env::consts::ARCH, |target| target.split('-').next().unwrap_or(target));
    let name = format!("nccl-bench-{version}-{architecture}-linux");
    let folder = Path::new("dist").join(&name);
    if folder.exists() {
        fs::remove_dir_all(&folder)?;
    }
    let parts: [(&str, &str, &[&str]); 4] = [
        ("bin", "bin", &["build", "--package", "nccl-bench", "--bins"]),
        ("examples", "example", &["build", "--package", "collectives", "--example", GPU_EXAMPLES]),
        ("tests", "test", &["test", "--workspace", "--no-run", "--test", GPU_TESTS]),
        ("benches", "bench", &["build", "--package", "collectives", "--bench", "nccl_call"]),
    ];
    for (part, kind, arguments) in parts {
        fs::create_dir_all(folder.join(part))?;
        for program in build(arguments, kind, target)? {
            let name = file_name(&program);
            // Tests and benches have cargo's hash in their names.
            let plain = name.rsplit_once('-').filter(|_| ["test", "bench"].contains(&kind));
            copy(&program, &folder.join(part), plain.map(|(name, _)| name))?;
        }
    }
    for script in ["measurements/tools/run-gpu", "measurements/tools/small_sizes.py"] {
        copy(Path::new(script), &folder, None)?;
    }
    for text in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
        copy(Path::new(text), &folder, None)?;
    }

    // The programs contain the font.
    copy(Path::new("nccl-bench/src/command/plot/DejaVuSans.license.txt"), &folder, None)?;

    let tarball = Path::new("dist").join(format!("{name}.tar.gz"));
    let status = Command::new("tar").arg("-C").arg("dist").arg("-czf").arg(&tarball).arg(&name).status()?;
    if !status.success() {
        bail!("tar failed");
    }
    println!("{} ({:.1} MiB)", tarball.display(), fs::metadata(&tarball)?.len() as f64 / f64::from(1 << 20));
    Ok(())
}

/// Builds in release and returns the executables of this kind.
fn build(arguments: &[&str], kind: &str, target: Option<&str>) -> Result<Vec<PathBuf>> {
    let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_owned());
    let output = Command::new(cargo)
        .args(arguments)
        .args(["--release", "--features", "mpi", "--message-format", "json-render-diagnostics"])
        .args(target.map(|target| format!("--target={target}")))
        .stderr(std::process::Stdio::inherit())
        .output()?;
    if !output.status.success() {
        bail!("the build failed");
    }
    let mut executables = Vec::new();
    for line in String::from_utf8(output.stdout)?.lines() {
        let message: serde_json::Value = serde_json::from_str(line)?;
        let kinds = message["target"]["kind"].as_array().cloned().unwrap_or_default();
        if let Some(path) = message["executable"].as_str()
            && kinds.iter().any(|each| each == kind)
        {
            executables.push(PathBuf::from(path));
        }
    }
    Ok(executables)
}

fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn copy(file: &Path, folder: &Path, name: Option<&str>) -> Result<()> {
    let target = folder.join(name.map_or_else(|| file_name(file), str::to_owned));
    fs::copy(file, &target).with_context(|| format!("copying {} to {}", file.display(), target.display()))?;
    Ok(())
}
