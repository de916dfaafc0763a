//! The safe NCCL layer on real GPUs: all of the machine's, one thread each, against results computed on the host.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

mod gpu;

use std::fmt::Debug;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use collectives::nccl::{
    Communicator, Config, Error, Library, Memory, UniqueId, Version, device_count, group,
};
use collectives::{Element, ReduceOp};
use cudarc::driver::{CudaContext, CudaStream, DeviceRepr, ValidAsZeroBits};
use half::{bf16, f16};

fn main() {
    gpu::run(gpu::tests! {
        1 => [
            all_reduce_of_every_type_and_operator,
            all_gather_of_every_type,
            non_blocking_communicators_give_the_same_results,
            settings_of_the_loaded_version_are_accepted,
            non_blocking_initialisation,
            groups_over_all_gpus_in_one_thread,
            a_cancelled_group_launches_nothing,
        ],
        2 => [
            abort_of_a_collective_whose_peer_never_arrives,
            abort_of_a_non_blocking_collective_whose_peer_never_arrives,
            abort_while_nccl_connects_to_a_peer_that_never_arrives,
        ],
    });
}

/// Elements of the buffers: one, an odd number, and enough for several thread blocks.
const LENGTHS: [usize; 3] = [1, 1_001, 100_000];

/// The machine's GPUs.
struct Gpus {
    library: Library,
    count: usize,
}

impl Gpus {
    fn all() -> Self {
        Self { library: Library::load().unwrap(), count: device_count().unwrap() }
    }

    fn streams(&self) -> Vec<Arc<CudaStream>> {
        (0..self.count).map(|device| CudaContext::new(device).unwrap().new_stream().unwrap()).collect()
    }

    /// Runs a rank on each GPU, each in its own thread.
    fn ranks(&self, config: &Config, body: impl Fn(&Communicator) + Sync) {
        let id = UniqueId::new(self.library).unwrap();
        thread::scope(|scope| {
            for rank in 0..self.count {
                let body = &body;
                scope.spawn(move || {
                    let stream = CudaContext::new(rank).unwrap().new_stream().unwrap();
                    let size = self.count;
                    let communicator =
                        Communicator::init(self.library, &stream, rank, size, &id, config).unwrap();
                    body(&communicator);
                    communicator.async_error().unwrap();
                    communicator.close().unwrap();
                });
            }
        });
    }
}

/// A number that differs from run to run, printed by every failing comparison.
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

/// 64 well-mixed bits for each rank and index.
fn bits(seed: u64, rank: usize, index: usize) -> u64 {
    let mut state = seed ^ ((rank as u64) << 48) ^ index as u64;
    for factor in [0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        state = (state ^ (state >> 30)).wrapping_mul(factor);
    }
    state ^ (state >> 31)
}

/// Arithmetic of the reference. The inputs are small integers, so that every order of reduction is exact.
trait Value: Element + DeviceRepr + ValidAsZeroBits + PartialOrd {
    const SIGNED: bool;
    fn small(value: i8) -> Self;
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    /// The average, from a sum.
    fn divide(self, count: usize) -> Self;
    /// Whether it is the expected one; an average of floating-point numbers over a count that is no power of two may
    /// differ in its last places.
    fn near(self, expected: Self) -> bool;
}

macro_rules! integers {
    ($($type:ty),*) => {$(impl Value for $type {
        #[allow(unused_comparisons)]
        const SIGNED: bool = <$type>::MIN < 0;
        fn small(value: i8) -> Self { value as $type }
        fn add(self, other: Self) -> Self { self.wrapping_add(other) }
        fn multiply(self, other: Self) -> Self { self.wrapping_mul(other) }
        fn divide(self, count: usize) -> Self { self / count as $type }
        fn near(self, expected: Self) -> bool { self == expected }
    })*};
}

macro_rules! floats {
    ($($type:ty: $epsilon:expr, $from:expr, $to:expr);*) => {$(impl Value for $type {
        const SIGNED: bool = true;
        fn small(value: i8) -> Self { $from(f64::from(value)) }
        fn add(self, other: Self) -> Self { $from($to(self) + $to(other)) }
        fn multiply(self, other: Self) -> Self { $from($to(self) * $to(other)) }
        fn divide(self, count: usize) -> Self { $from($to(self) / count as f64) }
        fn near(self, expected: Self) -> bool {
            ($to(self) - $to(expected)).abs() <= 16.0 * $epsilon * (1.0 + $to(expected).abs())
        }
    })*};
}

