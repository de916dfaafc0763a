//! The ranks of a group while it is made: its backend connects over this world.
//!
//! Parts of a group need different numbers of exchanges to connect, and a rank may fail at any of them. So
//! all ranks of the parent exchange in rounds, until no rank needs another one. In each round, a rank sends
//! the message of an exchange, or says that it is ready, or that it has failed. A failure ends the making of
//! the group on all its ranks, with the failed rank's reason. The parent can still be used.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::lock::lock;
use crate::world::{self, Awaited, Called, ExitHook, Handle, Position, Reason, Wait, World};

/// An all_gather of the parent's ranks.
pub(crate) type Exchange<'a> = dyn Fn(&[u8]) -> Result<Vec<Vec<u8>>, world::Error> + Send + Sync + 'a;

/// First byte of a message of a round.
const MESSAGE: u8 = 0;
const READY: u8 = 1;
const FAILED: u8 = 2;

/// The ranks of one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Members {
    /// Ranks of the parent, in the order of the group's ranks.
    pub(crate) of_parent: Vec<usize>,
    /// Ranks of the job, in the order of the group's ranks.
    pub(crate) of_job: Vec<usize>,
    pub(crate) position: Position,
}

/// A world of a group's ranks. Its collective calls work until the group is made; afterwards it reports
/// failures and calls only.
pub(crate) struct Formation {
    job: Handle,
    members: Members,
    exchange: Mutex<Option<Box<Exchange<'static>>>>,
}

impl Formation {
    pub(crate) fn new(job: Handle, members: Members, exchange: Box<Exchange<'static>>) -> Arc<Self> {
        Arc::new(Self { job, members, exchange: Mutex::new(Some(exchange)) })
    }

    /// Ranks of the job by rank of the group.
    #[cfg(feature = "nccl")]
    pub(crate) fn ranks(&self) -> &[usize] {
        &self.members.of_job
    }

    /// The rank of the job with this rank of the group.
    fn of_job(&self, rank: usize) -> usize {
        self.members.of_job.get(rank).copied().unwrap_or(rank)
    }

    /// Exchanges until all ranks of the parent are ready or have failed. Returns the result of this rank, or
    /// the first failure of the group's ranks.
    pub(crate) fn finish<T, E>(&self, result: Result<T, E>) -> Result<T, E>
    where
        E: From<world::Error>,
        for<'a> Reason: From<&'a E>,
    {
        let Some(exchange) = lock(&self.exchange).take() else { return result };
        let last = match &result {
            Ok(_) => vec![READY],
            Err(error) => {
                let (rank, host) = (self.rank(), world::host().name);
                let error = world::Error::RankFailed { rank, host, reason: Reason::from(error) };
                [vec![FAILED], error.to_bytes()].concat()
            }
        };
        let mut failure = None;
        loop {
            let round = match exchange(&last) {
                Ok(round) => round,
                Err(error) => return result.and(Err(error.into())),
            };
            failure = failure.or_else(|| self.members.failure(&round));
            if round.iter().all(|message| message.first() != Some(&MESSAGE)) {
                return match failure {
                    Some(error) => result.and(Err(error.into())),
                    None => result,
                };
            }
        }
    }
}

impl Members {
    /// All ranks of a world.
    pub(crate) fn all(world: &dyn World) -> Self {
        let ranks: Vec<usize> = (0..world.size()).collect();
        Self { of_parent: ranks.clone(), of_job: ranks, position: world.position() }
    }

    /// The error of the first rank of the group that has failed in this round.
    fn failure(&self, round: &[Vec<u8>]) -> Option<world::Error> {
        self.of_parent.iter().zip(&self.of_job).find_map(|(&rank, &of_job)| {
            let [FAILED, error @ ..] = round.get(rank)?.as_slice() else { return None };
            let (host, reason) = match world::Error::from_bytes(error) {
                Some(world::Error::RankFailed { host, reason, .. }) => (host, reason),
                _ => ("unknown".to_owned(), Reason::from("its reason cannot be read")),
            };
            Some(world::Error::RankFailed { rank: of_job, host, reason })
        })
    }
}

