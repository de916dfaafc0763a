//! Errors of communicators over host buffers where the system lacks something.
//!
//! The tests start this program again, most in namespaces of its own, with `HOST_STEPS` set: then it removes
//! some resource of its own and makes a communicator. Where such namespaces are not permitted, the tests
//! count as ignored and report it.

#![allow(clippy::unwrap_used, clippy::panic, reason = "all of this is tests, though not marked as such")]

#[path = "port/mod.rs"]
mod port;

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Output};
use std::sync::Barrier;
use std::{env, fs, io, mem, thread};

use collectives::fabric::{self, Communicator, Options};
use collectives::{ReduceOp, world};
use libtest_mimic::{Arguments, Completion, Trial};

/// The room in `/dev/shm` that every libfabric finds enough for its `shm`, in MiB.
fn enough() -> usize {
    // SAFETY: the function has no preconditions.
    let processors = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    usize::try_from(processors).unwrap() * 16 + 1
}

fn main() {
    if let Ok(steps) = env::var("HOST_STEPS") {
        steps.split(' ').for_each(take);
        return;
    }
    let tests: [(&str, fn()); 8] = [
        ("a_full_dev_shm_is_named", a_full_dev_shm_is_named),
        ("a_dev_shm_too_small_for_the_ranks_is_named", a_dev_shm_too_small_for_the_ranks_is_named),
        ("a_dev_shm_that_suffices_is_used", a_dev_shm_that_suffices_is_used),
        ("loopback_is_enough_on_one_host", loopback_is_enough_on_one_host),
        ("a_loopback_that_is_down_is_named", a_loopback_that_is_down_is_named),
        ("hosts_that_have_loopback_alone_are_named", hosts_that_have_loopback_alone_are_named),
        ("hosts_of_one_network_may_have_loopback_alone", hosts_of_one_network_may_have_loopback_alone),
        ("a_reserved_port_is_given_to_no_other_socket", a_reserved_port_is_given_to_no_other_socket),
    ];
    let mut trials: Vec<Trial> = tests
        .into_iter()
        .map(|(name, test)| {
            Trial::ignorable_test(name, move || {
                if let Some(reason) = no_namespaces() {
                    return Ok(Completion::ignored_with(format!("skipped: no namespaces: {reason}")));
                }
                test();
                Ok(Completion::Completed)
            })
        })
        .collect();
    let everywhere: [(&str, fn()); 2] = [
        ("a_provider_without_a_capability_is_named", a_provider_without_a_capability_is_named),
        ("ranks_that_may_not_read_each_other_copy", ranks_that_may_not_read_each_other_copy),
    ];
    trials.extend(everywhere.map(|(name, test)| {
        Trial::test(name, move || {
            test();
            Ok(())
        })
    }));
    libtest_mimic::run(&Arguments::from_args(), trials).exit();
}

/// This program in network and mount namespaces of its own, with all rights there.
fn in_namespaces(program: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--map-root-user", "--net", "--mount", program]);
    command
}

