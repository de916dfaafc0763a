//! A server at rank 0's address, seen by a joining rank.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    collectives::world::fuzz::join(data);
});
