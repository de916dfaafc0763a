//! Builds the fake CUDA driver and the fake NCCL, loads them, and reads what they have recorded.

mod poison;

use std::env;
use std::ffi::{CStr, c_char, c_int};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use collectives::nccl::{Communicator, Config, Library, LoadError, Memory, UniqueId};
use cudarc::driver::{CudaContext, CudaStream};
use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_NOW};
use nccl_sys::Nccl;
use tempfile::TempDir;

/// Settings of the fakes (fake.h).
#[derive(Clone, Copy)]
pub(crate) enum Knob {
    StreamBusy,
    /// Bitmask of the following cuEventRecord calls that fail.
    EventsFail,
    NcclResult,
    InitResult,
    AsyncResult,
    CallMillis,
    Captured,
    ManagementResult,
    /// Result of the next call that deregisters memory, or destroys an operator or a graph.
    DisposalResult,
    SplitSize,
    Hang,
    NoWindows,
    SimulatedMicros,
    /// Execution of non-blocking calls: a constant of [`worker`].
    Worker,
    /// Number of the ncclCommGetAsyncError call that lets a held worker run.
    WorkerPolls,
    /// Result of cuDriverGetVersion.
    DriverVersion,
    /// Result of cuDeviceGetCount.
    DeviceCount,
    /// Copies to the host wait for their stream, and cuEventQuery and cuCtxSetCurrent for them.
    BlockingCopies,
    /// Allocations on streams fail.
    NoMemory,
    /// Waits of the host for a stream fail, and copies to the host are done at the next wait that does not.
    WaitsFail,
    /// Operations wait for the other ranks, which are in this process, and exchange data with them: a
    /// constant of [`aborts`]. Set before communicators are created.
    MovesData,
    /// The log has only mistakes.
    OnlyMistakes,
    /// After the cuStreamIsCapturing call with this number, its stream is captured.
    CaptureLater,
    /// Devices have no memory pools.
    NoPools,
    /// The cuMemAlloc call with this number fails.
    FailingAlloc,
}

/// Values of [`Knob::Worker`]: `fake_worker` of fake.h.
pub(crate) mod worker {
    /// A thread of NCCL executes them soon; the call returns ncclInProgress.
    pub(crate) const RUNS: i32 = 0;
    /// The call executes them.
    pub(crate) const OFF: i32 = 1;
    /// The thread waits for `RUNS`; an abort drops the communicator's jobs.
    pub(crate) const HELD: i32 = 2;
    /// Like `HELD`, but an abort waits until the jobs are done.
    pub(crate) const HELD_IN_ABORTS: i32 = 3;
}

/// Values of [`Knob::MovesData`]: `fake_aborts` of fake.h.
pub(crate) mod aborts {
    /// Operations that wait for an aborted rank go on waiting.
    pub(crate) const HANG: i32 = 1;
    /// They complete with undefined data.
    pub(crate) const MISLEAD: i32 = 2;
}

struct Loaded {
    cuda: Object,
    /// The fakes of NCCL that can be loaded.
    nccl: Vec<Object>,
    newest: &'static Nccl,
    middle: &'static Nccl,
    old: &'static Nccl,
    broken: LoadError,
    ancient: LoadError,
}

const CUDA: &[&str] = &["log.c", "cuda.c", "memory.c", "effects.c", "order.c", "graphs.c", "kernels.c"];
const NCCL: &[&str] = &["nccl.c", "communicators.c", "objects.c", "exchange.c", "worker.c", "parameters.c"];

/// Starts the compiler. Wait for the returned process.
fn compile(folder: &Path, sources: &[&str], output: &str, flags: &[&str]) -> Child {
    Command::new("cc")
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fake"))
        .args(["-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-pthread"])
        // The fakes of NCCL have the same names in them, and each shall use its own.
        .arg("-Wl,-Bsymbolic")
        .args(flags)
        .args(sources)
        .arg("-o")
        .arg(folder.join(output))
        .spawn()
        .expect("a C compiler, for this test")
}

