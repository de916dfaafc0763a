// Gradients to bfloat16, in which they travel between ranks, and back.
//
// `cargo xtask kernels` compiles it to rounding.ptx. It needs no header.

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

typedef float f32;
typedef double f64;
struct f16 {
    u16 bits;
};

// To the nearest, ties to even.
static __device__ u16 round(u32 bits) {
    bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    return is_nan ? bits >> 16 | 0x40 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

static __device__ u16 encode(f32 value) { return round(__float_as_uint(value)); }
// To single precision with the last bit set if that is not exact, so that the second rounding is right.
static __device__ u16 encode(f64 value) {
    f32 near = __double2float_rz(value);
    return round(__float_as_uint(near) | (near != value));
}
static __device__ u16 encode(f16 value) {
    f32 wide;
    asm("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(value.bits));
    return encode(wide);
}

static __device__ f32 widen(u16 wire) { return __uint_as_float((u32)wire << 16); }
static __device__ void decode(u16 wire, f32 &value) { value = widen(wire); }
static __device__ void decode(u16 wire, f64 &value) { value = widen(wire); }
static __device__ void decode(u16 wire, f16 &value) {
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(value.bits) : "f"(widen(wire)));
}

#define KERNELS(type)                                                                       \
    extern "C" __global__ void encode_##type(const type *values, u16 *wire, u64 count) {    \
        u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;                             \
        for (u64 i = first; i < count; i += (u64)gridDim.x * blockDim.x) wire[i] = encode(values[i]); \
    }                                                                                       \
    extern "C" __global__ void decode_##type(const u16 *wire, type *values, u64 count) {    \
        u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x;                             \
        for (u64 i = first; i < count; i += (u64)gridDim.x * blockDim.x) decode(wire[i], values[i]); \
    }

KERNELS(f32)
KERNELS(f64)
KERNELS(f16)
