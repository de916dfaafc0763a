//! Decoding of all messages.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    collectives::world::fuzz::wire(data);
});
