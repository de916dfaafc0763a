//! Reliable endpoints (`FI_EP_RDM`) for whatever a program makes of them: tagged messages to any number of peers, and
//! reading and writing their memory.
//!
//! An [`Endpoint`] has a domain, an address vector and a completion queue of its own, and is used by one thread at a
//! time, without locks. How the peers' addresses come to each other is up to the program: they are bytes.
//!
//! Buffers are borrowed for as long as the library works on them. [`Endpoint::scope`] gives that a beginning and an end, as
//! [`std::thread::scope`] does for threads: operations are started inside of the closure, and none is in flight when it has
//! returned. When the closure fails or panics while some are, the endpoint is closed, which makes the library forget them.
//!
//! ```no_run
//! # use collectives::fabric::{Error, rdm::{Endpoint, Options}};
//! # fn example(exchange: impl Fn(&[u8]) -> Vec<u8>) -> Result<(), Error> {
//! let mut endpoint = Endpoint::open(&Options::new("tcp"))?;
//! let peer = endpoint.insert(&exchange(endpoint.address()))?;
//! let (outgoing, mut incoming) = ([7_u8; 1024], [0_u8; 1024]);
//! endpoint.scope(|scope| {
//!     let received = scope.receive(peer, 1, &mut incoming)?;
//!     scope.send(peer, 1, &outgoing)?;
//!     let message = scope.wait(received)?;
//!     println!("{} bytes", message.len);
//!     Ok(())
//! })?;
//! # Ok(())
//! # }
//! ```
//!
//! A buffer that does not live long enough is not accepted, and one that is in flight cannot be used:
//! ```compile_fail,E0597
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer}};
//! # fn example(endpoint: &mut Endpoint, peer: Peer) -> Result<(), Error> {
//! endpoint.scope(|scope| {
//!     let mut short_lived = [0; 8];
//!     scope.receive(peer, 1, &mut short_lived)?;
//!     Ok(())
//! })
//! # }
//! ```
//! ```compile_fail,E0506
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer}};
//! # fn example(endpoint: &mut Endpoint, peer: Peer) -> Result<(), Error> {
//! let mut incoming = [0; 8];
//! endpoint.scope(|scope| {
//!     let received = scope.receive(peer, 1, &mut incoming)?;
//!     incoming[0] = 1;
//!     scope.wait(received).map(drop)
//! })
//! # }
//! ```
//! ```compile_fail,E0502
//! # use collectives::fabric::{Error, rdm::{Endpoint, Peer, RemoteRegion}};
//! # fn example(endpoint: &mut Endpoint, peer: Peer, there: RemoteRegion) -> Result<(), Error> {
//! let mut data = [0; 8];
//! endpoint.scope(|scope| {
//!     let sent = scope.write(peer, &data, there, 0)?;
//!     let read = scope.read(peer, &mut data, there, 0)?;
//!     scope.wait(sent)?;
//!     scope.wait(read).map(drop)
//! })
//! # }
//! ```
//!
//! # What moves data
//! Only calls of the endpoint do: a peer whose memory is to be read or written has to call [`Endpoint::progress`] (or wait for
//! something of its own) meanwhile, unless its provider moves data by itself.
//!
//! # What has arrived
//! A send or a write that is complete has given its buffer back; where the data is then, is up to the provider. It may be on
//! its way, or still in memory of the library, and closing the endpoint loses that. The same goes for what was
//! [injected](Scope::inject). It arrives for certain when both endpoints stay open and are used until it has: until an
//! answer of the peer says so, or [`Endpoint::farewell`] has returned.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use fabric_sys::{
    Fabric, Padded, Version, fi_addr_t, fi_context2, fi_cq_err_entry, fi_cq_tagged_entry, fi_hmem_iface,
    fi_threading,
};

use super::error::{Error, Failure};
use super::objects::{Domain, Objects, Settings};
use super::provider::{self, Info, InfoList, Question, or_none};
use super::shm;
use crate::world;
use region::Memory;

/// How many completions are read at once.
const BATCH: usize = 16;
/// How many times nothing is found before the processor is offered to other threads.
const POLLS_PER_YIELD: u32 = 1000;
/// How many times nothing is found before the other ranks and the clock are looked at.
const POLLS_PER_CHECK: u32 = 1 << 13;
/// How long a thread sleeps before it looks at them.
const LONGEST_SLEEP_MS: c_int = 100;

