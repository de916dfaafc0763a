//! Host memory over libfabric.

use std::sync::{Arc, OnceLock};

use collectives::ReduceOp;
use collectives::fabric::{self, Algorithm, Communicator, Options};
use collectives::world::World;

use super::connections::{Connections, HeldCommunicator};
use super::host::{Carrier, HostBackend};
use super::{Capabilities, RankWork};
use crate::agreement::exchange_discoveries;
use crate::collective::{Collective, Participant, on_fabric};
use crate::data::Op;
use crate::groups::Groups;
use crate::request::{Names, Request};
use crate::supervision::Stop;
use record::{BackendLibrary, Placement};

/// Default number of ranks of a single process.
pub const RANKS_ALONE: usize = 2;

/// Finds libfabric on every process.
///
/// # Errors
/// [`Stop::Refused`] when a process has none, or not the provider that is asked for.
pub(super) fn find_fabric(
    request: &Request,
    process: &dyn World,
    connections: &Connections,
) -> Result<HostBackend, Stop> {
    let provider = (request.provider != "auto").then_some(request.provider.as_str());
    let mut libraries = Vec::new();
    for (index, each) in
        exchange_discoveries(process, load_library(provider, request.names))?.into_iter().enumerate()
    {
        let refused = |reason| Stop::Refused(format!("process {index} on {}: {reason}", each.host));
        libraries.push(each.result.map_err(refused)?);
    }
    let mut options = Options::default();
    options.provider = provider.map(str::to_owned);
    let threads = request.threads.unwrap_or(if process.size() == 1 { RANKS_ALONE } else { 1 });
    let groups = Groups::new(request, process.size(), threads)?;
    for ranks in groups.group_sizes() {
        refuse_unfit(request, ranks, process.local_size() == process.size())?;
    }
    for (collective, algorithm) in request.fabric_algorithms().map_err(Stop::Refused)? {
        options.set_algorithm(collective, algorithm);
    }
    options.between = request.tuning.between;
    options.segment = request.tuning.segment;
    options.in_flight = request.tuning.in_flight;
    let (connections, binding) = (connections.clone(), request.binding);
    Ok(HostBackend {
        connector: Arc::new(move |place, world| {
            Ok(Box::new(connections.connect_ranks(place, world, &options, binding)?))
        }),
        library: libraries.swap_remove(0),
        capabilities: list_capabilities(),
        ranks_alone: RANKS_ALONE,
        notes: Vec::new(),
        connects_over_world: true,
    })
}

/// Refuses an algorithm that cannot carry out its collective on `ranks` ranks. `is_on_one_host`: all of them
/// share a host.
///
/// # Errors
/// [`Stop::Refused`] with the algorithm and the collective.
pub(crate) fn refuse_unfit(request: &Request, ranks: usize, is_on_one_host: bool) -> Result<(), Stop> {
    // With a baseline, the default number of ranks is also that backend's, and the communicator refuses.
    if request.versus.is_some() {
        return Ok(());
    }
    let choices = request.fabric_algorithms().map_err(Stop::Refused)?;
    let unfit = choices.into_iter().find(|&(collective, algorithm)| {
        !algorithm.serves(collective, ranks) || algorithm == Algorithm::Hierarchical && is_on_one_host
    });
    let Some((collective, algorithm)) = unfit else { return Ok(()) };
    let host = if is_on_one_host { " of one host" } else { "" };
    let asked = request.names.with_value("algorithms", algorithm);
    Err(Stop::Refused(format!(
        "{asked}: the algorithm does not support {collective} on {ranks} ranks{host}; omit it, or choose \
         another (nccl-bench fabric algorithms)"
    )))
}

/// All but the operator that scales on a GPU.
pub(crate) fn list_capabilities() -> Capabilities {
    let ops = Op::ALL.into_iter().filter(|op| op.built_in().is_some()).collect();
    Capabilities { ops, ..Capabilities::default() }
}

/// Returns the libfabric of this process; an error when it lacks the provider.
fn load_library(provider: Option<&str>, names: Names) -> Result<BackendLibrary, String> {
    let library = fabric::Library::load().map_err(|error| error.to_string())?;
    let loaded = BackendLibrary {
        backend: "fabric".to_owned(),
        library_version: library.version().to_string(),
        library_path: library.path().display().to_string(),
    };
    // Kept for later runs: a search takes milliseconds.
    static PROVIDERS: OnceLock<Vec<String>> = OnceLock::new();
    let providers = match PROVIDERS.get() {
        Some(providers) => providers,
        None => {
            let found = fabric::providers().map_err(|error| error.to_string())?;
            PROVIDERS.get_or_init(|| found)
        }
    };
    let filter = std::env::var("FI_PROVIDER").ok().filter(|filter| !filter.is_empty());
    if providers.is_empty() {
        let cause = filter.map_or_else(String::new, |filter| {
            format!(
                ": FI_PROVIDER={filter} excludes all providers; unset it, or name a provider of `fi_info -l`"
            )
        });
        return Err(format!(
            "libfabric {} from {} has no provider for tagged messages here{cause}",
            loaded.library_version, loaded.library_path
        ));
    }
    let Some(asked) = provider else { return Ok(loaded) };
    // One provider with two names: `net` in libfabric 1.17, `tcp` from 1.18 on. `FI_PROVIDER=tcp` leaves the
    // last in 1.17.
    let tcp = ["tcp", "net", "tcp;ofi_rxm"];
    if providers.iter().any(|name| name == asked || tcp.contains(&&**name) && tcp.contains(&asked)) {
        return Ok(loaded);
    }
    let shortage = fabric::shm_shortage().filter(|_| asked == "shm");
    Err(format!(
        "{}: libfabric {} from {} does not have this provider for tagged messages here; available: {}{}{}",
        names.with_value("provider", asked),
        loaded.library_version,
        loaded.library_path,
        providers.join(", "),
        shortage.map_or_else(String::new, |shortage| format!("; {shortage}")),
        filter.map_or_else(String::new, |filter| format!(
            "; FI_PROVIDER={filter} excludes all other providers"
        ))
    ))
}

