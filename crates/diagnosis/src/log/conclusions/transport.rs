//! The transport between each pair of ranks: proofs of the log, the matrix, and slow transports.

use std::collections::{BTreeMap, BTreeSet};

use super::job::{Job, count};
use crate::examination::{Cell, Grade, Matrix};
use crate::log::digest::{Communicator, Connection, Transport};

/// Largest number of ranks of the matrix.
pub(super) const MATRIX: usize = 256;

/// The way of data between two ranks, in the words of reports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    /// Between GPUs over NVLink, with a proof in the log.
    NvLink,
    /// NVLink between nodes.
    Mnnvl,
    /// Between GPUs, over NVLink or PCIe.
    P2p,
    /// Between GPUs without a link, over the NVLinks of a third one.
    Relayed,
    /// A network, with GPUDirect RDMA.
    NetDirect(String),
    /// The host's shared memory.
    Shm,
    /// A network, staged through the host's memory.
    NetStaged(String),
    /// TCP sockets.
    Socket,
    /// Another word of the log.
    Other(String),
}

impl Way {
    /// Returns the way of a connection: the slowest way of its channels.
    fn from_connection(connection: &Connection, proof: Proof) -> Option<Self> {
        connection.transports.keys().map(|transport| Self::of_transport(transport, proof)).max()
    }

    fn of_transport(transport: &Transport, proof: Proof) -> Self {
        match transport {
            Transport::P2p { how, .. } if how == "indirect" => Self::Relayed,
            Transport::P2p { read, .. } if proof.linked || *read && proof.by_read => Self::NvLink,
            Transport::P2p { .. } => Self::P2p,
            Transport::Mnnvl => Self::Mnnvl,
            Transport::Shm => Self::Shm,
            Transport::Net { name, .. } if name.eq_ignore_ascii_case("socket") => Self::Socket,
            Transport::Net { name, gdr: true, .. } => Self::NetDirect(name.clone()),
            Transport::Net { name, .. } => Self::NetStaged(name.clone()),
            Transport::Other(word) => Self::Other(word.clone()),
        }
    }

    /// Returns the text in a cell.
    pub(super) fn short_text(&self) -> String {
        match self {
            Self::NvLink => "NVL".to_owned(),
            Self::Mnnvl => "MNNVL".to_owned(),
            Self::P2p => "P2P".to_owned(),
            Self::Relayed => "NVB".to_owned(),
            Self::NetDirect(_) => "GDR".to_owned(),
            Self::Shm => "SHM".to_owned(),
            Self::NetStaged(_) => "NET".to_owned(),
            Self::Socket => "TCP".to_owned(),
            Self::Other(word) => word.chars().take(8).collect(),
        }
    }

    /// Returns the words in sentences and in the legend.
    pub(super) fn long_text(&self) -> String {
        match self {
            Self::NvLink => "NVLink P2P".to_owned(),
            Self::Mnnvl => "NVLink between nodes (MNNVL)".to_owned(),
            Self::P2p => "P2P".to_owned(),
            Self::Relayed => "NVLink through another GPU (P2P/indirect)".to_owned(),
            Self::NetDirect(name) => format!("NET/{name} with GPUDirect RDMA"),
            Self::Shm => "shared memory of the host (SHM)".to_owned(),
            Self::NetStaged(name) => format!("NET/{name} without GPUDirect RDMA"),
            Self::Socket => "TCP (NET/Socket)".to_owned(),
            Self::Other(word) => word.clone(),
        }
    }

    pub(super) fn grade(&self) -> Grade {
        match self {
            Self::NvLink | Self::Mnnvl => Grade::Fastest,
            Self::P2p | Self::Relayed | Self::NetDirect(_) => Grade::Fast,
            Self::Shm | Self::NetStaged(_) => Grade::Staged,
            Self::Socket => Grade::Slow,
            Self::Other(_) => Grade::None,
        }
    }
}

