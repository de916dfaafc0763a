//! An allocator that overwrites what is freed, so that the fakes see a text that NCCL still has a pointer to.

use std::alloc::{GlobalAlloc, Layout, System};

#[global_allocator]
static POISON: Poison = Poison;

struct Poison;

// SAFETY: the system's allocator, given memory that nobody uses any more and that is written before it is freed.
unsafe impl GlobalAlloc for Poison {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: memory of this layout, the caller promises; volatile, or the compiler would leave it out. Large
        // memory holds no texts.
        unsafe {
            for offset in 0..layout.size().min(256) {
                memory.add(offset).write_volatile(0xdd);
            }
            System.dealloc(memory, layout);
        }
    }
}
