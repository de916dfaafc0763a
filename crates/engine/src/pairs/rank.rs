//! The endpoints and memory of a rank, and its part in the measurement of pairs.

use std::sync::Arc;

use collectives::fabric::rdm::{self, Endpoint, Region, RemoteRegion};
use collectives::fabric::{Error, Library};
use collectives::world;
use record::{Completion, Messages, Provenance, Rank, Settings};
use serde::{Deserialize, Serialize};

use super::into_stop;
use super::memory::{Gpu, RegisteredGpu};
use super::parallel::{EndpointBuffers, SideResult, measure_size};
use super::request::{PairMemory, PairRequest};
use super::results::{describe_settings, make_measurement};
use super::side::Side;
use crate::failure::AtFailure;
use crate::gather::gather_json;
use crate::groups::Groups;
use crate::request::Size;
use crate::supervision::{Signal, Stop};
use crate::sweep::{RankObserver, SweepEvent};
use diagnosis::host::available_memory;

/// A rank's endpoints and memory. The endpoints are dropped before the memory that is registered with them.
pub(crate) struct PairRank<'a> {
    request: &'a PairRequest,
    world: &'a world::Handle,
    endpoints: Vec<Endpoint>,
    /// GPU memory by endpoint; empty where data is in host memory.
    devices: Vec<RegisteredGpu>,
    buffers: Vec<EndpointBuffers>,
    /// Host memory that the other rank accesses, by endpoint; allocated for the first pair that needs it.
    regions: Vec<Region>,
    /// The endpoints of all ranks, by rank.
    opened: Vec<Opened>,
}

/// A rank's message to all others about its endpoints; empty from ranks of no pair.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Opened {
    addresses: Vec<Vec<u8>>,
    provider: String,
    /// Version and path of libfabric.
    library: (String, String),
    /// Longest injected message in bytes; `None` where nothing is injected.
    inject: Option<usize>,
    /// The provider promises to move GPU memory directly; `None` for host memory.
    direct: Option<bool>,
}

impl Opened {
    fn from_endpoints(endpoints: &[Endpoint], request: &PairRequest) -> Result<Self, Stop> {
        let Some(first) = endpoints.first() else { return Ok(Self::default()) };
        let library = Library::load()?;
        let on_host = request.memory == PairMemory::Host;
        let inject = endpoints.iter().map(Endpoint::longest_inject).min();
        Ok(Self {
            addresses: endpoints.iter().map(|each| each.address().to_vec()).collect(),
            provider: first.provider().to_owned(),
            library: (library.version().to_string(), library.path().display().to_string()),
            inject: inject.filter(|_| request.inject && on_host),
            direct: (!on_host).then(|| endpoints.iter().all(Endpoint::is_direct)),
        })
    }
}

/// Endpoints with their memory.
type Ends = (Vec<Endpoint>, Vec<RegisteredGpu>, Vec<EndpointBuffers>);

impl<'a> PairRank<'a> {
    /// Opens endpoints and memory, unless the rank is in no pair. Collective.
    ///
    /// # Errors
    /// When this fails on any rank: a refusal on all ranks, or as `at_failure` demands.
    pub(crate) fn open_rank(
        request: &'a PairRequest,
        world: &'a world::Handle,
        at_failure: AtFailure,
    ) -> Result<Self, Stop> {
        let is_measured = request.list_ranks().contains(&world.rank());
        let ends = if is_measured { open_ends(request, world) } else { Ok(Ends::default()) };
        let (endpoints, devices, buffers) = at_failure.exchange_stops(&**world, ends)?;
        let opened = gather_json(&**world, &Opened::from_endpoints(&endpoints, request)?)?;
        Ok(Self { request, world, endpoints, devices, buffers, regions: Vec::new(), opened })
    }

    /// The rank for the record.
    pub(crate) fn describe_rank(&self) -> Rank {
        let mut domains: Vec<String> = self.endpoints.iter().map(|each| each.domain().to_owned()).collect();
        domains.dedup();
        let gpu = self.devices.first().map(RegisteredGpu::describe_gpu);
        let (device, device_name) =
            gpu.map_or((None, "host memory".to_owned()), |(number, name)| (Some(number), name));
        let addresses = self.endpoints.iter().map(Endpoint::address_text).collect();
        Rank { device, device_name, domains, addresses, ..Rank::default() }
    }

