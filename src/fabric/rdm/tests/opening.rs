//! Available and unavailable options.

use std::sync::Arc;

use super::*;
use crate::world::{self, World};

#[test]
fn endpoints_of_one_process_do_not_know_each_other_over_shm() {
    let [mut one, other] = [0; 2].map(|_| Endpoint::open(&options("shm")).unwrap());
    for address in [other.address().to_vec(), one.address().to_vec()] {
        let error = one.insert(&address).unwrap_err().to_string();
        assert!(error.contains("two endpoints of one process crash over shm"), "{error}");
    }
}

#[test]
fn a_provider_that_is_not_there_is_told() {
    let error = Endpoint::open(&Options::new("cxi")).err().unwrap().to_string();
    assert!(error.contains("offers no reliable endpoint for messages with this provider here"), "{error}");
}

#[test]
fn what_was_not_asked_for_is_refused() {
    let options = Options { remote_memory: false, ..options("tcp") };
    let [(mut one, to_other), _other] = acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()));
    // SAFETY: not accessed, since all accesses are refused.
    let there = unsafe { RemoteRegion::from_bytes([1; RemoteRegion::BYTES], to_other) };
    let mut errors = vec![one.region(8).err().unwrap()];
    let (mut place, mut plain) = ([0; 8], [0; 8]);
    one.scope(|scope| {
        errors.extend([
            scope.write(&[1], there, 0).unwrap_err(),
            scope.inject_write(&[1], there, 0).unwrap_err(),
            scope.read(&mut place, there, 0).unwrap_err(),
            scope.send(to_other, None, &[1]).unwrap_err(),
            scope.inject(to_other, None, &[1]).unwrap_err(),
            scope.receive(to_other, None, &mut plain).unwrap_err(),
        ]);
        Ok(())
    })
    .unwrap();
    for (error, option) in errors.into_iter().zip(["remote_memory"; 4].into_iter().chain(["untagged"; 3])) {
        let text = error.to_string();
        assert!(text.contains(&format!("was opened without Options::{option}")), "{text}");
    }
}

#[test]
fn room_for_any_number_of_peers_can_be_asked_for() {
    for peers in [0, 1 << 60, usize::MAX] {
        let options = Options { peers, ..options("tcp") };
        let [(mut one, to_other), (mut other, to_one)] =
            acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()));
        thread::scope(|scope| {
            scope.spawn(move || one.farewell(&[to_other], 1).unwrap());
            other.farewell(&[to_one], 1).unwrap();
        });
    }
}

#[test]
fn a_domain_is_chosen_by_its_name() {
    let loopback = Endpoint::open(&options("tcp")).unwrap().domain().to_owned();
    let named = Options { source: None, domain: Some(loopback.clone()), ..options("tcp") };
    assert_eq!(Endpoint::open(&named).unwrap().domain(), loopback);
    let error = Endpoint::open(&Options { domain: Some("nowhere".to_owned()), ..named }).err().unwrap();
    let text = error.to_string();
    assert!(
        text.contains("it has no domain 'nowhere' for this endpoint; available: ")
            && text.contains(&loopback),
        "{text}"
    );
}

#[test]
fn a_local_address_that_is_not_there_is_told() {
    let text = |options: Options| Endpoint::open(&options).err().unwrap().to_string();
    let from = |source: &str| Options { source: Some(source.to_owned()), ..options("tcp") };
    // A name without an address, an address of no host, and a case with something else missing.
    let (nowhere, alien) = ("nowhere.invalid", "203.0.113.9");
    for (source, asked) in [
        (nowhere, from(nowhere)),
        (alien, from(alien)),
        (nowhere, Options { domain: Some("nowhere".to_owned()), ..from(nowhere) }),
        (nowhere, Options { cuda: true, ..from(nowhere) }),
    ] {
        let told = text(asked);
        assert!(told.contains(&format!("it has no local address '{source}' to bind to; choose")), "{told}");
        assert!(told.contains("nccl-bench fabric info -p ") && told.contains(" -t rdm -v"), "{told}");
    }
    // A missing provider lacks more than the address.
    let told = text(Options { provider: "verbs;nothing".to_owned(), ..from(nowhere) });
    assert!(told.contains("see `nccl-bench fabric info -p 'verbs;nothing' -t rdm`"), "{told}");
}

/// A program's own world with panicking checks.
struct Panicking;

impl World for Panicking {
    fn position(&self) -> world::Position {
        world::single().position()
    }

    fn describe(&self) -> String {
        String::new()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        Ok(vec![mine.to_vec()])
    }

    fn check(&self) -> Result<(), world::Error> {
        panic!("a panic of the program's world")
    }

    fn abort(&self, code: i32, _: &str) -> ! {
        std::process::exit(code)
    }
}

#[test]
fn a_world_that_panics_ends_a_wait_and_no_drop() {
    let options = Options { world: Some(Arc::new(Panicking)), ..options("tcp") };
    let [(mut one, to_other), _other] = acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()));
    let mut place = [0; 8];
    let error = one.scope(|scope| scope.receive(to_other, 1, &mut place).map(drop)).unwrap_err();
    assert!(matches!(&error, Error::World(world::Error::RankFailed { rank: 0, .. })), "{error}");
    assert!(one.peer_lost, "the endpoint may stay open");
}
