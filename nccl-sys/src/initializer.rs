//! The `NCCL_*_INITIALIZER` macros of `nccl.h` (bindgen cannot translate them): structs with nothing set.

use std::ptr;

use crate::bindings::*;

/// `NCCL_CONFIG_UNDEF_INT`: the value of an unset integer.
pub const NCCL_CONFIG_UNDEF_INT: i32 = i32::MIN;

/// The magic number of `ncclSimInfo_t`.
const SIM_INFO_MAGIC: u32 = 0x7468_5283;

impl Default for ncclConfig_t {
    /// `NCCL_CONFIG_INITIALIZER`: nothing set.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            blocking: NCCL_CONFIG_UNDEF_INT,
            cgaClusterSize: NCCL_CONFIG_UNDEF_INT,
            minCTAs: NCCL_CONFIG_UNDEF_INT,
            maxCTAs: NCCL_CONFIG_UNDEF_INT,
            netName: ptr::null(),
            splitShare: NCCL_CONFIG_UNDEF_INT,
            trafficClass: NCCL_CONFIG_UNDEF_INT,
            commName: ptr::null(),
            collnetEnable: NCCL_CONFIG_UNDEF_INT,
            CTAPolicy: NCCL_CONFIG_UNDEF_INT,
            shrinkShare: NCCL_CONFIG_UNDEF_INT,
            nvlsCTAs: NCCL_CONFIG_UNDEF_INT,
            nChannelsPerNetPeer: NCCL_CONFIG_UNDEF_INT,
            nvlinkCentricSched: NCCL_CONFIG_UNDEF_INT,
            graphUsageMode: NCCL_CONFIG_UNDEF_INT,
            numRmaCtx: NCCL_CONFIG_UNDEF_INT,
            maxP2pPeers: NCCL_CONFIG_UNDEF_INT,
            graphStreamOrdering: NCCL_CONFIG_UNDEF_INT,
            launchOrderImplicit: NCCL_CONFIG_UNDEF_INT,
            numRmaSig: NCCL_CONFIG_UNDEF_INT,
            rmaEagerInit: NCCL_CONFIG_UNDEF_INT,
            hostCftMode: NCCL_CONFIG_UNDEF_INT,
            nvlsHostMode: NCCL_CONFIG_UNDEF_INT,
        }
    }
}

impl Default for ncclCollConfig_t {
    /// `NCCL_COLLCONFIG_INITIALIZER`: nothing set.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            ext: ptr::null_mut(),
            minCTAs: NCCL_CONFIG_UNDEF_INT,
            maxCTAs: NCCL_CONFIG_UNDEF_INT,
            nvlsCTAs: NCCL_CONFIG_UNDEF_INT,
            cgaClusterSize: NCCL_CONFIG_UNDEF_INT,
            algSelection: ptr::null(),
            forceAlgSelection: 1,
            CTAPolicy: NCCL_CONFIG_UNDEF_INT,
            userProfilerTag: 0,
            launchCompletionEvent: ptr::null_mut(),
        }
    }
}

impl Default for ncclSimInfo_t {
    /// `NCCL_SIM_INFO_INITIALIZER`: no estimate yet.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: SIM_INFO_MAGIC,
            version: NCCL_VERSION_CODE,
            estimatedTime: NCCL_UNDEF_FLOAT as f32,
        }
    }
}

impl Default for ncclEncryptionConfig_t {
    /// `NCCL_ENCRYPTION_CONFIG_INITIALIZER`: plain text.
    fn default() -> Self {
        Self {
            size: size_of::<Self>(),
            magic: NCCL_API_MAGIC,
            version: NCCL_VERSION_CODE,
            mode: 0,
            psk: ptr::null(),
        }
    }
}
