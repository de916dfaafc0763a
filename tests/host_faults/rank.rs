//! A rank that a test has started.

use collectives::ReduceOp;
use collectives::fabric::{Algorithm, Collective, Communicator, Error, Options};
use collectives::world::{self, Handle, World};
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

/// The operations of a communicator.
pub(crate) const OPERATIONS: [&str; 12] = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "all_to_all_v",
    "gather",
    "scatter",
    "barrier",
    "send_recv",
    "exchange",
];

/// Transports of three ranks: shared memory as the rules select it, mostly through the shared segment;
/// libfabric messages in shared memory wherever there is an algorithm for them; and a network.
pub(crate) const CARRIERS: [&str; 3] = ["shm", MESSAGES, "tcp"];
const MESSAGES: &str = "shm-messages";

/// The options for one of [`CARRIERS`].
pub(crate) fn options(carrier: &str) -> Options {
    let mut options = Options::default();
    options.provider = Some(if carrier == MESSAGES { "shm" } else { carrier }.to_owned());
    if carrier == MESSAGES {
        for collective in Collective::ALL {
            let other = |algorithm: &Algorithm| {
                !matches!(algorithm, Algorithm::Board | Algorithm::Hierarchical)
                    && algorithm.serves(collective, 3)
            };
            options.set_algorithm(collective, Algorithm::ALL.into_iter().rfind(other).unwrap());
        }
    }
    options
}

/// Elements of a message in one segment, and in several.
const SHORT: usize = 4;
const LONG: usize = 300_000;

/// Plays `carrier operation phase victim`: the victim kills itself in the phase, and the others print the
/// error that they get for it as `error: ...` and end with code 3.
pub(crate) fn run(fault: &str) {
    let words: Vec<&str> = fault.split(' ').collect();
    let [carrier, operation, phase, victim] = words[..] else { panic!("not a fault: {fault}") };
    let world = world::from_environment(&world::Options::from_environment().unwrap());
    let world = world.unwrap_or_else(|error| fail(&error.to_string()));
    let is_victim = victim.parse() == Ok(world.rank());
    let doomed = Arc::new(Doomed::of(world, phase == "unnoticed"));
    if let Some(calls) = phase.strip_prefix("connect:").filter(|_| is_victim) {
        doomed.calls_left.store(calls.parse().unwrap(), Ordering::SeqCst);
    }
    doomed.stays_when_named.store(phase == "named", Ordering::SeqCst);
    let communicator = Communicator::new(Arc::<Doomed>::clone(&doomed), &options(carrier));
    let mut communicator = communicator.unwrap_or_else(|error| fail(&error.to_string()));
    let result = match phase {
        "between" => between(&mut communicator, operation, is_victim),
        "middle" | "unnoticed" => middle(&mut communicator, &doomed, operation, is_victim),
        "close" => {
            // A slow rank may learn of the death before it has its result.
            let result = operate(&mut communicator, operation, SHORT);
            if is_victim {
                doomed.calls_left.store(1, Ordering::SeqCst);
            }
            result.and_then(|()| communicator.close())
        }
        // It ends in good order, as by an error of something else, and the others wait for it.
        "leaves" | "left" => {
            let mut result = operate(&mut communicator, operation, SHORT);
            if phase == "left" && !is_victim {
                // Longer than rank 0 waits for others to receive its messages.
                thread::sleep(Duration::from_secs(4));
            }
            while result.is_ok() && !is_victim {
                result = operate(&mut communicator, operation, SHORT);
            }
            result
        }
        // Of the others' calls, the victim's are longer.
        "mismatch" => {
            let count = if is_victim { LONG + 1 } else { LONG };
            operate(&mut communicator, operation, count).and_then(|()| communicator.close())
        }
        "stuck" => {
            thread::sleep(Duration::from_secs(600));
            Ok(())
        }
        // There are not as many calls as the victim was to make.
        _ => communicator.close(),
    };
    if let Err(error) = result {
        fail(&error.to_string());
    }
}

/// The names in `/dev/shm` that a process has made.
pub(crate) fn shared_memory_of(process: u32) -> Vec<String> {
    let names = fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name());
    // libfabric's own names begin with the process' number.
    let of_it =
        |name: &String| name.contains(&format!("-{process}-")) || name.starts_with(&format!("{process}:"));
    names.map(|name| name.to_string_lossy().into_owned()).filter(of_it).collect()
}

pub(crate) fn fail(error: &str) -> ! {
    eprintln!("error: {error}");
    std::process::exit(3)
}

pub(crate) fn die() -> ! {
    // SAFETY: takes no memory, and ends this process.
    unsafe { libc::raise(libc::SIGKILL) };
    unreachable!("this process has been killed")
}

/// The victim is there for the first operation and not for others.
fn between(communicator: &mut Communicator, operation: &str, is_victim: bool) -> Result<(), Error> {
    operate(communicator, operation, SHORT)?;
    if is_victim {
        die();
    }
    // Ranks that need nothing from the victim may continue for a while.
    loop {
        operate(communicator, operation, SHORT)?;
    }
}

