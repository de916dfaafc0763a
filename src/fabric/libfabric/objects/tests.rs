//! Tests of libfabric's objects.

use std::env;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use fabric_sys::{fi_ops, fid};

use super::*;

/// Set in a second run of a test, in a process ended by the test.
const SECOND: &str = "COLLECTIVES_TEST_SECOND_SIDE";

/// The objects of an endpoint of `tcp`.
fn open_endpoint() -> EndpointObjects {
    let library = Fabric::load().unwrap();
    let name = provider::name_in(library, "tcp");
    let list = provider::InfoList::query_tagged(library, Some(&name), Some(c"127.0.0.1")).unwrap();
    let info = list.iter().find(|info| info.provider_name() == name).unwrap();
    let domain = Domain::open_domain(library, info).unwrap();
    EndpointObjects::open_objects(domain, library, info, EndpointSettings::default()).unwrap().0
}

unsafe extern "C" fn refuse_to_close(_: *mut fid) -> c_int {
    -fabric_sys::FI_EBUSY
}

/// The functions of an unclosable object.
fn unclosable() -> fi_ops {
    let size = size_of::<fi_ops>();
    fi_ops {
        size,
        close: Some(refuse_to_close),
        bind: None,
        control: None,
        ops_open: None,
        tostr: None,
        ops_set: None,
    }
}

#[test]
fn memory_that_may_still_be_registered_is_not_freed() {
    let mut objects = open_endpoint();
    let mut functions = unclosable();
    let head = fid { fclass: 0, context: ptr::null_mut(), ops: &raw mut functions };
    let mut region = fid_mr { fid: head, mem_desc: ptr::null_mut(), key: 0 };
    objects.regions.push(&raw mut region);
    let memory = Arc::new([0_u8; 8]);
    let left = Arc::downgrade(&memory);
    objects.keep_alive(memory);
    drop(objects);
    assert!(left.upgrade().is_some());
}

#[test]
fn an_endpoint_that_cannot_be_closed_ends_the_process() {
    if env::var_os(SECOND).is_some() {
        let (objects, mut functions) = (open_endpoint(), unclosable());
        // SAFETY: the endpoint is open, and nothing but the end of the objects calls these functions of it.
        unsafe { (*objects.ep).fid.ops = &raw mut functions };
        return drop(objects);
    }
    let test = "fabric::libfabric::objects::tests::an_endpoint_that_cannot_be_closed_ends_the_process";
    let mut again = Command::new(env::current_exe().unwrap());
    let ended = again.args(["--exact", test]).env(SECOND, "1").output().unwrap();
    let told = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.signal(), Some(libc::SIGABRT), "{told}");
    assert!(told.starts_with("libfabric could not close an endpoint (fi_close returned -16)"), "{told}");
}

#[test]
fn what_the_kernel_may_write_is_not_left_open() {
    let mut objects = open_endpoint();
    // Not the variable of whoever runs this.
    objects.uring = false;
    assert_eq!(objects.must_stay_open(), objects.version > Version::new(1, 17));
    objects.uring = true;
    assert!(!objects.must_stay_open());
}

#[test]
fn what_a_peer_sent_for_an_address_is_followed_by_zeros() {
    for len in [0, 1, 511, 512, 513, 4096] {
        let address = vec![b'x'; len];
        let padded = pad_address(&address);
        assert_eq!(padded[..len], address);
        assert_eq!(padded[len..], [0; MAX_ADDRESS_LEN], "{len}");
    }
}
