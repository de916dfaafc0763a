//! Worlds of some ranks of another world, for connecting these ranks.
//!
//! The parts of a world need different numbers of exchanges to connect, and a rank may fail at any of them.
//! So all ranks of the parent exchange in rounds, until no rank needs another one. In each round, a rank
//! sends the message of an exchange, or reports that it is ready or has failed. A failure ends its part on
//! all ranks of the part, with the failed rank's reason. The parent can still be used.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{Awaited, Called, Error, ExitHook, Handle, Position, Reason, Wait, World, host};
use crate::hash::fnv1a_hash;
use crate::lock::lock;

/// An all_gather of the parent's ranks.
pub(crate) type PartExchange<'a> = dyn Fn(&[u8]) -> Result<Vec<Vec<u8>>, Error> + Send + Sync + 'a;

/// First byte of a message of a round.
const MESSAGE: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;

/// A rank's list of the ranks of its part, for comparison: lists themselves would be long in large jobs.
struct ListSummary {
    /// False for a list impossible for any part.
    is_valid: bool,
    len: u64,
    hash: u64,
    /// Identity of the rank's host.
    host: Vec<u8>,
}

impl ListSummary {
    fn new(ranks: &[usize], position: Position) -> Self {
        let mut sorted = ranks.to_vec();
        sorted.sort_unstable();
        let is_valid = sorted.is_sorted_by(|one, other| one < other)
            && sorted.last().is_some_and(|&last| last < position.size)
            && sorted.binary_search(&position.rank).is_ok();
        let hash = fnv1a_hash(ranks.iter().flat_map(|&rank| (rank as u64).to_le_bytes()));
        Self { is_valid, len: ranks.len() as u64, hash, host: host().id.into_bytes() }
    }

    fn to_bytes(&self) -> Vec<u8> {
        let Self { is_valid, len, hash, host } = self;
        [&[u8::from(*is_valid)], &len.to_le_bytes()[..], &hash.to_le_bytes(), host].concat()
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (is_valid, rest) = bytes.split_first()?;
        let (len, rest) = rest.split_first_chunk()?;
        let (hash, host) = rest.split_first_chunk()?;
        Some(Self {
            is_valid: *is_valid == 1,
            len: u64::from_le_bytes(*len),
            hash: u64::from_le_bytes(*hash),
            host: host.to_vec(),
        })
    }

    /// True if each rank is in exactly one list: each list has its rank, and as many ranks have a list as it
    /// is long.
    fn divide_world(all: &[Self]) -> bool {
        let mut counts: HashMap<(u64, u64), u64> = HashMap::new();
        for summary in all {
            *counts.entry((summary.hash, summary.len)).or_default() += 1;
        }
        all.iter().all(|summary| summary.is_valid) && counts.iter().all(|((_, len), count)| len == count)
    }
}

/// The ranks of a part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    /// Ranks of the parent, in the order of the part's ranks.
    pub(crate) of_parent: Vec<usize>,
    /// Ranks of the job, in the order of the part's ranks.
    pub(crate) of_job: Vec<usize>,
    pub(crate) position: Position,
}

/// A world of some ranks of another world, to connect communicators among these ranks: each rank of the
/// parent is in exactly one part.
///
/// [`World::barrier`] and [`World::all_gather`] of a part work until the rank calls [`Part::end`]; afterwards
/// the part only passes failures, notes and calls on to the parent. Every exchange of a part is one of all
/// ranks of the parent, so all ranks must call [`Part::end`], and no collective call of the parent before it.
///
/// [`Error`]s number ranks as the parent does. [`World::fail`] and [`World::abort`] end the whole job;
/// [`Part::end`] with a reason ends the part only.
///
/// ```
/// use collectives::world::{self, Part, World as _};
///
/// let world = world::single();
/// let part = Part::new(&world, &[0])?;
/// assert_eq!(part.all_gather(b"address")?, [b"address"]);
/// part.end(None)?;
/// # Ok::<(), world::Error>(())
/// ```
pub struct Part {
    job: Handle,
    members: Members,
    exchange: Mutex<Option<Box<PartExchange<'static>>>>,
}

impl Part {
    /// Makes the part of `world` from `ranks`, this rank among them, in this order. A collective call of all
    /// ranks of `world`. All ranks of a part pass the same list.
    ///
    /// # Errors
    /// [`Error::Mismatch`] on every rank if the lists do not divide the ranks of `world`;
    /// [`Error::RankFailed`] if another rank has failed.
    pub fn new(world: &Handle, ranks: &[usize]) -> Result<Arc<Self>, Error> {
        let own = ListSummary::new(ranks, world.position()).to_bytes();
        let members = Members::from_messages(world.rank(), ranks, &world.all_gather(&own)?)?;
        let exchange = Arc::clone(world);
        let exchange = Box::new(move |mine: &[u8]| exchange.all_gather(mine));
        Ok(Self::of_members(Arc::clone(world), members, exchange))
    }

