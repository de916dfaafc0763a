//! One provider's endpoint with everything that it needs, and the operations in flight on it.

use std::ffi::{CStr, c_int};
use std::ptr;

use fabric_sys::{
    Fabric, Padded, Version, fi_addr_t, fi_av_attr, fi_cq_attr, fi_cq_err_entry, fi_cq_tagged_entry, fid_av,
    fid_cq, fid_domain, fid_ep, fid_fabric,
};

use super::error::{Error, Failure};
use super::operations::{CALLERS, CLEAR, Message, Operations, Problem, WAITING};
use super::provider::{self, Info, InfoList};
use super::shm;

/// How many completions are read at once.
const BATCH: usize = 16;
/// A message was longer than the buffer posted for it.
const ETRUNC: c_int = fabric_sys::FI_ETRUNC as c_int;
/// Where an endpoint is to be reachable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// From processes of this host.
    Host,
    /// From other hosts too.
    Network,
}

/// The library's objects, each null until it is open. Closed children first.
struct Objects {
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    av: *mut fid_av,
    cq: *mut fid_cq,
    ep: *mut fid_ep,
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
            let rest = [
                (!self.cq.is_null()).then(|| &raw mut (*self.cq).fid),
                (!self.av.is_null()).then(|| &raw mut (*self.av).fid),
                (!self.domain.is_null()).then(|| &raw mut (*self.domain).fid),
                (!self.fabric.is_null()).then(|| &raw mut (*self.fabric).fid),
            ];
            for fid in rest.into_iter().flatten() {
                let result = fabric_sys::fi_close(fid);
                if result != 0 {
                    tracing::warn!(result, "fi_close failed; the object is left open");
                    break;
                }
            }
        }
    }
}

/// An endpoint for tagged messages, with its own domain, address vector and completion queue: used by one thread at
/// a time, and nothing else moves its data.
///
/// Closing it ends all operations in flight: the library forgets their buffers.
pub(crate) struct Endpoint {
    // Closed before the memory of `operations` is freed: fields drop in order.
    objects: Objects,
    operations: Operations,
    library: &'static Fabric,
    provider: String,
    rank: usize,
    longest_message: usize,
    address: Vec<u8>,
}

// SAFETY: the library's objects are bound to no thread (FI_THREAD_DOMAIN asks for one thread at a time within a
// domain, and this type, which is not Sync, has the domain's only handle); the operations' pointers are this type's own or its callers', who vouch for them.
unsafe impl Send for Endpoint {}

impl Endpoint {
    /// Opens an endpoint of `provider`, in the library's naming, for the rank `rank` of a job.
    ///
    /// `device` chooses among a provider's equal devices.
    pub(crate) fn open(
        library: &'static Fabric,
        provider: &str,
        reach: Reach,
        device: usize,
        rank: usize,
        ranks: usize,
    ) -> Result<Self, Error> {
        let loopback = (reach == Reach::Host && matches!(provider, "tcp" | "net")).then_some(c"127.0.0.1");
        let list = match InfoList::get(library, Some(provider), loopback) {
            Err(Error::Call(Failure { code: fabric_sys::FI_ENODATA, .. })) => {
                return Err(unavailable(library, provider));
            }
            list => list?,
        };
        let candidates: Vec<Info<'_>> = list
            .iter()
            .filter(|info| info.provider() == provider && info.fabric_name() != "efa-direct")
            .collect();
        let info = match (provider, candidates.as_slice()) {
            (_, []) => return Err(unavailable(library, provider)),
            ("efa", devices) => devices[device % devices.len()],
            (_, [first, ..]) => *first,
        };
        // Elsewhere a message that was injected may still wait for its connection when the endpoint is closed.
        let inject_size = if provider == "shm" { info.longest_inject() } else { 0 };
        let data = matches!(provider, "tcp" | "net");
        let mut endpoint = Self {
            objects: Objects {
                fabric: ptr::null_mut(),
                domain: ptr::null_mut(),
                av: ptr::null_mut(),
                cq: ptr::null_mut(),
                ep: ptr::null_mut(),
            },
            operations: Operations::new(ranks, inject_size, data),
            library,
            provider: provider.to_owned(),
            rank,
            longest_message: info.longest_message(),
            address: Vec::new(),
        };
        endpoint.open_objects(info, ranks)?;
        Ok(endpoint)
    }

