//! Calls that are refused, and failures that all ranks learn of.

use std::thread;
use std::time::{Duration, Instant};

use collectives::job::Group;
use collectives::train::{Parameter, Reducer, ReducerOptions, Wire, Zero1};
use collectives::{Error, ReduceOp};

use super::{on_every_rank, parameters};

#[test]
fn a_refused_call_changes_nothing() {
    on_every_rank(2, |group| {
        let mut reducer: Reducer =
            Reducer::new(group, &parameters(&[2, 1]), &ReducerOptions::default().first_bucket_bytes(4))
                .unwrap();
        let text = reducer.gradient(0).unwrap_err().to_string();
        assert!(text.contains("call wait first"), "{text}");
        let mut step = reducer.step(3).unwrap();
        let text = step.ready(2, &[1.0]).unwrap_err().to_string();
        assert_eq!(text, "parameter 2 does not exist: there are 2 parameters");

        // Its bucket is on its way.
        step.ready(1, &[group.rank() as f32]).unwrap();
        let error = step.ready(1, &[7.0]).unwrap_err();
        assert!(matches!(error, Error::Job(_)), "{error:?}");
        assert!(
            error.to_string().contains("parameter \"p1\" (index 1) is ready for the second time in step 3"),
            "{error}"
        );
        let error = step.ready_zero(1).unwrap_err();
        assert!(error.to_string().contains("for the second time"), "{error}");
        let error = step.ready(0, &[1.0; 3]).unwrap_err();
        assert!(matches!(error, Error::Buffer(_)), "{error:?}");
        assert!(
            error.to_string().contains("parameter \"p0\" (index 0) has 3 elements, but its shape is [2]"),
            "{error}"
        );
        let error = reducer.average(3, &mut [&mut [0.0; 2]]).unwrap_err();
        assert!(error.to_string().starts_with("1 gradients for 2 parameters"), "{error}");

        let error = reducer.step(4).unwrap_err();
        assert_eq!(
            error.to_string(),
            "step 3 is not complete (missing gradients: 1): call wait before step 4"
        );
        let mut step = reducer.step(3).unwrap();
        assert!(step.is_ready(1) && !step.is_ready(0));
        step.ready(0, &[1.0, 2.0]).unwrap();
        step.wait().unwrap();
        assert_eq!(reducer.gradient(1).unwrap(), [0.5]);
        assert_eq!(reducer.gradient(0).unwrap(), [1.0, 2.0]);
        let error = reducer.step(3).unwrap_err().to_string();
        assert!(error.starts_with("step 3 is complete: pass the number of the next step"), "{error}");
        let error = reducer.step(1 << 44).unwrap_err().to_string();
        assert!(error.ends_with("the largest number is 17592186044415"), "{error}");
        // Any other number: a program can go back to an earlier step.
        reducer.average(2, &mut [&mut [0.0; 2], &mut [0.0]]).unwrap();
    });
}

#[test]
fn a_missing_gradient_fails_on_all_ranks_with_its_name() {
    let errors = on_every_rank(3, |group| {
        let mut reducer: Reducer =
            Reducer::new(group, &parameters(&[2, 3, 1]), &ReducerOptions::default()).unwrap();
        let mut step = reducer.step(0).unwrap();
        step.ready(0, &[0.0; 2]).unwrap();
        step.ready(2, &[0.0]).unwrap();
        if group.rank() != 1 {
            step.ready(1, &[0.0; 3]).unwrap();
        }
        let error = step.wait().unwrap_err();
        assert_eq!(reducer.step(0).unwrap_err().to_string(), error.to_string());
        assert_eq!(reducer.gradient(0).unwrap_err().to_string(), error.to_string());
        error
    });
    let missing = "no gradient of parameter \"p1\" (index 1) is ready on rank 1 of the group";
    assert!(errors[1].to_string().starts_with(missing), "{}", errors[1]);
    for rank in [0, 2] {
        let Error::RankFailed { rank: 1, reason, .. } = &errors[rank] else { panic!("{:?}", errors[rank]) };
        assert!(reason.to_string().contains(missing), "{reason}");
    }
}

#[test]
fn a_rank_that_does_not_come_is_noticed_after_the_timeout() {
    let limit = Duration::from_millis(300);
    let errors = on_every_rank(2, |group| {
        let mut reducer: Reducer =
            Reducer::new(group, &parameters(&[2]), &ReducerOptions::default()).unwrap();
        group.set_timeout(Some(limit));
        if group.rank() == 0 {
            let mut step = reducer.step(0).unwrap();
            step.ready(0, &[0.0; 2]).unwrap();
            return Some(step.wait().unwrap_err());
        }
        // Until rank 0 has failed.
        let start = Instant::now();
        while group.world().check().is_ok() {
            assert!(start.elapsed() < Duration::from_secs(60), "rank 0 tells no failure");
            thread::yield_now();
        }
        None
    });
    let Some(Error::TimedOut { operation, limit: found, late }) = &errors[0] else { panic!("{errors:?}") };
    assert!(operation.starts_with("all_reduce"), "{operation}");
    assert_eq!(*found, limit);
    assert_eq!(late.iter().map(|(rank, _)| *rank).collect::<Vec<_>>(), [1]);
}

