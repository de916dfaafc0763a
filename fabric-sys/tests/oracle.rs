//! Compares every inline function and the layout of every struct with libfabric's own headers: a C file with
//! the addresses of the headers' inline functions is compiled. Both sides are called on objects with
//! recorders in their tables. They must call the same slot with the same arguments and return its result.
//!
//! Needs a C compiler and libfabric's headers. `FABRIC_INCLUDE` names another folder with `rdma/fabric.h`.

#![allow(clippy::expect_used, reason = "a test may fail loudly")]

mod layout;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::ffi::{CString, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, ptr};

use fabric_sys::*;
use libloading::os::unix::Library;

/// A call of a slot.
#[derive(Debug, PartialEq, Eq)]
struct Call {
    slot: u64,
    arguments: Vec<u64>,
}

thread_local! {
    static CALLS: RefCell<Vec<Call>> = const { RefCell::new(Vec::new()) };
}

fn calls() -> Vec<Call> {
    CALLS.with_borrow_mut(std::mem::take)
}

/// An integer or pointer argument, made from and read as a number.
trait Word: Copy {
    fn make(seed: u64) -> Self;
    fn word(self) -> u64;
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Word for $type {
            fn make(seed: u64) -> Self {
                // Wide, to reveal a truncation on the way; odd and small bits set, to reveal a sign.
                seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) as Self
            }
            fn word(self) -> u64 {
                self as u64
            }
        }
    )*};
}

integers!(i32 u32 u64 usize isize);

/// Memory behind made pointers, as some functions write through them.
fn scratch(seed: u64) -> *mut u8 {
    thread_local! {
        static SCRATCH: *mut [u8; 1 << 16] = Box::into_raw(Box::new([0; 1 << 16]));
    }
    SCRATCH.with(|&memory| memory.cast::<u8>().wrapping_add((seed as usize % 128) * 512))
}

impl<T> Word for *const T {
    fn make(seed: u64) -> Self {
        scratch(seed).cast_const().cast()
    }
    fn word(self) -> u64 {
        self.addr() as u64
    }
}

impl<T> Word for *mut T {
    fn make(seed: u64) -> Self {
        scratch(seed).cast()
    }
    fn word(self) -> u64 {
        self.addr() as u64
    }
}

/// A function pointer type of a table's slot.
trait Slot {
    fn recorder<const ID: u64>() -> Self;
}

/// A Rust inline function of some arity on an object.
trait Inline<Object> {
    fn compare(self, name: &str, object: Object, original: *const c_void, expected_calls: usize);
}

macro_rules! arity {
    ($($letter:ident $argument:ident $index:literal),*) => {
        impl<O: Word, $($letter: Word,)* R: Word> Slot for unsafe extern "C" fn(O, $($letter),*) -> R {
            fn recorder<const ID: u64>() -> Self {
                unsafe extern "C" fn record<const ID: u64, O: Word, $($letter: Word,)* R: Word>(
                    object: O,
                    $($argument: $letter),*
                ) -> R {
                    let arguments = vec![object.word(), $($argument.word()),*];
                    CALLS.with_borrow_mut(|calls| calls.push(Call { slot: ID, arguments }));
                    R::make(ID)
                }
                record::<ID, O, $($letter,)* R>
            }
        }

        impl<O: Word, $($letter: Word,)* R: Word> Inline<O> for unsafe fn(O, $($letter),*) -> R {
            fn compare(self, name: &str, object: O, original: *const c_void, expected_calls: usize) {
                let original: unsafe extern "C" fn(O, $($letter),*) -> R =
                    // SAFETY: the C function of the same name has the same types: the types of its slot.
                    unsafe { std::mem::transmute(original) };
                for _seed in [1, 50] {
                    $(let $argument = $letter::make(_seed + $index);)*
                    // SAFETY: the object's tables hold recorders: these take anything.
                    let ours = unsafe { self(object, $($argument),*) };
                    let our_calls = calls();
                    // SAFETY: as above.
                    let theirs = unsafe { original(object, $($argument),*) };
                    let their_calls = calls();
                    assert_eq!(our_calls, their_calls, "{name}");
                    assert_eq!(ours.word(), theirs.word(), "{name}");
                    assert_eq!(our_calls.len(), expected_calls, "{name}");
                }
            }
        }
    };
}

arity!();
arity!(A a 1);
arity!(A a 1, B b 2);
arity!(A a 1, B b 2, C c 3);
arity!(A a 1, B b 2, C c 3, D d 4);
arity!(A a 1, B b 2, C c 3, D d 4, E e 5);
arity!(A a 1, B b 2, C c 3, D d 4, E e 5, F f 6);
arity!(A a 1, B b 2, C c 3, D d 4, E e 5, F f 6, G g 7);
arity!(A a 1, B b 2, C c 3, D d 4, E e 5, F f 6, G g 7, H h 8);

