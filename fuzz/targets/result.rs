//! Reading of result files and of tables in text.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    record::files::fuzz::check_file(data);
});