#[test]
fn a_rank_that_leaves_fails_the_step_of_the_others() {
    let errors = on_every_rank(3, |group| {
        let mut reducer: Reducer =
            Reducer::new(group, &parameters(&[2]), &ReducerOptions::default()).unwrap();
        (group.rank() != 1).then(|| {
            let mut step = reducer.step(0).unwrap();
            step.ready(0, &[0.0; 2]).unwrap();
            step.wait().unwrap_err().to_string()
        })
    });
    for rank in [0, 2] {
        let text = errors[rank].as_deref().unwrap();
        assert!(text.contains("rank 1 called nothing more, and left"), "{text}");
    }
}

/// Checks the error of two ranks that make the same call for different purposes.
fn assert_difference(calls: impl Fn(&Group) -> Result<(), Error> + Sync, expected: [impl AsRef<str>; 2]) {
    let expected = expected.each_ref().map(AsRef::as_ref);
    for error in on_every_rank(2, |group| calls(group).unwrap_err()) {
        let Error::Mismatch { rank, called, peer_called, .. } = &error else { panic!("{error:?}") };
        let mut found = [called.as_str(), peer_called.as_deref().unwrap_or_default()];
        if *rank == 1 {
            found.reverse();
        }
        assert_eq!(found, expected, "{error}");
    }
}

#[test]
fn operations_that_only_look_alike_are_told_apart() {
    let options = ReducerOptions::default().first_bucket_bytes(8).bucket_bytes(8);
    let reducer = |group: &Group| Reducer::<Vec<f32>>::new(group, &parameters(&[2, 2]), &options);
    // Two reducers of one shape, in another order on each rank.
    assert_difference(
        |group| {
            let mut reducers = [reducer(group)?, reducer(group)?];
            reducers[group.rank()].average(0, &mut [&mut [0.0; 2], &mut [0.0; 2]])?;
            reducers[1 - group.rank()].average(0, &mut [&mut [0.0; 2], &mut [0.0; 2]])
        },
        [
            "all_reduce of 2 float, avg for bucket 0 of reducer 0 in step 0",
            "all_reduce of 2 float, avg for bucket 0 of reducer 1 in step 0",
        ],
    );
    // An operation of the program between the buckets, which start at different times.
    assert_difference(
        |group| {
            let mut reducer = reducer(group)?;
            reducer.step(8)?.ready(1 - group.rank(), &[1.0; 2])?;
            group.all_reduce_in_place(&mut [0.0_f32; 2], ReduceOp::Avg)?;
            reducer.step(8)?.ready(group.rank(), &[1.0; 2])?;
            reducer.step(8)?.wait()
        },
        ["all_reduce of 2 float, avg for bucket 0 of reducer 0 in step 8", "all_reduce of 2 float, avg"],
    );
    assert_difference(
        |group| match group.rank() {
            0 => reducer(group).map(drop),
            _ => Zero1::<Vec<f32>>::new(group, &parameters(&[2, 2]), &options).map(drop),
        },
        ["all_gather of 8 uint8 for Reducer::new", "all_gather of 8 uint8 for Zero1::new"],
    );
    assert_difference(
        |group| match group.rank() {
            0 => group.split(Some(1)).map(drop),
            _ => group.all_gather_bytes(&[]).map(drop),
        },
        ["all_gather of 8 uint8 for split", "all_gather of 8 uint8 for all_gather_bytes"],
    );
    assert_difference(
        |group| match group.rank() {
            0 => group.all_reduce_list(vec![vec![0_u64], vec![1]], ReduceOp::Sum).wait().map(drop),
            _ => group.all_gather(vec![0_u64; 3], vec![0; 6]).wait().map(drop),
        },
        ["all_gather of 3 uint64 for all_reduce_list", "all_gather of 3 uint64"],
    );
    assert_difference(
        |group| {
            let list = vec![vec![0_u64]; group.rank()];
            group.all_reduce_list(list, ReduceOp::Sum).wait().map(drop)
        },
        ["all_gather of 3 uint64 for all_reduce_list", "all_reduce of 1 uint64, sum for all_reduce_list"],
    );
}

/// Rank 1 has no batch in step 2, and goes on with step 3.
#[test]
fn a_rank_that_leaves_out_a_step_is_told_apart() {
    let options = ReducerOptions::default();
    // Short ones, and such that are cut into segments.
    for len in [2, 300_000] {
        let steps = |group: &Group| (0..5).filter(|&step| (group.rank(), step) != (1, 2)).collect::<Vec<_>>();
        assert_difference(
            |group| {
                let mut reducer = Reducer::<Vec<f32>>::new(group, &parameters(&[len]), &options)?;
                steps(group).iter().try_for_each(|&step| reducer.average(step, &mut [&mut vec![1.0; len]]))
            },
            [2, 3].map(|step| {
                format!("all_reduce of {len} float, avg for bucket 0 of reducer 0 in step {step}")
            }),
        );
        assert_difference(
            |group| {
                let mut optimizer = Zero1::<Vec<f32>>::new(group, &parameters(&[len]), &options)?;
                let (gradient, mut values) = (vec![1.0; len], vec![1.0; len]);
                steps(group).iter().try_for_each(|&step| {
                    optimizer.step(step, &[&gradient], &mut [&mut values], |_, _| Ok(()))
                })
            },
            [2, 3].map(|step| format!("reduce_scatter of {} float, avg for step {step} of Zero1 0", len / 2)),
        );
    }
}

