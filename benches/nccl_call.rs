//! Time of queueing one `ncclAllReduce` of 8 bytes through the safe layer and through the function pointer.
//!
//! One rank on the first GPU. Only the calls are timed: in batches that leave room in the stream, which is
//! waited for after each, and the result verified (out of place into a cleared buffer). First criterion runs
//! the cases one by one; then all run in turn, and the differences of their medians to `bare` are printed.
//! `nccl_instructions` counts the instructions, without a GPU.

#![allow(clippy::disallowed_methods, reason = "an error ends the measurement")]

mod build;

use std::error::Error;
use std::ffi::c_void;
use std::marker::PhantomData;
use std::process::{ExitCode, exit};
use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, DeviceBufferMut, Library, Memory};
use criterion::Criterion;
use cudarc::driver::sys::CUstream;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut, DriverError};
use nccl_sys::{Nccl, cudaStream_t, ncclComm_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

type Failure = Box<dyn Error>;

/// Values that are summed: 8 bytes. Over one rank the sum is the same.
const VALUES: [f32; 2] = [1.5, -2.25];
/// Calls between two synchronisations. Each puts up to five entries into the stream, which has room for about
/// a thousand.
const BATCH: u64 = 128;
/// Number of batches of each case when they run in turn.
const ROUNDS: usize = 501;
/// The case that the others of its group are compared with.
const BARE: &str = "bare";

/// Makes so many calls, at most [`BATCH`], and returns the time that they took.
type Batch<'a> = Box<dyn FnMut(u64) -> Result<Duration, Failure> + 'a>;

struct Case<'a> {
    group: &'static str,
    name: &'static str,
    batch: Batch<'a>,
}