/// How to open an endpoint.
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// libfabric's provider: `tcp`, `shm`, `efa`, `verbs;ofi_rxm`. `tcp` means the same in all versions of libfabric.
    pub provider: String,
    /// The local address to bind to, where the provider has such: `127.0.0.1`.
    pub source: Option<String>,
    /// The provider's domain, which is a network interface or a device: `eth0`, `mlx5_1`, `rdmap16s27-rdm`.
    pub domain: Option<String>,
    /// Whether messages without a tag are sent and received, too (`FI_MSG`).
    pub untagged: bool,
    /// Whether threads that wait sleep (`fi_cq_sread`), instead of asking again and again. Not all providers can.
    pub blocking: bool,
    /// How long a thread that waits, and does not sleep, leaves the library alone before it asks again. A pause adds to the
    /// latency, but lets a peer of the same host hand over message after message undisturbed.
    pub pause: Duration,
    /// Whether to count what completes (`fi_cntr`), for [`Endpoint::counts`].
    pub counter: bool,
    /// Whether memory of CUDA devices is used (`FI_HMEM`), as [`Endpoint::register_cuda`] registers it.
    pub cuda: bool,
    /// Whether memory of the peers is to be read and written (`FI_RMA`).
    pub remote_memory: bool,
    /// About how many peers there will be.
    pub peers: usize,
    /// Waiting ends with an error when a rank of this world has failed.
    pub world: Option<world::Handle>,
    /// Waiting ends with an error when nothing at all has completed for so long.
    pub timeout: Option<Duration>,
}

impl Options {
    /// Messages by this provider, bound to wherever it likes, and waiting without an end.
    #[must_use]
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            source: None,
            domain: None,
            untagged: false,
            blocking: false,
            pause: Duration::ZERO,
            counter: false,
            cuda: false,
            remote_memory: false,
            peers: 64,
            world: None,
            timeout: None,
        }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Options")
            .field("provider", &self.provider)
            .field("source", &self.source)
            .field("domain", &self.domain)
            .field("untagged", &self.untagged)
            .field("blocking", &self.blocking)
            .field("pause", &self.pause)
            .field("counter", &self.counter)
            .field("cuda", &self.cuda)
            .field("remote_memory", &self.remote_memory)
            .field("peers", &self.peers)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// A peer that an endpoint knows the address of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    address: fi_addr_t,
    endpoint: u64,
}

/// A message or access that is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Bytes that a receive got; of others what they were asked to move.
    pub len: usize,
    /// The tag of a receive.
    pub tag: u64,
}

/// How many operations of an endpoint have ended, since it was opened: sends, receives, reads and writes, those that were
/// [injected](Scope::inject), too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    /// Well.
    pub completed: u64,
    /// With an error.
    pub failed: u64,
}

/// An operation in flight, to wait for.
#[derive(Debug)]
#[must_use = "all operations are waited for at the end of the scope, but what they got is lost"]
pub struct Operation {
    slot: u32,
    generation: u32,
}

/// What is known of an operation.
#[derive(Clone, Copy)]
enum State {
    Free,
    InFlight,
    Done(Completion),
    Failed(c_int),
}

/// An operation's place. The library keeps the address of `context` until the operation completes.
#[repr(C, align(64))]
struct Slot {
    context: fi_context2,
    state: State,
    name: &'static str,
    len: usize,
    index: u32,
    generation: u32,
}

/// A reliable endpoint. Used by one thread at a time.
pub struct Endpoint {
    // Closed before the memory of the slots is freed.
    objects: Option<Objects>,
    slots: Slots,
    /// Registered memory, which the objects must not outlive.
    memories: Vec<Arc<Memory>>,
    library: &'static Fabric,
    provider: String,
    address: Vec<u8>,
    longest_inject: usize,
    longest_message: usize,
    /// How many receives may wait for their messages.
    most_receives: usize,
    /// Whether messages carry completion data.
    data: bool,
    virtual_addresses: bool,
    blocking: bool,
    pause: Duration,
    devices: bool,
    remote_memory: bool,
    domain: String,
    identity: u64,
    in_flight: usize,
    idle: u32,
    since: Option<Instant>,
    world: Option<world::Handle>,
    timeout: Option<Duration>,
    /// Why it was closed.
    last: Option<Failure>,
    /// Whether a peer may be gone: something has failed, or has not come in time.
    lost: bool,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.close();
    }
}

// SAFETY: the library's objects are bound to no thread (FI_THREAD_DOMAIN asks for one thread at a time within a domain, and
// this type, which is not Sync, has the domain's only handle); the slots' memory is its own.
unsafe impl Send for Endpoint {}

/// The slots at their fixed addresses.
struct Slots {
    all: Vec<NonNull<Slot>>,
    free: Vec<u32>,
}