    pub(crate) fn of_members(
        job: Handle,
        members: Members,
        exchange: Box<PartExchange<'static>>,
    ) -> Arc<Self> {
        Arc::new(Self { job, members, exchange: Mutex::new(Some(exchange)) })
    }

    /// Ranks of the job by rank of the part.
    #[cfg(feature = "nccl")]
    pub(crate) fn job_ranks(&self) -> &[usize] {
        &self.members.of_job
    }

    /// The rank of the job with this rank of the part.
    fn of_job(&self, rank: usize) -> usize {
        self.members.of_job.get(rank).copied().unwrap_or(rank)
    }

    /// Ends the exchanges of this rank, because it is ready, or because it has failed for the given reason.
    /// Returns once every rank of the parent has called it; a second call returns at once.
    ///
    /// # Errors
    /// [`Error::RankFailed`] with the first failed rank of the part, also on the failed rank; or the failure
    /// of the parent.
    pub fn end(&self, failure: Option<Reason>) -> Result<(), Error> {
        let Some(exchange) = lock(&self.exchange).take() else { return Ok(()) };
        let last = match failure {
            None => vec![READY],
            Some(reason) => {
                let error = Error::RankFailed { rank: self.rank(), host: host().name, reason };
                [vec![FAILED], error.to_bytes()].concat()
            }
        };
        let mut first_failure = None;
        loop {
            let round = exchange(&last)?;
            first_failure = first_failure.or_else(|| self.members.find_failure(&round));
            if round.iter().all(|message| message.first() != Some(&MESSAGE)) {
                return first_failure.map_or(Ok(()), Err);
            }
        }
    }
}

impl Members {
    /// All ranks of a world.
    pub(crate) fn of_all(world: &dyn World) -> Self {
        let ranks: Vec<usize> = (0..world.size()).collect();
        Self { of_parent: ranks.clone(), of_job: ranks, position: world.position() }
    }

    /// The part of `rank` with these ranks, from the messages of all ranks of the world.
    fn from_messages(rank: usize, ranks: &[usize], messages: &[Vec<u8>]) -> Result<Self, Error> {
        let summaries: Option<Vec<ListSummary>> =
            messages.iter().map(|message| ListSummary::from_bytes(message)).collect();
        let summaries = summaries.filter(|all| ListSummary::divide_world(all)).ok_or_else(|| {
            Error::Mismatch(
                "the lists of the ranks of each part do not divide the ranks of the world".to_owned(),
            )
        })?;
        let host = |rank: usize| summaries.get(rank).map(|summary| &summary.host);
        let here: Vec<usize> = ranks.iter().copied().filter(|&other| host(other) == host(rank)).collect();
        let place = |ranks: &[usize]| ranks.iter().position(|&other| other == rank).unwrap_or(0);
        let position = Position {
            rank: place(ranks),
            size: ranks.len(),
            local_rank: place(&here),
            local_size: here.len(),
        };
        Ok(Self { of_parent: ranks.to_vec(), of_job: ranks.to_vec(), position })
    }

    /// Returns the error of the first rank of the part with a failure in this round.
    fn find_failure(&self, round: &[Vec<u8>]) -> Option<Error> {
        self.of_parent.iter().zip(&self.of_job).find_map(|(&rank, &of_job)| {
            let [FAILED, error @ ..] = round.get(rank)?.as_slice() else { return None };
            let (host, reason) = match Error::from_bytes(error) {
                Some(Error::RankFailed { host, reason, .. }) => (host, reason),
                _ => ("unknown".to_owned(), Reason::from("its reason cannot be read")),
            };
            Some(Error::RankFailed { rank: of_job, host, reason })
        })
    }
}

impl World for Part {
    fn position(&self) -> Position {
        self.members.position
    }

    fn describe(&self) -> String {
        format!("{} of {} ranks, {}", self.members.of_job.len(), self.job.size(), self.job.describe())
    }

