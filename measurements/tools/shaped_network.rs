//! Simulates several hosts on this machine, connected by a network with a given rate and delay, and runs a
//! command on each.
//!
//! ```text
//! cargo build --release --example shaped_network
//! target/release/examples/shaped_network --hosts 4 --gbits 25 --delay 50 -- \
//!     sh -c 'nccl-bench ... $SHAPED_HOST ... $SHAPED_FIRST'
//! ```
//!
//! A host is a set of Linux namespaces: network, mount (with a `/dev/shm` of its own) and UTS (the host
//! name). Its only network device is a TUN device, and this program is the switch between these devices: it
//! sends each packet at the rate of the sender's link, delays it, and delivers it at the rate of the
//! receiver's link. `netem` can delay packets too, but many kernels are built without it. Packets are as
//! large as the kernel's segmentation offload makes them (up to 64 KiB), which allows tens of Gbit/s. Two
//! threads per host busy-wait, so the machine needs processors for them besides those of the ranks; `--sleep`
//! avoids that.
//!
//! Requires root and `ip` (iproute2). The command finds `SHAPED_HOST` (0, 1, ...), `SHAPED_HOSTS` and
//! `SHAPED_FIRST` (address of the first host) in its environment.

use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use clap::Parser;

/// Runs a command on several simulated hosts, connected by a network with a rate and a delay.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Number of hosts.
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(2..=200))]
    hosts: u8,
    /// Rate of each host's link in either direction, in Gbit/s.
    #[arg(long, default_value_t = 25.0, value_parser = positive)]
    gbits: f64,
    /// Latency between two hosts, in microseconds.
    #[arg(long, default_value_t = 50.0, value_parser = positive)]
    delay: f64,
    /// Maximum packet size in bytes, without the link header.
    #[arg(long, default_value_t = 9000, value_parser = clap::value_parser!(u16).range(576..))]
    mtu: u16,
    /// Sleep instead of busy-waiting. Adds tens of microseconds: for delays of milliseconds, or few
    /// processors.
    #[arg(long)]
    sleep: bool,
    /// Command that runs on every host.
    #[arg(last = true, required = true)]
    command: Vec<String>,
}

fn positive(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|error: std::num::ParseFloatError| error.to_string())?;
    if number.is_finite() && number > 0.0 { Ok(number) } else { Err("must be above 0".to_owned()) }
}

/// Size of the virtio header (checksum and segmentation offload) before each packet.
const OFFLOAD_HEADER: usize = 10;
/// Size of the longest packet with its header.
const LONGEST: usize = OFFLOAD_HEADER + (64 << 10);

/// A packet in flight.
struct Packet {
    bytes: Vec<u8>,
    /// Arrival time of its last byte at the receiver's link.
    arrives: Instant,
}

/// One direction of a link, which transmits one packet at a time.
struct Link {
    nanoseconds_per_byte: f64,
    free: Instant,
}

impl Link {
    fn new(gbits: f64) -> Self {
        Self { nanoseconds_per_byte: 8.0 / gbits, free: Instant::now() }
    }

    /// Reserves the link for a packet that is ready at `start`. Returns the end of its transmission.
    fn take(&mut self, start: Instant, bytes: usize) -> Instant {
        let busy = Duration::from_nanos((bytes as f64 * self.nanoseconds_per_byte) as u64);
        self.free = self.free.max(start) + busy;
        self.free
    }
}

fn address(host: u8) -> [u8; 4] {
    [10, 77, 0, host + 1]
}

fn check(result: libc::c_int, what: &str) -> io::Result<()> {
    if result == -1 {
        let error = io::Error::last_os_error();
        return Err(io::Error::new(error.kind(), format!("{what}: {error}")));
    }
    Ok(())
}

/// Moves this thread into new namespaces and returns their TUN device.
fn enter(host: u8, mtu: u16) -> io::Result<File> {
    let name = format!("host{host}");
    // SAFETY: plain system calls with constant, terminated strings; the thread's namespaces concern no other
    // thread.
    unsafe {
        let namespaces = libc::CLONE_NEWNET | libc::CLONE_NEWNS | libc::CLONE_NEWUTS;
        check(libc::unshare(namespaces), "namespaces (are you root?)")?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        let nothing = std::ptr::null();
        check(
            libc::mount(nothing, c"/".as_ptr(), nothing, private, nothing.cast()),
            "making mounts private",
        )?;
        let shm = c"/dev/shm".as_ptr();
        check(
            libc::mount(c"tmpfs".as_ptr(), shm, c"tmpfs".as_ptr(), 0, nothing.cast()),
            "mounting /dev/shm",
        )?;
        check(libc::sethostname(name.as_ptr().cast(), name.len()), "sethostname")?;
    }
    let tun = File::options()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open("/dev/net/tun")
        .map_err(|error| io::Error::new(error.kind(), format!("/dev/net/tun: {error}")))?;
    // SAFETY: ioctls with requests as the kernel defines them for this file; the request outlives them.
    unsafe {
        let mut request: libc::ifreq = std::mem::zeroed();
        request.ifr_name[0] = b'e' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_TUN | libc::IFF_NO_PI | libc::IFF_VNET_HDR) as libc::c_short;
        check(libc::ioctl(tun.as_raw_fd(), libc::TUNSETIFF, &raw mut request), "TUNSETIFF")?;
        let offload = libc::c_ulong::from(libc::TUN_F_CSUM | libc::TUN_F_TSO4);
        check(libc::ioctl(tun.as_raw_fd(), libc::TUNSETOFFLOAD, offload), "TUNSETOFFLOAD")?;
    }
    let ip = |arguments: &str| {
        let status = Command::new("ip").args(arguments.split(' ')).status()?;
        if status.success() { Ok(()) } else { Err(io::Error::other(format!("ip {arguments}: {status}"))) }
    };
    ip(&format!("address add {}/24 dev e", Ipv4Addr::from(address(host))))?;
    ip(&format!("link set e mtu {mtu} up"))?;
    ip("link set lo up")?;
    Ok(tun)
}

