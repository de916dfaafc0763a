//! What listens at rank 0's address, to a rank that joins.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    collectives::world::fuzz::join(data);
});
