//! Instructions and calls of the CUDA driver that the safe layer adds to queueing one `ncclAllReduce` of 8
//! bytes.
//!
//! Both are counted, not timed, so that they are the same in every run; and neither needs a GPU. The program
//! runs itself under valgrind once for each case, with the fake CUDA driver and the fake NCCL of
//! `tests/fake`. What these two do is not counted. It prints a table and fails where a case costs more than
//! its limit. `nccl_call` has the times.

mod build;

use std::collections::BTreeMap;
use std::env;
use std::error::Error;
use std::ffi::{OsStr, c_int, c_long, c_void};
use std::fs;
use std::mem;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::ptr;
use std::sync::Arc;

use collectives::ReduceOp;
use collectives::nccl::{self, Collectives, Communicator, Library, Memory, MemoryViewMut, UniqueId};
use cudarc::driver::{CudaContext, CudaStream};
use libloading::os::unix::{Library as Object, RTLD_GLOBAL, RTLD_NOW};
use nccl_sys::{Nccl, cudaStream_t, ncclConfig_t, ncclDataType_t, ncclRedOp_t, ncclResult_t};

type Failure = Box<dyn Error>;

/// Elements: 8 bytes of f32.
const COUNT: usize = 2;
/// Operations of each counted call of the cases with many.
const MANY: u64 = 20;
/// Counted calls of each case.
const CALLS: u64 = 1000;
/// The fakes, as `tests/fake/mod.rs` builds them.
const CUDA: &[&str] = &["log.c", "cuda.c", "memory.c", "effects.c", "order.c", "graphs.c"];
const NCCL: &[&str] = &["nccl.c", "communicators.c", "objects.c", "exchange.c", "worker.c", "parameters.c"];
/// The case that the others are compared with.
const BARE: &str = "bare";

struct Case {
    name: &'static str,
    what: &'static str,
    /// Operations of a call.
    operations: u64,
    /// Maximum number of instructions above those of bare: about 1.5 times the number that was counted when
    /// this was written, since compilers differ.
    instructions: u64,
    /// Maximum number of calls of the CUDA driver. Compilers do not change these.
    driver: u64,
}

const CASES: [Case; 11] = [
    Case { name: BARE, what: "the function pointer", operations: 1, instructions: 0, driver: 0 },
    Case { name: "in_place", what: "`Memory`", operations: 1, instructions: 150, driver: 1 },
    Case { name: "out_of_place", what: "`Memory`", operations: 1, instructions: 160, driver: 1 },
    Case {
        name: "in_place_slice",
        what: "`CudaSlice` without events",
        operations: 1,
        instructions: 200,
        driver: 1,
    },
    Case {
        name: "out_of_place_slice",
        what: "`CudaSlice` without events",
        operations: 1,
        instructions: 240,
        driver: 1,
    },
    Case {
        name: "in_place_events",
        what: "`CudaSlice` with cudarc's events",
        operations: 1,
        instructions: 650,
        driver: 8,
    },
    Case {
        name: "other_stream",
        what: "`Memory` of another stream, in place",
        operations: 1,
        instructions: 980,
        driver: 10,
    },
    Case {
        name: "group",
        what: "`Memory`, in place, a group of one operation",
        operations: 1,
        instructions: 2650,
        driver: 5,
    },
    Case {
        name: "prepared",
        what: "`Prepared` of one operation",
        operations: 1,
        instructions: 200,
        driver: 1,
    },
    Case {
        name: "prepared_many",
        what: "`Prepared` of many operations",
        operations: MANY,
        instructions: 60,
        driver: 1,
    },
    Case {
        name: "prepared_group",
        what: "`Prepared` of many groups of one operation",
        operations: MANY,
        instructions: 270,
        driver: 1,
    },
];

/// Cost of a case: instructions of an operation, and calls of the fakes in a call.
struct Cost {
    instructions: u64,
    driver: u64,
    nccl: u64,
}

