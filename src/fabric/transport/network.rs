//! The transport of a job: shared memory between the ranks of a host, a network between hosts.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};

use fabric_sys::{Fabric, fi_addr_t};

use super::affinity;
use super::deferred_close::{DeferredClose, Stage};
use super::endpoint::{Reach, TaggedEndpoint};
use super::provider_choice::ProviderChoice;
use super::rest::Rest;
use super::summary::TransportSummary;
use super::{MessageRequest, Transport};
use crate::fabric::calls::{CallLog, CallRecord};
use crate::fabric::error::Error;
use crate::fabric::hosts::Hosts;
use crate::fabric::libfabric::provider;
use crate::fabric::shared_memory::cma_probe::{self, CmaProbe};
use crate::fabric::shared_memory::shm;
use crate::fabric::spin::Next;
use crate::world::{self, Awaited, COMPARE_AFTER, Reason, Wait};

/// Polls without a completion between two checks of the other ranks.
const POLLS_PER_CHECK: u32 = 1 << 10;
/// The request of a send already complete when posted.
const COMPLETE: MessageRequest = MessageRequest(u32::MAX);

/// Endpoint and address to reach a peer.
#[derive(Clone, Copy)]
struct Route {
    endpoint: usize,
    address: fi_addr_t,
}

/// Tagged messages to all ranks of a world, over an endpoint for this host and one for other hosts.
pub(crate) struct Network {
    endpoints: Vec<TaggedEndpoint>,
    /// Takes the endpoints in shared memory when this is dropped.
    deferred_close: Arc<DeferredClose>,
    /// The requested provider.
    wanted: Option<String>,
    routes: Vec<Route>,
    hosts: Hosts,
    /// True when `shm` reads the memory of the other ranks (cross-memory attach).
    uses_cma: bool,
    world: world::Handle,
    rank: usize,
    oversubscribed: bool,
    idle: u32,
    rest: Rest,
    calls: CallLog,
    wait: WaitState,
    /// Time of the operation's first check.
    waiting_since: Instant,
    /// Longest wait of an operation.
    timeout: Option<Duration>,
    /// True when a peer may have ended in the middle of a message.
    peer_lost: bool,
}

impl Network {
    /// Connects all ranks of `world`. Collective, with the same `wanted` on all of them: one provider for
    /// everything, or none for shared memory inside a host and the best network between hosts. Ranks with a
    /// different `host` count as ranks of different hosts.
    pub(crate) fn connect_ranks(
        world: &world::Handle,
        wanted: Option<&str>,
        host: Option<&str>,
    ) -> Result<Self, Error> {
        // Every rank takes every step; a failed rank informs the others, and they fail as well.
        let library = on_all_ranks(world, Fabric::load().map_err(Error::from))?;
        let choice = ProviderChoice::agree_on_choice(library, world, wanted, host)?;
        // Unique among the first ranks of all jobs.
        let number = RandomState::new().hash_one(std::process::id()).to_le_bytes();
        let job = world.all_gather(&number)?.into_iter().next().unwrap_or_default();
        let endpoints = on_all_ranks(world, open_endpoints(library, world, &choice))?;
        // From here on other ranks of this process may use the endpoints' memory; dropping the network defers
        // their closing.
        let mut network = Self {
            endpoints,
            deferred_close: DeferredClose::of_job(&job),
            wanted: wanted.map(str::to_owned),
            routes: Vec::new(),
            hosts: Hosts::new(&choice.hosts),
            uses_cma: false,
            world: world.clone(),
            rank: world.rank(),
            oversubscribed: false,
            idle: 0,
            rest: Rest::new(false),
            calls: CallLog::new(0, world.size()),
            wait: WaitState::New,
            waiting_since: Instant::now(),
            timeout: None,
            peer_lost: false,
        };
        network.register_stage(Stage::Opened);
        let (routes, in_memory) = network.exchange_addresses(&choice)?;
        network.agree_on_protocol(&choice)?;
        network.read_announcements(&in_memory)?;
        network.remove_names(&in_memory)?;
        network.routes = routes;
        Ok(network)
    }