    fn open_objects(&mut self, info: Info<'_>, ranks: usize) -> Result<(), Error> {
        if self.provider == "shm" {
            shm::remove_leftovers();
        }
        let _setup = provider::setup_lock();
        let none = ptr::null_mut();
        let info_pointer = info.as_ptr();
        // SAFETY: the entry is live; every object is opened from live ones and kept until this type is dropped;
        // attributes are zeroed, long enough for any library, and set as the library documents.
        unsafe {
            let result =
                self.library.fi_fabric((*info_pointer).fabric_attr, &raw mut self.objects.fabric, none);
            self.check("fi_fabric", result)?;
            let result =
                fabric_sys::fi_domain(self.objects.fabric, info_pointer, &raw mut self.objects.domain, none);
            self.check("fi_domain", result)?;

            let mut attributes = Padded::<fi_av_attr>::zeroed();
            attributes.type_ = fabric_sys::FI_AV_TABLE;
            attributes.count = ranks;
            let result = fabric_sys::fi_av_open(
                self.objects.domain,
                attributes.as_mut_ptr(),
                &raw mut self.objects.av,
                none,
            );
            self.check("fi_av_open", result)?;

            let (send, receive) = info.queue_sizes();
            let mut attributes = Padded::<fi_cq_attr>::zeroed();
            attributes.size = send.saturating_add(receive);
            attributes.format = fabric_sys::FI_CQ_FORMAT_TAGGED;
            attributes.wait_obj = fabric_sys::FI_WAIT_NONE;
            let result = fabric_sys::fi_cq_open(
                self.objects.domain,
                attributes.as_mut_ptr(),
                &raw mut self.objects.cq,
                none,
            );
            self.check("fi_cq_open", result)?;

            let result =
                fabric_sys::fi_endpoint(self.objects.domain, info_pointer, &raw mut self.objects.ep, none);
            self.check("fi_endpoint", result)?;
            let ep = self.objects.ep;
            let result = fabric_sys::fi_ep_bind(ep, &raw mut (*self.objects.av).fid, 0);
            self.check("fi_ep_bind", result)?;
            let flags = fabric_sys::FI_TRANSMIT | fabric_sys::FI_RECV;
            let result = fabric_sys::fi_ep_bind(ep, &raw mut (*self.objects.cq).fid, flags);
            self.check("fi_ep_bind", result)?;
            if self.provider == "shm"
                && let Some(name) = shm::new_address()
            {
                let bytes = name.as_bytes_with_nul();
                let result =
                    fabric_sys::fi_setname(&raw mut (*ep).fid, bytes.as_ptr().cast_mut().cast(), bytes.len());
                self.check("fi_setname", result)?;
            }
            let result = fabric_sys::fi_enable(ep);
            self.check("fi_enable", result)?;

            let mut address = vec![0_u8; 512];
            let mut length = address.len();
            let result =
                fabric_sys::fi_getname(&raw mut (*ep).fid, address.as_mut_ptr().cast(), &raw mut length);
            self.check("fi_getname", result)?;
            address.truncate(length);
            self.address = address;
        }
        Ok(())
    }

    /// The address to tell other ranks.
    pub(crate) fn address(&self) -> &[u8] {
        &self.address
    }

    /// The library's name of the provider.
    pub(crate) fn provider(&self) -> &str {
        &self.provider
    }

    /// The address in the provider's notation: `fi_sockaddr_in://127.0.0.1:40123`.
    pub(crate) fn address_text(&self) -> String {
        let mut buffer = [0_u8; 512];
        let mut length = buffer.len();
        // SAFETY: the address is the endpoint's own; the buffer's length is passed along.
        unsafe {
            fabric_sys::fi_av_straddr(
                self.objects.av,
                self.address.as_ptr().cast(),
                buffer.as_mut_ptr().cast(),
                &raw mut length,
            );
        }
        CStr::from_bytes_until_nul(&buffer)
            .map_or_else(|_| String::new(), |text| text.to_string_lossy().into_owned())
    }

