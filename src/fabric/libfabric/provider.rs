//! Providers of libfabric for tagged messages between ranks, and `fi_getinfo`.

use std::ffi::{CStr, CString, c_char};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::{env, ptr};

use fabric_sys::{Fabric, Version, fi_info, fi_threading};

use crate::fabric::error::{Error, Failure};

/// Lists the loaded libfabric's providers for tagged messages between ranks here, by libfabric's names:
/// `tcp`, `net`, `shm`, `efa`, `verbs;ofi_rxm`.
///
/// Uses `fi_getinfo`.
///
/// # Errors
/// [`Error::Library`] without a libfabric.
pub fn providers() -> Result<Vec<String>, Error> {
    let mut providers: Vec<String> = Vec::new();
    for info in InfoList::query_tagged(Fabric::load()?, None, None)?.iter() {
        let name = info.provider_name();
        if !providers.contains(&name) {
            providers.push(name);
        }
    }
    Ok(providers)
}

/// TCP with the reliable endpoints of a second provider: the only choice in libfabric 1.17 with
/// `FI_PROVIDER=tcp`.
pub(crate) const LAYERED_TCP: &str = "tcp;ofi_rxm";

/// Returns true for both names of the provider with reliable endpoints over TCP.
pub(crate) fn is_tcp(name: &str) -> bool {
    matches!(name, "tcp" | "net")
}

/// The loaded library's name of a provider: the `tcp` of libfabric 1.18 is the `net` of 1.16 and 1.17; their
/// `tcp` is an older provider without reliable endpoints of its own.
pub(crate) fn name_in(fabric: &Fabric, provider: &str) -> String {
    let renamed = Version::new(1, 18);
    match provider {
        "tcp" | "net" if fabric.version() < renamed => "net",
        "tcp" | "net" => "tcp",
        other => other,
    }
    .to_owned()
}

/// The name of an opened provider for people: the requested name, if the library has another for the same
/// provider.
pub(crate) fn name_as_asked<'a>(asked: Option<&'a str>, provider: &'a str) -> &'a str {
    asked.filter(|asked| is_tcp(asked) && is_tcp(provider)).unwrap_or(provider)
}

/// Held while providers are discovered and endpoints opened or closed: not all libraries are thread-safe
/// then.
pub(crate) fn setup_lock() -> MutexGuard<'static, ()> {
    static SETUP: Mutex<()> = Mutex::new(());
    SETUP.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The list from `fi_getinfo`, best first; empty when nothing matches (`FI_ENODATA`).
pub(crate) struct InfoList {
    fabric: &'static Fabric,
    first: *mut fi_info,
}

/// Arguments of `fi_getinfo` beside the hints.
#[derive(Default)]
pub(crate) struct InfoQuery<'a> {
    /// The library's name of a provider.
    pub(crate) provider: Option<&'a str>,
    /// The address of a peer, or with `FI_SOURCE` the address to bind to.
    pub(crate) node: Option<&'a CStr>,
    /// Its port, or the provider's equivalent.
    pub(crate) service: Option<&'a CStr>,
    /// `FI_SOURCE`, `FI_PROV_ATTR_ONLY`.
    pub(crate) flags: u64,
}

impl InfoList {
    /// Queries reliable endpoints for tagged messages, driven by one thread.
    ///
    /// `provider` is the library's name of one; `source` is the address to bind to.
    pub(crate) fn query_tagged(
        fabric: &'static Fabric,
        provider: Option<&str>,
        source: Option<&CStr>,
    ) -> Result<Self, Error> {
        let flags = source.map_or(0, |_| fabric_sys::FI_SOURCE);
        Self::query_with_hints(fabric, &InfoQuery { provider, node: source, service: None, flags }, |hints| {
            // SAFETY: `query_with_hints` passes an entry with all its attributes; nothing else uses it.
            unsafe {
                ask_for_tagged_messages(hints, fabric_sys::FI_THREAD_DOMAIN);
                (*(*hints).tx_attr).msg_order = fabric_sys::FI_ORDER_SAS;
                (*(*hints).rx_attr).msg_order = fabric_sys::FI_ORDER_SAS;
            }
            Ok(())
        })
    }

