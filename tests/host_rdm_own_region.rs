//! Demonstration: a description of a process's OWN region, from safe code alone, writes memory of the peer's process.

#![cfg(feature = "fabric")]
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test may fail loudly")]

use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, ptr, thread};

use collectives::fabric::rdm::{Endpoint, Options, Peer};

const SECOND: &str = "COLLECTIVES_TEST_SECOND_SIDE";
const LEN: usize = 1 << 20;

fn endpoint(mut line: &UnixStream) -> (Endpoint, Peer) {
    let mut options = Options::new("shm");
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

/// Safe code: it never uses `RemoteRegion::from_bytes`.
fn first(mut line: &UnixStream) {
    let (mut endpoint, peer) = endpoint(line);
    let region = endpoint.region(LEN).unwrap();
    line.write_all(&(region.bytes().as_ptr() as usize).to_le_bytes()).unwrap();
    let mut ready = [0];
    line.read_exact(&mut ready).unwrap();
    let data = vec![7_u8; LEN];
    let written = endpoint.scope(|scope| {
        let written = scope.write(peer, &data, region.remote(), 0)?;
        scope.wait(written)
    });
    println!("first: {written:?}");
    line.write_all(&[1]).unwrap();
    thread::sleep(Duration::from_millis(300));
}

/// Has other memory, which is no region, at the address of the other process's region.
fn second(mut line: &UnixStream) {
    let (mut endpoint, _peer) = endpoint(line);
    let mut address = [0; 8];
    line.read_exact(&mut address).unwrap();
    let address = ptr::with_exposed_provenance_mut::<libc::c_void>(usize::from_le_bytes(address));
    // SAFETY: a new mapping, for the determinism of the test: without it, whatever happens to be there is overwritten.
    let memory = unsafe {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        libc::mmap(address, LEN, access, flags | libc::MAP_FIXED_NOREPLACE, -1, 0)
    };
    assert_eq!(memory, address);
    line.write_all(&[1]).unwrap();
    line.set_nonblocking(true).unwrap();
    let mut end = [0];
    while line.read(&mut end).map_or(true, |count| count == 0) {
        let _ = endpoint.progress();
    }
    // SAFETY: mapped above.
    let overwritten = unsafe { std::slice::from_raw_parts(memory.cast::<u8>(), LEN) }.iter().filter(|&&byte| byte != 0).count();
    assert_eq!(overwritten, 0, "bytes of memory that is no region were overwritten");
}

#[test]
fn a_description_of_an_own_region_does_not_write_memory_of_another_process() {
    if env::var_os(SECOND).is_some() {
        return second(&UnixStream::from(io::stdin().as_fd().try_clone_to_owned().unwrap()));
    }
    let (here, there) = UnixStream::pair().unwrap();
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--nocapture", "a_description"]).env(SECOND, "1").stdin(Stdio::from(OwnedFd::from(there)));
    let mut child = command.spawn().unwrap();
    first(&here);
    assert!(child.wait().unwrap().success());
}