    /// Agrees with the other ranks on the copy protocol of `shm`, on the rendezvous of long messages, and on
    /// a topic for comparing calls; compares the host's ranks with its processors.
    fn agree_on_protocol(&mut self, choice: &ProviderChoice) -> Result<(), Error> {
        let (rank, hosts) = (self.rank, &choice.hosts);
        // `shm` probes in the same way when it sends; here all ranks of a host must learn the result. With
        // the variable both sides copy (two copies, on two processors at once), without it the receiver reads
        // the sender's memory.
        let probe = CmaProbe::new();
        let probes = self.world.all_gather(&probe.to_message())?;
        let uses_shm = self.endpoints.iter().any(|endpoint| endpoint.provider == "shm");
        let can_read = |peer: usize| hosts[peer] != hosts[rank] || cma_probe::can_read(&probes[peer]);
        self.uses_cma =
            uses_shm && !provider::read_switches().forbids_cma && (0..self.world.size()).all(can_read);
        let topic = RandomState::new().hash_one(std::process::id());
        let mut message = topic.to_le_bytes().to_vec();
        message.push(u8::from(uses_shm && !self.uses_cma));
        message.extend(affinity::thread_affinity());
        let all = self.world.all_gather(&message)?;
        // Every rank has read it.
        drop(probe);
        let copies = |host: &[usize]| host.iter().any(|&peer| all[peer].get(size_of::<u64>()) == Some(&1));
        self.uses_cma &= !copies(self.hosts.ranks_of(self.hosts.host_and_index(rank).0));
        // Two ranks need none: a rank only waits for its peer's messages before any unexpected one.
        let mut ranks_of_hosts = (0..self.hosts.host_count()).map(|host| self.hosts.ranks_of(host));
        if ranks_of_hosts.any(|host| host.len() > 2 && copies(host)) {
            self.enable_rendezvous();
        }
        let topic = all.first().and_then(|message| message.first_chunk()).copied().map(u64::from_le_bytes);
        self.calls = CallLog::new(topic.unwrap_or_default(), self.world.size());

        // Not the launcher's number of local ranks: it may take one host for several.
        let local = all.iter().zip(hosts).filter(|(_, host)| **host == hosts[rank]);
        let masks = local.clone().filter_map(|(message, _)| message.get(size_of::<u64>() + 1..));
        self.oversubscribed = local.count() > affinity::available_processors(masks);
        if self.oversubscribed {
            self.rest = Rest::new(true);
        }
        Ok(())
    }

    /// True when this host has more ranks than processors for them.
    pub(crate) fn is_oversubscribed(&self) -> bool {
        self.oversubscribed
    }

    /// Has long messages in shared memory wait for their receivers. On all ranks or none.
    fn enable_rendezvous(&mut self) {
        for endpoint in &mut self.endpoints {
            endpoint.rendezvous |= endpoint.provider == "shm";
        }
    }

    /// Providers, interface and address of this rank.
    pub(crate) fn transport_summary(&self) -> TransportSummary {
        let mut summary = TransportSummary { host: world::host().name, ..TransportSummary::default() };
        for endpoint in &self.endpoints {
            match (endpoint.provider.as_str(), self.uses_cma) {
                ("shm", false) => "shm (copies)".clone_into(&mut summary.intra_host),
                ("shm", true) => "shm (cross-memory attach)".clone_into(&mut summary.intra_host),
                (provider, _) => {
                    let provider = provider::name_as_asked(self.wanted.as_deref(), provider);
                    summary.inter_host = format!("{provider} on {}", endpoint.domain);
                    summary.address = endpoint.address_text();
                }
            }
        }
        summary
    }

    pub(crate) fn first_ranks(&self) -> Vec<usize> {
        let first = |host| self.hosts.ranks_of(host).first().copied();
        (0..self.hosts.host_count()).filter_map(first).collect()
    }

    /// True when all messages go through shared memory: the same on all ranks.
    pub(crate) fn is_shared_memory(&self) -> bool {
        self.endpoints.iter().all(|endpoint| endpoint.provider == "shm")
    }

