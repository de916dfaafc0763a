//! Ranks of one communicator that are in one batch: whether they ask for the same.

use std::collections::HashMap;

use nccl_sys::ncclRedOp_t;

use super::batch::{Member, Step};
use super::{Kind, Operation};
use crate::nccl::error::Error;

/// Refuses operations on which ranks of one communicator differ: lengths, types, roots, and the order of the collectives. NCCL
/// would hang, or one rank would write behind the end of another's buffer. Ranks of other threads and processes cannot be seen.
pub(crate) fn check(members: &[Member], steps: &[Step]) -> Result<(), Error> {
    let related = |(index, member): (usize, &Member)| {
        members[..index].iter().any(|other| other.handle.clique == member.handle.clique)
    };
    if !members.iter().enumerate().any(related) {
        return Ok(());
    }
    let mut comparison = Comparison { members, ..Comparison::default() };
    comparison.add(steps)?;
    comparison.compare_messages()
}

#[derive(Default)]
struct Comparison<'a> {
    members: &'a [Member],
    /// By member: collectives so far.
    counts: HashMap<usize, usize>,
    /// By communicator and number: the member that has it first.
    collectives: HashMap<(u64, usize), (usize, &'a Operation)>,
    /// By communicator, sender and receiver: what each side says of the messages, in order.
    messages: HashMap<(u64, usize, usize), Sides>,
}

#[derive(Default)]
struct Sides {
    sent: Vec<Message>,
    received: Vec<Message>,
}

#[derive(Clone, PartialEq, Eq)]
struct Message {
    elements: usize,
    data_type: &'static str,
}

impl<'a> Comparison<'a> {
    fn add(&mut self, steps: &'a [Step]) -> Result<(), Error> {
        for step in steps {
            match step {
                Step::Group(steps) => self.add(steps)?,
                Step::Call { member, operation, .. } => self.add_operation(*member, operation)?,
            }
        }
        Ok(())
    }

    fn add_operation(&mut self, member: usize, operation: &'a Operation) -> Result<(), Error> {
        let message = |elements| Message { elements, data_type: operation.data_type.name() };
        match &operation.kind {
            Kind::Send(peer) => self.side(member, *peer as usize, true).push(message(operation.count)),
            Kind::Recv(peer) => self.side(member, *peer as usize, false).push(message(operation.count)),
            Kind::AllToAllV(exchanges) => {
                for (peer, exchange) in exchanges.iter().enumerate() {
                    // Where a part is empty, nothing is sent or received, which the other side has to know.
                    self.side(member, peer, true).push(message(exchange.send.len()));
                    self.side(member, peer, false).push(message(exchange.receive.len()));
                }
            }
            Kind::Put { .. } | Kind::Signal { .. } | Kind::WaitSignals(_) => {}
            _ => return self.add_collective(member, operation),
        }
        Ok(())
    }

    fn side(&mut self, member: usize, peer: usize, sends: bool) -> &mut Vec<Message> {
        let Member { handle, rank, .. } = &self.members[member];
        let (from, to) = if sends { (*rank, peer) } else { (peer, *rank) };
        let sides = self.messages.entry((handle.clique, from, to)).or_default();
        if sends { &mut sides.sent } else { &mut sides.received }
    }

    fn add_collective(&mut self, member: usize, operation: &'a Operation) -> Result<(), Error> {
        let count = self.counts.entry(member).or_default();
        let number = *count;
        *count += 1;
        let key = (self.members[member].handle.clique, number);
        let &mut (other, first) = self.collectives.entry(key).or_insert((member, operation));
        if described(first) == described(operation) {
            return Ok(());
        }
        let reason = format!(
            "rank {} calls {}, rank {} {}",
            self.members[other].rank,
            text(first),
            self.members[member].rank,
            text(operation)
        );
        Err(Error::Disagreement { operation: operation.name, reason })
    }

    fn compare_messages(&self) -> Result<(), Error> {
        let present = |clique: u64, rank: usize| {
            self.members.iter().any(|member| member.handle.clique == clique && member.rank == rank)
        };
        for (&(clique, from, to), Sides { sent, received }) in &self.messages {
            if sent == received || !present(clique, from) || !present(clique, to) {
                continue;
            }
            let list = |messages: &[Message]| {
                let texts: Vec<_> =
                    messages.iter().map(|each| format!("{} {}", each.elements, each.data_type)).collect();
                if texts.is_empty() { "nothing".to_owned() } else { texts.join(", ") }
            };
            let reason = format!(
                "rank {from} sends {} to rank {to}, which receives {} from it",
                list(sent),
                list(received)
            );
            return Err(Error::Disagreement { operation: "ncclSend", reason });
        }
        Ok(())
    }
}

/// All of an operation that must be the same on all ranks: name, elements, type, root and operator. Operators of the program's
/// have another number on each rank.
fn described(operation: &Operation) -> (&'static str, usize, &'static str, Option<i32>, Option<u32>) {
    let root = match operation.kind {
        Kind::Reduce(_, root) | Kind::Broadcast(root) | Kind::Gather(root, _) | Kind::Scatter(root, _) => {
            Some(root)
        }
        _ => None,
    };
    let op = match operation.kind {
        Kind::AllReduce(op) | Kind::Reduce(op, _) | Kind::ReduceScatter(op) => Some(op.0),
        _ => None,
    };
    let op = op.filter(|&op| op <= ncclRedOp_t::ncclAvg.0);
    (operation.name, operation.count, operation.data_type.name(), root, op)
}

fn text(operation: &Operation) -> String {
    let (name, count, data_type, root, op) = described(operation);
    let root = root.map(|root| format!(" with root {root}")).unwrap_or_default();
    let op = op.map(|op| format!(" with operator {op}")).unwrap_or_default();
    format!("{name} of {count} {data_type}{root}{op}")
}
