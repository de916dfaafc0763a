//! Ports for processes that a test starts.

use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Mutex;

/// Sockets that reserve the ports. Closed when the test's process ends, as any process that was told a port
/// may listen on it later.
static RESERVED: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());

/// Returns a port of 127.0.0.1 that no other socket gets by chance. A process that is told its number can
/// listen on it.
///
/// The kernel gives a port that a test has only found to be free to the next socket that asks for any:
/// another test's, or a libfabric endpoint's. Here a socket keeps the port. It does not listen, so Linux lets
/// another socket bind to the same port by its number, if both set `SO_REUSEADDR`, as [`TcpListener`] does.
pub(crate) fn reserve_port() -> u16 {
    // SAFETY: takes no memory.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: the socket is open, and nothing else owns it. It does not listen, but is only asked for its
    // address.
    let socket = unsafe { TcpListener::from_raw_fd(socket) };
    let reuse: libc::c_int = 1;
    let address = libc::sockaddr_in {
        sin_family: libc::AF_INET as libc::sa_family_t,
        sin_port: 0,
        sin_addr: libc::in_addr { s_addr: u32::from(Ipv4Addr::LOCALHOST).to_be() },
        sin_zero: [0; 8],
    };
    // SAFETY: the socket is open, and the value and the address live during the calls, with the lengths of
    // their types.
    let results = unsafe {
        let fd = socket.as_raw_fd();
        let reuse_len = size_of_val(&reuse) as libc::socklen_t;
        let address_len = size_of_val(&address) as libc::socklen_t;
        let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
        [
            libc::setsockopt(fd, level, name, (&raw const reuse).cast(), reuse_len),
            libc::bind(fd, (&raw const address).cast(), address_len),
        ]
    };
    assert_eq!(results, [0, 0], "{}", std::io::Error::last_os_error());
    let port = socket.local_addr().unwrap().port();
    RESERVED.lock().unwrap().push(socket.into());
    port
}
