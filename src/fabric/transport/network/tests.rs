//! Ranks as threads and as processes (this test binary started again), over every provider of the machine's
//! libfabric and of a newer one.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, thread};

use super::super::endpoint::with_length;
use super::*;
use crate::wheels;
use crate::world::World;
use folder_world::{FolderWorld, new_folder};
use scenarios::*;

mod folder_world;
mod scenarios;
mod worlds;

const GIVE_UP: Duration = Duration::from_secs(20);
const SIZES: [usize; 11] = [0, 1, 3, 128, 129, 4096, 4097, 65_536, 1 << 20, (1 << 20) + 1, 16 << 20];

fn in_threads(provider: Option<&str>, ranks: usize, name: &str) {
    let folder = new_folder();
    thread::scope(|scope| {
        for rank in 0..ranks {
            let folder = &folder;
            scope.spawn(move || {
                let world = FolderWorld::handle(folder, rank, ranks);
                let mut network = Network::connect_ranks(&world, provider, None).unwrap();
                scenario(name, &mut network);
                world.barrier().unwrap();
            });
        }
    });
    fs::remove_dir_all(folder).unwrap();
}

fn leave_with_operations_in_flight(asked_for: bool) {
    let folder = new_folder();
    thread::scope(|scope| {
        let leave = |rank: usize| {
            let world = FolderWorld::handle(&folder, rank, 2);
            let mut network = Network::connect_ranks(&world, Some("shm"), None).unwrap();
            let buffers = left_in_flight(&mut network, asked_for);
            drop(network);
            // Now both have left, and are closed.
            world.barrier().unwrap();
            buffers
        };
        let ranks = [0, 1].map(|rank| scope.spawn(move || leave(rank)));
        for rank in ranks {
            for buffer in rank.join().unwrap() {
                assert!(buffer.iter().all(|&byte| byte == 0), "{} bytes came late", buffer.len());
            }
        }
    });
    assert_eq!(own_files_in_dev_shm(std::process::id()), Vec::<String>::new());
    fs::remove_dir_all(folder).unwrap();
}

/// Started again by the test below.
#[test]
#[ignore = "started by another test"]
fn ranks_of_a_process_leave_with_operations_in_flight() {
    // SAFETY: ends this process when it hangs.
    unsafe { libc::alarm(90) };
    leave_with_operations_in_flight(true);
    leave_with_operations_in_flight(false);
    println!("all have left");
}

#[test]
fn nothing_touches_the_buffers_of_ranks_that_have_left() {
    for library in wheels::each_libfabric() {
        for environment in [COPIES, CMA] {
            let mut command = Command::new(env::current_exe().unwrap());
            let name =
                "fabric::transport::network::tests::ranks_of_a_process_leave_with_operations_in_flight";
            command.args([name, "--exact", "--ignored", "--nocapture"]).envs(environment.iter().copied());
            if let Some(library) = &library {
                command.env("FABRIC_LIBRARY", library);
            }
            let output = command.output().unwrap();
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            let report = format!("{library:?} {environment:?}: {}\n{out}{err}", output.status);
            assert!(output.status.success() && out.contains("all have left"), "{report}");
        }
    }
}

/// Started again by the test below: files of other tests would be counted.
#[test]
#[ignore = "started by another test"]
fn threads_of_this_process_exchange_messages_of_all_sizes() {
    for (provider, ranks) in [(Some("shm"), 2), (Some("tcp"), 2), (None, 3), (Some("tcp"), 3)] {
        in_threads(provider, ranks, "exchange");
    }
    assert_eq!(own_files_in_dev_shm(std::process::id()), Vec::<String>::new());
    println!("all is exchanged");
}

#[test]
fn threads_exchange_messages_of_all_sizes() {
    let name = "fabric::transport::network::tests::threads_of_this_process_exchange_messages_of_all_sizes";
    let mut command = Command::new(env::current_exe().unwrap());
    let output = command.args([name, "--exact", "--ignored", "--nocapture"]).output().unwrap();
    let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && out.contains("all is exchanged"), "{out}{err}");
}

#[test]
fn a_provider_that_is_not_there_is_named_with_those_that_are() {
    let folder = new_folder();
    let world = FolderWorld::handle(&folder, 0, 1);
    let error = Network::connect_ranks(&world, Some("nonsense"), None).err().unwrap().to_string();
    assert!(error.starts_with("provider 'nonsense': libfabric "), "{error}");
    assert!(error.contains("available: ") && error.contains("shm"), "{error}");
    fs::remove_dir_all(folder).unwrap();
}

#[test]
fn the_list_of_providers_has_shm_and_tcp() {
    let providers = providers_by_name();
    let tcp = provider::name_in(Fabric::load().unwrap(), "tcp");
    assert!(providers.contains(&"shm".to_owned()) && providers.contains(&tcp), "{providers:?}");
}

fn providers_by_name() -> Vec<String> {
    provider::providers().unwrap()
}