fn no_namespaces() -> Option<String> {
    match in_namespaces("true").output() {
        Ok(output) if output.status.success() => None,
        Ok(output) => Some(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
        Err(error) => Some(format!("unshare: {error}")),
    }
}

/// Output after these steps; the process must have succeeded.
fn said(mut program: Command, steps: &str) -> Vec<String> {
    let Output { status, stdout, stderr } = program.env("HOST_STEPS", steps).output().unwrap();
    let text = String::from_utf8(stdout).unwrap();
    assert!(status.success(), "{status}: {text}{}", String::from_utf8_lossy(&stderr));
    text.lines().map(str::to_owned).collect()
}

/// Output of each rank in namespaces of its own after these steps; nothing must be left over.
fn ranks(steps: &str) -> Vec<String> {
    let program = in_namespaces(env::current_exe().unwrap().to_str().unwrap());
    let mut lines = said(program, &format!("{steps} left"));
    assert_eq!(lines.pop().as_deref(), Some("left: []"), "{lines:#?}");
    assert!(!lines.is_empty());
    lines
}

// The steps.

fn take(step: &str) {
    let (step, argument) = step.split_once(':').unwrap_or((step, ""));
    match step {
        "dev-shm" => mount(argument),
        "loopback" => start_loopback(),
        "no-attach" => refuse_attaching(),
        "ports" => use_all_ports(),
        "ranks" => {
            let (count, provider) = argument.split_once(':').unwrap();
            meet(count.parse().unwrap(), provider, |_| {});
        }
        // Each rank has a `/dev/shm` of its own, as on a host of its own, and here one more network.
        "hosts" => meet(2, argument, |_| apart(libc::CLONE_NEWNS | libc::CLONE_NEWNET)),
        "containers" => meet(2, argument, |_| apart(libc::CLONE_NEWNS)),
        "left" => {
            let names: Vec<_> =
                fs::read_dir("/dev/shm").unwrap().map(|entry| entry.unwrap().file_name()).collect();
            println!("left: {names:?}");
        }
        other => panic!("no step {other}"),
    }
}

/// Puts an empty `/dev/shm` of this size over the one that is there.
fn mount(size: &str) {
    let options = std::ffi::CString::new(format!("size={size}")).unwrap();
    // SAFETY: all are texts.
    let result = unsafe {
        libc::mount(c"tmpfs".as_ptr(), c"/dev/shm".as_ptr(), c"tmpfs".as_ptr(), 0, options.as_ptr().cast())
    };
    assert_eq!(result, 0, "mount: {}", io::Error::last_os_error());
}

fn start_loopback() {
    // SAFETY: a socket of this function, and a request that is numbers, for which zero is a value, and a
    // short name.
    unsafe {
        let socket = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, 0);
        let mut request: libc::ifreq = mem::zeroed();
        request.ifr_name[0] = b'l' as libc::c_char;
        request.ifr_name[1] = b'o' as libc::c_char;
        request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
        assert_eq!(
            libc::ioctl(socket, libc::SIOCSIFFLAGS, &raw const request),
            0,
            "{}",
            io::Error::last_os_error()
        );
        libc::close(socket);
    }
}

/// Forbids this thread, and those that it starts, to read and write the memory of processes, as a container
/// may.
fn refuse_attaching() {
    let statement = |code: u32, k: u32, yes, no| libc::sock_filter { code: code as u16, jt: yes, jf: no, k };
    let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let mut filter = [
        // The number of the call is the first word that a filter sees.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        statement(is, libc::SYS_process_vm_readv as u32, 2, 0),
        statement(is, libc::SYS_process_vm_writev as u32, 1, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32, 0, 0),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the kernel copies the program, whose statements these are.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0, "{}", io::Error::last_os_error());
        let set = libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program);
        assert_eq!(set, 0, "{}", io::Error::last_os_error());
    }
}

/// Leaves the kernel ten ports to give away, reserves some, has it give away the rest, and listens on the
/// reserved ones.
fn use_all_ports() {
    fs::write("/proc/sys/net/ipv4/ip_local_port_range", "40000 40009").unwrap();
    let reserved: Vec<u16> = (0..4).map(|_| port::reserve_port()).collect();
    let listen = |port: u16| TcpListener::bind((Ipv4Addr::LOCALHOST, port));
    let listeners: Vec<TcpListener> = std::iter::from_fn(|| listen(0).ok()).collect();
    let mut given: Vec<u16> =
        listeners.iter().map(|listener| listener.local_addr().unwrap().port()).collect();
    given.extend(&reserved);
    given.sort_unstable();
    println!("ports: {given:?}");
    let usable: Vec<bool> = reserved.iter().map(|&port| listen(port).is_ok()).collect();
    println!("usable: {usable:?}");
}

fn apart(namespaces: libc::c_int) {
    // SAFETY: changes only what this thread sees.
    assert_eq!(unsafe { libc::unshare(namespaces) }, 0, "unshare: {}", io::Error::last_os_error());
    mount("200m");
    if namespaces & libc::CLONE_NEWNET != 0 {
        start_loopback();
    }
}

/// Makes a communicator of this many ranks, each a thread, reduces a short and a long vector, and prints each
/// rank's result: `ok: ` and the transport, or `error: `.
fn meet(ranks: usize, provider: &str, prepare: impl Fn(usize) + Sync) {
    let mut options = Options::default();
    options.provider = Some(provider.to_owned()).filter(|provider| provider != "any");
    let printed = Barrier::new(ranks);
    thread::scope(|scope| {
        for handle in world::threads(world::single(), ranks).unwrap() {
            let (options, prepare, printed) = (&options, &prepare, &printed);
            scope.spawn(move || {
                let rank = handle.rank();
                prepare(rank);
                let result = reduce(handle, ranks, options);
                match result {
                    Ok(way) => println!("ok: {way}"),
                    Err(error) => println!("error: {error}"),
                }
                // No rank leaves its namespaces before all are done.
                printed.wait();
            });
        }
    });
}

