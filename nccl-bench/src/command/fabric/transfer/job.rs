//! The measurement of all pairs of ranks, as one rank takes part in it.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use collectives::fabric::rdm::{self, Endpoint, Region, RemoteRegion};
use collectives::fabric::{Error, Library};
use collectives::world;
use serde::{Deserialize, Serialize};

use super::measure::Side;
use super::memory::{Device, Gpu};
use super::options::{Test, TestOptions};
use super::parallel::{self, Buffers};
use super::rendezvous::RankInfo;
use super::report::{self, Pair, SCHEMA_VERSION, SizeResult, TransferDocument};
use super::{Completion, Inject, Memory, Messages, exchange};
use engine::gather::gather;
use engine::request::{Step, Sweep};
use engine::supervision::{Interrupt, Stop};
use record::provenance;

/// A rank's endpoints and memory. The endpoints are dropped before the memory that is registered with them.
pub(super) struct Job<'a> {
    options: TestOptions<'a>,
    /// Longest injected message in bytes; `None` where nothing is injected.
    inject: Option<usize>,
    world: &'a world::Handle,
    ranks: &'a [RankInfo],
    interrupt: &'a Interrupt,
    endpoints: Vec<Endpoint>,
    /// The endpoints of all ranks, by rank.
    opened: Vec<Opened>,
    /// GPU memory by endpoint; empty where data is in host memory.
    devices: Vec<Device>,
    buffers: Vec<Buffers>,
    /// Host memory that the other rank accesses, by endpoint; allocated for the first pair that needs it.
    regions: Vec<Region>,
}

/// A rank's message to all others about its endpoints.
#[derive(Serialize, Deserialize)]
struct Opened {
    addresses: Vec<Vec<u8>>,
    text: String,
    /// The names of the domains, each once.
    domains: Vec<String>,
}

impl<'a> Job<'a> {
    /// Opens endpoints and memory on all ranks. Collective.
    pub(super) fn open(
        options: TestOptions<'a>,
        world: &'a world::Handle,
        ranks: &'a [RankInfo],
        interrupt: &'a Interrupt,
    ) -> Result<Self, Stop> {
        let TestOptions { arguments, endpoints: count, .. } = options;
        let size = usize::try_from(arguments.max_bytes.0)?;
        // Dropped after the endpoints that it is registered with.
        let gpus;
        let mut endpoints = exchange::on_all_ranks(open(options, world, ranks).map_err(stop), world)?;
        let mut domains: Vec<String> = endpoints.iter().map(|each| each.domain().to_owned()).collect();
        domains.dedup();
        let own = Opened {
            addresses: endpoints.iter().map(|each| each.address().to_vec()).collect(),
            text: endpoints.iter().map(Endpoint::address_text).collect::<Vec<_>>().join(" "),
            domains,
        };
        let opened = gather(&**world, &own)?;
        gpus = exchange::on_all_ranks(gpu_memory(options, world, size), world)?;
        let devices = exchange::on_all_ranks(registered(&gpus, &mut endpoints), world)?;
        let longest_inject = endpoints.iter().map(Endpoint::longest_inject).min();
        let injecting = arguments.inject == Inject::Auto && arguments.memory == Memory::Host;
        let on_host = if arguments.memory == Memory::Host { size } else { 0 };
        Ok(Self {
            options,
            inject: longest_inject.filter(|_| injecting),
            world,
            ranks,
            interrupt,
            endpoints,
            opened,
            devices,
            buffers: (0..count).map(|_| Buffers::new(on_host)).collect(),
            regions: Vec::new(),
        })
    }

