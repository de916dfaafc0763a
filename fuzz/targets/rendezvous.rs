//! Untrusted peers of a job that waits for its last rank.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    collectives::world::fuzz::rendezvous(data);
});
