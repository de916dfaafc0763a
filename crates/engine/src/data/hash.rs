//! Integer hashes, named as in kernels.cu.

/// Mixes all bits (Doug Lea's 64-bit mixer).
#[inline(always)]
pub(super) const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(0xdaba_0b6e_b093_22e3);
    x = (x ^ (x >> 32)).wrapping_mul(0xdaba_0b6e_b093_22e3);
    x ^ (x >> 32)
}

/// Mixes all bits (Chris Wellons' 32-bit mixer `lowbias32`).
#[inline(always)]
pub(super) const fn scramble(mut x: u32) -> u32 {
    x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d);
    x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
    x ^ (x >> 16)
}
