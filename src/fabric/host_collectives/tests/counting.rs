//! Messages, bytes and rounds by number of ranks, counted and compared with the algorithms' documentation. No
//! rank waits for another here, and received data is never written.

use std::cell::RefCell;
use std::rc::Rc;

use std::time::Duration;

use super::hosts::in_turn;
use super::*;
use crate::fabric::calls::CallRecord;
use crate::fabric::hosts::Hosts;
use crate::fabric::transport::{MessageRequest, Transport};
use crate::world::{Awaited, Reason};

/// A message as both sides see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct LoggedMessage {
    from: usize,
    to: usize,
    tag: u64,
    len: usize,
}

#[derive(Default)]
struct Log {
    sent: Vec<LoggedMessage>,
    received: Vec<LoggedMessage>,
}

/// A network that completes everything immediately.
struct Counting {
    rank: usize,
    hosts: Hosts,
    ranks: usize,
    log: Rc<RefCell<Log>>,
}

impl Transport for Counting {
    fn rank(&self) -> usize {
        self.rank
    }
    fn size(&self) -> usize {
        self.ranks
    }
    fn rank_hosts(&self) -> Hosts {
        self.hosts.clone()
    }
    unsafe fn post_receive(
        &mut self,
        peer: usize,
        tag: u64,
        _: *mut u8,
        len: usize,
    ) -> Result<MessageRequest, Error> {
        self.log.borrow_mut().received.push(LoggedMessage { from: peer, to: self.rank, tag, len });
        Ok(MessageRequest(0))
    }
    unsafe fn post_send(
        &mut self,
        peer: usize,
        tag: u64,
        _: *const u8,
        len: usize,
    ) -> Result<MessageRequest, Error> {
        self.log.borrow_mut().sent.push(LoggedMessage { from: self.rank, to: peer, tag, len });
        Ok(MessageRequest(0))
    }
    fn report_failure(&self, _: Reason) {}
    fn time_out(&mut self, operation: &str, limit: Duration, _: Vec<Awaited>) -> Error {
        Error::TimedOut { operation: operation.to_owned(), limit, late: Vec::new() }
    }
    fn record_call(&mut self, _: CallRecord) {}
    fn compare_calls(&mut self) {}

    fn set_timeout(&mut self, _limit: Option<Duration>) {}

    fn check_ranks(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn make_progress(&mut self) -> Result<(), Error> {
        Ok(())
    }
    fn wait_for_completion(&mut self) -> Result<(), Error> {
        self.make_progress()
    }

    fn is_done(&mut self, _: MessageRequest) -> bool {
        true
    }
}

/// Cost of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cost {
    /// Largest of any rank.
    messages: usize,
    /// Largest of any rank.
    bytes: usize,
    /// Sum of all ranks.
    total: usize,
    /// Rounds with a send.
    rounds: usize,
}

/// Bytes of a rank's block; a vector has one for each rank.
const BLOCK: usize = 64;

/// Returns the number of each rank's host, with a host for each rank.
fn apart(ranks: usize) -> Vec<usize> {
    (0..ranks).collect()
}

/// Returns all messages of an operation. Every sent message is received, in the same round.
fn messages(
    hosts: &[usize],
    options: SelectionOptions,
    operation: impl Fn(&mut HostCollectives<Counting>),
) -> Vec<LoggedMessage> {
    let log = Rc::new(RefCell::new(Log::default()));
    for rank in 0..hosts.len() {
        let hosts_of = Hosts::new(hosts);
        let end = Counting { rank, hosts: hosts_of, ranks: hosts.len(), log: Rc::clone(&log) };
        operation(&mut HostCollectives::new(end, None, options).unwrap());
    }
    let Log { mut sent, mut received } = log.take();
    sent.sort_unstable();
    received.sort_unstable();
    assert!(sent == received, "what is sent is not what is received");
    sent
}

impl Cost {
    fn of(messages: &[LoggedMessage]) -> Self {
        let ranks = messages.iter().map(|message| message.from + 1).max().unwrap_or(1);
        let most = |of: fn(&LoggedMessage) -> usize| {
            let mut each = vec![0; ranks];
            messages.iter().for_each(|message| each[message.from] += of(message));
            each.into_iter().max().unwrap()
        };
        let mut rounds: Vec<u64> = messages.iter().map(|message| message.tag & 0xffff).collect();
        rounds.sort_unstable();
        rounds.dedup();
        Self {
            messages: most(|_| 1),
            bytes: most(|message| message.len),
            total: messages.iter().map(|message| message.len).sum(),
            rounds: rounds.len(),
        }
    }
}

