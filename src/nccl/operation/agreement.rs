//! Comparison of the operations of several ranks of one communicator in a batch.

use nccl_sys::ncclRedOp_t;

use super::batch::{Member, Step};
use super::kind::{Kind, Operation};
use crate::DataType;
use crate::nccl::error::Error;

/// Refuses operations that differ between ranks of one communicator: lengths, types, roots, and the order of the
/// collectives. NCCL would hang, or one rank would write past the end of another's buffer. Ranks of other threads and
/// processes cannot be compared.
pub(crate) fn check(members: &[Member], steps: &[Step]) -> Result<(), Error> {
    let same = |one: &Member, other: &Member| one.handle.communicator_key == other.handle.communicator_key;
    let mut calls: Vec<(&Member, Calls<'_>)> = Vec::new();
    for (index, member) in members.iter().enumerate() {
        if members.iter().filter(|other| same(member, other)).count() < 2 {
            continue;
        }
        let own = steps.iter().filter(|step| step.member == index);
        let rank = Calls { rank: member.rank, operations: own.map(|step| &step.operation).collect() };
        for (_, other) in calls.iter().filter(|(other, _)| same(member, other)) {
            other.compare_collectives(&rank)?;
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
    operations: Vec<&'a Operation>,
}

impl<'a> Calls<'a> {
    fn collectives(&self) -> impl Iterator<Item = &'a Operation> {
        self.operations.iter().copied().filter(|operation| operation.is_collective())
    }

    /// Compares collectives that both ranks have called: others may follow in another group.
    fn compare_collectives(&self, other: &Self) -> Result<(), Error> {
        let mut pairs = self.collectives().zip(other.collectives());
        let Some((one, two)) = pairs.find(|(one, two)| described(one) != described(two)) else {
            return Ok(());
        };
        let reason = format!("rank {} calls {}, rank {} {}", self.rank, text(one), other.rank, text(two));
        Err(Error::Disagreement { operation: two.name(), reason })
    }

    fn compare_messages(&self, receiver: &Self) -> Result<(), Error> {
        let sent = self.messages(receiver.rank, true);
        let received = receiver.messages(self.rank, false);
        if sent == received {
            return Ok(());
        }
        let list = |messages: &[Message]| {
            let text = |(elements, data_type): &Message| format!("{elements} {data_type}");
            let texts: Vec<_> = messages.iter().map(text).collect();
            if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
        };
        let (from, to) = (self.rank, receiver.rank);
        let (sent, received) = (list(&sent), list(&received));
        let reason = format!("rank {from} sends {sent} to rank {to}, which receives {received} from it");
        Err(Error::Disagreement { operation: "ncclSend", reason })
    }

    fn messages(&self, peer: usize, sends: bool) -> Vec<Message> {
        let elements = |operation: &Operation| match &operation.kind {
            Kind::Send(to) if sends && *to == peer => Some(operation.count),
            Kind::Recv(from) if !sends && *from == peer => Some(operation.count),
            // Nothing is sent or received for an empty part, which the other side must know.
            Kind::AllToAllV(exchanges) if sends => Some(exchanges[peer].send.len()),
            Kind::AllToAllV(exchanges) => Some(exchanges[peer].receive.len()),
            _ => None,
        };
        self.operations.iter().filter_map(|each| Some((elements(each)?, each.data_type))).collect()
    }
}

type Message = (usize, DataType);

/// Properties of a collective that must be equal on all ranks: name, elements, type, root and operator. Operators
/// created by the program have a different number on each rank, so they are left out.
fn described(operation: &Operation) -> (&'static str, usize, DataType, Option<usize>, Option<u32>) {
    let Operation { ref kind, count, data_type, .. } = *operation;
    let op = kind.op().map(|op| op.0).filter(|&op| op <= ncclRedOp_t::ncclAvg.0);
    (kind.name(), count, data_type, kind.root(), op)
}

fn text(operation: &Operation) -> String {
    let (name, count, data_type, root, op) = described(operation);
    let root = root.map(|root| format!(" with root {root}")).unwrap_or_default();
    let op = op.map(|op| format!(" with operator {op}")).unwrap_or_default();
    format!("{name} of {count} {data_type}{root}{op}")
}
