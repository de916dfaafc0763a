//! A world over MPI.

use super::host::{addresses, host};
use super::launcher::Started;
use super::tcp::{self, Tcp};
use super::{Error, Handle, Kind, Options, Position, Reason, Rejoin, RendezvousConfig, World, process_exit};
use crate::lock::lock;
use crate::log;
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

/// Time limit for connecting the monitor. The world works without it.
const MONITOR_TIMEOUT: Duration = Duration::from_secs(10);

/// Initialises MPI and joins its `MPI_COMM_WORLD`. Once per process: MPI cannot be initialised again.
///
/// MPI_Init sets environment variables. Call this before other threads read variables, as the CUDA driver and
/// NCCL do while they start: with glibc before 2.41 such a process can crash.
///
/// MPI does not report failed ranks, and waits forever for a hanging one. The ranks therefore monitor each
/// other over TCP like the ranks of [`tcp`](super::tcp), and [`Options::on_failure`] and
/// [`Options::dead_after`] apply. However, [`OnFailure::Report`](super::OnFailure::Report) cannot interrupt a
/// thread waiting inside MPI. If the other ranks cannot connect to rank 0, the world works without
/// monitoring, and logs a warning.
///
/// MPI is finalised when the last handle is dropped, but not after a panic or [`World::abort`], when it could
/// wait forever. If a process ends without leaving, the launcher ends the others.
///
/// # Errors
/// If MPI is initialised already, does not support `MPI_THREAD_SERIALIZED`, or sees fewer processes than the
/// launcher has started: the launcher then belongs to another MPI library, and every process is rank 0 of 1.
pub fn mpi(options: &Options) -> Result<Handle, Error> {
    let started = Started::detect();
    let Some((universe, threading)) = ::mpi::initialize_with_threading(Threading::Serialized) else {
        return Err(Error::Launcher(
            "MPI is already initialised in this process; join its world once".to_owned(),
        ));
    };
    let name = short(&::mpi::environment::library_version().unwrap_or_default());
    if threading < Threading::Serialized {
        let problem = format!(
            "{name} does not support calls from several threads in turn (it provides {threading:?}, but \
             Serialized is needed); use an MPI built with thread support"
        );
        return Err(Error::UnsuitableKind { problem, instead: Kind::Tcp });
    }
    let world = universe.world();
    let (rank, size) = (index(world.rank()), index(world.size()));
    started.agrees_with_mpi(&name, rank, size)?;
    let here = world.split_shared(world.rank());
    let position = Position { rank, size, local_rank: index(here.rank()), local_size: index(here.size()) };
    drop(here);
    let universe = ManuallyDrop::new(universe);
    let mut joined = Mpi { monitor: None, universe, call: Mutex::new(()), position, name };
    joined.monitor = joined.connect_monitor(options)?;
    Ok(Arc::new(joined))
}

struct Mpi {
    /// Detects failed ranks. Dropped before MPI is finalised: otherwise the other ranks would miss a rank
    /// that waits there.
    monitor: Option<Tcp>,
    universe: ManuallyDrop<Universe>,
    /// Held during a call of MPI: it does not support concurrent calls.
    call: Mutex<()>,
    position: Position,
    name: String,
}

impl Mpi {
    fn world(&self) -> SimpleCommunicator {
        self.universe.world()
    }

    /// Connects the ranks over TCP, at an address of rank 0 gathered through MPI.
    fn connect_monitor(&self, options: &Options) -> Result<Option<Tcp>, Error> {
        let Position { rank, size, local_size, .. } = self.position;
        if size == 1 {
            return Ok(None);
        }
        let mut config = RendezvousConfig { rank, size, ports: vec![0], ..RendezvousConfig::default() };
        let mut listener = None;
        let mut lines = Vec::new();
        if rank == 0 {
            let host = host();
            if local_size == size {
                config.hosts.push(Ipv4Addr::LOCALHOST.to_string());
            }
            listener = tcp::listen_on_port(&config).ok();
            if config.hosts.is_empty() {
                config.hosts.push(host.name.clone());
                config.hosts.extend(addresses().iter().map(IpAddr::to_string));
            }
            let port = listener.as_ref().and_then(|listener| Some(listener.local_addr().ok()?.port()));
            lines.push(port.unwrap_or(0).to_string());
            lines.push(format!("mpi {} {}", host.name, std::process::id()));
            lines.append(&mut config.hosts);
        }
        let text = self.all_gather(lines.join("\n").as_bytes())?.into_iter().next().unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let mut lines = text.lines().map(str::to_owned);
        let port = lines.next().and_then(|port| port.parse().ok()).unwrap_or(0);
        if port == 0 {
            // Rank 0 cannot listen.
            if rank == 0 {
                log::warn(format_args!("rank 0 cannot listen, so hanging ranks are not detected"));
            }
            return Ok(None);
        }
        (config.ports, config.key, config.hosts) =
            (vec![port], lines.next().unwrap_or_default(), lines.collect());
        let options = Options { timeout: options.timeout.min(MONITOR_TIMEOUT), ..options.clone() };
        let joined = tcp::join_world(&config, &options, listener);
        if let (0, Err(error)) = (rank, &joined) {
            log::warn(format_args!("hanging ranks are not detected: {error}"));
        }
        Ok(joined.ok())
    }
}

