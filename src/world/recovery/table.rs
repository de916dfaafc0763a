//! The processes of a job, as each of them knows them.

use crate::world::{Error, Handle, Host, Rejoin, addresses, host, machine};
use std::fmt::Write;
use std::fs::{self, File};
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

/// A process of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct JobProcess {
    /// First of its ranks in the world.
    pub(super) first: usize,
    /// Number of its ranks.
    pub(super) ranks: usize,
    pub(super) host: Host,
    /// Its loopback interface, by the kernel and the network namespace: containers of one host may have their
    /// own.
    pub(super) loopback: String,
    /// Addresses of its service; any of them may be the right one. None in a job of one process.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) port: u16,
}

impl JobProcess {
    /// Text for messages: `rank 3 on host a`, `ranks 2 to 3 on host a`.
    pub(super) fn describe_process(&self) -> String {
        let host = &self.host.name;
        match self.ranks {
            1 => format!("rank {} on host {host}", self.first),
            ranks => format!("ranks {} to {} on host {host}", self.first, self.first + ranks - 1),
        }
    }
}

/// A rank's contribution to the first gather.
struct Introduction {
    token: String,
    host: Host,
    loopback: String,
    key: String,
    /// The reason why its process cannot continue after a failure; empty if it can.
    refusal: String,
}

/// The processes of a job, in rank order, and this rank's place among them.
pub(super) struct Introduced {
    pub(super) key: String,
    pub(super) processes: Vec<JobProcess>,
    /// This process.
    pub(super) me: usize,
    /// This rank's number among the ranks of its process.
    pub(super) thread: usize,
    pub(super) rejoin: Rejoin,
}

/// Gathers the placement of the ranks in processes, and a key for the job. Collective.
///
/// # Errors
/// If the gather fails, a process cannot continue after a failure, or processes have different numbers of
/// ranks.
pub(super) fn introduce_processes(world: &Handle) -> Result<Introduced, Error> {
    // A rank that cannot continue after a failure also takes part in the gather, to inform all ranks.
    let prepared = world.rejoin().and_then(|rejoin| Ok((rejoin, process_token()?, new_key()?)));
    let refusal =
        prepared.as_ref().err().map(|error| error.to_string().replace('\n', " ")).unwrap_or_default();
    let (token, key) = prepared.as_ref().map_or(("", ""), |(_, token, key)| (token, key));
    let host = host();
    let mine = [token, &host.id, &host.name, &loopback_identity(), key, &refusal].join("\n");
    let all = world.all_gather(mine.as_bytes())?;
    let all: Vec<Introduction> = all.iter().map(|text| read_introduction(text)).collect::<Result<_, _>>()?;
    if let Some((rank, other)) = all.iter().enumerate().find(|(_, other)| !other.refusal.is_empty()) {
        return Err(Error::Launcher(format!("rank {rank} on host {}: {}", other.host.name, other.refusal)));
    }
    let mut processes: Vec<JobProcess> = Vec::new();
    let (mut me, mut thread) = (0, 0);
    for (rank, other) in all.iter().enumerate() {
        match processes.last_mut().filter(|_| rank > 0 && all[rank - 1].token == other.token) {
            Some(process) => process.ranks += 1,
            None => processes.push(JobProcess {
                first: rank,
                ranks: 1,
                host: other.host.clone(),
                loopback: other.loopback.clone(),
                addresses: Vec::new(),
                port: 0,
            }),
        }
        if rank == world.rank() {
            me = processes.len() - 1;
            thread = rank - processes[me].first;
        }
    }
    if let Some(other) = processes.iter().find(|other| other.ranks != processes[0].ranks) {
        return Err(Error::Mismatch(format!(
            "{} share a process, but {} do not: every process needs the same number of consecutive ranks to \
             continue after a failure",
            processes[0].describe_process(),
            other.describe_process()
        )));
    }
    let key = all.into_iter().next().map(|first| first.key).unwrap_or_default();
    let (rejoin, ..) = prepared?;
    Ok(Introduced { key, processes, me, thread, rejoin })
}

fn read_introduction(text: &[u8]) -> Result<Introduction, Error> {
    let text = String::from_utf8_lossy(text);
    let lines: Vec<String> = text.split('\n').map(str::to_owned).collect();
    let Ok([token, id, name, loopback, key, refusal]) = <[String; 6]>::try_from(lines) else {
        return Err(Error::Mismatch(
            "a rank gathers something else while others prepare for failures".to_owned(),
        ));
    };
    Ok(Introduction { token, host: Host { name, id }, loopback, key, refusal })
}