    /// The report of this job, without pairs.
    pub(super) fn document(&self, library: &Library) -> TransferDocument {
        let TestOptions { arguments, test, .. } = self.options;
        let on_host = arguments.memory == Memory::Host;
        TransferDocument {
            schema_version: SCHEMA_VERSION,
            program: format!("nccl-bench {}", crate::build::VERSION),
            command: std::env::args().collect(),
            started_at: provenance::now_utc(),
            test: test.name(),
            library: format!("libfabric {} from {}", library.version(), library.path().display()),
            provider: self.endpoints[0].provider().to_owned(),
            messages: (!test.is_remote()).then_some(self.options.messages),
            window: (test != Test::PingPong).then_some(self.options.window),
            both_ways: test == Test::PingPong || self.options.both_ways,
            pause_ns: self.options.pause.as_nanos() as u64,
            until: test.is_remote().then_some(self.options.until),
            inject: self.inject.filter(|_| test != Test::Read),
            memory: if on_host { "host" } else { "cuda" },
            direct: (!on_host).then(|| self.endpoints.iter().all(Endpoint::is_direct)),
            completion: arguments.completion,
            endpoints: self.endpoints.len(),
            shared_domain: arguments.shared_domain,
            pairs: Vec::new(),
        }
    }

    /// Measures all sizes between two ranks, or those until a signal; true when a signal ended it.
    /// Collective.
    pub(super) fn pair(
        &mut self,
        [one, other]: [usize; 2],
        table: &mut dyn Write,
    ) -> Result<(Pair, bool), Stop> {
        let Self { options: TestOptions { arguments, .. }, world, ranks, ref opened, .. } = *self;
        let count = self.endpoints.len();
        let mut pair = Pair {
            ranks: [one, other],
            hosts: [one, other].map(|rank| ranks[rank].host.clone()),
            addresses: [one, other].map(|rank| opened[rank].text.clone()),
            domains: [one, other].map(|rank| opened[rank].domains.clone()),
            rows: Vec::new(),
        };
        table.write_all(report::head(&pair).as_bytes())?;
        let rank = world.rank();
        let interrupt = self.interrupt;
        let (mut sides, buffers) = self.sides([one, other])?;
        let sweep = Sweep {
            min: arguments.min_bytes.0,
            max: arguments.max_bytes.0,
            step: Step::Factor(arguments.factor),
        };
        let mut stopped = false;
        for bytes in sweep.sizes() {
            let row = parallel::measure(&mut sides, buffers, bytes)?;
            // The row comes from the first rank of the pair, and any rank may have a signal.
            let own = (row.filter(|_| rank == one), interrupt.requested().is_some());
            let mut all: Vec<(Option<SizeResult>, bool)> = gather(&**world, &own)?;
            stopped = all.iter().any(|(_, stops)| *stops);
            if let Some(row) = all.swap_remove(one).0 {
                table.write_all(row.line(count).as_bytes())?;
                table.flush()?;
                pair.rows.push(row);
            }
            if stopped {
                break;
            }
        }
        sides.iter_mut().try_for_each(Side::end)?;
        Ok((pair, stopped))
    }

