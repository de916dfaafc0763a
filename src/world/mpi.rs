//! A world of the ranks of an MPI launcher.

use super::host::{addresses, host};
use super::launcher::Started;
use super::sync::lock;
use super::tcp::{self, Tcp};
use super::{Called, Error, Handle, LastAct, Options, Place, World, process_exit};
use mpi::Threading;
use mpi::datatype::PartitionMut;
use mpi::environment::Universe;
use mpi::topology::{Communicator, SimpleCommunicator};
use mpi::traits::CommunicatorCollectives;
use std::mem::ManuallyDrop;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How long the ranks may take to connect for watching each other; without it the world works all the same.
const CONNECTING: Duration = Duration::from_secs(10);

/// Initialises MPI and joins its `MPI_COMM_WORLD`. Once per process: MPI cannot be initialised again.
///
/// MPI itself does not say which rank has failed, and waits for ever for one that hangs. So the ranks also watch each
/// other over TCP, as those of [`tcp`](super::tcp) do, and [`Options::on_failure`] and [`Options::dead_after`] hold
/// here too; only a thread that waits inside MPI is not freed by [`OnFailure::Report`](super::OnFailure::Report).
/// Where rank 0's host takes no connections from the others, the world goes without; a warning says so.
///
/// MPI is finalised when the last handle is dropped; not after a panic or [`World::abort`], when it could wait for
/// ever. A process that ends without leaving makes the launcher end the others.
///
/// # Errors
/// When MPI is initialised already or cannot be called from several threads in turn, and when the launcher started
/// more processes than the MPI library sees: it then belongs to another MPI, and every process believes that it is
/// rank 0 of 1.
pub fn mpi(options: &Options) -> Result<Handle, Error> {
    let started = Started::detect();
    let Some((universe, threading)) = ::mpi::initialize_with_threading(Threading::Serialized) else {
        return Err(Error::Launcher(
            "MPI is already initialised in this process; join its world once".to_owned(),
        ));
    };
    let name = library();
    if threading < Threading::Serialized {
        return Err(Error::Launcher(format!(
            "{name} does not let several threads call it in turn (it gives {threading:?}, needed is Serialized); \
             use an MPI built with thread support, or let the ranks meet over TCP (`Options::kind = Kind::Tcp`)"
        )));
    }
    let world = universe.world();
    let (rank, size) = (index(world.rank()), index(world.size()));
    started.agrees_with_mpi(&name, rank, size)?;
    let here = world.split_shared(world.rank());
    let (local_rank, local_size) = (index(here.rank()), index(here.size()));
    drop(here);
    let universe = ManuallyDrop::new(universe);
    let mut joined =
        Mpi { watch: None, universe, call: Mutex::new(()), rank, size, local_rank, local_size, name };
    joined.watch = joined.watch(options)?;
    Ok(Arc::new(joined))
}

struct Mpi {
    /// Notices ranks that fail. Dropped before MPI is finalised, so that a rank that waits there is not missed.
    watch: Option<Tcp>,
    universe: ManuallyDrop<Universe>,
    /// Held by the thread that calls MPI: its threads may do so in turn only.
    call: Mutex<()>,
    rank: usize,
    size: usize,
    local_rank: usize,
    local_size: usize,
    name: String,
}

impl Mpi {
    fn world(&self) -> SimpleCommunicator {
        self.universe.world()
    }

    /// Connects the ranks, at an address of rank 0 that MPI tells the others.
    fn watch(&self, options: &Options) -> Result<Option<Tcp>, Error> {
        if self.size == 1 {
            return Ok(None);
        }
        let mut place = Place {
            rank: self.rank,
            size: self.size,
            hosts: Vec::new(),
            ports: vec![0],
            key: String::new(),
            local: None,
        };
        let mut listener = None;
        let mut told = Vec::new();
        if self.rank == 0 {
            let host = host();
            if self.local_size == self.size {
                place.hosts.push(Ipv4Addr::LOCALHOST.to_string());
            }
            listener = tcp::listen(&place).ok();
            if place.hosts.is_empty() {
                place.hosts.push(host.name.clone());
                place.hosts.extend(addresses().iter().map(IpAddr::to_string));
            }
            let port = listener.as_ref().and_then(|listener| Some(listener.local_addr().ok()?.port()));
            told.push(port.unwrap_or(0).to_string());
            told.push(format!("mpi {} {}", host.name, std::process::id()));
            told.append(&mut place.hosts);
        }
        let told = self.all_gather(told.join("\n").as_bytes())?.into_iter().next().unwrap_or_default();
        let told = String::from_utf8_lossy(&told).into_owned();
        let mut told = told.lines().map(str::to_owned);
        let port = told.next().and_then(|port| port.parse().ok()).unwrap_or(0);
        if port == 0 {
            // Rank 0 cannot listen, and all know it.
            if self.rank == 0 {
                tracing::warn!("rank 0 cannot listen, so nobody notices a rank that hangs");
            }
            return Ok(None);
        }
        (place.ports, place.key, place.hosts) = (vec![port], told.next().unwrap_or_default(), told.collect());
        let options = Options { timeout: options.timeout.min(CONNECTING), ..options.clone() };
        let joined = tcp::join(&place, &options, listener);
        if let (0, Err(error)) = (self.rank, &joined) {
            tracing::warn!("nobody notices a rank that hangs: {error}");
        }
        Ok(joined.ok())
    }
}

/// A rank or a number of ranks: MPI's are never negative.
fn index(number: ::mpi::Count) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// The MPI library's name and version: `Open MPI 4.1.4`.
fn library() -> String {
    short(&::mpi::environment::library_version().unwrap_or_default())
}

