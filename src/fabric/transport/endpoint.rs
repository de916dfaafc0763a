//! An endpoint of one provider, and the operations in flight on it.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::os::fd::RawFd;
use std::ptr;

use fabric_sys::{Fabric, Version, fi_addr_t, fi_cq_tagged_entry};

use crate::fabric::calls;
use crate::fabric::error::{Error, Failure};
use crate::fabric::libfabric::domain::Domain;
use crate::fabric::libfabric::objects::{EndpointObjects, EndpointSettings, FailedOperation};
use crate::fabric::libfabric::provider::{self, InfoEntry, InfoList};
use crate::fabric::shared_memory::shm;
use operations::{CALLER_BITS, CTS, LibraryCall, RTS, Slots};

mod operations;

/// Completions per read of the queue.
const BATCH: usize = 16;
/// A message was longer than the buffer posted for it.
const ETRUNC: c_int = fabric_sys::FI_ETRUNC as c_int;
/// Lowest of the tag bits for the length of the message.
const LENGTH: u32 = 45;

/// Reachability of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// From processes of this host.
    Host,
    /// From other hosts too.
    Network,
}

/// An endpoint for tagged messages, with its own domain, address vector and completion queue: used by one
/// thread at a time, and nothing else moves its data.
///
/// Closing it ends all operations in flight: the library no longer uses their buffers.
pub(crate) struct TaggedEndpoint {
    // Closed before the memory of the slots is freed: fields drop in order.
    objects: EndpointObjects,
    slots: Slots,
    free: Vec<u32>,
    /// Calls that the library had no room for, oldest first.
    deferred: Vec<u32>,
    /// Number of deferred calls by peer and queue.
    blocked: Vec<u32>,
    /// By peer and queue, the last pass over `deferred` that found no room.
    stuck: Vec<u64>,
    pass: u64,
    awaiting_cts: usize,
    idle: u32,
    inject_size: usize,
    /// True when messages carry completion data.
    data: bool,
    /// True when long messages wait for their receivers: on all ranks or none.
    pub(super) rendezvous: bool,
    library: &'static Fabric,
    /// The library's name.
    pub(super) provider: String,
    /// The library's name: a network interface or a device.
    pub(super) domain: String,
    rank: usize,
    longest_message: usize,
    /// The address for other ranks.
    pub(super) address: Vec<u8>,
}

// SAFETY: the library's objects are bound to no thread (FI_THREAD_DOMAIN asks for one thread at a time within
// a domain, and this type is not Sync and has the domain's only handle); the operations' pointers are this
// type's own or vouched for by its callers.
unsafe impl Send for TaggedEndpoint {}

impl TaggedEndpoint {
    /// Opens an endpoint of `provider`, in the library's naming, for the rank `rank` of a job.
    ///
    /// `device` chooses among a provider's equal devices.
    pub(crate) fn open_for_rank(
        library: &'static Fabric,
        provider: &str,
        reach: Reach,
        device: usize,
        rank: usize,
        ranks: usize,
    ) -> Result<Self, Error> {
        let loopback = (reach == Reach::Host && matches!(provider, "tcp" | "net")).then_some(c"127.0.0.1");
        let list = InfoList::query_tagged(library, Some(provider), loopback)?;
        let candidates: Vec<InfoEntry<'_>> = list
            .iter()
            .filter(|info| info.provider_name() == provider && info.fabric_name() != "efa-direct")
            .collect();
        let info = match (provider, candidates.as_slice()) {
            (_, []) => return Err(unavailable_error(library, provider)),
            ("efa", devices) => devices[device % devices.len()],
            (_, [first, ..]) => *first,
        };
        // With other providers an injected message may still wait for its connection when the endpoint is
        // closed.
        let inject_size = if provider == "shm" { info.longest_inject() } else { 0 };
        let data = matches!(provider, "tcp" | "net");
        let settings = EndpointSettings { peers: ranks, descriptor: true, ..EndpointSettings::default() };
        let domain = Domain::open_domain(library, info)?;
        let (objects, address) = EndpointObjects::open_objects(domain, library, info, settings)?;
        Ok(Self {
            objects,
            slots: Slots::default(),
            free: Vec::new(),
            deferred: Vec::new(),
            blocked: vec![0; ranks * LibraryCall::QUEUES],
            stuck: vec![0; ranks * LibraryCall::QUEUES],
            pass: 0,
            awaiting_cts: 0,
            idle: 0,
            inject_size,
            data,
            rendezvous: false,
            library,
            provider: provider.to_owned(),
            domain: info.domain_name(),
            rank,
            longest_message: info.longest_message(),
            address,
        })
    }

    /// The address in the provider's notation: `fi_sockaddr_in://127.0.0.1:40123`.
    pub(crate) fn address_text(&self) -> String {
        self.objects.address_text(&self.address)
    }

    /// Makes rank `peer`'s address known.
    pub(crate) fn insert_peer(&mut self, peer: usize, address: &[u8]) -> Result<fi_addr_t, Error> {
        self.objects
            .insert_address(address)
            .map_err(|code| self.call_failure("fi_av_insert", Some(peer), code, None))
    }

