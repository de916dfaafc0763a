//! CUDA memory over NCCL: a GPU, a thread and a communicator per rank.

mod assignment;
mod memory;
mod notes;
mod on_stream;
mod operation;
mod rank;

use std::sync::Arc;
use std::thread;

use anyhow::Context as _;
use collectives::DataType;
use collectives::nccl::{self, Communicator, Library, UniqueId};
use collectives::world::World;
use cudarc::driver::sys::CUdevice_attribute as Attribute;
use cudarc::driver::{CudaContext, CudaStream, result};
use serde::{Deserialize, Serialize};

use super::{BufferSizes, Capabilities, MemoryUse, Node, RankBody, RankDevice};
use crate::agreement::Discovery;
use crate::collective::Collective;
use crate::data::{DeviceData, Op};
use crate::gather::gather_json;
use crate::groups::Groups;
use crate::request::{Names, Request};
use crate::supervision::{Stop, explain_missing_thread};
use assignment::{Address, GpuAssignment, MULTI_RANK, ProcessGpus, assign_gpus, ranks_on_gpus};
use memory::RankMemory;
use rank::GpuRank;
use record::{Provenance, Rank};

const DEFAULT_MAX_BYTES: u64 = 4 << 30;
/// Bytes left free on each GPU for NCCL's own buffers and kernels.
const RESERVE: u64 = 2 << 30;

/// The GPUs that a process can use.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Gpus {
    nccl_version: String,
    nccl_path: String,
    driver: i32,
    /// PCI addresses in the order of CUDA ordinals: they show whether processes see the same GPUs.
    addresses: Vec<Address>,
    /// Compute capabilities of the same: (9, 0).
    capabilities: Vec<(u32, u32)>,
    /// `NCCL_MULTI_RANK_GPU_ENABLE`.
    multi_rank: bool,
}

/// The first compute capability, and the first NCCL, with 8-bit floating-point types.
const FP8_CAPABILITY: (u32, u32) = (9, 0);
const FP8_NCCL: nccl::Version = nccl::Version::new(2, 24, 0);

impl Gpus {
    /// Looks for a CUDA driver, GPUs and libnccl. The error says what is missing.
    pub(super) fn find() -> Result<Self, String> {
        let count = nccl::device_count().map_err(|error| error.to_string())?;
        let library = Library::load().map_err(|error| error.to_string())?;
        let addresses: Result<_, _> = (0..count).map(pci_address).collect();
        let capabilities: Result<_, _> = (0..count).map(read_capability).collect();
        let undescribed = |error| format!("the CUDA driver does not describe its GPUs: {error}");
        Ok(Self {
            nccl_version: library.version().to_string(),
            nccl_path: library.path().display().to_string(),
            driver: nccl::cuda::driver_version().map_err(|error| error.to_string())?,
            addresses: addresses.map_err(undescribed)?,
            capabilities: capabilities.map_err(undescribed)?,
            multi_rank: std::env::var(MULTI_RANK).is_ok_and(|value| value.trim() == "1"),
        })
    }

    fn describe_provenance(&self) -> Provenance {
        Provenance {
            backend: "nccl".to_owned(),
            library_version: self.nccl_version.clone(),
            library_path: self.nccl_path.clone(),
            cuda_driver: Some(format!("{}.{}", self.driver / 1000, self.driver % 1000 / 10)),
            ..Provenance::default()
        }
    }
}

fn pci_address(ordinal: usize) -> Result<Address, result::DriverError> {
    Ok((
        read_attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
        read_attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
        read_attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
    ))
}

