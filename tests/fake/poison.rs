//! An allocator that overwrites freed memory, so that the fakes detect dangling pointers to strings.

use std::alloc::{GlobalAlloc, Layout, System};

#[global_allocator]
static POISON: Poison = Poison;

struct Poison;

// SAFETY: the system's allocator; the memory is overwritten before it is freed, when nothing uses it any
// more.
unsafe impl GlobalAlloc for Poison {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller passes memory of this layout; volatile, so that the compiler keeps the writes.
        // Large memory has no strings.
        unsafe {
            for offset in 0..layout.size().min(256) {
                memory.add(offset).write_volatile(0xdd);
            }
            System.dealloc(memory, layout);
        }
    }
}
