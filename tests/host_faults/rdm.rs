//! Endpoints for a program's own messages, and a peer that is killed.

use crate::job::{Ended, Process, command, reserve_port, soon, start};
use collectives::fabric::rdm::{Endpoint, Options};
use collectives::world;
use std::time::Duration;
use std::{env, thread};

pub(crate) const TESTS: &[(&str, fn())] = &[
    ("an_endpoint_survives_a_peer_that_is_killed_in_a_message", endpoints_survive),
    ("an_endpoint_is_closed_though_nobody_waited_for_a_peer_that_is_killed", unnoticed_deaths_are_survived),
];

/// Tags: of messages that both receive, of unexpected ones, and of receives whose messages are never sent.
const FIRST: u64 = 1;
const UNASKED: u64 = 2;
const NEVER: u64 = 3;

const UNNOTICED: &str = "unnoticed";

/// More than the kernel keeps of a connection, so that only a part of it has left a process that is killed.
const LONG: usize = 64 << 20;

/// libfabric 2.x frees memory twice when it closes an endpoint of `tcp` after that, and crashes.
fn endpoints_survive() {
    survive("noticed");
}

fn unnoticed_deaths_are_survived() {
    survive(UNNOTICED);
}

fn survive(how: &str) {
    for provider in ["tcp", "shm"] {
        let port = reserve_port();
        let mut job: Vec<Process> = (0..2)
            .map(|rank| {
                let mut command = command(env::current_exe().unwrap().to_str().unwrap());
                command
                    .env("HOST_FAULT", format!("rdm {provider} {how}"))
                    .env("NCCL_BENCH_RANK", rank.to_string())
                    .env("NCCL_BENCH_SIZE", "2")
                    .env("NCCL_BENCH_ADDR", format!("127.0.0.1:{port}"))
                    .env("NCCL_BENCH_TIMEOUT", "30");
                start(command)
            })
            .collect();
        let ended: Vec<Ended> = job.iter_mut().map(|process| process.ended(soon())).collect();
        assert_eq!(ended[1].code, None, "{provider}: {ended:?}");
        assert_eq!(ended[0].code, Some(3), "{provider}: {ended:?}");
        let told = &ended[0].stderr;
        assert!(told.starts_with("error: ") && told.contains("rank 1"), "{provider}: {ended:?}");
    }
}

/// Rank 1 kills itself in the middle of an unexpected message to rank 0, which then reads it, gets an error,
/// closes its endpoint, and prints the error after that. If the failure goes unnoticed, there is nothing to
/// wait for.
pub(crate) fn run(words: &str) {
    let (provider, how) = words.split_once(' ').unwrap();
    let world = world::from_environment(&world::Options::from_environment().unwrap()).unwrap();
    let mut options = Options::new(provider);
    options.source = (provider == "tcp").then(|| "127.0.0.1".to_owned());
    options.world = Some(world.clone());
    let mut endpoint = Endpoint::open(&options).unwrap();
    let addresses = world.all_gather(endpoint.address()).unwrap();
    let peer = endpoint.insert(&addresses[1 - world.rank()]).unwrap();
    endpoint
        .scope(|scope| {
            let _received = scope.receive(peer, FIRST, &mut [])?;
            scope.send(peer, FIRST, &[]).map(drop)
        })
        .unwrap();
    if world.rank() == 1 {
        let data = vec![1; LONG];
        let killed = endpoint.scope(|scope| {
            let _sent = scope.send(peer, UNASKED, &data)?;
            crate::rank::die()
        });
        return killed.unwrap();
    }
    while world.check().is_ok() {
        thread::sleep(Duration::from_millis(1));
    }
    if how == UNNOTICED {
        // Fewer looks than there are before the other ranks are looked at.
        for _ in 0..1000 {
            assert!(!endpoint.progress().unwrap());
        }
        drop(endpoint);
        crate::rank::fail(&world.check().unwrap_err().to_string());
    }
    let mut never = [0];
    let error = endpoint.scope(|scope| scope.receive(peer, NEVER, &mut never).map(drop)).unwrap_err();
    drop(endpoint);
    crate::rank::fail(&error.to_string())
}