    fn barrier(&self) -> Result<(), Error> {
        self.all_gather(&[]).map(drop)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let exchange = lock(&self.exchange);
        let Some(exchange) = exchange.as_ref() else {
            return Err(Error::Mismatch(
                "the ranks of a part exchange only until they have ended it".to_owned(),
            ));
        };
        let mut round = exchange(&[&[MESSAGE], mine].concat())?;
        if let Some(error) = self.members.find_failure(&round) {
            return Err(error);
        }
        let messages = self.members.of_parent.iter().zip(&self.members.of_job).map(|(&rank, of_job)| {
            let message = round.get_mut(rank).map(std::mem::take).unwrap_or_default();
            match message.split_first() {
                Some((&MESSAGE, rest)) => Ok(rest.to_vec()),
                _ => Err(Error::Mismatch(format!("rank {of_job} is ready while others still connect"))),
            }
        });
        messages.collect()
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.job)
    }

    fn check(&self) -> Result<(), Error> {
        self.job.check()
    }

    /// The communicators number ranks as the part does; the other ranks read the numbers of the job.
    fn fail(&self, reason: Reason) {
        self.job.fail(reason.renumber_ranks(|rank| self.of_job(rank)));
    }

    fn set_limit(&self, limit: Option<Duration>) {
        self.job.set_limit(limit);
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[Called]) {
        self.job.compare(self.of_job(rank), topic, calls);
    }

    fn time_out(&self, wait: &Wait) -> bool {
        let of_job = |awaited: &Awaited| Awaited { rank: self.of_job(awaited.rank), ..*awaited };
        let awaited = wait.awaited.iter().map(of_job).collect();
        self.job.time_out(&Wait { rank: self.of_job(wait.rank), awaited, ..wait.clone() })
    }

    fn before_exit(&self, hook: ExitHook) {
        self.job.before_exit(hook);
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.job.abort(code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::world::on_ranks;

    /// Forms parts of even and odd ranks of four; returns the results of `make` after the end.
    fn form(make: impl Fn(&Part, usize) -> Result<usize, Error> + Sync) -> Vec<Result<usize, Error>> {
        on_ranks(4, |job| {
            let rank = job.rank();
            let part = Part::new(&job, &[rank % 2, rank % 2 + 2]).unwrap();
            let here = Position { rank: rank / 2, size: 2, local_rank: rank / 2, local_size: 2 };
            assert_eq!(part.position(), here);
            let result = make(&part, rank);
            let ended = part.end(result.as_ref().err().map(Reason::from));
            assert_eq!(job.all_gather(&[]).unwrap().len(), 4, "the job is usable");
            assert!(part.barrier().is_err(), "the part has ended");
            assert_eq!(part.end(None), Ok(()), "the second call does nothing");
            result.and_then(|value| ended.map(|()| value))
        })
    }

    #[test]
    fn parts_exchange_as_often_as_each_needs() {
        let results = form(|part, rank| {
            for _ in 0..3 * (rank % 2) {
                assert_eq!(part.all_gather(&[rank as u8])?, [vec![1], vec![3]]);
            }
            part.barrier()?;
            Ok(rank)
        });
        assert_eq!(results, [Ok(0), Ok(1), Ok(2), Ok(3)]);
    }

    #[test]
    fn a_failure_ends_its_part_with_its_reason() {
        for exchanges in [0, 2] {
            let results = form(|part, rank| {
                for exchange in 0..3 {
                    if rank == 3 && exchange == exchanges {
                        return Err(Error::Environment("no memory".to_owned()));
                    }
                    part.barrier()?;
                }
                Ok(rank)
            });
            assert_eq!((&results[0], &results[2]), (&Ok(0), &Ok(2)));
            assert_eq!(results[3], Err(Error::Environment("no memory".to_owned())));
            let Err(Error::RankFailed { rank: 3, host: name, reason }) = &results[1] else {
                panic!("{results:?}")
            };
            assert_eq!((name, reason), (&host().name, &Reason::from("no memory")));
        }
    }

    #[test]
    fn a_failure_after_others_are_ready_reaches_them() {
        let results = form(|part, rank| {
            part.barrier()?;
            if rank == 0 { Err(Error::Environment("late".to_owned())) } else { Ok(rank) }
        });
        assert!(matches!(&results[2], Err(Error::RankFailed { rank: 0, .. })), "{results:?}");
        assert_eq!(results[3], Ok(3));
    }

    #[test]
    fn a_part_has_the_order_of_its_list_and_others_may_wait_in_parts_of_their_own() {
        let results = on_ranks(4, |job| {
            let rank = job.rank();
            let own = [rank];
            let part = Part::new(&job, if rank == 1 { &own } else { &[3, 0, 2] }).unwrap();
            let gathered = match rank {
                1 => Vec::new(),
                _ => part.all_gather(&[rank as u8]).unwrap().concat(),
            };
            part.end(None).unwrap();
            (part.rank(), part.size(), gathered)
        });
        let all = || vec![3, 0, 2];
        assert_eq!(results, [(1, 3, all()), (0, 1, Vec::new()), (2, 3, all()), (0, 3, all())]);
    }

    #[test]
    fn lists_that_do_not_divide_the_world_are_refused_by_all_ranks() {
        for lists in [[[0, 1], [0, 1], [1, 2]], [[0, 0], [1, 1], [2, 2]], [[0, 9], [1, 9], [2, 9]]] {
            let results = on_ranks(3, |job| {
                let refused = Part::new(&job, &lists[job.rank()]).is_err();
                (refused, job.all_gather(&[]).unwrap().len())
            });
            assert_eq!(results, [(true, 3); 3], "{lists:?}");
        }
    }
}
