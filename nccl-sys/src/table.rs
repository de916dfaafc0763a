//! The table of function pointers, grouped by the NCCL version that introduced them.
//!
//! This list is the only one: the struct, the lookup, the methods and [`API`] come from it, and every signature
//! is compared by the compiler with the generated declaration.

#![allow(non_snake_case)] // NCCL's own names

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::bindings::*;
use crate::version::Version;
use crate::{MissingSymbol, Nccl};

/// The oldest NCCL that this crate loads.
pub const FLOOR: Version = Version::new(2, 18, 0);

/// Finds the address of an exported function, or the loader's reason why not.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Result<*mut c_void, String>;

macro_rules! nccl_api {
    (
        required { $(fn $required:ident($($r_name:ident: $r_type:ty),*) -> $r_result:ty;)* }
        $(since $since:expr => { $(fn $optional:ident($($o_name:ident: $o_type:ty),*) -> $o_result:ty;)* })*
    ) => {
        /// Addresses of NCCL's functions: those of [`FLOOR`] are always there, newer ones may be missing.
        #[derive(Clone, Copy)]
        pub(crate) struct Functions {
            $($required: unsafe extern "C" fn($($r_type),*) -> $r_result,)*
            $($($optional: Option<unsafe extern "C" fn($($o_type),*) -> $o_result>,)*)*
        }

        impl Functions {
            /// Looks every function up.
            ///
            /// # Safety
            /// `lookup` returns the address of NCCL's function of that name.
            pub(crate) unsafe fn find(lookup: Lookup<'_>) -> Result<Self, String> {
                Ok(Self {
                    $($required: {
                        let address = lookup(stringify!($required))?;
                        // SAFETY: by contract this is NCCL's function, whose signature is the one of its header
                        // (compared below); the address is not null.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($r_type),*) -> $r_result>(
                                address,
                            )
                        }
                    },)*
                    $($($optional: lookup(stringify!($optional)).ok().map(|address| {
                        // SAFETY: as above.
                        unsafe {
                            std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($o_type),*) -> $o_result>(
                                address,
                            )
                        }
                    }),)*)*
                })
            }
        }

        /// Every function of NCCL's `nccl.h` and the version that introduced it ([`FLOOR`] for all older ones).
        pub const API: &[(&str, Version)] = &[
            $((stringify!($required), FLOOR),)*
            $($((stringify!($optional), $since),)*)*
        ];

        /// NCCL's functions under their own names. Each is as unsafe as the C function: see NCCL's manual.
        /// Those that are newer than [`FLOOR`] fail when the loaded library does not have them.
        #[allow(clippy::too_many_arguments, clippy::missing_safety_doc)]
        impl Nccl {
            $(
                #[doc = concat!("`", stringify!($required), "`: in every supported NCCL.\n\n# Safety\n")]
                #[doc = "As the C function: valid pointers, live handles, the right thread and device."]
                #[inline]
                pub unsafe fn $required(&self, $($r_name: $r_type),*) -> $r_result {
                    // SAFETY: the caller keeps the C function's contract.
                    unsafe { (self.functions.$required)($($r_name),*) }
                }
            )*
            $($(
                #[doc = concat!("`", stringify!($optional), "`: see [`API`] for the version that it needs.\n\n# Safety\n")]
                #[doc = "As the C function: valid pointers, live handles, the right thread and device."]
                #[doc = "\n\n# Errors\nWhen the loaded library is too old to have it."]
                #[inline]
                pub unsafe fn $optional(&self, $($o_name: $o_type),*) -> Result<$o_result, MissingSymbol> {
                    match self.functions.$optional {
                        // SAFETY: the caller keeps the C function's contract.
                        Some(function) => Ok(unsafe { function($($o_name),*) }),
                        None => Err(self.missing(stringify!($optional), $since)),
                    }
                }
            )*)*

            /// Returns the error of calling a function of [`API`] that the loaded library lacks.
            ///
            /// # Errors
            /// If the loaded library is too old.
            pub fn require(&self, name: &str) -> Result<(), MissingSymbol> {
                match name {
                    $($(stringify!($optional) if self.functions.$optional.is_none() => {
                        Err(self.missing(stringify!($optional), $since))
                    })*)*
                    _ => Ok(()),
                }
            }

            /// True if the loaded library has the function with this name.
            pub fn has(&self, name: &str) -> bool {
                match name {
                    $(stringify!($required) => true,)*
                    $($(stringify!($optional) => self.functions.$optional.is_some(),)*)*
                    _ => false,
                }
            }
        }

        /// Compile-time check of all signatures against the generated declarations. Nothing is linked: an unused
        /// constant leaves no reference to its symbol.
        const _: () = {
            $(const _: unsafe extern "C" fn($($r_type),*) -> $r_result = functions::$required;)*
            $($(const _: unsafe extern "C" fn($($o_type),*) -> $o_result = functions::$optional;)*)*
        };
    };
}

