//! How the ranks come together, and that they have been asked for the same.

use std::time::Duration;

use collectives::world::{self, Launcher, OnFailure, RendezvousConfig, Started};
use serde::{Deserialize, Serialize};

use super::waiting::Waiting;
use super::{Arguments, Kind, Memory, Test};
use crate::mpi_exec::{self, Meeting};
use engine::supervision::Stop;

/// Where this rank meets the others: `join` does so through MPI, where its launcher leaves no other way.
pub(super) fn meet(
    arguments: &Arguments,
    join: impl FnOnce(&Meeting) -> Result<world::Handle, Stop>,
) -> Result<world::Handle, Stop> {
    let timeout = Duration::from_secs(arguments.timeout);
    let mut options = world::Options::default();
    options.kind = world::Kind::Tcp;
    options.timeout = timeout;
    // So that all end as the first does, with its code.
    options.on_failure = OnFailure::Exit;
    let mut options = options.or_environment().map_err(mpi_exec::stop)?;
    let launcher = Started::detect().launcher;
    let place = match (&arguments.listen, &arguments.connect) {
        (Some(address), _) => RendezvousConfig::new(0, 2, address),
        (_, Some(address)) => RendezvousConfig::new(1, 2, address),
        _ if launcher == Launcher::None => {
            return Err(Stop::Refused(
                "it takes two: start this by a launcher (mpirun -np 2 nccl-bench fabric ...), or give --listen HOST:PORT to \
                 one and --connect HOST:PORT to the other"
                    .to_owned(),
            ));
        }
        _ => RendezvousConfig::from_environment(),
    };
    let named = arguments.listen.is_some()
        || arguments.connect.is_some()
        || ["NCCL_BENCH_ADDR", "MASTER_ADDR"].iter().any(|name| std::env::var_os(name).is_some());
    if place.is_err() && !named && matches!(launcher, Launcher::OpenMpi | Launcher::Mpich) {
        // Of ranks on several hosts, these launchers tell no address.
        return join(&Meeting {
            world: world::Kind::Auto,
            for_mpi: None,
            timeout: Some(timeout),
            instead: Some(
                "name a host and port of rank 0 to all ranks (mpirun -x NCCL_BENCH_ADDR=node1:29500 ..., with MPICH \
                 -genv NCCL_BENCH_ADDR node1:29500)",
            ),
        });
    }
    let other = match (&arguments.listen, &arguments.connect) {
        (Some(address), _) => Some(("at", address, "--connect with this host's name")),
        (_, Some(address)) => Some(("for", address, "--listen there")),
        _ => None,
    };
    let other = other.map(|(how, address, option)| {
        format!("waiting {how} {address}; start the other side with the same options, but {option}")
    });
    let waiting = other.map(|text| Waiting::tell(text, options.timeout));
    options.on_wait = waiting.is_some().then_some(Waiting::because);
    let world = place.and_then(|place| world::tcp(place, &options));
    drop(waiting);
    world.map_err(mpi_exec::stop)
}

/// What a rank tells the others before anything is opened.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Rank {
    pub(super) host: String,
    /// Which host, for whoever asks if two are one.
    pub(super) host_id: String,
    settings: Vec<(String, String)>,
}

impl Rank {
    pub(super) fn new(kind: Kind, arguments: &Arguments, count: usize) -> Self {
        let world::Host { name, id } = world::host();
        Self { host: name, host_id: id, settings: settings(kind, arguments, count) }
    }
}

/// What all ranks have to be told alike, or they would do different things.
fn settings(kind: Kind, arguments: &Arguments, count: usize) -> Vec<(String, String)> {
    let yes = |is: bool| if is { "yes" } else { "no" }.to_owned();
    let memory = if arguments.memory == Memory::Host { "host" } else { "cuda" };
    let messages = if kind.plain { "plain" } else { "tagged" };
    let until = if kind.completed { "completed" } else { "arrived" };
    let transfers = arguments.transfers.map_or_else(|| "by size".to_owned(), |count| count.to_string());
    let mut settings = vec![
        ("measurement", kind.test.name().to_owned()),
        ("--provider", arguments.provider.clone()),
        ("--minbytes", arguments.min_bytes.0.to_string()),
        ("--maxbytes", arguments.max_bytes.0.to_string()),
        ("--stepfactor", arguments.factor.to_string()),
        ("--iters", transfers),
        ("--rounds", arguments.rounds.to_string()),
        ("--warmup_iters", arguments.warm_up.to_string()),
        ("--check", arguments.check.to_string()),
        ("--memory", memory.to_owned()),
        ("--endpoints", count.to_string()),
        ("--all-pairs", yes(arguments.all_pairs)),
    ];
    if kind.test != Test::PingPong {
        settings.push(("--window", kind.window.to_string()));
    }
    if kind.test.is_remote() {
        settings.push(("--both-ways", yes(kind.both_ways)));
        settings.push(("--until", until.to_owned()));
    } else {
        settings.push(("--messages", messages.to_owned()));
    }
    settings.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

/// The first thing that ranks were not told alike.
pub(super) fn difference(ranks: &[Rank]) -> Option<String> {
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
            "the ranks were not asked for the same: {name} is {ours} on rank 0 and {theirs} on rank {rank} (on {}); start all \
             with the same options",
            other.host
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(settings: &[(&str, &str)]) -> Rank {
        let settings = settings.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect();
        Rank { host: "node".to_owned(), host_id: String::new(), settings }
    }

    #[test]
    fn what_differs_is_told_with_both_values() {
        let two = [("measurement", "bw"), ("--window", "64")];
        assert_eq!(difference(&[rank(&two), rank(&two)]), None);
        let other = [("measurement", "bw"), ("--window", "32")];
        let text = difference(&[rank(&two), rank(&two), rank(&other)]).unwrap_or_default();
        assert!(text.contains("--window is 64 on rank 0 and 32 on rank 2 (on node)"), "{text}");
        // As from a rank of another version.
        for [one, other] in [[&two[..], &two[..1]], [&two[..1], &two[..]]] {
            let text = difference(&[rank(one), rank(other)]).unwrap_or_default();
            assert!(text.contains("--window is ") && text.contains("none"), "{text}");
        }
    }
}
