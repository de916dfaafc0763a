//! What operations of `fabric::rdm` allocate: nothing, when there have been as many before.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

mod counting;

use std::sync::atomic::Ordering;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use collectives::fabric::rdm::{Endpoint, Options, Peer, RemoteRegion, shared};
use counting::allocations;

/// Messages of a round, as many as are in flight at a time.
const MESSAGES: usize = 8;

/// Two endpoints of this process that know each other: over `shm`, too, where libfabric survives that.
fn pair(provider: &str) -> Option<[(Endpoint, Peer); 2]> {
    let mut options = Options::new(provider);
    options.source = (provider == "tcp").then(|| "127.0.0.1".to_owned());
    options.untagged = true;
    options.remote_memory = true;
    options.timeout = Some(Duration::from_secs(20));
    let [mut one, mut other] = [0; 2].map(|_| Endpoint::open(&options).unwrap());
    let address = other.address().to_vec();
    let to_other = match one.insert(&address) {
        Ok(peer) => peer,
        Err(error) => {
            assert!(provider == "shm" && error.to_string().contains("libfabric 2.5 and later"), "{error}");
            return None;
        }
    };
    let to_one = other.insert(one.address()).unwrap();
    Some([(one, to_other), (other, to_one)])
}

/// Each kind of operation, with all of its messages in flight: both sides send and receive, and the first one reads and
/// writes the other's memory.
fn round(endpoint: &mut Endpoint, peer: Peer, remote: Option<RemoteRegion>, buffers: &mut Buffers) {
    let Buffers { long, short, received } = buffers;
    let longest = short.len();
    endpoint
        .scope(|scope| {
            let mut places = received.chunks_exact_mut(long.len());
            for number in 0..MESSAGES as u64 {
                let [tagged, injected, read] = [0; 3].map(|_| places.next().unwrap());
                let _received = scope.receive(peer, number, tagged)?;
                let _received = scope.receive(peer, number + 100, &mut injected[..longest])?;
                let plain = shared(places.next().unwrap());
                let _received = scope.receive_untagged(plain)?;
                if let Some(there) = remote {
                    let _read = scope.read(peer, read, there, 0)?;
                }
            }
            for number in 0..MESSAGES as u64 {
                let _sent = scope.send(peer, number, long)?;
                scope.inject(peer, number + 100, short)?;
                if number % 2 == 0 {
                    let _sent = scope.send_untagged(peer, long)?;
                } else {
                    scope.inject_untagged(peer, short)?;
                }
                if let Some(there) = remote {
                    let _written = scope.write(peer, long, there, 0)?;
                    scope.inject_write(peer, short, there, 0)?;
                }
            }
            Ok(())
        })
        .unwrap();
    endpoint.farewell(&[peer], 1000).unwrap();
}

struct Buffers {
    long: Vec<u8>,
    short: Vec<u8>,
    received: Vec<u8>,
}

impl Buffers {
    fn new(longest_inject: usize) -> Self {
        let long = vec![7; 20_000];
        let short = vec![7; longest_inject.min(32)];
        let received = vec![0; 4 * MESSAGES * long.len()];
        Self { long, short, received }
    }
}

/// How many allocations there were in each of the rounds after the first.
fn rounds(endpoint: &mut Endpoint, peer: Peer, remote: Option<RemoteRegion>) -> Vec<u64> {
    let mut buffers = Buffers::new(endpoint.longest_inject());
    let counts = (0..6).map(|_| {
        let before = allocations();
        round(endpoint, peer, remote, &mut buffers);
        allocations() - before
    });
    let counts = counts.collect();
    // The first place of each four is that of a long message.
    let arrived = buffers.received.chunks_exact(20_000).step_by(4).all(|place| place == buffers.long);
    assert!(arrived);
    counts
}

#[test]
fn operations_of_endpoints_allocate_nothing_after_the_first() {
    let mut carried = 0;
    for provider in ["tcp", "shm"] {
        let Some([(mut one, to_other), (mut other, to_one)]) = pair(provider) else { continue };
        carried += 1;
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let first = scope.spawn(move || {
                let remote = RemoteRegion::from_bytes(told.recv().unwrap());
                rounds(&mut one, to_other, Some(remote))
            });
            let region = other.region(20_000).unwrap();
            tell.send(region.remote().to_bytes()).unwrap();
            let second = rounds(&mut other, to_one, None);
            let first = first.join().unwrap();
            // The first round makes the operations' places.
            assert!(first[0] > 0 && second[0] > 0, "{provider}: the allocations are not counted");
            assert_eq!([&first[1..], &second[1..]], [[0; 5]; 2], "{provider}");
            assert!(region.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 7), "{provider}");
        });
    }
    assert!(carried > 0);
}
