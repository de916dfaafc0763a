//! Finding libfabric, and its exported functions.

use std::ffi::{CStr, OsStr, c_char, c_int, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::error::{Attempt, LoadError};
use crate::signals::Reactions;
use crate::{fi_fabric_attr, fi_info, fi_type, fid_fabric, search};

/// A version of libfabric's interface: 1.17, 2.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// The first number.
    pub major: u16,
    /// The second number.
    pub minor: u16,
}

impl Version {
    /// Makes a version from the two numbers.
    #[must_use]
    pub const fn new(major: u16, minor: u16) -> Self {
        Self { major, minor }
    }

    /// Converts a result of `fi_version`.
    #[must_use]
    pub const fn from_raw(raw: u32) -> Self {
        Self { major: (raw >> 16) as u16, minor: (raw & 0xffff) as u16 }
    }

    /// The number `FI_VERSION(major, minor)`.
    #[must_use]
    pub const fn to_raw(self) -> u32 {
        (self.major as u32) << 16 | self.minor as u32
    }
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}.{}", self.major, self.minor)
    }
}

/// The interface version of this crate's types: the highest version to request.
pub const KNOWN_VERSION: Version =
    Version::new(crate::FI_MAJOR_VERSION as u16, crate::FI_MINOR_VERSION as u16);

/// The oldest accepted libfabric: the first whose `net` (later `tcp`) provider has reliable datagram
/// endpoints of its own, and the oldest one tested.
pub const MINIMUM_VERSION: Version = Version::new(1, 17);

/// Symbol versions of the exported functions that changed arguments or results of the functions bound here,
/// newest first. All changes only lengthened structs at their end.
#[cfg(target_env = "gnu")]
const SYMBOL_VERSIONS: [&CStr; 5] =
    [c"FABRIC_1.10", c"FABRIC_1.9", c"FABRIC_1.8", c"FABRIC_1.7", c"FABRIC_1.3"];