fn main() -> ExitCode {
    // `cargo bench` adds `--bench` at the end. Arguments before it are meant for the criterion benches.
    let arguments: Vec<_> = env::args_os().skip(1).collect();
    let result = match arguments.as_slice() {
        [.., last] if last == "--bench" => compare(),
        [] => compare(),
        [case, folder] => measure(&case.to_string_lossy(), Path::new(folder)).map(|()| true),
        _ => Err("takes no arguments".into()),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("nccl_instructions: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the table. Answers whether all cases keep their limits.
fn compare() -> Result<bool, Failure> {
    let valgrind = valgrind()?;
    let folder = tempfile::tempdir()?;
    // cudarc asks for libcuda.so and gets the library of that soname that is loaded already.
    compile(folder.path(), "cuda.so", "tests/fake", CUDA, "-Wl,-soname,libcuda.so")?;
    compile(folder.path(), "nccl.so", "tests/fake", NCCL, "-DFAKE_VERSION=23203")?;
    compile(folder.path(), "repeat.so", "benches", &["nccl_instructions.c"], "-Wl,-soname,repeat.so")?;

    println!("# Cost of the safe layer\n");
    println!(
        "One `ncclAllReduce` of 8 bytes through the safe layer and through the function pointer (`{BARE}`), \
         counted by {valgrind}: instructions outside the CUDA driver and NCCL, which are fakes, and calls of \
         these two.\n"
    );
    println!("- build: {}", build::DESCRIPTION);
    println!("- processor: {}\n", processor());
    println!(
        "| case | buffer | operations of a call | instructions of an operation | more than {BARE} | limit | \
         driver calls | limit | NCCL calls |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|");
    let (mut bare, mut kept) = (0, true);
    for Case { name, what, operations, instructions: limit, driver: driver_limit } in &CASES {
        let Cost { instructions, driver, nccl } = count(name, *operations, folder.path())?;
        if *name == BARE {
            bare = instructions;
        }
        let more = instructions.saturating_sub(bare);
        println!(
            "| {name} | {what} | {operations} | {instructions} | {more} | {limit} | {driver} | \
             {driver_limit} | {nccl} |"
        );
        if more > *limit || driver > *driver_limit {
            eprintln!("nccl_instructions: {name} costs more than its limit");
            kept = false;
        }
    }
    Ok(kept)
}

/// Valgrind's version.
fn valgrind() -> Result<String, Failure> {
    let output = Command::new("valgrind").arg("--version").output().map_err(|error| {
        format!("valgrind cannot be started ({error}): install it (./install-packages test does)")
    })?;
    Ok(String::from_utf8(output.stdout)?.trim().to_owned())
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| name.to_owned())
}

fn compile(folder: &Path, output: &str, home: &str, sources: &[&str], flag: &str) -> Result<(), Failure> {
    let status = Command::new("cc")
        .args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-pthread", "-Wl,-Bsymbolic", flag])
        .current_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join(home))
        .args(sources)
        .arg("-o")
        .arg(folder.join(output))
        .status()
        .map_err(|error| format!("cc cannot be started: {error}"))?;
    if status.success() { Ok(()) } else { Err(format!("{output} does not compile").into()) }
}

/// Runs a case under callgrind.
fn count(case: &str, operations: u64, folder: &Path) -> Result<Cost, Failure> {
    let file = folder.join(case);
    let mut written = OsStr::new("--callgrind-out-file=").to_owned();
    written.push(&file);
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--toggle-collect=repeat", "--demangle=no"])
        .args(["--compress-strings=no", "--compress-pos=no"])
        .arg(written)
        .arg(env::current_exe()?)
        .args([OsStr::new(case), folder.as_os_str()])
        .output()?;
    if !output.status.success() {
        return Err(format!("{case}: {}", String::from_utf8_lossy(&output.stderr)).into());
    }
    let profile = fs::read_to_string(&file)?;
    let cost =
        parse(&profile, operations).ok_or_else(|| format!("{case}: callgrind's file cannot be read"))?;
    if cost.nccl == 0 {
        return Err(format!("{case}: NCCL was not called").into());
    }
    Ok(cost)
}

/// Reads callgrind's file: what was counted in all, less what the calls into the fakes took.
fn parse(profile: &str, operations: u64) -> Option<Cost> {
    let is_fake = |object: &str| object.ends_with("/cuda.so") || object.ends_with("/nccl.so");
    let (mut total, mut inside) = (None, 0);
    let mut calls: BTreeMap<&str, u64> = BTreeMap::new();
    // A callee is in its caller's object unless another is named.
    let (mut caller, mut object, mut callee) = ("", None, "");
    let mut lines = profile.lines();
    while let Some(line) = lines.next() {
        let Some((key, value)) = line.split_once(['=', ':']) else { continue };
        match key {
            "ob" => caller = value,
            "cob" => object = Some(value),
            "cfn" => callee = value,
            "calls" => {
                // The next line has the place of the call and what it took in all.
                let (times, took) = (value.split(' ').next()?, lines.next()?.split(' ').nth(1)?);
                if is_fake(object.take().unwrap_or(caller)) && !is_fake(caller) {
                    *calls.entry(callee).or_default() += times.parse::<u64>().ok()?;
                    inside += took.parse::<u64>().ok()?;
                }
            }
            "summary" => total = value.trim().parse::<u64>().ok(),
            _ => {}
        }
    }
    // Calls are also counted outside `repeat`, where each function is called a few times.
    let each = |library: &str| -> u64 {
        let calls = calls.iter().filter(|(name, _)| name.starts_with(library));
        calls.map(|(_, times)| times / CALLS).sum()
    };
    let instructions = total?.checked_sub(inside)? / (CALLS * operations);
    Some(Cost { instructions, driver: each("cu"), nccl: each("nccl") })
}

/// The program under callgrind: one case, on the fakes in this folder.
fn measure(case: &str, folder: &Path) -> Result<(), Failure> {
    // SAFETY: our own libraries, whose initialisers do nothing. cudarc needs the driver to the end.
    let (repeating, raw) = unsafe {
        mem::forget(Object::open(Some(folder.join("cuda.so")), RTLD_NOW | RTLD_GLOBAL)?);
        (Object::open(Some(folder.join("repeat.so")), RTLD_NOW)?, Nccl::from_path(folder.join("nccl.so"))?)
    };
    let raw: &'static Nccl = Box::leak(Box::new(raw));
    let library = Library::from_raw(raw);
    let stream = CudaContext::new(0)?.new_stream()?;
    let id = UniqueId::new(library)?;
    let communicator = Communicator::builder(library, &stream).rank(1, 2).id(&id).init()?;
    let (first, mut second) = (memory(library, &stream)?, memory(library, &stream)?);
    let (send, mut receive) = (first.slice::<f32>(..COUNT)?, view(&mut second)?);
    let sum = ReduceOp::Sum;

    match case {
        BARE => {
            let handle = bare(raw)?;
            let (source, target) = (send.address() as *const c_void, receive.address() as *mut c_void);
            let (data_type, op) = (ncclDataType_t::ncclFloat32, ncclRedOp_t::ncclSum);
            let on = stream.cu_stream() as cudaStream_t;
            repeat(&repeating, || {
                // SAFETY: a live communicator, and buffers of this length.
                let code = unsafe { raw.ncclAllReduce(source, target, COUNT, data_type, op, handle, on) };
                if code == ncclResult_t::ncclSuccess { Ok(()) } else { Err("the bare call failed") }
            })
        }
        "in_place" => repeat(&repeating, || communicator.all_reduce_in_place(&mut receive, sum)),
        "out_of_place" => repeat(&repeating, || communicator.all_reduce(&send, &mut receive, sum)),
        "in_place_slice" => {
            let mut slice = without_events(&stream)?;
            repeat(&repeating, || communicator.all_reduce_in_place(&mut slice, sum))
        }
        "out_of_place_slice" => {
            let (send, mut receive) = (without_events(&stream)?, without_events(&stream)?);
            repeat(&repeating, || communicator.all_reduce(&send, &mut receive, sum))
        }
        "in_place_events" => {
            let mut slice = stream.alloc_zeros::<f32>(COUNT)?;
            repeat(&repeating, || communicator.all_reduce_in_place(&mut slice, sum))
        }
        "other_stream" => {
            let mut memory = memory(library, &stream.context().new_stream()?)?;
            let mut buffer = view(&mut memory)?;
            repeat(&repeating, || communicator.all_reduce_in_place(&mut buffer, sum))
        }
        "group" => repeat(&repeating, || {
            nccl::group(|group| group.on(&communicator).all_reduce_in_place(&mut receive, sum))
        }),
        "prepared" => {
            let prepared = communicator.prepare(|prepare| prepare.all_reduce_in_place(&mut receive, sum))?;
            repeat(&repeating, || communicator.queue(&prepared))
        }
        "prepared_many" => {
            let prepared = communicator.prepare(|prepare| {
                (0..MANY).try_for_each(|_| prepare.all_reduce_in_place(&mut receive, sum))
            })?;
            repeat(&repeating, || communicator.queue(&prepared))
        }
        "prepared_group" => {
            let prepared = communicator.prepare(|prepare| {
                let mut group = || prepare.group(|group| group.all_reduce_in_place(&mut receive, sum));
                (0..MANY).try_for_each(|_| group())
            })?;
            repeat(&repeating, || communicator.queue(&prepared))
        }
        _ => Err(format!("no case {case}").into()),
    }
}

fn memory(library: Library, stream: &Arc<CudaStream>) -> Result<Memory, nccl::Error> {
    Memory::alloc(library, stream, COUNT * size_of::<f32>())
}

fn view(memory: &mut Memory) -> Result<MemoryViewMut<'_, f32>, nccl::Error> {
    memory.slice_mut(..COUNT)
}

