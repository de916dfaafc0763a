//! NCCL's functions by their first version, and the struct with their addresses.

use std::ffi::c_void;

use crate::version::Version;
use crate::{MissingSymbol, Nccl};

/// The oldest NCCL supported by this crate.
pub const FLOOR: Version = Version::new(2, 18, 0);

macro_rules! api {
    ($($since:expr => $($name:ident)*;)*) => {
        /// Every function of NCCL's `nccl.h` and its first version ([`FLOOR`] for all older ones).
        pub const API: &[(&str, Version)] = &[$($((stringify!($name), $since),)*)*];
    };
}

api! {
    FLOOR =>
        ncclGetVersion ncclGetErrorString ncclGetLastError ncclGetUniqueId ncclCommInitRank
        ncclCommInitRankConfig ncclCommInitAll ncclCommSplit ncclCommFinalize ncclCommDestroy ncclCommAbort
        ncclCommGetAsyncError ncclCommCount ncclCommCuDevice ncclCommUserRank ncclRedOpCreatePreMulSum
        ncclRedOpDestroy ncclAllReduce ncclAllGather ncclReduceScatter ncclReduce ncclBroadcast ncclBcast
        ncclSend ncclRecv ncclGroupStart ncclGroupEnd;
    Version::new(2, 19, 0) =>
        ncclMemAlloc ncclMemFree ncclCommRegister ncclCommDeregister;
    Version::new(2, 22, 0) =>
        ncclGroupSimulateEnd;
    Version::new(2, 23, 0) =>
        ncclCommInitRankScalable;
    Version::new(2, 24, 0) =>
        ncclResetDebugInit;
    Version::new(2, 27, 0) =>
        ncclCommShrink ncclCommWindowRegister ncclCommWindowDeregister;
    Version::new(2, 28, 0) =>
        ncclAlltoAll ncclGather ncclScatter;
    Version::new(2, 28, 7) =>
        ncclCommRevoke;
    Version::new(2, 29, 0) =>
        ncclCommGetUniqueId ncclCommGrow ncclWinGetUserPtr ncclPutSignal ncclSignal ncclWaitSignal;
    Version::new(2, 29, 7) =>
        ncclCommSuspend ncclCommResume ncclCommMemStats;
    Version::new(2, 30, 4) =>
        ncclParamBind ncclParamGetI8 ncclParamGetI16 ncclParamGetI32 ncclParamGetI64 ncclParamGetU8
        ncclParamGetU16 ncclParamGetU32 ncclParamGetU64 ncclParamGetStr ncclParamGet ncclParamGetParameter
        ncclParamGetAllParameterKeys ncclParamDumpAll;
    Version::new(2, 31, 0) =>
        ncclAllReduceConfig ncclBroadcastConfig ncclReduceConfig ncclAllGatherConfig ncclReduceScatterConfig
        ncclAlltoAllConfig ncclGatherConfig ncclScatterConfig;
    Version::new(2, 32, 0) =>
        ncclSetEncryption;
}

impl Nccl {
    /// Checks the loaded library for a function of [`API`]. Other names are not checked.
    ///
    /// # Errors
    /// The error of calling the function, if the loaded library is too old for it.
    pub fn require(&self, name: &str) -> Result<(), MissingSymbol> {
        match API.iter().find(|(function, _)| *function == name) {
            Some((function, _)) if !self.has(function) => Err(self.missing(function)),
            _ => Ok(()),
        }
    }
}

/// Finds the address of an exported function, never null, or the loader's reason why not.
pub(crate) type Lookup<'a> = &'a dyn Fn(&str) -> Result<*mut c_void, String>;

/// Looks a function of type `F` up.
///
/// # Safety
/// `F` is the type of NCCL's function of this name, and `lookup` returns its address.
pub(crate) unsafe fn function<F: Copy>(lookup: Lookup<'_>, name: &str) -> Result<F, String> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    let address = lookup(name)?;
    // SAFETY: the address of a function of this type, by the contract; it is not null.
    Ok(unsafe { std::mem::transmute_copy(&address) })
}

/// Defines the addresses and methods of the functions found in the header by `cargo xtask bindings`.
macro_rules! functions {
    (
        required { $(fn $required:ident($($r_name:ident: $r_type:ty),* $(,)?) -> $r_result:ty;)* }
        optional { $(fn $optional:ident($($o_name:ident: $o_type:ty),* $(,)?) -> $o_result:ty;)* }
    ) => {
        /// Addresses of NCCL's functions: functions of [`FLOOR`](crate::FLOOR) are always there, newer ones
        /// may be missing.
        #[derive(Clone, Copy)]
        pub(crate) struct Functions {
            $($required: unsafe extern "C" fn($($r_type),*) -> $r_result,)*
            $($optional: Option<unsafe extern "C" fn($($o_type),*) -> $o_result>,)*
        }

        impl Functions {
            /// Looks every function up.
            ///
            /// # Safety
            /// `lookup` returns the address of NCCL's function of the given name.
            pub(crate) unsafe fn find(lookup: crate::table::Lookup<'_>) -> Result<Self, String> {
                // SAFETY: each field has the type of NCCL's function of the same name; the addresses are
                // right by the contract.
                unsafe {
                    Ok(Self {
                        $($required: crate::table::function(lookup, stringify!($required))?,)*
                        $($optional: crate::table::function(lookup, stringify!($optional)).ok(),)*
                    })
                }
            }
        }

        /// NCCL's functions under their own names. Each is as unsafe as the C function: see NCCL's manual.
        /// Functions newer than [`FLOOR`](crate::FLOOR) fail when the loaded library does not have them.
        #[allow(clippy::too_many_arguments)]
        impl crate::Nccl {
            $(
                #[doc = concat!("`", stringify!($required), "`: in every supported NCCL.\n\n# Safety\n")]
                #[doc = "As the C function: valid pointers, live handles, the right thread and device."]
                #[inline]
                pub unsafe fn $required(&self, $($r_name: $r_type),*) -> $r_result {
                    // SAFETY: the caller keeps the C function's contract.
                    unsafe { (self.functions.$required)($($r_name),*) }
                }
            )*
            $(
                #[doc = concat!("`", stringify!($optional), "`: see [`API`](crate::API) for its version.")]
                #[doc = "\n\n# Safety\n"]
                #[doc = "As the C function: valid pointers, live handles, the right thread and device."]
                #[doc = "\n\n# Errors\nIf the loaded library is too old for the function."]
                #[inline]
                pub unsafe fn $optional(
                    &self,
                    $($o_name: $o_type),*
                ) -> Result<$o_result, crate::MissingSymbol> {
                    match self.functions.$optional {
                        // SAFETY: the caller keeps the C function's contract.
                        Some(function) => Ok(unsafe { function($($o_name),*) }),
                        None => Err(self.missing(stringify!($optional))),
                    }
                }
            )*

            /// True if the loaded library has the function with this name.
            pub fn has(&self, name: &str) -> bool {
                match name {
                    $(stringify!($required) => true,)*
                    $(stringify!($optional) => self.functions.$optional.is_some(),)*
                    _ => false,
                }
            }
        }
    };
}

pub(crate) use functions;
