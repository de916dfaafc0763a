//! Collectives in CUDA graphs.

use std::mem;
use std::slice;

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Config, Error, Graph, Memory};
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};
use half::f16;

use crate::arena::{Room, adopted};
use crate::case::{Way, check_all};
use crate::collectives::SHORT;
use crate::copies::Copies as _;
use crate::gpus::Gpus;
use crate::reference::{Value, bits, fresh_seed, reduced};

/// NCCL's memory and adopted slices of cudarc, with one rank per thread and all in one thread.
pub(crate) fn every_collective_in_graphs() {
    fn cudarc<T: Value>(party: &[Communicator], seed: u64) {
        let room = |member: &Communicator| Room::of_cudarc(member.stream(), SHORT[1], member.size());
        let mut rooms = adopted::<T>(party.iter().map(room).collect());
        check_all::<T, _>(party, &mut rooms, Way::Graph, &SHORT, seed);
    }
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let party = slice::from_ref(communicator);
        let mut rooms = Room::of(party, SHORT[1]);
        check_all::<f32, _>(party, &mut rooms, Way::Graph, &SHORT, seed);
        cudarc::<f16>(party, seed);
    });
    if gpus.are_shared() {
        return println!("  left out: ranks that share a GPU in one graph, which is refused");
    }
    let party = gpus.together(&Config::new());
    let mut rooms = Room::of(&party, SHORT[1]);
    check_all::<i32, _>(&party, &mut rooms, Way::Graph, &SHORT, seed);
    cudarc::<f64>(&party, seed);
}

/// Expected result of `launches` in-place sums: the first is the sum of the ranks' inputs, each later one a
/// multiple.
fn repeated(seed: u64, ranks: usize, index: usize, launches: u32) -> f64 {
    let inputs = (0..ranks).map(|rank| f64::contribution(bits(seed, rank, index), ReduceOp::Sum, ranks));
    reduced(ReduceOp::Sum, inputs) * (ranks as f64).powi(launches as i32 - 1)
}

pub(crate) const LEN: usize = 10_007;
pub(crate) const LAUNCHES: u32 = 10;

pub(crate) fn inputs(seed: u64, rank: usize, ranks: usize) -> Vec<f64> {
    (0..LEN).map(|index| f64::contribution(bits(seed, rank, index), ReduceOp::Sum, ranks)).collect()
}

#[track_caller]
pub(crate) fn compare(found: &[f64], seed: u64, ranks: usize, launches: u32) {
    for (index, &found) in found.iter().enumerate() {
        let wanted = repeated(seed, ranks, index, launches);
        assert!(found == wanted, "element {index} is {found}, expected {wanted}, seed {seed}");
    }
}

/// Contents of the memory after all queued work of its stream.
pub(crate) fn values(memory: &Memory) -> Vec<f64> {
    memory.stream().read(&memory.slice::<f64>(..).unwrap())
}

/// A graph launched ten times in a row: each launch works on the results of the previous one.
pub(crate) fn a_graph_launched_ten_times() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size, stream) = (communicator.rank(), communicator.size(), communicator.stream());
        let mut slice = stream.clone_htod(&inputs(seed, rank, size)).unwrap();
        let refused: Result<_, Error> =
            Graph::capture(|capture| capture.on(communicator).all_reduce_in_place(&mut slice, ReduceOp::Sum));
        assert!(matches!(refused.map(drop), Err(Error::NotOwned { .. })));
        let mut slice = Memory::try_from(slice).unwrap();
        let mut memory = Memory::alloc(communicator.library(), stream, 8 * LEN).unwrap();
        stream.write(&inputs(!seed, rank, size), &mut memory.slice_mut::<f64>(..).unwrap());
        // Two collectives, one after the other, over both kinds of memory.
        let graph = Graph::capture(|capture| {
            let mut views = (slice.slice_mut::<f64>(..)?, memory.slice_mut::<f64>(..)?);
            capture.on(communicator).all_reduce_in_place(&mut views.0, ReduceOp::Sum)?;
            capture.on(communicator).all_reduce_in_place(&mut views.1, ReduceOp::Sum)
        })
        .unwrap();
        for _ in 0..LAUNCHES {
            graph.launch().unwrap();
        }
        compare(&values(&slice), seed, size, LAUNCHES);
        compare(&values(&memory), !seed, size, LAUNCHES);
    });
}

/// The same with all ranks in one thread, in one graph with a group. Ranks that share a GPU are refused
/// there.
pub(crate) fn a_graph_over_all_gpus_launched_ten_times() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let party = gpus.together(&Config::new());
    let filled = |seed| -> Vec<_> {
        let values = |member: &Communicator| inputs(seed, member.rank(), gpus.count);
        let filled = |member: &Communicator| member.stream().clone_htod(&values(member)).unwrap();
        party.iter().map(|member| Memory::try_from(filled(member)).unwrap()).collect()
    };
    let (mut buffers, sources, mut copies) = (filled(seed), filled(!seed), filled(0));
    let graph = Graph::capture(|capture| {
        capture.group(|capture| {
            let ranks = party.iter().zip(&mut buffers).zip(&mut copies).zip(&sources);
            for (((member, buffer), copy), source) in ranks {
                let mut buffer = buffer.slice_mut::<f64>(..)?;
                let (source, mut copy) = (source.slice::<f64>(..)?, copy.slice_mut::<f64>(..)?);
                capture.on(member).all_reduce_in_place(&mut buffer, ReduceOp::Sum)?;
                capture.on(member).all_reduce(&source, &mut copy, ReduceOp::Sum)?;
            }
            Ok::<_, Error>(())
        })
    });
    if gpus.are_shared() {
        let error = graph.map(drop).unwrap_err();
        return assert!(error.to_string().contains("ranks of one communicator that share a GPU"), "{error}");
    }
    let graph = graph.unwrap();
    // The graph owns them too.
    drop(sources);
    for _ in 0..LAUNCHES {
        graph.launch().unwrap();
    }
    drop(graph);
    for (member, (buffer, copy)) in party.iter().zip(buffers.iter().zip(&copies)) {
        compare(&values(buffer), seed, gpus.count, LAUNCHES);
        compare(&values(copy), !seed, gpus.count, 1);
        member.async_error().unwrap();
    }
}