/// Folder of fakes that another process has built for this one.
pub(crate) const BUILT: &str = "COLLECTIVES_TEST_FAKES";

/// Builds the fakes.
pub(crate) fn build() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let nccl = |output, flags: &[&str]| compile(folder.path(), NCCL, output, flags);
    let compilers = [
        // cudarc asks for libcuda.so and gets the library of that soname that is loaded already.
        compile(folder.path(), CUDA, "cuda.so", &["-Wl,-soname,libcuda.so"]),
        nccl("new.so", &["-DFAKE_VERSION=23203"]),
        nccl("middle.so", &["-DFAKE_VERSION=22809"]),
        nccl("old.so", &["-DFAKE_VERSION=21803"]),
        nccl("broken.so", &["-DFAKE_VERSION=21803", "-DncclCommSplit=not_there"]),
        nccl("ancient.so", &["-DFAKE_VERSION=21403"]),
    ];
    for mut compiler in compilers {
        assert!(compiler.wait().unwrap().success(), "a fake does not compile");
    }
    folder
}

fn load() -> Loaded {
    let own;
    let folder = match env::var_os(BUILT) {
        Some(folder) => PathBuf::from(folder),
        None => {
            own = build();
            own.path().to_owned()
        }
    };
    // SAFETY: our own libraries.
    unsafe {
        let open = |name: &str| Object::open(Some(folder.join(name)), RTLD_NOW | RTLD_GLOBAL).unwrap();
        let nccl = |name: &str| Nccl::from_path(folder.join(name));
        let cuda = open("cuda.so");
        let leak = |nccl: Nccl| -> &'static Nccl { Box::leak(Box::new(nccl)) };
        Loaded {
            newest: leak(nccl("new.so").unwrap()),
            middle: leak(nccl("middle.so").unwrap()),
            old: leak(nccl("old.so").unwrap()),
            broken: nccl("broken.so").unwrap_err(),
            ancient: nccl("ancient.so").unwrap_err(),
            nccl: ["new.so", "middle.so", "old.so"].map(open).into(),
            cuda,
        }
    }
}

/// The fakes in their initial state, for one test at a time.
pub(crate) struct Fake {
    loaded: &'static Loaded,
    _alone: MutexGuard<'static, ()>,
}

impl Fake {
    pub(crate) fn new() -> Self {
        static LOADED: OnceLock<Loaded> = OnceLock::new();
        static ALONE: Mutex<()> = Mutex::new(());
        let alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let fake = Self { loaded: LOADED.get_or_init(load), _alone: alone };
        // SAFETY: functions of our own libraries, of this signature.
        unsafe {
            // First the workers finish their jobs.
            for nccl in &fake.loaded.nccl {
                nccl.get::<extern "C" fn()>(b"fake_nccl_reset").unwrap()();
            }
            fake.loaded.cuda.get::<extern "C" fn()>(b"fake_cuda_reset").unwrap()();
        }
        fake
    }

    /// NCCL 2.32.3.
    pub(crate) fn library(&self) -> Library {
        Library::from_raw(self.loaded.newest)
    }

    /// NCCL 2.28.9, without newer functions.
    pub(crate) fn library_2_28(&self) -> Library {
        Library::from_raw(self.loaded.middle)
    }

    /// NCCL 2.18.3, without newer functions.
    pub(crate) fn old_library(&self) -> Library {
        Library::from_raw(self.loaded.old)
    }

    /// Load error of a 2.18 without ncclCommSplit.
    pub(crate) fn broken(&self) -> &LoadError {
        &self.loaded.broken
    }

    /// Load error of a 2.14.
    pub(crate) fn ancient(&self) -> &LoadError {
        &self.loaded.ancient
    }

