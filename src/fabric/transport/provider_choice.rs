//! Choice of the providers for a job's messages.

use fabric_sys::Fabric;

use crate::fabric::error::Error;
use crate::fabric::libfabric::provider;
use crate::fabric::shared_memory::shm;
use crate::world;

/// Largest number of ranks in an address vector of libfabric's `shm`.
const MAX_SHM_RANKS: usize = 256;

/// The providers of a job, by the library's names.
pub(super) struct ProviderChoice {
    pub(super) intra_host: String,
    pub(super) inter_host: String,
    /// By rank, the identity of its host: equal for ranks that share memory.
    pub(super) hosts: Vec<String>,
    /// True when all ranks have the same network interfaces, loopback included.
    pub(super) one_network: bool,
}

impl ProviderChoice {
    /// Collective: all ranks get the same choice, or all fail.
    pub(super) fn agree_on_choice(
        library: &Fabric,
        world: &world::Handle,
        wanted: Option<&str>,
        host: Option<&str>,
    ) -> Result<Self, Error> {
        let identity = shm::host_identity(host);
        let network = network_identity();
        let own = format!("{identity}\n{network}\n{}", provider::variable_filter().is_some());
        let (mut hosts, mut one_network, mut filtered) = (Vec::new(), true, false);
        for each in world.all_gather(own.as_bytes())? {
            let each = String::from_utf8_lossy(&each);
            let mut lines = each.lines().map(str::to_owned);
            hosts.push(lines.next().unwrap_or_default());
            one_network &= lines.next().is_some_and(|other| other == network);
            filtered |= lines.next().is_some_and(|filter| filter == "true");
        }
        let one_host = hosts.iter().all(|host| *host == identity);
        // Asking libfabric takes time, and most jobs do not depend on the answer.
        let offers = if filtered || (wanted.is_none() && !one_host) {
            Some(Offers::gather_offers(world)?)
        } else {
            None
        };
        let is_offered = |name: &str| offers.as_ref().is_some_and(|offers| offers.all_have(name));
        let name_of = |provider: &str| {
            let name = provider::name_in(library, provider);
            let layered = provider::is_tcp(&name) && !is_offered(&name) && is_offered(provider::LAYERED_TCP);
            if layered { provider::LAYERED_TCP.to_owned() } else { name }
        };
        if let Some(wanted) = wanted {
            let name = name_of(wanted);
            if let Some(problem) = shm_problem(hosts.len(), one_host).filter(|_| name == "shm") {
                return Err(Error::Provider { provider: name, problem });
            }
            return Ok(Self { intra_host: name.clone(), inter_host: name, hosts, one_network });
        }
        let tcp = name_of("tcp");
        let other = || offers.as_ref().and_then(Offers::first_network).filter(|_| !is_offered(&tcp));
        let inter_host = if is_offered("efa") { "efa".to_owned() } else { other().unwrap_or(tcp) };
        let has_shm = world.size() <= MAX_SHM_RANKS && (!filtered || is_offered("shm"));
        let intra_host = if has_shm { "shm".to_owned() } else { inter_host.clone() };
        Ok(Self { intra_host, inter_host, hosts, one_network })
    }

    pub(super) fn provider_of(&self, rank: usize, peer: usize) -> &str {
        if self.hosts[rank] == self.hosts[peer] { &self.intra_host } else { &self.inter_host }
    }
}

/// The providers of each rank's libfabric, by rank.
struct Offers(Vec<Vec<String>>);

impl Offers {
    /// Gathers the offers. Collective. A rank unable to ask offers nothing.
    fn gather_offers(world: &world::Handle) -> Result<Self, Error> {
        let own = provider::providers().unwrap_or_default().join("\n");
        let all = world.all_gather(own.as_bytes())?;
        let names = |text: &Vec<u8>| String::from_utf8_lossy(text).lines().map(str::to_owned).collect();
        Ok(Self(all.iter().map(names).collect()))
    }

    /// Returns libfabric's best provider for other hosts that all ranks have.
    fn first_network(&self) -> Option<String> {
        self.0.first()?.iter().find(|name| *name != "shm" && self.all_have(name)).cloned()
    }

    /// Returns true when all ranks have the provider.
    fn all_have(&self, name: &str) -> bool {
        self.0.iter().all(|names| names.iter().any(|each| each == name))
    }
}

/// Identity of the network of this thread's sockets: equal for ranks with a common loopback interface.
fn network_identity() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let namespace = std::fs::read_link("/proc/thread-self/ns/net").unwrap_or_default();
    format!("{} {}", boot.trim(), namespace.display())
}

/// Returns the reason against `shm` as the only provider of a job, if any.
fn shm_problem(ranks: usize, one_host: bool) -> Option<String> {
    let problem = if !one_host {
        "reaches only processes of one user with the same /dev/shm, but the ranks of this job differ in them"
            .to_owned()
    } else if ranks > MAX_SHM_RANKS {
        format!("serves at most {MAX_SHM_RANKS} ranks, and this job has {ranks}")
    } else {
        return None;
    };
    Some(format!("{problem}; leave the choice open, or choose tcp"))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::world::World;

    /// A world of this many ranks with equal messages.
    struct Crowd(usize);

    impl World for Crowd {
        fn position(&self) -> world::Position {
            world::Position { rank: 0, size: self.0, local_rank: 0, local_size: self.0 }
        }
        fn describe(&self) -> String {
            format!("{} ranks", self.0)
        }
        fn barrier(&self) -> Result<(), world::Error> {
            Ok(())
        }
        fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
            Ok(vec![mine.to_vec(); self.0])
        }
        fn abort(&self, code: i32, _message: &str) -> ! {
            std::process::exit(code)
        }
    }

    #[test]
    fn more_ranks_than_shm_takes_use_tcp() {
        let library = Fabric::load().unwrap();
        let plan = |ranks, wanted| {
            ProviderChoice::agree_on_choice(library, &(Arc::new(Crowd(ranks)) as world::Handle), wanted, None)
        };
        assert_eq!(plan(256, None).unwrap().intra_host, "shm");
        let tcp = provider::name_in(library, "tcp");
        let beyond_shm = plan(257, None).unwrap();
        assert_eq!((beyond_shm.intra_host, beyond_shm.inter_host), (tcp.clone(), tcp));
        assert_eq!(plan(256, Some("shm")).unwrap().intra_host, "shm");
        assert_eq!(
            plan(257, Some("shm")).err().unwrap().to_string(),
            "provider 'shm': serves at most 256 ranks, and this job has 257; leave the choice open, or \
             choose tcp"
        );
    }
}
