//! Reader of GPUs through NVML. It is loaded at run time.

use std::ffi::OsStr;
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use nvml_wrapper::Nvml;
use nvml_wrapper::bitmasks::device::ThrottleReasons;
use nvml_wrapper::enum_wrappers::device::{
    Clock, ComputeMode, EccCounter, MemoryError, P2pCapabilitiesIndex, P2pStatus, PerformanceState,
    RetirementCause, TemperatureSensor,
};
use nvml_wrapper::enum_wrappers::nv_link::{Capability, ErrorCounter};
use nvml_wrapper::enums::device::UsedGpuMemory;
use nvml_wrapper::error::NvmlError;

use super::super::counters::{self, Counter};
use super::super::pci::{self, Function, normal_bus_id};
use super::{Access, Ecc, Gpu, GpuProcess, Gpus, Link, LostGpu, Pages, Pcie, Peer, Problem};

mod raw;

/// Time limit of NVML's calls: they wait without end for a hanging GPU. The value is our own judgement.
const LIMIT: Duration = Duration::from_secs(60);
/// Places of the library outside the loader's search, as in containers of Kubernetes nodes.
const PLACES: [&str; 3] = [
    "libnvidia-ml.so.1",
    "/usr/local/nvidia/lib64/libnvidia-ml.so.1",
    "/run/nvidia/driver/usr/lib64/libnvidia-ml.so.1",
];
/// Largest number of examined NVLinks per GPU.
const MOST_LINKS: u32 = 36;

/// GPUs, read by a separate thread: NVML may never answer.
#[derive(Debug)]
pub(crate) struct NvmlReading {
    asking: mpsc::Sender<()>,
    answers: mpsc::Receiver<Result<Gpus, Problem>>,
}

impl NvmlReading {
    /// Starts to read.
    pub(crate) fn start_reading() -> Self {
        let (asking, asked) = mpsc::channel();
        let (sender, answers) = mpsc::channel();
        let work = move || {
            let nvml = match load_nvml() {
                Ok(nvml) => nvml,
                Err(problem) => {
                    let _ = sender.send(Err(problem));
                    return;
                }
            };
            let _ = sender.send(read_gpus(&nvml));
            while asked.recv().is_ok() {
                let _ = sender.send(Ok(Gpus { counters: error_counters(&nvml), ..Gpus::default() }));
            }
        };
        // Without a thread the receiver says so.
        let _ = thread::Builder::new().name("nvml".to_owned()).spawn(work);
        Self { asking, answers }
    }

    /// Returns the first reading.
    pub(crate) fn first_reading(&self) -> Gpus {
        self.await_answer().unwrap_or_else(|problem| Gpus { problem: Some(problem), ..Gpus::default() })
    }

    /// Reads the counters again.
    pub(in super::super) fn complete_counters(&self, gpus: &mut Gpus) {
        if gpus.problem.is_some() || self.asking.send(()).is_err() {
            return;
        }
        match self.await_answer() {
            Ok(second) => counters::complete_counters(&mut gpus.counters, &second.counters),
            Err(problem) => gpus.problem = Some(problem),
        }
    }