impl Drop for Slots {
    fn drop(&mut self) {
        for slot in &self.all {
            // SAFETY: made of a box in `take`, and nobody else has it: the endpoint is closed before.
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
    }
}

impl Slots {
    fn take(&mut self, name: &'static str, len: usize) -> *mut Slot {
        let pointer = match self.free.pop() {
            Some(index) => self.all[index as usize].as_ptr(),
            None => {
                let index = self.all.len() as u32;
                let slot = Slot {
                    // SAFETY: the library's own scratch memory: zero is a value.
                    context: unsafe { std::mem::zeroed() },
                    state: State::Free,
                    name,
                    len,
                    index,
                    generation: 0,
                };
                let slot = NonNull::from(Box::leak(Box::new(slot)));
                self.all.push(slot);
                slot.as_ptr()
            }
        };
        // SAFETY: a slot of this list, which nobody refers to; the library writes only to its context.
        unsafe {
            (*pointer).state = State::InFlight;
            (*pointer).name = name;
            (*pointer).len = len;
        }
        pointer
    }

    fn give_back(&mut self, slot: *mut Slot) {
        // SAFETY: as in `take`; the library has forgotten it.
        unsafe {
            (*slot).state = State::Free;
            (*slot).generation = (*slot).generation.wrapping_add(1);
            self.free.push((*slot).index);
        }
    }
}

impl Endpoint {
    /// Opens an endpoint with a domain of its own, which needs no locks: the library's objects are used by one thread at a
    /// time.
    ///
    /// # Errors
    /// [`Error::Library`] without libfabric; [`Error::Provider`] when the provider has no such endpoint here;
    /// [`Error::Call`] when a call of libfabric fails.
    pub fn open(options: &Options) -> Result<Self, Error> {
        opening(options, fabric_sys::FI_THREAD_DOMAIN, 1, |open| open())
    }

    /// Opens so many endpoints on one domain, which share what the device has for a domain, and the library's locks
    /// (`FI_THREAD_SAFE`): each may be used by a thread of its own.
    ///
    /// # Errors
    /// As [`Endpoint::open`].
    pub fn open_sharing(options: &Options, count: usize) -> Result<Vec<Self>, Error> {
        opening(options, fabric_sys::FI_THREAD_SAFE, count, |open| (0..count).map(|_| open()).collect())
    }

    /// The address to tell the peers: bytes that mean something to the same provider.
    #[must_use]
    pub fn address(&self) -> &[u8] {
        &self.address
    }

    /// The same for people: `fi_sockaddr_in://127.0.0.1:40123`.
    #[must_use]
    pub fn address_text(&self) -> String {
        self.objects.as_ref().map(|objects| objects.text_of(&self.address)).unwrap_or_default()
    }

    /// libfabric's name of the provider.
    #[must_use]
    pub fn provider(&self) -> &str {
        &self.provider
    }

    /// libfabric's name of the domain: a network interface, or a device.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// Bytes of the longest message for [`Scope::inject`] and [`Scope::inject_write`].
    #[must_use]
    pub fn longest_inject(&self) -> usize {
        self.longest_inject
    }

    /// How many receives may be in flight. More wait for room, or are an error, as the provider likes.
    #[must_use]
    pub fn most_receives(&self) -> usize {
        self.most_receives
    }

    /// Makes a peer's address known (`fi_av_insert`).
    ///
    /// # Errors
    /// [`Error::Call`] when the provider does not take it; [`Error::Endpoint`] when the endpoint was closed.
    pub fn insert(&mut self, address: &[u8]) -> Result<Peer, Error> {
        let identity = self.identity;
        if self.provider == "shm" && self.library.version() >= Version::new(2, 5) && shm::is_own(address) {
            let problem = "with libfabric 2.5 and later two endpoints of one process can crash each other over shm; use \
                           tcp, or processes";
            return Err(self.unusable("fi_av_insert", problem.to_owned()));
        }
        let inserted = self.objects_mut("fi_av_insert")?.insert(address);
        let address = inserted.map_err(|code| self.failure("fi_av_insert", code, None))?;
        Ok(Peer { address, endpoint: identity })
    }

    /// Memory that peers may read and write (`fi_mr_regattr`), zeroed, as long as this endpoint is open.
    ///
    /// # Errors
    /// [`Error::Call`] when the provider does not register it; [`Error::Endpoint`] when there is not so much memory, or the
    /// endpoint was closed.
    pub fn region(&mut self, len: usize) -> Result<Region, Error> {
        const NAME: &str = "fi_mr_regattr";
        let memory = Memory::zeroed(len).map(Arc::new);
        let memory =
            memory.ok_or_else(|| self.unusable(NAME, format!("there is no memory for {len} bytes")))?;
        let access = fabric_sys::FI_REMOTE_READ | fabric_sys::FI_REMOTE_WRITE;
        // Kept first, so that it outlives the registration.
        self.memories.push(Arc::clone(&memory));
        let host = (fabric_sys::FI_HMEM_SYSTEM, 0);
        // SAFETY: the memory lives longer than the objects, and nothing but atomic accesses is made to it from here.
        let registered = unsafe { self.objects_mut(NAME)?.register(memory.start(), len, access, host) };
        let (key, _) = registered.map_err(|code| self.failure(NAME, code, None))?;
        let base = if self.virtual_addresses { memory.start() as u64 } else { 0 };
        Ok(Region::new(memory, RemoteRegion::new(base, key, len as u64)))
    }

