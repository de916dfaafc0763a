//! Nested groups.

use super::*;

#[test]
fn hole_4_a_nested_group_is_launched_with_the_outer_one() {
    let fake = Fake::new();
    let ([first, second], mut memory) = pair(&fake);
    let [mut mine, mut theirs] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());
    let answer = group(|group| {
        group.on(&first).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
        let answer = group.nested(|group| {
            group.nested(|group| group.on(&second).all_reduce_in_place(&mut theirs, ReduceOp::Sum))?;
            Ok::<_, Error>(42)
        })?;
        assert_eq!(fake.log(), [""; 0], "nothing is launched at the inner end");
        Ok::<_, Error>(answer)
    });
    assert_eq!(answer.unwrap(), 42);
    assert_eq!(fake.log(), [line(1, 1), line(2, 2)]);
}

#[test]
fn hole_5_a_failed_nested_group_cancels_all_even_if_its_error_is_ignored() {
    let fake = Fake::new();
    let ([first, second], mut memory) = pair(&fake);
    let [mut mine, mut theirs] = memory.each_mut().map(|memory| memory.slice_mut::<f32>(..2).unwrap());
    let result = group(|group| {
        group.on(&first).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
        for rank in [7, 8] {
            let ignored: Result<(), _> = group.nested(|_| Err(Error::Rank { rank, size: 2 }));
            assert!(ignored.is_err());
        }
        group.nested(|group| group.on(&second).all_reduce_in_place(&mut theirs, ReduceOp::Sum))
    });
    not_allowed(result, CANCELLED);
    assert_eq!(fake.log(), [""; 0]);

    // NCCL refuses an operation of the inner group.
    fake.set(Knob::NcclResult, 4);
    let result =
        group(|group| group.nested(|group| group.on(&first).all_reduce_in_place(&mut mine, ReduceOp::Sum)));
    assert!(matches!(result, Err(Error::Nccl { operation: "ncclAllReduce", code: ResultCode(4), .. })));
    assert_eq!(fake.log(), ["group of 0 cancelled"]);
    first.all_reduce_in_place(&mut mine, ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), [line(1, 1)]);
}

#[test]
fn hole_5_a_panic_in_a_nested_group_cancels_all() {
    let fake = Fake::new();
    let ([first, _second], mut memory) = pair(&fake);
    let mut mine = memory[0].slice_mut::<f32>(..2).unwrap();
    let panicked = catch_unwind(AssertUnwindSafe(|| {
        group(|group| {
            group.nested(|group| -> Result<(), Error> {
                group.on(&first).all_reduce_in_place(&mut mine, ReduceOp::Sum)?;
                panic!("in the middle of the inner group")
            })
        })
    }));
    assert!(panicked.is_err());
    assert_eq!(fake.log(), [""; 0]);

    first.all_reduce_in_place(&mut mine, ReduceOp::Sum).unwrap();
    assert_eq!(fake.log(), [line(1, 1)]);
}
