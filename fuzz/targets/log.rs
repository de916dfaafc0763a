//! Reading of logs.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    diagnosis::log::fuzz::check_log(data);
});
