//! Ranks that are lost while the others are in an operation.

use std::panic::resume_unwind;
use std::sync::Barrier;

use collectives::job::{Group, Job};
use collectives::{Error, ReduceOp};

use super::{Memory, Shape, on_ranks};

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
}

impl Loss {
    /// True if the error names the lost rank of the job, and its reason.
    fn is_named_by(self, error: &Error, lost: usize) -> bool {
        match (self, error) {
            (Self::Panics, Error::RankFailed { rank, reason, .. }) => {
                *rank == lost && reason.ends_with("its thread panicked")
            }
            (Self::Ends, Error::RankFailed { rank, reason, .. }) => {
                *rank == lost && reason.contains("has left")
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

/// The last rank of the job is lost. The operations for which it is needed end with an error that names it, on all ranks; those of
/// other parts may complete.
pub(crate) fn a_lost_rank<M: Memory>(
    ranks: usize,
    form: impl Fn(&Job) -> Group + Sync,
    (shape, place, loss): (Shape, Place, Loss),
) {
    let (under_way, lost) = (Barrier::new(ranks), ranks - 1);
    let results = on_ranks(ranks, form, |group| {
        let parts = shape.parts(group);
        let used = if place == Place::Whole { Some(group) } else { parts.last() };
        if group.rank() == lost {
            under_way.wait();
            match loss {
                Loss::Ends => return None,
                // Without a message.
                Loss::Panics => resume_unwind(Box::new("lost")),
            }
        }
        let memory = M::all(group).remove(0);
        let work = used.map(|used| (used, used.all_reduce(memory.upload(&[2.0_f32; 1000]), ReduceOp::Sum)));
        under_way.wait();
        let first = work.map(|(used, work)| {
            let reduced = work.wait().map(|buffer| memory.download(&buffer));
            (used.ranks().to_vec(), reduced)
        });
        // The group of all ranks cannot work without the lost one.
        Some((first, group.barrier().unwrap_err()))
    });
    for (rank, result) in results.into_iter().enumerate() {
        let subject = format!("{shape:?}, {place:?}, {loss:?}: rank {rank}");
        let Ok(result) = result else {
            assert!(rank == lost && loss == Loss::Panics, "{subject} has panicked");
            continue;
        };
        let Some((first, later)) = result else { continue };
        assert!(loss.is_named_by(&later, lost), "{subject}, later: {later:?}");
        match first {
            None => {}
            Some((_, Err(error))) => assert!(loss.is_named_by(&error, lost), "{subject}: {error:?}"),
            Some((ranks, Ok(values))) => {
                assert!(!ranks.contains(&lost), "{subject}: an operation without a rank has completed");
                assert_eq!(values, vec![2.0 * ranks.len() as f32; 1000], "{subject}");
            }
        }
    }
}

/// All of [`a_lost_rank`].
pub(crate) fn lost_ranks<M: Memory>(ranks: usize, form: impl Fn(&Job) -> Group + Sync) {
    for shape in Shape::EACH {
        for place in [Place::Whole, Place::Part] {
            for loss in [Loss::Ends, Loss::Panics] {
                a_lost_rank::<M>(ranks, &form, (shape, place, loss));
            }
        }
    }
}