/// The victim dies while it waits in an operation for the rank after it, which only comes when it is dead.
fn middle(
    communicator: &mut Communicator,
    doomed: &Doomed,
    operation: &str,
    is_victim: bool,
) -> Result<(), Error> {
    operate(communicator, operation, SHORT)?;
    if is_victim {
        doomed.at_check.store(true, Ordering::SeqCst);
        operate(communicator, operation, LONG)?;
        // It did not have to wait, and dies while the others are in the operation.
        die();
    }
    if doomed.victim_is_before() {
        while doomed.inner.check().is_ok() {
            thread::sleep(Duration::from_millis(1));
        }
    }
    loop {
        operate(communicator, operation, LONG)?;
    }
}

/// One operation with `count` elements for each rank or message.
fn operate(communicator: &mut Communicator, operation: &str, count: usize) -> Result<(), Error> {
    let (rank, ranks) = (communicator.rank(), communicator.size());
    let (next, previous) = ((rank + 1) % ranks, (rank + ranks - 1) % ranks);
    let mut one = vec![1.0_f32; count];
    let all = vec![1.0_f32; count * ranks];
    let mut other = all.clone();
    let sum = ReduceOp::Sum;
    match operation {
        "all_reduce" => communicator.all_reduce_in_place(&mut one, sum),
        "all_gather" => communicator.all_gather(&one, &mut other),
        "reduce_scatter" => communicator.reduce_scatter(&all, &mut one, sum),
        "broadcast" => communicator.broadcast_in_place(&mut one, 0),
        "reduce" => communicator.reduce_in_place(&mut one, sum, 0),
        "all_to_all" => communicator.all_to_all(&all, &mut other),
        "all_to_all_v" => {
            let parts: Vec<_> = (0..ranks).map(|rank| rank * count..(rank + 1) * count).collect();
            communicator.all_to_all_v(&all, &parts, &mut other, &parts)
        }
        "gather" => communicator.gather(&one, Some(&mut other), 0),
        "scatter" => communicator.scatter(Some(&all), &mut one, 0),
        "barrier" => communicator.barrier(),
        "send_recv" if rank == 0 => {
            communicator.send(&one, next)?;
            communicator.recv(&mut one, previous)
        }
        "send_recv" => {
            communicator.recv(&mut one, previous)?;
            communicator.send(&one, next)
        }
        "exchange" => communicator.exchange_in_place(&mut one, next, previous),
        other => panic!("no operation {other}"),
    }
}

/// A world in which this rank can be made to die.
struct Doomed {
    inner: Handle,
    /// It dies when it begins the last of this many collective calls.
    calls_left: AtomicUsize,
    /// It stays in the first call for which it has a name in shared memory.
    stays_when_named: AtomicBool,
    /// It dies when it has waited for others in an operation, and asks whether they live.
    at_check: AtomicBool,
    /// True when this rank learns of a death half a second late, as when the victim has much memory to free
    /// first.
    hears_late: bool,
    heard: OnceLock<Instant>,
}

impl Doomed {
    fn of(inner: Handle, hears_late: bool) -> Self {
        Self {
            inner,
            calls_left: AtomicUsize::new(usize::MAX),
            stays_when_named: AtomicBool::new(false),
            at_check: AtomicBool::new(false),
            hears_late,
            heard: OnceLock::new(),
        }
    }

    /// True for the rank after the victim, which is rank 0 or rank 1 of 3.
    fn victim_is_before(&self) -> bool {
        let fault = std::env::var("HOST_FAULT").unwrap_or_default();
        let victim = fault.split(' ').next_back().and_then(|victim| victim.parse::<usize>().ok());
        victim.is_some_and(|victim| (victim + 1) % self.size() == self.rank())
    }

    fn call(&self) {
        if self.calls_left.fetch_sub(1, Ordering::SeqCst) == 1 {
            die();
        }
        let is_named = || !shared_memory_of(std::process::id()).is_empty();
        if self.stays_when_named.load(Ordering::SeqCst) && is_named() {
            thread::sleep(Duration::from_secs(600));
        }
    }
}

impl World for Doomed {
    fn position(&self) -> world::Position {
        self.inner.position()
    }

    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.call();
        self.inner.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        self.call();
        self.inner.all_gather(mine)
    }

    fn check(&self) -> Result<(), world::Error> {
        if self.at_check.load(Ordering::SeqCst) {
            die();
        }
        let checked = self.inner.check();
        let too_early = || self.heard.get_or_init(Instant::now).elapsed() < Duration::from_millis(500);
        if self.hears_late && checked.is_err() && too_early() { Ok(()) } else { checked }
    }

    fn compare(&self, rank: usize, topic: u64, calls: &[world::Called]) {
        self.inner.compare(rank, topic, calls);
    }

    fn fail(&self, reason: world::Reason) {
        self.inner.fail(reason);
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.inner.abort(code, message)
    }
}
