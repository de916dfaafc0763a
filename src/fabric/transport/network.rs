//! A job's transport: shared memory to the ranks of this host, a network to the others.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_sys::{Fabric, fi_addr_t};

use crate::fabric::calls::{CallLog, CallRecord};
use crate::fabric::error::Error;
use crate::fabric::hosts::Hosts;
use crate::fabric::libfabric::provider;
use crate::fabric::shared_memory::cma_probe::{self, CmaProbe};
use crate::fabric::shared_memory::shm::{self, ShmProtocol};
use crate::fabric::transport::deferred_close::DeferredClose;
use crate::fabric::transport::endpoint::{Reach, TaggedEndpoint};
use crate::fabric::transport::summary::TransportSummary;
use crate::fabric::transport::{Request, Transport};
use crate::world;

/// How many times nothing is found before the processor is offered to other threads.
const POLLS_PER_YIELD: u32 = 1000;
/// The same where a host has more ranks than processors: the peer may be waiting for this one.
const POLLS_PER_YIELD_OVERSUBSCRIBED: u32 = 16;
/// How many times nothing is found before the other ranks are checked.
const POLLS_PER_CHECK: u32 = 1 << 10;
/// How long a rank waits in an operation before it has what it called compared with what others did.
const COMPARE_AFTER: Duration = Duration::from_secs(1);
/// The most ranks of a job that libfabric's `shm` opens an address vector for.
const MAX_SHM_RANKS: usize = 256;
/// The request of an operation that was complete when it was posted.
const COMPLETE: Request = Request(u32::MAX);

/// How a peer is reached.
#[derive(Clone, Copy)]
struct Route {
    endpoint: usize,
    address: fi_addr_t,
}

/// Tagged messages to all ranks of a world, each over the endpoint that suits where it runs.
pub(crate) struct Network {
    endpoints: Vec<TaggedEndpoint>,
    /// Where those in shared memory go in the end.
    deferred_close: Arc<DeferredClose>,
    routes: Vec<Route>,
    hosts: Hosts,
    /// Whether `shm` lets the ranks of this host read each other's memory.
    uses_cma: bool,
    world: world::Handle,
    rank: usize,
    polls_per_yield: u32,
    oversubscribed: bool,
    idle: u32,
    calls: CallLog,
    /// Since when nothing has been found.
    idle_since: Instant,
    /// Whether the last calls have been compared.
    compared: bool,
    /// Whether a peer may have gone in the middle of a message.
    peer_lost: bool,
}

/// Which providers a job uses, in the library's naming.
struct ProviderChoice {
    intra_host: String,
    inter_host: String,
    /// By rank, what ranks have alike that share memory.
    hosts: Vec<String>,
    /// Whether all ranks have the same network interfaces, loopback too.
    one_network: bool,
}

impl ProviderChoice {
    /// All ranks take part and come to the same plan, or all fail.
    fn agree(
        library: &Fabric,
        world: &world::Handle,
        wanted: Option<&str>,
        host: Option<&str>,
    ) -> Result<Self, Error> {
        let identity = shm::host_identity(host);
        let network = network_identity();
        let (hosts, networks): (Vec<String>, Vec<String>) = world
            .all_gather(format!("{identity}\n{network}").as_bytes())?
            .into_iter()
            .map(|both| {
                let both = String::from_utf8_lossy(&both);
                let (host, network) = both.split_once('\n').unwrap_or((&both, ""));
                (host.to_owned(), network.to_owned())
            })
            .unzip();
        let one_network = networks.iter().all(|other| *other == network);
        let one_host = hosts.iter().all(|host| *host == identity);
        if let Some(wanted) = wanted {
            let name = provider::name_in(library, wanted);
            if let Some(problem) = shm_problem(hosts.len(), one_host).filter(|_| name == "shm") {
                return Err(Error::Provider { provider: name, problem });
            }
            return Ok(Self { intra_host: name.clone(), inter_host: name, hosts, one_network });
        }
        let tcp = provider::name_in(library, "tcp");
        let inter_host = if one_host {
            tcp
        } else {
            let efa = provider::providers()
                .is_ok_and(|providers| providers.iter().any(|provider| provider.name == "efa"));
            let everywhere = world.all_gather(&[u8::from(efa)])?.iter().all(|efa| efa == &[1]);
            if everywhere { "efa".to_owned() } else { tcp }
        };
        let intra_host = if world.size() > MAX_SHM_RANKS { inter_host.clone() } else { "shm".to_owned() };
        Ok(Self { intra_host, inter_host, hosts, one_network })
    }

