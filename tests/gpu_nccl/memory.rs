//! Registrations, and windows that other ranks write into.

use std::slice;
use std::thread;
use std::time::Duration;

use collectives::ReduceOp;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Memory, Signal, Split, Window, WindowKind, windows,
};
use cudarc::driver::DriverError;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUresult, CUstreamCaptureMode};
use half::bf16;

use crate::arena::{Room, bytes};
use crate::case::{Way, check_all};
use crate::collectives::{LENGTHS, LONGEST, SHORT};
use crate::copies::Copies as _;
use crate::gpus::{Gpus, missing};
use crate::reference::fresh_seed;

fn memory(communicator: &Communicator, len: usize) -> Memory {
    let bytes = bytes(len, communicator.size());
    Memory::alloc(communicator.library(), communicator.stream(), bytes).unwrap()
}

pub(crate) fn every_collective_over_registered_memory() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommRegister");
    gpus.ranks(&Config::new(), |communicator| {
        let (send, receive) = (memory(communicator, LONGEST), memory(communicator, LONGEST));
        if !has {
            return missing(communicator.register(&send), "ncclCommRegister");
        }
        let _registrations = [&send, &receive].map(|memory| communicator.register(memory).unwrap());
        let (party, mut room) = (slice::from_ref(communicator), Room { send, receive });
        let rooms = slice::from_mut(&mut room);
        check_all::<f32, _>(party, rooms, Way::Alone, &LENGTHS, seed);
        check_all::<bf16, _>(party, rooms, Way::Grouped, &SHORT, seed);
        check_all::<f32, _>(party, rooms, Way::Graph, &[1_001], seed);
    });
}

/// A part of some memory, and a slice of cudarc: each is registered by two communicators, and outlives one of
/// the registrations. Slices of cudarc are from the driver's pool, which NCCL refuses since 2.30.3, unless it
/// has no cuMem.
pub(crate) fn parts_and_adopted_slices_registered_by_two_communicators() {
    const LEN: usize = 10_007;
    let gpus = Gpus::all();
    let has = gpus.has("ncclCommRegister");
    let refuses_pools = gpus.is_at_least(2, 30, 3);
    gpus.ranks(&Config::new(), |communicator| {
        let (stream, size) = (communicator.stream(), communicator.size() as f32);
        let mut memory = Memory::alloc(communicator.library(), stream, 3 * LEN * size_of::<f32>()).unwrap();
        if !has {
            return missing(communicator.register(&memory), "ncclCommRegister");
        }
        let slice = stream.clone_htod(&[1.0f32; LEN]).unwrap();
        let error = communicator.register(&slice).unwrap_err();
        assert!(matches!(error, Error::NotOwned { .. }), "{error}");
        let mut adopted = Memory::try_from(slice).unwrap();
        stream.write(&[1.0; 3 * LEN], &mut memory.slice_mut::<f32>(..).unwrap());

        let own_stream = stream.context().new_stream().unwrap();
        let second = communicator.split(&Split::color(0).stream(&own_stream)).unwrap();
        let register = |communicator: &Communicator| {
            let part = communicator.register(&memory.slice::<f32>(LEN..2 * LEN).unwrap()).unwrap();
            let adopted = match communicator.register(&adopted) {
                Err(error @ Error::Nccl { operation: "ncclCommRegister", .. }) if refuses_pools => {
                    println!("  rank {}: {error}", communicator.rank());
                    None
                }
                adopted => Some(adopted.unwrap()),
            };
            (part, adopted)
        };
        let (first_registrations, second_registrations) = (register(communicator), register(&second));
        let mut sum = |communicator: &Communicator| {
            let mut part = memory.slice_mut::<f32>(LEN..2 * LEN).unwrap();
            communicator.all_reduce_in_place(&mut part, ReduceOp::Sum).unwrap();
            communicator
                .all_reduce_in_place(&mut adopted.slice_mut::<f32>(..).unwrap(), ReduceOp::Sum)
                .unwrap();
        };
        sum(communicator);
        sum(&second);
        drop(first_registrations);
        sum(&second);
        let cube = size * size * size;
        let found = stream.read(&memory.slice::<f32>(..).unwrap());
        assert!(found[..LEN].iter().chain(&found[2 * LEN..]).all(|&value| value == 1.0), "not registered");
        assert!(found[LEN..2 * LEN].iter().all(|&value| value == cube), "{} for {cube}", found[LEN]);
        assert!(stream.read(&adopted.slice::<f32>(..).unwrap()) == [cube; LEN]);
        // The last owners of the memory are registrations, which end with the communicator.
        drop((memory, adopted));
        second.close().unwrap();
        drop(second_registrations);
    });
}