    fn await_answer(&self) -> Result<Gpus, Problem> {
        match self.answers.recv_timeout(LIMIT) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                Err(Problem::Stuck(format!("no answer within {} s", LIMIT.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => {
                Err(Problem::Failed("the thread that reads NVML ended".to_owned()))
            }
        }
    }
}

/// Completes the facts with the GPUs and NVSwitches of the PCI bus below `root`.
pub(in super::super) fn on_bus(gpus: &mut Gpus, root: &Path) {
    let functions = pci::read_functions(root);
    gpus.on_pci = functions.iter().filter(|function| function.is_gpu()).map(Function::on_pci).collect();
    gpus.switches = functions.iter().filter(|function| function.is_nvswitch()).count();
}

fn load_nvml() -> Result<Nvml, Problem> {
    let mut missing = None;
    for place in PLACES {
        match Nvml::builder().lib_path(OsStr::new(place)).init() {
            Ok(nvml) => return Ok(nvml),
            Err(NvmlError::LibloadingError(error)) => {
                missing.get_or_insert_with(|| error.to_string());
            }
            Err(error @ NvmlError::DriverNotLoaded) => return Err(Problem::NoDriver(error.to_string())),
            Err(error @ NvmlError::LibRmVersionMismatch) => return Err(Problem::Mismatch(error.to_string())),
            Err(error) => return Err(Problem::Failed(error.to_string())),
        }
    }
    Err(Problem::NoLibrary(missing.unwrap_or_default()))
}

fn read_gpus(nvml: &Nvml) -> Result<Gpus, Problem> {
    let count = nvml.device_count().map_err(|error| Problem::Failed(format!("counting GPUs: {error}")))?;
    let mut gpus = Gpus {
        driver: nvml.sys_driver_version().ok(),
        cuda: nvml.sys_cuda_driver_version().ok().map(|version| {
            let major = nvml_wrapper::cuda_driver_version_major(version);
            format!("{major}.{}", nvml_wrapper::cuda_driver_version_minor(version))
        }),
        counters: error_counters(nvml),
        ..Gpus::default()
    };
    for index in 0..count {
        match read_gpu(nvml, index) {
            Ok(gpu) => gpus.devices.push(gpu),
            Err(error) => gpus.lost.push(LostGpu { index, error: error.to_string() }),
        }
    }
    gpus.peers = read_peers(nvml, &gpus.devices);
    Ok(gpus)
}

type NvmlDevice<'nvml> = nvml_wrapper::Device<'nvml>;

fn read_gpu(nvml: &Nvml, index: u32) -> Result<Gpu, NvmlError> {
    let device = nvml.device_by_index(index)?;
    let name = device.name()?;
    let pci = device.pci_info().ok();
    let ecc = device.is_ecc_enabled().ok();
    let uncorrected = |counter| device.total_ecc_errors(MemoryError::Uncorrected, counter).ok();
    let causes = [RetirementCause::MultipleSingleBitEccErrors, RetirementCause::DoubleBitEccError];
    let retired = causes.into_iter().filter_map(|cause| device.retired_pages(cause).ok());
    let (links, links_refused) = read_links(nvml, &device);
    Ok(Gpu {
        index,
        name,
        uuid: device.uuid().ok(),
        pci: pci.as_ref().map(|info| normal_bus_id(&info.bus_id)),
        device: pci.map(|info| info.pci_device_id >> 16),
        memory: device.memory_info().ok().map(|memory| memory.total),
        pcie: Pcie {
            generation: device.current_pcie_link_gen().ok(),
            max_generation: device.max_pcie_link_gen().ok(),
            width: device.current_pcie_link_width().ok(),
            max_width: device.max_pcie_link_width().ok(),
        },
        ecc: Ecc {
            enabled: ecc.as_ref().map(|ecc| ecc.currently_enabled),
            pending: ecc.as_ref().map(|ecc| ecc.pending_enabled),
            uncorrected: uncorrected(EccCounter::Volatile),
            lifetime_uncorrected: uncorrected(EccCounter::Aggregate),
        },
        rows: raw::remapped_rows(nvml, &device),
        pages: Pages {
            retired: retired.map(|pages| pages.len()).reduce(|one, other| one + other),
            pending: device.are_pages_pending_retired().ok(),
        },
        slowed: device.current_throttle_reasons().map(reasons_of_slowdown).unwrap_or_default(),
        performance_state: device.performance_state().ok().and_then(performance_state),
        temperature: device.temperature(TemperatureSensor::Gpu).ok(),
        power: device.power_usage().ok(),
        power_limit: device.enforced_power_limit().ok(),
        default_power_limit: device.power_management_limit_default().ok(),
        clock: device.clock_info(Clock::SM).ok(),
        max_clock: device.max_clock_info(Clock::SM).ok(),
        persistence: device.is_in_persistent_mode().ok(),
        mig: device.mig_mode().ok().map(|mode| mode.current != 0),
        recovery: raw::recovery_action(nvml, &device),
        compute_mode: device.compute_mode().ok().map(|mode| compute_mode(mode).to_owned()),
        links,
        links_refused,
        c2c_links: raw::c2c_links(nvml, &device),
        fabric: raw::read_fabric(nvml, &device),
        processes: read_processes(nvml, &device),
    })
}

fn reasons_of_slowdown(reasons: ThrottleReasons) -> Vec<String> {
    let names = [
        (ThrottleReasons::GPU_IDLE, "idle"),
        (ThrottleReasons::APPLICATIONS_CLOCKS_SETTING, "application clocks"),
        (ThrottleReasons::SW_POWER_CAP, "power cap"),
        (ThrottleReasons::HW_SLOWDOWN, "hardware slowdown"),
        (ThrottleReasons::SYNC_BOOST, "sync boost"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "software thermal slowdown"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "hardware thermal slowdown"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "power brake"),
    ];
    names.iter().filter(|(bit, _)| reasons.contains(*bit)).map(|(_, name)| (*name).to_owned()).collect()
}

fn performance_state(state: PerformanceState) -> Option<u32> {
    Some(state.as_c()).filter(|number| *number < 16)
}

fn compute_mode(mode: ComputeMode) -> &'static str {
    match mode {
        ComputeMode::Default => "default",
        ComputeMode::ExclusiveThread => "exclusive thread",
        ComputeMode::Prohibited => "prohibited",
        ComputeMode::ExclusiveProcess => "exclusive process",
    }
}

fn read_processes(nvml: &Nvml, device: &NvmlDevice<'_>) -> Vec<GpuProcess> {
    let own = std::process::id();
    let running = device.running_compute_processes().unwrap_or_default();
    let others = running.into_iter().filter(|process| process.pid != own);
    let process = |process: nvml_wrapper::struct_wrappers::device::ProcessInfo| GpuProcess {
        pid: process.pid,
        name: nvml.sys_process_name(process.pid, 128).ok(),
        memory: match process.used_gpu_memory {
            UsedGpuMemory::Used(bytes) => Some(bytes),
            UsedGpuMemory::Unavailable => None,
        },
    };
    others.map(process).collect()
}

/// Returns the NVLinks, and NVML's error, if it refused to report more of them.
fn read_links(nvml: &Nvml, device: &NvmlDevice<'_>) -> (Vec<Link>, Option<String>) {
    let mut links = Vec::new();
    for number in 0..raw::link_count(nvml, device).unwrap_or(MOST_LINKS).min(MOST_LINKS) {
        let link = device.link_wrapper_for(number);
        let active = match link.is_active() {
            Ok(active) => active,
            Err(NvmlError::InvalidArg) => break,
            Err(NvmlError::NotSupported) => continue,
            Err(error) => return (links, Some(error.to_string())),
        };
        // An invisible device has an empty bus ID.
        let remote = link.remote_pci_info().ok().map(|pci| normal_bus_id(&pci.bus_id));
        links.push(Link {
            number,
            active,
            version: link.version().ok().filter(|_| active),
            speed: raw::link_speed(nvml, device, number).filter(|_| active),
            peer_access: link.has_capability(Capability::P2p).ok(),
            remote: remote.filter(|bus_id| active && bus_id.contains(':')),
        });
    }
    (links, None)
}

/// Returns the error counters of all working NVLinks.
fn error_counters(nvml: &Nvml) -> Vec<Counter> {
    let mut counters = Vec::new();
    for index in 0..nvml.device_count().unwrap_or(0) {
        let Ok(device) = nvml.device_by_index(index) else { continue };
        for number in 0..raw::link_count(nvml, &device).unwrap_or(MOST_LINKS).min(MOST_LINKS) {
            let link = device.link_wrapper_for(number);
            match link.is_active() {
                Ok(true) => {}
                Ok(false) => continue,
                Err(_) => break,
            }
            let name = format!("GPU {index} NVLink {number}");
            let kinds = [
                (ErrorCounter::DlReplay, "replays"),
                (ErrorCounter::DlRecovery, "recoveries"),
                (ErrorCounter::DlCrcFlit, "CRC errors"),
            ];
            let old =
                kinds.into_iter().filter_map(|(kind, text)| Some((text, link.error_counter(kind).ok()?)));
            let all = old.chain(raw::link_counters(nvml, &device, number));
            counters.extend(all.map(|(text, value)| Counter::new(&name, text, value)));
        }
    }
    counters
}

fn read_peers(nvml: &Nvml, gpus: &[Gpu]) -> Vec<Vec<Peer>> {
    let devices: Vec<Option<NvmlDevice<'_>>> =
        gpus.iter().map(|gpu| nvml.device_by_index(gpu.index).ok()).collect();
    let access = |one: &NvmlDevice<'_>, other: &NvmlDevice<'_>, what| match one.p2p_status(other, what) {
        Ok(P2pStatus::Ok) => Access::Supported,
        Ok(P2pStatus::ChipsetNotSupported) => Access::NoChipset,
        Ok(P2pStatus::GpuNotSupported) => Access::NoGpu,
        Ok(P2pStatus::IohTopologyNotSupported) => Access::NoTopology,
        Ok(P2pStatus::DisabledByRegkey) => Access::Disabled,
        Ok(P2pStatus::NotSupported) => Access::No,
        Ok(P2pStatus::Unknown) | Err(_) => Access::Unknown,
    };
    let row = |from: usize| {
        let peer = |to: usize| match (&devices[from], &devices[to]) {
            (Some(one), Some(other)) if from != to => Peer {
                read: access(one, other, P2pCapabilitiesIndex::Read),
                write: access(one, other, P2pCapabilitiesIndex::Write),
                nvlink: access(one, other, P2pCapabilitiesIndex::NvLink),
            },
            _ => Peer::default(),
        };
        (0..devices.len()).map(peer).collect()
    };
    (0..devices.len()).map(row).collect()
}