    /// Registers memory of a CUDA device (`fi_mr_regattr` with `FI_HMEM_CUDA` and `FI_HMEM_DEVICE_ONLY`), from this address
    /// on, for operations of this endpoint and for its peers', as long as it is open. The endpoint needs [`Options::cuda`].
    ///
    /// Set `CU_POINTER_ATTRIBUTE_SYNC_MEMOPS` on it first: otherwise a provider's copy from device to device (shm's by CUDA's
    /// IPC) may still run when the operation is complete.
    ///
    /// # Safety
    /// The memory must be there until the endpoint is dropped or was closed by an error. It must be the device's alone, as
    /// of `cudaMalloc` and `cuMemAlloc`, not managed memory or the host's.
    ///
    /// # Errors
    /// [`Error::Endpoint`] when libfabric has no CUDA, or the endpoint was opened without [`Options::cuda`] or was closed;
    /// [`Error::Call`] when the provider does not register it.
    pub unsafe fn register_cuda(
        &mut self,
        device: i32,
        address: u64,
        len: usize,
    ) -> Result<DeviceMemory, Error> {
        // SAFETY: the caller vouches for the memory.
        unsafe { self.register_device((fabric_sys::FI_HMEM_CUDA, device), address, len) }
    }

    /// # Safety
    /// As [`register_cuda`](Self::register_cuda), for a device of another kind.
    unsafe fn register_device(
        &mut self,
        device: (fi_hmem_iface, c_int),
        address: u64,
        len: usize,
    ) -> Result<DeviceMemory, Error> {
        const NAME: &str = "fi_mr_regattr";
        if !self.devices {
            let problem = "the endpoint was opened for memory of the host alone";
            return Err(self.unusable(NAME, problem.to_owned()));
        }
        let mut access = fabric_sys::FI_SEND | fabric_sys::FI_RECV;
        if self.remote_memory {
            access |= fabric_sys::FI_READ
                | fabric_sys::FI_WRITE
                | fabric_sys::FI_REMOTE_READ
                | fabric_sys::FI_REMOTE_WRITE;
        }
        let start = ptr::with_exposed_provenance::<u8>(address as usize);
        // SAFETY: the caller vouches for the memory, which no reference is ever made to.
        let registered = unsafe { self.objects_mut(NAME)?.register(start, len, access, device) };
        let (key, descriptor) = registered.map_err(|code| match code {
            fabric_sys::FI_ENOSYS => {
                let (version, path) = (self.library.version(), self.library.path().display());
                let problem = format!(
                    "libfabric {version} ({path}) has no CUDA: it was built without it, or found no driver"
                );
                self.unusable(NAME, problem)
            }
            code => self.failure(NAME, code, None),
        })?;
        let base = if self.virtual_addresses { address } else { 0 };
        let remote = RemoteRegion::new(base, key, len as u64);
        Ok(DeviceMemory::new(self.identity, start, len, descriptor, remote))
    }

    /// Whether the provider has promised to move devices' memory directly (`FI_HMEM_P2P_REQUIRED`), without a copy in the host's.
    /// One that has not may do so all the same, or copy.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.objects.as_ref().is_some_and(|objects| objects.direct)
    }

    /// Starts operations, which may borrow everything that outlives this call, and ends when none is in flight: with the
    /// closure's result, or the error of the first operation that failed.
    ///
    /// # Errors
    /// The closure's; [`Error::Call`] when an operation fails; [`Error::World`] when a rank of the world has failed;
    /// [`Error::Endpoint`] when the time is over, or the endpoint was closed by an error before. When operations are
    /// in flight then, the endpoint is closed.
    pub fn scope<'env, T>(
        &'env mut self,
        body: impl FnOnce(&mut Scope<'env>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut scope = Scope::new(self);
        let value = body(&mut scope)?;
        scope.wait_all()?;
        Ok(value)
    }