    fn provider_of(&self, rank: usize, peer: usize) -> &str {
        if self.hosts[rank] == self.hosts[peer] { &self.intra_host } else { &self.inter_host }
    }
}

/// Why ranks of another network do not reach this address, if it is one of loopback.
fn loopback_problem(address: &str) -> Option<String> {
    let loopback = ["fi_sockaddr_in://127.", "fi_sockaddr_in6://[::1]"];
    loopback.iter().any(|prefix| address.starts_with(prefix)).then(|| {
        format!(
            "this rank's address is {address}, which ranks on other hosts do not reach: no network interface but \
             loopback is up or chosen; bring one up (ip link), or choose one that all hosts reach (FI_TCP_IFACE=<name>)"
        )
    })
}

/// Names the network interfaces that this thread's sockets use: equal for two ranks whose loopback is the same.
fn network_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

/// Why `shm` cannot be the only provider of a job, if so.
fn shm_problem(ranks: usize, one_host: bool) -> Option<String> {
    let problem = if !one_host {
        "reaches only processes that share /dev/shm and the user, and the ranks of this job do not all"
            .to_owned()
    } else if ranks > MAX_SHM_RANKS {
        format!("serves at most {MAX_SHM_RANKS} ranks, and this job has {ranks}")
    } else {
        return None;
    };
    Some(format!("{problem}; leave the choice open, or choose tcp"))
}