/// A window outlives its communicator, and is dropped by another thread; the program can use its memory all
/// the time.
pub(crate) fn windows_dropped_after_their_communicators() {
    const LEN: usize = 1_001;
    let gpus = Gpus::all();
    let has = gpus.has("ncclCommWindowRegister");
    for config in [Config::new(), Config::new().blocking(false)] {
        gpus.owned_ranks(&config, |communicator| {
            let (stream, size) = (communicator.stream().clone(), communicator.size() as i32);
            let bytes = LEN * size_of::<i32>();
            let mut memory = Memory::alloc(communicator.library(), &stream, bytes).unwrap();
            let window = communicator.window(&memory, WindowKind::Symmetric);
            if !has {
                return missing(window, "ncclCommWindowRegister");
            }
            let window = window.unwrap();
            stream.write(&[1; LEN], &mut memory.slice_mut::<i32>(..).unwrap());
            communicator
                .all_reduce_in_place(&mut memory.slice_mut::<i32>(..).unwrap(), ReduceOp::Sum)
                .unwrap();
            communicator.close().unwrap();
            assert!(stream.read(&memory.slice::<i32>(..).unwrap()) == [size; LEN]);
            thread::spawn(move || drop(window)).join().unwrap();
            assert!(stream.read(&memory.slice::<i32>(..).unwrap()) == [size; LEN]);
        });
    }
}

/// Kinds of windows of the loaded NCCL.
fn kinds(gpus: Gpus) -> Vec<WindowKind> {
    let mut kinds = vec![WindowKind::Plain, WindowKind::Symmetric];
    if gpus.is_at_least(2, 29, 0) {
        kinds.push(WindowKind::SymmetricOrdered);
    }
    kinds
}

/// Registers memory as a window.
fn window(communicator: &Communicator, len: usize, kind: WindowKind) -> (Memory, Window) {
    let memory = memory(communicator, len);
    let window = communicator.window(&memory, kind).unwrap();
    (memory, window)
}

pub(crate) fn every_collective_over_windows() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommWindowRegister");
    gpus.ranks(&Config::new(), |communicator| {
        if !has {
            let made = communicator.window(&memory(communicator, 1), WindowKind::Symmetric);
            return missing(made, "ncclCommWindowRegister");
        }
        if !gpus.is_at_least(2, 29, 0) {
            let made = communicator.window(&memory(communicator, 1), WindowKind::SymmetricOrdered);
            let error = made.unwrap_err();
            assert!(matches!(error, Error::TooOld { .. }), "{error}");
        }
        for kind in kinds(gpus) {
            let (send, receive) = (window(communicator, LONGEST, kind), window(communicator, LONGEST, kind));
            if communicator.rank() == 0 {
                println!("  {kind:?} window: active is {}", receive.1.is_active());
            }
            address(gpus, &send);
            let (party, mut room) = (slice::from_ref(communicator), Room { send, receive });
            let rooms = slice::from_mut(&mut room);
            check_all::<f32, _>(party, rooms, Way::Alone, &LENGTHS, seed);
            check_all::<bf16, _>(party, rooms, Way::Grouped, &SHORT, seed);
            check_all::<f32, _>(party, rooms, Way::Graph, &[1_001], seed);
        }
    });
}

/// NCCL returns this process's address of a window's memory.
fn address(gpus: Gpus, (memory, window): &(Memory, Window)) {
    if !gpus.is_at_least(2, 29, 0) {
        return missing(window.address(), "ncclWinGetUserPtr");
    }
    if window.is_active() {
        let own = memory.slice::<u8>(..1).unwrap().address();
        assert_eq!(window.address().unwrap(), own);
    }
}

