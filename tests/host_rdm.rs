//! Allocations of operations of `fabric::rdm`: none, after as many operations before.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

mod counting;

use std::env;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use collectives::fabric::rdm::{Endpoint, Options, Peer, RemoteRegion};
use counting::allocations;

/// Messages of a round, as many as are in flight at a time.
const MESSAGES: usize = 8;

/// Set where this program is run once more, for the second side.
const SECOND: &str = "COLLECTIVES_TEST_SECOND_SIDE";

/// An endpoint and its peer.
fn endpoint(provider: &str, mut line: &UnixStream) -> (Endpoint, Peer) {
    let mut options = Options::new(provider);
    options.source = (provider == "tcp").then(|| "127.0.0.1".to_owned());
    options.untagged = true;
    options.remote_memory = true;
    options.timeout = Some(Duration::from_secs(20));
    let mut endpoint = Endpoint::open(&options).unwrap();
    line.write_all(&[endpoint.address().len() as u8]).unwrap();
    line.write_all(endpoint.address()).unwrap();
    let mut length = [0];
    line.read_exact(&mut length).unwrap();
    let mut address = vec![0; length[0].into()];
    line.read_exact(&mut address).unwrap();
    let peer = endpoint.insert(&address).unwrap();
    (endpoint, peer)
}

/// Each kind of operation, with all of its messages in flight: both sides send and receive, and the first one
/// reads and writes the other's memory.
fn round(endpoint: &mut Endpoint, peer: Peer, remote: Option<RemoteRegion>, buffers: &mut Buffers) {
    let Buffers { long, short, received } = buffers;
    let (long, short) = (&*long, &*short);
    let longest = short.len();
    endpoint
        .scope(|scope| {
            let mut places = received.chunks_exact_mut(long.len());
            for number in 0..MESSAGES as u64 {
                let [tagged, injected, read] = [0; 3].map(|_| places.next().unwrap());
                let _received = scope.receive(peer, number, tagged)?;
                let _received = scope.receive(peer, number + 100, &mut injected[..longest])?;
                let _received = scope.receive(peer, None, places.next().unwrap())?;
                if let Some(there) = remote {
                    let _read = scope.read(read, there, 0)?;
                }
            }
            for number in 0..MESSAGES as u64 {
                let _sent = scope.send(peer, number, long)?;
                scope.inject(peer, number + 100, short)?;
                if number % 2 == 0 {
                    let _sent = scope.send(peer, None, long)?;
                } else {
                    scope.inject(peer, None, short)?;
                }
                if let Some(there) = remote {
                    let _written = scope.write(long, there, 0)?;
                    scope.inject_write(short, there, 0)?;
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

/// Number of allocations in each of the rounds after the first.
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

/// The side that reads and writes the other's memory.
fn first(provider: &str, mut line: &UnixStream) {
    let (mut one, to_other) = endpoint(provider, line);
    let mut description = [0; RemoteRegion::BYTES];
    line.read_exact(&mut description).unwrap();
    // SAFETY: the other side has sent it for its region.
    let remote = unsafe { RemoteRegion::from_bytes(description, to_other) };
    let counts = rounds(&mut one, to_other, Some(remote));
    told(provider, &counts);
}

fn second(provider: &str, mut line: &UnixStream) {
    let (mut other, to_one) = endpoint(provider, line);
    let region = other.region(20_000).unwrap();
    line.write_all(&region.description()).unwrap();
    let counts = rounds(&mut other, to_one, None);
    told(provider, &counts);
    assert!(region.bytes().iter().all(|byte| byte.load(Ordering::Relaxed) == 7), "{provider}");
}

/// The first round makes the operations' places.
fn told(provider: &str, counts: &[u64]) {
    assert!(counts[0] > 0, "{provider}: the allocations are not counted");
    assert_eq!(counts[1..], [0; 5], "{provider}");
}

#[test]
fn operations_of_endpoints_allocate_nothing_after_the_first() {
    if env::var_os(SECOND).is_some() {
        return second("shm", &UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap()));
    }
    let (here, there) = UnixStream::pair().unwrap();
    thread::scope(|scope| {
        scope.spawn(move || second("tcp", &there));
        first("tcp", &here);
    });
    // Over shm endpoints of one process do not know each other.
    let (here, there) = UnixStream::pair().unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(SECOND, "1").stdin(Stdio::from(OwnedFd::from(there)));
    let other = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    first("shm", &here);
    let other = other.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&other.stdout);
    assert!(other.status.success(), "{}: {told}{}", other.status, String::from_utf8_lossy(&other.stderr));
}