fn reduce(handle: world::Handle, ranks: usize, options: &Options) -> Result<String, fabric::Error> {
    let mut communicator = Communicator::new(handle, options)?;
    for count in [4, 2_000_000] {
        let mut data = vec![1_u32; count];
        communicator.all_reduce_in_place(&mut data, ReduceOp::Sum)?;
        assert!(data.iter().all(|&sum| sum as usize == ranks));
    }
    let way = communicator.describe().to_owned();
    communicator.close()?;
    Ok(way)
}

// The tests.

/// Panics unless every rank has an error, and one of them its own with all of these words.
fn assert_told(ranks: &[String], words: &[&str]) {
    assert!(ranks.iter().all(|said| said.starts_with("error: ")), "{ranks:#?}");
    let own = ranks.iter().any(|said| words.iter().all(|word| said.contains(word)));
    assert!(own, "no rank says {words:?}: {ranks:#?}");
}

/// Panics unless this many ranks have reduced their vectors.
fn assert_ok(ranks: &[String], count: usize) {
    assert!(ranks.len() == count && ranks.iter().all(|said| said.starts_with("ok: ")), "{ranks:#?}");
}

fn a_full_dev_shm_is_named() {
    for provider in ["shm", "any"] {
        let said = ranks(&format!("dev-shm:64k ranks:2:{provider}"));
        let room = "/dev/shm has 0.1 MiB free of 0.1 MiB";
        assert_told(&said, &["provider 'shm'", room, "--shm-size", "or choose tcp"]);
    }
}

fn a_dev_shm_too_small_for_the_ranks_is_named() {
    let (room, count) = (enough(), enough() / 13 + 3);
    let said = ranks(&format!("dev-shm:{room}m ranks:{count}:shm"));
    assert_eq!(said.len(), count);
    assert_told(&said, &[&format!("and the {count} ranks of this host may need "), "--shm-size"]);
}

fn a_dev_shm_that_suffices_is_used() {
    let said = ranks(&format!("dev-shm:{}m ranks:2:shm", enough() + 16));
    assert_ok(&said, 2);
}

fn loopback_is_enough_on_one_host() {
    for provider in ["tcp", "shm", "any"] {
        assert_ok(&ranks(&format!("dev-shm:200m loopback ranks:2:{provider}")), 2);
    }
}

fn a_loopback_that_is_down_is_named() {
    let said = ranks("dev-shm:200m ranks:2:tcp");
    assert_told(&said, &["Network is unreachable", "ip link set lo up"]);
    assert_ok(&ranks("dev-shm:200m ranks:2:shm"), 2);
}

fn hosts_that_have_loopback_alone_are_named() {
    let said = ranks("dev-shm:200m loopback hosts:tcp");
    assert_told(
        &said,
        &["this rank's address fi_sockaddr_in://127.0.0.1:", "only the loopback interface is up or chosen"],
    );
}

fn hosts_of_one_network_may_have_loopback_alone() {
    assert_ok(&ranks("dev-shm:200m loopback containers:any"), 2);
}

fn a_provider_without_a_capability_is_named() {
    let mut options = Options::default();
    options.provider = Some("udp".to_owned());
    let error = Communicator::new(world::single(), &options).err().unwrap().to_string();
    assert!(error.starts_with("provider 'udp': libfabric "), "{error}");
    assert!(error.contains("offers no reliable endpoint for tagged messages with this provider"), "{error}");
    assert!(error.contains("available: ") && error.contains("sockets"), "{error}");
}

/// With a system call filter that forbids it, the ranks report that they copy, and do.
fn ranks_that_may_not_read_each_other_copy() {
    for (steps, way) in
        [("ranks:3:shm", "shm (cross-memory attach)"), ("no-attach ranks:3:shm", "shm (copies)")]
    {
        let mut program = Command::new(env::current_exe().unwrap());
        program.env_remove("FI_SHM_DISABLE_CMA");
        let said = said(program, steps);
        assert_ok(&said, 3);
        assert!(said.iter().all(|said| said.starts_with(&format!("ok: {way}"))), "{said:#?}");
    }
}

/// Ports of jobs that tests start.
fn a_reserved_port_is_given_to_no_other_socket() {
    let program = in_namespaces(env::current_exe().unwrap().to_str().unwrap());
    let lines = said(program, "loopback ports");
    assert_eq!(lines[0], format!("ports: {:?}", (40_000..40_010).collect::<Vec<_>>()));
    assert_eq!(lines[1], "usable: [true, true, true, true]");
}
