//! Measures a rank of a host communicator that waits for another one: the share of a processor that it takes,
//! how late its answer comes, and when its timeout ends.
//!
//! ```text
//! cargo build --release --example host_waiting
//! target/release/examples/host_waiting --transport tcp                    # two threads of one process
//! MASTER_ADDR=localhost MASTER_PORT=29500 WORLD_SIZE=2 RANK=0 ... & RANK=1 ...  # two processes
//! ```
//!
//! Rank 0 comes late, and broadcasts the time at which it calls. Both ranks are on one host, and so have one
//! clock.
//!
//! `--instructions` counts those of a short all_reduce, in a rank that waits for nobody: start rank 1 under
//! `valgrind --tool=callgrind --toggle-collect='*counted*'`, and divide what it has collected by the number
//! of trials.

use std::error::Error;
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;
use collectives::fabric::{Communicator, Options};
use collectives::{ReduceOp, world};

/// Measures a rank that waits for another one.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Transport: a libfabric provider, as shm or tcp; socket for a blocking read of a TCP socket, to compare
    /// with.
    #[arg(long, default_value = "shm")]
    transport: String,
    /// Operation that waits: broadcast, or recv (in shared memory: over libfabric).
    #[arg(long, default_value = "broadcast")]
    operation: String,
    /// Trials of the latency.
    #[arg(long, default_value_t = 200)]
    trials: usize,
    /// Milliseconds that a rank has waited when the other one comes.
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
    wait_ms: u64,
    /// Seconds of the wait in which processor time is measured.
    #[arg(long, default_value_t = 3)]
    share_s: u64,
    /// Timeout in seconds; zero for no such measurement.
    #[arg(long, default_value_t = 3)]
    timeout_s: u64,
    /// Operations in a batch of short ones.
    #[arg(long, default_value_t = 500)]
    batch: u32,
    /// Only run short operations, of which callgrind counts the instructions.
    #[arg(long)]
    instructions: bool,
}

type Failure = Box<dyn Error + Send + Sync>;

