//! Selection of the backend, agreed by all processes before anything is started.

use collectives::world::World;

use super::host::{self, FindHostBackend};
use super::paired::pair_nodes;
use super::{Connections, Node, fabric, nccl};
use crate::agreement::{Discovery, exchange_discoveries};
use crate::request::{BackendChoice, Request, Versus};
use crate::supervision::Stop;

/// Selects the backend, the same for all processes of `process`. `mpi` finds the MPI library that the program
/// is linked to. `connections` are those of earlier runs.
///
/// # Errors
/// A refusal ([`Stop::refusal_text`]), the same on every process, when the requested backend is not
/// available.
pub(crate) fn choose_backend(
    request: &Request,
    process: &dyn World,
    mpi: Option<FindHostBackend>,
    connections: &Connections,
) -> Result<Node, Stop> {
    let mpi = || mpi.ok_or_else(|| Stop::Refused("this program is not linked to MPI".to_owned()));
    let versus = match request.versus {
        Some(Versus::Mpi) => Some(mpi()?),
        Some(Versus::Fabric) => Some(fabric::find_fabric as FindHostBackend),
        None => None,
    };
    let on_hosts = |find: FindHostBackend, why: &str| {
        host::prepare_host_node(request, process, find, versus, connections, why)
    };
    let names = request.names;
    let backend = |name| names.with_value("backend", name);
    let as_asked = |asked: String| format!("as asked for ({asked})");
    match request.backend {
        BackendChoice::Fabric if versus.is_some() => {
            return on_hosts(fabric::find_fabric, &as_asked(names.field_name("versus")));
        }
        BackendChoice::Fabric => return on_hosts(fabric::find_fabric, &as_asked(backend("fabric"))),
        BackendChoice::Mpi => return on_hosts(mpi()?, &as_asked(backend("mpi"))),
        BackendChoice::Nccl | BackendChoice::Auto => {}
    }
    // Not before the processes have joined their world: MPI_Init sets environment variables, which the CUDA
    // driver reads while it starts, and neither takes a lock.
    let processes = exchange_discoveries(process, nccl::Gpus::find())?;
    let without: Vec<String> = processes
        .iter()
        .enumerate()
        .filter_map(|(index, each)| {
            Some(format!("process {index} on {}: {}", each.host, each.result.as_ref().err()?))
        })
        .collect();
    let Some(reason) = without.first() else {
        return on_gpus(request, process, &processes, versus, connections);
    };
    if request.backend == BackendChoice::Nccl {
        let is_paired = request.versus == Some(Versus::Fabric);
        let asked_by =
            if is_paired { names.with_value("versus", "fabric") + ": NCCL" } else { backend("nccl") };
        return Err(Stop::NoGpus { asked_by, reason: reason.clone() });
    }
    let (host_memory, threads) = (backend("fabric"), names.field_name("threads"));
    if without.len() < processes.len() {
        return Err(Stop::Refused(format!(
            "GPUs can be used by {} of {} processes only, but not by {reason}\nFix this, or measure host \
             memory with {host_memory}",
            processes.len() - without.len(),
            processes.len(),
        )));
    }
    // The environment can differ between processes.
    let asking = process.all_gather(request.asks_for_gpus.as_deref().unwrap_or_default().as_bytes())?;
    if let Some(asked) = asking.iter().find(|asked| !asked.is_empty()) {
        return Err(Stop::Refused(format!(
            "{} asks for GPUs, but none can be used: {reason}\nTo measure host memory, add {host_memory}; \
             {threads} is the number of its ranks",
            String::from_utf8_lossy(asked)
        )));
    }
    let why = processes.iter().find_map(|each| each.result.as_ref().err()).map_or("", String::as_str);
    let first_line = why.lines().next().unwrap_or(why);
    match on_hosts(fabric::find_fabric, &format!("because no GPU can be used: {first_line}")) {
        Err(Stop::Refused(fabric)) => Err(Stop::Refused(format!(
            "no backend can be used.\nNCCL over GPUs: {why}\nlibfabric over host memory: {fabric}"
        ))),
        prepared => prepared,
    }
}

/// The reason why this process cannot use GPUs with NCCL; `None` if it can.
pub fn missing_gpus() -> Option<String> {
    nccl::Gpus::find().err()
}

/// NCCL between GPUs, in turn with the baseline of `versus`.
fn on_gpus(
    request: &Request,
    process: &dyn World,
    processes: &[Discovery<nccl::Gpus>],
    versus: Option<FindHostBackend>,
    connections: &Connections,
) -> Result<Node, Stop> {
    if let Some(given) = request.tuning.first_given().filter(|_| request.versus != Some(Versus::Fabric)) {
        let (given, fabric) =
            (request.names.field_name(given), request.names.with_value("backend", "fabric"));
        return Err(Stop::Refused(format!(
            "{given}: the option is for collectives over libfabric ({fabric}); NCCL takes the variables \
             NCCL_ALGO and NCCL_PROTO"
        )));
    }
    let primary = nccl::prepare_nccl_node(request, process, processes)?;
    let Some(find) = versus else { return Ok(primary) };
    let ranks = primary.threads * primary.gpus;
    let on_host = Request { gpus: None, threads: Some(ranks), ..request.clone() };
    let why = format!("for the baseline of NCCL ({})", request.names.field_name("versus"));
    Ok(pair_nodes(primary, host::prepare_host_node(&on_host, process, find, None, connections, &why)?))
}