impl Carrier for HeldCommunicator {
    fn carrier_transport(&self) -> Option<String> {
        Some(self.communicator_ref()?.describe().to_owned())
    }

    fn carrier_algorithm(&self, work: &RankWork) -> Option<record::Algorithm> {
        let collective = on_fabric(work.collective).filter(|_| work.participant.ranks > 1)?;
        let bytes = match collective {
            fabric::Collective::AllGather | fabric::Collective::Gather => {
                work.reported_bytes() / work.participant.ranks
            }
            fabric::Collective::AllToAllV => 0,
            _ => work.reported_bytes(),
        };
        let plan = self.communicator_ref()?.plan(collective, bytes);
        let exchanged = matches!(collective, fabric::Collective::AllToAll | fabric::Collective::AllToAllV);
        let algorithm = match plan.algorithm {
            // These copy the data before they send it.
            put_aside @ (fabric::Algorithm::Board
            | fabric::Algorithm::Bruck
            | fabric::Algorithm::Hierarchical) => put_aside,
            // Received data replaces data that has not been sent yet.
            _ if exchanged && work.placement == Placement::InPlace => fabric::Algorithm::Direct,
            other => other,
        };
        let between = plan.between.map_or_else(String::new, |between| format!("+{between}"));
        Some(record::Algorithm { algorithm: format!("{algorithm}{between}"), protocol: None, channels: None })
    }

    fn out_of_place(&mut self, work: &RankWork, send: &[u8], receive: &mut [u8]) -> anyhow::Result<()> {
        with_element!(work.data_type, T => {
            let (send, receive) = (bytemuck::cast_slice(send), bytemuck::cast_slice_mut(receive));
            Ok(out_of_place::<T>(self.communicator_mut()?, work, send, receive)?)
        })
    }

    fn in_place(&mut self, work: &RankWork, data: &mut [u8]) -> anyhow::Result<()> {
        with_element!(work.data_type, T => {
            Ok(in_place::<T>(self.communicator_mut()?, work, bytemuck::cast_slice_mut(data))?)
        })
    }
}

fn out_of_place<T: collectives::Element>(
    communicator: &mut Communicator,
    work: &RankWork,
    send: &[T],
    receive: &mut [T],
) -> Result<(), fabric::Error> {
    let Participant { rank, root, .. } = work.participant;
    let root = root.unwrap_or(0);
    let op = work.op.and_then(Op::built_in).unwrap_or(ReduceOp::Sum);
    match work.collective {
        Collective::AllReduce => communicator.all_reduce(send, receive, op),
        Collective::AllGather => communicator.all_gather(send, receive),
        Collective::ReduceScatter => communicator.reduce_scatter(send, receive, op),
        Collective::Broadcast => communicator.broadcast(Some(send), receive, root),
        Collective::Reduce => communicator.reduce(send, Some(receive), op, root),
        Collective::AllToAll => communicator.all_to_all(send, receive),
        Collective::AllToAllV => {
            let (sent, received) = work.traffic_parts();
            communicator.all_to_all_v(send, sent, receive, received)
        }
        Collective::Gather => communicator.gather(send, Some(receive), root),
        Collective::Scatter => communicator.scatter(Some(send), receive, root),
        Collective::SendRecv => communicator.exchange(
            send,
            work.participant.next_rank(),
            receive,
            work.participant.previous_rank(),
        ),
        Collective::Hypercube => {
            receive[rank * send.len()..][..send.len()].copy_from_slice(send);
            run_hypercube(communicator, work.participant, receive)
        }
    }
}

fn in_place<T: collectives::Element>(
    communicator: &mut Communicator,
    work: &RankWork,
    data: &mut [T],
) -> Result<(), fabric::Error> {
    let root = work.participant.root.unwrap_or(0);
    let op = work.op.and_then(Op::built_in).unwrap_or(ReduceOp::Sum);
    match work.collective {
        Collective::AllReduce => communicator.all_reduce_in_place(data, op),
        Collective::AllGather => communicator.all_gather_in_place(data),
        Collective::ReduceScatter => communicator.reduce_scatter_in_place(data, op),
        Collective::Broadcast => communicator.broadcast_in_place(data, root),
        Collective::Reduce => communicator.reduce_in_place(data, op, root),
        Collective::AllToAll => communicator.all_to_all_in_place(data),
        Collective::AllToAllV => {
            let (sent, received) = work.traffic_parts();
            communicator.all_to_all_v_in_place(data, sent, received)
        }
        Collective::Gather => communicator.gather_in_place(data, root),
        Collective::Scatter => communicator.scatter_in_place(data, root),
        Collective::SendRecv => communicator.exchange_in_place(
            data,
            work.participant.next_rank(),
            work.participant.previous_rank(),
        ),
        Collective::Hypercube => run_hypercube(communicator, work.participant, data),
    }
}

fn run_hypercube<T: collectives::Element>(
    communicator: &mut Communicator,
    participant: Participant,
    data: &mut [T],
) -> Result<(), fabric::Error> {
    let part = data.len() / participant.ranks;
    participant.hypercube_steps().try_for_each(|step| {
        let (own, theirs) = step.split_parts(data, part);
        communicator.exchange(own, step.peer, theirs, step.peer)
    })
}
