//! The library's objects behind an endpoint.

use std::ffi::{CStr, c_int};
use std::ptr;

use fabric_sys::{
    Fabric, Padded, fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_err_entry, fid_av, fid_cq, fid_domain, fid_ep,
    fid_fabric, fid_mr,
};

use super::error::{Error, Failure};
use super::provider::{self, Info};
use super::shm;

/// Room for an address of any provider.
const LONGEST_ADDRESS: usize = 512;

/// The library's objects, each null until it is open. Closed children first.
pub(super) struct Objects {
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    av: *mut fid_av,
    pub(super) cq: *mut fid_cq,
    pub(super) ep: *mut fid_ep,
    /// Registered memory.
    regions: Vec<*mut fid_mr>,
    /// Whether the endpoint has a name in shared memory, as those of peers have.
    named: bool,
}

impl Drop for Objects {
    fn drop(&mut self) {
        let _setup = provider::setup_lock();
        // SAFETY: each pointer is null or an object that was opened and is closed once, after its children.
        unsafe {
            if !self.ep.is_null() && fabric_sys::fi_close(&raw mut (*self.ep).fid) != 0 {
                // The library may go on to write into buffers whose owners are about to take them back.
                eprintln!("libfabric could not close an endpoint; ending the process");
                std::process::abort();
            }
            let regions = self.regions.iter().map(|&region| &raw mut (*region).fid);
            let rest = [
                (!self.cq.is_null()).then(|| &raw mut (*self.cq).fid),
                (!self.av.is_null()).then(|| &raw mut (*self.av).fid),
                (!self.domain.is_null()).then(|| &raw mut (*self.domain).fid),
                (!self.fabric.is_null()).then(|| &raw mut (*self.fabric).fid),
            ];
            for fid in regions.chain(rest.into_iter().flatten()) {
                let result = fabric_sys::fi_close(fid);
                if result != 0 {
                    tracing::warn!(result, "fi_close failed; the object is left open");
                    break;
                }
            }
        }
        if self.named {
            // A peer that was killed could not remove its own.
            shm::remove_leftovers();
        }
    }
}

