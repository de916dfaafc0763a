//! Whether this thread is in a group: what must not happen there, and what has to wait for its end.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::mem;

use super::error::Error;

type Later = Box<dyn FnOnce()>;

thread_local! {
    /// Whether this thread is in a group.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    /// What has to wait until it no longer is.
    static AFTER: RefCell<Vec<Later>> = const { RefCell::new(Vec::new()) };
}

/// Refuses what must not happen inside a group.
#[inline]
pub(crate) fn forbid(operation: &'static str) -> Result<(), Error> {
    if INSIDE.get() { Err(Error::InsideGroup { operation }) } else { Ok(()) }
}

/// Runs it now, or at the end of the group that this thread is in.
pub(crate) fn after(action: impl FnOnce() + 'static) {
    if INSIDE.get() {
        AFTER.with_borrow_mut(|list| list.push(Box::new(action)));
    } else {
        action();
    }
}

/// This thread's time in a group. At its end follows what had to wait for it.
pub(crate) struct Inside(PhantomData<*const ()>);

impl Inside {
    /// # Errors
    /// In another group.
    pub(crate) fn enter(operation: &'static str) -> Result<Self, Error> {
        forbid(operation)?;
        INSIDE.set(true);
        Ok(Self(PhantomData))
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.set(false);
        let actions = AFTER.with_borrow_mut(mem::take);
        actions.into_iter().for_each(|action| action());
    }
}