integers!(i8, u8, i32, u32, i64, u64);
floats! {
    f16: 0.001, f16::from_f64, f16::to_f64;
    bf16: 0.008, bf16::from_f64, bf16::to_f64;
    f32: f64::from(f32::EPSILON), |value: f64| value as f32, f64::from;
    f64: f64::EPSILON, |value: f64| value, |value: f64| value
}

/// What a rank contributes: for a product 1 or 2, else 0 to 15 with either sign where the type has one.
fn input<T: Value>(seed: u64, op: ReduceOp, rank: usize, index: usize) -> T {
    let bits = bits(seed, rank, index);
    T::small(match op {
        ReduceOp::Prod => 1 + (bits & 1) as i8,
        _ if T::SIGNED && bits & 16 != 0 => -((bits & 15) as i8),
        _ => (bits & 15) as i8,
    })
}

fn expected<T: Value>(seed: u64, op: ReduceOp, ranks: usize, index: usize) -> T {
    let values = (0..ranks).map(|rank| input::<T>(seed, op, rank, index));
    let reduced = values.reduce(|first, second| match op {
        ReduceOp::Sum | ReduceOp::Avg => first.add(second),
        ReduceOp::Prod => first.multiply(second),
        ReduceOp::Max => {
            if first > second {
                first
            } else {
                second
            }
        }
        ReduceOp::Min => {
            if first < second {
                first
            } else {
                second
            }
        }
        other => panic!("no reference for {other}"),
    });
    if op == ReduceOp::Avg { reduced.unwrap().divide(ranks) } else { reduced.unwrap() }
}

#[track_caller]
fn compare<T: Value>(found: &[T], expected: impl Fn(usize) -> T, inexact: bool, what: impl Debug) {
    for (index, &value) in found.iter().enumerate() {
        let wanted = expected(index);
        let right = if inexact { value.near(wanted) } else { value == wanted };
        assert!(right, "{what:?}: element {index} is {value:?}, expected {wanted:?}");
    }
}

fn check_all_reduce<T: Value>(communicator: &Communicator, seed: u64) {
    let (stream, ranks) = (communicator.stream(), communicator.size());
    for len in LENGTHS {
        for op in ReduceOp::ALL {
            let host: Vec<T> = (0..len).map(|index| input(seed, op, communicator.rank(), index)).collect();
            let inexact = op == ReduceOp::Avg && !ranks.is_power_of_two();
            let what = (T::DATA_TYPE, op, len, seed);

            let send = stream.clone_htod(&host).unwrap();
            let mut receive = stream.alloc_zeros::<T>(len).unwrap();
            communicator.all_reduce(&send, &mut receive, op).unwrap();
            let found = stream.clone_dtoh(&receive).unwrap();
            compare(&found, |index| expected(seed, op, ranks, index), inexact, (what, "out of place"));
            assert_eq!(stream.clone_dtoh(&send).unwrap(), host, "the input stays");

            let mut memory =
                Memory::alloc(communicator.library(), stream, 16 + len * size_of::<T>()).unwrap();
            stream.memcpy_htod(&host, &mut memory.slice_mut::<T>(16, len).unwrap()).unwrap();
            communicator.all_reduce_in_place(&mut memory.slice_mut::<T>(16, len).unwrap(), op).unwrap();
            let found = stream.clone_dtoh(&memory.slice::<T>(16, len).unwrap()).unwrap();
            compare(&found, |index| expected(seed, op, ranks, index), inexact, (what, "in place"));
            let before = stream.clone_dtoh(&memory.slice::<u8>(0, 16).unwrap()).unwrap();
            assert_eq!(before, [0; 16], "what lies before the view stays");
        }
    }
}

