//! A rank that a test has started.

use collectives::fabric::{self, Communicator};
use collectives::job::{Backend, Group, Job};
use collectives::{Error, ReduceOp, world};
use std::env;
use std::path::PathBuf;
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Number of steps after the last failure.
const STEPS: u64 = 5;

/// The number in an environment variable of the test.
fn number(name: &str) -> Option<u64> {
    env::var(name).ok()?.parse().ok()
}

/// Runs a rank of a job. `fates` is a list of `step:rank:fate`, separated by spaces, with ranks as they were
/// numbered at first. The other ranks go on, and end once `RECOVERY_LEFT` ranks have made some steps
/// together.
pub(crate) fn run(fates: &str) {
    let mut options = world::Options::from_environment().unwrap();
    if fates == "exit-on-failure" {
        options.on_failure = world::OnFailure::Exit;
    }
    let job = Job::new(world::from_environment(&options).unwrap());
    let threads = number("RECOVERY_THREADS").unwrap_or(1) as usize;
    let jobs = if threads == 1 { vec![job] } else { job.threads(threads).unwrap() };
    let results: Vec<_> = thread::scope(|scope| {
        let ranks: Vec<_> = jobs.into_iter().map(|job| scope.spawn(move || train(job, fates))).collect();
        ranks.into_iter().map(thread::ScopedJoinHandle::join).collect()
    });
    let mut code = 0;
    for result in results {
        match result {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                eprintln!("error: {error}");
                code = 3;
            }
            Err(_) => code = 101,
        }
    }
    std::process::exit(code);
}

/// Prints a line with the time in nanoseconds.
fn say(what: &str) {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos();
    println!("{what} {time}");
}

/// A file whose existence is a signal between processes.
fn flag(name: &str) -> PathBuf {
    PathBuf::from(env::var("RECOVERY_FOLDER").unwrap()).join(name)
}

fn wait_for(name: &str) {
    while !flag(name).exists() {
        thread::sleep(Duration::from_millis(5));
    }
}

/// The operations of a step.
enum Carrier {
    Communicator(Box<Communicator>),
    Group(Group),
}

impl Carrier {
    fn connect(job: &Job) -> Result<Self, Error> {
        // Also prepares for failures.
        let group = job.group(Backend::Host)?;
        let provider = env::var("RECOVERY_CARRIER").unwrap();
        if provider == "group" {
            return Ok(Self::Group(group));
        }
        let mut options = fabric::Options::default();
        options.provider = Some(provider);
        let communicator = Communicator::new(job.world().clone(), &options)?;
        Ok(Self::Communicator(Box::new(communicator)))
    }

    /// The ranks that take part, as the bits of their first numbers, in every element.
    fn step(&mut self, first: usize) -> Result<u64, Error> {
        let mut bits = vec![1_u64 << first; 50_000];
        match self {
            Self::Communicator(communicator) => communicator.all_reduce_in_place(&mut bits, ReduceOp::Sum)?,
            Self::Group(group) => bits = group.all_reduce(bits, ReduceOp::Sum).wait()?,
        }
        assert!(bits.iter().all(|&one| one == bits[0]));
        Ok(bits[0])
    }
}

fn train(mut job: Job, fates: &str) -> Result<(), Error> {
    let first = job.rank();
    let limit = Duration::from_millis(number("RECOVERY_LIMIT").unwrap_or(10_000));
    let left = number("RECOVERY_LEFT").unwrap_or(1) as usize;
    let mut carrier = Carrier::connect(&job);
    if env::var("RECOVERY_REFUSED").is_ok() {
        return job.shrink_within(limit).map(drop);
    }
    let (mut step, mut steps_left, mut fails) = (0, STEPS, false);
    // A repeated step has no fate.
    let mut fated = 0;
    while steps_left > 0 {
        if let Some(fate) = fate_of(fates, first, &step.to_string()).filter(|_| step >= fated) {
            fated = step + 1;
            match fate {
                "leave" => {
                    drop((carrier, job));
                    wait_for("end");
                    return Ok(());
                }
                fate => meet(fate),
            }
        }
        let result = carrier.as_mut().map_err(|error| error.clone()).and_then(|carrier| carrier.step(first));
        match result {
            Ok(bits) => {
                if fails {
                    say(&format!("result {bits:b} of {} as {}", job.size(), job.rank()));
                }
                fails = false;
                step += 1;
                steps_left -= u64::from(job.size() == left);
            }
            Err(failure) => {
                say(&format!("failure: {failure};"));
                let fate = fate_of(fates, first, "failure");
                if let Some(fate) = fate {
                    meet(fate);
                }
                fails = true;
                job = job.shrink_within(limit)?;
                say("shrunk");
                // Not in libfabric 1.17, whose locks in shared memory would be held for ever.
                while fate.is_some_and(|fate| fate.starts_with("kill-soon")) {
                    thread::park();
                }
                carrier = Carrier::connect(&job);
                // From the smallest step of all ranks.
                if let Ok(steps) = job.world().all_gather(&u64::to_le_bytes(step)) {
                    step = steps
                        .into_iter()
                        .map(|one| u64::from_le_bytes(one.try_into().unwrap()))
                        .min()
                        .unwrap();
                }
            }
        }
    }
    drop((carrier, job));
    if env::var("RECOVERY_END").is_ok() {
        std::fs::write(flag("gone-on"), "").unwrap();
        wait_for("end");
    }
    Ok(())
}

/// Fate of a rank at a step or a failure.
fn fate_of<'a>(fates: &'a str, first: usize, at: &str) -> Option<&'a str> {
    fates.split(' ').find_map(|fate| fate.strip_prefix(&format!("{at}:{first}:")))
}

/// Meets a fate: dies, or comes back late.
fn meet(fate: &str) {
    let (fate, milliseconds) = fate.split_once('=').unwrap_or((fate, "0"));
    match fate {
        "kill" => {
            say("dies");
            kill();
        }
        // While this rank shrinks the job, or when it has, and then waits for that.
        "kill-soon" => {
            let time = Duration::from_millis(milliseconds.parse().unwrap());
            thread::spawn(move || {
                thread::sleep(time);
                kill();
            });
        }
        "panic" => panic!("the fate of this rank"),
        "stop" => {
            // SAFETY: takes no memory, and stops this process.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
        "idle" => wait_for("gone-on"),
        other => panic!("no fate: {other}"),
    }
}

fn kill() -> ! {
    // SAFETY: takes no memory, and ends this process.
    unsafe { libc::raise(libc::SIGKILL) };
    unreachable!("this process has been killed")
}
