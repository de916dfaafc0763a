//! Opening of endpoints, and the reasons for failing.

use std::ffi::{CString, c_int};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fabric_sys::{Fabric, fi_threading};

use super::Endpoint;
use super::slots::OperationSlots;
use crate::fabric::error::{Error, Failure};
use crate::fabric::libfabric::domain::Domain;
use crate::fabric::libfabric::objects::{EndpointObjects, EndpointSettings};
use crate::fabric::libfabric::provider::{self, InfoEntry, InfoList, InfoQuery};
use crate::fabric::shared_memory::shm;
use crate::world;

/// Options of an endpoint.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// libfabric's provider: `tcp`, `shm`, `efa`, `verbs;ofi_rxm`. `tcp` means the same in all versions of
    /// libfabric.
    pub provider: String,
    /// Local address to bind to, where the provider has such addresses: `127.0.0.1`.
    pub source: Option<String>,
    /// The provider's domain, a network interface or a device: `eth0`, `mlx5_1`, `rdmap16s27-rdm`.
    pub domain: Option<String>,
    /// Also send and receive messages without a tag (`FI_MSG`).
    pub untagged: bool,
    /// Waiting threads sleep (`fi_cq_sread`) instead of polling. Not supported by all providers.
    pub blocking: bool,
    /// Time between two polls of a thread that waits without sleeping. It adds to the latency; many short
    /// messages in a row, from a peer of the same host, were measured to be faster with a pause.
    pub pause: Duration,
    /// Use memory of CUDA devices (`FI_HMEM`), registered with [`Endpoint::register_cuda`].
    pub cuda: bool,
    /// Read and write memory of the peers (`FI_RMA`).
    pub remote_memory: bool,
    /// Approximate number of peers.
    pub peers: usize,
    /// World for failure detection: its failure ends a wait with an error.
    pub world: Option<world::Handle>,
    /// Maximum time without any completion, or start of an operation, before a wait ends with an error.
    pub timeout: Option<Duration>,
}

impl Options {
    /// Options for messages over this provider, bound to its default address, without a timeout.
    #[must_use]
    pub fn new(provider: &str) -> Self {
        Self {
            provider: provider.to_owned(),
            source: None,
            domain: None,
            untagged: false,
            blocking: false,
            pause: Duration::ZERO,
            cuda: false,
            remote_memory: false,
            peers: 64,
            world: None,
            timeout: None,
        }
    }

    /// Checks that the provider offers such endpoints here, without opening one.
    ///
    /// # Errors
    /// [`Error::Library`] without libfabric; [`Error::Provider`] when there is no such endpoint.
    pub fn check(&self) -> Result<(), Error> {
        let library = Fabric::load()?;
        let threading = fabric_sys::FI_THREAD_DOMAIN;
        let list = query_entries(library, &provider::name_in(library, &self.provider), self, threading)?;
        choose_entry(&list, library, self, threading).map(drop)
    }
}

impl Endpoint {
    /// Opens an endpoint with a domain of its own. It needs no locks: the library's objects are used by one
    /// thread at a time.
    ///
    /// # Errors
    /// [`Error::Library`] without libfabric; [`Error::Provider`] when the provider has no such endpoint here;
    /// [`Error::Call`] when a call of libfabric fails.
    pub fn open(options: &Options) -> Result<Self, Error> {
        Ok(open_endpoints(options, fabric_sys::FI_THREAD_DOMAIN, 1)?.remove(0))
    }

    /// Opens `count` endpoints for messages on one domain. They share the device's resources for it, and the
    /// library's locks (`FI_THREAD_SAFE`): each may be used by a thread of its own.
    ///
    /// # Errors
    /// The errors of [`Endpoint::open`]; [`Error::Provider`] with [`Options::remote_memory`]: up to 2.5 at
    /// least, libfabric looks up the regions of a domain without a lock, while another thread may add one.
    pub fn open_sharing(options: &Options, count: usize) -> Result<Vec<Self>, Error> {
        if options.remote_memory {
            return Err(Error::Provider {
                provider: options.provider.clone(),
                problem: "endpoints with Options::remote_memory cannot share a domain: libfabric looks up \
                          their regions without a lock; open each with Endpoint::open"
                    .to_owned(),
            });
        }
        open_endpoints(options, fabric_sys::FI_THREAD_SAFE, count)
    }
}

