//! Abort, revoke, finalize and suspend.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use collectives::ReduceOp;
use collectives::nccl::{Collectives, Communicator, Config, Error, Graph, Memory, Shrink, Split, group};
use cudarc::driver::CudaSlice;

use crate::collectives::works;
use crate::gpus::{Gpus, missing};
use crate::reference::fresh_seed;

const LEN: usize = 1 << 20;

fn buffer(communicator: &Communicator) -> CudaSlice<f32> {
    communicator.stream().alloc_zeros(LEN).unwrap()
}

/// Asserts that an operation is refused in the communicator's state.
#[track_caller]
fn unusable(communicator: &Communicator) {
    let error = communicator.all_reduce_in_place(&mut buffer(communicator), ReduceOp::Sum).unwrap_err();
    assert!(matches!(error, Error::Unusable { .. }), "{error}");
}

/// A watchdog aborts a collective whose peer never arrives, while the owner waits for its stream. With
/// `connected`, the ranks have worked together before, so that it hangs on the device; otherwise it hangs
/// while NCCL connects.
fn abort_alone(config: &Config, connected: bool) {
    let gpus = Gpus::all();
    let streams = &gpus.streams()[..2];
    let communicators = Communicator::init_all(gpus.library, streams, config).unwrap();
    let mut buffers: Vec<_> = communicators.iter().map(buffer).collect();
    if connected {
        group(|group| {
            let mut ranks = communicators.iter().zip(&mut buffers);
            ranks.try_for_each(|(rank, buffer)| group.on(rank).all_reduce_in_place(buffer, ReduceOp::Sum))
        })
        .unwrap();
        streams.iter().for_each(|stream| stream.synchronize().unwrap());
    }
    let handle = communicators[0].abort_handle();
    let started = Instant::now();
    let watchdog = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        handle.abort()
    });
    let queued = communicators[0].all_reduce_in_place(&mut buffers[0], ReduceOp::Sum);
    if connected {
        queued.unwrap();
    } else if let Err(error) = queued {
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
    }
    streams[0].synchronize().unwrap();
    watchdog.join().unwrap().unwrap();
    assert!(started.elapsed() >= Duration::from_millis(500), "it did hang");
    assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
    assert!(matches!(communicators[0].async_error(), Err(Error::Aborted { .. })));
    let ended: Vec<_> =
        communicators.into_iter().map(|communicator| communicator.abort_handle().abort()).collect();
    assert!(ended.iter().all(Result::is_ok), "{ended:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "took {:?}", started.elapsed());
}

pub(crate) fn abort_of_a_collective_whose_peer_never_arrives() {
    abort_alone(&Config::new(), true);
}

pub(crate) fn abort_of_a_non_blocking_collective_whose_peer_never_arrives() {
    abort_alone(&Config::new().blocking(false), true);
}

pub(crate) fn abort_while_nccl_connects_to_a_peer_that_never_arrives() {
    abort_alone(&Config::new().blocking(false), false);
}

/// A graph hangs because the peers do not launch theirs. The watchdog's abort ends it, and the owner, which
/// still has its graph, gets an error.
pub(crate) fn abort_of_a_graph_whose_peer_never_arrives() {
    let gpus = Gpus::all();
    let (all_launched, aborted) = (Barrier::new(gpus.count), Barrier::new(gpus.count));
    gpus.owned_ranks(&Config::new(), |communicator| {
        let stream = communicator.stream();
        let mut buffer = Memory::try_from(buffer(&communicator)).unwrap();
        let graph = Graph::capture(|capture| {
            let mut buffer = buffer.slice_mut::<f32>(..)?;
            capture.on(&communicator).all_reduce_in_place(&mut buffer, ReduceOp::Sum)
        })
        .unwrap();
        graph.launch().unwrap();
        stream.synchronize().unwrap();
        all_launched.wait();
        if communicator.rank() > 0 {
            aborted.wait();
            return communicator.abort_handle().abort().unwrap();
        }
        graph.launch().unwrap();
        let end = stream.record_event(None).unwrap();
        assert!(!end.try_is_complete().unwrap(), "nobody else has launched it");
        let handle = communicator.abort_handle();
        let watchdog = thread::spawn(move || handle.abort());
        // Returns only because of the abort.
        stream.synchronize().unwrap();
        let error = graph.launch().unwrap_err();
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        watchdog.join().unwrap().unwrap();
        let error = communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap_err();
        assert!(matches!(error, Error::Aborted { .. }), "{error}");
        aborted.wait();
    });
}

