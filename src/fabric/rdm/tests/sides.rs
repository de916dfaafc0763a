//! The two sides of a test: in threads, or over `shm` in processes.

use super::*;

/// Set in a second run of a test, for its second side.
pub(super) const SECOND: &str = "COLLECTIVES_TEST_SECOND_SIDE";

pub(super) fn options(provider: &str) -> Options {
    Options {
        source: Some("127.0.0.1".to_owned()).filter(|_| provider == "tcp"),
        remote_memory: true,
        timeout: Some(Duration::from_secs(20)),
        ..Options::new(provider)
    }
}

/// Two endpoints that know each other, each with its peer.
pub(super) fn pair() -> [(Endpoint, Peer); 2] {
    let options = options("tcp");
    acquainted([0; 2].map(|_| Endpoint::open(&options).unwrap()))
}

pub(super) fn acquainted([mut one, mut other]: [Endpoint; 2]) -> [(Endpoint, Peer); 2] {
    let (to_one, to_other) = (one.address().to_vec(), other.address().to_vec());
    let (other_peer, one_peer) = (one.insert(&to_other).unwrap(), other.insert(&to_one).unwrap());
    [(one, other_peer), (other, one_peer)]
}

/// Returns the providers for [`sides`]. Only `shm` has a second side.
pub(super) fn providers() -> Vec<&'static str> {
    if env::var_os(SECOND).is_some() { vec!["shm"] } else { vec!["tcp", "shm"] }
}

/// Both sides of a test, with a line between them: in threads, or over `shm` in processes; the second process
/// runs the same test up to here.
pub(super) fn sides<T: Fn()>(
    _test: T,
    provider: &str,
    one: impl FnOnce(&UnixStream),
    other: impl FnOnce(&UnixStream) + Send,
) {
    if env::var_os(SECOND).is_some() {
        return other(&UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap()));
    }
    let (here, there) = UnixStream::pair().unwrap();
    if provider != "shm" {
        return thread::scope(|scope| {
            scope.spawn(move || other(&there));
            one(&here);
        });
    }
    let test = any::type_name::<T>().split_once("::").unwrap().1;
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test]).env(SECOND, "1").stdin(Stdio::from(OwnedFd::from(there)));
    let second = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(command);
    let first = catch_unwind(AssertUnwindSafe(|| one(&here)));
    drop(here);
    let second = second.wait_with_output().unwrap();
    let told = [&second.stdout, &second.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(second.status.success() && first.is_ok(), "{}:\n{}\n{}", second.status, told[0], told[1]);
}

/// [`sides`], each with an endpoint that knows the other's.
pub(super) fn play<T: Fn()>(
    test: T,
    options: &Options,
    one: impl FnOnce(Endpoint, Peer, &UnixStream),
    other: impl FnOnce(Endpoint, Peer, &UnixStream) + Send,
) {
    let met = |line: &UnixStream| meet(Endpoint::open(options).unwrap(), line);
    sides(
        test,
        &options.provider,
        |line| {
            let (endpoint, peer) = met(line);
            one(endpoint, peer, line);
        },
        |line| {
            let (endpoint, peer) = met(line);
            other(endpoint, peer, line);
        },
    );
}

/// Sends the endpoint's address to the other side and receives the other's.
pub(super) fn meet(mut endpoint: Endpoint, mut line: &UnixStream) -> (Endpoint, Peer) {
    let mut length = [0];
    line.write_all(&[endpoint.address().len() as u8]).unwrap();
    line.write_all(endpoint.address()).unwrap();
    line.read_exact(&mut length).unwrap();
    let mut address = vec![0; length[0].into()];
    line.read_exact(&mut address).unwrap();
    let peer = endpoint.insert(&address).unwrap();
    (endpoint, peer)
}

/// Sends the description of a region to the other side.
pub(super) fn describe(endpoint: &mut Endpoint, peer: Peer, description: [u8; RemoteRegion::BYTES]) {
    endpoint.scope(|scope| scope.send(peer, DESCRIPTION, &description).map(drop)).unwrap();
}

pub(super) fn described(endpoint: &mut Endpoint, peer: Peer) -> RemoteRegion {
    let mut description = [0; RemoteRegion::BYTES];
    endpoint.scope(|scope| scope.receive(peer, DESCRIPTION, &mut description).map(drop)).unwrap();
    // SAFETY: the peer has sent it for its region.
    unsafe { RemoteRegion::from_bytes(description, peer) }
}

/// The tag of messages with a description.
pub(super) const DESCRIPTION: u64 = 100;

pub(super) fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|index| (index * 7 + seed) as u8).collect()
}

/// Runs the two sides of a pair, each in a thread of its own.
pub(super) fn both<A: Send, B: Send>(
    one: impl FnOnce(&mut Endpoint, Peer) -> A + Send,
    other: impl FnOnce(&mut Endpoint, Peer) -> B + Send,
) -> (A, B) {
    let [(mut first, to_other), (mut second, to_one)] = pair();
    thread::scope(|scope| {
        let first = scope.spawn(move || one(&mut first, to_other));
        let second = other(&mut second, to_one);
        (first.join().unwrap(), second)
    })
}