const fn id(name: &str) -> u64 {
    let bytes = name.as_bytes();
    let (mut hash, mut index) = (0xcbf2_9ce4_8422_2325_u64, 0);
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(0x100_0000_01b3);
        index += 1;
    }
    hash
}

/// A table with recording slots.
macro_rules! table {
    ($table:ident: $($slot:ident)*) => {{
        // SAFETY: a table is a size and optional function pointers: zero is a value.
        let mut table: $table = unsafe { std::mem::zeroed() };
        table.size = size_of::<$table>();
        $(table.$slot = Some(
            Slot::recorder::<{ id(concat!(stringify!($table), ".", stringify!($slot))) }>()
        );)*
        Box::into_raw(Box::new(table))
    }};
}

/// An object with recording tables.
macro_rules! object {
    ($type:ident $($field:ident = $table:expr),*) => {{
        // SAFETY: an object is pointers and numbers: zero is a value.
        let mut object: $type = unsafe { std::mem::zeroed() };
        object.fid.ops = table!(fi_ops: close bind control ops_open ops_set);
        $(object.$field = $table;)*
        Box::into_raw(Box::new(object))
    }};
}

/// Compiles the C side and loads it.
fn original(names: &BTreeSet<&str>) -> Library {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let mut source = String::from(
        "#include <stddef.h>\n#include <rdma/fabric.h>\n#include <rdma/fi_domain.h>\n\
         #include <rdma/fi_endpoint.h>\n#include <rdma/fi_eq.h>\n#include <rdma/fi_cm.h>\n\
         #include <rdma/fi_tagged.h>\n#include <rdma/fi_rma.h>\n#include <rdma/fi_errno.h>\n",
    );
    for name in names {
        source.push_str(&format!("void *const oracle_{name} = (void *) {name};\n"));
    }
    source.push_str(&layout::c_source());
    let file = folder.join("oracle.c");
    fs::write(&file, source).expect("writing the C file");
    let library = folder.join("liboracle.so");
    let mut command = Command::new("cc");
    command.args(["-shared", "-fPIC", "-w", "-O1", "-o"]).arg(&library).arg(&file);
    if let Some(include) = env::var_os("FABRIC_INCLUDE") {
        command.arg("-I").arg(include);
    }
    let output = command.output().expect("no C compiler: apt-get install gcc libfabric-dev");
    assert!(
        output.status.success(),
        "the headers of libfabric do not compile (apt-get install libfabric-dev):\n{}",
        String::from_utf8_lossy(&output.stderr)
    );
    // SAFETY: the library was made just now and has no constructors.
    unsafe { Library::new(&library) }.expect("loading the C side")
}

/// The names of all inline functions of the crate, from its source.
fn inlines_of_the_crate() -> BTreeSet<String> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/inlines.rs");
    let text = fs::read_to_string(source).expect("the source is there");
    let functions =
        text.lines().filter_map(|line| line.trim().trim_start_matches("pub unsafe ").strip_prefix("fn fi_"));
    functions.map(|rest| format!("fi_{}", rest.split(['(', ' ']).next().unwrap_or_default())).collect()
}

macro_rules! functions {
    ($($object:ident: $($name:ident($($hole:tt)*))*;)*) => {
        fn names() -> BTreeSet<&'static str> {
            BTreeSet::from([$($(stringify!($name)),*),*])
        }

        fn compare_all(library: &Library, objects: &Objects) {
            $($(
                let function = fabric_sys::$name as unsafe fn(_ $(, $hole)*) -> _;
                let name = stringify!($name);
                Inline::compare(function, name, objects.$object, symbol(library, name), 1);
            )*)*
        }
    };
}

fn symbol(library: &Library, name: &str) -> *const c_void {
    let symbol = CString::new(format!("oracle_{name}")).expect("no NUL");
    // SAFETY: the C file defines a pointer of this name.
    unsafe {
        **library.get::<*const *const c_void>(symbol.as_bytes_with_nul()).expect("defined in the C file")
    }
}

struct Objects {
    fid: *mut fid,
    ep_fid: *mut fid,
    fabric: *mut fid_fabric,
    domain: *mut fid_domain,
    ep: *mut fid_ep,
    av: *mut fid_av,
    cq: *mut fid_cq,
    cntr: *mut fid_cntr,
    mr: *mut fid_mr,
}

