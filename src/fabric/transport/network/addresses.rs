//! Exchange of the ranks' addresses.
//!
//! Any program can implement [`World`](crate::world::World), and libfabric relies on the addresses: for an
//! address that was not inserted, it would read outside of its tables, and it uses the memory of an endpoint
//! of this process in place.

use super::{Network, Route, on_all_ranks};
use crate::fabric::error::Error;
use crate::fabric::shared_memory::shm;
use crate::fabric::transport::deferred_close::Stage;
use crate::fabric::transport::provider_choice::ProviderChoice;
use crate::world;

impl Network {
    /// Reports this rank's stage to the other ranks of this process.
    pub(super) fn register_stage(&self, stage: Stage) {
        let in_memory = self.endpoints.iter().filter(|endpoint| endpoint.provider == "shm");
        in_memory.for_each(|endpoint| self.deferred_close.register_stage(&endpoint.address, stage));
    }

    /// Exchanges addresses, and announces this rank to its peers; returns the routes to them, and the
    /// addresses in shared memory.
    pub(super) fn exchange_addresses(
        &mut self,
        choice: &ProviderChoice,
    ) -> Result<(Vec<Route>, Vec<Vec<u8>>), Error> {
        let mut in_memory = Vec::new();
        let (rank, endpoints) = (self.rank, &mut self.endpoints);
        let mut routes = vec![None; self.world.size()];
        let mut names = vec![&choice.intra_host, &choice.inter_host];
        names.dedup();
        for name in names {
            let own = endpoints.iter().position(|endpoint| endpoint.provider == *name);
            let address = own.map_or(&[][..], |own| &endpoints[own].address);
            let addresses = self.world.all_gather(address)?;
            let mut peers = addresses.iter().enumerate().filter(|&(peer, _)| {
                // A rank alone on its host has no route to itself, and needs none.
                choice.provider_of(rank, peer) == name && (peer != rank || own.is_some())
            });
            let inserted = peers.try_for_each(|(peer, address)| {
                let own = own.filter(|_| !address.is_empty()).ok_or_else(|| no_address(peer))?;
                if name == "shm" {
                    self.deferred_close.check_address(address, Stage::Opened)?;
                    in_memory.push(address.clone());
                }
                let address = endpoints[own].insert_peer(peer, address)?;
                routes[peer] = Some(Route { endpoint: own, address });
                Ok(())
            });
            on_all_ranks(&self.world, inserted)?;
        }
        for (peer, route) in routes.iter().enumerate() {
            if let Some(Route { endpoint, address }) = *route
                && peer != rank
            {
                endpoints[endpoint].announce_to(address);
            }
        }
        self.register_stage(Stage::Announced);
        let nowhere = Route { endpoint: 0, address: fabric_sys::FI_ADDR_NOTAVAIL };
        Ok((routes.into_iter().map(|route| route.unwrap_or(nowhere)).collect(), in_memory))
    }

    /// Reads the announcements of all other ranks. They have announced themselves by now. `peers` are their
    /// addresses in shared memory.
    pub(super) fn read_announcements(&mut self, peers: &[Vec<u8>]) -> Result<(), Error> {
        let announced =
            peers.iter().try_for_each(|peer| self.deferred_close.check_address(peer, Stage::Announced));
        let read = announced.and_then(|()| {
            self.endpoints.iter_mut().try_for_each(|endpoint| endpoint.make_progress().map(drop))
        });
        if read.is_ok() {
            self.register_stage(Stage::Connected);
        }
        on_all_ranks(&self.world, read)
    }

    /// Removes the name of this rank's shared memory once all its peers have mapped it (libfabric does so
    /// when it gets an address): from then on, the memory of killed ranks is freed at once. `peers` are the
    /// peers' addresses in shared memory. Collective. Fails on all ranks if memory not yet mapped by a rank
    /// has lost its name: it cannot be mapped any more.
    pub(super) fn remove_names(&self, peers: &[Vec<u8>]) -> Result<(), Error> {
        let unmapped = shm::unmapped_files(peers);
        let lost = unmapped.iter().find(|file| !file.exists());
        let reachable = lost.map_or(Ok(()), |file| {
            let problem = format!(
                "{} was removed while the ranks connected: find out what removes files in {}, or choose tcp",
                file.display(),
                shm::DIRECTORY
            );
            Err(Error::Provider { provider: "shm".to_owned(), problem })
        });
        let connected =
            peers.iter().try_for_each(|peer| self.deferred_close.check_address(peer, Stage::Connected));
        on_all_ranks(&self.world, connected.and(reachable))?;
        let all = self.world.all_gather(&[u8::from(unmapped.is_empty())])?;
        if all.iter().all(|mapped| mapped == &[1]) {
            let in_memory = self.endpoints.iter().filter(|endpoint| endpoint.provider == "shm");
            in_memory.for_each(|endpoint| shm::unlink_name(&endpoint.address));
        }
        Ok(())
    }
}

fn no_address(peer: usize) -> Error {
    world::Error::Mismatch(format!("a world has gathered no address of rank {peer}")).into()
}