pub(crate) fn windows_of_all_ranks_in_one_thread() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommWindowRegister");
    let party = gpus.together(&Config::new());
    let all = |kind| -> Result<Vec<_>, Error> {
        let memories: Vec<_> = party.iter().map(|member| memory(member, LONGEST)).collect();
        let windows = windows(party.iter().zip(&memories), kind)?;
        Ok(memories.into_iter().zip(windows).collect())
    };
    if !has {
        return missing(all(WindowKind::Symmetric), "ncclCommWindowRegister");
    }
    for kind in kinds(gpus) {
        let (send, receive) = (all(kind).unwrap(), all(kind).unwrap());
        let active: Vec<_> = receive.iter().map(|(_, window)| window.is_active()).collect();
        println!("  {kind:?} windows: active are {active:?}");
        let mut rooms: Vec<_> =
            send.into_iter().zip(receive).map(|(send, receive)| Room { send, receive }).collect();
        check_all::<f32, _>(&party, &mut rooms, Way::Grouped, &LENGTHS, seed);
        check_all::<u8, _>(&party, &mut rooms, Way::Nested, &SHORT, seed);
    }
}

/// Registrations and windows of non-blocking communicators.
pub(crate) fn memory_of_non_blocking_communicators() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let (has, has_windows) = (gpus.has("ncclCommRegister"), gpus.has("ncclCommWindowRegister"));
    let config = Config::new().blocking(false).deadline(Duration::from_secs(60));
    gpus.ranks(&config, |communicator| {
        let party = slice::from_ref(communicator);
        if has {
            let (send, receive) = (memory(communicator, SHORT[1]), memory(communicator, SHORT[1]));
            let _registrations = [&send, &receive].map(|memory| communicator.register(memory).unwrap());
            check_all::<f32, _>(party, &mut [Room { send, receive }], Way::Alone, &SHORT, seed);
        }
        if !has_windows {
            let made = communicator.window(&memory(communicator, 1), WindowKind::Symmetric);
            return missing(made, "ncclCommWindowRegister");
        }
        let window = || window(communicator, SHORT[1], WindowKind::Symmetric);
        let (send, receive) = (window(), window());
        check_all::<f32, _>(party, &mut [Room { send, receive }], Way::Grouped, &SHORT, seed);
    });
}

/// Every rank writes into its right neighbour's window and waits for its left one's data, several times: the
/// neighbour signals that it has read it.
pub(crate) fn one_sided_writes_and_signals() {
    const LEN: usize = 10_007;
    const ROUNDS: usize = 5;
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclPutSignal");
    gpus.ranks(&Config::new(), |communicator| {
        let (rank, size, stream) = (communicator.rank(), communicator.size(), communicator.stream());
        let (left, right) = ((rank + size - 1) % size, (rank + 1) % size);
        if !has {
            missing(communicator.signal(Signal::new(right)), "ncclSignal");
            return missing(communicator.wait_signals(&[(Signal::new(left), 1)]), "ncclWaitSignal");
        }
        let mut memory = Memory::alloc(communicator.library(), stream, 3 * LEN * size_of::<u64>()).unwrap();
        let window = communicator.window(&memory, WindowKind::Symmetric).unwrap();
        if rank == 0 {
            println!("  the window's active is {}", window.is_active());
        }
        let put = |memory: &Memory, offset| {
            let source = memory.slice::<u64>(..LEN).unwrap();
            // SAFETY: all ranks keep their windows to the end, which each reaches after its last wait, and
            // use the part that is written only between waiting for it and allowing the next write.
            unsafe { communicator.put(&source, &window, offset, Signal::new(right)) }
        };
        let too_far = put(&memory, 2 * LEN + 1);
        assert!(matches!(too_far, Err(Error::View { .. })), "{too_far:?}");
        if !window.is_active() {
            let error = put(&memory, LEN).unwrap_err();
            assert!(matches!(error, Error::Nccl { .. }), "{error}");
            return;
        }
        // All windows exist and are zeroed before anything is written into them.
        let mut barrier = stream.alloc_zeros::<u8>(1).unwrap();
        communicator.all_reduce_in_place(&mut barrier, ReduceOp::Max).unwrap();
        let values = |rank, round| -> Vec<u64> {
            (0..LEN).map(|index| crate::reference::bits(seed, rank, round * LEN + index)).collect()
        };
        for round in 0..ROUNDS {
            stream.write(&values(rank, round), &mut memory.slice_mut(..LEN).unwrap());
            put(&memory, LEN).unwrap();
            communicator.wait_signals(&[(Signal::new(left), 1)]).unwrap();
            let found = stream.read(&memory.slice::<u64>(LEN..2 * LEN).unwrap());
            assert!(found == values(left, round), "rank {rank}, round {round}, seed {seed}");
            let behind = stream.read(&memory.slice::<u64>(2 * LEN..).unwrap());
            assert!(behind == vec![0; LEN], "rank {rank}, round {round}: behind what was written");
            communicator.signal(Signal::new(left)).unwrap();
            communicator.wait_signals(&[(Signal::new(right), 1)]).unwrap();
        }
        stream.synchronize().unwrap();
    });
}

