//! The collectives of one rank.

use std::mem;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fabric::Error;
use crate::fabric::algorithm::all_to_all::{self, AllToAllSpec, Parts};
use crate::fabric::algorithm::engine::{self, OperationContext, OperationMemory, Sequence, Workspace};
use crate::fabric::algorithm::hierarchical::{self, Hierarchical};
use crate::fabric::algorithm::{RankPosition, Schedule, Spec, barrier, build_schedule};
use crate::fabric::calls::{CallHash, CallRecord, CallSignature};
use crate::fabric::hosts::{HostPosition, Hosts};
use crate::fabric::reduction::Reduction;
use crate::fabric::selection::{
    self, Algorithm, Collective, Medium, Plan, PlanTable, SelectionOptions, Topology,
};
use crate::fabric::shared_memory::segment::{COMPARE_TIMEOUT, SharedSegment};
use crate::fabric::transport::Transport;
use crate::purpose::Purpose;
use crate::world::Awaited;
use crate::{Element, ReduceOp};

mod all_to_all_v;
mod point_to_point;
mod rooted;
mod shared_memory;
mod symmetric;

/// The collectives of one rank, over any transport.
///
/// An operation borrows the caller's buffers only while it runs, but a transport may serve posted requests
/// for as long as it is open. So an operation owns the transport while it runs, and returns it when all its
/// requests are complete; after an error or a panic it drops, and so closes, the transport before the borrows
/// end.
pub(crate) struct HostCollectives<T> {
    transport: Option<Box<T>>,
    rank: usize,
    ranks: usize,
    medium: Medium,
    plans: PlanTable,
    /// Number of collective operations so far.
    sequence: u64,
    /// Signature of the current operation, or the next.
    call: CallSignature,
    /// Hash of all calls.
    history: CallHash,
    /// Purpose of the current operations.
    purpose: Option<Purpose>,
    /// Messages sent to and received from each rank with send, recv and exchange.
    pairs: Vec<PeerMessages>,
    peers: MessagePeers,
    workspace: Workspace,
    shared: Option<SharedSegment>,
    /// Placement of the ranks.
    hosts: Arc<Hosts>,
    /// Scratch memory for checking parts for overlaps.
    sorted_ranks: Vec<usize>,
    /// True after [`record_leave`](Self::record_leave).
    has_left: bool,
}

/// Largest number of ranks for which [`HostCollectives::record_leave`] also informs peers without earlier
/// messages.
const MAX_ANNOUNCED_PAIRS: usize = 64;

/// Messages to a peer, and from it.
#[derive(Clone, Copy, Default)]
struct PeerMessages {
    sent: MessageHistory,
    received: MessageHistory,
}

/// Count and hash of the messages in one direction between two ranks; both ranks keep it.
#[derive(Clone, Copy, Default)]
struct MessageHistory {
    count: u64,
    calls: CallHash,
}

impl MessageHistory {
    /// Adds a message, and returns the signature for its tag.
    fn add_message(&mut self, call: CallSignature) -> u64 {
        self.count += 1;
        self.calls.add_call(call);
        self.calls.tag_signature(self.count)
    }
}

/// Receiver and sender of the messages of the current send, recv or exchange; none in a collective.
#[derive(Clone, Copy, Default)]
struct MessagePeers {
    to: Option<usize>,
    from: Option<usize>,
}

impl<T: Transport> HostCollectives<T> {
    /// On a network, the medium becomes [`Medium::Hosts`] where several ranks share a host.
    pub(crate) fn new(
        transport: T,
        shared: Option<SharedSegment>,
        mut options: SelectionOptions,
    ) -> Result<Self, Error> {
        let (rank, ranks) = (transport.rank(), transport.size());
        let hosts = Arc::new(transport.rank_hosts());
        if options.medium == Medium::Network && hosts.is_hierarchical() {
            options.medium = Medium::Hosts;
        }
        let topology =
            Topology { medium: options.medium, ranks, hosts: hosts.host_count(), shared: shared.is_some() };
        for collective in Collective::ALL {
            let can = |algorithm: &Algorithm| {
                let is_idle = *algorithm == Algorithm::Board && ranks == 1;
                (is_idle || topology.allows(*algorithm)) && algorithm.serves(collective, ranks)
            };
            let wanted = options.algorithms[collective as usize];
            if let Some(algorithm) = wanted.filter(|algorithm| !can(algorithm)) {
                let choices = selection::join_names(Algorithm::ALL.into_iter().filter(can));
                return Err(Error::Algorithm { collective, algorithm, ranks, choices });
            }
        }
        let plans = PlanTable::new(|collective, bytes| {
            let wanted = options.algorithms[collective as usize];
            let plan = selection::plan(collective, &topology, bytes, wanted);
            plan.with(collective, &options)
        });
        // A message has the length that its plan implies, and a rank with another plan must not read it. The
        // options were compared, but by the program's world; a rank of another build may have other plans for
        // them.
        let history = CallHash::of_settings(&format!("{topology:?} {options:?} {plans:?}"));
        Ok(Self {
            transport: Some(Box::new(transport)),
            rank,
            ranks,
            medium: options.medium,
            plans,
            sequence: 0,
            call: CallSignature::BARRIER,
            history,
            purpose: None,
            pairs: vec![PeerMessages::default(); ranks],
            peers: MessagePeers::default(),
            workspace: Workspace::default(),
            shared,
            hosts,
            sorted_ranks: Vec::new(),
            has_left: false,
        })
    }