/// The remaining files of a process's endpoints.
fn own_files_in_dev_shm(pid: u32) -> Vec<String> {
    let own = format!("-{pid}-");
    fs::read_dir("/dev/shm")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .filter(|name| name.starts_with("collectives-") && name.contains(&own))
        .collect()
}

/// Started again by the tests below, as one rank.
#[test]
#[ignore = "started by the other tests"]
fn rank_in_a_process() {
    let variable = |name: &str| env::var(format!("COLLECTIVES_TEST_{name}")).unwrap();
    let (rank, size) = (variable("RANK").parse().unwrap(), variable("SIZE").parse().unwrap());
    // SAFETY: ends this process when it hangs.
    unsafe { libc::alarm(90) };
    let world = FolderWorld::handle(Path::new(&variable("FOLDER")), rank, size);
    let mut network = Network::connect_ranks(&world, Some(&variable("PROVIDER")), None).unwrap();
    println!("{:?}", network.transport_summary());
    scenario(&variable("SCENARIO"), &mut network);
    drop(network);
    println!("rank {rank} is done");
}

fn in_processes(provider: &str, ranks: usize, name: &str, environment: &[(&str, &str)]) {
    for library in wheels::each_libfabric() {
        let folder = new_folder();
        let start = |rank: usize| -> Child {
            let mut command = Command::new(env::current_exe().unwrap());
            command
                .args([
                    "fabric::transport::network::tests::rank_in_a_process",
                    "--exact",
                    "--ignored",
                    "--nocapture",
                ])
                .env("COLLECTIVES_TEST_FOLDER", &folder)
                .env("COLLECTIVES_TEST_RANK", rank.to_string())
                .env("COLLECTIVES_TEST_SIZE", ranks.to_string())
                .env("COLLECTIVES_TEST_PROVIDER", provider)
                .env("COLLECTIVES_TEST_SCENARIO", name)
                .envs(environment.iter().copied())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            if let Some(library) = &library {
                command.env("FABRIC_LIBRARY", library);
            }
            command.spawn().unwrap()
        };
        let children: Vec<Child> = (0..ranks).map(start).collect();
        let pids: Vec<u32> = children.iter().map(Child::id).collect();
        let outputs: Vec<_> = children
            .into_iter()
            .map(|child| thread::spawn(move || child.wait_with_output().unwrap()))
            .collect::<Vec<_>>()
            .into_iter()
            .map(|output| output.join().unwrap())
            .collect();
        let mut report = format!("{name} over {provider} with {library:?} {environment:?}\n");
        for output in &outputs {
            let (out, err) =
                (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
            writeln!(report, "{}\n{out}{err}", output.status).unwrap();
        }
        for (rank, output) in outputs.iter().enumerate() {
            let survives = name != "killed" || rank == 0;
            assert_eq!(output.status.success(), survives, "{report}");
            let done = String::from_utf8_lossy(&output.stdout).contains(&format!("rank {rank} is done"));
            assert_eq!(done, survives, "{report}");
        }
        if name == "killed" {
            shm::remove_leftovers();
        }
        for pid in pids {
            assert_eq!(own_files_in_dev_shm(pid), Vec::<String>::new(), "{report}");
        }
        fs::remove_dir_all(folder).unwrap();
    }
}

const CMA: &[(&str, &str)] = &[("FI_SHM_DISABLE_CMA", "0")];
const COPIES: &[(&str, &str)] = &[("FI_SHM_DISABLE_CMA", "1")];

#[test]
fn processes_exchange_messages_of_all_sizes() {
    in_processes("shm", 2, "exchange", COPIES);
    in_processes("shm", 2, "exchange", CMA);
    in_processes("shm", 4, "exchange", COPIES);
    in_processes("tcp", 2, "exchange", &[]);
    in_processes("tcp", 3, "exchange", &[]);
}

#[test]
fn messages_are_received_in_any_order() {
    in_processes("shm", 2, "unexpected", COPIES);
    in_processes("shm", 2, "unexpected", CMA);
    // Over TCP few messages may come before they are asked for: they hold up the others.
    in_processes("tcp", 2, "out of order", &[]);
}

#[test]
fn a_wrong_length_is_reported_with_the_sender() {
    for provider in ["shm", "tcp"] {
        for name in ["too short", "too short and long", "too long"] {
            in_processes(provider, 2, name, COPIES);
        }
    }
    in_processes("shm", 2, "too long", CMA);
    in_processes("shm", 2, "long for short", COPIES);
}

#[test]
fn a_killed_rank_ends_the_wait_of_the_others() {
    in_processes("shm", 2, "killed", COPIES);
    in_processes("tcp", 2, "killed", &[]);
}

#[test]
fn endpoints_close_with_operations_in_flight() {
    in_processes("shm", 2, "closed in flight", COPIES);
    in_processes("shm", 2, "closed in flight", CMA);
    in_processes("tcp", 2, "closed in flight", &[]);
}