type GetInfo =
    unsafe extern "C" fn(u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int;
type FreeInfo = unsafe extern "C" fn(*mut fi_info);
type DupInfo = unsafe extern "C" fn(*const fi_info) -> *mut fi_info;
type OpenFabric = unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int;
type GetVersion = unsafe extern "C" fn() -> u32;
type StrError = unsafe extern "C" fn(c_int) -> *const c_char;
type ToStrR = unsafe extern "C" fn(*mut c_char, usize, *const c_void, fi_type) -> *mut c_char;

/// A loaded libfabric. It is never unloaded: providers have threads and exit handlers.
#[derive(Debug)]
pub struct Fabric {
    path: PathBuf,
    version: Version,
    getinfo: GetInfo,
    freeinfo: FreeInfo,
    dupinfo: DupInfo,
    fabric: OpenFabric,
    strerror: StrError,
    tostr_r: Option<ToStrR>,
}

impl Fabric {
    /// The process's libfabric, found on the first call: if `$FABRIC_LIBRARY` is set, this and nothing else;
    /// otherwise `libfabric.so.1` and `libfabric.so` by the dynamic linker's rules, then the homes of the EFA
    /// installer, Cray, conda and the Python environment. Signal handlers installed by PSM's libraries
    /// meanwhile are removed: the program's reactions to signals stay as they were.
    ///
    /// # Errors
    /// Every attempted place with the reason, and how to install libfabric.
    pub fn load() -> Result<&'static Self, &'static LoadError> {
        static LOADED: OnceLock<Result<Fabric, LoadError>> = OnceLock::new();
        LOADED.get_or_init(Self::find).as_ref()
    }

    fn find() -> Result<Self, LoadError> {
        let candidates = search::candidates();
        let mut attempts = Vec::new();
        for candidate in &candidates {
            // SAFETY: the places are libfabric's usual ones, or the one named by the user as such.
            match unsafe { Self::open(candidate.as_os_str()) } {
                Ok(fabric) => return Ok(fabric),
                Err(reason) => attempts.push(Attempt { place: candidate.display().to_string(), reason }),
            }
        }
        if std::env::var_os(search::VARIABLE).is_some_and(|value| !value.is_empty()) {
            for attempt in &mut attempts {
                attempt.place = format!("{} (from {})", attempt.place, search::VARIABLE);
            }
        } else if let Some(homes) = search::empty_homes(&candidates) {
            attempts.push(Attempt { place: homes.to_owned(), reason: "no libfabric.so.1 there".to_owned() });
        }
        Err(LoadError { attempts })
    }

    /// Loads one particular file. It stays loaded for the rest of the process.
    ///
    /// # Safety
    /// The file must be a libfabric: loading runs its code, and the functions are called as libfabric's.
    ///
    /// # Errors
    /// The reason why the file cannot be used.
    pub unsafe fn from_path(path: &Path) -> Result<Self, LoadError> {
        // SAFETY: the caller vouches for the file.
        unsafe { Self::open(path.as_os_str()) }.map_err(|reason| LoadError {
            attempts: vec![Attempt { place: path.display().to_string(), reason }],
        })
    }

    /// # Safety
    /// `name` must resolve to a libfabric, if to anything.
    unsafe fn open(name: &OsStr) -> Result<Self, String> {
        let reactions = Reactions::current();
        // SAFETY: the caller vouches for the library; its constructors only set up its own state, and install
        // signal handlers: these are removed.
        let library = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_LOCAL) };
        reactions.restore();
        let library = library.map_err(|error| source_text(&error))?;
        let handle = library.into_raw();
        // SAFETY: the handle is live for ever, as it is never closed, and the caller vouches for the symbols
        // as libfabric's, with the types given here.
        unsafe {
            let version: GetVersion = function(plain_symbol(handle, c"fi_version"), "fi_version")?;
            let version = Version::from_raw(version());
            if version < MINIMUM_VERSION {
                return Err(format!("is libfabric {version}; {MINIMUM_VERSION} or newer is needed"));
            }
            let symbol = |name: &CStr| versioned_symbol(handle, name);
            Ok(Self {
                path: path_of(symbol(c"fi_getinfo")).unwrap_or_else(|| PathBuf::from(name)),
                version,
                getinfo: function(symbol(c"fi_getinfo"), "fi_getinfo")?,
                freeinfo: function(symbol(c"fi_freeinfo"), "fi_freeinfo")?,
                dupinfo: function(symbol(c"fi_dupinfo"), "fi_dupinfo")?,
                fabric: function(plain_symbol(handle, c"fi_fabric"), "fi_fabric")?,
                strerror: function(plain_symbol(handle, c"fi_strerror"), "fi_strerror")?,
                tostr_r: function(plain_symbol(handle, c"fi_tostr_r"), "fi_tostr_r").ok(),
            })
        }
    }

    /// The loaded file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The loaded library's own version, for people to read. Never request it: see [`Fabric::api_version`].
    #[must_use]
    pub const fn version(&self) -> Version {
        self.version
    }

    /// The version to request from [`Fabric::fi_getinfo`]: the lower of the library's and [`KNOWN_VERSION`].
    #[must_use]
    pub fn api_version(&self) -> Version {
        self.version.min(KNOWN_VERSION)
    }

    /// `fi_getinfo`: lists the providers' entries, best first. Free the list with [`Fabric::fi_freeinfo`].
    ///
    /// # Safety
    /// The rules of C apply: `node` and `service` null or texts, `hints` null or from
    /// [`Fabric::fi_dupinfo`] of this library, `info` writable.
    pub unsafe fn fi_getinfo(
        &self,
        version: Version,
        node: *const c_char,
        service: *const c_char,
        flags: u64,
        hints: *const fi_info,
        info: *mut *mut fi_info,
    ) -> c_int {
        // SAFETY: passed on to the caller.
        unsafe { (self.getinfo)(version.to_raw(), node, service, flags, hints, info) }
    }

    /// `fi_freeinfo`: frees a list from [`Fabric::fi_getinfo`] or [`Fabric::fi_dupinfo`], with the strings in
    /// it.
    ///
    /// # Safety
    /// `info` must be such a list of this library, not freed yet; strings put into it must be libc's
    /// `malloc`'s.
    pub unsafe fn fi_freeinfo(&self, info: *mut fi_info) {
        // SAFETY: passed on to the caller.
        unsafe { (self.freeinfo)(info) }
    }

    /// `fi_dupinfo`: copies one entry, or makes an empty one from null. Null when memory runs out.
    ///
    /// # Safety
    /// `info` must be null or a live entry of this library.
    #[must_use]
    pub unsafe fn fi_dupinfo(&self, info: *const fi_info) -> *mut fi_info {
        // SAFETY: passed on to the caller.
        unsafe { (self.dupinfo)(info) }
    }

    /// `fi_fabric`: opens a fabric. Close it with [`crate::fi_close`].
    ///
    /// # Safety
    /// `attributes` must be the `fabric_attr` of a live entry of this library, `fabric` writable.
    pub unsafe fn fi_fabric(
        &self,
        attributes: *mut fi_fabric_attr,
        fabric: *mut *mut fid_fabric,
        context: *mut c_void,
    ) -> c_int {
        // SAFETY: passed on to the caller.
        unsafe { (self.fabric)(attributes, fabric, context) }
    }

    /// `fi_strerror`: the text of an error number, positive or negative.
    #[must_use]
    pub fn fi_strerror(&self, error: c_int) -> String {
        // SAFETY: the function takes any number and returns a static text.
        unsafe { text((self.strerror)(error.saturating_abs())) }
    }

    /// `fi_tostr_r`: libfabric's own description of a value.
    ///
    /// # Safety
    /// `data` must point to a live value of the kind named by `kind`.
    #[must_use]
    pub unsafe fn fi_tostr(&self, data: *const c_void, kind: fi_type) -> Option<String> {
        let tostr_r = self.tostr_r?;
        let mut buffer: [c_char; 8192] = [0; 8192];
        // SAFETY: the caller vouches for `data`; the buffer's length is passed along and the result is a text
        // in it.
        unsafe {
            tostr_r(buffer.as_mut_ptr(), buffer.len(), data, kind);
            Some(text(buffer.as_ptr()))
        }
    }
}

