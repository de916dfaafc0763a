//! The real libnccl of several versions, without a GPU: loading, functions, and results.
//!
//! `cargo xtask wheels nccl` fetches the libraries.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // a test

use std::collections::BTreeSet;
use std::ffi::{CStr, c_int};
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::ptr;

use nccl_sys::*;

#[path = "../../tests/wheels/mod.rs"]
mod unpacked;

use unpacked::nccl as folder;

/// Loads the library and calls everything that needs no GPU.
fn check(text: &str) {
    let numbers: Vec<u32> = text.split('.').map(|number| number.parse().unwrap()).collect();
    let version = Version::new(numbers[0], numbers[1], numbers[2]);
    let path = folder(text).join("lib/libnccl.so.2");
    // SAFETY: NVIDIA's own library.
    let nccl = unsafe { Nccl::from_path(&path) }.unwrap();
    assert_eq!(nccl.version(), version);
    assert_eq!(nccl.path(), path);

    let resolved: BTreeSet<_> = API.iter().map(|(name, _)| *name).filter(|name| nccl.has(name)).collect();
    let expected: BTreeSet<_> =
        API.iter().filter(|(_, since)| *since <= version).map(|(name, _)| *name).collect();
    assert_eq!(resolved, expected);

    let words = |code| {
        // SAFETY: NCCL returns a constant string for any code.
        unsafe { CStr::from_ptr(nccl.ncclGetErrorString(ncclResult_t(code))) }.to_str().unwrap()
    };
    assert_eq!(words(0), "no error");
    assert_eq!(words(5), "invalid usage (run with NCCL_DEBUG=WARN for details)");
    assert_eq!(words(4711), "unknown result code");

    groups(&nccl);
    gates(&nccl, text, &path);
}

/// Groups nest and end, and an operation with a null communicator poisons one group, not the next: the safe
/// layer cancels groups in this way.
fn groups(nccl: &Nccl) {
    let poison = || {
        let (op, data_type) = (ncclRedOp_t::ncclSum, ncclDataType_t::ncclInt8);
        // SAFETY: refused because of the null communicator.
        unsafe {
            nccl.ncclAllReduce(
                ptr::null(),
                ptr::null_mut(),
                0,
                data_type,
                op,
                ptr::null_mut(),
                ptr::null_mut(),
            )
        }
    };
    // SAFETY: no arguments.
    let (start, end) = unsafe { (|| nccl.ncclGroupStart(), || nccl.ncclGroupEnd()) };
    assert_eq!((start(), end()), (ncclResult_t::ncclSuccess, ncclResult_t::ncclSuccess));
    assert_eq!(end(), ncclResult_t::ncclInvalidUsage, "an end without a start");

    assert_eq!(start(), ncclResult_t::ncclSuccess);
    assert_eq!(start(), ncclResult_t::ncclSuccess);
    assert_eq!(poison(), ncclResult_t::ncclInvalidArgument);
    assert_eq!(end(), ncclResult_t::ncclSuccess, "the inner end");
    assert_eq!(end(), ncclResult_t::ncclInvalidArgument, "the outer end");
    assert_eq!((start(), end()), (ncclResult_t::ncclSuccess, ncclResult_t::ncclSuccess), "the next group");

    // SAFETY: returns NCCL's buffer of the last message.
    let last = unsafe { CStr::from_ptr(nccl.ncclGetLastError(ptr::null_mut())) }.to_str().unwrap();
    assert!(!last.is_empty(), "NCCL has explained the failures above");
}

/// Checks functions perhaps newer than this library.
fn gates(nccl: &Nccl, version: &str, path: &Path) {
    let mut info = ncclSimInfo_t::default();
    // SAFETY: writes one struct; without a group the call is refused.
    match unsafe { nccl.ncclGroupSimulateEnd(&mut info) } {
        Ok(code) => assert_eq!(code, ncclResult_t::ncclInvalidUsage),
        Err(missing) => assert_eq!(
            missing.to_string(),
            format!("ncclGroupSimulateEnd needs NCCL 2.22; loaded {version} from {}", path.display())
        ),
    }
    let mut length: c_int = -1;
    let mut value = ptr::null();
    // SAFETY: writes one pointer and one int; the key is a C string.
    match unsafe { nccl.ncclParamGetParameter(c"NCCL_NO_SUCH_PARAMETER".as_ptr(), &mut value, &mut length) } {
        Ok(code) => assert_ne!(code, ncclResult_t::ncclSuccess),
        Err(missing) => assert_eq!(
            missing.to_string(),
            format!("ncclParamGetParameter needs NCCL 2.30.4; loaded {version} from {}", path.display())
        ),
    }
}