fn check_all_gather<T: Value>(communicator: &Communicator, seed: u64) {
    let (stream, ranks, rank) = (communicator.stream(), communicator.size(), communicator.rank());
    for len in LENGTHS {
        let own: Vec<T> = (0..len).map(|index| input(seed, ReduceOp::Sum, rank, index)).collect();
        let wanted = |index: usize| input::<T>(seed, ReduceOp::Sum, index / len, index % len);
        let what = (T::DATA_TYPE, len, seed);

        let send = stream.clone_htod(&own).unwrap();
        let mut receive = stream.alloc_zeros::<T>(len * ranks).unwrap();
        communicator.all_gather(&send, &mut receive).unwrap();
        compare(&stream.clone_dtoh(&receive).unwrap(), wanted, false, (what, "out of place"));

        let mut memory = Memory::alloc(communicator.library(), stream, len * ranks * size_of::<T>()).unwrap();
        let start = rank * len * size_of::<T>();
        stream.memcpy_htod(&own, &mut memory.slice_mut::<T>(start, len).unwrap()).unwrap();
        communicator.all_gather_in_place(&mut memory.slice_mut::<T>(0, len * ranks).unwrap()).unwrap();
        let found = stream.clone_dtoh(&memory.slice::<T>(0, len * ranks).unwrap()).unwrap();
        compare(&found, wanted, false, (what, "in place"));
    }
}

macro_rules! every_type {
    ($check:ident, $communicator:expr, $seed:expr) => {
        $check::<i8>($communicator, $seed);
        $check::<u8>($communicator, $seed);
        $check::<i32>($communicator, $seed);
        $check::<u32>($communicator, $seed);
        $check::<i64>($communicator, $seed);
        $check::<u64>($communicator, $seed);
        $check::<f16>($communicator, $seed);
        $check::<f32>($communicator, $seed);
        $check::<f64>($communicator, $seed);
        $check::<bf16>($communicator, $seed);
    };
}

fn all_reduce_of_every_type_and_operator() {
    let gpus = Gpus::all();
    let seed = fresh_seed();
    gpus.ranks(&Config::new(), |communicator| {
        every_type!(check_all_reduce, communicator, seed);
    });
}

fn all_gather_of_every_type() {
    let gpus = Gpus::all();
    let seed = fresh_seed();
    gpus.ranks(&Config::new(), |communicator| {
        every_type!(check_all_gather, communicator, seed);
    });
}

fn non_blocking_communicators_give_the_same_results() {
    let gpus = Gpus::all();
    let seed = fresh_seed();
    let config = Config::new().blocking(false).deadline(Duration::from_secs(60));
    gpus.ranks(&config, |communicator| {
        check_all_reduce::<f32>(communicator, seed);
        check_all_gather::<u8>(communicator, seed);
    });
}

fn settings_of_the_loaded_version_are_accepted() {
    let gpus = Gpus::all();
    let mut config = Config::new().min_ctas(1).max_ctas(8);
    if gpus.library.version() >= Version::new(2, 28, 0) {
        config = config.nvlink_centric_sched(true).name("gpu test");
    }
    let seed = fresh_seed();
    gpus.ranks(&config, |communicator| check_all_reduce::<i32>(communicator, seed));
}

/// A pending communicator of all ranks comes to life; one whose peers never come meets its deadline.
fn non_blocking_initialisation() {
    let gpus = Gpus::all();
    let id = UniqueId::new(gpus.library).unwrap();
    let seed = fresh_seed();
    thread::scope(|scope| {
        for rank in 0..gpus.count {
            let gpus = &gpus;
            scope.spawn(move || {
                let stream = CudaContext::new(rank).unwrap().new_stream().unwrap();
                let config = Config::new();
                let (library, size) = (gpus.library, gpus.count);
                let mut pending =
                    Communicator::init_pending(library, &stream, rank, size, &id, &config).unwrap();
                while !pending.poll().unwrap() {
                    thread::sleep(Duration::from_millis(1));
                }
                let communicator = pending.wait(Duration::ZERO).unwrap();
                check_all_reduce::<f32>(&communicator, seed);
            });
        }
    });

    let stream = CudaContext::new(0).unwrap().new_stream().unwrap();
    let id = UniqueId::new(gpus.library).unwrap();
    let started = Instant::now();
    let pending = Communicator::init_pending(gpus.library, &stream, 0, 2, &id, &Config::new()).unwrap();
    let error = pending.wait(Duration::from_millis(500)).unwrap_err();
    assert!(matches!(error, Error::Deadline { .. }), "{error}");
    assert!(started.elapsed() < Duration::from_secs(5), "took {:?}", started.elapsed());
}