/// Facts that prove NVLink between two GPUs.
#[derive(Clone, Copy, Debug)]
struct Proof {
    /// The topology connects them by NVLink.
    linked: bool,
    /// NCCL chose `/read` itself, between GPUs of compute capability 8.0: it does so only over NVLink.
    by_read: bool,
}

/// The ways of all pairs in the log.
pub(super) struct Ways<'a> {
    pub(super) communicator: &'a Communicator,
    /// Ways by sender and receiver.
    pub(super) pairs: BTreeMap<(u32, u32), Way>,
    /// Pairs of ranks connected by NVLink, even without data between them.
    pub(super) linked: BTreeSet<(u32, u32)>,
}

impl<'a> Ways<'a> {
    /// Collects the ways of the connections of all communicators, between the ranks of this one.
    pub(super) fn new(job: &Job<'a>, communicator: &'a Communicator) -> Self {
        let linked = find_nvlink_pairs(job, communicator);
        let by_read = job.variables_named("NCCL_P2P_READ_ENABLE").next().is_none();
        let by_writer: BTreeMap<usize, u32> =
            communicator.members.iter().map(|(&rank, member)| (member.writer, rank)).collect();
        let mut pairs: BTreeMap<(u32, u32), Way> = BTreeMap::new();
        for other in &job.digest.communicators {
            let rank = |rank: u32| match std::ptr::eq(other, communicator) {
                true => Some(rank),
                false => by_writer.get(&other.members.get(&rank)?.writer).copied(),
            };
            for (&(from, to), connection) in &other.connections {
                let (Some(from), Some(to)) = (rank(from), rank(to)) else { continue };
                let Some(way) =
                    Way::from_connection(connection, Proof { linked: linked.contains(&(from, to)), by_read })
                else {
                    continue;
                };
                let slowest = pairs.entry((from, to)).or_insert_with(|| way.clone());
                *slowest = way.max(slowest.clone());
            }
        }
        Self { communicator, pairs, linked }
    }

    /// Returns the pairs by way.
    pub(super) fn by_way(&self) -> BTreeMap<&Way, Vec<(u32, u32)>> {
        let mut by_way: BTreeMap<&Way, Vec<(u32, u32)>> = BTreeMap::new();
        for (&pair, way) in &self.pairs {
            by_way.entry(way).or_default().push(pair);
        }
        by_way
    }

    /// Returns the number of ordered pairs of all ranks.
    pub(super) fn possible_pairs(&self) -> usize {
        let ranks = self.communicator.ranks as usize;
        ranks.saturating_mul(ranks.saturating_sub(1))
    }

    /// Returns the ranks without a connection in the log.
    pub(super) fn unconnected_ranks(&self) -> Vec<u32> {
        let touched: BTreeSet<u32> = self.pairs.keys().flat_map(|&(from, to)| [from, to]).collect();
        (0..self.communicator.ranks).filter(|rank| !touched.contains(rank)).collect()
    }

    /// Returns sentences about the ways in the log.
    pub(super) fn describe_ways(&self) -> Vec<String> {
        let ranks = describe_size(self.communicator);
        let all = if self.communicator.is_size_guessed { usize::MAX } else { self.possible_pairs() };
        let everywhere = match all {
            2 => "between the 2 ranks".to_owned(),
            _ => format!("between all {all} pairs of {ranks} ranks"),
        };
        let by_way = self.by_way();
        if by_way.len() == 1 && by_way.contains_key(&Way::NvLink) && self.linked.len() == all {
            return vec![match self.pairs.len() {
                number if number == all => format!("NVLink P2P {everywhere}"),
                number => format!(
                    "NVLink {everywhere} by the topology; P2P over it on the {} of the log",
                    count(number, "connection")
                ),
            }];
        }
        let sentence = |(way, pairs): (&&Way, &Vec<(u32, u32)>)| match pairs.len() {
            number if number == all => format!("{} {everywhere}", way.long_text()),
            1 => format!("{} on 1 connection between {ranks} ranks", way.long_text()),
            number => format!("{} on {number} connections between {ranks} ranks", way.long_text()),
        };
        by_way.iter().map(sentence).collect()
    }