    /// The library and the settings for the record, from the first rank that measures.
    pub(crate) fn describe_run(&self) -> (Provenance, Settings) {
        let opened = &self.opened[self.request.pairs[0][0]];
        let (library_version, library_path) = opened.library.clone();
        let provenance = Provenance {
            backend: "fabric".to_owned(),
            library_version,
            library_path,
            transport: Some(opened.provider.clone()),
            ..Provenance::default()
        };
        (provenance, describe_settings(self.request, opened.inject, opened.direct))
    }

    /// Measures all sizes between two ranks, or those until a signal, which it returns. Collective: all ranks
    /// report the measurements to their observers.
    pub(crate) fn measure_pair(
        &mut self,
        pair: [usize; 2],
        groups: &Groups,
        observer: &mut dyn RankObserver,
    ) -> Result<Option<Signal>, Stop> {
        let (request, world) = (self.request, self.world);
        let (mut sides, buffers) = self.open_sides(pair)?;
        let mut stopped = None;
        for bytes in request.list_sizes() {
            // Each transfer has the time limit of its endpoint.
            observer.begin_unlimited_step("the transfers of a pair");
            let own = (
                measure_size(&mut sides, buffers, bytes)?,
                observer.stop_signal().map(|signal| signal as i32),
            );
            let all: Vec<(SideResult, Option<i32>)> = gather_json(&**world, &own)?;
            let numbered = pair.map(|rank| (groups.measured_number(rank).unwrap_or(rank), &all[rank].0));
            observer.handle_event(SweepEvent::Measured(&make_measurement(request, bytes, numbered), None))?;
            let signals = all.iter().filter_map(|(_, signal)| Signal::try_from((*signal)?).ok());
            stopped = signals.max();
            if stopped.is_some() {
                break;
            }
        }
        sides.iter_mut().try_for_each(Side::complete_messages)?;
        Ok(stopped)
    }

    /// This rank's sides of a pair, one per endpoint, with their buffers; no sides on ranks outside the pair.
    /// Collective.
    fn open_sides(
        &mut self,
        [one, other]: [usize; 2],
    ) -> Result<(Vec<Side<'_>>, &mut [EndpointBuffers]), Stop> {
        let Self { request, world, endpoints, opened, devices, buffers, regions } = self;
        let rank = world.rank();
        let accessed = request.test.is_remote() && (rank == other || request.both_ways && rank == one);
        if accessed && devices.is_empty() && regions.is_empty() {
            let size = usize::try_from(request.max_bytes)?;
            let all = endpoints.iter_mut().map(|endpoint| endpoint.region(size));
            *regions = all.collect::<Result<_, _>>()?;
        }
        let on_host = regions.iter().filter(|_| accessed);
        let on_device = devices.iter().filter(|_| accessed).map(|device| device.memory.description());
        let own: Vec<u8> = on_host.map(Region::description).chain(on_device).flatten().collect();
        let all = world.all_gather(&own)?;
        if rank != one && rank != other {
            return Ok((Vec::new(), buffers));
        }
        let peer = if rank == one { other } else { one };
        let (remote, _) = all[peer].as_chunks::<{ RemoteRegion::BYTES }>();
        let inject = opened[rank].inject;
        let pairs = endpoints.iter_mut().zip(&opened[peer].addresses);
        let sides = pairs.enumerate().map(|(index, (endpoint, address))| {
            let peer = endpoint.insert(address)?;
            let remote = remote.get(index).map(|&bytes| {
                // SAFETY: the peer has gathered the descriptions of its regions, in the order of its
                // endpoints.
                let region = unsafe { RemoteRegion::from_bytes(bytes, peer) };
                (region, devices.get(index).map_or(0, RegisteredGpu::target_offset))
            });
            Ok(Side {
                peer,
                endpoint,
                first: rank == one,
                request,
                inject,
                remote,
                accessed,
                region: regions.get(index).filter(|_| accessed),
                device: devices.get(index).cloned(),
            })
        });
        Ok((sides.collect::<Result<_, Stop>>()?, buffers))
    }
}

