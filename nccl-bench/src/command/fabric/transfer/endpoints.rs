//! The endpoints of all ranks.

use std::time::Duration;

use collectives::fabric;
use collectives::fabric::rdm::{self, Endpoint};
use collectives::world;

use super::RankInfo;
use super::exchange::{gathered, on_all_ranks};
use super::options::TestOptions;
use super::{Arguments, Completion, Memory};
use engine::supervision::Stop;

/// This rank's endpoints, and the addresses and domains of all ranks, by rank.
pub(super) struct Endpoints {
    pub(super) all: Vec<Endpoint>,
    /// The address of each endpoint.
    pub(super) addresses: Vec<Vec<Vec<u8>>>,
    /// The addresses as text.
    pub(super) texts: Vec<String>,
    /// The names of the domains, each once.
    pub(super) domains: Vec<Vec<String>>,
}

/// Number of endpoints of each rank.
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
    /// Opens `count` endpoints on all ranks, or fails on all. Collective.
    pub(super) fn open(
        options: TestOptions,
        arguments: &Arguments,
        count: usize,
        world: &world::Handle,
        ranks: &[RankInfo],
    ) -> Result<Self, Stop> {
        let one_host = ranks.iter().all(|rank| rank.host_id == ranks[0].host_id);
        let loopback =
            one_host && matches!(arguments.provider.as_str(), "tcp" | "net") && arguments.domains.is_empty();
        let mut rdm_options = rdm::Options::new(&arguments.provider);
        rdm_options.source = arguments.source.clone().or_else(|| loopback.then(|| "127.0.0.1".to_owned()));
        rdm_options.untagged = options.plain;
        rdm_options.blocking = arguments.completion == Completion::Block;
        rdm_options.pause = options.pause;
        rdm_options.cuda = arguments.memory != Memory::Host;
        rdm_options.remote_memory = options.test.is_remote();
        rdm_options.peers = world.size();
        rdm_options.timeout = Some(Duration::from_secs(arguments.timeout));
        rdm_options.world = Some(world.clone());
        let all = on_all_ranks(open(&rdm_options, arguments, count).map_err(stop), world)?;

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

/// Opens this rank's endpoints, ordered by domain.
fn open(options: &rdm::Options, arguments: &Arguments, count: usize) -> Result<Vec<Endpoint>, fabric::Error> {
    let mut all = Vec::with_capacity(count);
    let named = arguments.domains.len();
    for domain in 0..named.max(1) {
        let mut options = options.clone();
        options.domain = arguments.domains.get(domain).cloned();
        // The remainder goes to the first domains.
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

/// Maps a failed call to [`Stop::Failed`], and everything else, such as a missing provider, to [`Stop::Refused`].
pub(super) fn stop(error: fabric::Error) -> Stop {
    match error {
        fabric::Error::Call(_) => Stop::Failed(error.into()),
        _ => Stop::Refused(error.to_string()),
    }
}
