//! Streams of buffers and communicators, and calls that do not wait.

use std::slice;
use std::sync::{Arc, Barrier};

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Config, UniqueId, group};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream};

use crate::arena::{Room, adopted};
use crate::case::{Way, check_all};
use crate::collectives::{SHORT, works};
use crate::copies::Copies as _;
use crate::gpus::Gpus;
use crate::reference::fresh_seed;

fn other(communicator: &Communicator) -> Arc<CudaStream> {
    communicator.stream().context().new_stream().unwrap()
}

/// Send and receive buffers belong to streams of their own.
pub(crate) fn buffers_of_other_streams() {
    fn rooms(party: &[Communicator]) -> Vec<Room<CudaSlice<f32>>> {
        let room = |member: &Communicator| {
            let Room { send, .. } = Room::of_cudarc(&other(member), SHORT[1], member.size());
            let Room { receive, .. } = Room::of_cudarc(&other(member), SHORT[1], member.size());
            Room { send, receive }
        };
        party.iter().map(room).collect()
    }
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (party, foreign) = (slice::from_ref(communicator), other(communicator));
        let mut memory = [Room::new(communicator.library(), &foreign, SHORT[1], communicator.size())];
        check_all::<f32, _>(party, &mut memory, Way::Alone, &SHORT, seed);
        check_all::<f32, _>(party, &mut memory, Way::Graph, &SHORT, seed);
        check_all::<f32, _>(party, &mut rooms(party), Way::Alone, &SHORT, seed);
        check_all::<f32, _>(party, &mut adopted(rooms(party)), Way::Graph, &SHORT, seed);
    });
    let party = gpus.together(&Config::new());
    check_all::<f32, _>(&party, &mut rooms(&party), Way::Grouped, &SHORT, seed);
    if gpus.are_shared() {
        return println!("  left out: ranks that share a GPU in one graph, which is refused");
    }
    check_all::<f32, _>(&party, &mut adopted(rooms(&party)), Way::Graph, &SHORT, seed);
}

/// NCCL's stream stays out of the capture, and the result is complete.
pub(crate) fn a_buffer_that_a_capture_under_way_has_read() {
    let gpus = Gpus::all();
    gpus.ranks(&Config::new(), |communicator| {
        let stream = other(communicator);
        let mut sum = stream.alloc_zeros::<f32>(SHORT[1]).unwrap();
        // A context object without counted streams records no event, for which the capture could not wait.
        let context = CudaContext::new(stream.context().ordinal()).unwrap();
        let buffer = context.default_stream().clone_htod(&vec![1.0_f32; SHORT[1]]).unwrap();
        let mut copy = context.default_stream().alloc_zeros::<f32>(SHORT[1]).unwrap();
        let captured = context.new_stream().unwrap();
        captured.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        captured.memcpy_dtod(&buffer, &mut copy).unwrap();
        communicator.all_reduce(&buffer, &mut sum, ReduceOp::Sum).unwrap();
        let ended = captured.end_capture(CUgraphInstantiate_flags(0));
        println!("  the capture ends with {:?}", ended.map(|graph| graph.is_some()));
        let wanted = vec![communicator.size() as f32; SHORT[1]];
        assert_eq!(stream.clone_dtoh(&sum).unwrap(), wanted);
        // NCCL's stream can be used as before.
        communicator.all_reduce_in_place(&mut sum, ReduceOp::Max).unwrap();
        assert_eq!(stream.clone_dtoh(&sum).unwrap(), wanted);
    });
}

/// Another stream writes the buffer late, and reads it afterwards.
pub(crate) fn work_of_other_streams_comes_before_and_after() {
    const LONG: usize = 64 << 20;
    const LEN: usize = 100_003;
    let gpus = Gpus::all();
    gpus.ranks(&Config::new(), |communicator| {
        let stream = other(communicator);
        let source = stream.clone_htod(&vec![communicator.rank() as u32 + 1; LEN]).unwrap();
        let (mut buffer, mut copy) =
            (stream.alloc_zeros::<u32>(LEN).unwrap(), stream.alloc_zeros::<u32>(LEN).unwrap());
        let (mut first, mut second) =
            (stream.alloc_zeros::<u32>(LONG).unwrap(), stream.alloc_zeros::<u32>(LONG).unwrap());
        stream.synchronize().unwrap();
        for _ in 0..50 {
            stream.memcpy_dtod(&first, &mut second).unwrap();
            stream.memcpy_dtod(&second, &mut first).unwrap();
        }
        stream.memcpy_dtod(&source, &mut buffer).unwrap();
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        stream.memcpy_dtod(&buffer, &mut copy).unwrap();
        stream.memset_zeros(&mut buffer).unwrap();
        let sum = (1..=communicator.size() as u32).sum::<u32>();
        assert!(stream.read(&copy) == vec![sum; LEN]);
        assert!(stream.read(&buffer) == vec![0; LEN]);
    });
}

/// To another stream, and to the default one.
pub(crate) fn communicators_on_other_streams() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.owned_ranks(&Config::new(), |mut communicator| {
        let size = communicator.size() as f32;
        let mut buffer = communicator.stream().clone_htod(&[1.0f32; 1_001]).unwrap();
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        let (second, default) = (other(&communicator), communicator.stream().context().default_stream());
        communicator.set_stream(&second).unwrap();
        assert!(Arc::ptr_eq(communicator.stream(), &second));
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        works(&communicator, seed);
        communicator.set_stream(&default).unwrap();
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        works(&communicator, seed);
        assert_eq!(default.read(&buffer), [size * size * size; 1_001]);
        communicator.close().unwrap();
    });
    let id = UniqueId::new(gpus.library).unwrap();
    gpus.threads(|rank, crew| {
        let stream = gpus.stream(rank).context().default_stream();
        let communicator = gpus.rank(&stream, rank).id(&id).init().unwrap();
        crew.watch(&communicator);
        works(&communicator, seed);
        communicator.close().unwrap();
    });
}

/// The other ranks enter the collective only after rank 0's call has returned: if the call waited for them,
/// the test would hang. Its queued work cannot be done yet.
pub(crate) fn the_host_does_not_wait() {
    const LEN: usize = 1 << 20;
    let gpus = Gpus::all();
    for config in [Config::new(), Config::new().blocking(false)] {
        let returned = Barrier::new(gpus.count);
        gpus.ranks(&config, |communicator| {
            let stream = communicator.stream();
            let mut buffer = stream.clone_htod(&vec![1.0f32; LEN]).unwrap();
            // NCCL connects here, for which all ranks wait.
            communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
            let foreign = other(communicator);
            let mut theirs = foreign.clone_htod(&vec![1.0f32; LEN]).unwrap();
            stream.synchronize().unwrap();
            foreign.synchronize().unwrap();

            if communicator.rank() > 0 {
                returned.wait();
            }
            communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
            communicator.all_reduce_in_place(&mut theirs, ReduceOp::Sum).unwrap();
            group(|group| group.on(communicator).all_reduce_in_place(&mut buffer, ReduceOp::Sum)).unwrap();
            if communicator.rank() == 0 {
                let (own, other) = (stream.record_event(None).unwrap(), foreign.record_event(None).unwrap());
                assert!(!own.try_is_complete().unwrap(), "the other ranks have not entered");
                assert!(!other.try_is_complete().unwrap(), "the buffer's stream waits, too");
                returned.wait();
            }
            let size = communicator.size() as f32;
            assert!(stream.read(&buffer) == vec![size * size * size; LEN]);
            assert!(foreign.read(&theirs) == vec![size; LEN]);
        });
    }
}