/// # Safety
/// `pointer` must be null or a text.
unsafe fn text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: not null, so a text as the caller vouches.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// # Safety
/// `handle` must be live.
unsafe fn plain_symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the caller vouches for the handle; the name is a text.
    unsafe { libc::dlsym(handle, name.as_ptr()) }
}

/// Returns the symbol with the newest version known to both sides, or the default one if the library's
/// symbols have no versions.
///
/// # Safety
/// `handle` must be live.
unsafe fn versioned_symbol(handle: *mut c_void, name: &CStr) -> *mut c_void {
    #[cfg(target_env = "gnu")]
    for version in SYMBOL_VERSIONS {
        // SAFETY: the caller vouches for the handle; the names are texts.
        let symbol = unsafe { libc::dlvsym(handle, name.as_ptr(), version.as_ptr()) };
        if !symbol.is_null() {
            return symbol;
        }
    }
    // SAFETY: as above.
    unsafe { plain_symbol(handle, name) }
}

/// # Safety
/// `F` must be a function pointer type, and `symbol` null or a function of that type.
unsafe fn function<F: Copy>(symbol: *mut c_void, name: &str) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    if symbol.is_null() {
        return Err(format!("has no symbol {name}: it is not libfabric"));
    }
    // SAFETY: not null, and of the right type as the caller vouches; both are pointers of one size
    // (asserted).
    Ok(unsafe { std::mem::transmute_copy(&symbol) })
}

/// Returns the file of `symbol`.
fn path_of(symbol: *mut c_void) -> Option<PathBuf> {
    let mut info = libc::Dl_info {
        dli_fname: ptr::null(),
        dli_fbase: ptr::null_mut(),
        dli_sname: ptr::null(),
        dli_saddr: ptr::null_mut(),
    };
    // SAFETY: any address may be asked about; `info` is writable.
    if unsafe { libc::dladdr(symbol, &raw mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: on success the name is a text with the lifetime of the library, and the library is never
    // unloaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    Some(PathBuf::from(OsStr::from_bytes(name.to_bytes())))
}

fn source_text(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
