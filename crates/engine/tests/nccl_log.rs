//! Sources of NCCL's choices. They set variables, which needs a process with a single thread, so this test
//! does not use the usual harness.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::ffi::{CStr, CString};
use std::process::Command;
use std::thread;

use engine::nccl_choice::{Bytes, Log, OperationKey, find_algorithm, own_variables, profiler};

/// Where a library can be found, when this program is started again.
const AGAIN: &str = "LD_LIBRARY_PATH";

/// NCCL would find a profiler by itself: another process, since libraries are looked for where they were at
/// its start.
fn start_again_with_another_profiler() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("profiler.c"), folder.path().join("libnccl-profiler.so"));
    std::fs::write(&source, "int ncclProfiler_v6;\n").unwrap();
    let compiled =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status().unwrap();
    assert!(compiled.success(), "a C compiler, for this test");
    let again = Command::new(env::current_exe().unwrap()).arg("again").env(AGAIN, folder.path()).status();
    assert!(again.unwrap().success());
}

/// A variable as C code reads it.
fn c_variable(name: &CStr) -> CString {
    // SAFETY: the name is a C string, and the result, which is null or one, is copied before anything is set.
    unsafe {
        let value = libc::getenv(name.as_ptr());
        assert!(!value.is_null(), "{name:?} is not set");
        CStr::from_ptr(value).to_owned()
    }
}

fn main() {
    // Whoever runs the test may have settings of his own.
    for name in ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "NCCL_PROFILER_PLUGIN", "HOME"] {
        // SAFETY: this thread is the only one.
        unsafe { env::remove_var(name) };
    }
    // SAFETY: as above. What is not there cannot have settings.
    unsafe { env::set_var("NCCL_CONF_FILE", "/dev/null/none") };

    if env::args().nth(1).as_deref() == Some("again") {
        assert!(!profiler::request_plugin(), "{:?}", env::var_os(AGAIN));
        assert_eq!(env::var_os("NCCL_PROFILER_PLUGIN"), None, "nothing was set");
        return;
    }
    start_again_with_another_profiler();

    let other = thread::spawn(thread::park);
    let refused = Log::start_log();
    let profiled = profiler::request_plugin();
    other.thread().unpark();
    other.join().unwrap();
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("has 2 threads already"), "{refused}");
    assert!(!profiled);
    assert_eq!(env::var_os("NCCL_DEBUG"), None, "nothing was set");
    assert_eq!(env::var_os("NCCL_PROFILER_PLUGIN"), None, "nothing was set");
    assert_eq!(own_variables(), [""; 0]);

    let configuration = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(configuration.path(), "NCCL_PROFILER_PLUGIN=libmine.so\n").unwrap();
    // SAFETY: this thread is the only one.
    unsafe { env::set_var("NCCL_CONF_FILE", configuration.path()) };
    assert!(!profiler::request_plugin(), "the user's, of a file");
    // SAFETY: as above.
    unsafe {
        env::set_var("NCCL_CONF_FILE", "/dev/null/none");
        env::set_var("NCCL_PROFILER_PLUGIN", "none");
    }
    assert!(!profiler::request_plugin(), "the user's");
    assert_eq!(env::var("NCCL_PROFILER_PLUGIN").as_deref(), Ok("none"));
    assert_eq!(own_variables(), [""; 0]);
    // SAFETY: as above.
    unsafe { env::remove_var("NCCL_PROFILER_PLUGIN") };
    assert!(profiler::request_plugin());
    assert_eq!(env::var("NCCL_PROFILER_PLUGIN").as_deref(), Ok("STATIC_PLUGIN"));
    assert_eq!(own_variables(), ["NCCL_PROFILER_PLUGIN"]);

    let mut log = Log::start_log().unwrap();
    let own = ["NCCL_PROFILER_PLUGIN", "NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"];
    assert_eq!(own_variables(), own);
    assert_eq!(c_variable(c"NCCL_DEBUG").as_c_str(), c"INFO");
    assert_eq!(c_variable(c"NCCL_DEBUG_SUBSYS").as_c_str(), c"TUNING");

    // As NCCL opens and writes it.
    let path = c_variable(c"NCCL_DEBUG_FILE");
    // SAFETY: both are C strings.
    let file = unsafe { libc::fopen(path.as_ptr(), c"w".as_ptr()) };
    assert!(!file.is_null(), "{path:?}");
    let line = c"vm:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}\n";
    // SAFETY: the file is open, and the line a C string.
    unsafe {
        assert!(libc::fputs(line.as_ptr(), file) >= 0);
        assert_eq!(libc::fflush(file), 0);
    }
    let choices = log.read_choices().unwrap();
    // SAFETY: the file is open, and not used any more.
    unsafe { libc::fclose(file) };
    assert_eq!(choices.len(), 1, "{choices:?}");
    assert_eq!((choices[0].0.bytes, choices[0].1), (Bytes::Count(8), 1));
    let operation = OperationKey { collective: "allreduce", count_bytes: 8, ranks: 8, aggregated: 1 };
    let algorithm = find_algorithm(&choices, &operation).unwrap();
    assert_eq!((algorithm.algorithm.as_str(), algorithm.channels), ("ring", Some(8)));
    println!("NCCL's log is read: ok");
}
