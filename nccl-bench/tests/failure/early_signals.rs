//! Signals before anything is measured, when libraries are loaded and providers look for devices.

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, PipeWriter, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::doctor::{assert_interrupted, wait_for_thread};
use crate::process::{bench, start, start_writing_to};
use crate::{Tests, tests};

pub(crate) const TESTS: Tests = tests![
    a_signal_while_a_library_is_loaded_is_told,
    a_signal_to_a_doctor_that_cannot_measure_is_reported,
    providers_do_not_take_over_signals,
];

const SIGNALS: [(libc::c_int, &str, i32); 3] =
    [(libc::SIGINT, "SIGINT", 130), (libc::SIGTERM, "SIGTERM", 143), (libc::SIGHUP, "SIGHUP", 129)];

/// A library that loads for as long as the test wants: a pipe with a name.
struct SlowLibrary {
    path: PathBuf,
    _folder: TempDir,
}

impl SlowLibrary {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("libfabric.so.1");
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).unwrap();
        // SAFETY: the name is a text.
        assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
        Self { path, _folder: folder }
    }

    /// Waits until a process loads it. The process goes on when the result is dropped.
    fn await_load(&self) -> File {
        // Such a pipe cannot be opened before somebody reads from it.
        let open = || OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(&self.path).ok();
        within_a_minute("nobody loads the library", open)
    }
}

/// Calls `attempt` until it gives a value.
fn within_a_minute<T>(otherwise: &str, attempt: impl Fn() -> Option<T>) -> T {
    let by = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < by, "{otherwise}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn a_signal_while_a_library_is_loaded_is_told() {
    for (signal, name, code) in SIGNALS {
        let library = SlowLibrary::new();
        let mut command = bench("fabric info");
        command.env("FABRIC_LIBRARY", &library.path);
        let mut process = start(command);
        let _loading = library.await_load();
        process.signal(signal);
        let ended = process.ended();
        assert_eq!(
            (ended.code, ended.stdout.as_str(), ended.stderr),
            (Some(code), "", format!("nccl-bench: ended by {name}\n"))
        );
    }
}

/// The examination of the host loads libfabric. After that, there is nothing to measure without a GPU.
fn a_signal_to_a_doctor_that_cannot_measure_is_reported() {
    let library = SlowLibrary::new();
    let mut command = bench("doctor --backend nccl");
    // A driver that cannot be loaded, wherever the test runs.
    command.env("FABRIC_LIBRARY", &library.path).env("CUDA_VISIBLE_DEVICES", "");
    let mut process = start(command);
    let loading = library.await_load();
    process.signal(libc::SIGTERM);
    wait_for_thread(process.child.id(), "interrupted");
    drop(loading);
    let ended = process.ended();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(143), ""), "{ended:?}");
    assert_interrupted(&ended.stdout, "SIGTERM");
}

/// A pipe that takes no byte more.
fn full_pipe() -> (std::io::PipeReader, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let set_flags = |flags: libc::c_int| {
        // SAFETY: the call sets flags of an open descriptor.
        assert_eq!(unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_SETFL, flags) }, 0);
    };
    set_flags(libc::O_NONBLOCK);
    loop {
        match (&writer).write(&[0; 1]) {
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => break,
            Err(error) => panic!("{error}"),
        }
    }
    set_flags(0);
    (reader, writer)
}

fn providers_do_not_take_over_signals() {
    for (signal, name, code) in SIGNALS {
        // The process cannot print its answer, and waits there if it comes so far.
        let (_unread, output) = full_pipe();
        let mut process = start_writing_to(bench("fabric info"), Stdio::from(output));
        within_a_minute("libfabric is not loaded", || has_loaded(process.child.id()).then_some(()));
        process.signal(signal);
        let ended = process.ended();
        assert_eq!((ended.code, ended.stderr), (Some(code), format!("nccl-bench: ended by {name}\n")));
    }
}

/// True for a process that has loaded libfabric.
fn has_loaded(process: u32) -> bool {
    let maps = fs::read_to_string(Path::new("/proc").join(process.to_string()).join("maps"));
    maps.is_ok_and(|maps| maps.contains("libfabric.so"))
}
