//! The drop of a group's last handle while an operation is under way.

use std::sync::Barrier;

use collectives::Error;
use collectives::ReduceOp::Sum;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

use crate::REMOTE_ERROR;
use crate::fake::{Fake, Knob};
use crate::jobs::with_groups;

#[test]
fn an_operation_that_nccl_fails_is_an_error() {
    let fake = Fake::new();
    let results = with_groups(&fake, 1, |group| {
        fake.set(Knob::Hang, 1);
        let data = group.stream().unwrap().alloc_zeros::<f32>(5).unwrap();
        let work = group.all_reduce(data, Sum);
        fake.set(Knob::AsyncResult, REMOTE_ERROR);
        drop(group);
        fake.set(Knob::AsyncResult, 0);
        work.wait().map(drop)
    });
    assert!(matches!(results[..], [Err(Error::Nccl(_))]), "{results:?}");
}

#[test]
fn an_operation_before_a_capture_is_waited_for() {
    let fake = Fake::new();
    let ending = Barrier::new(2);
    let results = with_groups(&fake, 2, |group| {
        let (rank, stream) = (group.rank(), group.stream().unwrap().clone());
        let data = stream.clone_htod(&[1.0_f32; 5]).unwrap();
        if rank == 1 {
            ending.wait();
        }
        let work = group.all_reduce(data, Sum);
        if rank == 0 {
            stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
            ending.wait();
            drop(group);
            stream.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        }
        let data = work.wait()?;
        let values = stream.clone_dtoh(&data).unwrap();
        stream.synchronize().unwrap();
        Ok::<_, Error>(values)
    });
    assert_eq!(results.into_iter().collect::<Result<Vec<_>, _>>().unwrap(), [[2.0; 5], [2.0; 5]]);
}
