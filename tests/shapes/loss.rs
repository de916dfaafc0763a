//! Ranks that are lost while the others are in an operation.

use std::panic::resume_unwind;
use std::sync::Barrier;

use collectives::job::{Group, Job};
use collectives::{Error, ReduceOp};

use super::{Memory, Shape, on_ranks, works};

/// The group whose operation is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// The group of all ranks.
    Whole,
    /// Each rank's last part: that of the lost rank, or another one.
    Part,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Loss {
    /// Drops its groups, and leaves the job.
    Ends,
    Panics,
    /// Its process is killed.
    Killed,
}

impl Loss {
    /// True if the error names the lost rank of the job, and its reason.
    fn is_named_by(self, error: &Error, lost: usize) -> bool {
        match (self, error) {
            (Self::Panics, Error::RankFailed { rank, reason, .. }) => {
                *rank == lost && reason.to_string().ends_with("its thread panicked")
            }
            (Self::Ends, Error::RankFailed { rank, reason, .. }) => {
                *rank == lost && reason.to_string().contains("has left")
            }
            (Self::Killed, Error::RankFailed { rank, reason, .. }) => {
                *rank == lost && matches!(reason, collectives::world::Reason::Died(_))
            }
            (Self::Ends, Error::Mismatch { rank, called, peer, peer_called }) => {
                let calls = [(*rank, Some(called)), (*peer, peer_called.as_ref())];
                let has_left = |(_, call): &(usize, Option<&String>)| {
                    call.is_some_and(|call| call.ends_with("and left"))
                };
                calls.iter().find(|call| has_left(call)).is_some_and(|(rank, _)| *rank == lost)
            }
            _ => false,
        }
    }
}

/// A case of a test.
pub(crate) type Case = (Shape, Place, Loss);

/// The operation that was under way when a rank was lost.
struct First {
    ranks: Vec<usize>,
    values: Result<Vec<f32>, Error>,
}

/// Results of a rank that is not lost.
pub(crate) struct Observed {
    /// The operation that was under way, if this rank is in its group.
    first: Option<First>,
    /// The error of the group of all ranks, which cannot work without the lost one.
    later: Error,
}

/// Loses the last rank of the job, while the other ranks are in an operation. `meet` waits for all ranks, and
/// `lose` is called by the lost rank; it returns if the rank only drops its groups.
pub(crate) fn lose_last<M: Memory>(
    group: &Group,
    (shape, place, _): Case,
    meet: impl Fn(),
    lose: impl Fn(),
) -> Option<Observed> {
    let parts = shape.parts(group);
    // The first operation of a group over GPUs connects its ranks, and waits for them.
    parts.iter().chain([group]).for_each(works::<M>);
    let used = if place == Place::Whole { Some(group) } else { parts.last() };
    if group.rank() + 1 == group.size() {
        meet();
        lose();
        return None;
    }
    let memory = M::all(group).remove(0);
    let work = used.map(|used| (used, used.all_reduce(memory.upload(&[2.0_f32; 1000]), ReduceOp::Sum)));
    meet();
    let first = work.map(|(used, work)| First {
        ranks: used.ranks().to_vec(),
        values: work.wait().map(|buffer| memory.download(&buffer)),
    });
    Some(Observed { first, later: group.barrier().unwrap_err() })
}

impl Observed {
    /// The operations for which the lost rank is needed have ended with an error that names it; those of
    /// other parts may be complete.
    pub(crate) fn assert_named(self, case: Case, rank: usize, lost: usize) {
        let (shape, place, loss) = case;
        let subject = format!("{shape:?}, {place:?}, {loss:?}: rank {rank}");
        let Self { first, later } = self;
        assert!(loss.is_named_by(&later, lost), "{subject}, later: {later:?}");
        match first {
            None => {}
            Some(First { values: Err(error), .. }) => {
                assert!(loss.is_named_by(&error, lost), "{subject}: {error:?}")
            }
            Some(First { ranks, values: Ok(values) }) => {
                assert!(!ranks.contains(&lost), "{subject}: an operation without a rank has completed");
                assert_eq!(values, vec![2.0 * ranks.len() as f32; 1000], "{subject}");
            }
        }
    }
}

/// The last rank of a job of threads is lost.
pub(crate) fn a_lost_rank<M: Memory>(ranks: usize, form: impl Fn(&Job) -> Group + Sync, case: Case) {
    let (under_way, lost, loss) = (Barrier::new(ranks), ranks - 1, case.2);
    let results = on_ranks(ranks, form, |group| {
        let lose = || match loss {
            Loss::Ends => {}
            // Without a message.
            Loss::Panics => resume_unwind(Box::new("lost")),
            Loss::Killed => panic!("threads are not killed"),
        };
        lose_last::<M>(group, case, || _ = under_way.wait(), lose)
    });
    for (rank, result) in results.into_iter().enumerate() {
        match result {
            Ok(observed) => observed.into_iter().for_each(|observed| observed.assert_named(case, rank, lost)),
            Err(_) => assert!(rank == lost && loss == Loss::Panics, "{case:?}: rank {rank} has panicked"),
        }
    }
}

/// All cases with these losses.
pub(crate) fn cases(losses: &[Loss]) -> impl Iterator<Item = Case> {
    let places = Shape::EACH.into_iter().flat_map(|shape| [(shape, Place::Whole), (shape, Place::Part)]);
    places.flat_map(move |(shape, place)| losses.iter().map(move |&loss| (shape, place, loss)))
}

/// All of [`a_lost_rank`].
pub(crate) fn lost_ranks<M: Memory>(ranks: usize, form: impl Fn(&Job) -> Group + Sync) {
    cases(&[Loss::Ends, Loss::Panics]).for_each(|case| a_lost_rank::<M>(ranks, &form, case));
}
