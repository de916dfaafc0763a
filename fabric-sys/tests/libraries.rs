//! Loads the machine's libfabric and every one unpacked by `cargo xtask wheels libfabric`, each in a process
//! of its own, and sends tagged messages between two endpoints over TCP and over shared memory.

#![allow(clippy::expect_used, clippy::panic, reason = "a test may fail loudly")]

use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;
use std::process::{Command, Output};
use std::{env, ptr};

use fabric_sys::*;

#[path = "../../tests/wheels/mod.rs"]
mod wheels;

/// Runs one of the ignored tests below in a process of its own.
fn run(test: &str, library: Option<&Path>) -> Output {
    let mut command = Command::new(env::current_exe().expect("this test has a path"));
    command.args([test, "--exact", "--ignored", "--nocapture"]).env_remove("FABRIC_LIBRARY");
    if let Some(library) = library {
        command.env("FABRIC_LIBRARY", library);
    }
    command.output().expect("this test can be started again")
}

fn assert_success(output: &Output, what: &str) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{what}: {text}{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn the_installed_libfabric_sends_messages() {
    let text = assert_success(&run("in_a_process::loopback", None), "apt-get install libfabric1, then");
    assert!(text.contains("sent over shm"), "{text}");
}

#[test]
fn a_libfabric_2_sends_messages() {
    for library in wheels::libfabrics() {
        let text =
            assert_success(&run("in_a_process::loopback", Some(&library)), &library.display().to_string());
        assert!(text.contains(&format!("loaded from {}", library.display())), "{text}");
        assert!(text.contains("sent over tcp") && text.contains("sent over shm"), "{text}");
    }
}

/// PSM's libraries would replace them: libfabric is linked to them in Debian.
#[test]
fn signal_handlers_of_the_program_stay() {
    assert_success(&run("in_a_process::signal_handlers", None), "signal_handlers");
}

#[test]
fn a_missing_library_is_reported_with_every_place() {
    let output = run("in_a_process::load_error", Some(Path::new("/nonexistent/libfabric.so.1")));
    let text = assert_success(&output, "load_error");
    assert!(text.contains("/nonexistent/libfabric.so.1 (from FABRIC_LIBRARY): "), "{text}");
    assert!(text.contains("No such file"), "{text}");
    assert!(text.contains("apt-get install libfabric1"), "{text}");

    let libc = run("in_a_process::load_error", Some(Path::new("libc.so.6")));
    let text = assert_success(&libc, "load_error");
    assert!(text.contains("has no symbol fi_version: it is not libfabric"), "{text}");
}

/// Programs started by the tests above.
mod in_a_process {
    use super::*;

    #[test]
    #[ignore = "started by the other tests"]
    fn load_error() {
        let error = Fabric::load().expect_err("FABRIC_LIBRARY names no libfabric");
        assert_eq!(error.attempts().len(), 1);
        println!("{error}");
    }

    #[test]
    #[ignore = "started by the other tests"]
    fn signal_handlers() {
        extern "C" fn own(_: c_int) {}
        let signals = [libc::SIGINT, libc::SIGTERM, libc::SIGABRT, libc::SIGSEGV, libc::SIGBUS, libc::SIGILL];
        let reactions = || {
            signals.map(|signal| {
                // SAFETY: a structure of numbers: zeros are valid; the call writes to it, and changes
                // nothing.
                unsafe {
                    let mut action: libc::sigaction = std::mem::zeroed();
                    assert_eq!(libc::sigaction(signal, ptr::null(), &raw mut action), 0);
                    action.sa_sigaction
                }
            })
        };
        let own = own as *const () as libc::sighandler_t;
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGINT, own) };
        let before = reactions();
        assert_eq!((before[0], before[1]), (own, libc::SIG_DFL));
        Fabric::load().expect("apt-get install libfabric1");
        assert_eq!(reactions(), before);
    }

    #[test]
    #[ignore = "started by the other tests"]
    fn loopback() {
        let fabric = Fabric::load().expect("a libfabric");
        println!("libfabric {} loaded from {}", fabric.version(), fabric.path().display());
        assert!(fabric.api_version() <= KNOWN_VERSION && fabric.api_version() <= fabric.version());
        assert_eq!(fabric.fi_strerror(-FI_ENODATA), fabric.fi_strerror(FI_ENODATA));
        let tcp = if fabric.version() < Version::new(1, 18) { "net" } else { "tcp" };
        for provider in [tcp, "shm"] {
            // SAFETY: one thread, objects closed in order, buffers outlive the operations: see there.
            unsafe { exchange(fabric, provider) };
            println!("sent over {provider}");
        }
    }
}