    /// Replaces an error of a libfabric call by its cause if the world knows it, most often another rank's
    /// end.
    #[cold]
    fn explain_error(&mut self, error: Error) -> Error {
        match error {
            Error::Call(_) => {
                self.peer_lost = true;
                world::cause(&*self.world).map_or(error, Error::from)
            }
            other => other,
        }
    }

    /// Checks that the other ranks are alive.
    fn check_world(&mut self) -> Result<(), Error> {
        let checked = self.world.check();
        // After any error others close, perhaps in the middle of a message.
        self.peer_lost |= checked.is_err();
        Ok(checked?)
    }
}

/// The wait of an operation for other ranks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd)]
enum WaitState {
    /// It has not been checked.
    New,
    /// It has been checked, and the time is measured.
    Waiting,
    /// This rank's last calls have also been compared with the other ranks' calls.
    Compared,
    /// They have been compared again, since another rank has waited for too long and asks for them.
    Reported,
}

fn open_endpoints(
    library: &'static Fabric,
    world: &world::Handle,
    choice: &ProviderChoice,
) -> Result<Vec<TaggedEndpoint>, Error> {
    let (rank, size, hosts) = (world.rank(), world.size(), &choice.hosts);
    let mut needed: Vec<&str> = (0..size).map(|peer| choice.provider_of(rank, peer)).collect();
    // Shared memory is polled first, as it has the lower latency.
    needed.sort_by_key(|&name| name != "shm");
    needed.dedup();
    let local_ranks = hosts.iter().filter(|&host| *host == hosts[rank]).count();
    // A rank alone on its host needs no shared memory.
    if local_ranks == 1 && size > 1 {
        needed.retain(|&name| name != "shm");
    }
    let reach = if local_ranks == size { Reach::Host } else { Reach::Network };
    let open = |&name: &&str| {
        let problem = |problem| Error::Provider { provider: name.to_owned(), problem };
        let is_shm = name == "shm";
        if let Some(shortage) = shm::shortage_before_open(local_ranks).filter(|_| is_shm) {
            return Err(problem(shortage));
        }
        let endpoint = TaggedEndpoint::open_for_rank(library, name, reach, world.local_rank(), rank, size)?;
        let unfit = if is_shm {
            shm::shortage_after_open(local_ranks, &endpoint.address)
        } else {
            loopback_problem(&endpoint.address_text()).filter(|_| !choice.one_network)
        };
        unfit.map_or(Ok(endpoint), |unfit| Err(problem(unfit)))
    };
    needed.iter().map(open).collect()
}

/// Returns the problem with an address that only this host reaches.
fn loopback_problem(address: &str) -> Option<String> {
    let loopback = ["fi_sockaddr_in://127.", "fi_sockaddr_in6://[::1]"];
    loopback.iter().any(|prefix| address.starts_with(prefix)).then(|| {
        format!(
            "ranks on other hosts cannot reach this rank's address {address}: only the loopback interface \
             is up or chosen; bring another interface up (ip link), or choose an interface that all hosts \
             reach (FI_TCP_IFACE=<name>)"
        )
    })
}

/// Fails on all ranks when one of them has failed; the failed rank reports its own error.
fn on_all_ranks<T>(world: &world::Handle, own: Result<T, Error>) -> Result<T, Error> {
    let text = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let all = world.all_gather(text.as_bytes())?;
    let own = own?;
    match all.iter().enumerate().find(|(_, text)| !text.is_empty()) {
        None => Ok(own),
        Some((rank, text)) => Err(Error::Peer { rank, problem: String::from_utf8_lossy(text).into_owned() }),
    }
}

fn new_request(endpoint: usize, index: u32) -> MessageRequest {
    MessageRequest(index << 1 | endpoint as u32)
}