impl Network {
    /// Connects all ranks of `world`, which all call this with the same `wanted`: one provider for everything, or
    /// none for shared memory inside a host and the best network between hosts. Ranks with other names in `host` are
    /// taken to be on other hosts.
    pub(crate) fn open(
        world: &world::Handle,
        wanted: Option<&str>,
        host: Option<&str>,
    ) -> Result<Self, Error> {
        // A rank that fails tells the others, so every step is taken by all of them.
        let library = Fabric::load().map_err(Error::from);
        share_failure(world, library.as_ref().err())?;
        let library = library?;
        let plan = ProviderChoice::agree(library, world, wanted, host)?;
        let (rank, size) = (world.rank(), world.size());

        let mut needed: Vec<&str> = (0..size).map(|peer| plan.provider_of(rank, peer)).collect();
        // Shared memory is polled first: it answers sooner.
        needed.sort_by_key(|&name| name != "shm");
        needed.dedup();
        // A rank alone on its host has nobody to share memory with.
        let local_ranks = plan.hosts.iter().filter(|&host| *host == plan.hosts[rank]).count();
        if local_ranks == 1 && size > 1 {
            needed.retain(|&name| name != "shm");
        }
        let reach = if plan.hosts.iter().all(|host| *host == plan.hosts[rank]) {
            Reach::Host
        } else {
            Reach::Network
        };
        // No other job's word is like that of this one's first rank.
        let probe = RandomState::new().hash_one(std::process::id()).to_le_bytes();
        let group = world.all_gather(&probe)?.into_iter().next().unwrap_or_default();
        let endpoints: Result<Vec<TaggedEndpoint>, Error> = needed
            .iter()
            .map(|&name| {
                let problem = |problem| Error::Provider { provider: name.to_owned(), problem };
                let shared = name == "shm";
                if let Some(shortage) = shm::shortage_before_open(local_ranks).filter(|_| shared) {
                    return Err(problem(shortage));
                }
                let endpoint = TaggedEndpoint::open(library, name, reach, world.local_rank(), rank, size)?;
                let unfit = if shared {
                    shm::shortage_after_open(local_ranks, endpoint.address())
                } else {
                    loopback_problem(&endpoint.address_text()).filter(|_| !plan.one_network)
                };
                unfit.map_or(Ok(endpoint), |unfit| Err(problem(unfit)))
            })
            .collect();
        share_failure(world, endpoints.as_ref().err())?;
        // From here on other ranks of this process may use the endpoints' memory, which this takes care of when it is dropped.
        let mut network = Self {
            endpoints: endpoints?,
            deferred_close: DeferredClose::of_job(&group),
            routes: Vec::new(),
            hosts: Hosts::new(&plan.hosts),
            uses_cma: false,
            world: world.clone(),
            rank,
            polls_per_yield: POLLS_PER_YIELD,
            oversubscribed: false,
            idle: 0,
            calls: CallLog::new(0, size),
            idle_since: Instant::now(),
            compared: false,
            peer_lost: false,
        };
        let endpoints = &mut network.endpoints;

        let mut routes = vec![None; size];
        let mut names = vec![&plan.intra_host, &plan.inter_host];
        names.dedup();
        for name in names {
            let own = endpoints.iter().position(|endpoint| endpoint.provider() == name);
            let address = own.map_or(&[][..], |own| endpoints[own].address());
            let addresses = world.all_gather(address)?;
            let inserted = own.map_or(Ok(()), |own| {
                for (peer, address) in addresses.iter().enumerate() {
                    if plan.provider_of(rank, peer) == name && !address.is_empty() {
                        let address = endpoints[own].insert(peer, address)?;
                        routes[peer] = Some(Route { endpoint: own, address });
                    }
                }
                Ok(())
            });
            share_failure(world, inserted.as_ref().err())?;
            inserted?;
        }
        for (peer, route) in routes.iter().enumerate() {
            if let Some(Route { endpoint, address }) = *route
                && peer != rank
            {
                endpoints[endpoint].announce(address);
            }
        }
        // What `shm` finds out for itself, in the same way, decides what it does; all ranks of a host must know it.
        let probe = CmaProbe::new();
        let probes = world.all_gather(&probe.to_message())?;
        let shares = network.endpoints.iter().any(|endpoint| endpoint.provider() == "shm");
        let can_read =
            |peer: usize| plan.hosts[peer] != plan.hosts[rank] || cma_probe::can_read(&probes[peer]);
        network.uses_cma =
            shares && shm::shm_protocol() == ShmProtocol::CrossMemoryAttach && (0..size).all(can_read);
        let name = RandomState::new().hash_one(std::process::id());
        let mut message = name.to_le_bytes().to_vec();
        message.push(u8::from(shares && !network.uses_cma));
        message.extend(thread_affinity());
        let all = world.all_gather(&message)?;
        // Every rank has tried.
        drop(probe);
        let copies = |host: &[usize]| host.iter().any(|&peer| all[peer].get(size_of::<u64>()) == Some(&1));
        let hosts = || (0..network.hosts.count()).map(|host| network.hosts.ranks_of(host));
        // Two ranks alone need it not: what one waits for, the other has sent before anything that is not asked for.
        let rendezvous = hosts().any(|host| host.len() > 2 && copies(host));
        network.uses_cma &= !copies(network.hosts.ranks_of(network.hosts.place(rank).0));
        if rendezvous {
            network.enable_rendezvous();
        }
        let name = all.first().and_then(|message| message.first_chunk()).copied().map(u64::from_le_bytes);
        network.calls = CallLog::new(name.unwrap_or_default(), size);
        // All ranks have announced themselves: what one reads now has every other's announcement.
        let read: Result<(), Error> =
            network.endpoints.iter_mut().try_for_each(|endpoint| endpoint.progress().map(drop));
        share_failure(world, read.as_ref().err())?;
        read?;
        // A rank alone on its host has no way to itself, and needs none.
        let nowhere = Route { endpoint: 0, address: fabric_sys::FI_ADDR_NOTAVAIL };
        network.routes = routes.into_iter().map(|route| route.unwrap_or(nowhere)).collect();

        // Not the launcher's word for it, which may take ranks of one host for those of several.
        let here = all.iter().zip(&plan.hosts).filter(|(_, host)| **host == plan.hosts[rank]);
        let masks = here.filter_map(|(message, _)| message.get(size_of::<u64>() + 1..));
        network.oversubscribed = local_ranks > available_processors(masks);
        if network.oversubscribed {
            network.polls_per_yield = POLLS_PER_YIELD_OVERSUBSCRIBED;
        }
        Ok(network)
    }