unpacked::for_each_nccl!(check);

#[test]
fn the_table_has_all_73_functions_once() {
    let names: BTreeSet<_> = API.iter().map(|(name, _)| *name).collect();
    assert_eq!((API.len(), names.len()), (73, 73));
    assert_eq!(API.iter().filter(|(_, since)| *since == FLOOR).count(), 27);
}

/// The hand-written initialisers against NCCL's macros, byte by byte, as a C compiler sees them.
#[test]
fn initialisers_are_those_of_the_header() {
    let header = folder("2.32.3").join("include");
    let build = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| std::fs::write(build.path().join(name), text).unwrap();
    file("cuda_runtime.h", "#include <stddef.h>\ntypedef void *cudaStream_t, *cudaEvent_t;\n");
    file("cuda_fp16.h", "");
    file(
        "print.c",
        "#include <stdio.h>\n#include <string.h>\n#include <nccl.h>\n\
         #define PRINT(type, initialiser) do { \\\n\
           union { type value; unsigned char bytes[sizeof(type)]; } all; \\\n\
           memset(&all, 0, sizeof all); \\\n\
           type set = initialiser; \\\n\
           all.value = set; \\\n\
           printf(\"%s\", #type); \\\n\
           for (size_t i = 0; i < sizeof(type); i++) printf(\" %d\", all.bytes[i]); \\\n\
           printf(\"\\n\"); } while (0)\n\
         int main(void) {\n\
           PRINT(ncclConfig_t, NCCL_CONFIG_INITIALIZER);\n\
           PRINT(ncclCollConfig_t, NCCL_COLLCONFIG_INITIALIZER);\n\
           PRINT(ncclSimInfo_t, NCCL_SIM_INFO_INITIALIZER);\n\
           PRINT(ncclEncryptionConfig_t, NCCL_ENCRYPTION_CONFIG_INITIALIZER);\n\
           return 0; }\n",
    );
    let program = build.path().join("print");
    let status = Command::new("cc")
        .args(["-DNCCL_OS_LINUX", "-o"])
        .arg(&program)
        .arg(build.path().join("print.c"))
        .arg("-I")
        .arg(build.path())
        .arg("-I")
        .arg(&header)
        .status()
        .expect("a C compiler, for this test");
    assert!(status.success());
    let printed = String::from_utf8(Command::new(&program).output().unwrap().stdout).unwrap();
    let lines: Vec<_> = printed.lines().collect();
    assert_eq!(lines.len(), 4);
    // Padding is left open by an initialiser: at the end, or before a pointer.
    assert_eq!(bytes("ncclConfig_t", &ncclConfig_t::default(), 116..120), without(lines[0], 116..120));
    assert_eq!(bytes("ncclCollConfig_t", &ncclCollConfig_t::default(), 0..0), lines[1]);
    assert_eq!(bytes("ncclSimInfo_t", &ncclSimInfo_t::default(), 20..24), without(lines[2], 20..24));
    let encryption = bytes("ncclEncryptionConfig_t", &ncclEncryptionConfig_t::default(), 20..24);
    assert_eq!(encryption, without(lines[3], 20..24));
}

/// Returns the printed line without padding bytes.
fn without(line: &str, padding: Range<usize>) -> String {
    let words = line.split(' ').enumerate().filter(|(word, _)| *word == 0 || !padding.contains(&(word - 1)));
    words.map(|(_, word)| word).collect::<Vec<_>>().join(" ")
}

/// Returns the bytes of a value without padding, in the format of the C program.
fn bytes<T>(name: &str, value: &T, padding: Range<usize>) -> String {
    let first = ptr::from_ref(value).cast::<u8>();
    (0..size_of::<T>()).filter(|index| !padding.contains(index)).fold(name.to_owned(), |text, index| {
        // SAFETY: a byte of the value, not padding.
        format!("{text} {}", unsafe { *first.add(index) })
    })
}
