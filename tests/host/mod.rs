//! Communicators over host buffers whose ranks are threads of the test.

use std::thread;

use collectives::fabric::{Algorithm, Collective, Communicator, Options};
use collectives::world;

/// Runs `body` on each of `ranks` ranks, and closes their communicators.
pub(crate) fn on_every_rank(ranks: usize, options: &Options, body: impl Fn(&mut Communicator) + Sync) {
    let handles = world::threads(world::single(), ranks).unwrap();
    thread::scope(|scope| {
        for handle in handles {
            let body = &body;
            scope.spawn(move || {
                let mut communicator = Communicator::new(handle, options).unwrap();
                body(&mut communicator);
                communicator.close().unwrap();
            });
        }
    });
}

/// [`on_every_rank`] with the number of each rank's host.
pub(crate) fn on_hosts(hosts: &[usize], options: &Options, body: impl Fn(&mut Communicator) + Sync) {
    let handles = world::threads(world::single(), hosts.len()).unwrap();
    thread::scope(|scope| {
        for (handle, host) in handles.into_iter().zip(hosts) {
            let (body, mut options) = (&body, options.clone());
            options.host = Some(host.to_string());
            scope.spawn(move || {
                let mut communicator = Communicator::new(handle, &options).unwrap();
                body(&mut communicator);
                communicator.close().unwrap();
            });
        }
    });
}

/// Options with this provider.
pub(crate) fn over(provider: &str) -> Options {
    let mut options = Options::default();
    options.provider = Some(provider.to_owned());
    options
}

/// True when the options may name an algorithm where all ranks are on one host.
pub(crate) fn serves(algorithm: Algorithm, collective: Collective, provider: &str, ranks: usize) -> bool {
    let has = match algorithm {
        Algorithm::Board => provider == "shm",
        Algorithm::Hierarchical => false,
        _ => true,
    };
    has && algorithm.serves(collective, ranks)
}