    pub(crate) fn set(&self, knob: Knob, value: i32) {
        // SAFETY: a function of our own library, of this signature.
        let set = unsafe { self.loaded.cuda.get::<extern "C" fn(c_int, c_int)>(b"fake_set") }.unwrap();
        set(knob as c_int, value);
    }

    pub(crate) fn get(&self, knob: Knob) -> i32 {
        // SAFETY: a function of our own library, of this signature.
        let get = unsafe { self.loaded.cuda.get::<extern "C" fn(c_int) -> c_int>(b"fake_get") }.unwrap();
        get(knob as c_int)
    }

    /// Returns the log since the last call. Fails if a fake has detected a mistake.
    pub(crate) fn log(&self) -> Vec<String> {
        let lines = self.log_with_bugs();
        let bug = lines.iter().find(|line| line.contains("BUG") || line.contains("INSIDE A GROUP"));
        assert_eq!(bug, None, "{lines:#?}");
        lines
    }

    /// The same, for tests of the fakes.
    pub(crate) fn log_with_bugs(&self) -> Vec<String> {
        let mut text = vec![0; 1 << 16];
        // SAFETY: a function of our own library, of this signature, which writes at most 64 KiB and a NUL.
        let text = unsafe {
            let read = self.loaded.cuda.get::<unsafe extern "C" fn(*mut c_char)>(b"fake_read").unwrap();
            read(text.as_mut_ptr());
            CStr::from_ptr(text.as_ptr())
        };
        text.to_str().unwrap().lines().map(str::to_owned).collect()
    }

    /// The mistakes that the fakes have detected.
    pub(crate) fn bugs(&self) -> Vec<String> {
        self.log_with_bugs().into_iter().filter(|line| line.contains("BUG")).collect()
    }

    /// Creates a stream on a device.
    pub(crate) fn stream(&self, device: usize) -> Arc<CudaStream> {
        CudaContext::new(device).unwrap().new_stream().unwrap()
    }

    pub(crate) fn id(&self) -> UniqueId {
        UniqueId::new(self.library()).unwrap()
    }

    /// Reads the log until it has this line, for at most half a minute. Returns the lines before it.
    #[track_caller]
    pub(crate) fn until(&self, line: &str) -> Vec<String> {
        let (start, mut log) = (Instant::now(), Vec::new());
        while log.iter().all(|seen| seen != line) {
            assert!(start.elapsed() < Duration::from_secs(30), "no {line:?} in {log:#?}");
            thread::sleep(Duration::from_millis(1));
            log.extend(self.log());
        }
        log
    }

    /// Waits until NCCL's state has been queried, for at most half a minute.
    #[track_caller]
    pub(crate) fn until_polled(&self) {
        const POLLS: i32 = i32::MAX;
        self.set(Knob::WorkerPolls, POLLS);
        let start = Instant::now();
        while self.get(Knob::WorkerPolls) == POLLS {
            assert!(start.elapsed() < Duration::from_secs(30), "nobody asks NCCL");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Creates rank 1 of 2 on a new stream of device 0, and empties the log.
    pub(crate) fn communicator(&self, config: &Config) -> Communicator {
        self.rank(self.library(), 1, 2, config)
    }

    /// Creates a rank of a library on a new stream of device 0, and empties the log.
    pub(crate) fn rank(&self, library: Library, rank: usize, size: usize, config: &Config) -> Communicator {
        let communicator = Communicator::builder(library, &self.stream(0))
            .rank(rank, size)
            .id(&self.id())
            .config(config)
            .init()
            .unwrap();
        self.log();
        communicator
    }

    pub(crate) fn memory(&self, stream: &Arc<CudaStream>, bytes: usize) -> Memory {
        let memory = Memory::alloc(self.library(), stream, bytes).unwrap();
        self.log();
        memory
    }
}

impl Drop for Fake {
    /// The unread rest of the log must be free of mistakes too.
    fn drop(&mut self) {
        if !thread::panicking() {
            self.log();
        }
    }
}