fn read_capability(ordinal: usize) -> Result<(u32, u32), result::DriverError> {
    Ok((
        read_attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
        read_attribute(ordinal, Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
    ))
}

fn read_attribute(ordinal: usize, attribute: Attribute) -> Result<u32, result::DriverError> {
    let device = result::device::get(ordinal as i32)?;
    // SAFETY: the device handle was just returned by the driver.
    unsafe { result::device::get_attribute(device, attribute) }.map(|value| value as u32)
}

/// The data that the ranks of a process need to open their GPUs and to connect.
struct Opening {
    library: Library,
    config: nccl::Config,
    /// Elements by which the buffers are shifted.
    unaligned: usize,
    registration: record::Registration,
    names: Names,
    default_stream: bool,
    first_type: DataType,
    /// CUDA ordinal of each rank's GPU.
    ordinals: Vec<usize>,
    ranks_on_gpus: Vec<usize>,
}

/// Prepares NCCL between GPUs: assigns the GPUs of all processes.
pub(super) fn prepare_nccl_node(
    request: &Request,
    process: &dyn World,
    processes: &[Discovery<Gpus>],
) -> Result<Node, Stop> {
    let found: Vec<(&str, &Gpus)> =
        processes.iter().filter_map(|each| Some((each.host.as_str(), each.result.as_ref().ok()?))).collect();
    let first = one_version(&found)?;
    let threads = request.threads.unwrap_or(1);
    let library = Library::load().map_err(|error| Stop::Refused(error.to_string()))?;
    // The only option that may differ between processes: with a process per GPU it selects each one's.
    let bases = gather_json(process, &request.variables.device)?;
    let processes_of_host: Vec<ProcessGpus<'_>> = processes
        .iter()
        .zip(&found)
        .zip(bases)
        .map(|((each, (host, gpus)), base)| ProcessGpus {
            host,
            machine: &each.machine,
            addresses: &gpus.addresses,
            base,
            multi_rank: gpus.multi_rank,
        })
        .collect();
    let (mut shares, mut ranks_on_gpus) = divide_gpus(&processes_of_host, request, library.version())?;
    let most_on_a_gpu = ranks_on_gpus.iter().flatten().copied().max().unwrap_or(1);
    let config = build_config(library, request)?;
    let assignment = shares.swap_remove(process.rank());
    let groups = Groups::new(request, process.size(), assignment.ordinals.len())?;
    let ranks = groups.smallest_size();
    let capabilities = found.iter().flat_map(|(_, gpus)| &gpus.capabilities);
    let capability = capabilities.min().copied().unwrap_or_default();
    let fp8 = can_fp8(request, library.version(), capability, ranks)?;
    let notes = notes::list_request_notes(request, library.version(), capability, ranks, most_on_a_gpu);
    let mut capabilities = Capabilities::default();
    capabilities.data_types.retain(|data_type| fp8 || !is_fp8(data_type));
    let opening = Arc::new(Opening {
        library,
        config,
        unaligned: request.settings.unaligned,
        registration: request.settings.registration,
        names: request.names,
        default_stream: request.settings.default_stream,
        first_type: request.data_types.first().copied().unwrap_or(DataType::Float32),
        ordinals: assignment.ordinals,
        ranks_on_gpus: ranks_on_gpus.swap_remove(process.rank()),
    });
    Ok(Node {
        threads,
        gpus: assignment.gpus,
        groups,
        // A rank that waits inside NCCL does not look at the world.
        connects_over_world: false,
        capabilities,
        versus: None,
        provenance: first.describe_provenance(),
        notes,
        default_max_bytes: DEFAULT_MAX_BYTES,
        open: Box::new(move |index| opening.open_device(index)),
    })
}

/// Returns the first process's GPUs. Refuses different versions of NCCL.
fn one_version<'a>(found: &[(&str, &'a Gpus)]) -> Result<&'a Gpus, Stop> {
    let (host, first) = found[0];
    let differs = |(_, (_, other)): &(usize, &(&str, &Gpus))| other.nccl_version != first.nccl_version;
    let Some((index, (other_host, other))) = found.iter().enumerate().find(differs) else {
        return Ok(first);
    };
    Err(Stop::Refused(format!(
        "processes have different NCCL versions and cannot communicate: process 0 on {host} has {} ({}), \
         process {index} on {other_host} has {} ({}). Point NCCL_LIBRARY to the same version everywhere",
        first.nccl_version, first.nccl_path, other.nccl_version, other.nccl_path
    )))
}

