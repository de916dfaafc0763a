//! Strings of a configuration, to which NCCL keeps pointers.

use std::ffi::{CString, c_char};
use std::ptr::null_mut;

use nccl_sys::*;

use super::{OK, World};
use crate::fake::Fake;

const NAME: &str = "a name of some length";

impl World<'_> {
    /// A part with a configuration of its own, or with that of the original.
    fn part(&self, config: Option<&mut ncclConfig_t>) -> ncclComm_t {
        let mut part = null_mut();
        let config = config.map_or(null_mut(), |config| &raw mut *config);
        // SAFETY: our own library.
        assert_eq!(unsafe { self.nccl.ncclCommSplit(self.comm, 0, 0, &mut part, config) }, OK);
        self.fake.log();
        part
    }

    fn destroy(&self, comm: ncclComm_t) {
        // SAFETY: our own library.
        assert_eq!(unsafe { self.nccl.ncclCommDestroy(comm) }, OK);
    }
}

/// A text that can be overwritten.
fn text() -> Vec<c_char> {
    NAME.bytes().chain([0]).map(|byte| byte as c_char).collect()
}

#[test]
fn a_string_that_changes_before_the_end_of_its_communicator_is_detected() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    for field in ["netName", "commName"] {
        let mut text = text();
        let mut config = ncclConfig_t::default();
        match field {
            "netName" => config.netName = text.as_ptr(),
            _ => config.commName = text.as_ptr(),
        }
        let (changed, kept) = (world.part(Some(&mut config)), world.part(Some(&mut config)));
        world.destroy(kept);
        fake.log();
        text[3] ^= 1;
        world.destroy(changed);
        world.bug(&format!("the {field} of comm"));
    }
}

/// The one test that reads freed memory, as NCCL would.
#[test]
fn a_freed_string_is_detected() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let text = CString::new(NAME).unwrap();
    let part = world.part(Some(&mut ncclConfig_t { commName: text.as_ptr(), ..Default::default() }));
    drop(text);
    world.destroy(part);
    world.bug(&format!("the commName of comm2 is no longer '{NAME}'"));
}

#[test]
fn what_inherits_a_text_has_the_same_pointer() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let mut text = text();
    let whole = World {
        comm: world.part(Some(&mut ncclConfig_t { commName: text.as_ptr(), ..Default::default() })),
        stream: world.stream.clone(),
        ..world
    };
    let part = whole.part(None);
    whole.destroy(whole.comm);
    fake.log();
    text[3] ^= 1;
    // SAFETY: our own library.
    assert_eq!(unsafe { whole.nccl.ncclCommFinalize(part) }, OK);
    whole.bug(&format!("the commName of comm3 is no longer '{NAME}'"));
    // SAFETY: our own library.
    assert_eq!(unsafe { whole.nccl.ncclCommAbort(part) }, OK);
    whole.bug(&format!("the commName of comm3 is no longer '{NAME}'"));
}