#[test]
fn ranks_that_differ_in_parameters_or_options_are_named() {
    for texts in [
        on_every_rank(3, |group| {
            let shape = if group.rank() == 1 { [3, 4] } else { [4, 3] };
            let parameters = [Parameter::new("a", [2]), Parameter::new("b", shape)];
            let made = Reducer::<Vec<f32>>::new(group, &parameters, &ReducerOptions::default());
            made.unwrap_err().to_string()
        }),
        on_every_rank(3, |group| {
            let parameters = [Parameter::new("a", [2]), Parameter::new("b", [4, 3])];
            let parameters = if group.rank() == 1 { &parameters[..1] } else { &parameters };
            let made = Zero1::<Vec<f32>>::new(group, parameters, &ReducerOptions::default());
            made.unwrap_err().to_string()
        }),
    ] {
        assert!(texts[0].contains("first at index 1: \"b\" [4, 3] on ranks 0, 2, "), "{}", texts[0]);
        assert!(texts[0].contains(" on rank 1; "), "{}", texts[0]);
        assert!(texts.iter().all(|text| *text == texts[0]), "{texts:?}");
    }
    for text in on_every_rank(2, |group| {
        let wire = if group.rank() == 1 { Wire::Bf16 } else { Wire::Same };
        let options = ReducerOptions::default().wire(wire);
        let made = Reducer::<Vec<f32>>::new(group, &parameters(&[1]), &options);
        made.unwrap_err().to_string()
    }) {
        assert!(
            text.contains("wire Same, op Avg on rank 0") && text.contains("wire Bf16, op Avg on rank 1"),
            "{text}"
        );
    }
}

#[test]
fn a_group_is_usable_after_parameters_that_were_refused() {
    on_every_rank(2, |group| {
        let twice = [Parameter::new("a", [2]), Parameter::new("a", [3])];
        let made = Reducer::<Vec<f32>>::new(group, &twice, &ReducerOptions::default());
        assert_eq!(made.unwrap_err().to_string(), "two parameters have the name \"a\": give each its own");
        let huge = [Parameter::new("a", [2]), Parameter::new("huge", [usize::MAX, 2])];
        let error = Zero1::<Vec<f32>>::new(group, &huge, &ReducerOptions::default()).unwrap_err();
        assert!(error.to_string().ends_with("see the shape of \"huge\""), "{error}");
        let error = Reducer::<Vec<f32>>::new(group, &parameters(&[1 << 58]), &ReducerOptions::default());
        assert_eq!(
            error.unwrap_err().to_string(),
            "memory for 288230376151711744 elements of f32 cannot be allocated"
        );
        let mut reducer: Reducer =
            Reducer::new(group, &parameters(&[1]), &ReducerOptions::default()).unwrap();
        let mut data = [group.rank() as f32];
        reducer.average(0, &mut [&mut data]).unwrap();
        assert_eq!(data, [0.5]);
    });
}

/// Lists of any length, and names of any length.
#[test]
fn the_first_difference_of_long_lists_is_named() {
    let list = |lens: std::ops::Range<usize>| -> Vec<_> {
        lens.map(|len| Parameter::new(format!("p{len}"), [len])).collect()
    };
    let texts = on_every_rank(2, |group| {
        let mut parameters = [list(0..1000), list(0..1001)];
        let ends = refused(group, &parameters[group.rank()]);
        parameters[1] = list(0..1000);
        parameters[1][700].shape = vec![7];
        let shapes = refused(group, &parameters[group.rank()]);
        // Longer than a message.
        parameters[1][63].name = "n".repeat((16 << 20) + 1);
        let names = refused(group, &parameters[group.rank()]);
        group.barrier().unwrap();
        [ends, shapes, names]
    });
    for [ends, shapes, names] in texts {
        assert!(ends.contains("first at index 1000: none on rank 0, \"p1000\" [1000] on rank 1;"), "{ends}");
        assert!(
            shapes.contains("first at index 700: \"p700\" [700] on rank 0, \"p700\" [7] on rank 1;"),
            "{shapes}"
        );
        let expected =
            format!("first at index 63: \"p63\" [63] on rank 0, \"{}... on rank 1;", "n".repeat(199));
        assert!(names.contains(&expected), "{names}");
    }
}

fn refused(group: &Group, parameters: &[Parameter]) -> String {
    match Reducer::<Vec<f32>>::new(group, parameters, &ReducerOptions::default()) {
        Err(Error::Job(text)) => text,
        other => panic!("{other:?}"),
    }
}