/// Returns each process's GPUs, and the number of ranks on the GPU of each of its ranks.
fn divide_gpus(
    processes_of_host: &[ProcessGpus<'_>],
    request: &Request,
    loaded: nccl::Version,
) -> Result<(Vec<GpuAssignment>, Vec<Vec<usize>>), Stop> {
    let threads = request.threads.unwrap_or(1);
    let shares: Vec<GpuAssignment> = (0..processes_of_host.len())
        .map(|index| assign_gpus(processes_of_host, index, (threads, request.gpus), loaded, request.names))
        .collect::<Result<_, _>>()
        .map_err(Stop::Refused)?;
    if let Some(index) = shares.iter().position(|assignment| assignment.gpus != shares[0].gpus) {
        let option = request.names.field_name("gpus");
        return Err(Stop::Refused(format!(
            "process 0 on {} would use {} GPUs, but process {index} on {} {}: set the number of GPUs \
             of each process with {option}",
            processes_of_host[0].host, shares[0].gpus, processes_of_host[index].host, shares[index].gpus
        )));
    }
    if request.settings.default_stream && shares.iter().any(GpuAssignment::has_a_gpu_twice) {
        return Err(Stop::Refused(format!(
            "{}: ranks of one process that share a GPU have one default stream, so they would wait for each \
             other. Omit the option, or start a process per rank ({})",
            request.names.field_name("default_stream"),
            request.names.with_value("gpus", 1),
        )));
    }
    let ranks = (0..shares.len()).map(|index| ranks_on_gpus(processes_of_host, &shares, index)).collect();
    Ok((shares, ranks))
}

/// Returns true when 8-bit floating-point types can be measured.
fn can_fp8(
    request: &Request,
    loaded: nccl::Version,
    capability: (u32, u32),
    ranks: usize,
) -> Result<bool, Stop> {
    if ranks > 1 || !request.ops.contains(&Op::MulSum) {
        return Ok(loaded >= FP8_NCCL && capability >= FP8_CAPABILITY);
    }
    if !request.all.data_types && request.data_types.iter().any(is_fp8) {
        return Err(Stop::Refused(format!(
            "{}: NCCL does not scale 8-bit floating-point numbers for a single rank",
            request.names.with_value("ops", Op::MulSum),
        )));
    }
    Ok(false)
}

/// The communicator's configuration: the requested one, with the settings of nccl-tests, so that results are
/// comparable (scheduling for NVLink from NCCL 2.28 on; two peers from 2.30 on if only sendrecv is measured).
fn build_config(library: Library, request: &Request) -> Result<nccl::Config, Stop> {
    let loaded = library.version();
    // Without the fence, the check on the stream detects the race: see `notes`.
    let mut config = nccl::Config::new().symmetric_fence(!request.variables.without_symmetric_fence);
    if loaded >= nccl::Version::new(2, 28, 0) {
        config = config.nvlink_centric_sched(true);
    }
    if loaded >= nccl::Version::new(2, 30, 0) && request.collectives == [Collective::SendRecv] {
        config = config.max_p2p_peers(2);
    }
    if let Some(policy) = request.settings.cta_policy {
        let needed = if policy == 2 { nccl::Version::new(2, 28, 0) } else { nccl::Version::new(2, 27, 0) };
        if loaded < needed {
            let asked = request.names.with_value("cta_policy", policy);
            return Err(Stop::Refused(format!("{asked} needs NCCL {needed}, and {loaded} is loaded")));
        }
        config = config.cta_policy(policy as i32);
    }
    Ok(config)
}

fn is_fp8(data_type: &DataType) -> bool {
    data_type.is_float() && data_type.size() == 1
}

/// Distributes the unique id that rank 0 of a world makes.
fn exchange_id(library: Library, world: &dyn World) -> anyhow::Result<UniqueId> {
    let own = if world.rank() == 0 { UniqueId::new(library)?.as_bytes().to_vec() } else { Vec::new() };
    let all = world.all_gather(&own)?;
    let bytes = all.first().map(Vec::as_slice).unwrap_or_default();
    let bytes: [u8; UniqueId::BYTES] = bytes.try_into().context("the first rank sent no NCCL unique id")?;
    Ok(UniqueId::from_bytes(bytes))
}

impl Opening {
    fn open_device(self: &Arc<Self>, index: usize) -> anyhow::Result<RankDevice> {
        let ordinal = self.ordinals[index];
        let context = CudaContext::new(ordinal).with_context(|| format!("opening GPU {ordinal}"))?;
        let stream = if self.default_stream { Ok(context.default_stream()) } else { context.new_stream() };
        let stream = stream.with_context(|| format!("creating a stream on GPU {ordinal}"))?;
        let free = context.mem_get_info()?.0 as u64;
        let (domain, bus, device) = pci_address(ordinal).unwrap_or_default();
        let opening = Arc::clone(self);
        Ok(RankDevice {
            rank: Rank {
                device: Some(ordinal),
                pci: Some(format!("{domain:04x}:{bus:02x}:{device:02x}")),
                device_name: context.name().unwrap_or_else(|_| "unknown GPU".to_owned()),
                ..Rank::default()
            },
            capacity: (free / self.ranks_on_gpus[index] as u64).saturating_sub(RESERVE),
            memory: format!("GPU {ordinal}"),
            connect: Box::new(move |world, buffer_sizes, body| {
                opening.connect_rank(&**world, &stream, free, buffer_sizes, body)
            }),
        })
    }

    /// Connects a rank with the others of `world`. `free` is the GPU's free memory before, in bytes.
    fn connect_rank(
        &self,
        world: &dyn World,
        stream: &Arc<CudaStream>,
        free: u64,
        buffer_sizes: BufferSizes,
        body: &mut RankBody<'_>,
    ) -> anyhow::Result<()> {
        let context = stream.context();
        let (rank, ranks) = (world.rank(), world.size());
        let id = exchange_id(self.library, world)?;
        let (communicator, data) = thread::scope(|scope| {
            // At the same time as NCCL, which waits for the other ranks.
            let name = format!("kernels {rank}");
            let loading = thread::Builder::new()
                .name(name.clone())
                .spawn_scoped(scope, || {
                    let mut data = DeviceData::new(context)?;
                    data.load_kernels(self.first_type)?;
                    tracing::debug!(rank, "kernels of the test data loaded");
                    anyhow::Ok(data)
                })
                .map_err(|error| explain_missing_thread(&name, &error))?;
            let communicator = Communicator::builder(self.library, stream)
                .rank(rank, ranks)
                .id(&id)
                .config(&self.config)
                .init()?;
            tracing::debug!(rank, "communicator initialised");
            let data = loading.join().map_err(|_| anyhow::anyhow!("loading kernels panicked"))??;
            anyhow::Ok((communicator, data))
        })?;
        let connected = context.mem_get_info()?.0 as u64;
        let mut memory = RankMemory::alloc_buffers(&communicator, buffer_sizes, self.unaligned)?;
        let used = MemoryUse {
            initialization: free.saturating_sub(connected),
            buffers: connected.saturating_sub(context.mem_get_info()?.0 as u64),
            operations: 0,
        };
        memory.register_buffers(&communicator, self.registration, self.names)?;
        body(&mut GpuRank::new(&communicator, data, memory, used))
    }
}
