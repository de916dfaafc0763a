//! The library's objects of an endpoint.

use std::ffi::{CStr, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use fabric_sys::{
    Fabric, Padded, Version, fi_addr_t, fi_av_attr, fi_context2, fi_cq_attr, fi_cq_err_entry, fi_hmem_iface,
    fi_mr_attr, fi_msg_tagged, fid_av, fid_cq, fid_ep, fid_mr,
};

use libc::iovec;

use crate::fabric::error::Error;
use crate::fabric::libfabric::domain::{Domain, close_objects, error_checker, warn_of_open_object};
use crate::fabric::libfabric::provider::{self, InfoEntry};
use crate::fabric::shared_memory::shm;
use crate::world::process_exit;

/// Buffer size for an address of any provider.
const MAX_ADDRESS_LEN: usize = 512;
/// Largest size hint of an address vector: the library multiplies it, and the product may wrap. There may be
/// more peers.
const MAX_PEERS: usize = 1 << 16;

/// Returns an address, padded with zeros: providers derive its length from its format, or for a text from its
/// terminator, and the padding keeps it in bounds.
fn pad_address(address: &[u8]) -> Vec<u8> {
    let mut padded = address.to_vec();
    padded.resize(address.len() + MAX_ADDRESS_LEN, 0);
    padded
}

/// Options of an endpoint.
#[derive(Clone, Copy, Default)]
pub(crate) struct EndpointSettings {
    /// Approximate number of peers.
    pub(crate) peers: usize,
    /// True when threads sleep in the completion queue.
    pub(crate) blocking: bool,
    /// True when threads sleep on a descriptor of the completion queue, if there is one.
    pub(crate) descriptor: bool,
    /// True to use memory of devices.
    pub(crate) devices: bool,
}

/// The library's objects, each null until it is open. Closed children first.
pub(crate) struct EndpointObjects {
    av: *mut fid_av,
    pub(crate) cq: *mut fid_cq,
    pub(crate) ep: *mut fid_ep,
    /// Descriptor of the completion queue, ready when there is something to do.
    pub(crate) descriptor: Option<RawFd>,
    /// True when the provider has promised to access memory of devices directly.
    pub(crate) direct: bool,
    regions: Vec<*mut fid_mr>,
    /// True when the endpoint has a name in shared memory, as its peers' have.
    named: bool,
    tcp: bool,
    /// True when the kernel moves data asynchronously.
    uring: bool,
    version: Version,
    /// True when threads sleep in the completion queue.
    blocking: bool,
    /// True when the objects stay open after the drop.
    leaked: bool,
    /// Closed last.
    domain: Arc<Domain>,
    /// Memory of regions, freed after everything is closed, or never if something could not be.
    memories: Vec<Arc<dyn Send + Sync>>,
}

impl Drop for EndpointObjects {
    fn drop(&mut self) {
        if self.leaked {
            return self.leak_memory();
        }
        let setup = provider::setup_lock();
        // SAFETY: null, or an open object, closed once; it has no children.
        let closed = unsafe { close_objects([(!self.ep.is_null()).then(|| &raw mut (*self.ep).fid)]) };
        if let Err(result) = closed {
            // Other code that ends the process may need the lock.
            drop(setup);
            end_process(result);
        }
        // SAFETY: each pointer is null or an open object, closed once, after its children.
        let closed = unsafe {
            let regions = self.regions.iter().map(|&region| Some(&raw mut (*region).fid));
            let rest = [
                (!self.cq.is_null()).then(|| &raw mut (*self.cq).fid),
                (!self.av.is_null()).then(|| &raw mut (*self.av).fid),
            ];
            close_objects(regions.chain(rest))
        };
        if self.named {
            // Killed peers leave their files.
            shm::remove_leftovers();
        }
        drop(setup);
        if closed.is_err() {
            // An object left open may be a region.
            self.leak_memory();
        }
        warn_of_open_object(closed);
    }
}

impl EndpointObjects {
    /// Opens an address vector, a completion queue for tagged messages (`FI_CQ_FORMAT_TAGGED`), and an
    /// endpoint with both; returns also the endpoint's address.
    pub(crate) fn open_objects(
        domain: Arc<Domain>,
        library: &'static Fabric,
        info: InfoEntry<'_>,
        settings: EndpointSettings,
    ) -> Result<(Self, Vec<u8>), Error> {
        let provider = info.provider_name();
        let mut objects = Self {
            av: ptr::null_mut(),
            cq: ptr::null_mut(),
            ep: ptr::null_mut(),
            descriptor: None,
            direct: false,
            regions: Vec::new(),
            named: provider == "shm",
            tcp: provider == "tcp",
            uring: provider::read_switches().uses_uring,
            version: library.version(),
            blocking: settings.blocking,
            leaked: false,
            domain,
            memories: Vec::new(),
        };
        // On failure the open objects are closed here, without the lock: closing takes it.
        let check = error_checker(library, &provider);
        let address = objects.open_all(info, settings, &check)?;
        Ok((objects, address))
    }

    fn open_all(
        &mut self,
        info: InfoEntry<'_>,
        settings: EndpointSettings,
        check: &dyn Fn(&'static str, c_int) -> Result<(), Error>,
    ) -> Result<Vec<u8>, Error> {
        let _setup = provider::setup_lock();
        let none = ptr::null_mut();
        let domain = self.domain.domain;
        // SAFETY: the entry is live; every object is opened from live ones and kept until this type is
        // dropped; attributes are zeroed, long enough for any library, and set as the library documents.
        unsafe {
            let mut attributes = Padded::<fi_av_attr>::zeroed();
            attributes.type_ = fabric_sys::FI_AV_TABLE;
            attributes.count = settings.peers.min(MAX_PEERS);
            let result = fabric_sys::fi_av_open(domain, attributes.as_mut_ptr(), &raw mut self.av, none);
            check("fi_av_open", result)?;

            let (send, receive) = info.queue_sizes();
            let mut attributes = Padded::<fi_cq_attr>::zeroed();
            attributes.size = send.saturating_add(receive);
            attributes.format = fabric_sys::FI_CQ_FORMAT_TAGGED;
            attributes.wait_obj =
                if settings.blocking { fabric_sys::FI_WAIT_UNSPEC } else { fabric_sys::FI_WAIT_NONE };
            // Only if it starts no thread to move data, covers all sockets, and fi_trywait resets it.
            let is_fit = self.tcp && !self.uring && self.version >= Version::new(1, 19);
            let wants_descriptor = settings.descriptor && is_fit;
            if wants_descriptor {
                attributes.wait_obj = fabric_sys::FI_WAIT_FD;
            }
            let result = fabric_sys::fi_cq_open(domain, attributes.as_mut_ptr(), &raw mut self.cq, none);
            check("fi_cq_open", result)?;
            if wants_descriptor {
                let (mut descriptor, command): (c_int, _) = (-1, fabric_sys::FI_GETWAIT as c_int);
                let queue = &raw mut (*self.cq).fid;
                let result = fabric_sys::fi_control(queue, command, (&raw mut descriptor).cast());
                self.descriptor = (result == 0).then_some(descriptor);
            }

            let result = fabric_sys::fi_endpoint(domain, info.as_ptr(), &raw mut self.ep, none);
            check("fi_endpoint", result)?;
            let ep = self.ep;
            check("fi_ep_bind", fabric_sys::fi_ep_bind(ep, &raw mut (*self.av).fid, 0))?;
            let flags = fabric_sys::FI_TRANSMIT | fabric_sys::FI_RECV;
            check("fi_ep_bind", fabric_sys::fi_ep_bind(ep, &raw mut (*self.cq).fid, flags))?;
            if settings.devices {
                let required = fabric_sys::FI_HMEM_P2P_REQUIRED as c_int;
                let (level, option) = (fabric_sys::FI_OPT_ENDPOINT, fabric_sys::FI_OPT_FI_HMEM_P2P);
                let value = (&raw const required).cast();
                // A provider that cannot promise it returns an error; nothing else changes.
                let fid = &raw mut (*ep).fid;
                let result =
                    fabric_sys::fi_setopt(fid, level as c_int, option as c_int, value, size_of::<c_int>());
                self.direct = result == 0;
            }
            if self.named
                && let Some(name) = shm::new_address()
            {
                let bytes = name.as_bytes_with_nul();
                let result =
                    fabric_sys::fi_setname(&raw mut (*ep).fid, bytes.as_ptr().cast_mut().cast(), bytes.len());
                check("fi_setname", result)?;
            }
            check("fi_enable", fabric_sys::fi_enable(ep))?;

            let mut address = vec![0_u8; MAX_ADDRESS_LEN];
            let mut length = address.len();
            let result =
                fabric_sys::fi_getname(&raw mut (*ep).fid, address.as_mut_ptr().cast(), &raw mut length);
            check("fi_getname", result)?;
            address.truncate(length);
            Ok(address)
        }
    }

    /// True when a thread may sleep on the descriptor now: the queue is empty.
    pub(crate) fn may_sleep(&self) -> bool {
        // SAFETY: the queue and its fabric are open.
        unsafe {
            let mut queue = &raw mut (*self.cq).fid;
            fabric_sys::fi_trywait(self.domain.fabric, &raw mut queue, 1) == 0
        }
    }

    /// True when closing the endpoint can crash after a peer has ended in the middle of a message.
    ///
    /// libfabric's `tcp` (1.18 at the latest to 2.6; not the `net` of 1.17) buffers unexpected messages. If
    /// its connection ends before all of a message has arrived, `xnet_complete_rx` frees the buffer but
    /// leaves it in the list of buffers to free with the endpoint.
    ///
    /// Not with `io_uring`: the kernel has the buffers, and would continue to write there.
    pub(crate) fn must_stay_open(&self) -> bool {
        self.tcp && self.version > Version::new(1, 17) && !self.uring
    }

    /// Leaves the objects open when they are dropped, if nothing can move data then: these are not polled
    /// again, no other endpoint has the domain, and the library has no thread for sleepers.
    pub(crate) fn leave_open(&mut self) {
        self.leaked = !self.blocking && Arc::strong_count(&self.domain) == 1;
    }

    /// Keeps memory that may still be registered, and the domain, whose children may still be open, until the
    /// process ends.
    fn leak_memory(&mut self) {
        std::mem::forget(Arc::clone(&self.domain));
        std::mem::forget(std::mem::take(&mut self.memories));
    }

    /// Discards unexpected messages, before any endpoint of this process is closed: from 1.19 on, closing an
    /// endpoint of `shm` returns the buffers of such messages to their senders, and the senders' memory may
    /// be gone.
    ///
    /// Moves no data, as the buffers of operations in flight may be gone.
    pub(crate) fn discard_messages(&mut self) {
        if !self.named || self.version < Version::new(1, 19) {
            return;
        }
        let mut found = true;
        while found {
            let mut context = fi_context2 { internal: [ptr::null_mut(); 8] };
            let message = fi_msg_tagged {
                msg_iov: ptr::null(),
                desc: ptr::null_mut(),
                iov_count: 0,
                addr: fabric_sys::FI_ADDR_UNSPEC,
                tag: 0,
                ignore: u64::MAX,
                context: (&raw mut context).cast(),
                data: 0,
            };
            let flags = fabric_sys::FI_PEEK | fabric_sys::FI_DISCARD;
            // SAFETY: the endpoint is open; the call is done with the message and its context when it
            // returns. Its entry in the completion queue names the context, and is never read: reading the
            // queue would move data.
            unsafe { fabric_sys::fi_trecvmsg(self.ep, &raw const message, flags) };
            // `util_srx_peek` stores a found message here.
            found = !context.internal[0].is_null();
        }
    }

    /// Keeps memory alive as long as these objects are open.
    pub(crate) fn keep_alive(&mut self, memory: Arc<dyn Send + Sync>) {
        self.memories.push(memory);
    }

    /// Registers memory for these accesses until this is dropped; returns its key and its descriptor for
    /// operations, or libfabric's error number.
    ///
    /// # Safety
    /// The memory must live as long as these objects, and may be accessed by peers at any time; `device` must
    /// fit `interface`. Device memory must be the device's alone.
    pub(crate) unsafe fn register_memory(
        &mut self,
        start: *const u8,
        len: usize,
        access: u64,
        (interface, device): (fi_hmem_iface, c_int),
    ) -> Result<(u64, *mut c_void), c_int> {
        let place = iovec { iov_base: start.cast_mut().cast(), iov_len: len };
        let mut attributes = Padded::<fi_mr_attr>::zeroed();
        attributes.__bindgen_anon_1.mr_iov = &raw const place;
        attributes.iov_count = 1;
        attributes.access = access;
        // For providers that do not choose keys themselves.
        attributes.requested_key = self.domain.next_key.fetch_add(1, Ordering::Relaxed);
        attributes.iface = interface;
        attributes.device.cuda = device;
        // With it shm copies from device to device (CUDA IPC), without it through host memory.
        let flags = if interface == fabric_sys::FI_HMEM_SYSTEM { 0 } else { fabric_sys::FI_HMEM_DEVICE_ONLY };
        let mut region = ptr::null_mut();
        // SAFETY: the domain is open; the attributes live during the call; the caller guarantees the memory.
        let result = unsafe {
            fabric_sys::fi_mr_regattr(self.domain.domain, attributes.as_mut_ptr(), flags, &raw mut region)
        };
        if result != 0 {
            return Err(-result);
        }
        self.regions.push(region);
        // SAFETY: the region was just made.
        Ok(unsafe { (fabric_sys::fi_mr_key(region), fabric_sys::fi_mr_desc(region)) })
    }

    /// Inserts an address into the address vector. An error is libfabric's number.
    pub(crate) fn insert_address(&mut self, address: &[u8]) -> Result<fi_addr_t, c_int> {
        let mut inserted = fabric_sys::FI_ADDR_NOTAVAIL;
        let padded = pad_address(address);
        // SAFETY: the address vector is open, the address is padded and ends in zeros, the result is
        // writable.
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
    pub(crate) fn address_text(&self, address: &[u8]) -> String {
        let padded = pad_address(address);
        let mut buffer = [0_u8; MAX_ADDRESS_LEN];
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

    /// Reads the error of a failed operation from the completion queue, or returns libfabric's number of its
    /// own error.
    pub(crate) fn read_error(&self) -> Result<FailedOperation, c_int> {
        let mut entry = Padded::<fi_cq_err_entry>::zeroed();
        // SAFETY: the queue is open; the entry is zeroed and long enough for any library.
        let result = unsafe { fabric_sys::fi_cq_readerr(self.cq, entry.as_mut_ptr(), 0) };
        if result < 1 {
            return Err(-result as c_int);
        }
        let mut buffer = [0_u8; 256];
        let text = buffer.as_mut_ptr().cast();
        // SAFETY: the queue is open, the error's data is valid until the queue is read again, the buffer's
        // length is passed along.
        unsafe {
            fabric_sys::fi_cq_strerror(self.cq, entry.prov_errno, entry.err_data, text, buffer.len());
        }
        let text = CStr::from_bytes_until_nul(&buffer).ok().map(|text| text.to_string_lossy().into_owned());
        Ok(FailedOperation {
            context: entry.op_context,
            // The shm of libfabric 1.17 reports a negative number.
            code: entry.err.saturating_abs(),
            excess: entry.olen,
            text: text.filter(|text| !text.is_empty()),
        })
    }
}

/// Ends the process after a failure to close an endpoint, with the library's return value: the library may
/// continue to write into buffers, and their borrows are about to end.
fn end_process(result: c_int) -> ! {
    process_exit::claim_end();
    process_exit::report_once(&format!(
        "libfabric could not close an endpoint (fi_close returned {result}); ending the process, since it \
         may still write into buffers"
    ));
    std::process::abort()
}

/// The error of an operation.
pub(crate) struct FailedOperation {
    pub(crate) context: *mut c_void,
    /// libfabric's number.
    pub(crate) code: c_int,
    /// Bytes of a message beyond the end of its buffer.
    pub(crate) excess: usize,
    /// The provider's text, if it has one.
    pub(crate) text: Option<String>,
}

#[cfg(test)]
mod tests;