    /// Whether this host has more ranks than processors for them.
    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.oversubscribed
    }

    /// Long messages in shared memory wait for their receivers from now on. All ranks must do this or none.
    fn enable_rendezvous(&mut self) {
        for endpoint in self.endpoints.iter_mut().filter(|endpoint| endpoint.provider() == "shm") {
            endpoint.enable_rendezvous();
        }
    }

    /// What this rank uses.
    pub(crate) fn summary(&self) -> TransportSummary {
        let mut summary = TransportSummary { host: world::host().name, ..TransportSummary::default() };
        for endpoint in &self.endpoints {
            match (endpoint.provider(), self.uses_cma) {
                ("shm", false) => "shm (copies)".clone_into(&mut summary.intra_host),
                ("shm", true) => "shm (cross-memory attach)".clone_into(&mut summary.intra_host),
                (provider, _) => {
                    summary.inter_host = format!("{provider} on {}", endpoint.domain());
                    summary.address = endpoint.address_text();
                }
            }
        }
        summary
    }

    /// The first rank of each host.
    pub(crate) fn first_ranks(&self) -> Vec<usize> {
        let first = |host| self.hosts.ranks_of(host).first().copied();
        (0..self.hosts.count()).filter_map(first).collect()
    }

    /// Whether all messages go through memory that all ranks of the job share: the same answer on all ranks.
    pub(crate) fn is_shared_memory(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.provider() == "shm")
    }

    fn route(&self, peer: usize) -> Route {
        self.routes[peer]
    }

    /// An error of the network is most often another rank's end, which the world can name.
    #[cold]
    fn explain(&mut self, error: Error) -> Error {
        match error {
            Error::Call(_) => {
                self.peer_lost = true;
                world::cause(&*self.world).map_or(error, Error::from)
            }
            other => other,
        }
    }

    /// Whether the other ranks are there, and call the same.
    #[cold]
    fn check(&mut self) -> Result<(), Error> {
        if self.idle == POLLS_PER_CHECK {
            self.idle_since = Instant::now();
        } else if !self.compared && self.idle_since.elapsed() >= COMPARE_AFTER {
            self.compare();
        }
        let checked = self.world.check();
        // Whatever it is, others close, perhaps in the middle of a message.
        self.peer_lost |= checked.is_err();
        Ok(checked?)
    }
}

/// The processors that this thread may run on, a bit for each; nothing where that cannot be had.
fn thread_affinity() -> Vec<u8> {
    // SAFETY: the set is numbers, for which zero is a value; the call fills it.
    let set = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of_val(&set), &raw mut set) == 0).then_some(set)
    };
    let Some(set) = set else { return Vec::new() };
    // SAFETY: the numbers of a byte's processors are within the set.
    let is_set = |cpu| unsafe { libc::CPU_ISSET(cpu, &set) };
    let byte = |first| (0..8).fold(0, |byte, bit| byte | u8::from(is_set(first + bit)) << bit);
    (0..size_of_val(&set)).map(|index| byte(8 * index)).collect()
}

/// How many processors there are in a mask, or in several together.
fn count_processors<'a>(masks: impl Iterator<Item = &'a [u8]>) -> usize {
    let mut all: Vec<u8> = Vec::new();
    for mask in masks {
        all.resize(mask.len().max(all.len()), 0);
        all.iter_mut().zip(mask).for_each(|(all, byte)| *all |= byte);
    }
    all.iter().map(|byte| byte.count_ones() as usize).sum()
}