fn objects() -> Objects {
    let ep = object!(fid_ep
        ops = table!(fi_ops_ep: cancel getopt setopt rx_size_left tx_size_left),
        cm = table!(fi_ops_cm: setname getname getpeer connect listen accept reject shutdown),
        msg = table!(fi_ops_msg: recv recvv recvmsg send sendv sendmsg inject senddata injectdata),
        rma = table!(fi_ops_rma: read readv readmsg write writev writemsg inject writedata injectdata),
        tagged = table!(fi_ops_tagged: recv recvv recvmsg send sendv sendmsg inject senddata injectdata)
    );
    Objects {
        fid: object!(fid_mr).cast(),
        ep_fid: ep.cast(),
        fabric: object!(fid_fabric ops = table!(fi_ops_fabric: domain passive_ep eq_open trywait domain2)),
        domain: object!(fid_domain
            ops = table!(
                fi_ops_domain: av_open cq_open endpoint scalable_ep cntr_open stx_ctx srx_ctx endpoint2
            ),
            mr = table!(fi_ops_mr: reg regv regattr)
        ),
        ep,
        av: object!(fid_av ops = table!(fi_ops_av: insert insertsvc insertsym remove lookup straddr av_set)),
        cq: object!(fid_cq ops = table!(fi_ops_cq: read readfrom readerr sread sreadfrom signal strerror)),
        cntr: object!(fid_cntr ops = table!(fi_ops_cntr: read readerr add set wait adderr seterr)),
        mr: object!(fid_mr mem_desc = ptr::without_provenance_mut(0x1234), key = 0x5678),
    }
}

functions! {
    fid: fi_close() fi_control(_ _) fi_open_ops(_ _ _ _);
    fabric: fi_domain(_ _ _) fi_trywait(_ _);
    domain: fi_endpoint(_ _ _) fi_av_open(_ _ _) fi_cq_open(_ _ _) fi_cntr_open(_ _ _)
        fi_mr_reg(_ _ _ _ _ _ _ _) fi_mr_regv(_ _ _ _ _ _ _ _) fi_mr_regattr(_ _ _);
    ep_fid: fi_cancel(_) fi_setopt(_ _ _ _) fi_getopt(_ _ _ _) fi_setname(_ _) fi_getname(_ _);
    ep: fi_ep_bind(_ _) fi_enable()
        fi_recv(_ _ _ _ _) fi_recvv(_ _ _ _ _) fi_recvmsg(_ _) fi_send(_ _ _ _ _) fi_sendv(_ _ _ _ _)
        fi_sendmsg(_ _) fi_inject(_ _ _) fi_senddata(_ _ _ _ _ _) fi_injectdata(_ _ _ _)
        fi_trecv(_ _ _ _ _ _ _) fi_trecvv(_ _ _ _ _ _ _) fi_trecvmsg(_ _) fi_tsend(_ _ _ _ _ _)
        fi_tsendv(_ _ _ _ _ _) fi_tsendmsg(_ _) fi_tinject(_ _ _ _) fi_tsenddata(_ _ _ _ _ _ _)
        fi_tinjectdata(_ _ _ _ _)
        fi_read(_ _ _ _ _ _ _) fi_readv(_ _ _ _ _ _ _) fi_readmsg(_ _) fi_write(_ _ _ _ _ _ _)
        fi_writev(_ _ _ _ _ _ _) fi_writemsg(_ _) fi_inject_write(_ _ _ _ _) fi_writedata(_ _ _ _ _ _ _ _)
        fi_inject_writedata(_ _ _ _ _ _);
    av: fi_av_insert(_ _ _ _ _) fi_av_insertsvc(_ _ _ _ _) fi_av_remove(_ _ _) fi_av_lookup(_ _ _)
        fi_av_straddr(_ _ _);
    cq: fi_cq_read(_ _) fi_cq_readfrom(_ _ _) fi_cq_readerr(_ _) fi_cq_sread(_ _ _ _)
        fi_cq_sreadfrom(_ _ _ _ _) fi_cq_signal() fi_cq_strerror(_ _ _ _);
    cntr: fi_cntr_read() fi_cntr_readerr() fi_cntr_add(_) fi_cntr_set(_) fi_cntr_wait(_ _);
    mr: fi_mr_bind(_ _) fi_mr_enable();
}

#[test]
fn every_inline_and_every_layout_is_as_in_the_headers() {
    let mut all = names();
    all.extend(["fi_mr_desc", "fi_mr_key"]);
    let ours = inlines_of_the_crate();
    assert_eq!(all.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>(), ours);

    let library = original(&all);
    let objects = objects();
    compare_all(&library, &objects);

    // These read a field and call nothing.
    Inline::compare(
        fi_mr_desc as unsafe fn(_) -> _,
        "fi_mr_desc",
        objects.mr,
        symbol(&library, "fi_mr_desc"),
        0,
    );
    Inline::compare(
        fi_mr_key as unsafe fn(_) -> _,
        "fi_mr_key",
        objects.mr,
        symbol(&library, "fi_mr_key"),
        0,
    );

    layout::compare(&library);
}
