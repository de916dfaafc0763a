//! Finding and loading libnccl.

use std::env;
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::bindings::{Functions, ncclResult_t};
use crate::table::{API, FLOOR, function};
use crate::version::Version;

/// Soname of the library.
const SONAME: &str = "libnccl.so.2";

/// A loaded libnccl: its functions, version and path. Never unloaded, because NCCL keeps threads of its own.
pub struct Nccl {
    pub(crate) functions: Functions,
    version: Version,
    path: PathBuf,
}

impl Nccl {
    /// Returns the libnccl of this process. The first call finds and loads it.
    ///
    /// Search order: the path in `$NCCL_LIBRARY` (if set, nothing else); `libnccl.so.2` and `libnccl.so` by
    /// the loader's rules (these find a copy already loaded in the process); `$NCCL_HOME`, `$CONDA_PREFIX`,
    /// the Python package `nvidia-nccl-cu12` or `-cu13` in `$VIRTUAL_ENV`, in the environment of each
    /// `python3` on `PATH` and in `~/.local`; `/usr/local/nccl`, `/usr/local/cuda`, `/opt/nccl`.
    ///
    /// # Errors
    /// All attempted places, with the reason for each. The result is the same for the life of the process.
    pub fn load() -> Result<&'static Self, &'static LoadError> {
        static LOADED: OnceLock<Result<Nccl, LoadError>> = OnceLock::new();
        LOADED.get_or_init(Self::search).as_ref()
    }

    /// Loads the library with this path or soname. It stays loaded. For tests; programs use [`Nccl::load`].
    ///
    /// # Safety
    /// The file is a libnccl: its initialisers may run, and its functions have the signatures of NCCL's
    /// header.
    ///
    /// # Errors
    /// If it cannot be loaded, is older than [`FLOOR`] or lacks a function of [`FLOOR`].
    pub unsafe fn from_path(path: impl AsRef<Path>) -> Result<Self, LoadError> {
        // SAFETY: the caller vouches for the file.
        unsafe { Self::open(path.as_ref().as_os_str()) }
            .map_err(|reason| LoadError { attempts: vec![(path.as_ref().to_owned(), reason)] })
    }

    /// Version from `ncclGetVersion`.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Path of the loaded file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    #[cold]
    pub(crate) fn missing(&self, name: &'static str) -> MissingSymbol {
        let since = API.iter().find(|(function, _)| *function == name).map_or(FLOOR, |(_, since)| *since);
        MissingSymbol { name, since, loaded: self.version, path: self.path.clone() }
    }

    fn search() -> Result<Self, LoadError> {
        let mut attempts = Vec::new();
        for place in places() {
            // SAFETY: a file of this name in these places is NCCL's library; $NCCL_LIBRARY is the user's own
            // word.
            match unsafe { Self::open(place.as_os_str()) } {
                Ok(nccl) => return Ok(nccl),
                Err(reason) => attempts.push((place, reason)),
            }
        }
        Err(LoadError { attempts })
    }

    /// # Safety
    /// The contract of [`Nccl::from_path`].
    unsafe fn open(name: &OsStr) -> Result<Self, String> {
        // SAFETY: the caller vouches for the file, so its initialisers are NCCL's.
        let library =
            unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) }.map_err(|error| reason(&error))?;
        // NCCL has threads and at-exit work: it stays loaded.
        let library: &'static Library = Box::leak(Box::new(library));
        let lookup = |symbol: &str| -> Result<*mut c_void, String> {
            // SAFETY: the address is only stored here; the table gives it its type.
            let found = unsafe { library.get::<*mut c_void>(symbol.as_bytes()) };
            let address = found.map_err(|error| reason(&error))?.into_raw();
            if address.is_null() { Err(format!("{symbol} has no address")) } else { Ok(address) }
        };
        type GetVersion = unsafe extern "C" fn(*mut c_int) -> ncclResult_t;
        // SAFETY: the signature of ncclGetVersion in every NCCL.
        let get_version: GetVersion = unsafe { function(&lookup, "ncclGetVersion") }?;
        let mut code: c_int = 0;
        // SAFETY: the function writes one int.
        let result = unsafe { get_version(&mut code) };
        if result != ncclResult_t::ncclSuccess {
            return Err(format!("ncclGetVersion failed with code {}", result.0));
        }
        let version = Version::from_code(u32::try_from(code).unwrap_or(0));
        if version < FLOOR {
            return Err(format!("NCCL {version} is older than {FLOOR}, the oldest that is supported"));
        }
        // SAFETY: lookup answers from the library vouched for by the caller.
        let functions = unsafe { Functions::find(&lookup) }?;
        let path = origin(get_version as *const c_void).unwrap_or_else(|| name.into());
        Ok(Self { functions, version, path })
    }
}