    /// Returns the ranks of the matrix: all, or the log's ranks for a communicator of more than [`MATRIX`]
    /// ranks, or `None` for more than [`MATRIX`] ranks of the log.
    fn ranks_shown(&self) -> Option<Vec<u32>> {
        let of_log = || {
            let members = self.communicator.members.keys().copied();
            let connected = self.pairs.keys().flat_map(|&(from, to)| [from, to]);
            members.chain(connected).collect::<BTreeSet<u32>>().into_iter().collect()
        };
        let all = self.communicator.ranks;
        let is_cut = all as usize > MATRIX || self.communicator.is_size_guessed;
        let ranks: Vec<u32> = if is_cut { of_log() } else { (0..all).collect() };
        (ranks.len() <= MATRIX).then_some(ranks)
    }

    /// Returns the picture of all pairs, or `None` for a picture above the limit.
    pub(super) fn draw_matrix(&self) -> Option<Matrix> {
        let ranks = self.ranks_shown()?;
        let cell = |from: u32, to: u32| match self.pairs.get(&(from, to)) {
            Some(way) => Cell { text: way.short_text(), grade: way.grade() },
            None if self.linked.contains(&(from, to)) => {
                Cell { text: "nvl".to_owned(), grade: Grade::Fastest }
            }
            None => Cell::default(),
        };
        let cells: Vec<Vec<Cell>> =
            ranks.iter().map(|&from| ranks.iter().map(|&to| cell(from, to)).collect()).collect();
        let mut legend: BTreeMap<String, String> = BTreeMap::new();
        for way in self.pairs.values() {
            let words = if *way == Way::P2p {
                "P2P between GPUs, over NVLink or PCIe".to_owned()
            } else {
                way.long_text()
            };
            legend.insert(way.short_text(), words);
        }
        if self.linked.iter().any(|pair| !self.pairs.contains_key(pair)) {
            let words = "NVLink by the topology; the log has no connection of this pair";
            legend.insert("nvl".to_owned(), words.to_owned());
        }
        Some(Matrix {
            labels: ranks.iter().map(u32::to_string).collect(),
            cells,
            legend: legend.into_iter().collect(),
        })
    }
}

/// Returns the number of ranks: `8`, or `at least 8` if no line has it.
pub(super) fn describe_size(communicator: &Communicator) -> String {
    let least = if communicator.is_size_guessed { "at least " } else { "" };
    format!("{least}{}", communicator.ranks)
}

/// Returns pairs of ranks with NVLink between their GPUs in the topology.
fn find_nvlink_pairs(job: &Job<'_>, communicator: &Communicator) -> BTreeSet<(u32, u32)> {
    let mut kinds: BTreeMap<(&str, &str, &str), bool> = BTreeMap::new();
    for path in &job.digest.paths {
        let nvlink = kinds.entry((&path.host, &path.from, &path.to)).or_insert(true);
        *nvlink &= path.kind == "NVL";
    }
    if kinds.is_empty() {
        return BTreeSet::new();
    }
    let mut by_gpu: BTreeMap<(&str, &str), u32> = BTreeMap::new();
    for (&rank, member) in &communicator.members {
        if let (Some(host), Some(bus)) = (job.host_of_rank(communicator, rank), member.bus_id.as_deref()) {
            by_gpu.insert((host, bus), rank);
        }
    }
    let pair =
        |(host, from, to): (&str, &str, &str)| Some((*by_gpu.get(&(host, from))?, *by_gpu.get(&(host, to))?));
    kinds.into_iter().filter(|(_, nvlink)| *nvlink).filter_map(|(path, _)| pair(path)).collect()
}
