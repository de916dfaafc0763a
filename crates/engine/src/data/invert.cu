// Inverts all bits of a buffer, from a kernel that lets the next one of the stream start before it writes.
//
// The check on the stream (backend/nccl/on_stream.rs) inverts an input twice. The second time the kernel triggers programmatic
// launch first: a collective that NCCL launches with programmatic stream serialization may then start at once, has to wait
// for the end of this kernel before it reads, and finds every bit inverted when it does not.
//
// `cargo xtask kernels` compiles it to ptx/Invert.ptx for compute capability 9.0, the first with programmatic launch. It needs
// no header; the test lockstep.rs compiles the part without device functions as C++.

#ifdef __CUDACC__
#define NB_FUNCTION __device__ __forceinline__
#else
#define NB_FUNCTION static inline
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// What thread `thread` of at least 16 does of the `bytes` bytes at `buffer`: aligned words of 8 bytes, and the single bytes
// before and behind them.
NB_FUNCTION void invert_bytes(u8* buffer, u64 bytes, u64 thread, u64 threads) {
    u64 lead = (8 - ((u64)buffer & 7)) & 7;
    if (lead > bytes) lead = bytes;
    u64* words = (u64*)(buffer + lead);
    const u64 count = (bytes - lead) / 8;
    for (u64 word = thread; word < count; word += threads) words[word] = ~words[word];
    if (thread < bytes - count * 8) {
        const u64 place = thread < lead ? thread : thread + count * 8;
        buffer[place] = (u8)~buffer[place];
    }
}

#ifdef __CUDACC__

NB_FUNCTION u64 nanoseconds() {
    u64 time;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
    return time;
}

// Inverts `bytes` bytes at `buffer`, `delay` nanoseconds after its start. With `early` the next kernel may start before that:
// once all blocks have triggered it, for which all of them have to fit on the device at once, beside the next kernel's.
extern "C" __global__ void invert(u8* buffer, u64 bytes, u64 delay, u32 early) {
    if (early) asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
    if (delay != 0) {
        const u64 start = nanoseconds();
        while (nanoseconds() - start < delay) __nanosleep(200);
    }
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    invert_bytes(buffer, bytes, thread, (u64)gridDim.x * blockDim.x);
}

#endif