/// Opens this rank's endpoints, and allocates its memory.
fn open_ends(request: &PairRequest, world: &world::Handle) -> Result<Ends, Stop> {
    check_memory(request, world)?;
    let size = usize::try_from(request.max_bytes)?;
    // Dropped after the endpoints that it is registered with.
    let gpus;
    let mut endpoints = open_endpoints(request, world).map_err(into_stop)?;
    gpus = allocate_gpu_memory(request, world, size)?;
    let devices = register_memory(&gpus, &mut endpoints)?;
    let on_host = if request.memory == PairMemory::Host { size } else { 0 };
    let buffers = (0..request.endpoints).map(|_| EndpointBuffers::new(on_host)).collect();
    Ok((endpoints, devices, buffers))
}

/// Refuses sizes that do not fit into the host's memory: the system would kill the process.
fn check_memory(request: &PairRequest, world: &world::Handle) -> Result<(), Stop> {
    let count = request.endpoints;
    let available = available_memory()? / world.local_size() as u64;
    let buffers = if request.memory == PairMemory::Host { 2 } else { 0 };
    let verifying = if request.check { 2 } else { 0 };
    let region = u64::from(request.test.is_remote() && request.memory == PairMemory::Host);
    let parts = (buffers + verifying + region) * count as u64;
    if request.max_bytes.saturating_mul(parts) <= available {
        return Ok(());
    }
    Err(Stop::Refused(format!(
        "size {} does not fit: the memory of {} has room for transfers of {} at most, {count} at a time",
        Size(request.max_bytes),
        world::host().name,
        Size(available / parts),
    )))
}

/// The options of an endpoint, without those that depend on the job.
pub(super) fn endpoint_options(request: &PairRequest) -> rdm::Options {
    let mut options = rdm::Options::new(&request.provider);
    options.untagged = request.messages == Messages::Plain;
    options.blocking = request.completion == Completion::Block;
    options.pause = request.pause;
    options.cuda = request.memory != PairMemory::Host;
    options.remote_memory = request.test.is_remote();
    options.timeout = Some(request.timeout);
    options
}

/// Opens this rank's endpoints, ordered by domain.
fn open_endpoints(request: &PairRequest, world: &world::Handle) -> Result<Vec<Endpoint>, Error> {
    let loopback = world.local_size() == world.size()
        && matches!(request.provider.as_str(), "tcp" | "net")
        && request.domains.is_empty();
    let mut options = endpoint_options(request);
    options.source = request.source.clone().or_else(|| loopback.then(|| "127.0.0.1".to_owned()));
    options.peers = world.size();
    options.world = Some(world.clone());
    let mut all = Vec::with_capacity(request.endpoints);
    let named = request.domains.len();
    for domain in 0..named.max(1) {
        options.domain = request.domains.get(domain).cloned();
        // The remainder goes to the first domains.
        let count = (request.endpoints - domain).div_ceil(named.max(1));
        if request.shared_domain {
            all.extend(Endpoint::open_sharing(&options, count)?);
        } else {
            for _ in 0..count {
                all.push(Endpoint::open(&options)?);
            }
        }
    }
    Ok(all)
}

/// Allocates GPU memory for each endpoint; none where data is in host memory.
fn allocate_gpu_memory(
    request: &PairRequest,
    world: &world::Handle,
    size: usize,
) -> Result<Vec<Arc<Gpu>>, Stop> {
    let PairMemory::Cuda(number) = request.memory else { return Ok(Vec::new()) };
    let gpus = Gpu::count_gpus(request.names)?;
    let number = number.unwrap_or_else(|| world.local_rank());
    if number >= gpus {
        let asked = request.names.with_value("memory", "cuda");
        return Err(Stop::Refused(format!(
            "{asked}: GPU {number} does not exist; there are {gpus}, counted from 0"
        )));
    }
    (0..request.endpoints).map(|_| Gpu::new(number, size).map(Arc::new)).collect()
}

/// Registers the memory with the endpoints.
fn register_memory(gpus: &[Arc<Gpu>], endpoints: &mut [Endpoint]) -> Result<Vec<RegisteredGpu>, Stop> {
    let registered = gpus.iter().zip(endpoints).map(|(gpu, endpoint)| {
        // SAFETY: `PairRank` and `open_ends` drop the endpoints before the memory.
        let memory = unsafe { gpu.register_endpoint(endpoint) }.map_err(into_stop)?;
        Ok(RegisteredGpu { gpu: Arc::clone(gpu), memory })
    });
    registered.collect()
}