impl fmt::Debug for Nccl {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { version, path, .. } = self;
        formatter.debug_struct("Nccl").field("version", version).field("path", path).finish_non_exhaustive()
    }
}

/// The loader's message, without libloading's prefix.
fn reason(error: &libloading::Error) -> String {
    use std::error::Error as _;
    error.source().map_or_else(|| error.to_string(), ToString::to_string)
}

/// Returns the file that contains an address.
fn origin(address: *const c_void) -> Option<PathBuf> {
    // SAFETY: a struct of pointers: they may be null.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only looks the address up, and writes one Dl_info.
    let found = unsafe { libc::dladdr(address, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: on success dli_fname is a NUL-terminated string with the lifetime of the library: for ever.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let name: &OsStr = std::os::unix::ffi::OsStrExt::from_bytes(name.to_bytes());
    Some(PathBuf::from(name))
}

/// All places to try, in order.
fn places() -> Vec<PathBuf> {
    let variable = |name: &str| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    if let Some(path) = variable("NCCL_LIBRARY") {
        return vec![path];
    }
    let mut folders = Vec::new();
    if let Some(home) = variable("NCCL_HOME") {
        folders.extend([home.join("lib"), home.join("lib64")]);
    }
    if let Some(prefix) = variable("CONDA_PREFIX") {
        folders.push(prefix.join("lib"));
        folders.extend(python_packages(&prefix));
    }
    if let Some(environment) = variable("VIRTUAL_ENV") {
        folders.extend(python_packages(&environment));
    }
    for folder in env::var_os("PATH").iter().flat_map(env::split_paths) {
        if folder.join("python3").exists() {
            folders.extend(folder.parent().iter().flat_map(|prefix| python_packages(prefix)));
        }
    }
    if let Some(home) = variable("HOME") {
        folders.extend(python_packages(&home.join(".local")));
    }
    folders.extend(
        [
            "/usr/local/nccl/lib",
            "/usr/local/cuda/lib64",
            "/usr/local/cuda/lib",
            "/opt/nccl/lib",
            "/opt/nccl/build/lib",
        ]
        .map(PathBuf::from),
    );
    let mut places = vec![PathBuf::from(SONAME), PathBuf::from("libnccl.so")];
    for place in folders.into_iter().map(|folder| folder.join(SONAME)) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// Folders of NVIDIA's wheel in a Python environment, one per Python version.
fn python_packages(prefix: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(prefix.join("lib")) else { return Vec::new() };
    let mut folders: Vec<PathBuf> = entries
        .flatten()
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("python3"))
        .flat_map(|entry| ["site-packages", "dist-packages"].map(|packages| entry.path().join(packages)))
        .filter(|packages| packages.is_dir())
        .map(|packages| packages.join("nvidia/nccl/lib"))
        .collect();
    folders.sort();
    folders
}

/// No libnccl could be loaded. Displays all places that were tried, and how to install NCCL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "NCCL {FLOOR} or newer could not be loaded.\nTried:\n{}Install NCCL (Debian, Ubuntu with NVIDIA's \
     repository: apt install libnccl2; Python: pip install nvidia-nccl-cu12) or set NCCL_LIBRARY to the path \
     of {SONAME}.",
    list(attempts)
)]
pub struct LoadError {
    /// Each path or name passed to the loader, in order, with the reason: the loader's message, or a missing
    /// function.
    attempts: Vec<(PathBuf, String)>,
}

fn list(attempts: &[(PathBuf, String)]) -> String {
    let line = |(place, reason): &(PathBuf, String)| {
        let place = place.display();
        // The loader repeats its argument.
        let reason = reason.strip_prefix(&format!("{place}: ")).unwrap_or(reason);
        format!("  {place}: {reason}\n")
    };
    attempts.iter().map(line).collect()
}

/// The loaded library is too old for a function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} needs NCCL {since}; loaded {loaded} from {}", path.display())]
pub struct MissingSymbol {
    /// The function.
    pub name: &'static str,
    /// The first version with the function.
    pub since: Version,
    /// The loaded version.
    pub loaded: Version,
    /// The loaded file.
    pub path: PathBuf,
}