/// The name and version out of what `MPI_Get_library_version` says, which can be many lines.
fn short(version: &str) -> String {
    let line = version.lines().next().unwrap_or_default();
    let line = line.split(',').next().unwrap_or_default();
    let mut words = Vec::new();
    for word in line.split_whitespace().filter(|word| !word.eq_ignore_ascii_case("version:")) {
        let number = word.strip_prefix('v').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()));
        words.push(number.unwrap_or(word));
    }
    if words.is_empty() { "MPI".to_owned() } else { words.join(" ") }
}

impl World for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn local_rank(&self) -> usize {
        self.local_rank
    }

    fn local_size(&self) -> usize {
        self.local_size
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    /// `MPI_Barrier`.
    fn barrier(&self) -> Result<(), Error> {
        let _turn = lock(&self.call);
        self.world().barrier();
        Ok(())
    }

    /// `MPI_Allgather` of the lengths, then `MPI_Allgatherv`.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let _turn = lock(&self.call);
        let world = self.world();
        let mut lengths = vec![0_u64; self.size];
        world.all_gather_into(&(mine.len() as u64), &mut lengths[..]);
        let total: u64 = lengths.iter().sum();
        if i32::try_from(total).is_err() {
            return Err(Error::Mismatch(format!(
                "an all_gather of {total} bytes over all ranks is too long for MPI, which takes {}",
                i32::MAX
            )));
        }
        // Each fits, since their sum does.
        let counts: Vec<i32> = lengths.iter().map(|&length| i32::try_from(length).unwrap_or(0)).collect();
        let starts: Vec<i32> = counts
            .iter()
            .scan(0, |next, count| {
                let start = *next;
                *next += count;
                Some(start)
            })
            .collect();
        let mut all = vec![0_u8; usize::try_from(total).unwrap_or(0)];
        // Open MPI takes the buffers of nothing at all for wrong arguments.
        if total > 0 {
            world.all_gather_varcount_into(
                mine,
                &mut PartitionMut::new(&mut all[..], &counts[..], &starts[..]),
            );
        }
        let mut rest = &all[..];
        let mut messages = Vec::with_capacity(self.size);
        for count in counts {
            let (message, after) = rest.split_at(index(count));
            messages.push(message.to_vec());
            rest = after;
        }
        Ok(messages)
    }

    fn check(&self) -> Result<(), Error> {
        self.watch.as_ref().map_or(Ok(()), Tcp::check)
    }

    fn fail(&self, reason: &str) {
        if let Some(watch) = &self.watch {
            watch.fail(reason);
        }
    }

    fn note(&self, text: &str) -> bool {
        self.watch.as_ref().is_some_and(|watch| watch.note(text))
    }

    fn notes(&self) -> Vec<String> {
        self.watch.as_ref().map(World::notes).unwrap_or_default()
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        if let Some(watch) = &self.watch {
            watch.compare(rank, topic, calls);
        }
    }

    fn before_exit(&self, act: LastAct) {
        if let Some(watch) = &self.watch {
            watch.before_exit(act);
        }
    }

    /// `MPI_Abort`. Called without waiting for a thread that is inside MPI, since that may be what hangs.
    fn abort(&self, code: i32, message: &str) -> ! {
        self.end(code, None, message)
    }

    fn name_ranks(&self, per_process: usize) -> bool {
        // Without a watch, no error names a rank.
        self.watch.as_ref().is_none_or(|watch| watch.name_ranks(per_process))
    }

    fn fail_as(&self, rank: usize, reason: &str) {
        if let Some(watch) = &self.watch {
            watch.fail_as(rank, reason);
        }
    }

    fn abort_as(&self, rank: usize, code: i32, message: &str) -> ! {
        self.end(code, Some(rank), message)
    }
}

impl Mpi {
    fn end(&self, code: i32, rank: Option<usize>, message: &str) -> ! {
        if let Some(watch) = &self.watch {
            watch.shared.end_by_cause();
        }
        process_exit::claim();
        if let Some(watch) = &self.watch {
            watch.shared.explain(rank, message);
            watch.shared.last_words(code, rank, &format!("aborted with exit code {code}: {message}"));
        } else {
            let rank = rank.unwrap_or(self.rank);
            process_exit::explain(&format!("rank {rank} on host {}: {message}", host().name));
        }
        self.world().abort(code)
    }
}

/// The exit code of a Rust program that has panicked.
const PANICKED: i32 = 101;

impl Drop for Mpi {
    fn drop(&mut self) {
        if thread::panicking() {
            // Dropped while panicking, it tells the others.
            self.watch = None;
            self.world().abort(PANICKED)
        }
        self.watch = None;
        // SAFETY: the universe is not used again: this is the one place that drops it, and `self` ends here.
        unsafe { ManuallyDrop::drop(&mut self.universe) };
    }
}

#[cfg(test)]
mod tests {
    use super::short;

    #[test]
    fn the_library_is_named_in_few_words() {
        let open_mpi =
            "Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, repo rev: v4.1.4, May 26, 2022";
        assert_eq!(short(open_mpi), "Open MPI 4.1.4");
        let mpich = "MPICH Version:\t4.0.2\nMPICH Release date:\tThu Apr  7 12:34:45 CDT 2022\n";
        assert_eq!(short(mpich), "MPICH 4.0.2");
        assert_eq!(
            short("Intel(R) MPI Library 2021.6 for Linux* OS\n"),
            "Intel(R) MPI Library 2021.6 for Linux* OS"
        );
        assert_eq!(short(""), "MPI");
    }
}
