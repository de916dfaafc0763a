//! The texts of a configuration, of which NCCL keeps the pointers.

use std::ffi::CString;
use std::ptr::null_mut;

use nccl_sys::*;

use super::{OK, World};
use crate::fake::Fake;

const NAME: &str = "a name of some length";

impl World<'_> {
    /// A part with a configuration, or with the whole's.
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

#[test]
fn a_text_that_is_freed_before_its_communicator_is_seen() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    for field in ["netName", "commName"] {
        let text = CString::new(NAME).unwrap();
        let mut config = ncclConfig_t::default();
        match field {
            "netName" => config.netName = text.as_ptr(),
            _ => config.commName = text.as_ptr(),
        }
        let (freed, kept) = (world.part(Some(&mut config)), world.part(Some(&mut config)));
        world.destroy(kept);
        fake.log();
        drop(text);
        world.destroy(freed);
        world.bug(&format!("the {field} of comm"));
    }
}

#[test]
fn what_inherits_a_text_has_the_same_pointer() {
    let fake = Fake::new();
    let world = World::new(&fake, true);
    let text = CString::new(NAME).unwrap();
    let whole = World {
        comm: world.part(Some(&mut ncclConfig_t { commName: text.as_ptr(), ..Default::default() })),
        stream: world.stream.clone(),
        ..world
    };
    let part = whole.part(None);
    whole.destroy(whole.comm);
    drop(text);
    fake.log();
    // SAFETY: our own library.
    assert_eq!(unsafe { whole.nccl.ncclCommFinalize(part) }, OK);
    whole.bug(&format!("the commName of comm3 is no longer '{NAME}'"));
    // SAFETY: our own library.
    assert_eq!(unsafe { whole.nccl.ncclCommAbort(part) }, OK);
    whole.bug(&format!("the commName of comm3 is no longer '{NAME}'"));
}