nccl_api! {
    required {
        fn ncclGetVersion(version: *mut c_int) -> ncclResult_t;
        fn ncclGetErrorString(result: ncclResult_t) -> *const c_char;
        fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
        fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;
        fn ncclCommInitRank(
            comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int
        ) -> ncclResult_t;
        fn ncclCommInitRankConfig(
            comm: *mut ncclComm_t, nranks: c_int, commId: ncclUniqueId, rank: c_int,
            config: *mut ncclConfig_t
        ) -> ncclResult_t;
        fn ncclCommInitAll(comm: *mut ncclComm_t, ndev: c_int, devlist: *const c_int) -> ncclResult_t;
        fn ncclCommSplit(
            comm: ncclComm_t, color: c_int, key: c_int, newcomm: *mut ncclComm_t, config: *mut ncclConfig_t
        ) -> ncclResult_t;
        fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
        fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
        fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;
        fn ncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t;
        fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t;
        fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t;
        fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t;
        fn ncclRedOpCreatePreMulSum(
            op: *mut ncclRedOp_t, scalar: *mut c_void, datatype: ncclDataType_t,
            residence: ncclScalarResidence_t, comm: ncclComm_t
        ) -> ncclResult_t;
        fn ncclRedOpDestroy(op: ncclRedOp_t, comm: ncclComm_t) -> ncclResult_t;
        fn ncclAllReduce(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclAllGather(
            sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
            comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclReduceScatter(
            sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
            op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclReduce(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            op: ncclRedOp_t, root: c_int, comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclBroadcast(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            root: c_int, comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclBcast(
            buff: *mut c_void, count: usize, datatype: ncclDataType_t, root: c_int, comm: ncclComm_t,
            stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclSend(
            sendbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
            stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclRecv(
            recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t, peer: c_int, comm: ncclComm_t,
            stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclGroupStart() -> ncclResult_t;
        fn ncclGroupEnd() -> ncclResult_t;
    }
    since Version::new(2, 19, 0) => {
        fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t;
        fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t;
        fn ncclCommRegister(
            comm: ncclComm_t, buff: *mut c_void, size: usize, handle: *mut *mut c_void
        ) -> ncclResult_t;
        fn ncclCommDeregister(comm: ncclComm_t, handle: *mut c_void) -> ncclResult_t;
    }
    since Version::new(2, 22, 0) => {
        fn ncclGroupSimulateEnd(simInfo: *mut ncclSimInfo_t) -> ncclResult_t;
    }
    since Version::new(2, 23, 0) => {
        fn ncclCommInitRankScalable(
            newcomm: *mut ncclComm_t, nranks: c_int, myrank: c_int, nId: c_int, commIds: *mut ncclUniqueId,
            config: *mut ncclConfig_t
        ) -> ncclResult_t;
    }
    since Version::new(2, 24, 0) => {
        fn ncclResetDebugInit() -> ();
    }
    since Version::new(2, 27, 0) => {
        fn ncclCommShrink(
            comm: ncclComm_t, excludeRanksList: *mut c_int, excludeRanksCount: c_int,
            newcomm: *mut ncclComm_t, config: *mut ncclConfig_t, shrinkFlags: c_int
        ) -> ncclResult_t;
        fn ncclCommWindowRegister(
            comm: ncclComm_t, buff: *mut c_void, size: usize, win: *mut ncclWindow_t, winFlags: c_int
        ) -> ncclResult_t;
        fn ncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t;
    }
    since Version::new(2, 28, 0) => {
        fn ncclAlltoAll(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclGather(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            root: c_int, comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclScatter(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            root: c_int, comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
    }
    since Version::new(2, 28, 7) => {
        fn ncclCommRevoke(comm: ncclComm_t, revokeFlags: c_int) -> ncclResult_t;
    }
    since Version::new(2, 29, 0) => {
        fn ncclCommGetUniqueId(comm: ncclComm_t, uniqueId: *mut ncclUniqueId) -> ncclResult_t;
        fn ncclCommGrow(
            comm: ncclComm_t, nRanks: c_int, uniqueId: *const ncclUniqueId, rank: c_int,
            newcomm: *mut ncclComm_t, config: *mut ncclConfig_t
        ) -> ncclResult_t;
        fn ncclWinGetUserPtr(
            comm: ncclComm_t, win: ncclWindow_t, outUserPtr: *mut *mut c_void
        ) -> ncclResult_t;
        fn ncclPutSignal(
            localbuff: *const c_void, count: usize, datatype: ncclDataType_t, peer: c_int,
            peerWin: ncclWindow_t, peerWinOffset: usize, sigIdx: c_int, ctx: c_int, flags: c_uint,
            comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclSignal(
            peer: c_int, sigIdx: c_int, ctx: c_int, flags: c_uint, comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
        fn ncclWaitSignal(
            nDesc: c_int, signalDescs: *mut ncclWaitSignalDesc_t, comm: ncclComm_t, stream: cudaStream_t
        ) -> ncclResult_t;
    }
    since Version::new(2, 29, 7) => {
        fn ncclCommSuspend(comm: ncclComm_t, flags: c_int) -> ncclResult_t;
        fn ncclCommResume(comm: ncclComm_t) -> ncclResult_t;
        fn ncclCommMemStats(comm: ncclComm_t, stat: ncclCommMemStat_t, value: *mut u64) -> ncclResult_t;
    }
    since Version::new(2, 30, 4) => {
        fn ncclParamBind(out: *mut ncclParamHandle_t, key: *const c_char) -> ncclResult_t;
        fn ncclParamGetI8(h: ncclParamHandle_t, out: *mut i8) -> ncclResult_t;
        fn ncclParamGetI16(h: ncclParamHandle_t, out: *mut i16) -> ncclResult_t;
        fn ncclParamGetI32(h: ncclParamHandle_t, out: *mut i32) -> ncclResult_t;
        fn ncclParamGetI64(h: ncclParamHandle_t, out: *mut i64) -> ncclResult_t;
        fn ncclParamGetU8(h: ncclParamHandle_t, out: *mut u8) -> ncclResult_t;
        fn ncclParamGetU16(h: ncclParamHandle_t, out: *mut u16) -> ncclResult_t;
        fn ncclParamGetU32(h: ncclParamHandle_t, out: *mut u32) -> ncclResult_t;
        fn ncclParamGetU64(h: ncclParamHandle_t, out: *mut u64) -> ncclResult_t;
        fn ncclParamGetStr(h: ncclParamHandle_t, out: *mut *const c_char) -> ncclResult_t;
        fn ncclParamGet(
            h: ncclParamHandle_t, out: *mut c_void, maxLen: c_int, len: *mut c_int
        ) -> ncclResult_t;
        fn ncclParamGetParameter(
            key: *const c_char, value: *mut *const c_char, valueLen: *mut c_int
        ) -> ncclResult_t;
        fn ncclParamGetAllParameterKeys(table: *mut *mut *const c_char, tableLen: *mut c_int) -> ncclResult_t;
        fn ncclParamDumpAll() -> ();
    }
    since Version::new(2, 31, 0) => {
        fn ncclAllReduceConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
        ) -> ncclResult_t;
        fn ncclBroadcastConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
        ) -> ncclResult_t;
        fn ncclReduceConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            op: ncclRedOp_t, root: c_int, comm: ncclComm_t, stream: cudaStream_t,
            config: *const ncclCollConfig_t
        ) -> ncclResult_t;
        fn ncclAllGatherConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, sendcount: usize, datatype: ncclDataType_t,
            comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
        ) -> ncclResult_t;
        fn ncclReduceScatterConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, recvcount: usize, datatype: ncclDataType_t,
            op: ncclRedOp_t, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
        ) -> ncclResult_t;
        fn ncclAlltoAllConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
        ) -> ncclResult_t;
        fn ncclGatherConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
        ) -> ncclResult_t;
        fn ncclScatterConfig(
            sendbuff: *const c_void, recvbuff: *mut c_void, count: usize, datatype: ncclDataType_t,
            root: c_int, comm: ncclComm_t, stream: cudaStream_t, config: *const ncclCollConfig_t
        ) -> ncclResult_t;
    }
    since Version::new(2, 32, 0) => {
        fn ncclSetEncryption(config: *const ncclEncryptionConfig_t) -> ncclResult_t;
    }
}