fn main() -> ExitCode {
    let result = match nccl::device_count() {
        // "no CUDA driver: ..." or "no CUDA device: ..."
        Err(error @ (nccl::Error::NoDriver { .. } | nccl::Error::NoDevice { .. })) => {
            println!("skipped: {error}");
            Ok(())
        }
        Err(error) => Err(error.into()),
        Ok(_) => run(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("nccl_call: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Failure> {
    let library = Library::load()?;
    let stream = CudaContext::new(0)?.new_stream()?;
    let other = stream.context().new_stream()?;
    let communicator = Communicator::builder(library, &stream).init()?;
    let bare = Bare::new(&communicator);
    println!("{}, NCCL {}", build::DESCRIPTION, library.version());

    let on = |stream| Memory::alloc(library, stream, size_of_val(&VALUES));
    let mut memories = [
        on(&stream)?,
        on(&stream)?,
        on(&stream)?,
        on(&stream)?,
        on(&stream)?,
        on(&stream)?,
        on(&stream)?,
        on(&stream)?,
        on(&stream)?,
        on(&stream)?,
    ];
    let [a, b, c, d, e, f, g, i, j, k] =
        memories.each_mut().map(|memory| memory.slice_mut::<f32>(..VALUES.len()));
    let mut elsewhere = on(&other)?;
    let h = elsewhere.slice_mut::<f32>(..VALUES.len());
    let with_events = || stream.clone_htod(&VALUES);
    let without_events = || without_events(&stream);
    let (all_reduce, sum) = (&communicator, ReduceOp::Sum);

    let mut cases = Vec::new();
    let mut add = |group, name, batch| cases.push(Case { group, name, batch });
    let group = "in_place";
    add(group, BARE, in_place(&stream, a?, |view| bare.all_reduce(view.address(), view.address())));
    let call = |view: &mut nccl::MemoryViewMut<'_, f32>| -> Result<(), Failure> {
        bare.ask()?;
        Ok(bare.all_reduce(view.address(), view.address())?)
    };
    add(group, "bare_and_question", in_place(&stream, i?, call));
    add(group, "memory", in_place(&stream, b?, |view| all_reduce.all_reduce_in_place(view, sum)));
    let call = |slice: &mut CudaSlice<f32>| all_reduce.all_reduce_in_place(slice, sum);
    add(group, "slice", in_place(&stream, without_events()?, call));
    add(group, "slice_with_events", in_place(&stream, with_events()?, call));
    let call = |view: &mut _| nccl::group(|group| group.on(all_reduce).all_reduce_in_place(view, sum));
    add(group, "group", in_place(&stream, c?, call));
    add(group, "other_stream", in_place(&stream, h?, |view| all_reduce.all_reduce_in_place(view, sum)));

    let mut j = j?;
    let one = all_reduce.prepare(|prepare| prepare.all_reduce_in_place(&mut j, sum))?;
    add(group, "prepared", in_place(&stream, j, move |_| all_reduce.queue(&one)));
    let mut k = k?;
    let many = all_reduce
        .prepare(|prepare| (0..BATCH).try_for_each(|_| prepare.all_reduce_in_place(&mut k, sum)))?;
    let queue = move |calls: u64| all_reduce.queue_range(&many, ..calls as usize);
    add(group, "prepared_many", at_once(&stream, k, queue));

    let group = "out_of_place";
    let call = |send: &nccl::MemoryViewMut<'_, f32>, receive: &mut nccl::MemoryViewMut<'_, f32>| {
        bare.all_reduce(send.address(), receive.address())
    };
    add(group, BARE, out_of_place(&stream, d?, e?, call));
    add(
        group,
        "memory",
        out_of_place(&stream, f?, g?, |send, receive| all_reduce.all_reduce(send, receive, sum)),
    );
    let call =
        |send: &CudaSlice<f32>, receive: &mut CudaSlice<f32>| all_reduce.all_reduce(send, receive, sum);
    add(group, "slice", out_of_place(&stream, without_events()?, without_events()?, call));
    add(group, "slice_with_events", out_of_place(&stream, with_events()?, with_events()?, call));

    each(&mut cases);
    // Without `--bench` criterion only tries each case.
    if std::env::args().any(|argument| argument == "--bench") {
        in_turn(&mut cases)?;
    }
    drop(cases);
    communicator.close()?;
    Ok(())
}

/// Criterion's own measurement.
fn each(cases: &mut [Case<'_>]) {
    let mut criterion = Criterion::default().without_plots().configure_from_args();
    for Case { group, name, batch } in cases {
        criterion.benchmark_group(*group).bench_function(*name, |bencher| {
            bencher.iter_custom(|calls| {
                let mut time = Duration::ZERO;
                let mut left = calls;
                while left > 0 {
                    let now = left.min(BATCH);
                    time += batch(now).unwrap_or_else(|error| {
                        eprintln!("nccl_call: {group}/{name}: {error}");
                        exit(1)
                    });
                    left -= now;
                }
                time
            });
        });
    }
    criterion.final_summary();
}

/// All cases in turn, so that what else happens on the machine happens to all.
fn in_turn(cases: &mut [Case<'_>]) -> Result<(), Failure> {
    let mut times = vec![Vec::with_capacity(ROUNDS); cases.len()];
    for _ in 0..ROUNDS {
        for (case, times) in cases.iter_mut().zip(&mut times) {
            times.push((case.batch)(BATCH)?);
        }
    }
    println!("\nIn turn, {ROUNDS} rounds of {BATCH} calls: medians in ns per call");
    let mut bare = 0.0;
    for (Case { group, name, .. }, times) in cases.iter().zip(&mut times) {
        times.sort_unstable();
        let median = times[ROUNDS / 2].as_secs_f64() * 1e9 / BATCH as f64;
        if *name == BARE {
            bare = median;
        }
        println!("{:<32} {median:>9.1} {:>+9.1}", format!("{group}/{name}"), median - bare);
    }
    Ok(())
}

fn in_place<'a, B, E>(
    stream: &'a Arc<CudaStream>,
    mut buffer: B,
    mut call: impl FnMut(&mut B) -> Result<(), E> + 'a,
) -> Batch<'a>
where
    B: DeviceBufferMut<Element = f32> + DevicePtr<f32> + DevicePtrMut<f32> + 'a,
    Failure: From<E>,
{
    Box::new(move |calls| {
        stream.memcpy_htod(&VALUES, &mut buffer)?;
        stream.synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            call(&mut buffer)?;
        }
        let time = start.elapsed();
        stream.synchronize()?;
        verify(&stream.clone_dtoh(&buffer)?)?;
        Ok(time)
    })
}

/// A batch in place that is one call.
fn at_once<'a, B>(
    stream: &'a Arc<CudaStream>,
    mut buffer: B,
    mut call: impl FnMut(u64) -> Result<(), nccl::Error> + 'a,
) -> Batch<'a>
where
    B: DeviceBufferMut<Element = f32> + DevicePtr<f32> + DevicePtrMut<f32> + 'a,
{
    Box::new(move |calls| {
        stream.memcpy_htod(&VALUES, &mut buffer)?;
        stream.synchronize()?;
        let start = Instant::now();
        call(calls)?;
        let time = start.elapsed();
        stream.synchronize()?;
        verify(&stream.clone_dtoh(&buffer)?)?;
        Ok(time)
    })
}

fn out_of_place<'a, B, E>(
    stream: &'a Arc<CudaStream>,
    mut send: B,
    mut receive: B,
    mut call: impl FnMut(&B, &mut B) -> Result<(), E> + 'a,
) -> Batch<'a>
where
    B: DeviceBufferMut<Element = f32> + DevicePtr<f32> + DevicePtrMut<f32> + 'a,
    Failure: From<E>,
{
    Box::new(move |calls| {
        stream.memcpy_htod(&VALUES, &mut send)?;
        stream.memset_zeros(&mut receive)?;
        stream.synchronize()?;
        let start = Instant::now();
        for _ in 0..calls {
            call(&send, &mut receive)?;
        }
        let time = start.elapsed();
        stream.synchronize()?;
        verify(&stream.clone_dtoh(&receive)?)?;
        Ok(time)
    })
}