    /// Announces this endpoint to the peer at address `to`, if the provider needs it before any message.
    ///
    /// From libfabric 2.5 on (and in its main branch of November 2026), two endpoints of `shm` in one process
    /// crash when one sends before the other has read the location of its memory: `smr_map_to_region` does
    /// not record it for endpoints of the same process, only `smr_progress_connreq` does, but either side's
    /// request makes both look connected. So every rank announces itself to all others before any of them
    /// polls, and sends when all have polled. See
    /// [`Network::connect_ranks`](super::network::Network::connect_ranks).
    pub(crate) fn announce_to(&mut self, to: fi_addr_t) {
        if self.provider != "shm" || self.library.version() < Version::new(2, 5) {
            return;
        }
        // The first send to a peer starts the connection, and is not repeated; this tag is never received.
        // SAFETY: the endpoint is open, and the message has no bytes.
        unsafe { fabric_sys::fi_tinject(self.objects.ep, ptr::null(), 0, to, CTS | RTS) };
    }

    /// Descriptor to sleep on until there is something to do, if the provider has one. Also none while a call
    /// waits for room in the library: the room need not make it ready.
    pub(super) fn wait_descriptor(&self) -> Option<RawFd> {
        self.objects.descriptor.filter(|_| self.deferred.is_empty())
    }

    /// True when nothing has arrived that the descriptor does not report: the thread may sleep on it.
    pub(super) fn may_sleep(&self) -> bool {
        self.objects.may_sleep()
    }

    /// See [`EndpointObjects::must_stay_open`].
    pub(crate) fn must_stay_open(&self) -> bool {
        self.objects.must_stay_open()
    }

    /// Makes progress and records completions; true when there were any.
    pub(crate) fn make_progress(&mut self) -> Result<bool, Error> {
        let mut entries = [const { MaybeUninit::<fi_cq_tagged_entry>::uninit() }; BATCH];
        // SAFETY: the queue is open and of this format; the count is the array's.
        let count = unsafe { fabric_sys::fi_cq_read(self.objects.cq, entries.as_mut_ptr().cast(), BATCH) };
        if count == -(fabric_sys::FI_EAVAIL as isize) {
            return Err(self.completion_error());
        }
        let count = match usize::try_from(count) {
            Ok(count) => count,
            Err(_) if count == -(fabric_sys::FI_EAGAIN as isize) => 0,
            Err(_) => return Err(self.call_failure("fi_cq_read", None, -count as c_int, None)),
        };
        for entry in &entries[..count] {
            // SAFETY: the queue is this endpoint's, and wrote this many entries.
            unsafe { self.record_completion(entry.assume_init_ref())? };
        }
        self.retry_deferred()?;
        if count == 0 {
            self.on_idle()?;
        }
        Ok(count > 0)
    }

    /// See [`EndpointObjects::discard_messages`]; before any endpoint of this process is closed.
    pub(crate) fn discard_messages(&mut self) {
        self.objects.discard_messages();
    }

    #[cold]
    fn completion_error(&mut self) -> Error {
        let FailedOperation { context, code, excess, text } = match self.objects.read_error() {
            Ok(failed) => failed,
            Err(code) => return self.call_failure("fi_cq_readerr", None, code, None),
        };
        let failed = self.failed_message(context);
        if let (ETRUNC, Some((message, true))) = (code, failed) {
            let received = (excess > 0).then_some(message.len + excess);
            return self.length_error(message.peer, message.len, received);
        }
        let operation = if failed.is_some_and(|(_, received)| received) { "fi_trecv" } else { "fi_tsend" };
        let peer = failed.map(|(message, _)| message.peer);
        self.call_failure(operation, peer, code, text)
    }

    fn length_error(&self, peer: usize, expected: usize, received: Option<usize>) -> Error {
        Error::MessageLength { rank: self.rank, peer, provider: self.provider.clone(), expected, received }
    }

    fn call_failure(
        &self,
        operation: &'static str,
        peer: Option<usize>,
        code: c_int,
        own: Option<String>,
    ) -> Error {
        Failure::of_call(self.library, &self.provider, operation, peer, code, own)
    }
}

/// Returns a tag different from the tags of messages of other lengths (with high probability): with
/// cross-memory attach, libfabric 1.17's `shm` never returns from a long message longer than its receive.
pub(super) fn with_length(tag: u64, len: usize) -> u64 {
    (tag ^ calls::of_length(len) << LENGTH) & CALLER_BITS
}

/// Returns the error for an unavailable provider, with the names of the available ones.
fn unavailable_error(library: &Fabric, provider: &str) -> Error {
    let known = provider::providers().map_or_else(|_| "none".to_owned(), |providers| providers.join(", "));
    let mut problem = format!(
        "libfabric {} ({}) offers no reliable endpoint for tagged messages with this provider on this \
         machine; available: {known}",
        library.version(),
        library.path().display()
    );
    if let Some(shortage) = shm::shm_shortage().filter(|_| provider == "shm") {
        problem += &format!("; {shortage}");
    }
    problem += &provider::chosen_by_variable();
    Error::Provider { provider: provider.to_owned(), problem }
}