/// Every rank's part in an operation with blocks of `block` bytes.
fn operate(collectives: &mut HostCollectives<Counting>, collective: Collective, block: usize) {
    let ranks = collectives.rank_count();
    let root = ranks / 2;
    let (mut all, mut one) = (vec![1_u8; ranks * block], vec![1_u8; block]);
    let parts: Vec<_> = (0..ranks).map(|rank| rank * block..(rank + 1) * block).collect();
    let (op, source, is_root) = (ReduceOp::Max, all.clone(), collectives.own_rank() == root);
    match collective {
        Collective::AllReduce => collectives.all_reduce(&source, &mut all, op),
        Collective::AllGather => collectives.all_gather(&one, &mut all),
        Collective::ReduceScatter => collectives.reduce_scatter(&source, &mut one, op),
        Collective::Broadcast => collectives.broadcast_in_place(&mut all, root),
        Collective::Reduce => collectives.reduce_in_place(&mut all, op, root),
        Collective::AllToAll => collectives.all_to_all(&source, &mut all),
        Collective::AllToAllV => collectives.all_to_all_v(&source, &parts, &mut all, &parts),
        Collective::Gather => collectives.gather_to_root(&one, is_root.then_some(&mut all[..]), root),
        Collective::Scatter => collectives.scatter_from_root(Some(&source), &mut one, root),
    }
    .unwrap();
}

/// Documented cost for `p` ranks with blocks of `b` bytes; none where only a limit is documented.
fn promised(collective: Collective, algorithm: Algorithm, p: usize, b: usize) -> Option<Cost> {
    use Algorithm::{
        Binomial, Bruck, Direct, Pairwise, Rabenseifner, RecursiveDoubling, RecursiveHalving, Ring,
    };
    use Collective::{
        AllGather, AllReduce, AllToAll, AllToAllV, Broadcast, Gather, Reduce, ReduceScatter, Scatter,
    };
    let (n, power) = (p * b, p.is_power_of_two());
    let lg = p.next_power_of_two().ilog2() as usize;
    // The numbers from the root on, and the number of ranks below each.
    let subtrees = (1..p).map(|number: usize| (1 << number.trailing_zeros()).min(p - number));
    let alike = |messages, bytes, rounds| Some(Cost { messages, bytes, total: p * bytes, rounds });
    let rooted = |messages, bytes, total, rounds| Some(Cost { messages, bytes, total, rounds });
    match (collective, algorithm) {
        (AllReduce, Direct) => alike(p - 1, (p - 1) * n, 1),
        (AllReduce, RecursiveDoubling) if power => alike(lg, lg * n, lg),
        (AllReduce, Rabenseifner) if power => alike(2 * lg, 2 * (p - 1) * b, 2 * lg),
        (AllReduce, Pairwise) => alike(2 * (p - 1), 2 * (p - 1) * b, 2),
        (AllReduce, Ring) => alike(2 * (p - 1), 2 * (p - 1) * b, 2 * (p - 1)),
        (AllGather, RecursiveDoubling | Bruck) => alike(lg, (p - 1) * b, lg),
        (AllGather, Ring) => alike(p - 1, (p - 1) * b, p - 1),
        (ReduceScatter, RecursiveHalving) => alike(lg, (p - 1) * b, lg),
        (ReduceScatter, Ring) => alike(p - 1, (p - 1) * b, p - 1),
        (AllGather | AllToAll | AllToAllV, Direct) | (ReduceScatter, Pairwise) => {
            alike(p - 1, (p - 1) * b, 1)
        }
        (AllToAll | AllToAllV, Pairwise) => alike(p - 1, (p - 1) * b, p - 1),
        // In the step of a bit, the parts with this bit in their distance travel.
        (AllToAll, Bruck) => {
            let parts: usize = (1..p).map(|distance: usize| distance.count_ones() as usize).sum();
            assert!(!power || parts == p / 2 * lg);
            alike(lg, parts * b, lg)
        }
        (Broadcast, Direct) => rooted(p - 1, (p - 1) * n, (p - 1) * n, 1),
        (Broadcast, Binomial) => rooted(lg, lg * n, (p - 1) * n, lg),
        (Reduce, Binomial) => rooted(1, n, (p - 1) * n, lg),
        (Reduce, Pairwise) => rooted(p, n, (p + 1) * (p - 1) * b, 2),
        (Gather, Direct) => rooted(1, b, (p - 1) * b, 1),
        (Scatter, Direct) => rooted(p - 1, (p - 1) * b, (p - 1) * b, 1),
        (Gather, Binomial) => rooted(1, subtrees.clone().max()? * b, subtrees.sum::<usize>() * b, lg),
        (Scatter, Binomial) => rooted(lg, (p - 1) * b, subtrees.sum::<usize>() * b, lg),
        _ => None,
    }
}

