//! Comparison of the operations of several ranks of one communicator in a batch.

use std::fmt;

use nccl_sys::ncclRedOp_t;

use super::batch::{BatchMember, BatchStep};
use super::call_config::CallConfig;
use super::kind::{NcclOperation, OperationKind};
use crate::DataType;
use crate::nccl::communicator::RegisteredMemory;
use crate::nccl::error::Error;

/// Refuses differences between the operations of ranks of one communicator: lengths, types, roots, settings,
/// the order of the collectives, their groups, and their places in registered memory. NCCL would hang, or one
/// rank would write outside of another's buffer. Ranks of other threads and processes cannot be compared.
/// `are_grouped` is true for consecutive steps launched together by NCCL.
pub(crate) fn check_agreement(
    members: &[BatchMember],
    steps: &[BatchStep],
    are_grouped: impl Fn(&BatchStep, &BatchStep) -> bool,
) -> Result<(), Error> {
    let same =
        |one: &BatchMember, other: &BatchMember| one.handle.communicator_key == other.handle.communicator_key;
    let mut calls: Vec<(&BatchMember, Calls<'_>)> = Vec::new();
    for (index, member) in members.iter().enumerate() {
        if members.iter().filter(|other| same(member, other)).count() < 2 {
            continue;
        }
        let own: Vec<_> = steps.iter().filter(|step| step.member == index).collect();
        let groups = own.chunk_by(|one, other| are_grouped(one, other)).map(count_collectives);
        let groups = groups.filter(|&count| count > 0).collect();
        let registered = member.handle.registered_objects().into_iter().map(|(memory, _)| memory).collect();
        let rank = Calls { rank: member.rank, steps: own, groups, registered };
        for (_, other) in calls.iter().filter(|(other, _)| same(member, other)) {
            other.compare_collectives(&rank)?;
            other.compare_groups(&rank)?;
            other.compare_messages(&rank)?;
            rank.compare_messages(other)?;
        }
        rank.compare_messages(&rank)?;
        calls.push((member, rank));
    }
    Ok(())
}

/// Operations of one rank, in order.
struct Calls<'a> {
    rank: usize,
    steps: Vec<&'a BatchStep>,
    /// Numbers of collectives in each group with collectives.
    groups: Vec<usize>,
    registered: Vec<RegisteredMemory>,
}