/// New values before every launch, on the communicator's stream or another; the results are read there. One
/// of the two buffers is an adopted slice.
pub(crate) fn a_graph_refilled_between_launches() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size, stream) = (communicator.rank(), communicator.size(), communicator.stream());
        let other = stream.context().new_stream().unwrap();
        for stream in [stream, &other] {
            let source = Memory::alloc(communicator.library(), stream, LEN * size_of::<f64>());
            let mut source = source.unwrap();
            let mut sum = Memory::try_from(stream.alloc_zeros::<f64>(LEN).unwrap()).unwrap();
            let graph = Graph::capture(|capture| {
                let (source, mut sum) = (source.slice::<f64>(..)?, sum.slice_mut::<f64>(..)?);
                capture.on(communicator).all_reduce(&source, &mut sum, ReduceOp::Sum)
            })
            .unwrap();
            assert_eq!(values(&sum), [0.0; LEN], "nothing has run");
            for launch in 0..u64::from(LAUNCHES) {
                let seed = seed.wrapping_add(launch);
                let view = &mut source.slice_mut::<f64>(..).unwrap();
                stream.write(&inputs(seed, rank, size), view);
                graph.launch().unwrap();
                // In the order of the stream, after the launch.
                stream.memset_zeros(view).unwrap();
                compare(&values(&sum), seed, size, 1);
            }
        }
    });
}

/// A graph can be leaked, or dropped after its communicator, with which it ends.
pub(crate) fn graphs_end_with_their_communicator() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.owned_ranks(&Config::new(), |communicator| {
        let (rank, size, stream) = (communicator.rank(), communicator.size(), communicator.stream());
        let mut memory = Memory::try_from(stream.clone_htod(&inputs(seed, rank, size)).unwrap()).unwrap();
        let mut capture = || {
            let mut values = memory.slice_mut::<f64>(..).unwrap();
            Graph::capture(|capture| {
                capture.on(&communicator).all_reduce_in_place(&mut values, ReduceOp::Sum)
            })
        };
        let graph = capture().unwrap();
        mem::forget(capture().unwrap());
        graph.launch().unwrap();
        communicator.finalize().unwrap();
        let error = graph.launch().unwrap_err();
        assert!(matches!(error, Error::Unusable { .. }), "{error}");
        communicator.close().unwrap();
        let error = graph.launch().unwrap_err();
        assert!(matches!(error, Error::Aborted { .. } | Error::Unusable { .. }), "{error}");
        compare(&values(&memory), seed, size, 1);
        drop(graph);
        compare(&values(&memory), seed, size, 1);
    });
}

/// The program's own capture, with a copy of cudarc, launched several times with other inputs.
pub(crate) fn a_capture_of_ones_own() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size, stream) = (communicator.rank(), communicator.size(), communicator.stream());
        // SAFETY: this thread uses its buffers on one stream only.
        unsafe { stream.context().disable_event_tracking() };
        let mut source = stream.clone_htod(&inputs(seed, rank, size)).unwrap();
        let mut buffer = stream.alloc_zeros::<f64>(LEN).unwrap();
        stream.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        // Without `captured` it is refused.
        let refused = communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum);
        assert!(matches!(refused, Err(Error::Stream { .. })), "{refused:?}");
        stream.memcpy_dtod(&source, &mut buffer).unwrap();
        // SAFETY: communicator and buffers live longer than the graph, and nothing else uses them while it
        // runs.
        unsafe { communicator.captured() }.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        let graph = stream.end_capture(CUgraphInstantiate_flags(0)).unwrap().unwrap();
        assert_eq!(stream.read(&buffer), [0.0; LEN], "nothing has run");
        for launch in 0..4 {
            let seed = seed + launch;
            stream.write(&inputs(seed, rank, size), &mut source);
            graph.launch().unwrap();
            graph.launch().unwrap();
            compare(&stream.read(&buffer), seed, size, 1);
        }
        drop(graph);
    });
}

/// Graphs of non-blocking communicators are refused; the communicators still work.
pub(crate) fn a_graph_of_a_non_blocking_communicator() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    gpus.ranks(&Config::new().blocking(false), |communicator| {
        let stream = communicator.stream();
        let values = inputs(seed, communicator.rank(), communicator.size());
        let mut memory = Memory::try_from(stream.clone_htod(&values).unwrap()).unwrap();
        let mut buffer = memory.slice_mut::<f64>(..).unwrap();
        let result = Graph::capture(|capture| {
            capture.on(communicator).all_reduce_in_place(&mut buffer, ReduceOp::Sum)
        })
        .map(drop);
        let error = result.unwrap_err().to_string();
        assert!(error.contains("communicators must be blocking"), "{error}");
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        compare(&stream.read(&buffer), seed, communicator.size(), 1);
    });
}
