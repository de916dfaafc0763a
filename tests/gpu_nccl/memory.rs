//! Memory that NCCL knows beforehand: registered, and windows, which other ranks write into.

use std::slice;
use std::time::Duration;

use collectives::ReduceOp;
use collectives::nccl::{
    Collectives, Communicator, Config, Error, Memory, RawBuffer, Signal, Window, WindowKind, windows,
};
use half::bf16;

use crate::case::{Room, Way, bytes, check_all};
use crate::collectives::{LENGTHS, LONGEST, SHORT};
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
        let (mut send, mut receive) = (memory(communicator, LONGEST), memory(communicator, LONGEST));
        if !has {
            return missing(communicator.register(&mut send), "ncclCommRegister");
        }
        let send = communicator.register(&mut send).unwrap();
        let receive = communicator.register(&mut receive).unwrap();
        let (party, mut room) = (slice::from_ref(communicator), Room { send, receive });
        let rooms = slice::from_mut(&mut room);
        check_all::<f32, _>(party, rooms, Way::Alone, &LENGTHS, seed);
        check_all::<bf16, _>(party, rooms, Way::Grouped, &SHORT, seed);
        check_all::<f32, _>(party, rooms, Way::Graph, &[1_001], seed);
    });
}

/// Which kinds of windows the loaded NCCL has.
fn kinds(gpus: Gpus) -> Vec<WindowKind> {
    let mut kinds = vec![WindowKind::Plain, WindowKind::Symmetric];
    if gpus.is_at_least(2, 29, 0) {
        kinds.push(WindowKind::SymmetricOrdered);
    }
    kinds
}