fn without_events(stream: &Arc<CudaStream>) -> Result<cudarc::driver::CudaSlice<f32>, Failure> {
    let context = stream.context();
    // SAFETY: the slice is used on one stream.
    unsafe { context.disable_event_tracking() };
    let slice = stream.alloc_zeros(COUNT);
    // SAFETY: only the slice that was made just now has no events.
    unsafe { context.enable_event_tracking() };
    Ok(slice?)
}

/// A communicator that the safe layer does not know of.
fn bare(raw: &Nccl) -> Result<nccl_sys::ncclComm_t, Failure> {
    let mut id = nccl_sys::ncclUniqueId { internal: [0; UniqueId::BYTES] };
    let mut handle = ptr::null_mut();
    let mut config = ncclConfig_t::default();
    // SAFETY: they write one id and one handle, and read the configuration.
    let codes = unsafe {
        [raw.ncclGetUniqueId(&mut id), raw.ncclCommInitRankConfig(&mut handle, 2, id, 1, &mut config)]
    };
    if codes == [ncclResult_t::ncclSuccess; 2] { Ok(handle) } else { Err(format!("{codes:?}").into()) }
}

/// Calls it once to load what is loaded when first needed, and then as often as is counted.
fn repeat<E>(repeating: &Object, mut call: impl FnMut() -> Result<(), E>) -> Result<(), Failure>
where
    Failure: From<E>,
{
    type Repeat =
        unsafe extern "C" fn(unsafe extern "C" fn(*mut c_void) -> c_int, *mut c_void, c_long) -> c_long;
    unsafe extern "C" fn again<F: FnMut() -> Result<(), E>, E>(call: *mut c_void) -> c_int {
        // SAFETY: the address of the closure below, which nobody else uses meanwhile.
        let call = unsafe { &mut *call.cast::<F>() };
        c_int::from(call().is_err())
    }
    fn entry<F: FnMut() -> Result<(), E>, E>(_: &F) -> unsafe extern "C" fn(*mut c_void) -> c_int {
        again::<F, E>
    }
    call()?;
    let entry = entry(&call);
    // SAFETY: the function of nccl_instructions.c, of this signature; `entry` is that of the closure's type.
    let good = unsafe {
        let repeat = repeating.get::<Repeat>(b"repeat")?;
        repeat(entry, (&raw mut call).cast(), CALLS as c_long)
    };
    if u64::try_from(good) == Ok(CALLS) { Ok(()) } else { Err("a call failed".into()) }
}