impl Objects {
    /// Opens a domain, an address vector for so many peers, a completion queue for tagged messages
    /// (`FI_CQ_FORMAT_TAGGED`), and an endpoint that uses them; also says the endpoint's address.
    pub(super) fn open(
        library: &'static Fabric,
        info: Info<'_>,
        peers: usize,
    ) -> Result<(Self, Vec<u8>), Error> {
        let provider = info.provider();
        let check = |operation: &'static str, result: c_int| match result {
            0 => Ok(()),
            code => Err(Failure::of_call(library, &provider, operation, None, -code, None)),
        };
        let named = provider == "shm";
        if named {
            shm::remove_leftovers();
        }
        let mut objects = Self {
            fabric: ptr::null_mut(),
            domain: ptr::null_mut(),
            av: ptr::null_mut(),
            cq: ptr::null_mut(),
            ep: ptr::null_mut(),
            regions: Vec::new(),
            named,
        };
        // On failure what is open is closed here, without the lock, which closing takes.
        let address = objects.open_all(library, info, peers, &check)?;
        Ok((objects, address))
    }

    fn open_all(
        &mut self,
        library: &'static Fabric,
        info: Info<'_>,
        peers: usize,
        check: &dyn Fn(&'static str, c_int) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        let _setup = provider::setup_lock();
        let none = ptr::null_mut();
        let info_pointer = info.as_ptr();
        // SAFETY: the entry is live; every object is opened from live ones and kept until this type is dropped;
        // attributes are zeroed, long enough for any library, and set as the library documents.
        unsafe {
            let result = library.fi_fabric((*info_pointer).fabric_attr, &raw mut self.fabric, none);
            check("fi_fabric", result)?;
            let result = fabric_sys::fi_domain(self.fabric, info_pointer, &raw mut self.domain, none);
            check("fi_domain", result)?;

            let mut attributes = Padded::<fi_av_attr>::zeroed();
            attributes.type_ = fabric_sys::FI_AV_TABLE;
            attributes.count = peers;
            let result = fabric_sys::fi_av_open(self.domain, attributes.as_mut_ptr(), &raw mut self.av, none);
            check("fi_av_open", result)?;

            let (send, receive) = info.queue_sizes();
            let mut attributes = Padded::<fi_cq_attr>::zeroed();
            attributes.size = send.saturating_add(receive);
            attributes.format = fabric_sys::FI_CQ_FORMAT_TAGGED;
            attributes.wait_obj = fabric_sys::FI_WAIT_NONE;
            let result = fabric_sys::fi_cq_open(self.domain, attributes.as_mut_ptr(), &raw mut self.cq, none);
            check("fi_cq_open", result)?;

            check("fi_endpoint", fabric_sys::fi_endpoint(self.domain, info_pointer, &raw mut self.ep, none))?;
            let ep = self.ep;
            check("fi_ep_bind", fabric_sys::fi_ep_bind(ep, &raw mut (*self.av).fid, 0))?;
            let flags = fabric_sys::FI_TRANSMIT | fabric_sys::FI_RECV;
            check("fi_ep_bind", fabric_sys::fi_ep_bind(ep, &raw mut (*self.cq).fid, flags))?;
            if self.named
                && let Some(name) = shm::new_address()
            {
                let bytes = name.as_bytes_with_nul();
                let result =
                    fabric_sys::fi_setname(&raw mut (*ep).fid, bytes.as_ptr().cast_mut().cast(), bytes.len());
                check("fi_setname", result)?;
            }
            check("fi_enable", fabric_sys::fi_enable(ep))?;

            let mut address = vec![0_u8; LONGEST_ADDRESS];
            let mut length = address.len();
            let result =
                fabric_sys::fi_getname(&raw mut (*ep).fid, address.as_mut_ptr().cast(), &raw mut length);
            check("fi_getname", result)?;
            address.truncate(length);
            Ok(address)
        }
    }

    /// Registers memory for peers until this is dropped; its key. An error is libfabric's number.
    ///
    /// # Safety
    /// The memory must live as long as this, and may be accessed by peers at any time.
    pub(super) unsafe fn register(
        &mut self,
        start: *const u8,
        len: usize,
        access: u64,
        key: u64,
    ) -> Result<u64, c_int> {
        let mut region = ptr::null_mut();
        // SAFETY: the domain is open; the caller vouches for the memory.
        let result = unsafe {
            fabric_sys::fi_mr_reg(
                self.domain,
                start.cast(),
                len,
                access,
                0,
                key,
                0,
                &raw mut region,
                ptr::null_mut(),
            )
        };
        if result != 0 {
            return Err(-result);
        }
        self.regions.push(region);
        // SAFETY: the region was just made.
        Ok(unsafe { fabric_sys::fi_mr_key(region) })
    }

    /// Makes an address known; an error is libfabric's number.
    pub(super) fn insert(&mut self, address: &[u8]) -> Result<fi_addr_t, c_int> {
        let mut inserted = fabric_sys::FI_ADDR_NOTAVAIL;
        // Providers take the length of an address from its format: room beyond what was sent keeps that in bounds.
        let mut padded = address.to_vec();
        padded.resize(address.len().max(LONGEST_ADDRESS), 0);
        // SAFETY: the address vector is open, the address is padded and ends in zeros, the result is writable.
        let count = unsafe {
            fabric_sys::fi_av_insert(
                self.av,
                padded.as_ptr().cast(),
                1,
                &raw mut inserted,
                0,
                ptr::null_mut(),
            )
        };
        if count == 1 && inserted != fabric_sys::FI_ADDR_NOTAVAIL {
            return Ok(inserted);
        }
        Err(if count < 0 { -count } else { fabric_sys::FI_EINVAL })
    }

    /// The endpoint's own address in the provider's notation: `fi_sockaddr_in://127.0.0.1:40123`.
    pub(super) fn text_of(&self, address: &[u8]) -> String {
        let mut padded = address.to_vec();
        padded.resize(address.len().max(LONGEST_ADDRESS), 0);
        let mut buffer = [0_u8; LONGEST_ADDRESS];
        let mut length = buffer.len();
        // SAFETY: the address is padded; the buffer's length is passed along.
        unsafe {
            fabric_sys::fi_av_straddr(
                self.av,
                padded.as_ptr().cast(),
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            );
        }
        CStr::from_bytes_until_nul(&buffer)
            .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    }

    /// What the provider says of a failed operation, if anything; before the queue is read again.
    pub(super) fn provider_text(&self, entry: &fi_cq_err_entry) -> Option<String> {
        let mut buffer = [0_u8; 256];
        // SAFETY: the queue is open, the error's data is valid until the queue is read again, the buffer's length is
        // passed along.
        unsafe {
            fabric_sys::fi_cq_strerror(
                self.cq,
                entry.prov_errno,
                entry.err_data,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            );
        }
        let text = CStr::from_bytes_until_nul(&buffer).ok()?.to_string_lossy().into_owned();
        Some(text).filter(|text| !text.is_empty())
    }
}