    /// Makes rank `peer`'s address known.
    pub(crate) fn insert(&mut self, peer: usize, address: &[u8]) -> Result<fi_addr_t, Error> {
        let mut inserted = fabric_sys::FI_ADDR_NOTAVAIL;
        // Providers take the length of an address from its format: room beyond what was sent keeps that in bounds.
        let mut padded = address.to_vec();
        padded.resize(address.len().max(512), 0);
        // SAFETY: the address vector is open, the address is padded and ends in zeros, the result is writable.
        let count = unsafe {
            fabric_sys::fi_av_insert(
                self.objects.av,
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
        let code = if count < 0 { -count } else { fabric_sys::FI_EINVAL };
        Err(self.failure("fi_av_insert", Some(peer), code, None))
    }

    /// Tells a peer, whose address is `to`, about this endpoint, where the provider does not survive to be told late.
    ///
    /// From libfabric 2.5 on, and in its main branch of November 2026, two endpoints of `shm` in one process crash when
    /// one sends before the other has read where its memory is: `smr_map_to_region` does not note it for endpoints of
    /// the same process, only `smr_progress_connreq` does, but either side's request makes both look connected. So
    /// every rank announces itself to all others before any of them reads what has come, and sends when all have
    /// read. See [`Network::open`](super::network::Network::open).
    pub(crate) fn announce(&mut self, to: fi_addr_t) {
        if self.provider != "shm" || self.library.version() < Version::new(2, 5) {
            return;
        }
        // The first send to a peer asks it to connect and is to be tried again; nobody receives this tag.
        // SAFETY: the endpoint is open, and the message has no bytes.
        unsafe { fabric_sys::fi_tinject(self.objects.ep, ptr::null(), 0, to, CLEAR | WAITING) };
    }

    /// Whether the provider must not be given long messages that nobody has asked for.
    pub(crate) fn needs_clearing(&self) -> bool {
        self.provider == "shm" && !shm::cross_memory_attach_is_allowed()
    }

    /// Long messages wait for their receivers from now on. All ranks must do this or none.
    pub(crate) fn clear_long_messages(&mut self) {
        self.operations.clear_long_messages();
    }

    /// How many operations are posted and not complete.
    #[cfg(test)]
    pub(crate) fn in_flight(&self) -> usize {
        self.operations.in_flight()
    }

    /// Posts a receive of exactly `len` bytes from rank `peer`, whose address is `from`.
    ///
    /// # Safety
    /// The memory must be writable and left alone until the operation is complete or the endpoint closed.
    pub(crate) unsafe fn post_receive(
        &mut self,
        peer: usize,
        from: fi_addr_t,
        tag: u64,
        data: *mut u8,
        len: usize,
    ) -> Result<u32, Error> {
        self.check_length("fi_trecv", peer, len)?;
        let message = Message { peer, address: from, tag: tag & CALLERS, data, len };
        // SAFETY: the endpoint is open; the caller vouches for the memory.
        let posted = unsafe { self.operations.receive(self.objects.ep, message) };
        posted.map_err(|problem| self.explain(problem))
    }

    /// Posts a send to rank `peer`, whose address is `to`. None when it is complete already.
    ///
    /// # Safety
    /// The memory must be readable and left unchanged until the operation is complete or the endpoint closed.
    pub(crate) unsafe fn post_send(
        &mut self,
        peer: usize,
        to: fi_addr_t,
        tag: u64,
        data: *const u8,
        len: usize,
    ) -> Result<Option<u32>, Error> {
        self.check_length("fi_tsend", peer, len)?;
        // The memory of a send is only read.
        let message = Message { peer, address: to, tag: tag & CALLERS, data: data.cast_mut(), len };
        // SAFETY: the endpoint is open; the caller vouches for the memory.
        let posted = unsafe { self.operations.send(self.objects.ep, message) };
        posted.map_err(|problem| self.explain(problem))
    }

    fn check_length(&self, operation: &'static str, peer: usize, len: usize) -> Result<(), Error> {
        if len <= self.longest_message {
            return Ok(());
        }
        Err(self.failure(operation, Some(peer), fabric_sys::FI_EMSGSIZE, None))
    }

    /// Whether the operation is complete; its number is free for others when so.
    pub(crate) fn is_done(&mut self, index: u32) -> bool {
        self.operations.is_done(index)
    }

    /// Moves data and notes what is complete. Whether anything was.
    pub(crate) fn progress(&mut self) -> Result<bool, Error> {
        let ep = self.objects.ep;
        // SAFETY: an entry is numbers and pointers: zero is a value.
        let mut entries: [fi_cq_tagged_entry; BATCH] = unsafe { std::mem::zeroed() };
        // SAFETY: the queue is open and of this format; the count is the array's.
        let count = unsafe { fabric_sys::fi_cq_read(self.objects.cq, entries.as_mut_ptr().cast(), BATCH) };
        if count == -(fabric_sys::FI_EAVAIL as isize) {
            return Err(self.completion_error());
        }
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) if count == -(fabric_sys::FI_EAGAIN as isize) => 0,
            Err(_) => return Err(self.failure("fi_cq_read", None, -count as c_int, None)),
        };
        // SAFETY: the endpoint is open, the entries are its queue's, and those who posted the operations vouch for
        // their memory until they are complete.
        let result = unsafe {
            let noted = entries[..count].iter().try_for_each(|entry| self.operations.completed(ep, entry));
            let retried = noted.and_then(|()| self.operations.retry(ep));
            if count == 0 { retried.and_then(|()| self.operations.idle(ep)) } else { retried }
        };
        result.map(|()| count > 0).map_err(|problem| self.explain(problem))
    }