impl<'a> Calls<'a> {
    fn collective_steps(&self) -> impl Iterator<Item = &'a BatchStep> {
        self.steps.iter().copied().filter(|step| step.operation.is_collective())
    }

    /// Compares the collectives called by both ranks. In a graph, others may follow.
    fn compare_collectives(&self, other: &Self) -> Result<(), Error> {
        let common = |step: &BatchStep| step.config.as_ref().and_then(CallConfig::select_common);
        self.collective_steps().zip(other.collective_steps()).try_for_each(|(one, two)| {
            let (first, second) = (self.rank, other.rank);
            let reason = if collective_properties(&one.operation) != collective_properties(&two.operation) {
                let (one, two) = (operation_text(&one.operation), operation_text(&two.operation));
                format!("rank {first} calls {one}, rank {second} {two}")
            } else if common(one) != common(two) {
                format!(
                    "ranks {first} and {second} call {} with different settings",
                    one.operation.operation_name()
                )
            } else if let Some((one, two)) = self.find_other_place(one, other, two) {
                format!("the buffer of rank {first} is {one}, the buffer of rank {second} {two}")
            } else {
                return Ok(());
            };
            Err(Error::Disagreement { operation: two.operation.operation_name(), reason })
        })
    }

    /// Compares the groups with collectives of both ranks: within a group, NCCL sorts them by size.
    fn compare_groups(&self, other: &Self) -> Result<(), Error> {
        let mut pairs = self.groups.iter().zip(&other.groups);
        let Some((one, two)) = pairs.find(|(one, two)| one != two) else { return Ok(()) };
        let (first, second) = (self.rank, other.rank);
        let reason = format!("rank {first} calls {one} collectives in a group, rank {second} {two}");
        Err(Error::Disagreement { operation: "ncclGroupEnd", reason })
    }

    /// Returns the places of a pair of buffers that ranks access of each other in a collective, if the places
    /// differ.
    fn find_other_place(
        &self,
        own: &BatchStep,
        other: &Self,
        step: &BatchStep,
    ) -> Option<(BufferPlace, BufferPlace)> {
        // In place, the part of a rank is at an offset of its own. With a root, ranks may pass different
        // buffers.
        let (sources, targets) = match own.operation.kind {
            OperationKind::AllReduce(_) => (true, true),
            OperationKind::ReduceScatter(_) => (true, false),
            OperationKind::AllGather | OperationKind::AllToAll => (false, true),
            _ => (false, false),
        };
        let sources = (sources, own.addresses.0, step.addresses.0);
        let targets = (targets, own.addresses.1, step.addresses.1);
        let has_elements = own.operation.count > 0;
        let pairs = [sources, targets].into_iter().filter(|(compared, ..)| *compared && has_elements);
        let mut places = pairs.map(|(_, one, two)| (self.find_place(one), other.find_place(two)));
        places.find(|(one, two)| one != two)
    }

    /// Returns the place of a buffer at an address.
    fn find_place(&self, address: u64) -> BufferPlace {
        let contains = |memory: &&RegisteredMemory| memory.raw != 0 && memory.addresses.contains(&address);
        let mut known = self.registered.iter().filter(contains).peekable();
        let other = if known.peek().is_some() { BufferPlace::Registered } else { BufferPlace::Unregistered };
        known.find(|memory| memory.symmetric).map_or(other, |memory| BufferPlace::Window {
            number: memory.number,
            offset: address - memory.addresses.start,
        })
    }

    fn compare_messages(&self, receiver: &Self) -> Result<(), Error> {
        let sent = self.peer_messages(receiver.rank, true);
        let received = receiver.peer_messages(self.rank, false);
        if sent == received {
            return Ok(());
        }
        let list = |messages: &[MessageShape]| {
            let text = |(elements, data_type): &MessageShape| format!("{elements} {data_type}");
            let texts: Vec<_> = messages.iter().map(text).collect();
            if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
        };
        let (from, to) = (self.rank, receiver.rank);
        let (sent, received) = (list(&sent), list(&received));
        let reason = format!("rank {from} sends {sent} to rank {to}, but rank {to} receives {received}");
        Err(Error::Disagreement { operation: "ncclSend", reason })
    }

    fn peer_messages(&self, peer: usize, sends: bool) -> Vec<MessageShape> {
        let elements = |operation: &NcclOperation| match &operation.kind {
            OperationKind::Send(to) if sends && *to == peer => Some(operation.count),
            OperationKind::Recv(from) if !sends && *from == peer => Some(operation.count),
            // Nothing is sent or received for an empty part: the other side must know it.
            OperationKind::AllToAllV(exchanges) if sends => Some(exchanges[peer].send.len()),
            OperationKind::AllToAllV(exchanges) => Some(exchanges[peer].receive.len()),
            _ => None,
        };
        let operations = self.steps.iter().map(|step| &step.operation);
        operations.filter_map(|each| Some((elements(each)?, each.data_type))).collect()
    }
}

type MessageShape = (usize, DataType);

/// Place of a buffer in the memory known to NCCL. NCCL accesses other ranks' symmetric windows at a rank's
/// own offset.
#[derive(Clone, Copy, PartialEq, Eq)]
enum BufferPlace {
    Unregistered,
    Registered,
    Window { number: u64, offset: u64 },
}

impl fmt::Display for BufferPlace {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unregistered => formatter.write_str("not registered"),
            Self::Registered => formatter.write_str("registered"),
            Self::Window { number, offset } => {
                write!(formatter, "at byte {offset} of symmetric window {number}")
            }
        }
    }
}

fn count_collectives(steps: &[&BatchStep]) -> usize {
    steps.iter().filter(|step| step.operation.is_collective()).count()
}

/// Properties of a collective that must be equal on all ranks: name, elements, type, root and operator.
/// Operators created by the program have a different number on each rank, so they are not included.
fn collective_properties(
    operation: &NcclOperation,
) -> (&'static str, usize, DataType, Option<usize>, Option<u32>) {
    let NcclOperation { ref kind, count, data_type, .. } = *operation;
    let op = kind.reduction_op().map(|op| op.0).filter(|&op| op <= ncclRedOp_t::ncclAvg.0);
    (kind.function_name(), count, data_type, kind.root_rank(), op)
}

fn operation_text(operation: &NcclOperation) -> String {
    let (name, count, data_type, root, op) = collective_properties(operation);
    let root = root.map(|root| format!(" with root {root}")).unwrap_or_default();
    let op = op.map(|op| format!(" with operator {op}")).unwrap_or_default();
    format!("{name} of {count} {data_type}{root}{op}")
}
