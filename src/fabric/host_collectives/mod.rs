//! One rank's part in the collectives of a communicator.

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use crate::fabric::Error;
use crate::fabric::algorithm::engine::{self, Memory, OperationContext, Sequence, Workspace};
use crate::fabric::algorithm::hierarchical::{self, Levels};
use crate::fabric::algorithm::{Position, Schedule, Spec, Tree, all_gather, all_reduce, barrier};
use crate::fabric::calls::{CallHash, CallRecord, CallSignature};
use crate::fabric::hosts::{HostPosition, Hosts};
use crate::fabric::reduction::Reduction;
use crate::fabric::selection::{self, Algorithm, Collective, Medium, Plan, PlanTable, Topology};
use crate::fabric::shared_memory::segment::{COMPARE_TIMEOUT, SharedSegment};
use crate::fabric::transport::Transport;
use crate::{Element, ReduceOp};

mod all_to_all;
mod point_to_point;
mod rooted;
mod shared_memory;

/// What decides how operations are carried out: the same on every rank.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SelectionOptions {
    pub(crate) medium: Medium,
    pub(crate) all_reduce: Option<Algorithm>,
    pub(crate) all_gather: Option<Algorithm>,
    pub(crate) reduce_scatter: Option<Algorithm>,
    pub(crate) broadcast: Option<Algorithm>,
    pub(crate) reduce: Option<Algorithm>,
    pub(crate) all_to_all: Option<Algorithm>,
    pub(crate) all_to_all_v: Option<Algorithm>,
    pub(crate) gather: Option<Algorithm>,
    pub(crate) scatter: Option<Algorithm>,
    pub(crate) between: Option<Algorithm>,
    pub(crate) segment: Option<usize>,
    pub(crate) in_flight: Option<usize>,
}

impl SelectionOptions {
    /// Lists the options that are set, by their names in [`Options`](super::Options):
    /// `provider = shm, all_reduce = ring`.
    pub(crate) fn describe(&self, provider: Option<&str>) -> String {
        let algorithms = [
            ("all_reduce", self.all_reduce),
            ("all_gather", self.all_gather),
            ("reduce_scatter", self.reduce_scatter),
            ("broadcast", self.broadcast),
            ("reduce", self.reduce),
            ("all_to_all", self.all_to_all),
            ("all_to_all_v", self.all_to_all_v),
            ("gather", self.gather),
            ("scatter", self.scatter),
            ("between", self.between),
        ];
        let algorithms =
            algorithms.map(|(name, algorithm)| (name, algorithm.map(|chosen| chosen.to_string())));
        let sizes = [("segment", self.segment), ("in_flight", self.in_flight)];
        let sizes = sizes.map(|(name, size)| (name, size.map(|size| size.to_string())));
        let given: Vec<String> = [("provider", provider.map(str::to_owned))]
            .into_iter()
            .chain(algorithms)
            .chain(sizes)
            .filter_map(|(name, value)| Some(format!("{name} = {}", value?)))
            .collect();
        if given.is_empty() { "none given".to_owned() } else { given.join(", ") }
    }

    /// What the table decides.
    #[cfg(test)]
    pub(crate) const fn table(medium: Medium) -> Self {
        Self {
            medium,
            all_reduce: None,
            all_gather: None,
            reduce_scatter: None,
            broadcast: None,
            reduce: None,
            all_to_all: None,
            all_to_all_v: None,
            gather: None,
            scatter: None,
            between: None,
            segment: None,
            in_flight: None,
        }
    }

    /// The algorithm that is asked for.
    const fn wanted(&self, collective: Collective) -> Option<Algorithm> {
        match collective {
            Collective::AllReduce => self.all_reduce,
            Collective::AllGather => self.all_gather,
            Collective::ReduceScatter => self.reduce_scatter,
            Collective::Broadcast => self.broadcast,
            Collective::Reduce => self.reduce,
            Collective::AllToAll => self.all_to_all,
            Collective::AllToAllV => self.all_to_all_v,
            Collective::Gather => self.gather,
            Collective::Scatter => self.scatter,
        }
    }
}