    #[cold]
    fn explain(&self, problem: Problem) -> Error {
        match problem {
            Problem::Call { name, peer, code } => self.failure(name, Some(peer), code, None),
            Problem::Length { peer, expected, received } => self.length_error(peer, expected, Some(received)),
        }
    }

    #[cold]
    fn completion_error(&mut self) -> Error {
        let mut entry = Padded::<fi_cq_err_entry>::zeroed();
        // SAFETY: the queue is open; the entry is zeroed and long enough for any library.
        let result = unsafe { fabric_sys::fi_cq_readerr(self.objects.cq, entry.as_mut_ptr(), 0) };
        if result < 1 {
            return self.failure("fi_cq_readerr", None, -result as c_int, None);
        }
        let failed = self.operations.failed(entry.op_context);
        // The shm of libfabric 1.17 gives the number's negative.
        let code = entry.err.saturating_abs();
        if let (ETRUNC, Some((message, true))) = (code, failed) {
            let received = (entry.olen > 0).then_some(message.len + entry.olen);
            return self.length_error(message.peer, message.len, received);
        }
        let mut buffer = [0_u8; 256];
        // SAFETY: the queue is open, the error's data is valid until the queue is read again, the buffer's length is
        // passed along.
        unsafe {
            fabric_sys::fi_cq_strerror(
                self.objects.cq,
                entry.prov_errno,
                entry.err_data,
                buffer.as_mut_ptr().cast(),
                buffer.len(),
            );
        }
        let own = CStr::from_bytes_until_nul(&buffer).ok().map(|text| text.to_string_lossy().into_owned());
        let operation = if failed.is_some_and(|(_, received)| received) { "fi_trecv" } else { "fi_tsend" };
        let peer = failed.map(|(message, _)| message.peer);
        self.failure(operation, peer, code, own.filter(|text| !text.is_empty()))
    }

    fn length_error(&self, peer: usize, expected: usize, received: Option<usize>) -> Error {
        Error::MessageLength { rank: self.rank, peer, provider: self.provider.clone(), expected, received }
    }

    fn check(&self, operation: &'static str, result: c_int) -> Result<(), Error> {
        if result == 0 { Ok(()) } else { Err(self.failure(operation, None, -result, None)) }
    }

    fn failure(
        &self,
        operation: &'static str,
        peer: Option<usize>,
        code: c_int,
        own: Option<String>,
    ) -> Error {
        let mut text = self.library.fi_strerror(code);
        if let Some(own) = own.filter(|own| *own != text) {
            text = format!("{text}: {own}");
        }
        Error::Call(Failure { operation, provider: self.provider.clone(), peer, code, text })
    }
}

/// Says that a provider is not there, and which are.
fn unavailable(library: &Fabric, provider: &str) -> Error {
    let known = provider::providers().map_or_else(
        |_| "none".to_owned(),
        |providers| providers.into_iter().map(|provider| provider.name).collect::<Vec<_>>().join(", "),
    );
    let problem = format!(
        "libfabric {} ({}) offers no reliable endpoint for tagged messages with it on this machine; available: {known}",
        library.version(),
        library.path().display()
    );
    Error::Provider { provider: provider.to_owned(), problem }
}
