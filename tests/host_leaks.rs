//! Communicators that are made and closed again and again leave nothing behind.
//!
//! A test binary of its own, and each case a process of its own, as the counts are those of the whole
//! process.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Instant;
use std::{env, fs, thread};

use collectives::fabric::{Communicator, Library, Options, Version};
use collectives::{ReduceOp, world};

/// Makes a communicator of two ranks, uses it for a short and a long message, and ends it in one of three
/// ways.
fn cycle(provider: &str, number: usize) {
    let handles = world::threads(world::single(), 2).unwrap();
    let mut options = Options::default();
    options.provider = Some(provider.to_owned());
    // Failed endpoints are left open on purpose there: see `EndpointObjects::must_stay_open`.
    let stays_open = provider == "tcp" && Library::load().unwrap().version() > Version::new(1, 17);
    thread::scope(|scope| {
        for handle in handles {
            let options = &options;
            scope.spawn(move || {
                let mut communicator = Communicator::new(handle, options).unwrap();
                for count in [4, 20_000] {
                    let mut data = vec![1.0_f32; count];
                    communicator.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap();
                    assert!(data.iter().all(|&sum| sum == 2.0));
                }
                match number % 40 {
                    // Over tcp this takes a second: only then the ranks compare their calls.
                    39 if !stays_open => {
                        let mut data = vec![1_u8; 100 + communicator.rank()];
                        communicator.all_reduce_in_place(&mut data, ReduceOp::Sum).unwrap_err();
                    }
                    turn if turn % 4 == 2 => drop(communicator),
                    _ => communicator.close().unwrap(),
                }
            });
        }
    });
}

/// Resources of this process.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Held {
    descriptors: BTreeMap<String, usize>,
    shared_memory: Vec<String>,
    mappings: usize,
    threads: usize,
}

impl Held {
    fn now() -> Self {
        let mut descriptors = BTreeMap::new();
        for entry in fs::read_dir("/proc/self/fd").unwrap() {
            // The folder's own is closed again.
            let Ok(target) = fs::read_link(entry.unwrap().path()) else { continue };
            let kind = target.to_string_lossy().split(":[").next().unwrap().to_owned();
            *descriptors.entry(kind).or_default() += 1;
        }
        let own = format!("-{}-", std::process::id());
        let shared_memory = fs::read_dir("/dev/shm")
            .unwrap()
            .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
            .filter(|name| name.starts_with("collectives-") && name.contains(&own))
            .collect();
        let mappings = fs::read_to_string("/proc/self/maps").unwrap().lines().count();
        let threads = fs::read_dir("/proc/self/task").unwrap().count();
        Self { descriptors, shared_memory, mappings, threads }
    }
}

/// Resident memory, in KiB.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
#[ignore = "started by the other tests"]
fn cycles_in_a_process() {
    let variable = |name: &str| env::var(format!("COLLECTIVES_TEST_{name}")).unwrap();
    let (provider, cycles) = (variable("PROVIDER"), variable("CYCLES").parse::<usize>().unwrap());
    // Resources that libfabric and the allocator keep are allocated by the first ones.
    for number in 0..20 {
        cycle(&provider, number);
    }
    let (before, memory, start) = (Held::now(), resident(), Instant::now());
    for number in 0..cycles {
        cycle(&provider, number);
    }
    let seconds = start.elapsed().as_secs_f64();
    let mut after = Held::now();
    // A thread that has been joined may still be on its way out.
    while after.threads > before.threads && start.elapsed().as_secs_f64() < seconds + 10.0 {
        after = Held::now();
    }
    let grown = resident().saturating_sub(memory);
    println!(
        "{cycles} cycles over {provider} in {seconds:.1} s: {grown} KiB more resident memory, {after:?}"
    );
    assert_eq!(after.descriptors, before.descriptors);
    assert_eq!(after.shared_memory, Vec::<String>::new());
    assert!(after.threads <= before.threads, "{before:?}");
    // The allocator maps memory for new threads now and then.
    assert!(after.mappings < before.mappings + 50, "{before:?}");
    assert!(grown < (16 << 10) + 16 * cycles, "{grown} KiB");
}

/// `COLLECTIVES_TEST_CYCLES` of them; 100 when it is not set.
fn cycles(provider: &str) {
    let cycles = env::var("COLLECTIVES_TEST_CYCLES").unwrap_or_else(|_| "100".to_owned());
    let output = Command::new(env::current_exe().unwrap())
        .args(["cycles_in_a_process", "--exact", "--ignored", "--nocapture"])
        .env("COLLECTIVES_TEST_PROVIDER", provider)
        .env("COLLECTIVES_TEST_CYCLES", &cycles)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    println!("{text}");
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    assert!(text.contains(&format!("{cycles} cycles over {provider} in ")), "{text}");
}

#[test]
fn nothing_is_left_of_communicators_over_tcp() {
    cycles("tcp");
}

#[test]
fn nothing_is_left_of_communicators_over_shm() {
    cycles("shm");
}