fn check(fabric: &Fabric, what: &str, result: c_int) {
    assert!(result >= 0, "{what}: {}", fabric.fi_strerror(result));
}

struct Endpoint {
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    av: *mut fid_av,
    cq: *mut fid_cq,
    ep: *mut fid_ep,
}

/// Sends a short and a long message from one endpoint to another and compares the received data.
unsafe fn exchange(fabric: &Fabric, provider: &str) {
    // SAFETY: endpoints live until closed below; addresses come from the library.
    unsafe {
        let (sender, receiver) = (open(fabric, provider), open(fabric, provider));
        let mut name = [0_u8; 256];
        let mut length = name.len();
        check(
            fabric,
            "fi_getname",
            fi_getname(receiver.ep.cast(), name.as_mut_ptr().cast(), &raw mut length),
        );
        let mut peer = FI_ADDR_UNSPEC;
        let inserted = fi_av_insert(sender.av, name.as_ptr().cast(), 1, &raw mut peer, 0, ptr::null_mut());
        assert_eq!(inserted, 1, "fi_av_insert");

        for (tag, length) in [(7_u64, 8_usize), (8, 1 << 20)] {
            let message: Vec<u8> = (0..length).map(|index| (index * 7 + 3) as u8).collect();
            let mut arrived = vec![0_u8; length];
            let mut contexts = [fi_context2 { internal: [ptr::null_mut(); 8] }; 2];
            let [receive, send] = contexts.each_mut().map(|context| ptr::from_mut(context).cast::<c_void>());
            let posted = fi_trecv(
                receiver.ep,
                arrived.as_mut_ptr().cast(),
                length,
                ptr::null_mut(),
                FI_ADDR_UNSPEC,
                tag,
                0,
                receive,
            );
            assert_eq!(posted, 0);
            while fi_tsend(sender.ep, message.as_ptr().cast(), length, ptr::null_mut(), peer, tag, send)
                == -(FI_EAGAIN as isize)
            {
                assert!(completion(fabric, &sender).is_none());
                assert!(completion(fabric, &receiver).is_none());
            }
            let (mut sent, mut received) = (None, None);
            while sent.is_none() || received.is_none() {
                sent = sent.or(completion(fabric, &sender));
                received = received.or(completion(fabric, &receiver));
            }
            let received = received.expect("looped until it was there");
            assert_eq!(sent.expect("looped until it was there").op_context, send);
            assert_eq!((received.op_context, received.len, received.tag), (receive, length, tag));
            assert_eq!(arrived, message);
        }
        close(fabric, sender);
        close(fabric, receiver);
    }
}

unsafe fn completion(fabric: &Fabric, endpoint: &Endpoint) -> Option<fi_cq_tagged_entry> {
    // SAFETY: the queue is live, the entries are of its format, and the error entry is padded.
    unsafe {
        let mut entry: fi_cq_tagged_entry = std::mem::zeroed();
        let count = fi_cq_read(endpoint.cq, (&raw mut entry).cast(), 1);
        if count == -(FI_EAVAIL as isize) {
            let mut error = Padded::<fi_cq_err_entry>::zeroed();
            fi_cq_readerr(endpoint.cq, error.as_mut_ptr(), 0);
            panic!("completion error: {}", fabric.fi_strerror(error.err));
        }
        assert!(count == 1 || count == -(FI_EAGAIN as isize), "fi_cq_read: {count}");
        (count == 1).then_some(entry)
    }
}

