//! Prepared operations.

use std::slice;

use collectives::ReduceOp::Sum;
use collectives::nccl::{Collectives, Communicator, Config, Error, Memory, Prepared};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use half::f16;

use crate::arena::{Room, adopted};
use crate::case::{Way, check_all};
use crate::collectives::SHORT;
use crate::copies::Copies as _;
use crate::gpus::Gpus;
use crate::graphs::{LAUNCHES, LEN, compare, inputs, values};
use crate::reference::fresh_seed;

/// NCCL's memory and adopted slices of cudarc.
pub(crate) fn every_collective_prepared() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let party = slice::from_ref(communicator);
        let mut rooms = Room::of(party, SHORT[1]);
        check_all::<f32, _>(party, &mut rooms, Way::Prepared, &SHORT, seed);
        let room = Room::of_cudarc(communicator.stream(), SHORT[1], communicator.size());
        let mut rooms = adopted::<f16>(vec![room]);
        check_all::<f16, _>(party, &mut rooms, Way::Prepared, &SHORT, seed);
    });
}

/// Memory with a rank's inputs.
fn filled(communicator: &Communicator, seed: u64) -> Memory {
    let values = inputs(seed, communicator.rank(), communicator.size());
    Memory::try_from(communicator.stream().clone_htod(&values).unwrap()).unwrap()
}

/// A sum over all ranks in place.
fn sum(communicator: &Communicator, memory: &mut Memory) -> Prepared {
    let mut view = memory.slice_mut::<f64>(..).unwrap();
    let prepared: Result<_, Error> =
        communicator.prepare(|prepare| prepare.all_reduce_in_place(&mut view, Sum));
    prepared.unwrap()
}

/// Each call works on the results of the previous one: a sum, and one in a group.
pub(crate) fn a_list_queued_ten_times() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let mut memories = [filled(communicator, seed), filled(communicator, !seed)];
        let [first, second] = &mut memories;
        let prepared = communicator.prepare(|prepare| {
            prepare.all_reduce_in_place(&mut first.slice_mut::<f64>(..)?, Sum)?;
            prepare.group(|group| group.all_reduce_in_place(&mut second.slice_mut::<f64>(..)?, Sum))
        });
        let prepared: Prepared = prepared.unwrap();
        for call in 0..LAUNCHES {
            // All at once, or one after the other.
            if call % 2 == 0 {
                communicator.queue(&prepared).unwrap();
            } else {
                (0..2).for_each(|entry| communicator.queue_range(&prepared, entry..=entry).unwrap());
            }
        }
        drop(prepared);
        compare(&values(&memories[0]), seed, communicator.size(), LAUNCHES);
        compare(&values(&memories[1]), !seed, communicator.size(), LAUNCHES);
    });
}

/// New values before every call, on the communicator's stream or another; the results are read there.
pub(crate) fn a_list_refilled_between_the_calls() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size, stream) = (communicator.rank(), communicator.size(), communicator.stream());
        let other = stream.context().new_stream().unwrap();
        for stream in [stream, &other] {
            let alloc = || Memory::alloc(communicator.library(), stream, LEN * size_of::<f64>()).unwrap();
            let (mut source, mut total) = (alloc(), alloc());
            let prepared = communicator.prepare(|prepare| {
                prepare.all_reduce(&source.slice::<f64>(..)?, &mut total.slice_mut::<f64>(..)?, Sum)
            });
            let prepared: Prepared = prepared.unwrap();
            assert_eq!(values(&total), [0.0; LEN], "nothing has run");
            for call in 0..u64::from(LAUNCHES) {
                let seed = seed.wrapping_add(call);
                let view = &mut source.slice_mut::<f64>(..).unwrap();
                stream.write(&inputs(seed, rank, size), view);
                communicator.queue(&prepared).unwrap();
                // In the order of the stream, after the operation.
                stream.memset_zeros(view).unwrap();
                compare(&values(&total), seed, size, 1);
            }
        }
    });
}

/// It is refused, and the capture is unchanged.
pub(crate) fn a_list_on_a_captured_stream() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let mut memory = filled(communicator, seed);
        let prepared = sum(communicator, &mut memory);
        let stream = communicator.stream();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let refused = communicator.queue(&prepared);
        let graph = stream.end_capture(CUgraphInstantiate_flags(0));
        assert!(matches!(refused, Err(Error::Stream { .. })), "{refused:?}");
        drop(graph.unwrap());
        communicator.queue(&prepared).unwrap();
        compare(&values(&memory), seed, communicator.size(), 1);
    });
}

pub(crate) fn a_list_of_a_non_blocking_communicator() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new().blocking(false), |communicator| {
        let mut memory = filled(communicator, seed);
        let mut view = memory.slice_mut::<f64>(..).unwrap();
        let prepared = communicator.prepare(|prepare| {
            prepare.all_reduce_in_place(&mut view, Sum)?;
            prepare.group(|group| group.all_reduce_in_place(&mut view, Sum))
        });
        let prepared: Prepared = prepared.unwrap();
        communicator.queue(&prepared).unwrap();
        compare(&values(&memory), seed, communicator.size(), 2);
    });
}

/// They keep their memory, not the communicator.
pub(crate) fn lists_outlive_their_communicator() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.owned_ranks(&Config::new(), |communicator| {
        let size = communicator.size();
        let mut memory = filled(&communicator, seed);
        let prepared = sum(&communicator, &mut memory);
        communicator.queue(&prepared).unwrap();
        communicator.finalize().unwrap();
        let refused = communicator.queue(&prepared);
        assert!(matches!(refused, Err(Error::Unusable { .. })), "{refused:?}");
        communicator.close().unwrap();
        compare(&values(&memory), seed, size, 1);
        drop(prepared);
        compare(&values(&memory), seed, size, 1);
    });
}