/// Forwards the packets that a host sends, at the rate of its link and with the delay.
fn forward(
    mut tun: &File,
    ports: &[Sender<Packet>],
    arguments: &Arguments,
    over: &AtomicBool,
) -> io::Result<()> {
    let (mut link, delay) =
        (Link::new(arguments.gbits), Duration::from_nanos((arguments.delay * 1e3) as u64));
    let mut buffer = vec![0; LONGEST];
    while !over.load(Ordering::Relaxed) {
        let len = match tun.read(&mut buffer) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if arguments.sleep {
                    let mut poll = libc::pollfd { fd: tun.as_raw_fd(), events: libc::POLLIN, revents: 0 };
                    // SAFETY: one entry, which outlives the call.
                    unsafe { libc::poll(&raw mut poll, 1, 100) };
                }
                std::hint::spin_loop();
                continue;
            }
            Err(error) => return Err(error),
        };
        // IPv4 only: the destination is in bytes 16 to 19.
        let Some(packet) = buffer
            .get(OFFLOAD_HEADER..len)
            .filter(|packet| packet.first().is_some_and(|byte| byte >> 4 == 4))
        else {
            continue;
        };
        let to = packet.get(16..20).filter(|to| to.starts_with(&address(0)[..3]));
        let port = to.and_then(|to| ports.get(usize::from(to[3]).checked_sub(1)?));
        let arrives = link.take(Instant::now(), packet.len()) + delay;
        if let Some(port) = port {
            // A host that has finished accepts no packets.
            let _ = port.send(Packet { bytes: buffer[..len].to_vec(), arrives });
        }
    }
    Ok(())
}

/// Delivers packets to a host when they are due.
fn deliver(
    mut tun: &File,
    packets: Receiver<Packet>,
    arguments: &Arguments,
    over: &AtomicBool,
) -> io::Result<()> {
    let mut link = Link::new(arguments.gbits);
    while !over.load(Ordering::Relaxed) {
        let packet = if arguments.sleep {
            packets.recv_timeout(Duration::from_millis(100)).ok()
        } else {
            packets.try_recv().ok()
        };
        let Some(packet) = packet else {
            std::hint::spin_loop();
            continue;
        };
        // `arrives` is the last byte's: reception began one transmission time earlier.
        let busy = Duration::from_nanos((packet.bytes.len() as f64 * link.nanoseconds_per_byte) as u64);
        let due = link.take(packet.arrives - busy, packet.bytes.len());
        if arguments.sleep {
            thread::sleep(due.saturating_duration_since(Instant::now()));
        }
        while Instant::now() < due && !over.load(Ordering::Relaxed) {
            std::hint::spin_loop();
        }
        match tun.write(&packet.bytes) {
            Ok(_) => {}
            // The kernel is out of buffers: the packet is dropped, as in a switch.
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::OutOfMemory) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Runs one host: its namespaces, both directions of its link, and the command. Returns true if the command
/// succeeded.
fn host(
    number: u8,
    arguments: &Arguments,
    ports: &[Sender<Packet>],
    packets: Receiver<Packet>,
    ready: &Barrier,
    running: &Barrier,
) -> io::Result<bool> {
    let entered = enter(number, arguments.mtu);
    // Also after a failure, since the other hosts wait here too.
    ready.wait();
    let entered = entered.inspect_err(|_| {
        running.wait();
    })?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let forward = scope.spawn(|| forward(&entered, ports, arguments, &over));
        let (tun, stop) = (&entered, &over);
        let deliver = scope.spawn(move || deliver(tun, packets, arguments, stop));
        let status = Command::new(&arguments.command[0])
            .args(&arguments.command[1..])
            .env("SHAPED_HOST", number.to_string())
            .env("SHAPED_HOSTS", arguments.hosts.to_string())
            .env("SHAPED_FIRST", Ipv4Addr::from(address(0)).to_string())
            .status();
        // Other hosts may still exchange packets with this one.
        running.wait();
        over.store(true, Ordering::Relaxed);
        for thread in [forward, deliver] {
            thread.join().map_err(|_| io::Error::other("a thread of the switch panicked"))??;
        }
        let status = status
            .map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", arguments.command[0])))?;
        Ok(status.success())
    })
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let hosts = usize::from(arguments.hosts);
    let (ready, running) = (Arc::new(Barrier::new(hosts)), Arc::new(Barrier::new(hosts)));
    let (ports, queues): (Vec<_>, Vec<_>) = (0..hosts).map(|_| mpsc::channel()).unzip();
    let threads: Vec<_> = queues
        .into_iter()
        .zip(0..arguments.hosts)
        .map(|(packets, number)| {
            let (ports, arguments) = (ports.clone(), arguments.clone());
            let (ready, running) = (Arc::clone(&ready), Arc::clone(&running));
            thread::spawn(move || host(number, &arguments, &ports, packets, &ready, &running))
        })
        .collect();
    let mut code = ExitCode::SUCCESS;
    for (number, thread) in threads.into_iter().enumerate() {
        match thread.join() {
            Ok(Ok(true)) => {}
            Ok(Ok(false)) => code = ExitCode::FAILURE,
            Ok(Err(error)) => {
                eprintln!("shaped_network: host {number}: {error}");
                code = ExitCode::FAILURE;
            }
            Err(_) => code = ExitCode::FAILURE,
        }
    }
    code
}