impl World for Formation {
    fn position(&self) -> Position {
        self.members.position
    }

    fn describe(&self) -> String {
        format!("{} of {} ranks, {}", self.members.of_job.len(), self.job.size(), self.job.describe())
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.all_gather(&[]).map(drop)
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        let exchange = lock(&self.exchange);
        let Some(exchange) = exchange.as_ref() else {
            return Err(world::Error::Mismatch(
                "the ranks of a group exchange only while it is made".to_owned(),
            ));
        };
        let mut round = exchange(&[&[MESSAGE], mine].concat())?;
        if let Some(error) = self.members.failure(&round) {
            return Err(error);
        }
        let messages = self.members.of_parent.iter().zip(&self.members.of_job).map(|(&rank, of_job)| {
            let message = round.get_mut(rank).map(std::mem::take).unwrap_or_default();
            match message.split_first() {
                Some((&MESSAGE, rest)) => Ok(rest.to_vec()),
                _ => {
                    Err(world::Error::Mismatch(format!("rank {of_job} is ready while others still connect")))
                }
            }
        });
        messages.collect()
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.job)
    }

    fn check(&self) -> Result<(), world::Error> {
        self.job.check()
    }

    /// The backend numbers ranks as the group does; the other ranks read the numbers of the job.
    fn fail(&self, reason: Reason) {
        self.job.fail(reason.renumber(|rank| self.of_job(rank)));
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
    use crate::world::Error;

    /// Forms parts of even and odd ranks of four; returns the results of `make` after the end.
    fn form(make: impl Fn(&Formation, usize) -> Result<usize, Error> + Sync) -> Vec<Result<usize, Error>> {
        world::on_ranks(4, |job| {
            let rank = job.rank();
            let ranks = vec![rank % 2, rank % 2 + 2];
            let position = Position { rank: rank / 2, size: 2, local_rank: rank / 2, local_size: 2 };
            let members = Members { of_parent: ranks.clone(), of_job: ranks, position };
            let exchange = Arc::clone(&job);
            let exchange = Box::new(move |mine: &[u8]| exchange.all_gather(mine));
            let formation = Formation::new(Arc::clone(&job), members, exchange);
            let result = formation.finish(make(&formation, rank));
            assert_eq!(job.all_gather(&[]).unwrap().len(), 4, "the job is usable");
            assert!(formation.barrier().is_err(), "the formation has ended");
            result
        })
    }

    #[test]
    fn parts_exchange_as_often_as_each_needs() {
        let results = form(|formation, rank| {
            for _ in 0..3 * (rank % 2) {
                assert_eq!(formation.all_gather(&[rank as u8])?, [vec![1], vec![3]]);
            }
            formation.barrier()?;
            Ok(rank)
        });
        assert_eq!(results, [Ok(0), Ok(1), Ok(2), Ok(3)]);
    }

    #[test]
    fn a_failure_ends_its_part_with_its_reason() {
        for exchanges in [0, 2] {
            let results = form(|formation, rank| {
                for exchange in 0..3 {
                    if rank == 3 && exchange == exchanges {
                        return Err(Error::Environment("no memory".to_owned()));
                    }
                    formation.barrier()?;
                }
                Ok(rank)
            });
            assert_eq!((&results[0], &results[2]), (&Ok(0), &Ok(2)));
            assert_eq!(results[3], Err(Error::Environment("no memory".to_owned())));
            let Err(Error::RankFailed { rank: 3, host, reason }) = &results[1] else { panic!("{results:?}") };
            assert_eq!((host, reason), (&world::host().name, &Reason::from("no memory")));
        }
    }

    #[test]
    fn a_failure_after_others_are_ready_reaches_them() {
        let results = form(|formation, rank| {
            formation.barrier()?;
            if rank == 0 { Err(Error::Environment("late".to_owned())) } else { Ok(rank) }
        });
        assert!(matches!(&results[2], Err(Error::RankFailed { rank: 0, .. })), "{results:?}");
        assert_eq!(results[3], Ok(3));
    }
}