/// Opens a domain as the options ask, and endpoints in it.
fn open_endpoints(options: &Options, threading: fi_threading, count: usize) -> Result<Vec<Endpoint>, Error> {
    let library = Fabric::load()?;
    let options = &Options { world: options.world.clone().map(world::guard_world), ..options.clone() };
    let list = query_entries(library, &provider::name_in(library, &options.provider), options, threading)?;
    let info = choose_entry(&list, library, options, threading)?;
    let check_room = |shortage: Option<String>| match shortage.filter(|_| options.provider == "shm") {
        Some(problem) => Err(refuse_provider(options, problem)),
        None => Ok(()),
    };
    check_room(shm::shortage_before_open(count))?;
    let domain = Domain::open_domain(library, info)?;
    let endpoints = (0..count).map(|_| {
        let endpoint = open_endpoint(library, &domain, info, options)?;
        check_room(shm::shortage_after_open(count, endpoint.address()))?;
        Ok(endpoint)
    });
    endpoints.collect()
}

fn refuse_provider(options: &Options, problem: String) -> Error {
    Error::Provider { provider: options.provider.clone(), problem }
}

/// Returns the entry to open from libfabric's entries for the options.
fn choose_entry<'a>(
    list: &'a InfoList,
    library: &'static Fabric,
    options: &Options,
    threading: fi_threading,
) -> Result<InfoEntry<'a>, Error> {
    let name = provider::name_in(library, &options.provider);
    // Some providers ignore the domain's name.
    let wanted = |info: &InfoEntry<'_>| {
        let domain = options.domain.as_ref().is_none_or(|domain| *domain == info.domain_name());
        domain && info.provider_name() == name && info.fabric_name() != "efa-direct"
    };
    let info = list.iter().find(wanted);
    info.ok_or_else(|| refuse_provider(options, describe_unavailable(library, &name, options, threading)))
}

fn open_endpoint(
    library: &'static Fabric,
    domain: &Arc<Domain>,
    info: InfoEntry<'_>,
    options: &Options,
) -> Result<Endpoint, Error> {
    static NEXT_ID: AtomicU64 = AtomicU64::new(0);
    let name = info.provider_name();
    let settings = EndpointSettings {
        peers: options.peers,
        blocking: options.blocking,
        descriptor: false,
        devices: options.cuda,
    };
    let opened = EndpointObjects::open_objects(Arc::clone(domain), library, info, settings);
    let (objects, address) = opened.map_err(|error| match error {
        Error::Call(failure) if options.blocking && failure.operation == "fi_cq_open" => {
            let problem = format!(
                "its completion queues have no object for a thread to wait on ({}): poll instead",
                failure.text
            );
            refuse_provider(options, problem)
        }
        // Some providers check the address only when they bind to it.
        Error::Call(Failure { code: fabric_sys::FI_EADDRNOTAVAIL, .. }) if options.source.is_some() => {
            refuse_provider(options, no_address(&name, options))
        }
        other => other,
    })?;
    Ok(Endpoint {
        objects: Some(objects),
        slots: OperationSlots { all: Vec::new(), free: Vec::new() },
        library,
        options: options.clone(),
        address,
        longest_inject: info.longest_inject(),
        longest_message: info.longest_message(),
        most_receives: info.queue_sizes().1,
        // For the alignment of the header: see `transport::endpoint::operations`.
        completion_data: matches!(&name[..], "tcp" | "net"),
        virtual_addresses: info.memory_mode() & fabric_sys::FI_MR_VIRT_ADDR as c_int != 0,
        domain: info.domain_name(),
        provider: provider::name_as_asked(Some(&options.provider), &name).to_owned(),
        id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
        in_flight: 0,
        idle: 0,
        idle_since: None,
        last_failure: None,
        peer_lost: false,
    })
}