    /// Queries with hints completed by `fill`; `question.provider` is set already. An error of `fill` is
    /// libfabric's number.
    pub(crate) fn query_with_hints(
        fabric: &'static Fabric,
        question: &InfoQuery<'_>,
        fill: impl FnOnce(*mut fi_info) -> Result<(), i32>,
    ) -> Result<Self, Error> {
        // libfabric reads its variables in the first call.
        read_switches();
        let failure = |code: i32| {
            let provider = question.provider.unwrap_or("any provider");
            Failure::of_call(fabric, provider, "fi_getinfo", None, code, None)
        };
        let _setup = setup_lock();
        // SAFETY: null makes an empty entry.
        let hints = Self { fabric, first: unsafe { fabric.fi_dupinfo(ptr::null()) } };
        if hints.first.is_null() {
            return Err(failure(fabric_sys::FI_ENOMEM));
        }
        if let Some(provider) = question.provider {
            // SAFETY: `fi_dupinfo` of null allocates the entry and all its attributes, of the library's own
            // size; nobody else has them, and the name in them is null.
            unsafe { set_string(&raw mut (*(*hints.first).fabric_attr).prov_name, provider) }
                .map_err(failure)?;
        }
        fill(hints.first).map_err(failure)?;
        let mut list = Self { fabric, first: ptr::null_mut() };
        let pointer = |text: Option<&CStr>| text.map_or(ptr::null(), CStr::as_ptr);
        // SAFETY: node and service are null or texts, the hints are the library's own, the result is
        // writable.
        let result = unsafe {
            fabric.fi_getinfo(
                fabric.api_version(),
                pointer(question.node),
                pointer(question.service),
                question.flags,
                hints.first,
                &raw mut list.first,
            )
        };
        match -result {
            0 | fabric_sys::FI_ENODATA => Ok(list),
            code => Err(failure(code)),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = InfoEntry<'_>> {
        let mut next = self.first;
        std::iter::from_fn(move || {
            let info =
                (!next.is_null()).then_some(InfoEntry { entry: next, list: std::marker::PhantomData })?;
            // SAFETY: an entry of the list, live as long as `self`.
            next = unsafe { (*next).next };
            Some(info)
        })
    }
}

impl Drop for InfoList {
    fn drop(&mut self) {
        if !self.first.is_null() {
            // SAFETY: the library's list, freed once.
            unsafe { self.fabric.fi_freeinfo(self.first) };
        }
    }
}

/// Sets hints for reliable endpoints with tagged messages and manual progress.
///
/// # Safety
/// The hints must have all attributes, and nothing else may use them.
pub(crate) unsafe fn ask_for_tagged_messages(hints: *mut fi_info, threading: fi_threading) {
    // SAFETY: the caller guarantees the hints.
    unsafe {
        (*hints).caps = fabric_sys::FI_TAGGED | fabric_sys::FI_DIRECTED_RECV;
        (*hints).mode = fabric_sys::FI_CONTEXT | fabric_sys::FI_CONTEXT2;
        (*(*hints).ep_attr).type_ = fabric_sys::FI_EP_RDM;
        let domain = (*hints).domain_attr;
        (*domain).threading = threading;
        (*domain).control_progress = fabric_sys::FI_PROGRESS_MANUAL;
        (*domain).data_progress = fabric_sys::FI_PROGRESS_MANUAL;
        (*domain).resource_mgmt = fabric_sys::FI_RM_ENABLED;
        (*domain).av_type = fabric_sys::FI_AV_TABLE;
        (*domain).mr_mode =
            fabric_sys::FI_MR_VIRT_ADDR | fabric_sys::FI_MR_ALLOCATED | fabric_sys::FI_MR_PROV_KEY;
    }
}

/// One entry of a list.
#[derive(Clone, Copy)]
pub(crate) struct InfoEntry<'a> {
    entry: *mut fi_info,
    list: std::marker::PhantomData<&'a InfoList>,
}

