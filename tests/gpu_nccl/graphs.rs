//! Collectives in CUDA graphs.

use std::slice;

use collectives::ReduceOp;
use collectives::nccl::{Communicator, Config, Error, Graph, Memory};
use cudarc::driver::CudaSlice;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use half::f16;

use crate::case::{Room, Way, check_all};
use crate::collectives::SHORT;
use crate::gpus::Gpus;
use crate::reference::{Value, bits, fresh_seed, reduced};

/// Over NCCL's memory and cudarc's slices, by one rank in each thread and by all in one.
pub(crate) fn every_collective_in_graphs() {
    fn cudarc<T: Value>(party: &[Communicator], seed: u64) {
        let room = |member: &Communicator| -> Room<CudaSlice<T>> {
            Room::of_cudarc(member.stream(), SHORT[1], member.size())
        };
        let mut rooms: Vec<_> = party.iter().map(room).collect();
        check_all::<T, _>(party, &mut rooms, Way::Graph, &SHORT, seed);
    }
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let party = slice::from_ref(communicator);
        let mut rooms = Room::of(party, SHORT[1]);
        check_all::<f32, _>(party, &mut rooms, Way::Graph, &SHORT, seed);
        cudarc::<f16>(party, seed);
    });
    let party = gpus.together(&Config::new());
    let mut rooms = Room::of(&party, SHORT[1]);
    check_all::<i32, _>(&party, &mut rooms, Way::Graph, &SHORT, seed);
    cudarc::<f64>(&party, seed);
}

/// What `launches` sums in place make of the ranks' inputs: the first one their sum, and each later one a multiple of it.
fn repeated(seed: u64, ranks: usize, index: usize, launches: u32) -> f64 {
    let inputs = (0..ranks).map(|rank| f64::contribution(bits(seed, rank, index), ReduceOp::Sum, ranks));
    reduced(ReduceOp::Sum, inputs) * (ranks as f64).powi(launches as i32 - 1)
}

const LEN: usize = 10_007;
const LAUNCHES: u32 = 10;

fn inputs(seed: u64, rank: usize, ranks: usize) -> Vec<f64> {
    (0..LEN).map(|index| f64::contribution(bits(seed, rank, index), ReduceOp::Sum, ranks)).collect()
}

#[track_caller]
fn compare(found: &[f64], seed: u64, ranks: usize, launches: u32) {
    for (index, &found) in found.iter().enumerate() {
        let wanted = repeated(seed, ranks, index, launches);
        assert!(found == wanted, "element {index} is {found}, expected {wanted}, seed {seed}");
    }
}

/// A graph launched ten times without a pause in between: each launch works on the results of the one before.
pub(crate) fn a_graph_launched_ten_times() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size, stream) = (communicator.rank(), communicator.size(), communicator.stream());
        let mut slice = stream.clone_htod(&inputs(seed, rank, size)).unwrap();
        let mut memory = Memory::alloc(communicator.library(), stream, 8 * LEN).unwrap();
        let mut view = memory.slice_mut::<f64>(..LEN).unwrap();
        stream.memcpy_htod(&inputs(!seed, rank, size), &mut view).unwrap();
        // Two collectives, one after the other, over both kinds of memory.
        let graph = Graph::capture(|capture| {
            capture.on(communicator).all_reduce_in_place(&mut slice, ReduceOp::Sum)?;
            capture.on(communicator).all_reduce_in_place(&mut view, ReduceOp::Sum)
        })
        .unwrap();
        for _ in 0..LAUNCHES {
            graph.launch().unwrap();
        }
        let error = communicator.finalize().unwrap_err();
        assert!(matches!(error, Error::Unusable { .. }), "{error}");
        drop(graph);
        compare(&stream.clone_dtoh(&slice).unwrap(), seed, size, LAUNCHES);
        compare(&stream.clone_dtoh(&view).unwrap(), !seed, size, LAUNCHES);
    });
}

/// The same with all ranks in one thread, in one graph with a group in it.
pub(crate) fn a_graph_over_all_gpus_launched_ten_times() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let party = gpus.together(&Config::new());
    let mut buffers: Vec<_> = party
        .iter()
        .map(|member| member.stream().clone_htod(&inputs(seed, member.rank(), gpus.count)).unwrap())
        .collect();
    let mut copies: Vec<_> =
        party.iter().map(|member| member.stream().alloc_zeros::<f64>(LEN).unwrap()).collect();
    let sources: Vec<_> = party
        .iter()
        .map(|member| member.stream().clone_htod(&inputs(!seed, member.rank(), gpus.count)).unwrap())
        .collect();
    let graph = Graph::capture(gpus.library, |capture| {
        capture.group(|capture| {
            for (((member, buffer), copy), source) in
                party.iter().zip(&mut buffers).zip(&mut copies).zip(&sources)
            {
                capture.on(member).all_reduce_in_place(buffer, ReduceOp::Sum)?;
                capture.on(member).all_reduce(source, copy, ReduceOp::Sum)?;
            }
            Ok(())
        })
    })
    .unwrap();
    for _ in 0..LAUNCHES {
        graph.launch().unwrap();
    }
    drop(graph);
    for (member, (buffer, copy)) in party.iter().zip(buffers.iter().zip(&copies)) {
        compare(&member.stream().clone_dtoh(buffer).unwrap(), seed, gpus.count, LAUNCHES);
        compare(&member.stream().clone_dtoh(copy).unwrap(), !seed, gpus.count, 1);
        member.async_error().unwrap();
    }
}

/// A capture of one's own, with a copy of cudarc's in it, launched several times with other inputs.
pub(crate) fn a_capture_of_ones_own() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size, stream) = (communicator.rank(), communicator.size(), communicator.stream());
        // SAFETY: this thread uses its buffers on one stream alone.
        unsafe { stream.context().disable_event_tracking() };
        let mut source = stream.clone_htod(&inputs(seed, rank, size)).unwrap();
        let mut buffer = stream.alloc_zeros::<f64>(LEN).unwrap();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        // Without `captured` it is refused.
        let refused = communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum);
        assert!(matches!(refused, Err(Error::Stream { .. })), "{refused:?}");
        stream.memcpy_dtod(&source, &mut buffer).unwrap();
        // SAFETY: communicator and buffers live longer than the graph, and nothing else uses them while it runs.
        unsafe { communicator.captured() }.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        assert_eq!(stream.clone_dtoh(&buffer).unwrap(), [0.0; LEN], "nothing has run");
        for launch in 0..4 {
            let seed = seed + launch;
            stream.memcpy_htod(&inputs(seed, rank, size), &mut source).unwrap();
            graph.launch().unwrap();
            graph.launch().unwrap();
            compare(&stream.clone_dtoh(&buffer).unwrap(), seed, size, 1);
        }
        drop(graph);
    });
}

/// Graphs of non-blocking communicators are refused; the communicators go on.
pub(crate) fn a_graph_of_a_non_blocking_communicator() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new().blocking(false), |communicator| {
        let stream = communicator.stream();
        let mut buffer = stream.clone_htod(&inputs(seed, communicator.rank(), communicator.size())).unwrap();
        let result = Graph::capture(|capture| {
            capture.on(communicator).all_reduce_in_place(&mut buffer, ReduceOp::Sum)
        })
        .map(drop);
        assert!(matches!(result, Err(Error::Stream { .. })), "{result:?}");
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        compare(&stream.clone_dtoh(&buffer).unwrap(), seed, communicator.size(), 1);
    });
}
