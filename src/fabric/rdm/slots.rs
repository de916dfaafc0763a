//! Slots of operations in flight.

use std::ffi::c_int;
use std::ptr::NonNull;

use fabric_sys::fi_context2;

use super::Completion;

#[derive(Clone, Copy)]
pub(super) enum OperationState {
    Free,
    InFlight,
    Done(Completion),
    Failed(c_int),
}

/// An operation's slot. The library keeps the address of `context` until the operation completes.
#[repr(C, align(64))]
pub(super) struct OperationSlot {
    pub(super) context: fi_context2,
    pub(super) state: OperationState,
    pub(super) name: &'static str,
    pub(super) len: usize,
    pub(super) index: u32,
    pub(super) generation: u32,
}

/// The slots at their fixed addresses.
pub(super) struct OperationSlots {
    pub(super) all: Vec<NonNull<OperationSlot>>,
    pub(super) free: Vec<u32>,
}

impl Drop for OperationSlots {
    fn drop(&mut self) {
        for slot in &self.all {
            // SAFETY: made of a box in `take_slot`, and not shared: the endpoint is closed before.
            drop(unsafe { Box::from_raw(slot.as_ptr()) });
        }
    }
}

impl OperationSlots {
    pub(super) fn take_slot(&mut self, name: &'static str, len: usize) -> *mut OperationSlot {
        let pointer = match self.free.pop() {
            Some(index) => self.all[index as usize].as_ptr(),
            None => {
                let index = self.all.len() as u32;
                let slot = OperationSlot {
                    // SAFETY: the library's own scratch memory: zero is a value.
                    context: unsafe { std::mem::zeroed() },
                    state: OperationState::Free,
                    name,
                    len,
                    index,
                    generation: 0,
                };
                let slot = NonNull::from(Box::leak(Box::new(slot)));
                self.all.push(slot);
                slot.as_ptr()
            }
        };
        // SAFETY: a slot of this list, without a reference to it; the library writes only to its context.
        unsafe {
            (*pointer).state = OperationState::InFlight;
            (*pointer).name = name;
            (*pointer).len = len;
        }
        pointer
    }

    pub(super) fn release_slot(&mut self, slot: *mut OperationSlot) {
        // SAFETY: as in `take_slot`; the library has forgotten it.
        unsafe {
            (*slot).state = OperationState::Free;
            (*slot).generation = (*slot).generation.wrapping_add(1);
            self.free.push((*slot).index);
        }
    }
}
