//! The ranks' rendezvous over TCP, and the comparison of their options.

use std::time::Duration;

use collectives::world::{self, Launcher, RendezvousConfig, Started};
use serde::{Deserialize, Serialize};

use super::options::{Test, TestOptions};
use super::wait_notice::WaitNotice;
use super::{Arguments, Memory};
use crate::mpi_exec::{self, JoinRequest};
use engine::agreement::ANOTHER_COMMAND;
use engine::gather::gather;
use engine::supervision::Stop;

/// Joins the world over TCP, or calls `join_mpi`, where the launcher tells no address.
pub(super) fn join(
    arguments: &Arguments,
    join_mpi: impl FnOnce(&JoinRequest) -> Result<world::Handle, Stop>,
) -> Result<world::Handle, Stop> {
    let timeout = Some(Duration::from_secs(arguments.timeout));
    let tcp = JoinRequest { world: world::Kind::Tcp, for_mpi: None, timeout, instead: None };
    let mut options = mpi_exec::options(&tcp)?;
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
                "it takes two: start this by a launcher (mpirun -np 2 nccl-bench fabric ...), or give \
                 --listen HOST:PORT to one and --connect HOST:PORT to the other"
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
        WaitNotice::start(text, options.timeout)
    });
    options.on_wait = waiting.is_some().then_some(WaitNotice::set_reason);
    let world = place.and_then(|place| world::tcp(place, &options));
    drop(waiting);
    world.map_err(mpi_exec::stop)
}

/// A rank's host and options, exchanged before anything is opened.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RankInfo {
    pub(super) host: String,
    pub(super) host_id: String,
    settings: Vec<(String, String)>,
}

impl RankInfo {
    pub(super) fn new(options: TestOptions<'_>) -> Self {
        let world::Host { name, id } = world::host();
        Self { host: name, host_id: id, settings: settings(options) }
    }
}

/// The options that must be equal on all ranks, by name.
fn settings(options: TestOptions<'_>) -> Vec<(String, String)> {
    let arguments = options.arguments;
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let memory = if arguments.memory == Memory::Host { "host" } else { "cuda" };
    let transfers = arguments.transfers.map_or_else(|| "by size".to_owned(), |count| count.to_string());
    let mut settings = vec![
        ("measurement", options.test.name().to_owned()),
        ("--provider", arguments.provider.clone()),
        ("--minbytes", arguments.min_bytes.0.to_string()),
        ("--maxbytes", arguments.max_bytes.0.to_string()),
        ("--stepfactor", arguments.factor.to_string()),
        ("--iters", transfers),
        ("--rounds", arguments.rounds.to_string()),
        ("--warmup_iters", arguments.warm_up.to_string()),
        ("--check", arguments.check.to_string()),
        ("--memory", memory.to_owned()),
        ("--endpoints", options.endpoints.to_string()),
        ("--all-pairs", yes(arguments.all_pairs)),
    ];
    if options.test != Test::PingPong {
        settings.push(("--window", options.window.to_string()));
    }
    if options.test.is_remote() {
        settings.push(("--both-ways", yes(options.both_ways)));
        settings.push(("--until", format!("{:?}", options.until).to_lowercase()));
    } else {
        settings.push(("--messages", format!("{:?}", options.messages).to_lowercase()));
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Exchanges the ranks' hosts and options, by rank. Collective.
///
/// # Errors
/// [`Stop::Refused`] where options differ, or another rank runs another command.
pub(super) fn agree(world: &world::Handle, own: &RankInfo) -> Result<Vec<RankInfo>, Stop> {
    let ranks = gather(&**world, own).map_err(|error| match error.is::<serde_json::Error>() {
        true => Stop::Refused(format!("the other rank {ANOTHER_COMMAND}")),
        false => Stop::Failed(error),
    })?;
    difference(&ranks).map_or(Ok(ranks), |difference| Err(Stop::Refused(difference)))
}

/// The first option in which ranks differ, with both values.
fn difference(ranks: &[RankInfo]) -> Option<String> {
    let first = ranks.first()?;
    ranks.iter().enumerate().find_map(|(rank, other)| {
        let value = |settings: &[(String, String)], name: &str| {
            let found = settings.iter().find(|(known, _)| known == name);
            found.map_or_else(|| "none".to_owned(), |(_, value)| value.clone())
        };
        let (name, _) = first
            .settings
            .iter()
            .chain(&other.settings)
            .find(|(name, _)| value(&first.settings, name) != value(&other.settings, name))?;
        let [ours, theirs] = [&first.settings, &other.settings].map(|settings| value(settings, name));
        Some(format!(
            "the ranks were not asked for the same: {name} is {ours} on rank 0 and {theirs} on rank {rank} \
             (on {}); start all with the same options",
            other.host
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(settings: &[(&str, &str)]) -> RankInfo {
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        RankInfo { host: "node".to_owned(), host_id: String::new(), settings }
    }

    #[test]
    fn a_difference_is_reported_with_both_values() {
        let two = [("measurement", "bw"), ("--window", "64")];
        assert_eq!(difference(&[rank(&two), rank(&two)]), None);
        let other = [("measurement", "bw"), ("--window", "32")];
        let text = difference(&[rank(&two), rank(&two), rank(&other)]).unwrap_or_default();
        assert!(text.contains("--window is 64 on rank 0 and 32 on rank 2 (on node)"), "{text}");
        // From a rank of another version.
        for [one, other] in [[&two[..], &two[..1]], [&two[..1], &two[..]]] {
            let text = difference(&[rank(one), rank(other)]).unwrap_or_default();
            assert!(text.contains("--window is ") && text.contains("none"), "{text}");
        }
    }
}
