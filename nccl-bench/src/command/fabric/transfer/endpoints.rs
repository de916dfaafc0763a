//! The endpoints of all ranks.

use std::time::Duration;

use collectives::fabric;
use collectives::fabric::rdm::{self, Endpoint};
use collectives::world;

use super::meeting::Rank;
use super::{Arguments, Completion, Kind, Memory};
use engine::supervision::Stop;

/// This rank's endpoints, and by rank what is known of all.
pub(super) struct Endpoints {
    pub(super) all: Vec<Endpoint>,
    /// Addresses of each endpoint.
    pub(super) addresses: Vec<Vec<Vec<u8>>>,
    /// The same for people.
    pub(super) texts: Vec<String>,
    /// Each domain once.
    pub(super) domains: Vec<Vec<String>>,
}

/// How many endpoints each rank has.
pub(super) fn count(arguments: &Arguments) -> Result<usize, Stop> {
    let domains = arguments.domains.len();
    let count = arguments.endpoints.map_or(domains.max(1), |count| count as usize);
    if count < domains {
        return Err(Stop::Refused(format!(
            "--endpoints {count} are fewer than the {domains} of --domains: each domain needs one"
        )));
    }
    Ok(count)
}

impl Endpoints {
    /// Opens so many on all ranks or on none.
    pub(super) fn open(
        kind: Kind,
        arguments: &Arguments,
        count: usize,
        world: &world::Handle,
        ranks: &[Rank],
    ) -> Result<Self, Stop> {
        let one_host = ranks.iter().all(|rank| rank.host_id == ranks[0].host_id);
        let loopback =
            one_host && matches!(arguments.provider.as_str(), "tcp" | "net") && arguments.domains.is_empty();
        let mut options = rdm::Options::new(&arguments.provider);
        options.source = arguments.source.clone().or_else(|| loopback.then(|| "127.0.0.1".to_owned()));
        options.untagged = kind.plain;
        options.blocking = arguments.completion == Completion::Block;
        options.pause = kind.pause;
        options.cuda = arguments.memory != Memory::Host;
        options.remote_memory = kind.test.is_remote();
        options.peers = world.size();
        options.timeout = Some(Duration::from_secs(arguments.timeout));
        options.world = Some(world.clone());
        let all = on_all_ranks(open(&options, arguments, count).map_err(stop), world)?;

        let mut domains: Vec<&str> = all.iter().map(Endpoint::domain).collect();
        domains.dedup();
        let texts: Vec<String> = all.iter().map(Endpoint::address_text).collect();
        let addresses: Vec<&[u8]> = all.iter().map(Endpoint::address).collect();
        Ok(Self {
            addresses: gathered(world, &addresses)?,
            texts: gathered(world, &texts.join(" "))?,
            domains: gathered(world, &domains)?,
            all,
        })
    }

    pub(super) fn provider(&self) -> &str {
        self.all.first().map_or("", Endpoint::provider)
    }
}

/// This rank's: those of a domain stand together.
fn open(options: &rdm::Options, arguments: &Arguments, count: usize) -> Result<Vec<Endpoint>, fabric::Error> {
    let mut all = Vec::with_capacity(count);
    let named = arguments.domains.len();
    for domain in 0..named.max(1) {
        let mut options = options.clone();
        options.domain = arguments.domains.get(domain).cloned();
        // The first domains have one more where they cannot all have as many.
        let count = (count - domain).div_ceil(named.max(1));
        if arguments.shared_domain {
            all.extend(Endpoint::open_sharing(&options, count)?);
        } else {
            for _ in 0..count {
                all.push(Endpoint::open(&options)?);
            }
        }
    }
    Ok(all)
}

/// What cannot be had is refused; what should have worked has failed.
pub(super) fn stop(error: fabric::Error) -> Stop {
    match error {
        fabric::Error::Call(_) => Stop::Failed(error.into()),
        _ => Stop::Refused(error.to_string()),
    }
}

/// What was opened, if it was on all ranks; the first problem is told by all, and ends all alike.
pub(super) fn on_all_ranks<T>(opened: Result<T, Stop>, world: &world::Handle) -> Result<T, Stop> {
    let problem = match &opened {
        Ok(_) => None,
        Err(Stop::Refused(problem)) => Some((true, problem.clone())),
        Err(Stop::Failed(error)) => Some((false, format!("{error:#}"))),
    };
    let problems: Vec<Option<(bool, String)>> = gathered(world, &problem)?;
    let first = problems.into_iter().enumerate().find_map(|(rank, problem)| Some((rank, problem?)));
    match first {
        None => opened,
        Some((rank, (true, problem))) => Err(Stop::Refused(format!("rank {rank}: {problem}"))),
        Some((rank, (false, problem))) => Err(Stop::Failed(anyhow::anyhow!("rank {rank}: {problem}"))),
    }
}

/// What each rank says, by rank.
pub(super) fn gathered<T: serde::Serialize, U: serde::de::DeserializeOwned>(
    world: &world::Handle,
    own: &T,
) -> Result<Vec<U>, Stop> {
    let all = world.all_gather(&serde_json::to_vec(own)?)?;
    Ok(all.iter().map(|bytes| serde_json::from_slice(bytes)).collect::<Result<_, _>>()?)
}