    pub(crate) fn own_rank(&self) -> usize {
        self.rank
    }

    /// Records the end of this rank's calls, and compares calls: otherwise a rank waiting for it in another
    /// operation would wait forever.
    pub(crate) fn record_leave(&mut self) {
        let Some(transport) = self.transport.as_mut().filter(|_| !self.has_left) else { return };
        self.has_left = true;
        transport.record_call(CallRecord::for_collective(self.sequence + 1, CallSignature::LEFT, None));
        for (peer, &PeerMessages { sent, received }) in self.pairs.iter().enumerate() {
            let (sent, received) = (sent.count, received.count);
            if peer != self.rank && (self.ranks <= MAX_ANNOUNCED_PAIRS || sent + received > 0) {
                transport.record_call(CallRecord::for_message(
                    self.rank,
                    peer,
                    sent + 1,
                    CallSignature::LEFT,
                ));
                transport.record_call(CallRecord::for_message(
                    peer,
                    self.rank,
                    received + 1,
                    CallSignature::LEFT,
                ));
            }
        }
        transport.compare_calls();
    }

    /// Sets the longest wait of an operation; without a limit it waits forever.
    pub(crate) fn set_timeout(&mut self, limit: Option<Duration>) {
        if let Some(transport) = &mut self.transport {
            transport.set_timeout(limit);
        }
    }

    pub(crate) fn rank_count(&self) -> usize {
        self.ranks
    }

    pub(crate) fn plan_for(&self, collective: Collective, bytes: usize) -> Plan {
        self.plans.of(collective, bytes)
    }

    fn rank_position(&self, root: usize) -> RankPosition {
        RankPosition { rank: self.rank, ranks: self.ranks, root }
    }

    /// True for an open communicator of a single rank.
    fn is_single_rank(&self) -> bool {
        self.ranks == 1 && self.transport.is_some()
    }

    /// Checks the number of a root or peer.
    fn check_rank(&self, operation: &'static str, role: &str, rank: usize) -> Result<(), Error> {
        if rank < self.ranks {
            return Ok(());
        }
        let problem = format!("the {role} is rank {rank}, but the ranks are 0 to {}", self.ranks - 1);
        Err(Error::Rank { operation, problem })
    }

    /// Checks that a whole buffer has a part for each rank.
    fn check_parts(
        &self,
        collective: Collective,
        (whole, whole_len): (&str, usize),
        (part, part_len): (&str, usize),
    ) -> Result<(), Error> {
        if part_len.checked_mul(self.ranks) == Some(whole_len) {
            return Ok(());
        }
        let problem = format!(
            "the {part} buffer has {part_len} elements and there are {} ranks, but the {whole} buffer has \
             {whole_len} elements; it must have as many elements as all {part} buffers together",
            self.ranks
        );
        Err(Error::Length { operation: collective.name(), problem })
    }

    /// Returns the elements of this rank's part of a buffer. The buffer must have a part for each rank.
    fn own_part(&self, collective: Collective, len: usize) -> Result<Range<usize>, Error> {
        if len.is_multiple_of(self.ranks) {
            let part = len / self.ranks;
            return Ok(self.rank * part..(self.rank + 1) * part);
        }
        let problem =
            format!("the buffer has {len} elements, not a multiple of the number of ranks, {}", self.ranks);
        Err(Error::Length { operation: collective.name(), problem })
    }