/// Adopted memory of which only the address is known.
pub(crate) fn raw_memory() {
    const LEN: usize = 1_001;
    let gpus = Gpus::all();
    gpus.ranks(&Config::new(), |communicator| {
        let (stream, rank) = (communicator.stream(), communicator.rank());
        let mut memory = Memory::alloc(communicator.library(), stream, LEN * 8).unwrap();
        let mut view = memory.slice_mut::<i64>(..LEN).unwrap();
        stream.write(&vec![rank as i64 + 1; LEN], &mut view);
        // SAFETY: zeroed memory of this stream, which outlives this object and is used on this stream only.
        let mut raw = unsafe { Memory::from_raw(view.address(), LEN * 8, stream.clone(), ()) };
        communicator.all_reduce_in_place(&mut raw.slice_mut::<i64>(..).unwrap(), ReduceOp::Sum).unwrap();
        let sum = (1..=communicator.size() as i64).sum::<i64>();
        assert_eq!(stream.read(&view), [sum; LEN]);
    });
}

/// While the memory's stream is captured, views have no address for copies on other streams, which the driver
/// refuses.
pub(crate) fn copies_that_cannot_be_ordered() {
    const LEN: usize = 1_001;
    let gpus = Gpus::all();
    gpus.ranks(&Config::new(), |communicator| {
        let own = communicator.stream().context().new_stream().unwrap();
        let other = own.context().new_stream().unwrap();
        let mut memory = Memory::alloc(communicator.library(), &own, LEN * 8).unwrap();
        let mut target = other.alloc_zeros::<i64>(LEN).unwrap();
        other.synchronize().unwrap();
        own.begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED).unwrap();
        let copies = [
            other.memcpy_dtod(&memory.slice::<i64>(..).unwrap(), &mut target),
            other.context().check_err(),
            other.memcpy_htod(&[1_i64; LEN], &mut memory.slice_mut(..).unwrap()),
            other.context().check_err(),
            other.clone_dtoh(&memory.slice::<i64>(..).unwrap()).map(drop),
            other.context().check_err(),
            other.memset_zeros(&mut memory.slice_mut::<i64>(..).unwrap()),
            other.context().check_err(),
        ];
        for pair in copies.chunks_exact(2) {
            let codes = [CUresult::CUDA_ERROR_INVALID_VALUE, CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED];
            assert_eq!(pair, codes.map(|code| Err(DriverError(code))));
        }
        own.end_capture(CUgraphInstantiate_flags(0)).unwrap();
        other.memcpy_htod(&[7_i64; LEN], &mut memory.slice_mut(..).unwrap()).unwrap();
        assert_eq!(other.clone_dtoh(&memory.slice::<i64>(..).unwrap()).unwrap(), [7; LEN]);
    });
}
