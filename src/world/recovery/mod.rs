//! Recovery: after a failure, the remaining ranks continue in a new world.
//!
//! Each process has a service (`service`) that reports its call of [`Recovery::shrink`] to others. After its
//! call, a process asks the others (`question`), and decides from their answers alone (`verdict`): the lowest
//! process that has called forms a world over TCP, and the others join it when they find it. A world forms
//! with all of its members or not at all.

mod agreement;
mod question;
mod service;
mod site;
mod table;
mod verdict;

use super::{Error, Handle, World, YEAR};
use service::Service;
use site::Site;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// A rank's preparation for continuing after other ranks have failed, made while all ranks live.
///
/// ```no_run
/// use collectives::world::{self, Recovery};
///
/// let world = world::from_environment(&world::Options::default())?;
/// let recovery = Recovery::new(&world)?;
/// if let Err(failure) = world.barrier() {
///     eprintln!("{failure}");
///     // The same program on every rank that is left.
///     let (world, recovery) = recovery.shrink(Recovery::LIMIT)?;
///     world.barrier()?;
/// }
/// # Ok::<(), world::Error>(())
/// ```
pub struct Recovery {
    site: Arc<Site>,
    /// This rank's number among the ranks of its process.
    thread: usize,
    world: Weak<dyn World>,
}

/// A rank's new world.
struct Shrunk {
    world: Handle,
    recovery: Recovery,
}

impl Shrunk {
    fn new(world: Handle, site: Arc<Site>, thread: usize) -> Self {
        let recovery = Recovery { site, thread, world: Arc::downgrade(&world) };
        Self { world, recovery }
    }
}

impl Recovery {
    /// The usual limit of [`Recovery::shrink`]: 10 s.
    pub const LIMIT: Duration = Duration::from_secs(10);

    /// Prepares this rank. A collective call of all ranks of `world`; several ranks of a process call it from
    /// their threads.
    ///
    /// In a job of several processes, the first call in a process starts a thread. It listens on a port of
    /// its own, on the loopback interface if all ranks are on one host, until the process ends.
    ///
    /// # Errors
    /// On all ranks, if a process cannot live longer than the world (over MPI, or with
    /// [`OnFailure::Exit`](super::OnFailure::Exit)), cannot listen or has no address in reach of others, or
    /// processes have different numbers of ranks. Also if a rank has failed.
    pub fn new(world: &Handle) -> Result<Self, Error> {
        let mut introduced = table::introduce_processes(world)?;
        let service = if introduced.processes.len() > 1 {
            let service = Service::of_process(table::on_one_host(&introduced.processes));
            let port = service.as_ref().map(|service| service.port).map_err(ToString::to_string);
            table::exchange_addresses(world, &mut introduced, port)?;
            service.ok()
        } else {
            None
        };
        let thread = introduced.thread;
        let site = Site::of_process(introduced, service);
        // The ranks of a process share a site, kept by nobody else: the first may not drop it before the last
        // has taken it.
        world.barrier()?;
        Ok(Self { site, thread, world: Arc::downgrade(world) })
    }

    /// Continues without the ranks that are gone: returns a new world of the remaining ranks, renumbered in
    /// their old order, and the preparation for its failures. Every remaining rank calls it; ranks waiting in
    /// the old world get an error there, as by [`World::fail`]. The old world is not used, and its handles
    /// may live on.
    ///
    /// Returns once all remaining processes have called. A live process is left out if it does not call
    /// within `limit` of the others' calls, or if it gives no answer for a third of it; it gets
    /// [`Error::LeftOut`] if it calls later. A process that has lost one of several ranks is left out with
    /// the others, unless the job has one process only. If another process fails during the call, the others
    /// agree again. The call takes at most three times `limit` and the time of a rendezvous.
    ///
    /// Only one world can form. Processes continue without processes that have left or ended (their port
    /// refuses connections). They continue without silent ones only if they are more than the silent ones, or
    /// as many and with the lowest rank among them.
    ///
    /// # Errors
    /// [`Error::LeftOut`] if the others continue without this rank. [`Error::TimedOut`] if too many ranks may
    /// live elsewhere, or the ranks do not agree; then it may be called again. [`Error::Mismatch`] if a call
    /// has returned a world before.
    pub fn shrink(&self, limit: Duration) -> Result<(Handle, Self), Error> {
        if let Some(world) = self.world.upgrade()
            && world.check().is_ok()
        {
            world.fail("continues without the failed ranks (it has called shrink)".into());
        }
        let limit = limit.min(YEAR);
        let run = |ranks| agreement::agree_on_world(Arc::clone(&self.site), ranks, limit);
        self.site.shrink_job(self.thread, limit, run).map(|shrunk| (shrunk.world, shrunk.recovery))
    }
}

impl Drop for Recovery {
    fn drop(&mut self) {
        self.site.depart_thread(self.thread);
    }
}

#[cfg(test)]
mod tests;