pub(crate) fn every_collective_over_windows() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommWindowRegister");
    gpus.ranks(&Config::new(), |communicator| {
        let (mut send, mut receive) = (memory(communicator, LONGEST), memory(communicator, LONGEST));
        if !has {
            return missing(communicator.window(&mut send, WindowKind::Symmetric), "ncclCommWindowRegister");
        }
        if !gpus.is_at_least(2, 29, 0) {
            let error = communicator.window(&mut send, WindowKind::SymmetricOrdered).unwrap_err();
            assert!(matches!(error, Error::TooOld { .. }), "{error}");
        }
        for kind in kinds(gpus) {
            let send = communicator.window(&mut send, kind).unwrap();
            let receive = communicator.window(&mut receive, kind).unwrap();
            if communicator.rank() == 0 {
                println!("  {kind:?} window: active is {}", receive.is_active());
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

/// NCCL knows a window's memory by the address that this process has for it.
fn address(gpus: Gpus, window: &Window<'_>) {
    if !gpus.is_at_least(2, 29, 0) {
        return missing(window.address(), "ncclWinGetUserPtr");
    }
    if window.is_active() {
        let own = window.slice::<u8>(..1).unwrap().address();
        assert_eq!(window.address().unwrap(), own);
    }
}

pub(crate) fn windows_of_all_ranks_in_one_thread() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let has = gpus.has("ncclCommWindowRegister");
    let party = gpus.together(&Config::new());
    let all = || -> Vec<_> { party.iter().map(|member| memory(member, LONGEST)).collect() };
    let (mut send, mut receive) = (all(), all());
    if !has {
        let made = windows(gpus.library, party.iter().zip(&mut send), WindowKind::Symmetric);
        return missing(made, "ncclCommWindowRegister");
    }
    for kind in kinds(gpus) {
        let send = windows(gpus.library, party.iter().zip(&mut send), kind).unwrap();
        let receive = windows(gpus.library, party.iter().zip(&mut receive), kind).unwrap();
        println!(
            "  {kind:?} windows: active are {:?}",
            receive.iter().map(Window::is_active).collect::<Vec<_>>()
        );
        let mut rooms: Vec<_> =
            send.into_iter().zip(receive).map(|(send, receive)| Room { send, receive }).collect();
        check_all::<f32, _>(&party, &mut rooms, Way::Grouped, &LENGTHS, seed);
        check_all::<u8, _>(&party, &mut rooms, Way::Nested, &SHORT, seed);
    }
}

/// Registrations and windows of communicators that work on threads of their own.
pub(crate) fn memory_of_non_blocking_communicators() {
    let (gpus, seed) = (Gpus::all(), fresh_seed());
    let (has, has_windows) = (gpus.has("ncclCommRegister"), gpus.has("ncclCommWindowRegister"));
    let config = Config::new().blocking(false).deadline(Duration::from_secs(60));
    gpus.ranks(&config, |communicator| {
        let party = slice::from_ref(communicator);
        let (mut send, mut receive) = (memory(communicator, SHORT[1]), memory(communicator, SHORT[1]));
        if has {
            let send = communicator.register(&mut send).unwrap();
            let receive = communicator.register(&mut receive).unwrap();
            check_all::<f32, _>(party, &mut [Room { send, receive }], Way::Alone, &SHORT, seed);
        }
        let window = communicator.window(&mut send, WindowKind::Symmetric);
        if !has_windows {
            return missing(window, "ncclCommWindowRegister");
        }
        let (send, receive) =
            (window.unwrap(), communicator.window(&mut receive, WindowKind::Symmetric).unwrap());
        check_all::<f32, _>(party, &mut [Room { send, receive }], Way::Grouped, &SHORT, seed);
    });
}

/// Every rank writes into its right neighbour's window and waits for its left one's data, several times: the neighbour
/// says when it has looked.
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
        let part = LEN * size_of::<u64>();
        let mut memory = Memory::alloc(communicator.library(), stream, 3 * part).unwrap();
        let mut window = communicator.window(&mut memory, WindowKind::Symmetric).unwrap();
        if rank == 0 {
            println!("  the window's active is {}", window.is_active());
        }
        let too_far =
            communicator.put(&window.slice::<u64>(..LEN).unwrap(), &window, 3 * part, Signal::new(right));
        assert!(matches!(too_far, Err(Error::View { .. })), "{too_far:?}");
        if !window.is_active() {
            let source = window.slice::<u64>(..LEN).unwrap();
            let error = communicator.put(&source, &window, part, Signal::new(right)).unwrap_err();
            assert!(matches!(error, Error::Nccl { .. }), "{error}");
            return;
        }
        // Every window is there, and the zeroes are written, before anybody writes into it.
        let mut barrier = stream.alloc_zeros::<u8>(1).unwrap();
        communicator.all_reduce_in_place(&mut barrier, ReduceOp::Max).unwrap();
        let values = |rank, round| -> Vec<u64> {
            (0..LEN).map(|index| crate::reference::bits(seed, rank, round * LEN + index)).collect()
        };
        for round in 0..ROUNDS {
            stream.memcpy_htod(&values(rank, round), &mut window.slice_mut(..LEN).unwrap()).unwrap();
            let source = window.slice::<u64>(..LEN).unwrap();
            communicator.put(&source, &window, part, Signal::new(right)).unwrap();
            communicator.wait_signals(&[(Signal::new(left), 1)]).unwrap();
            let found = stream.clone_dtoh(&window.slice::<u64>(part, LEN).unwrap()).unwrap();
            assert!(found == values(left, round), "rank {rank}, round {round}, seed {seed}");
            let behind = stream.clone_dtoh(&window.slice::<u64>(2 * part, LEN).unwrap()).unwrap();
            assert!(behind == vec![0; LEN], "rank {rank}, round {round}: behind what was written");
            communicator.signal(Signal::new(left)).unwrap();
            communicator.wait_signals(&[(Signal::new(right), 1)]).unwrap();
        }
        stream.synchronize().unwrap();
    });
}

/// Memory that only its address is known of.
pub(crate) fn raw_buffers() {
    const LEN: usize = 1_001;
    let gpus = Gpus::all();
    gpus.ranks(&Config::new(), |communicator| {
        let (stream, rank) = (communicator.stream(), communicator.rank());
        let mut memory = Memory::alloc(communicator.library(), stream, LEN * 8).unwrap();
        let mut view = memory.slice_mut::<i64>(..LEN).unwrap();
        stream.memcpy_htod(&vec![rank as i64 + 1; LEN], &mut view).unwrap();
        // SAFETY: zeroed memory of this stream, which outlives the buffer and is used on this stream alone.
        let mut raw = unsafe { RawBuffer::<i64>::new(view.address(), LEN, stream.clone()) };
        communicator.all_reduce_in_place(&mut raw, ReduceOp::Sum).unwrap();
        let sum = (1..=communicator.size() as i64).sum::<i64>();
        assert_eq!(stream.clone_dtoh(&view).unwrap(), [sum; LEN]);
    });
}
