//! Steps of a rank that a test has started.

use collectives::world::{self, Handle, OnFailure, Options, World};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Joins the world of the environment and runs the steps, which are separated by spaces: `name`,
/// `name:argument`, or `name@rank:argument` for one rank only.
///
/// `exit-on-failure` must be first; it and `threads:N` configure the world. An error of the world is printed
/// as `error: ...` and ends the process with code 3.
pub(crate) fn run(steps: &str) {
    let mut steps: Vec<&str> = steps.split(' ').collect();
    let mut options = Options::from_environment().unwrap();
    #[cfg(feature = "mpi")]
    {
        options.join_mpi = Some(world::mpi);
    }
    if let Some(kind) = steps.first().and_then(|step| step.strip_prefix("kind:")) {
        options.kind = kind.parse().unwrap();
        steps.remove(0);
    }
    if steps.first() == Some(&"exit-on-failure") {
        options.on_failure = OnFailure::Exit;
        steps.remove(0);
    }
    let process = world::from_environment(&options).unwrap_or_else(|error| fail(&error));
    match steps.first().and_then(|step| step.strip_prefix("threads:")) {
        None => walk(process, &steps),
        Some(count) => {
            let worlds = world::threads(process, count.parse().unwrap()).unwrap_or_else(|error| fail(&error));
            steps.remove(0);
            thread::scope(|scope| {
                for world in worlds {
                    let steps = &steps;
                    scope.spawn(move || walk(world, steps));
                }
            });
        }
    }
}

fn fail(error: &world::Error) -> ! {
    eprintln!("error: {error}");
    std::process::exit(3)
}

fn walk(world: Handle, steps: &[&str]) {
    for step in steps {
        if *step == "recovery" {
            world::Recovery::new(&world).map_or_else(|error| fail(&error), drop);
            continue;
        }
        let (step, argument) = step.split_once(':').unwrap_or((step, ""));
        let (step, rank) = step.split_once('@').unwrap_or((step, ""));
        if !rank.is_empty() && rank.parse() != Ok(world.rank()) {
            continue;
        }
        if let Err(error) = take(&*world, step, argument) {
            fail(&error);
        }
    }
}

fn take(world: &dyn World, step: &str, argument: &str) -> Result<(), world::Error> {
    let (rank, size) = (world.rank(), world.size());
    let number = || argument.parse::<u64>().unwrap();
    match step {
        "print" => {
            let (local_rank, local_size) = (world.local_rank(), world.local_size());
            println!("rank {rank} of {size}, {local_rank} of {local_size} here, {}", world.describe());
        }
        "say" => println!("{argument}"),
        "barriers" => {
            for index in 0..number() {
                // Ranks arrive at different times, each in turn last.
                if index % size as u64 == rank as u64 {
                    thread::sleep(Duration::from_millis(2));
                }
                let entered = nanoseconds();
                world.barrier()?;
                println!("barrier {index} {entered} {}", nanoseconds());
            }
        }
        "fast-barriers" => {
            for _ in 0..number() {
                world.barrier()?;
            }
        }
        "gather" => {
            for round in 0..number() {
                let message =
                    |rank: usize| vec![(rank as u64 * 7 + round) as u8; rank * 1000 * round as usize];
                let all = world.all_gather(&message(rank))?;
                assert_eq!(all.len(), size);
                for (rank, theirs) in all.iter().enumerate() {
                    assert!(*theirs == message(rank), "round {round}, message of rank {rank}");
                }
            }
        }
        "gather-bytes" => {
            let all = world.all_gather(&vec![rank as u8; number() as usize])?;
            assert!(
                all.iter().enumerate().all(|(rank, theirs)| *theirs == vec![rank as u8; number() as usize])
            );
        }
        "check" => world.check()?,
        "check-until-failed" => loop {
            world.check()?;
            thread::sleep(Duration::from_millis(5));
        },
        "limit" => world.set_limit(Some(Duration::from_millis(number()))),
        "note" => println!("heard: {}", world.note(argument)),
        "notes" => {
            let texts: Vec<_> = world.notes().into_iter().map(|(text, _)| text).collect();
            println!("notes: {}", texts.join(", "));
        }
        // Takes longer than the exit of a process without a hook.
        "exit-hook" => world.before_exit(Box::new(|error, code| {
            thread::sleep(Duration::from_millis(1500));
            println!("kept with code {code} although {error}");
        })),
        // Like a call to a GPU that never returns.
        "stuck" => thread::sleep(Duration::from_secs(600)),
        "sleep" => thread::sleep(Duration::from_millis(number())),
        "spin" => {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(number()) {}
        }
        "panic" => panic!("as the test wants it"),
        "kill" => signal_itself(libc::SIGKILL),
        "stop" => signal_itself(libc::SIGSTOP),
        "vanish" => std::process::exit(0),
        "fail" => world.fail(argument.into()),
        "abort" => world.abort(number() as i32, "the test wants it"),
        _ => panic!("unknown step {step}"),
    }
    Ok(())
}

fn signal_itself(signal: libc::c_int) {
    // SAFETY: `kill` touches no memory, and the number is this process' own.
    unsafe { libc::kill(libc::getpid(), signal) };
}

fn nanoseconds() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos()
}
