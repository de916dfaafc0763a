//! Frames between connected ranks.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    collectives::world::fuzz::service(data);
});