/// Time of a clock.
fn now(clock: libc::clockid_t) -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the time.
    unsafe { libc::clock_gettime(clock, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One operation that counts; not inlined, so that it can be named.
#[inline(never)]
fn counted(communicator: &mut Communicator, data: &mut [f32]) -> Result<(), Failure> {
    Ok(communicator.all_reduce_in_place(data, ReduceOp::Sum)?)
}

/// Sends `value` from rank 0 to rank 1, with the operation that is measured.
fn send(communicator: &mut Communicator, arguments: &Arguments, value: &mut [u64; 1]) -> Result<(), Failure> {
    match (&arguments.operation[..], communicator.rank()) {
        ("recv", 0) => communicator.send(value, 1)?,
        ("recv", _) => communicator.recv(value, 0)?,
        _ => communicator.broadcast_in_place(value, 0)?,
    }
    Ok(())
}

/// Processor time of a rank that waits, relative to the time that it waits.
fn share(communicator: &mut Communicator, arguments: &Arguments) -> Result<f64, Failure> {
    communicator.barrier()?;
    if communicator.rank() == 0 {
        thread::sleep(Duration::from_secs(arguments.share_s));
    }
    let (start, used) = (Instant::now(), now(libc::CLOCK_THREAD_CPUTIME_ID));
    send(communicator, arguments, &mut [0])?;
    Ok((now(libc::CLOCK_THREAD_CPUTIME_ID) - used).as_secs_f64() / start.elapsed().as_secs_f64())
}

/// Microseconds from the call of rank 0 to the return of rank 1, sorted. `exchange` passes a number from rank
/// 0 to rank 1.
fn latencies(
    rank: usize,
    arguments: &Arguments,
    mut exchange: impl FnMut(&mut [u64; 1]) -> Result<(), Failure>,
) -> Result<Vec<f64>, Failure> {
    let mut latencies = Vec::new();
    for _ in 0..arguments.trials {
        let mut called = [0];
        if rank == 0 {
            thread::sleep(Duration::from_millis(arguments.wait_ms));
            called = [u64::try_from(now(libc::CLOCK_MONOTONIC).as_nanos())?];
        }
        exchange(&mut called)?;
        let returned = u64::try_from(now(libc::CLOCK_MONOTONIC).as_nanos())?;
        latencies.push(returned.saturating_sub(called[0]) as f64 / 1e3);
    }
    latencies.sort_by(f64::total_cmp);
    Ok(latencies)
}

fn print_latencies(latencies: &[f64], arguments: &Arguments) -> io::Result<()> {
    let of = |part: f64| latencies[((latencies.len() - 1) as f64 * part) as usize];
    let (median, most, ms) = (of(0.5), of(0.99), arguments.wait_ms);
    writeln!(io::stdout(), "answer after a wait of {ms} ms: median {median:.1} us, p99 {most:.1} us")
}

/// The latency of a TCP socket alone.
fn run_socket(handle: &world::Handle, arguments: &Arguments) -> Result<(), Failure> {
    let rank = handle.rank();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let ports = handle.all_gather(&listener.local_addr()?.port().to_le_bytes())?;
    let port = u16::from_le_bytes(ports[0][..].try_into()?);
    let mut stream =
        if rank == 0 { listener.accept()?.0 } else { TcpStream::connect((Ipv4Addr::LOCALHOST, port))? };
    stream.set_nodelay(true)?;
    let latencies = latencies(rank, arguments, |value| {
        if rank == 0 {
            return Ok(stream.write_all(&value[0].to_le_bytes())?);
        }
        let mut bytes = [0; 8];
        stream.read_exact(&mut bytes)?;
        value[0] = u64::from_le_bytes(bytes);
        Ok(())
    })?;
    if rank == 1 {
        print_latencies(&latencies, arguments)?;
    }
    Ok(())
}

/// Microseconds of a short all_reduce: the median of batches.
fn short(communicator: &mut Communicator, arguments: &Arguments) -> Result<f64, Failure> {
    let mut data = [1.0_f32; 2];
    let mut batches = Vec::new();
    for _ in 0..21 {
        communicator.barrier()?;
        let start = Instant::now();
        for _ in 0..arguments.batch {
            communicator.all_reduce_in_place(&mut data, ReduceOp::Max)?;
        }
        batches.push(start.elapsed().as_secs_f64() * 1e6 / f64::from(arguments.batch));
    }
    batches.sort_by(f64::total_cmp);
    Ok(batches[batches.len() / 2])
}

fn run(handle: world::Handle, arguments: &Arguments) -> Result<(), Failure> {
    if arguments.transport == "socket" {
        return run_socket(&handle, arguments);
    }
    let mut options = Options::default();
    options.provider = Some(arguments.transport.clone());
    let mut communicator = Communicator::new(handle, &options)?;
    if arguments.instructions {
        for _ in 0..arguments.trials {
            communicator.barrier()?;
            // The other rank is there by then, and does not sleep yet: rank 1 neither polls for it nor wakes
            // it.
            let start = Instant::now();
            while communicator.rank() == 1 && start.elapsed() < Duration::from_micros(50) {
                std::hint::spin_loop();
            }
            counted(&mut communicator, &mut [1.0])?;
        }
        return Ok(communicator.close()?);
    }
    let is_waiting = communicator.rank() == 1;
    let mut out = io::stdout();
    let short = short(&mut communicator, arguments)?;
    let share = share(&mut communicator, arguments)?;
    communicator.barrier()?;
    let rank = communicator.rank();
    let latencies = latencies(rank, arguments, |value| send(&mut communicator, arguments, value))?;
    if is_waiting {
        writeln!(out, "{}", communicator.describe())?;
        writeln!(out, "all_reduce of 8 bytes: {short:.2} us (median)")?;
        writeln!(out, "processor time of a rank that waits {} s: {:.2} %", arguments.share_s, 100.0 * share)?;
        print_latencies(&latencies, arguments)?;
    }
    if arguments.timeout_s == 0 {
        return Ok(communicator.close()?);
    }
    communicator.barrier()?;
    if is_waiting {
        communicator.set_timeout(Some(Duration::from_secs(arguments.timeout_s)));
        let start = Instant::now();
        if let Err(error) = communicator.barrier() {
            writeln!(out, "timeout after {:.3} s: {error}", start.elapsed().as_secs_f64())?;
        }
    } else {
        thread::sleep(Duration::from_secs(arguments.timeout_s + 1));
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let world = world::from_environment(&world::Options::from_environment()?)?;
    if world.size() > 1 {
        return run(world, &arguments);
    }
    let handles = world::threads(world, 2)?;
    thread::scope(|scope| {
        let ranks: Vec<_> =
            handles.into_iter().map(|handle| scope.spawn(|| run(handle, &arguments))).collect();
        ranks.into_iter().try_for_each(|rank| rank.join().map_err(|_| "a rank panicked")?)
    })
}