    pub(crate) fn run_barrier(&mut self) -> Result<(), Error> {
        if self.is_single_rank() {
            return Ok(());
        }
        self.call = CallSignature::BARRIER;
        if self.shared.is_some() {
            return self.barrier_in_shared_memory();
        }
        let memory = OperationMemory::out_of_place::<u8>(&[], &mut []);
        // SAFETY: the barriers use scratch memory only.
        unsafe {
            if self.medium == Medium::Hosts {
                let hosts = Arc::clone(&self.hosts);
                let schedule = hierarchical::barrier::build_schedule(HostPosition::new(&hosts, self.rank));
                return self.run_schedule("barrier", &schedule, memory, None);
            }
            self.run_schedule("barrier", &barrier::build_schedule(self.rank_position(0)), memory, None)
        }
    }

    /// Runs a collective other than all_to_all_v with the algorithm of its plan. `count` is the number of
    /// elements of a vector, or of each rank's block.
    ///
    /// # Safety
    /// Source and target have the bytes read and written by the collective on this rank: a vector, a block,
    /// or a block for each rank. If they are equally long, they are the same or disjoint; otherwise the
    /// shorter one is this rank's block of the longer one, or disjoint from it. Both are aligned for `E`, and
    /// borrowed while this runs.
    // Compiled for each collective, without these matches: they take 3 % of a short all_reduce.
    #[inline(always)]
    unsafe fn run_collective<E: Element>(
        &mut self,
        collective: Collective,
        memory: OperationMemory,
        count: usize,
        op: Option<ReduceOp>,
        root: Option<usize>,
    ) -> Result<(), Error> {
        if self.is_single_rank() {
            // SAFETY: the source and target of a single rank are equally long.
            unsafe { shared_memory::copy_own(memory.source, memory.target, memory.target_len) };
            return Ok(());
        }
        self.call = CallSignature::of_collective::<E>(collective, count).with_arguments(op, root);
        let block = count * size_of::<E>();
        let has_all_blocks =
            matches!(collective, Collective::ReduceScatter | Collective::AllToAll | Collective::Scatter);
        let bytes = if has_all_blocks { block.saturating_mul(self.ranks) } else { block };
        let Plan { algorithm, between, segment, in_flight } = self.plan_for(collective, bytes);
        let at = self.rank_position(root.unwrap_or(0));
        let spec = Spec { at, count, element_size: size_of::<E>(), segment, in_flight };
        let reduction = op.map(|op| Reduction::new(E::DATA_TYPE, op));
        let (name, reduction) = (collective.name(), reduction.as_ref());
        // SAFETY: the schedules are made for vectors or blocks of this size.
        unsafe {
            match (algorithm, collective) {
                (Algorithm::Board, _) => self.run_on_board(collective, memory, reduction, root, segment),
                (Algorithm::Hierarchical, _) => {
                    let hosts = Arc::clone(&self.hosts);
                    let here = HostPosition::new(&hosts, self.rank);
                    let between = between.unwrap_or(Algorithm::Ring);
                    let schedule = Hierarchical { collective, here, between, spec }.build_schedule();
                    self.run_schedule(name, &schedule, memory, reduction)
                }
                (_, Collective::AllToAll) => {
                    let parts = Parts::Equal(block);
                    let message = AllToAllSpec { at, sent: parts, received: parts, segment, in_flight };
                    let schedule = all_to_all::build_schedule(algorithm, message, memory.is_in_place());
                    self.run_schedule(name, &schedule, memory, None)
                }
                _ => self.run_schedule(name, &build_schedule(collective, algorithm, spec), memory, reduction),
            }
        }
    }

    /// Sets the purpose of the following operations.
    pub(crate) fn set_purpose(&mut self, purpose: Option<Purpose>) {
        if let Some(purpose) = purpose {
            self.history.add_purpose(purpose);
        }
        self.purpose = purpose;
    }

    /// Counts and records a new operation.
    fn record_call(&mut self) {
        if let Some(transport) = &mut self.transport {
            self.sequence += 1;
            self.history.add_call(self.call);
            transport.record_call(CallRecord::for_collective(self.sequence, self.call, self.purpose));
        }
    }

    /// Calls of other ranks awaited by the current operation.
    fn awaited_calls(&self) -> Vec<Awaited> {
        let (own, call) = (self.rank, self.call);
        let MessagePeers { to, from } = self.peers;
        let sent =
            to.map(|to| CallRecord::for_message(own, to, self.pairs[to].sent.count, call).awaited_from(to));
        let received = from.map(|from| {
            CallRecord::for_message(from, own, self.pairs[from].received.count, call).awaited_from(from)
        });
        let messages: Vec<_> = sent.into_iter().chain(received).collect();
        if messages.is_empty() {
            let record = CallRecord::for_collective(self.sequence, call, self.purpose);
            return (0..self.ranks)
                .filter(|&rank| rank != own)
                .map(|rank| record.awaited_from(rank))
                .collect();
        }
        messages
    }