impl Transport for Network {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.routes.len()
    }

    fn rank_hosts(&self) -> Hosts {
        self.hosts.clone()
    }

    unsafe fn post_receive(
        &mut self,
        peer: usize,
        tag: u64,
        data: *mut u8,
        len: usize,
    ) -> Result<MessageRequest, Error> {
        let Route { endpoint, address } = self.routes[peer];
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.endpoints[endpoint].post_receive(peer, address, tag, data, len) };
        posted.map(|index| new_request(endpoint, index)).map_err(|error| self.explain_error(error))
    }

    unsafe fn post_send(
        &mut self,
        peer: usize,
        tag: u64,
        data: *const u8,
        len: usize,
    ) -> Result<MessageRequest, Error> {
        let Route { endpoint, address } = self.routes[peer];
        // SAFETY: passed on to the caller.
        let posted = unsafe { self.endpoints[endpoint].post_send(peer, address, tag, data, len) };
        posted
            .map(|index| index.map_or(COMPLETE, |index| new_request(endpoint, index)))
            .map_err(|error| self.explain_error(error))
    }

    fn record_call(&mut self, entry: CallRecord) {
        self.calls.record_call(entry);
        self.wait = WaitState::New;
        // Operations in the shared segment move nothing here: each begins to wait anew.
        self.idle = 0;
    }

    #[cold]
    fn compare_calls(&mut self) {
        self.wait = WaitState::Compared;
        self.world.compare(self.rank, self.calls.log_topic(), &self.calls.recorded_calls());
    }

    fn report_failure(&self, reason: Reason) {
        self.world.fail(reason);
    }

    fn time_out(&mut self, operation: &str, limit: Duration, awaited: Vec<Awaited>) -> Error {
        self.compare_calls();
        let (rank, topic, operation) = (self.rank, self.calls.log_topic(), operation.to_owned());
        let wait = Wait { rank, topic, operation, limit, awaited };
        world::time_out(&*self.world, wait).map_or_else(Error::World, Error::from)
    }

    fn set_timeout(&mut self, limit: Option<Duration>) {
        self.timeout = limit;
    }

    #[cold]
    fn check_ranks(&mut self) -> Result<(), Error> {
        if self.wait == WaitState::New {
            self.wait = WaitState::Waiting;
            self.waiting_since = Instant::now();
            return self.check_world();
        }
        let waited = self.waiting_since.elapsed();
        let due = if self.world.wants_calls() {
            WaitState::Reported
        } else if waited >= COMPARE_AFTER {
            WaitState::Compared
        } else {
            WaitState::Waiting
        };
        if self.wait < due {
            self.compare_calls();
            self.wait = due;
        }
        // Another rank's failure explains more than the timeout does.
        self.check_world()?;
        match self.timeout.filter(|&limit| waited >= limit) {
            Some(limit) => {
                // Others may be in the middle of a message to this rank.
                self.peer_lost = true;
                Err(Error::TimedOut { operation: "waiting".to_owned(), limit, late: Vec::new() })
            }
            None => Ok(()),
        }
    }

    fn make_progress(&mut self) -> Result<(), Error> {
        let mut moved = false;
        for index in 0..self.endpoints.len() {
            match self.endpoints[index].make_progress() {
                Ok(any) => moved |= any,
                Err(error) => return Err(self.explain_error(error)),
            }
        }
        if moved {
            self.idle = 0;
            return Ok(());
        }
        self.idle = self.idle.wrapping_add(1);
        if self.idle.is_multiple_of(POLLS_PER_CHECK) {
            self.check_ranks()?;
        }
        Ok(())
    }

    fn wait_for_completion(&mut self) -> Result<(), Error> {
        self.make_progress()?;
        match self.rest.next_step(self.idle) {
            Next::Poll => {}
            Next::Yield => std::thread::yield_now(),
            Next::Sleep => {
                self.check_ranks()?;
                self.rest.sleep_on(&self.endpoints);
            }
        }
        Ok(())
    }

    fn is_done(&mut self, request: MessageRequest) -> bool {
        request == COMPLETE || self.endpoints[(request.0 & 1) as usize].is_done(request.0 >> 1)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.world.fail("it panicked".into());
        }
        // A rank may have ended in the middle of an unexpected message.
        self.peer_lost |= self.world.check().is_err();
        for endpoint in self.endpoints.drain(..) {
            if endpoint.provider == "shm" {
                self.deferred_close.add_endpoint(endpoint);
            } else if self.peer_lost && endpoint.must_stay_open() {
                // Without progress it never touches a buffer again.
                std::mem::forget(endpoint);
            }
        }
    }
}

mod addresses;
#[cfg(test)]
mod tests;