impl InfoEntry<'_> {
    /// The entry, for calls of the library; live as long as the list.
    pub(crate) fn as_ptr(self) -> *mut fi_info {
        self.entry
    }

    pub(crate) fn provider_name(self) -> String {
        // SAFETY: the entry is live and its attributes are there; the name is null or a text.
        unsafe { copy_text((*(*self.entry).fabric_attr).prov_name) }
    }

    pub(crate) fn fabric_name(self) -> String {
        // SAFETY: as for `provider_name`.
        unsafe { copy_text((*(*self.entry).fabric_attr).name) }
    }

    pub(crate) fn domain_name(self) -> String {
        // SAFETY: as for `provider_name`.
        unsafe { copy_text((*(*self.entry).domain_attr).name) }
    }

    pub(crate) fn longest_message(self) -> usize {
        // SAFETY: the entry is live and its attributes are there.
        unsafe { (*(*self.entry).ep_attr).max_msg_size }
    }

    pub(crate) fn longest_inject(self) -> usize {
        // SAFETY: as above.
        unsafe { (*(*self.entry).tx_attr).inject_size }
    }

    /// Requirements on registered memory: bits of `FI_MR_*`.
    pub(crate) fn memory_mode(self) -> i32 {
        // SAFETY: as above.
        unsafe { (*(*self.entry).domain_attr).mr_mode }
    }

    /// Largest numbers of sends and receives in flight.
    pub(crate) fn queue_sizes(self) -> (usize, usize) {
        // SAFETY: as above.
        unsafe { ((*(*self.entry).tx_attr).size, (*(*self.entry).rx_attr).size) }
    }
}

/// Stores a copy of `text` in hints, allocated by libc, as the library frees it. An error is libfabric's
/// number.
///
/// # Safety
/// `place` must be a writable null field of hints.
pub(crate) unsafe fn set_string(place: *mut *mut c_char, text: &str) -> Result<(), i32> {
    let text = CString::new(text).map_err(|_| fabric_sys::FI_EINVAL)?;
    // SAFETY: a text goes in; null comes out when memory runs out.
    let copy = unsafe { libc::strdup(text.as_ptr()) };
    if copy.is_null() {
        return Err(fabric_sys::FI_ENOMEM);
    }
    // SAFETY: writable as the caller promises; the old value was null, so nothing is lost.
    unsafe { *place = copy };
    Ok(())
}

/// # Safety
/// `pointer` must be null or a text.
pub(crate) unsafe fn copy_text(pointer: *const c_char) -> String {
    if pointer.is_null() {
        return String::new();
    }
    // SAFETY: not null, so a text as the caller promises.
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// The value of `FI_PROVIDER`, libfabric's own filter of providers, when it is set.
pub(crate) fn variable_filter() -> Option<String> {
    env::var("FI_PROVIDER").ok().filter(|filter| !filter.is_empty())
}

/// Suffix of an error message when [`variable_filter`] is set; otherwise empty.
pub(crate) fn chosen_by_variable() -> String {
    variable_filter().map_or_else(String::new, |filter| {
        format!(
            "; FI_PROVIDER={filter} makes libfabric skip all other providers: unset it, or name an \
             available provider"
        )
    })
}

/// Variables of libfabric with an effect on this library.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Switches {
    /// `FI_TCP_IO_URING`.
    pub(crate) uses_uring: bool,
    /// `FI_SHM_DISABLE_CMA`.
    pub(crate) forbids_cma: bool,
}

/// The variables as libfabric has read them: once per process, before its first `fi_getinfo`. The program may
/// change them later.
pub(crate) fn read_switches() -> Switches {
    static SWITCHES: LazyLock<Switches> = LazyLock::new(|| {
        let is_true = |variable| env::var(variable).is_ok_and(|value| is_yes(&value));
        Switches { uses_uring: is_true("FI_TCP_IO_URING"), forbids_cma: is_true("FI_SHM_DISABLE_CMA") }
    });
    *SWITCHES
}

fn is_yes(value: &str) -> bool {
    matches!(&value.to_ascii_lowercase()[..], "1" | "true" | "yes" | "on")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_provider_has_the_name_that_it_was_asked_for_by() {
        assert_eq!(name_as_asked(Some("tcp"), "net"), "tcp");
        assert_eq!(name_as_asked(Some("net"), "tcp"), "net");
        assert_eq!(name_as_asked(None, "net"), "net");
        assert_eq!(name_as_asked(Some("tcp;ofi_rxm"), "tcp;ofi_rxm"), "tcp;ofi_rxm");
        assert_eq!(name_as_asked(Some("tcp"), "tcp;ofi_rxm"), "tcp;ofi_rxm");
    }

    #[test]
    fn values_are_read_as_libfabric_reads_them() {
        assert!(["1", "true", "YES", "On"].iter().all(|value| is_yes(value)));
        assert!(!["0", "false", "no", "off", "", "2", " 1"].iter().any(|value| is_yes(value)));
    }
}