/// Compares the counted with the documented cost, for ranks with blocks of `block` bytes.
fn check(found: Cost, collective: Collective, algorithm: Algorithm, ranks: usize, block: usize) {
    let what = format!("{collective} {algorithm} on {ranks} ranks: {found:?}");
    if let Some(promised) = promised(collective, algorithm, ranks, block) {
        return assert_eq!(found, promised, "{what}");
    }
    let (n, lg) = (ranks * block, ranks.ilog2() as usize);
    match (collective, algorithm) {
        // Ranks beyond a power of two: 2 messages and up to 2 n bytes more.
        (Collective::AllReduce, Algorithm::RecursiveDoubling) => {
            assert!(found.rounds == lg + 2 && found.messages <= lg + 2, "{what}");
            assert!(found.bytes <= (lg + 2) * n, "{what}");
        }
        (Collective::AllReduce, Algorithm::Rabenseifner) => {
            assert!(found.rounds == 2 * lg + 2 && found.messages <= 2 * lg + 2, "{what}");
            assert!(found.bytes <= 4 * n, "{what}");
        }
        // lg p + p-1 messages, less than 2 n bytes; no rank gets a chunk twice.
        (Collective::Broadcast, Algorithm::Ring) => {
            let steps = ranks.next_power_of_two().ilog2() as usize + ranks - 1;
            assert!(found.rounds <= steps && found.messages <= steps, "{what}");
            assert!(found.bytes < 2 * n && found.total == (ranks - 1) * n, "{what}");
        }
        _ => panic!("no promise for {what}"),
    }
}

#[test]
fn messages_and_bytes_grow_with_the_ranks_as_promised() {
    for ranks in [2_usize, 4, 8, 16, 32, 64, 3, 12, 33, 63] {
        for collective in Collective::ALL {
            for algorithm in flat(collective, ranks).filter(|&algorithm| algorithm != Algorithm::Board) {
                let options = SelectionOptions { segment: Some(usize::MAX), ..DEFAULTS };
                let options = with_algorithm(collective, Some(algorithm), options);
                let messages =
                    messages(&apart(ranks), options, |collectives| operate(collectives, collective, BLOCK));
                check(Cost::of(&messages), collective, algorithm, ranks, BLOCK);
            }
        }
        let steps = ranks.next_power_of_two().ilog2() as usize;
        let barrier = messages(&apart(ranks), DEFAULTS, |collectives| collectives.run_barrier().unwrap());
        assert_eq!(
            Cost::of(&barrier),
            Cost { messages: steps, bytes: steps, total: ranks * steps, rounds: steps },
            "barrier of {ranks}"
        );
    }
}

/// Between hosts each rank has the cost of the algorithm for as many ranks as there are hosts, with its share
/// of the bytes: a q-th of a vector, or a block.
#[test]
fn between_hosts_messages_and_bytes_grow_with_the_hosts_as_promised() {
    // 4 to 64 ranks.
    for (hosts, each) in [(2, 2), (4, 2), (2, 8), (4, 8), (8, 8), (32, 2), (3, 3), (3, 4), (11, 3), (9, 7)] {
        // Enough for every lane to have something to do.
        let block = (4_usize << 10).div_ceil(hosts);
        let placement = in_turn(hosts, each);
        let between_hosts = |options, operation: &dyn Fn(&mut HostCollectives<Counting>)| {
            let mut messages = messages(&placement, options, operation);
            messages.retain(|message| placement[message.from] != placement[message.to]);
            messages
        };
        for collective in Collective::ALL {
            let serve = |between: &Algorithm| between.serves_between(collective);
            for between in Algorithm::ALL.into_iter().filter(serve) {
                let options = with_algorithm(collective, Some(Algorithm::Hierarchical), DEFAULTS);
                let options =
                    SelectionOptions { between: Some(between), segment: Some(usize::MAX), ..options };
                let found =
                    Cost::of(&between_hosts(options, &|collectives| operate(collectives, collective, block)));
                assert!(found.total.is_multiple_of(each), "{collective} {between}: {found:?}");
                let of_a_lane = Cost { total: found.total / each, ..found };
                check(of_a_lane, collective, between, hosts, block);
            }
        }
        let steps = hosts.next_power_of_two().ilog2() as usize;
        let barrier = between_hosts(DEFAULTS, &|collectives| collectives.run_barrier().unwrap());
        assert_eq!(
            Cost::of(&barrier),
            Cost { messages: steps, bytes: steps, total: hosts * steps, rounds: steps },
            "barrier of {hosts} hosts"
        );
    }
}