/// Returns the reason why no entry matches the options.
fn describe_unavailable(
    library: &'static Fabric,
    name: &str,
    options: &Options,
    threading: fi_threading,
) -> String {
    let finds = |options: &Options| {
        let found = query_entries(library, name, options, threading);
        found.is_ok_and(|list| list.iter().any(|info| info.provider_name() == name))
    };
    if options.source.is_some() {
        let anywhere = Options { domain: None, cuda: false, ..options.clone() };
        if !finds(&anywhere) && finds(&Options { source: None, ..anywhere }) {
            return no_address(name, options);
        }
    }
    if let Some(domain) = &options.domain {
        let others = Options { domain: None, ..options.clone() };
        let mut there: Vec<String> = query_entries(library, name, &others, threading)
            .map(|list| list.iter().map(InfoEntry::domain_name).collect())
            .unwrap_or_default();
        there.sort_unstable();
        there.dedup();
        if !there.is_empty() {
            return format!("it has no domain '{domain}' for this endpoint; available: {}", there.join(", "));
        }
    }
    let others = Options { cuda: false, ..options.clone() };
    if options.cuda && finds(&others) {
        return format!(
            "it supports host memory only: with libfabric {} ({}) it lacks FI_HMEM here; copy to the host, \
             or choose a provider with FI_HMEM (nccl-bench fabric info -t rdm -c HMEM)",
            library.version(),
            library.path().display()
        );
    }
    let what = if options.remote_memory { "messages and remote memory" } else { "messages" };
    format!(
        "libfabric {} ({}) offers no reliable endpoint for {what} with this provider here; see `{}`{}",
        library.version(),
        library.path().display(),
        info_command(name),
        provider::chosen_by_variable()
    )
}

/// Returns the problem of a nonexistent local address.
fn no_address(name: &str, options: &Options) -> String {
    let source = options.source.as_deref().unwrap_or_default();
    format!(
        "it has no local address '{source}' to bind to; choose an address from the output of `{} -v`, or \
         none",
        info_command(name)
    )
}

/// Returns the command that shows a provider's endpoints.
fn info_command(name: &str) -> String {
    let quote = if name.contains([';', '^']) { "'" } else { "" };
    format!("nccl-bench fabric info -p {quote}{name}{quote} -t rdm")
}

fn query_entries(
    library: &'static Fabric,
    name: &str,
    options: &Options,
    threading: fi_threading,
) -> Result<InfoList, Error> {
    let source = match &options.source {
        None => None,
        Some(source) => Some(CString::new(source.as_str()).map_err(|_| Error::Provider {
            provider: name.to_owned(),
            problem: "the local address has a zero byte in it".to_owned(),
        })?),
    };
    let flags = if source.is_some() { fabric_sys::FI_SOURCE } else { 0 };
    let question = InfoQuery { provider: Some(name), node: source.as_deref(), service: None, flags };
    InfoList::query_with_hints(library, &question, |hints| {
        // SAFETY: `query_with_hints` passes an entry with all its attributes; nothing else uses it.
        unsafe {
            provider::ask_for_tagged_messages(hints, threading);
            if options.untagged {
                (*hints).caps |= fabric_sys::FI_MSG;
            }
            if options.remote_memory {
                (*hints).caps |= fabric_sys::FI_RMA;
            }
            if let Some(name) = &options.domain {
                provider::set_string(&raw mut (*(*hints).domain_attr).name, name)?;
            }
            if options.cuda {
                (*hints).caps |= fabric_sys::FI_HMEM;
                (*(*hints).domain_attr).mr_mode |= fabric_sys::FI_MR_HMEM;
            }
        }
        Ok(())
    })
}