    /// Comes to an end with these peers, which have to do the same: when it returns, all that was sent to them before, injected
    /// or not, has been received or waits there to be, and this endpoint can be closed. `tag` is for this alone.
    ///
    /// Each side says farewell, and answers the other's.
    ///
    /// # Errors
    /// As [`Endpoint::scope`].
    pub fn farewell(&mut self, peers: &[Peer], tag: u64) -> Result<(), Error> {
        // Who has got the answer knows that its farewell has arrived, and with it all before that. The answers themselves
        // find nothing in their way.
        for _ in ["farewell", "answer"] {
            self.scope(|scope| {
                for &peer in peers {
                    let _received = scope.receive(peer, tag, &mut [])?;
                    let _sent = scope.send(peer, tag, &[])?;
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    /// How many operations have ended (`fi_cntr_read`); moves data.
    ///
    /// # Errors
    /// [`Error::Endpoint`] when nothing is counted ([`Options::counter`]), or the endpoint was closed.
    pub fn counts(&mut self) -> Result<Counts, Error> {
        const NAME: &str = "fi_cntr_read";
        let counter = self.objects_mut(NAME)?.counter;
        if counter.is_null() {
            return Err(self.unusable(NAME, "it was opened without a counter".to_owned()));
        }
        // SAFETY: the counter is open.
        let (completed, failed) =
            unsafe { (fabric_sys::fi_cntr_read(counter), fabric_sys::fi_cntr_readerr(counter)) };
        Ok(Counts { completed, failed })
    }

    fn wait_for_count(&mut self, count: u64) -> Result<Counts, Error> {
        loop {
            let counts = self.counts()?;
            if counts.completed + counts.failed >= count {
                return Ok(counts);
            }
            self.progress()?;
        }
    }

    /// Moves data, for peers that read or write here. Whether anything has completed.
    ///
    /// # Errors
    /// As [`Endpoint::scope`].
    pub fn progress(&mut self) -> Result<bool, Error> {
        let mut entries = [const { MaybeUninit::<fi_cq_tagged_entry>::uninit() }; BATCH];
        let queue = self.objects_mut("fi_cq_read")?.cq;
        // SAFETY: the queue is open and of this format; the count is the array's.
        let count = unsafe { fabric_sys::fi_cq_read(queue, entries.as_mut_ptr().cast(), BATCH) };
        self.took(&entries, count)
    }

    /// As [`progress`](Self::progress), for who has nothing else to do.
    fn rest(&mut self) -> Result<(), Error> {
        if !self.blocking {
            if !self.pause.is_zero() {
                let start = Instant::now();
                while start.elapsed() < self.pause {
                    std::hint::spin_loop();
                }
            }
            return self.progress().map(drop);
        }
        let mut entries = [const { MaybeUninit::<fi_cq_tagged_entry>::uninit() }; BATCH];
        let queue = self.objects_mut("fi_cq_sread")?.cq;
        // SAFETY: as in `progress`; the queue was opened for it.
        let count = unsafe {
            fabric_sys::fi_cq_sread(queue, entries.as_mut_ptr().cast(), BATCH, ptr::null(), LONGEST_SLEEP_MS)
        };
        match -count as c_int {
            fabric_sys::FI_EAGAIN | fabric_sys::FI_EINTR => self.look_around(),
            _ => self.took(&entries, count).map(drop),
        }
    }

    /// Notes what was read from the queue, so many entries or a number of libfabric's.
    fn took(&mut self, entries: &[MaybeUninit<fi_cq_tagged_entry>], count: isize) -> Result<bool, Error> {
        if count > 0 {
            for entry in &entries[..count as usize] {
                // SAFETY: the library has written so many.
                let entry = unsafe { entry.assume_init_ref() };
                let received = entry.flags & fabric_sys::FI_RECV != 0;
                self.note(entry.op_context, |len| {
                    State::Done(Completion { len: if received { entry.len } else { len }, tag: entry.tag })
                });
            }
            self.idle = 0;
            self.since = None;
            return Ok(true);
        }
        match -count as c_int {
            fabric_sys::FI_EAGAIN => self.idled().map(|()| false),
            code if code == fabric_sys::FI_EAVAIL as c_int => self.read_error().map(|()| true),
            code => Err(self.failure("fi_cq_read", code, None)),
        }
    }

    /// Notes the end of the operation whose context this is.
    fn note(&mut self, context: *mut c_void, state: impl FnOnce(usize) -> State) {
        if context.is_null() {
            return;
        }
        // SAFETY: the library hands back what `start` gave it: a slot's context, which is its beginning, in flight.
        let slot = unsafe { &mut *context.cast::<Slot>() };
        slot.state = state(slot.len);
        self.in_flight -= 1;
    }

    #[cold]
    fn read_error(&mut self) -> Result<(), Error> {
        let mut entry = Padded::<fi_cq_err_entry>::zeroed();
        self.lost = true;
        let queue = self.objects_mut("fi_cq_readerr")?.cq;
        // SAFETY: the queue is open; the entry is zeroed and long enough for any library.
        let result = unsafe { fabric_sys::fi_cq_readerr(queue, entry.as_mut_ptr(), 0) };
        if result < 1 {
            return Err(self.failure("fi_cq_readerr", -result as c_int, None));
        }
        // The shm of libfabric 1.17 gives the number's negative.
        let code = entry.err.saturating_abs();
        let own = self.objects.as_ref().and_then(|objects| objects.provider_text(&entry));
        let Some(context) = NonNull::new(entry.op_context) else {
            return Err(self.failure("an injected operation", code, own));
        };
        // SAFETY: as in `note`.
        let name = unsafe { (*context.cast::<Slot>().as_ptr()).name };
        if let Error::Call(failure) = self.failure(name, code, own) {
            self.last = Some(failure);
        }
        self.note(entry.op_context, |_| State::Failed(code));
        Ok(())
    }

    /// Nothing was found.
    fn idled(&mut self) -> Result<(), Error> {
        self.idle = self.idle.wrapping_add(1);
        if self.idle.is_multiple_of(POLLS_PER_YIELD) {
            std::thread::yield_now();
        }
        if self.idle.is_multiple_of(POLLS_PER_CHECK) { self.look_around() } else { Ok(()) }
    }

    /// Whether to go on waiting.
    #[cold]
    fn look_around(&mut self) -> Result<(), Error> {
        if let Some(world) = &self.world {
            world.check().inspect_err(|_| self.lost = true)?;
        }
        if let Some(timeout) = self.timeout {
            let since = *self.since.get_or_insert_with(Instant::now);
            if since.elapsed() > timeout {
                self.lost = true;
                let problem = format!("nothing has completed for {} s", timeout.as_secs_f64());
                return Err(self.unusable("waiting", problem));
            }
        }
        Ok(())
    }

    /// Starts one operation: calls until there is room for it.
    fn start(
        &mut self,
        name: &'static str,
        len: usize,
        peer: Option<Peer>,
        call: impl Fn(&Objects, fi_addr_t, *mut c_void) -> isize,
    ) -> Result<Operation, Error> {
        let slot = self.slots.take(name, len);
        if let Err(error) =
            self.hand_over(name, len, peer, |objects, address| call(objects, address, slot.cast()))
        {
            self.slots.give_back(slot);
            return Err(error);
        }
        self.in_flight += 1;
        // SAFETY: a slot of this endpoint.
        let (index, generation) = unsafe { ((*slot).index, (*slot).generation) };
        Ok(Operation { slot: index, generation })
    }

    /// As [`start`](Self::start), of what is complete with the call.
    fn inject(
        &mut self,
        name: &'static str,
        len: usize,
        peer: Peer,
        call: impl Fn(&Objects, fi_addr_t) -> isize,
    ) -> Result<(), Error> {
        if len > self.longest_inject {
            let problem =
                format!("{len} bytes are more than the {} that can be injected", self.longest_inject);
            return Err(self.unusable(name, problem));
        }
        self.hand_over(name, len, Some(peer), call)
    }

    /// Calls until the library takes it.
    fn hand_over(
        &mut self,
        name: &'static str,
        len: usize,
        peer: Option<Peer>,
        call: impl Fn(&Objects, fi_addr_t) -> isize,
    ) -> Result<(), Error> {
        if peer.is_some_and(|peer| peer.endpoint != self.identity) {
            return Err(self.unusable(name, "the peer is one of another endpoint".to_owned()));
        }
        if len > self.longest_message {
            return Err(self.failure(name, fabric_sys::FI_EMSGSIZE, None));
        }
        let address = peer.map_or(fabric_sys::FI_ADDR_UNSPEC, |peer| peer.address);
        loop {
            let result = call(self.objects_mut(name)?, address);
            if result == 0 {
                return Ok(());
            }
            let code = -result as c_int;
            if code != fabric_sys::FI_EAGAIN {
                self.lost = true;
                return Err(self.failure(name, code, None));
            }
            self.progress()?;
        }
    }

    fn wait(&mut self, operation: &Operation) -> Result<Completion, Error> {
        let slot = self.slots.all.get(operation.slot as usize).map(|slot| slot.as_ptr());
        // SAFETY: a slot of this endpoint.
        let known = slot.filter(|&slot| unsafe { (*slot).generation } == operation.generation);
        let Some(slot) = known else {
            return Err(self.unusable("waiting", "the operation is one of another scope".to_owned()));
        };
        loop {
            // SAFETY: as above.
            let (state, name) = unsafe { ((*slot).state, (*slot).name) };
            match state {
                State::InFlight => self.rest()?,
                State::Done(completion) => {
                    self.slots.give_back(slot);
                    return Ok(completion);
                }
                State::Failed(code) => {
                    self.slots.give_back(slot);
                    return Err(match &self.last {
                        Some(failure) if failure.code == code => Error::Call(failure.clone()),
                        _ => self.failure(name, code, None),
                    });
                }
                State::Free => return Err(self.unusable("waiting", "the operation is not one".to_owned())),
            }
        }
    }

    /// Waits until nothing is in flight, and frees what nobody has waited for; the first error of these.
    fn settle(&mut self) -> Result<(), Error> {
        while self.in_flight > 0 {
            self.rest()?;
        }
        let mut failed = None;
        for index in 0..self.slots.all.len() {
            let slot = self.slots.all[index].as_ptr();
            // SAFETY: a slot of this endpoint.
            match unsafe { (*slot).state } {
                State::Free => {}
                State::Failed(code) => {
                    // SAFETY: as above.
                    failed = failed.or(Some((unsafe { (*slot).name }, code)));
                    self.slots.give_back(slot);
                }
                State::InFlight | State::Done(_) => self.slots.give_back(slot),
            }
        }
        match failed {
            None => Ok(()),
            Some((name, code)) => Err(self.failure(name, code, None)),
        }
    }

    /// Has the library forget all buffers. Where closing could crash since a peer is gone, what is open stays so, and nobody
    /// asks it for progress again.
    fn close(&mut self) {
        let Some(mut objects) = self.objects.take() else { return };
        objects.discard();
        if self.lost && objects.must_stay_open() {
            objects.leave_open();
        }
    }

    #[inline]
    fn objects_mut(&mut self, operation: &'static str) -> Result<&mut Objects, Error> {
        match &mut self.objects {
            Some(objects) => Ok(objects),
            None => Err(closed(operation, &self.provider)),
        }
    }

    #[cold]
    fn failure(&self, operation: &'static str, code: c_int, own: Option<String>) -> Error {
        Failure::of_call(self.library, &self.provider, operation, None, code, own)
    }

    #[cold]
    fn unusable(&self, operation: &'static str, problem: String) -> Error {
        Error::Endpoint { operation, provider: self.provider.clone(), problem }
    }
}

#[cold]
fn closed(operation: &'static str, provider: &str) -> Error {
    Error::Endpoint {
        operation,
        provider: provider.to_owned(),
        problem: "the endpoint was closed when an operation failed, so that its buffers are left alone; open another"
            .to_owned(),
    }
}

/// Opens a domain as the options ask, and in it what `then` opens with its argument, at most `count` endpoints.
fn opening<T>(
    options: &Options,
    threading: fi_threading,
    count: usize,
    then: impl FnOnce(&dyn Fn() -> Result<Endpoint, Error>) -> Result<T, Error>,
) -> Result<T, Error> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let library = Fabric::load()?;
    let name = provider::name_in(library, &options.provider);
    let unfit = |problem: String| Error::Provider { provider: name.clone(), problem };
    if options.counter && name == "net" {
        let problem =
            "before libfabric 1.18 it crashes when it counts and a message comes that nobody waits for yet";
        return Err(unfit(problem.to_owned()));
    }
    let list = find(library, &name, options, threading)?;
    // Not all providers look at the domain's name.
    let wanted = |info: &Info<'_>| {
        let domain = options.domain.as_ref().is_none_or(|domain| *domain == info.domain());
        domain && info.provider() == name && info.fabric_name() != "efa-direct"
    };
    let info = list.as_ref().and_then(|list| list.iter().find(wanted));
    let Some(info) = info else { return Err(unfit(missing(library, &name, options, threading))) };
    let no_room = |shortage: Option<String>| match shortage.filter(|_| name == "shm") {
        Some(problem) => Err(unfit(problem)),
        None => Ok(()),
    };
    no_room(shm::shortage_for(count))?;
    let domain = Domain::open(library, info)?;
    let settings = Settings {
        peers: options.peers,
        blocking: options.blocking,
        counter: options.counter,
        devices: options.cuda,
    };
    then(&|| {
        let opened = Objects::open_in(Arc::clone(&domain), library, info, settings);
        let (objects, address) = opened.map_err(|error| match error {
            Error::Call(failure) if options.blocking && failure.operation == "fi_cq_open" => unfit(format!(
                "its completion queues have nothing that a thread could sleep on ({}): poll instead",
                failure.text
            )),
            other => other,
        })?;
        no_room(shm::shortage_with(count, &address))?;
        Ok(Endpoint {
            objects: Some(objects),
            slots: Slots { all: Vec::new(), free: Vec::new() },
            memories: Vec::new(),
            library,
            address,
            longest_inject: info.longest_inject(),
            longest_message: info.longest_message(),
            most_receives: info.queue_sizes().1,
            // See `operations`: long messages with another length of header can be slow.
            data: matches!(&name[..], "tcp" | "net"),
            virtual_addresses: info.memory_mode() & fabric_sys::FI_MR_VIRT_ADDR as c_int != 0,
            blocking: options.blocking,
            pause: options.pause,
            devices: options.cuda,
            remote_memory: options.remote_memory,
            provider: name.clone(),
            domain: info.domain(),
            identity: NEXT.fetch_add(1, Ordering::Relaxed),
            in_flight: 0,
            idle: 0,
            since: None,
            world: options.world.clone(),
            timeout: options.timeout,
            last: None,
            lost: false,
        })
    })
}

/// Why there is no entry for what the options ask.
fn missing(library: &'static Fabric, name: &str, options: &Options, threading: fi_threading) -> String {
    if let Some(domain) = &options.domain {
        let others = Options { domain: None, ..options.clone() };
        let mut there: Vec<String> = find(library, name, &others, threading)
            .ok()
            .flatten()
            .map(|list| list.iter().map(Info::domain).collect())
            .unwrap_or_default();
        there.sort_unstable();
        there.dedup();
        if !there.is_empty() {
            return format!("it has no domain '{domain}' for this; it has {}", there.join(", "));
        }
    }
    let others = Options { cuda: false, ..options.clone() };
    let without = |options: &Options| matches!(find(library, name, options, threading), Ok(Some(_)));
    if options.cuda && without(&others) {
        return format!(
            "it moves memory of the host alone: with libfabric {} ({}) it lacks FI_HMEM here; copy to the host, or choose a \
             provider that has it (nccl-bench fabric info -t rdm -c HMEM)",
            library.version(),
            library.path().display()
        );
    }
    let what = if options.remote_memory { "messages and remote memory" } else { "messages" };
    format!(
        "libfabric {} ({}) offers no reliable endpoint for {what} with it here; see `nccl-bench fabric info -p {name} -t \
         rdm`",
        library.version(),
        library.path().display()
    )
}

/// The providers' entries for what the options ask.
fn find(
    library: &'static Fabric,
    name: &str,
    options: &Options,
    threading: fi_threading,
) -> Result<Option<InfoList>, Error> {
    let source = match &options.source {
        None => None,
        Some(source) => Some(CString::new(source.as_str()).map_err(|_| Error::Provider {
            provider: name.to_owned(),
            problem: "the local address has a zero byte in it".to_owned(),
        })?),
    };
    let flags = if source.is_some() { fabric_sys::FI_SOURCE } else { 0 };
    let question = Question { provider: Some(name), node: source.as_deref(), service: None, flags };
    or_none(InfoList::ask(library, &question, |hints| {
        // SAFETY: `ask` passes an entry that nobody else has, with all its attributes.
        unsafe {
            (*hints).caps = fabric_sys::FI_TAGGED | fabric_sys::FI_DIRECTED_RECV;
            if options.untagged {
                (*hints).caps |= fabric_sys::FI_MSG;
            }
            if options.remote_memory {
                (*hints).caps |= fabric_sys::FI_RMA;
            }
            (*hints).mode = fabric_sys::FI_CONTEXT | fabric_sys::FI_CONTEXT2;
            (*(*hints).ep_attr).type_ = fabric_sys::FI_EP_RDM;
            if options.cuda {
                (*hints).caps |= fabric_sys::FI_HMEM;
            }
            let domain = (*hints).domain_attr;
            if let Some(name) = &options.domain {
                provider::set_text(&raw mut (*domain).name, name)?;
            }
            (*domain).threading = threading;
            (*domain).control_progress = fabric_sys::FI_PROGRESS_MANUAL;
            (*domain).data_progress = fabric_sys::FI_PROGRESS_MANUAL;
            (*domain).resource_mgmt = fabric_sys::FI_RM_ENABLED;
            (*domain).av_type = fabric_sys::FI_AV_TABLE;
            (*domain).mr_mode =
                fabric_sys::FI_MR_VIRT_ADDR | fabric_sys::FI_MR_ALLOCATED | fabric_sys::FI_MR_PROV_KEY;
            if options.cuda {
                (*domain).mr_mode |= fabric_sys::FI_MR_HMEM;
            }
        }
        Ok(())
    }))
}

mod device;
mod region;
mod scope;
#[cfg(test)]
mod tests;

pub use device::DeviceMemory;
pub use region::{Region, RemoteRegion};
pub use scope::Scope;