/// The last rank never arrives: the others stop their collective, which frees their streams, and continue
/// without it.
pub(crate) fn revoke_then_shrink() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommRevoke");
    let recovered = Barrier::new(gpus.count);
    gpus.owned_ranks(&Config::new(), |communicator| {
        if !has {
            return missing(communicator.revoke(), "ncclCommRevoke");
        }
        works(&communicator, seed);
        let mut buffer = buffer(&communicator);
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        communicator.stream().synchronize().unwrap();
        let last = communicator.size() - 1;
        if communicator.rank() == last {
            recovered.wait();
            return communicator.abort_handle().abort().unwrap();
        }
        communicator.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap();
        let end = communicator.stream().record_event(None).unwrap();
        assert!(!end.try_is_complete().unwrap(), "the last rank has not arrived");
        communicator.revoke().unwrap();
        communicator.stream().synchronize().unwrap();
        unusable(&communicator);
        let rest = communicator.shrink(&Shrink::without(&[last])).unwrap();
        assert_eq!((rest.rank(), rest.size()), (communicator.rank(), last));
        works(&rest, seed);
        recovered.wait();
        rest.close().unwrap();
        communicator.abort_handle().abort().unwrap();
    });
}

/// All ranks stop without work in flight, and split.
pub(crate) fn revoke_then_split() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommRevoke");
    gpus.owned_ranks(&Config::new(), |communicator| {
        if !has {
            return missing(communicator.revoke(), "ncclCommRevoke");
        }
        works(&communicator, seed);
        communicator.revoke().unwrap();
        unusable(&communicator);
        let again = communicator.split(&Split::color(0)).unwrap();
        assert_eq!((again.rank(), again.size()), (communicator.rank(), communicator.size()));
        works(&again, seed);
        again.close().unwrap();
        communicator.close().unwrap();
    });
}

pub(crate) fn finalize_then_close() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    for config in [Config::new(), Config::new().blocking(false)] {
        gpus.owned_ranks(&config, |communicator| {
            works(&communicator, seed);
            communicator.finalize().unwrap();
            unusable(&communicator);
            let error = communicator.finalize().unwrap_err();
            assert!(matches!(error, Error::Unusable { .. }), "{error}");
            communicator.async_error().unwrap();
            communicator.close().unwrap();
        });
    }
}

/// Suspends and resumes.
pub(crate) fn suspend_and_resume() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommSuspend");
    gpus.ranks(&Config::new(), |communicator| {
        works(communicator, seed);
        if !has {
            missing(communicator.suspend(), "ncclCommSuspend");
            return missing(communicator.memory_statistics(), "ncclCommMemStats");
        }
        let before = communicator.memory_statistics().unwrap();
        assert!(!before.suspended && before.total > 0, "{before:?}");
        for round in 0..2 {
            communicator.suspend().unwrap();
            let during = communicator.memory_statistics().unwrap();
            assert!(during.suspended, "{during:?}");
            unusable(communicator);
            communicator.resume().unwrap();
            let after = communicator.memory_statistics().unwrap();
            assert!(!after.suspended, "{after:?}");
            works(communicator, seed + round);
            if communicator.rank() == 0 {
                println!("  {before:?}, then {during:?}, then {after:?}");
            }
        }
    });
}
