//! Timeouts of groups on hosts: all ranks name the ranks that are late.

use std::sync::Barrier;
use std::time::Duration;

use super::{Backend, Group, Job};
use crate::purpose::Purpose;
use crate::{Error, ReduceOp, world};

/// Far longer than ranks need that begin at the same time, also on a busy machine.
const LIMIT: Duration = Duration::from_secs(3);

/// Checks the errors of an all_reduce of a part of a job. The ranks `late` of the job call it only when the
/// others have failed.
fn assert_named(ranks: usize, late: &[usize], part: impl Fn(&Group) -> Option<Group> + Sync) {
    let failed = Barrier::new(ranks);
    let errors = world::on_ranks(ranks, |world| {
        let job = Job::new(world);
        let Some(group) = part(&job.group(Backend::Host).unwrap()) else {
            failed.wait();
            return None;
        };
        group.set_timeout(Some(LIMIT));
        let is_late = late.contains(&job.rank());
        if is_late {
            failed.wait();
        }
        let error = group.all_reduce(vec![1.0_f32; 50], ReduceOp::Sum).wait().unwrap_err();
        if !is_late {
            failed.wait();
        }
        assert_eq!(group.barrier().unwrap_err().to_string(), error.to_string());
        Some(error)
    });
    let named: Vec<_> = late.iter().map(|&rank| (rank, world::host().name)).collect();
    for error in errors.into_iter().flatten() {
        let Error::TimedOut { operation, limit, late } = &error else { panic!("{error:?}") };
        assert_eq!((operation.as_str(), *limit, late), ("all_reduce", LIMIT, &named));
    }
}

#[test]
fn late_ranks_are_named_on_all_ranks() {
    assert_named(3, &[1], |group| Some(group.clone()));
    assert_named(4, &[0, 2], |group| Some(group.clone()));
}

/// Rank 4 of the job is rank 2 of its part. Rank 2 is rank 1 of its part, and rank 0 of the part of that.
#[test]
fn late_ranks_of_a_part_are_those_of_the_job() {
    let even = |group: &Group| group.split(group.rank().is_multiple_of(2).then_some(0)).unwrap();
    assert_named(5, &[4], even);
    assert_named(7, &[2], |group| even(group)?.split((group.rank() != 0).then_some(0)).unwrap());
}

/// The error of an exchange in which the parts connect is the group's own.
#[test]
fn a_rank_that_is_late_within_a_split_is_named() {
    let failed = Barrier::new(2);
    let errors = world::on_ranks(2, |world| {
        let group = Job::new(world).group(Backend::Host).unwrap();
        group.set_timeout(Some(LIMIT));
        if group.rank() == 0 {
            let error = group.split(Some(0)).unwrap_err();
            failed.wait();
            return error;
        }
        group.with_purpose(Purpose::Split).all_gather_bytes(&[1, 0, 0, 0, 0]).unwrap();
        failed.wait();
        group.barrier().unwrap_err()
    });
    for error in errors {
        let Error::TimedOut { operation, limit, late } = &error else { panic!("{error:?}") };
        assert_eq!((operation.as_str(), *limit), ("all_gather for split", LIMIT));
        assert_eq!(late, &[(1, world::host().name)]);
    }
}

#[test]
fn a_part_begins_with_the_timeout_of_its_group() {
    world::on_ranks(2, |world| {
        let group = Job::new(world).group(Backend::Host).unwrap();
        assert_eq!(group.split(Some(0)).unwrap().unwrap().timeout(), None);
        group.set_timeout(Some(LIMIT));
        assert_eq!(group.split(Some(0)).unwrap().unwrap().timeout(), Some(LIMIT));
    });
}

#[test]
fn the_worlds_limit_holds_for_making_a_group() {
    let failed = Barrier::new(2);
    let errors = world::on_ranks(2, |world| {
        let job = Job::new(world);
        job.world().set_limit(Some(Duration::from_millis(300)));
        if job.rank() == 1 {
            failed.wait();
        }
        let error = job.group(Backend::Host).unwrap_err();
        if job.rank() == 0 {
            failed.wait();
        }
        error
    });
    for error in errors {
        assert!(matches!(error, Error::RankFailed { rank: 1, .. }), "{error:?}");
    }
}