    /// Returns the transport after an operation. After a failure, reports it to the other ranks and closes
    /// the transport.
    fn finish_operation(
        &mut self,
        name: &str,
        transport: Box<T>,
        result: Result<(), Error>,
    ) -> Result<(), Error> {
        match result {
            Ok(()) => {
                self.transport = Some(transport);
                Ok(())
            }
            Err(error) => Err(self.fail_operation(name, *transport, error)),
        }
    }

    /// Reports a failed operation to the other ranks; returns its error.
    #[cold]
    fn fail_operation(&mut self, name: &str, mut transport: T, mut error: Error) -> Error {
        if let Some(shared) = &self.shared {
            shared.fail();
        }
        let purpose = self.purpose.map(|purpose| purpose.to_string()).unwrap_or_default();
        // Shared memory reports calls without their purpose. With the same earlier calls, the peer has the
        // same purpose.
        if let Error::Mismatch { called, peer_called, .. } = &mut error
            && *called == self.call.to_string()
        {
            *called += &purpose;
            peer_called.iter_mut().for_each(|called| *called += &purpose);
        }
        match &error {
            // The other ranks know it.
            Error::World(_) => {}
            Error::TimedOut { limit, .. } => {
                return transport.time_out(&format!("{name}{purpose}"), *limit, self.awaited_calls());
            }
            _ => transport.report_failure(error.to_reason(name)),
        }
        error
    }

    /// # Safety
    /// The memory is as large as the schedule says, aligned for the reduction's element type, and borrowed
    /// while this runs.
    unsafe fn run_schedule<P>(
        &mut self,
        name: &'static str,
        schedule: &Schedule<P>,
        memory: OperationMemory,
        reduction: Option<&Reduction>,
    ) -> Result<(), Error> {
        self.record_call();
        if let Some(shared) = self.shared.as_mut().filter(|_| self.transport.is_some()) {
            shared.skip(self.call);
        }
        let sequence = Sequence::of_collective(self.history.tag_signature(self.sequence));
        let operation = OperationContext { sequence, memory, reduction };
        // SAFETY: passed on to the caller.
        unsafe { self.execute_schedule(name, schedule, &operation) }
    }

    /// # Safety
    /// Does the same as [`HostCollectives::run_schedule`].
    unsafe fn execute_schedule<P>(
        &mut self,
        name: &'static str,
        schedule: &Schedule<P>,
        operation: &OperationContext<'_>,
    ) -> Result<(), Error> {
        let Some(mut transport) = self.transport.take() else {
            return Err(Error::Closed { operation: name });
        };
        let running = self.shared.as_mut().map(RunningOperation);
        // SAFETY: the buffers are as the caller promises. The workspace is used by nothing else. After an
        // error or a panic the transport, owned by this function, is dropped and thereby closed before
        // anything else.
        let result =
            unsafe { engine::run_schedule(&mut *transport, &mut self.workspace, schedule, operation) };
        mem::forget(running);
        let result = match &self.shared {
            Some(shared) if result.is_ok() && shared.others_failed() => {
                Err(other_rank_failure(name, &mut *transport))
            }
            _ => result,
        };
        self.finish_operation(name, transport, result)
    }
}

/// A running operation. Dropped when a panic ends it: the other ranks of the host then treat it as failed
/// before the caller's buffers are its own again. Forgotten when the operation returns.
struct RunningOperation<'a>(&'a mut SharedSegment);

impl Drop for RunningOperation<'_> {
    fn drop(&mut self) {
        self.0.fail();
    }
}

/// Returns the error after a failure of another rank: with cross-memory attach its messages may have been
/// overwritten since.
#[cold]
fn other_rank_failure(operation: &'static str, transport: &mut impl Transport) -> Error {
    let since = Instant::now();
    while since.elapsed() < COMPARE_TIMEOUT {
        if let Err(error) = transport.wait_for_completion() {
            return error;
        }
    }
    Error::Closed { operation }
}

/// Checks that both buffers are equally long.
fn check_equal(operation: &'static str, send: usize, receive: usize) -> Result<(), Error> {
    if send == receive {
        return Ok(());
    }
    let problem = format!(
        "the send buffer has {send} elements and the receive buffer {receive}; both must have the same number"
    );
    Err(Error::Length { operation, problem })
}

#[cfg(test)]
mod tests;
