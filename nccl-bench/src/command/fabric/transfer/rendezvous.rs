//! The ranks' rendezvous over TCP.

use std::time::Duration;

use collectives::world::{self, Launcher, RendezvousConfig, Started};

use super::TransferArguments;
use super::wait_notice::WaitNotice;
use crate::mpi_exec::{self, JoinRequest};
use engine::supervision::Stop;

/// Joins the world over TCP, or calls `join_mpi`, where the launcher tells no address.
pub(super) fn join_world(
    arguments: &TransferArguments,
    join_mpi: impl FnOnce(&JoinRequest) -> Result<world::Handle, Stop>,
) -> Result<world::Handle, Stop> {
    let timeout = Some(Duration::from_secs(arguments.timeout));
    let tcp = JoinRequest { world: world::Kind::Tcp, for_mpi: None, timeout, instead: None };
    let mut options = mpi_exec::world_options(&tcp)?;
    let pair = match (&arguments.listen, &arguments.connect) {
        (Some(address), _) => Some((0, address, "at", "--connect with this host's name")),
        (_, Some(address)) => Some((1, address, "for", "--listen there")),
        _ => None,
    };
    let launcher = Started::detect().launcher;
    let place = match pair {
        Some((rank, address, ..)) => RendezvousConfig::new(rank, 2, address),
        None if launcher == Launcher::None => {
            return Err(Stop::Refused(
                "this test needs two ranks: start it with a launcher (mpirun -np 2 nccl-bench fabric ...), \
                 or give --listen HOST:PORT to one rank and --connect HOST:PORT to the other rank"
                    .to_owned(),
            ));
        }
        None => RendezvousConfig::from_environment(),
    };
    let named = pair.is_some()
        || ["NCCL_BENCH_ADDR", "MASTER_ADDR"].iter().any(|name| std::env::var_os(name).is_some());
    if place.is_err() && !named && matches!(launcher, Launcher::OpenMpi | Launcher::Mpich) {
        // These launchers tell ranks on several hosts no address.
        return join_mpi(&JoinRequest {
            world: world::Kind::Auto,
            for_mpi: None,
            timeout,
            instead: Some(
                "name a host and port of rank 0 to all ranks (mpirun -x NCCL_BENCH_ADDR=node1:29500 ..., \
                 with MPICH -genv NCCL_BENCH_ADDR node1:29500)",
            ),
        });
    }
    let waiting = pair.map(|(_, address, how, option)| {
        let text =
            format!("waiting {how} {address}; start the other side with the same options, but {option}");
        WaitNotice::start_wait(text, options.timeout)
    });
    options.on_wait = waiting.is_some().then_some(WaitNotice::set_reason);
    let world = place.and_then(|place| world::tcp(place, &options));
    drop(waiting);
    world.map_err(mpi_exec::error_to_stop)
}