/// One rank's part in the collectives of a communicator, over any transport.
///
/// An operation borrows the caller's buffers only while it runs, but posts requests that a transport may serve for
/// as long as it is open. So an operation owns the transport while it runs, and gives it back when all its requests
/// are complete; after an error or a panic it does not, which closes the transport before the borrows end.
pub(crate) struct HostCollectives<T> {
    transport: Option<Box<T>>,
    rank: usize,
    ranks: usize,
    medium: Medium,
    plans: PlanTable,
    /// How many operations of all ranks there have been.
    sequence: u64,
    /// The one that is under way, or will be.
    call: CallSignature,
    /// All of them.
    history: CallHash,
    /// Messages that each rank was sent, and that came from it, outside of collectives.
    pairs: Vec<PeerCounts>,
    workspace: Workspace,
    shared: Option<SharedSegment>,
    /// Which ranks share a host.
    hosts: Arc<Hosts>,
    /// For ordering parts of any lengths.
    sorted_ranks: Vec<usize>,
    /// Whether it has been said that there will be no other operation.
    has_left: bool,
}

/// Jobs of more ranks do not say of pairs that never exchanged a message that they will not.
const MAX_ANNOUNCED_PAIRS: usize = 64;

#[derive(Clone, Copy, Default)]
struct PeerCounts {
    sent: u64,
    received: u64,
}

impl<T: Transport> HostCollectives<T> {
    /// Over a network, what it says about the ranks' hosts decides whether these count.
    pub(crate) fn new(
        transport: T,
        shared: Option<SharedSegment>,
        mut selection_options: SelectionOptions,
    ) -> Result<Self, Error> {
        let (rank, ranks) = (transport.rank(), transport.size());
        let hosts = Arc::new(transport.hosts());
        if selection_options.medium == Medium::Network && hosts.is_hierarchical() {
            selection_options.medium = Medium::Hosts;
        }
        for collective in Collective::ALL {
            let can = |algorithm: &Algorithm| {
                let has = match algorithm {
                    Algorithm::Board => shared.is_some() || ranks == 1,
                    Algorithm::Hierarchical => selection_options.medium == Medium::Hosts,
                    _ => true,
                };
                has && algorithm.serves(collective, ranks)
            };
            if let Some(algorithm) = selection_options.wanted(collective).filter(|algorithm| !can(algorithm))
            {
                let choices = selection::names(Algorithm::ALL.into_iter().filter(can));
                return Err(Error::Algorithm { collective, algorithm, ranks, choices });
            }
        }
        let topology = Topology {
            medium: selection_options.medium,
            ranks,
            hosts: hosts.count(),
            shared: shared.is_some(),
        };
        let plans = PlanTable::new(|collective, bytes| {
            let plan = selection::plan(collective, &topology, bytes, selection_options.wanted(collective));
            plan.with(
                collective,
                selection_options.between,
                selection_options.segment,
                selection_options.in_flight,
            )
        });
        let transport = Some(Box::new(transport));
        let workspace = Workspace::default();
        let pairs = vec![PeerCounts::default(); ranks];
        let (sequence, call, history, sorted_ranks) =
            (0, CallSignature::BARRIER, CallHash::default(), Vec::new());
        Ok(Self {
            transport,
            rank,
            ranks,
            medium: selection_options.medium,
            plans,
            sequence,
            call,
            history,
            pairs,
            workspace,
            shared,
            hosts,
            sorted_ranks,
            has_left: false,
        })
    }

    pub(crate) fn rank(&self) -> usize {
        self.rank
    }

    /// Says that this rank calls nothing more, and has that compared with what others have called, or will: who waits for
    /// it in another operation would wait for ever.
    pub(crate) fn leave(&mut self) {
        let Some(transport) = self.transport.as_mut().filter(|_| !self.has_left) else { return };
        self.has_left = true;
        transport.record(CallRecord::collective(self.sequence + 1, CallSignature::LEFT));
        for (peer, &PeerCounts { sent, received }) in self.pairs.iter().enumerate() {
            if peer != self.rank && (self.ranks <= MAX_ANNOUNCED_PAIRS || sent + received > 0) {
                transport.record(CallRecord::message(self.rank, peer, sent + 1, CallSignature::LEFT));
                transport.record(CallRecord::message(peer, self.rank, received + 1, CallSignature::LEFT));
            }
        }
        transport.compare();
    }