fn verify(found: &[f32]) -> Result<(), String> {
    if found == VALUES { Ok(()) } else { Err(format!("the sum is {found:?} and should be {VALUES:?}")) }
}

/// A slice for whose order nobody cares but its stream: cudarc records no events for it and waits for none.
fn without_events(stream: &Arc<CudaStream>) -> Result<CudaSlice<f32>, DriverError> {
    let context = stream.context();
    // SAFETY: the slice is used on one stream.
    unsafe { context.disable_event_tracking() };
    let slice = stream.clone_htod(&VALUES);
    // SAFETY: only the slice that was made just now has no events.
    unsafe { context.enable_event_tracking() };
    slice
}

/// The same communicator through NCCL's function.
struct Bare<'a> {
    raw: &'static Nccl,
    handle: ncclComm_t,
    stream: CUstream,
    communicator: PhantomData<&'a Communicator>,
}

impl<'a> Bare<'a> {
    fn new(communicator: &'a Communicator) -> Self {
        let (raw, handle) = (communicator.library().raw(), communicator.as_raw());
        Self { raw, handle, stream: communicator.stream().cu_stream(), communicator: PhantomData }
    }

    /// Asks if the stream is being captured, as the safe layer does before each call.
    #[inline]
    fn ask(&self) -> Result<(), DriverError> {
        // SAFETY: the communicator holds its stream.
        unsafe { cudarc::driver::result::stream::is_capturing(self.stream) }.map(drop)
    }

    /// Sums the two values at these addresses, which are those of buffers of the batch.
    #[inline]
    fn all_reduce(&self, source: u64, target: u64) -> Result<(), &'static str> {
        let (source, target, count) = (source as *const c_void, target as *mut c_void, VALUES.len());
        let (data_type, op) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
        let (handle, stream) = (self.handle, self.stream as cudaStream_t);
        // SAFETY: the buffers have so many elements and outlive the batch, and the communicator is alive and
        // only used here.
        done(unsafe { self.raw.ncclAllReduce(source, target, count, data_type, op, handle, stream) })
    }
}

const REFUSED: &str = "NCCL refuses a bare call; NCCL_DEBUG=WARN shows why";

#[inline]
fn done(code: ncclResult_t) -> Result<(), &'static str> {
    if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err(REFUSED) }
}