/// Converts a rank or a number of ranks. MPI never makes it negative.
fn index(number: ::mpi::Count) -> usize {
    usize::try_from(number).unwrap_or(0)
}

/// Extracts name and version, as `Open MPI 4.1.4`, from the text of `MPI_Get_library_version`. It may have
/// many lines.
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
    fn position(&self) -> Position {
        self.position
    }

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn barrier(&self) -> Result<(), Error> {
        let _turn = lock(&self.call);
        self.world().barrier();
        Ok(())
    }

    /// `MPI_Allgather` of the lengths, then `MPI_Allgatherv`.
    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let _turn = lock(&self.call);
        let world = self.world();
        let mut lengths = vec![0_u64; self.size()];
        world.all_gather_into(&(mine.len() as u64), &mut lengths[..]);
        let total = lengths.iter().fold(0, |total: u64, length| total.saturating_add(*length));
        if i32::try_from(total).is_err() {
            return Err(Error::Mismatch(format!(
                "an all_gather of {total} bytes over all ranks is too long for MPI: the limit is {} bytes",
                i32::MAX
            )));
        }
        // Each length fits, since the sum does.
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
        // Open MPI reports an error for empty buffers.
        if total > 0 {
            world.all_gather_varcount_into(
                mine,
                &mut PartitionMut::new(&mut all[..], &counts[..], &starts[..]),
            );
        }
        let message = |(&start, &count): (&i32, &i32)| all[index(start)..][..index(count)].to_vec();
        Ok(starts.iter().zip(&counts).map(message).collect())
    }

    fn monitor(&self) -> Option<&dyn World> {
        self.monitor.as_ref().map(|monitor| monitor as &dyn World)
    }

    /// `MPI_Abort`. Does not wait for a thread inside MPI: it may hang.
    fn abort(&self, code: i32, message: &str) -> ! {
        self.end(code, None, message)
    }

    fn name_ranks(&self, per_process: usize) -> bool {
        self.monitor().is_some_and(|monitor| monitor.name_ranks(per_process))
    }

    fn rejoin(&self) -> Result<Rejoin, Error> {
        let problem = format!(
            "the ranks of {} end together and cannot continue without one of them: start the job again \
             after a failure",
            self.name
        );
        Err(Error::UnsuitableKind { problem, instead: Kind::Tcp })
    }

    fn fail_as(&self, rank: usize, reason: Reason) {
        if let Some(monitor) = &self.monitor {
            monitor.fail_as(rank, reason);
        }
    }

    fn abort_as(&self, rank: usize, code: i32, message: &str) -> ! {
        self.end(code, Some(rank), message)
    }
}

impl Mpi {
    fn end(&self, code: i32, rank: Option<usize>, message: &str) -> ! {
        if let Some(monitor) = &self.monitor {
            monitor.state.announce_end(code, rank, message);
        } else {
            process_exit::claim_end();
            let rank = rank.unwrap_or(self.rank());
            process_exit::report_once(&format!("rank {rank} on host {}: {message}", host().name));
        }
        self.world().abort(code)
    }
}

impl Drop for Mpi {
    fn drop(&mut self) {
        if thread::panicking() {
            // Informs the other ranks, since this thread is panicking.
            self.monitor = None;
            self.world().abort(process_exit::PANICKED)
        }
        self.monitor = None;
        // SAFETY: the universe is not used again: it is dropped here only, and `self` ends here.
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