    pub(crate) fn size(&self) -> usize {
        self.ranks
    }

    pub(crate) fn plan(&self, collective: Collective, bytes: usize) -> Plan {
        self.plans.of(collective, bytes)
    }

    fn position(&self) -> Position {
        Position { rank: self.rank, ranks: self.ranks }
    }

    fn tree(&self, root: usize) -> Tree {
        Tree { rank: self.rank, ranks: self.ranks, root }
    }

    /// Where this rank is among `hosts`, for a plan with two levels.
    fn levels<'a>(&self, hosts: &'a Hosts, plan: Plan) -> Levels<'a> {
        let between = plan.between.unwrap_or(Algorithm::Ring);
        Levels { here: HostPosition::new(hosts, self.rank), between }
    }

    /// Whether there is nobody to talk to, on a communicator that can be used.
    fn is_single_rank(&self) -> bool {
        self.ranks == 1 && self.transport.is_some()
    }

    /// Checks that there is a root of this number.
    fn check_root(&self, operation: &'static str, root: usize) -> Result<(), Error> {
        if root < self.ranks {
            return Ok(());
        }
        let problem = format!("the root is rank {root}, but the ranks are 0 to {}", self.ranks - 1);
        Err(Error::Rank { operation, problem })
    }

    /// Checks that a whole buffer has a part for each rank.
    fn check_parts(
        &self,
        operation: &'static str,
        (whole, whole_len): (&str, usize),
        (part, part_len): (&str, usize),
    ) -> Result<(), Error> {
        if part_len.checked_mul(self.ranks) == Some(whole_len) {
            return Ok(());
        }
        let problem = format!(
            "the {part} buffer has {part_len} elements and there are {} ranks, but the {whole} buffer has \
             {whole_len} elements; it must have as many as all {part} buffers together",
            self.ranks
        );
        Err(Error::Length { operation, problem })
    }

    /// Checks that a buffer can be cut into a part for each rank.
    fn check_multiple(&self, operation: &'static str, len: usize) -> Result<(), Error> {
        if len.is_multiple_of(self.ranks) {
            return Ok(());
        }
        let problem = format!(
            "the buffer has {len} elements, which is no multiple of the number of ranks, {}",
            self.ranks
        );
        Err(Error::Length { operation, problem })
    }

    pub(crate) fn all_reduce<E: Element>(
        &mut self,
        send: &[E],
        receive: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        check_equal(Collective::AllReduce.name(), send.len(), receive.len())?;
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: two buffers of this many elements, borrowed until this returns.
        unsafe { self.all_reduce_memory::<E>(memory, receive.len(), op) }
    }

    pub(crate) fn all_reduce_in_place<E: Element>(
        &mut self,
        data: &mut [E],
        op: ReduceOp,
    ) -> Result<(), Error> {
        if self.is_single_rank() {
            return Ok(());
        }
        let memory = Memory::in_place(data, 0..data.len(), 0..data.len());
        // SAFETY: one buffer of this many elements for both, borrowed until this returns.
        unsafe { self.all_reduce_memory::<E>(memory, data.len(), op) }
    }

    /// # Safety
    /// Both buffers have `count` elements of type `E`, are the same or disjoint, and borrowed while this runs.
    unsafe fn all_reduce_memory<E: Element>(
        &mut self,
        memory: Memory,
        count: usize,
        op: ReduceOp,
    ) -> Result<(), Error> {
        let collective = Collective::AllReduce;
        self.call = CallSignature::of::<E>(collective, count).with_op(op);
        let reduction = Reduction::new(E::DATA_TYPE, op);
        let plan = self.plan(collective, count * size_of::<E>());
        let spec = Spec {
            at: self.position(),
            count,
            element_size: reduction.element_size(),
            segment: plan.segment,
            in_flight: plan.in_flight,
        };
        let reduction = &reduction;
        let name = collective.name();
        let hosts = Arc::clone(&self.hosts);
        // SAFETY: the schedules are made for buffers of `count` elements of type `E`.
        unsafe {
            match plan.algorithm {
                Algorithm::Board => self.all_reduce_in_shared_memory(name, memory, reduction, plan.segment),
                Algorithm::Hierarchical => {
                    let levels = self.levels(&hosts, plan);
                    let schedule = hierarchical::all_reduce::Hierarchical { levels, spec };
                    self.run(name, &schedule, memory, Some(reduction))
                }
                Algorithm::Direct => self.run(name, &all_reduce::Direct(spec), memory, Some(reduction)),
                Algorithm::RecursiveDoubling => {
                    self.run(name, &all_reduce::RecursiveDoubling(spec), memory, Some(reduction))
                }
                Algorithm::Pairwise => self.run(name, &all_reduce::Pairwise(spec), memory, Some(reduction)),
                Algorithm::Rabenseifner => {
                    self.run(name, &all_reduce::Rabenseifner(spec), memory, Some(reduction))
                }
                // The ring, which serves every number of ranks.
                _ => self.run(name, &all_reduce::Ring(spec), memory, Some(reduction)),
            }
        }
    }

    pub(crate) fn all_gather<E: Element>(&mut self, send: &[E], receive: &mut [E]) -> Result<(), Error> {
        self.check_parts(Collective::AllGather.name(), ("receive", receive.len()), ("send", send.len()))?;
        if self.is_single_rank() {
            receive.copy_from_slice(send);
            return Ok(());
        }
        let memory = Memory::out_of_place(send, receive);
        // SAFETY: a buffer of this many bytes and one for all ranks, borrowed until this returns.
        unsafe { self.all_gather_memory::<E>(memory, size_of_val(send)) }
    }

    pub(crate) fn all_gather_in_place<E: Element>(&mut self, data: &mut [E]) -> Result<(), Error> {
        self.check_multiple(Collective::AllGather.name(), data.len())?;
        if self.is_single_rank() {
            return Ok(());
        }
        let memory = Memory::in_place(data, own_range(self.rank, self.ranks, data.len()), 0..data.len());
        // SAFETY: a buffer of a block for each rank, borrowed until this returns, with this rank's own for a source.
        unsafe { self.all_gather_memory::<E>(memory, memory.source_len) }
    }

    /// # Safety
    /// The target has `block` bytes for each rank and the source is this rank's part of it or `block` other bytes;
    /// both are borrowed while this runs.
    unsafe fn all_gather_memory<E: Element>(&mut self, memory: Memory, block: usize) -> Result<(), Error> {
        let collective = Collective::AllGather;
        self.call = CallSignature::of::<E>(collective, block / size_of::<E>());
        let plan = self.plan(collective, block);
        let spec = Spec {
            at: self.position(),
            count: block,
            element_size: 1,
            segment: plan.segment,
            in_flight: plan.in_flight,
        };
        let name = collective.name();
        let hosts = Arc::clone(&self.hosts);
        // SAFETY: the schedules are made for blocks of this size.
        unsafe {
            match plan.algorithm {
                Algorithm::Board => self.gather_in_shared_memory(name, memory, true, plan.segment),
                Algorithm::Hierarchical => {
                    let levels = self.levels(&hosts, plan);
                    let schedule = hierarchical::all_gather::Hierarchical { levels, spec };
                    self.run(name, &schedule, memory, None)
                }
                Algorithm::Direct => self.run(name, &all_gather::Direct(spec), memory, None),
                Algorithm::RecursiveDoubling => {
                    self.run(name, &all_gather::RecursiveDoubling(spec), memory, None)
                }
                Algorithm::Bruck => self.run(name, &all_gather::Bruck(spec), memory, None),
                // The ring, which serves every number of ranks.
                _ => self.run(name, &all_gather::Ring(spec), memory, None),
            }
        }
    }

    pub(crate) fn barrier(&mut self) -> Result<(), Error> {
        if self.is_single_rank() {
            return Ok(());
        }
        self.call = CallSignature::BARRIER;
        if self.shared.is_some() {
            return self.barrier_in_shared_memory();
        }
        let memory = Memory::out_of_place::<u8>(&[], &mut []);
        let hosts = Arc::clone(&self.hosts);
        // SAFETY: the barriers use scratch memory only.
        unsafe {
            if self.medium == Medium::Hosts {
                let schedule = hierarchical::barrier::Hierarchical(HostPosition::new(&hosts, self.rank));
                return self.run("barrier", &schedule, memory, None);
            }
            let schedule = barrier::Dissemination { rank: self.rank, ranks: self.ranks };
            self.run("barrier", &schedule, memory, None)
        }
    }

    /// Counts the operation that begins.
    fn record_call(&mut self) {
        if let Some(transport) = &mut self.transport {
            self.sequence += 1;
            self.history.add(self.call);
            transport.record(CallRecord::collective(self.sequence, self.call));
        }
    }

    /// Takes the transport back after an operation; if that failed, tells the other ranks and closes it.
    fn finish_operation(
        &mut self,
        name: &str,
        transport: Box<T>,
        result: Result<(), Error>,
    ) -> Result<(), Error> {
        if let (Some(shared), Err(_)) = (&self.shared, &result) {
            shared.fail();
        }
        match &result {
            Ok(()) => self.transport = Some(transport),
            // The others know.
            Err(Error::World(_)) => {}
            Err(error) => transport.fail(&format!("{name}: {error}")),
        }
        result
    }

    /// # Safety
    /// The memory is as large as the schedule says, aligned for the reduction's element type, and borrowed while
    /// this runs.
    unsafe fn run<S: Schedule>(
        &mut self,
        name: &'static str,
        schedule: &S,
        memory: Memory,
        reduction: Option<&Reduction>,
    ) -> Result<(), Error> {
        self.record_call();
        if let Some(shared) = self.shared.as_mut().filter(|_| self.transport.is_some()) {
            shared.skip(self.call);
        }
        let sequence = Sequence::Collective(self.history.signature(self.sequence));
        let operation = OperationContext { sequence, memory, reduction };
        // SAFETY: passed on to the caller.
        unsafe { self.execute(name, schedule, &operation) }
    }

    /// # Safety
    /// As [`Member::run`].
    unsafe fn execute<S: Schedule>(
        &mut self,
        name: &'static str,
        schedule: &S,
        operation: &OperationContext<'_>,
    ) -> Result<(), Error> {
        let Some(mut transport) = self.transport.take() else {
            return Err(Error::Closed { operation: name });
        };
        // SAFETY: the buffers are as the caller promises. The workspace is used by nothing else. After an error or a
        // panic the transport, which this function owns, is dropped and thereby closed before anything else is.
        let result = unsafe { engine::run(&mut *transport, &mut self.workspace, schedule, operation) };
        let result = match &self.shared {
            Some(shared) if result.is_ok() && shared.others_failed() => {
                Err(other_rank_failure(name, &mut *transport))
            }
            _ => result,
        };
        self.finish_operation(name, transport, result)
    }
}

/// What another rank's failure is. Where ranks read each other's memory, a message that one had sent when it failed may have
/// become anything since.
#[cold]
fn other_rank_failure(operation: &'static str, transport: &mut impl Transport) -> Error {
    let since = Instant::now();
    while since.elapsed() < COMPARE_TIMEOUT {
        if let Err(error) = transport.progress() {
            return error;
        }
    }
    Error::Closed { operation }
}

/// Checks that what is sent and what is received are equally long.
fn check_equal(operation: &'static str, send: usize, receive: usize) -> Result<(), Error> {
    if send == receive {
        return Ok(());
    }
    let problem = format!(
        "the send buffer has {send} elements and the receive buffer {receive}; they must have as many"
    );
    Err(Error::Length { operation, problem })
}

/// The elements of a rank's part of a buffer with a part for each rank.
fn own_range(rank: usize, ranks: usize, len: usize) -> Range<usize> {
    let part = len / ranks;
    rank * part..(rank + 1) * part
}

#[cfg(test)]
mod tests;