    /// This rank's sides of a pair, one per endpoint, with their buffers; no sides on ranks outside the pair.
    /// Collective.
    fn sides(&mut self, [one, other]: [usize; 2]) -> Result<(Vec<Side<'_>>, &mut [Buffers]), Stop> {
        let Self { options, inject, world, endpoints, opened, devices, buffers, regions, .. } = self;
        let TestOptions { arguments, test, both_ways, .. } = *options;
        let rank = world.rank();
        let accessed = test.is_remote() && (rank == other || both_ways && rank == one);
        if accessed && devices.is_empty() && regions.is_empty() {
            let size = usize::try_from(arguments.max_bytes.0)?;
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
        let pairs = endpoints.iter_mut().zip(&opened[peer].addresses);
        let sides = pairs.enumerate().map(|(index, (endpoint, address))| {
            let peer = endpoint.insert(address)?;
            let remote = remote.get(index).map(|&bytes| {
                // SAFETY: the peer has gathered the descriptions of its regions, in the order of its
                // endpoints.
                let region = unsafe { RemoteRegion::from_bytes(bytes, peer) };
                (region, devices.get(index).map_or(0, Device::target))
            });
            Ok(Side {
                peer,
                endpoint,
                first: rank == one,
                options: *options,
                inject: *inject,
                remote,
                accessed,
                region: regions.get(index).filter(|_| accessed),
                device: devices.get(index).cloned(),
            })
        });
        Ok((sides.collect::<Result<_, Stop>>()?, buffers))
    }
}

/// Checks that the provider offers such endpoints here, on all domains.
pub(super) fn check(options: TestOptions<'_>) -> Result<(), Error> {
    let mut rdm = rdm_options(options);
    rdm.source = options.arguments.source.clone();
    let domains = options.arguments.domains.iter().cloned().map(Some);
    let default = options.arguments.domains.is_empty().then_some(None);
    domains.chain(default).try_for_each(|domain| {
        rdm.domain = domain;
        rdm.check()
    })
}

/// The options of an endpoint, without those that depend on the job.
fn rdm_options(options: TestOptions<'_>) -> rdm::Options {
    let arguments = options.arguments;
    let mut rdm = rdm::Options::new(&arguments.provider);
    rdm.untagged = options.messages == Messages::Plain;
    rdm.blocking = arguments.completion == Completion::Block;
    rdm.pause = options.pause;
    rdm.cuda = arguments.memory != Memory::Host;
    rdm.remote_memory = options.test.is_remote();
    rdm.timeout = Some(Duration::from_secs(arguments.timeout));
    rdm
}

/// Opens this rank's endpoints, ordered by domain.
fn open(options: TestOptions<'_>, world: &world::Handle, ranks: &[RankInfo]) -> Result<Vec<Endpoint>, Error> {
    let TestOptions { arguments, endpoints, .. } = options;
    let one_host = ranks.iter().all(|rank| rank.host_id == ranks[0].host_id);
    let loopback =
        one_host && matches!(arguments.provider.as_str(), "tcp" | "net") && arguments.domains.is_empty();
    let mut rdm = rdm_options(options);
    rdm.source = arguments.source.clone().or_else(|| loopback.then(|| "127.0.0.1".to_owned()));
    rdm.peers = world.size();
    rdm.world = Some(world.clone());
    let mut all = Vec::with_capacity(endpoints);
    let named = arguments.domains.len();
    for domain in 0..named.max(1) {
        rdm.domain = arguments.domains.get(domain).cloned();
        // The remainder goes to the first domains.
        let count = (endpoints - domain).div_ceil(named.max(1));
        if arguments.shared_domain {
            all.extend(Endpoint::open_sharing(&rdm, count)?);
        } else {
            for _ in 0..count {
                all.push(Endpoint::open(&rdm)?);
            }
        }
    }
    Ok(all)
}

/// Maps a failed call to [`Stop::Failed`], and everything else, such as a missing provider, to
/// [`Stop::Refused`].
pub(super) fn stop(error: Error) -> Stop {
    match error {
        Error::Call(_) => Stop::Failed(error.into()),
        _ => Stop::Refused(error.to_string()),
    }
}

/// Allocates GPU memory for each endpoint; none where data is in host memory.
fn gpu_memory(options: TestOptions<'_>, world: &world::Handle, size: usize) -> Result<Vec<Arc<Gpu>>, Stop> {
    let Memory::Cuda(number) = options.arguments.memory else { return Ok(Vec::new()) };
    let gpus = Gpu::count()?;
    let number = number.unwrap_or_else(|| world.local_rank());
    if number >= gpus {
        return Err(Stop::Refused(format!("--memory cuda: there is no GPU {number}, but {gpus} from 0 on")));
    }
    (0..options.endpoints).map(|_| Gpu::new(number, size).map(Arc::new)).collect()
}

/// Registers the memory with the endpoints.
fn registered(gpus: &[Arc<Gpu>], endpoints: &mut [Endpoint]) -> Result<Vec<Device>, Stop> {
    let registered = gpus.iter().zip(endpoints).map(|(gpu, endpoint)| {
        // SAFETY: `Job` and `Job::open` drop the endpoints before the memory.
        let memory = unsafe { gpu.register(endpoint) }.map_err(stop)?;
        Ok(Device { gpu: Arc::clone(gpu), memory })
    });
    registered.collect()
}