unsafe fn open(fabric: &Fabric, provider: &str) -> Endpoint {
    // SAFETY: hints come from the library, strings in them from libc; objects are opened from live ones.
    unsafe {
        let hints = fabric.fi_dupinfo(ptr::null());
        assert!(!hints.is_null());
        (*hints).caps = FI_TAGGED;
        (*hints).mode = FI_CONTEXT | FI_CONTEXT2;
        (*(*hints).ep_attr).type_ = FI_EP_RDM;
        (*(*hints).domain_attr).threading = FI_THREAD_DOMAIN;
        (*(*hints).domain_attr).data_progress = FI_PROGRESS_MANUAL;
        (*(*hints).domain_attr).av_type = FI_AV_TABLE;
        let name = CString::new(provider).expect("no NUL");
        (*(*hints).fabric_attr).prov_name = libc::strdup(name.as_ptr());
        let (node, flags) =
            if provider == "shm" { (ptr::null(), 0) } else { (c"127.0.0.1".as_ptr(), FI_SOURCE) };
        let mut info = ptr::null_mut();
        let found = fabric.fi_getinfo(fabric.api_version(), node, ptr::null(), flags, hints, &raw mut info);
        check(fabric, "fi_getinfo", found);
        fabric.fi_freeinfo(hints);
        let found = CStr::from_ptr((*(*info).fabric_attr).prov_name).to_str().expect("a name");
        assert_eq!(found, provider);

        let (mut fid_fabric, mut domain, mut av, mut cq, mut ep) =
            (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
        let none = ptr::null_mut();
        check(fabric, "fi_fabric", fabric.fi_fabric((*info).fabric_attr, &raw mut fid_fabric, none));
        check(fabric, "fi_domain", fi_domain(fid_fabric, info, &raw mut domain, none));
        let mut attributes = Padded::<fi_av_attr>::zeroed();
        attributes.type_ = FI_AV_TABLE;
        attributes.count = 2;
        check(fabric, "fi_av_open", fi_av_open(domain, attributes.as_mut_ptr(), &raw mut av, none));
        let mut attributes = Padded::<fi_cq_attr>::zeroed();
        attributes.format = FI_CQ_FORMAT_TAGGED;
        attributes.wait_obj = FI_WAIT_NONE;
        check(fabric, "fi_cq_open", fi_cq_open(domain, attributes.as_mut_ptr(), &raw mut cq, none));
        check(fabric, "fi_endpoint", fi_endpoint(domain, info, &raw mut ep, none));
        check(fabric, "fi_ep_bind", fi_ep_bind(ep, &raw mut (*av).fid, 0));
        check(fabric, "fi_ep_bind", fi_ep_bind(ep, &raw mut (*cq).fid, FI_TRANSMIT | FI_RECV));
        check(fabric, "fi_enable", fi_enable(ep));
        fabric.fi_freeinfo(info);
        Endpoint { fabric: fid_fabric, domain, av, cq, ep }
    }
}

unsafe fn close(fabric: &Fabric, endpoint: Endpoint) {
    // SAFETY: nothing is in flight, and children go first.
    unsafe {
        check(fabric, "fi_close ep", fi_close(&raw mut (*endpoint.ep).fid));
        check(fabric, "fi_close cq", fi_close(&raw mut (*endpoint.cq).fid));
        check(fabric, "fi_close av", fi_close(&raw mut (*endpoint.av).fid));
        check(fabric, "fi_close domain", fi_close(&raw mut (*endpoint.domain).fid));
        check(fabric, "fi_close fabric", fi_close(&raw mut (*endpoint.fabric).fid));
    }
}
