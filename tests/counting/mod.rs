//! The system's allocator, with a count of each thread's allocations.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it comes.
unsafe impl GlobalAlloc for Counting {
    // The other functions of the trait call this one to get memory.
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.with(|count| count.set(count.get() + 1));
        // SAFETY: as promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, data: *mut u8, layout: Layout) {
        // SAFETY: as promised by the caller.
        unsafe { System.dealloc(data, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Number of allocations of this thread.
pub(crate) fn allocations() -> u64 {
    ALLOCATIONS.get()
}