/// True if all processes are on one host and reach each other over its loopback interface. Over another one,
/// a live process would refuse connections like an ended one.
pub(super) fn on_one_host(processes: &[JobProcess]) -> bool {
    share_loopback(processes) && processes.iter().all(|process| process.host.id == processes[0].host.id)
}

fn share_loopback(processes: &[JobProcess]) -> bool {
    processes.iter().all(|process| process.loopback == processes[0].loopback)
}

fn loopback_identity() -> String {
    let namespace = fs::metadata("/proc/self/ns/net").map_or(0, |namespace| namespace.ino());
    format!("{} {namespace}", machine())
}

/// Gathers the addresses of all processes' services. Collective. `port` is this process's port, or an error.
///
/// # Errors
/// If the gather fails, or a process has no service.
pub(super) fn exchange_addresses(
    world: &Handle,
    introduced: &mut Introduced,
    port: Result<u16, String>,
) -> Result<(), Error> {
    let local = on_one_host(&introduced.processes);
    let known =
        introduced.rejoin.address.filter(|address| !address.is_loopback() && !address.is_unspecified());
    let addresses = match known {
        _ if local => vec![IpAddr::V4(Ipv4Addr::LOCALHOST)],
        Some(address) => vec![address],
        None => match addresses() {
            // A machine without a network, but several hosts by `NCCL_HOSTID`.
            none if none.is_empty() && share_loopback(&introduced.processes) => {
                vec![IpAddr::V4(Ipv4Addr::LOCALHOST)]
            }
            addresses => addresses,
        },
    };
    let mine = match port {
        Ok(port) => addresses.iter().fold(port.to_string(), |mut text, address| {
            let _ = write!(text, " {address}");
            text
        }),
        Err(error) => format!("0 {error}"),
    };
    let all = world.all_gather(mine.as_bytes())?;
    for process in &mut introduced.processes {
        let text = all.get(process.first).map(Vec::as_slice).unwrap_or_default();
        let text = String::from_utf8_lossy(text);
        let (port, rest) = text.split_once(' ').unwrap_or((&text, ""));
        process.port = port.parse().unwrap_or(0);
        process.addresses = rest.split(' ').filter_map(|address| address.parse().ok()).collect();
        if process.port == 0 || process.addresses.is_empty() {
            let reason =
                if process.port == 0 { rest } else { "it has no address that other ranks can reach" };
            return Err(Error::Rendezvous(format!(
                "{} cannot be asked after a failure: {reason}",
                process.describe_process()
            )));
        }
    }
    Ok(())
}

/// Returns an unguessable key: 128 random bits.
pub(super) fn new_key() -> Result<String, Error> {
    let mut bytes = [0; 16];
    let read = File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes));
    read.map_err(|error| {
        Error::Environment(format!("/dev/urandom cannot be read for a job's key: {error}"))
    })?;
    Ok(format!("shrink {:032x}", u128::from_le_bytes(bytes)))
}

/// Identity of this process, the same for all of its threads.
fn process_token() -> Result<&'static str, Error> {
    static TOKEN: OnceLock<String> = OnceLock::new();
    match TOKEN.get() {
        Some(token) => Ok(token),
        None => {
            let new = new_key()?;
            Ok(TOKEN.get_or_init(|| new))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_of_one_host_by_name_need_one_loopback_interface_too() {
        let process = |id: &str, loopback: &str| JobProcess {
            first: 0,
            ranks: 1,
            host: Host { name: "node1".to_owned(), id: id.to_owned() },
            loopback: loopback.to_owned(),
            addresses: Vec::new(),
            port: 0,
        };
        assert!(on_one_host(&[process("node1", "a 1"), process("node1", "a 1")]));
        // Containers, and hosts with one restored image of memory.
        assert!(!on_one_host(&[process("node1", "a 1"), process("node1", "a 2")]));
        assert!(!on_one_host(&[process("node1", "a 1"), process("node2", "a 1")]));
        assert_eq!(loopback_identity(), loopback_identity());
        assert!(!loopback_identity().ends_with(" 0"), "{}", loopback_identity());
    }
}
