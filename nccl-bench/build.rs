//! Sets the git revision that every result contains, and exports the symbols that NCCL looks for. A package
//! or a vendored copy has no revision.
//!
//! Cargo recompiles this crate whenever this program runs. So it runs only when the revision may have
//! changed: HEAD moved, or a source that is compiled into this crate changed. The index and other files
//! affect neither this nor `-dirty`.

use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The sources of `nccl-bench`.
const SOURCES: [&str; 16] = [
    "Cargo.lock",
    "Cargo.toml",
    "src",
    "nccl-sys/Cargo.toml",
    "nccl-sys/src",
    "fabric-sys/Cargo.toml",
    "fabric-sys/src",
    "crates/record/Cargo.toml",
    "crates/record/src",
    "crates/diagnosis/Cargo.toml",
    "crates/diagnosis/src",
    "crates/engine/Cargo.toml",
    "crates/engine/src",
    "nccl-bench/Cargo.toml",
    "nccl-bench/build.rs",
    "nccl-bench/src",
];

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Symbols of an executable that NCCL looks for (the engine's nccl_choice/profiler.rs) are visible to the
    // libraries that it loads only when the linker is told so. Tests on GPUs are such executables, too.
    for version in 2..=6 {
        for programs in ["bins", "tests"] {
            println!("cargo::rustc-link-arg-{programs}=-Wl,--export-dynamic-symbol=ncclProfiler_v{version}");
        }
    }
    let revision = find_repository().and_then(|root| {
        let revision = read_revision(&root)?;
        watch_sources(&root);
        Some(revision)
    });
    let revision = revision.unwrap_or_else(|| "unknown: not built in its own git checkout".to_owned());
    println!("cargo::rustc-env=BUILD_REVISION={revision}");
}

/// The root of the project's checkout, if this package lies in it.
fn find_repository() -> Option<PathBuf> {
    let package = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR")?).canonicalize().ok()?;
    let root = package.parent()?;
    let top = PathBuf::from(run_git(root, &["rev-parse", "--show-toplevel"])?).canonicalize().ok()?;
    if top != root {
        return None;
    }
    // Another repository with this package at the same path has no xtask.
    run_git(root, &["ls-files", "--error-unmatch", "nccl-bench/build.rs", "xtask/Cargo.toml"])?;
    Some(top)
}

/// The revision: `1a2b3c4d5e6f`, with `-dirty` when a source differs from it.
fn read_revision(root: &Path) -> Option<String> {
    let revision = run_git(root, &["rev-parse", "--short=12", "HEAD"])?;
    let mut status = vec!["--no-optional-locks", "status", "--porcelain", "--untracked-files=all", "--"];
    status.extend(SOURCES);
    Some(if run_git(root, &status)?.is_empty() { revision } else { format!("{revision}-dirty") })
}

/// Makes cargo run this program again when a source changes, and when HEAD moves.
fn watch_sources(root: &Path) {
    let mut watched: Vec<PathBuf> = SOURCES.iter().map(|source| root.join(source)).collect();
    let in_git = |path: &str| run_git(root, &["rev-parse", "--git-path", path]).map(|path| root.join(path));
    watched.extend(in_git("HEAD"));
    if let Some(branch) = run_git(root, &["symbolic-ref", "--quiet", "HEAD"]) {
        match in_git(&branch) {
            Some(file) if file.exists() => watched.push(file),
            // A packed reference: the next commit creates its file.
            _ => watched.extend(["packed-refs", "refs/heads"].into_iter().filter_map(in_git)),
        }
    }
    watched.extend(in_git("reftable"));
    // A missing file would make this program run every time.
    for path in watched.iter().filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

fn run_git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(folder).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    output.status.success().then_some(text)
}