/// How many processors the ranks of a host have together, each of which may be bound to its own, with the masks of all.
fn available_processors<'a>(masks: impl Iterator<Item = &'a [u8]>) -> usize {
    let available = std::thread::available_parallelism().map_or(1, usize::from);
    match count_processors(masks) {
        0 => available,
        // A container may have less time than it has processors.
        processors if available < count_processors([thread_affinity()].iter().map(Vec::as_slice)) => {
            processors.min(available)
        }
        processors => processors,
    }
}

/// Lets every rank know whether one of them has failed; that one's own error is for it to report.
fn share_failure(world: &world::Handle, error: Option<&Error>) -> Result<(), Error> {
    let text = error.map(ToString::to_string).unwrap_or_default();
    let all = world.all_gather(text.as_bytes())?;
    if error.is_some() {
        return Ok(());
    }
    match all.iter().enumerate().find(|(_, text)| !text.is_empty()) {
        None => Ok(()),
        Some((rank, text)) => Err(Error::Peer { rank, problem: String::from_utf8_lossy(text).into_owned() }),
    }
}

fn request(endpoint: usize, index: u32) -> Request {
    Request(index << 1 | endpoint as u32)
}

impl Transport for Network {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.routes.len()
    }

    fn hosts(&self) -> Hosts {
        self.hosts.clone()
    }

    unsafe fn post_receive(
        &mut self,
        peer: usize,
        tag: u64,
        data: *mut u8,
        len: usize,
    ) -> Result<Request, Error> {
        let Route { endpoint, address } = self.route(peer);
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.endpoints[endpoint].post_receive(peer, address, tag, data, len) };
        posted.map(|index| request(endpoint, index)).map_err(|error| self.explain(error))
    }

    unsafe fn post_send(
        &mut self,
        peer: usize,
        tag: u64,
        data: *const u8,
        len: usize,
    ) -> Result<Request, Error> {
        let Route { endpoint, address } = self.route(peer);
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.endpoints[endpoint].post_send(peer, address, tag, data, len) };
        posted
            .map(|index| index.map_or(COMPLETE, |index| request(endpoint, index)))
            .map_err(|error| self.explain(error))
    }

    fn record(&mut self, entry: CallRecord) {
        self.calls.record(entry);
        self.compared = false;
    }

    #[cold]
    fn compare(&mut self) {
        self.compared = true;
        self.world.compare(self.rank, self.calls.topic(), &self.calls.called());
    }

    fn fail(&self, reason: &str) {
        self.world.fail(reason);
    }

    fn progress(&mut self) -> Result<(), Error> {
        let mut moved = false;
        for index in 0..self.endpoints.len() {
            match self.endpoints[index].progress() {
                Ok(any) => moved |= any,
                Err(error) => return Err(self.explain(error)),
            }
        }
        if moved {
            self.idle = 0;
            return Ok(());
        }
        self.idle = self.idle.wrapping_add(1);
        if self.idle.is_multiple_of(self.polls_per_yield) {
            std::thread::yield_now();
        }
        if self.idle.is_multiple_of(POLLS_PER_CHECK) {
            self.check()?;
        }
        Ok(())
    }

    fn is_done(&mut self, request: Request) -> bool {
        request == COMPLETE || self.endpoints[(request.0 & 1) as usize].is_done(request.0 >> 1)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.world.fail("it panicked");
        }
        // A rank may have gone in the middle of a message that nobody has waited for.
        self.peer_lost |= self.world.check().is_err();
        for endpoint in self.endpoints.drain(..) {
            if endpoint.provider() == "shm" {
                self.deferred_close.add(endpoint);
            } else if self.peer_lost && endpoint.must_stay_open() {
                // Nobody asks it for progress any more, so it never touches a buffer again.
                std::mem::forget(endpoint);
            }
        }
    }
}

#[cfg(test)]
mod tests;
