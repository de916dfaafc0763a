//! Starting NCCL's log, which sets variables and so needs a process with a single thread: not a test of the usual
//! harness, which runs tests in threads.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::env;
use std::ffi::CString;
use std::thread;

use nccl_bench::tuning::{Bytes, Log, Operation, Unavailable, chosen, own_variables};

fn main() {
    // Whoever runs the test may have settings of his own.
    for name in ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE", "HOME"] {
        // SAFETY: this thread is the only one.
        unsafe { env::remove_var(name) };
    }
    // SAFETY: as above. What is not there cannot have settings.
    unsafe { env::set_var("NCCL_CONF_FILE", "/dev/null/none") };

    let other = thread::spawn(thread::park);
    let refused = Log::start();
    other.thread().unpark();
    other.join().unwrap();
    assert!(matches!(refused, Err(Unavailable::Threads { threads: 2 })), "{refused:?}");
    assert_eq!(env::var_os("NCCL_DEBUG"), None, "nothing was set");
    assert_eq!(own_variables(), [""; 0]);

    let mut log = Log::start().unwrap();
    assert_eq!(own_variables(), ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"]);
    let c_variable = |name: &str| {
        let name = CString::new(name).unwrap();
        // SAFETY: the name is a C string, and the result, which is null or one, is copied before anything is set.
        unsafe {
            let value = libc::getenv(name.as_ptr());
            assert!(!value.is_null(), "{name:?} is not set");
            std::ffi::CStr::from_ptr(value).to_owned()
        }
    };
    assert_eq!(c_variable("NCCL_DEBUG").as_c_str(), c"INFO");
    assert_eq!(c_variable("NCCL_DEBUG_SUBSYS").as_c_str(), c"TUNING");

    // As NCCL opens and writes it.
    let path = c_variable("NCCL_DEBUG_FILE");
    // SAFETY: both are C strings.
    let file = unsafe { libc::fopen(path.as_ptr(), c"w".as_ptr()) };
    assert!(!file.is_null(), "{path:?}");
    let line = c"vm:1:2 [0] NCCL INFO AllReduce: 8 Bytes -> Algo RING proto LL128 channel{Lo..Hi}={0..7}\n";
    // SAFETY: the file is open, and the line a C string.
    unsafe {
        assert!(libc::fputs(line.as_ptr(), file) >= 0);
        assert_eq!(libc::fflush(file), 0);
    }
    let choices = log.choices().unwrap();
    // SAFETY: the file is open, and not used any more.
    unsafe { libc::fclose(file) };
    assert_eq!(choices.len(), 1, "{choices:?}");
    assert_eq!((choices[0].0.bytes, choices[0].1), (Bytes::Count(8), 1));
    let operation = Operation { collective: "allreduce", count_bytes: 8, ranks: 8, aggregated: 1 };
    let algorithm = chosen(&choices, &operation).unwrap();
    assert_eq!((algorithm.algorithm.as_str(), algorithm.channels), ("ring", Some(8)));
    println!("NCCL's log is read: ok");
}