/// All communicators in one thread, their operations in one group; buffers of cudarc on streams of their own.
fn groups_over_all_gpus_in_one_thread() {
    const LEN: usize = 4099;
    let gpus = Gpus::all();
    let seed = fresh_seed();
    let streams = gpus.streams();
    let communicators = Communicator::init_all(gpus.library, &streams, &Config::new()).unwrap();
    let host = |rank| -> Vec<f32> { (0..LEN).map(|index| input(seed, ReduceOp::Sum, rank, index)).collect() };
    let foreign: Vec<_> = streams.iter().map(|stream| stream.context().new_stream().unwrap()).collect();
    for streams in [&streams, &foreign] {
        let send: Vec<_> = streams
            .iter()
            .enumerate()
            .map(|(rank, stream)| stream.clone_htod(&host(rank)).unwrap())
            .collect();
        let mut sums: Vec<_> = streams.iter().map(|stream| stream.alloc_zeros::<f32>(LEN).unwrap()).collect();
        let mut all: Vec<_> =
            streams.iter().map(|stream| stream.alloc_zeros::<f32>(LEN * gpus.count).unwrap()).collect();
        group(gpus.library, |group| {
            for (rank, (sum, all)) in sums.iter_mut().zip(&mut all).enumerate() {
                group.on(&communicators[rank]).all_reduce(&send[rank], sum, ReduceOp::Sum)?;
                group.on(&communicators[rank]).all_gather(&send[rank], all)?;
            }
            Ok(())
        })
        .unwrap();
        drop(send);
        for (rank, stream) in streams.iter().enumerate() {
            let found = stream.clone_dtoh(&sums[rank]).unwrap();
            compare(&found, |index| expected(seed, ReduceOp::Sum, gpus.count, index), false, (rank, seed));
            let found = stream.clone_dtoh(&all[rank]).unwrap();
            let wanted = |index: usize| input(seed, ReduceOp::Sum, index / LEN, index % LEN);
            compare(&found, wanted, false, (rank, seed, "all_gather"));
        }
    }
    for communicator in communicators {
        communicator.close().unwrap();
    }
}

/// An error in the middle of a group of real operations: nothing is launched, and the communicators go on.
fn a_cancelled_group_launches_nothing() {
    const LEN: usize = 1024;
    let gpus = Gpus::all();
    let streams = gpus.streams();
    let communicators = Communicator::init_all(gpus.library, &streams, &Config::new()).unwrap();
    let mut buffers: Vec<_> =
        streams.iter().map(|stream| stream.clone_htod(&[3.0f32; LEN]).unwrap()).collect();
    let result: Result<(), Error> = group(gpus.library, |group| {
        for (communicator, buffer) in communicators.iter().zip(&mut buffers) {
            group.on(communicator).all_reduce_in_place(buffer, ReduceOp::Sum)?;
        }
        Err(Error::Rank { rank: 1, size: 1 })
    });
    assert!(matches!(result, Err(Error::Rank { .. })));
    for (stream, buffer) in streams.iter().zip(&buffers) {
        assert_eq!(stream.clone_dtoh(buffer).unwrap(), [3.0; LEN], "unchanged");
    }
    group(gpus.library, |group| {
        for (communicator, buffer) in communicators.iter().zip(&mut buffers) {
            group.on(communicator).all_reduce_in_place(buffer, ReduceOp::Sum)?;
        }
        Ok(())
    })
    .unwrap();
    for (communicator, buffer) in communicators.iter().zip(&buffers) {
        let sum = 3.0 * gpus.count as f32;
        assert_eq!(communicator.stream().clone_dtoh(buffer).unwrap(), [sum; LEN]);
        communicator.async_error().unwrap();
    }
}

/// A collective whose peer never arrives is aborted from another thread. `connected`: the ranks have worked together
/// before, so that it hangs on the device; else it hangs while NCCL connects.
fn abort_alone(config: &Config, connected: bool) {
    let gpus = Gpus::all();
    let streams = &gpus.streams()[..2];
    let communicators = Communicator::init_all(gpus.library, streams, config).unwrap();
    let mut buffers: Vec<_> =
        streams.iter().map(|stream| stream.alloc_zeros::<f32>(1 << 20).unwrap()).collect();
    if connected {
        group(gpus.library, |group| {
            for (communicator, buffer) in communicators.iter().zip(&mut buffers) {
                group.on(communicator).all_reduce_in_place(buffer, ReduceOp::Sum)?;
            }
            Ok(())
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

fn abort_of_a_collective_whose_peer_never_arrives() {
    abort_alone(&Config::new(), true);
}

fn abort_of_a_non_blocking_collective_whose_peer_never_arrives() {
    abort_alone(&Config::new().blocking(false), true);
}

fn abort_while_nccl_connects_to_a_peer_that_never_arrives() {
    abort_alone(&Config::new().blocking(false), false);
}
