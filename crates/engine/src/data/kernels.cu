// Test data on the device: fills a buffer with what a rank contributes, and compares a buffer with what must come out.
//
// The definition of the data and the reasons for it are in value.rs; this file is the same arithmetic, function by
// function under the same names, and the test lockstep.rs compiles it as C++ and compares every value.
//
// `cargo xtask kernels` compiles it once per storage format (NB_FORMAT) to ptx/<format>.ptx. It needs no header.
// Signed and unsigned integers share a format, because they differ only in the recipe.

#ifdef __CUDACC__
#define NB_FUNCTION __device__ __forceinline__
#define NB_UNROLL_2 _Pragma("unroll 2")
#define NB_NO_UNROLL _Pragma("unroll 1")
#else
#define NB_FUNCTION static inline
#define NB_UNROLL_2
#define NB_NO_UNROLL
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

// What recipe.rs works out once per call: the kernels get it by value. Same layout as `Recipe` there.
struct Recipe {
    u64 key;            // start of the pseudo-random sequence
    u64 quota;          // number of values of the quotient of a bounded total
    u64 flip;           // exclusive-or of the keys of max and min
    u64 tolerance;      // largest difference of bit patterns that still counts as equal
    u32 ranks;
    u32 rank;           // whose contribution; unused for a result
    u32 remainders;     // number of values of the remainder of a bounded total
    int exponent_low;   // smallest power of two of a float
    u32 exponent_mask;  // the exponent is exponent_low + (random bits & exponent_mask)
    u32 kind;           // one of Kind
    u32 flags;          // Flags
    u32 reserved;
};

// What a value is made by: contributions of one rank, or with RESULT added the result over all ranks.
enum Kind { COPY = 0, SUM = 1, PROD = 2, EXTREME = 3, AVG = 4, RESULT = 8 };

// SIGNED: a signed integer type. DOUBLED: mulsum of integers, which doubles the contributions of odd ranks.
// VANISHING: averages of floats that are zero, of positive contributions.
enum Flags { SIGNED = 1, DOUBLED = 2, VANISHING = 4 };

// What check() adds to. Zero before the first call.
struct Report {
    u64 wrong;           // number of wrong elements
    u64 inverted_first;  // largest ~index of a wrong element: zero while there is none
};

// SIGNIFICAND and BIAS have no meaning for integers.
struct Int8 {
    typedef u8 Word;
    enum { BITS = 8, FLOAT = 0, SIGNIFICAND = 24, BIAS = 127 };
};
struct Int32 {
    typedef u32 Word;
    enum { BITS = 32, FLOAT = 0, SIGNIFICAND = 24, BIAS = 127 };
};
struct Int64 {
    typedef u64 Word;
    enum { BITS = 64, FLOAT = 0, SIGNIFICAND = 24, BIAS = 127 };
};
struct Float16 {
    typedef u16 Word;
    enum { BITS = 16, FLOAT = 1, SIGNIFICAND = 11, BIAS = 15 };
};
struct Bfloat16 {
    typedef u16 Word;
    enum { BITS = 16, FLOAT = 1, SIGNIFICAND = 8, BIAS = 127 };
};
struct Float32 {
    typedef u32 Word;
    enum { BITS = 32, FLOAT = 1, SIGNIFICAND = 24, BIAS = 127 };
};
struct Float64 {
    typedef u64 Word;
    enum { BITS = 64, FLOAT = 1, SIGNIFICAND = 53, BIAS = 1023 };
};
struct Float8E4M3 {
    typedef u8 Word;
    enum { BITS = 8, FLOAT = 1, SIGNIFICAND = 4, BIAS = 7 };
};
struct Float8E5M2 {
    typedef u8 Word;
    enum { BITS = 8, FLOAT = 1, SIGNIFICAND = 3, BIAS = 15 };
};

// ---- what the host lacks ----

#ifdef __CUDACC__
NB_FUNCTION u32 multiply_high(u32 a, u32 b) { return __umulhi(a, b); }
NB_FUNCTION u64 multiply_high(u64 a, u64 b) { return __umul64hi(a, b); }
NB_FUNCTION u32 bits_of(float value) { return __float_as_uint(value); }
NB_FUNCTION u64 bits_of(double value) { return (u64)__double_as_longlong(value); }
NB_FUNCTION float float_of(u32 bits) { return __uint_as_float(bits); }
NB_FUNCTION double double_of(u64 bits) { return __longlong_as_double((long long)bits); }
#else
NB_FUNCTION u32 multiply_high(u32 a, u32 b) { return (u32)(((u64)a * b) >> 32); }
NB_FUNCTION u64 multiply_high(u64 a, u64 b) { return (u64)(((unsigned __int128)a * b) >> 64); }
NB_FUNCTION u32 bits_of(float value) { u32 bits; __builtin_memcpy(&bits, &value, 4); return bits; }
NB_FUNCTION u64 bits_of(double value) { u64 bits; __builtin_memcpy(&bits, &value, 8); return bits; }
NB_FUNCTION float float_of(u32 bits) { float value; __builtin_memcpy(&value, &bits, 4); return value; }
NB_FUNCTION double double_of(u64 bits) { double value; __builtin_memcpy(&value, &bits, 8); return value; }
#endif

// ---- random words ----

NB_FUNCTION u64 mix(u64 x) {
    x = (x ^ (x >> 32)) * 0xdaba0b6eb09322e3ull;
    x = (x ^ (x >> 32)) * 0xdaba0b6eb09322e3ull;
    return x ^ (x >> 32);
}

NB_FUNCTION u32 scramble(u32 x) {
    x = (x ^ (x >> 16)) * 0x7feb352du;
    x = (x ^ (x >> 15)) * 0x846ca68bu;
    return x ^ (x >> 16);
}

// A random word of the format's calculation width (64 bits for 64-bit formats, else 32).
template <class F> NB_FUNCTION u64 random_word(u64 hash) {
    return F::BITS == 64 ? hash * 0x9e3779b97f4a7c15ull : hash >> 32;
}

// The random word of a position: another one than random_word.
template <class F> NB_FUNCTION u64 position_word(u64 hash, u32 position) {
    if (F::BITS == 64) return mix(hash + position * 0x9e3779b97f4a7c15ull);
    return scramble((u32)hash + position * 0x9e3779b9u);
}

// The topmost `count` bits of a random word.
template <class F> NB_FUNCTION u64 top_bits(u64 word, u32 count) {
    return word >> ((F::BITS == 64 ? 64 : 32) - count);
}

// A random word scaled to 0 .. range - 1.
template <class F> NB_FUNCTION u64 scale(u64 word, u64 range) {
    if (F::BITS == 64) return multiply_high(word, range);
    return multiply_high((u32)word, (u32)range);
}

// The place of the rank in this element's rotation of the ranks.
NB_FUNCTION u32 position_of(const Recipe& recipe, u64 hash) {
    u32 high = (u32)(hash >> 32);
    u32 position = recipe.rank + multiply_high((high << 16) | (high >> 16), recipe.ranks);
    return position >= recipe.ranks ? position - recipe.ranks : position;
}

NB_FUNCTION u32 next_of(u32 position, u32 ranks) { return position + 1 == ranks ? 0 : position + 1; }

NB_FUNCTION bool is_negative(u64 hash) { return hash & 1; }

NB_FUNCTION int exponent_of(const Recipe& recipe, u64 hash) {
    return recipe.exponent_low + (int)((u32)(hash >> 1) & recipe.exponent_mask);
}

// ---- bits of floats ----

template <class F> NB_FUNCTION u64 compose(bool negative, int exponent, u64 fraction) {
    return (u64)negative << (F::BITS - 1) | (u64)(exponent + F::BIAS) << (F::SIGNIFICAND - 1) | fraction;
}

// A positive float, normal in the format, rounded to it: to nearest, ties to even.
template <class F> NB_FUNCTION u64 narrow(float value) {
    u32 bits = bits_of(value);
    if constexpr (F::SIGNIFICAND == 24) {
        return bits;
    } else {
        const u32 shift = 24 - F::SIGNIFICAND;
        bits += ((1u << (shift - 1)) - 1) + ((bits >> shift) & 1);
        return (bits >> shift) - ((u32)(127 - F::BIAS) << (F::SIGNIFICAND - 1));
    }
}

// magnitude / divisor * 2^exponent, rounded once; a zero is positive.
template <class F> NB_FUNCTION u64 quotient_bits(u64 magnitude, u32 divisor, bool negative, int exponent) {
    if (magnitude == 0) return 0;
    u64 bits;
    if constexpr (F::BITS == 64) {
        double value = (double)magnitude;
        if (divisor != 1) value /= (double)divisor;
        bits = bits_of(value * double_of((u64)(exponent + 1023) << 52));
    } else {
        float value = (float)(u32)magnitude;
        if (divisor != 1) value /= (float)divisor;
        bits = narrow<F>(value * float_of((u32)(exponent + 127) << 23));
    }
    return bits | (u64)negative << (F::BITS - 1);
}

// ---- values ----

template <class F> NB_FUNCTION u64 copy_bits(u64 hash) {
    u64 word = F::BITS == 64 ? hash : hash >> 32;
    u64 bits = top_bits<F>(word, F::BITS);
    if (!F::FLOAT) return bits;
    return (bits & ~(1ull << (F::BITS - 2))) + (1ull << (F::BITS - 3));
}

template <class F> NB_FUNCTION u64 bounded_quotient(const Recipe& recipe, u64 hash) {
    return scale<F>(random_word<F>(hash), recipe.quota);
}

NB_FUNCTION u32 bounded_remainder(const Recipe& recipe, u64 hash) {
    return 1 + multiply_high((u32)hash, recipe.remainders);
}

template <class F> NB_FUNCTION u64 bounded_share(const Recipe& recipe, u64 hash) {
    u64 quotient = bounded_quotient<F>(recipe, hash);
    u32 position = position_of(recipe, hash);
    u64 here = scale<F>(position_word<F>(hash, position), quotient + 1);
    u64 next = scale<F>(position_word<F>(hash, next_of(position, recipe.ranks)), quotient + 1);
    return quotient + (position < bounded_remainder(recipe, hash)) + next - here;
}

template <class F> NB_FUNCTION u64 signed_integer(const Recipe& recipe, u64 hash, u64 magnitude) {
    return (recipe.flags & SIGNED) && is_negative(hash) ? 0 - magnitude : magnitude;
}

template <class F> NB_FUNCTION u64 wrapping_share(const Recipe& recipe, u64 hash, u32 position) {
    u64 here = position_word<F>(hash, position);
    u64 next = position_word<F>(hash, next_of(position, recipe.ranks));
    return (position == 0 ? random_word<F>(hash) : 0) + next - here;
}

// The word of the calculation width with its lowest bit moved to the top.
template <class F> NB_FUNCTION u64 rotate_right(u64 word) {
    if (F::BITS == 64) return word >> 1 | word << 63;
    return (u32)word >> 1 | (u32)word << 31;
}

template <class F> NB_FUNCTION u64 sum_input(const Recipe& recipe, u64 hash) {
    if (F::FLOAT) {
        u64 share = bounded_share<F>(recipe, hash);
        return quotient_bits<F>(share, 1, is_negative(hash), exponent_of(recipe, hash));
    }
    u32 position = position_of(recipe, hash);
    u64 share = wrapping_share<F>(recipe, hash, position);
    if (!(recipe.flags & DOUBLED)) return share;
    if (recipe.rank % 2 != 0) return rotate_right<F>(share);
    u32 before = (recipe.rank == 0 ? recipe.ranks : recipe.rank) - 1;
    if (before % 2 == 0) return share;
    before = (position == 0 ? recipe.ranks : position) - 1;
    return share + (wrapping_share<F>(recipe, hash, before) & 1);
}

template <class F> NB_FUNCTION u64 sum_result(const Recipe& recipe, u64 hash) {
    if (!F::FLOAT) return random_word<F>(hash);
    u64 total = bounded_quotient<F>(recipe, hash) * recipe.ranks + bounded_remainder(recipe, hash);
    return quotient_bits<F>(total, 1, is_negative(hash), exponent_of(recipe, hash));
}

template <class F> NB_FUNCTION u64 inverse_of_odd(u64 odd) {
    if (F::BITS == 64) {
        u64 inverse = (odd * 3) ^ 2;
        for (int step = 0; step < 4; ++step) inverse *= 2 - odd * inverse;
        return inverse;
    }
    u32 narrow_odd = (u32)odd;
    u32 inverse = (narrow_odd * 3) ^ 2;
    for (int step = 0; step < 3; ++step) inverse *= 2 - narrow_odd * inverse;
    return inverse;
}

NB_FUNCTION u32 sign_pattern(u64 hash, u32 position) { return (u32)(hash >> (32 + (position & 31))) & 1; }

NB_FUNCTION int exponent_pattern(u64 hash, u32 position) { return (int)((u32)hash >> (8 + position)) & 1; }

template <class F> NB_FUNCTION u64 prod_result(const Recipe& recipe, u64 hash) {
    if (!F::FLOAT) return random_word<F>(hash) | 1;
    u64 fraction = top_bits<F>(random_word<F>(hash), F::SIGNIFICAND - 1);
    return compose<F>(is_negative(hash), exponent_of(recipe, hash), fraction);
}

template <class F> NB_FUNCTION u64 prod_input(const Recipe& recipe, u64 hash) {
    u32 position = position_of(recipe, hash);
    u32 next = next_of(position, recipe.ranks);
    if (!F::FLOAT) {
        u64 ratio = (position_word<F>(hash, next) | 1) * inverse_of_odd<F>(position_word<F>(hash, position) | 1);
        return position == 0 ? ratio * prod_result<F>(recipe, hash) : ratio;
    }
    bool negative = sign_pattern(hash, position) ^ sign_pattern(hash, next);
    const u32 scaling_ranks = recipe.ranks < 8 ? recipe.ranks : 8;
    int exponent = 0;
    if (position < scaling_ranks)
        exponent = exponent_pattern(hash, next_of(position, scaling_ranks)) - exponent_pattern(hash, position);
    if (position != 0) return compose<F>(negative, exponent, 0);
    u64 result = prod_result<F>(recipe, hash);
    u64 sign = (u64)negative << (F::BITS - 1);
    return (result ^ sign) + ((u64)(long long)exponent << (F::SIGNIFICAND - 1));
}

template <class F> NB_FUNCTION u64 extreme_key(u64 hash) {
    return top_bits<F>(F::BITS == 64 ? hash : hash >> 32, F::BITS - F::FLOAT);
}

template <class F> NB_FUNCTION u64 bits_of_key(u64 key) {
    if (!F::FLOAT) return key;
    const u64 half = 1ull << (F::BITS - 2);
    const u64 low = 1ull << (F::BITS - 3);
    return key >= half ? low + (key - half) : (1ull << (F::BITS - 1)) + low + (half - 1 - key);
}

template <class F> NB_FUNCTION u64 extreme_input(const Recipe& recipe, u64 hash) {
    u32 position = position_of(recipe, hash);
    u64 key = extreme_key<F>(hash);
    if (position != 0) key = scale<F>(position_word<F>(hash, position), key);
    return bits_of_key<F>(key ^ recipe.flip);
}

template <class F> NB_FUNCTION u64 extreme_result(const Recipe& recipe, u64 hash) {
    return bits_of_key<F>(extreme_key<F>(hash) ^ recipe.flip);
}

template <class F> NB_FUNCTION u64 pair_total(u64 hash) {
    const u64 highest = 1ull << (F::SIGNIFICAND - 1);
    return F::BITS == 8 ? highest : highest | top_bits<F>(random_word<F>(hash), F::SIGNIFICAND - 1);
}

// The contribution of position 0 to a total; position 1 has the rest.
template <class F> NB_FUNCTION u64 first_of_pair(u64 hash, u64 total) {
    if (F::BITS == 8) return total / 2;
    return total / 4 + scale<F>(position_word<F>(hash, 0), total / 2);
}

template <class F> NB_FUNCTION u64 avg_input(const Recipe& recipe, u64 hash) {
    if (!F::FLOAT) return signed_integer<F>(recipe, hash, bounded_share<F>(recipe, hash));
    u32 position = position_of(recipe, hash);
    if (position > 1) return 0;
    u64 total = pair_total<F>(hash);
    u64 first = first_of_pair<F>(hash, total);
    u64 share = position == 0 ? first : total - first;
    bool negative = is_negative(hash) && !(recipe.flags & VANISHING);
    return quotient_bits<F>(share, 1, negative, exponent_of(recipe, hash));
}

template <class F> NB_FUNCTION u64 avg_result(const Recipe& recipe, u64 hash) {
    if (F::FLOAT) {
        if (recipe.flags & VANISHING) return 0;
        return quotient_bits<F>(pair_total<F>(hash), recipe.ranks, is_negative(hash), exponent_of(recipe, hash));
    }
    u64 quotient = bounded_quotient<F>(recipe, hash) + (bounded_remainder(recipe, hash) == recipe.ranks);
    return signed_integer<F>(recipe, hash, quotient);
}

// The value of one element. Bits beyond the format's width are not defined.
template <class F, u32 KIND> NB_FUNCTION u64 value_bits(const Recipe& recipe, u64 index) {
    u64 hash = mix(recipe.key + index);
    switch (KIND) {
    case SUM: return sum_input<F>(recipe, hash);
    case SUM | RESULT: return sum_result<F>(recipe, hash);
    case PROD: return prod_input<F>(recipe, hash);
    case PROD | RESULT: return prod_result<F>(recipe, hash);
    case EXTREME: return extreme_input<F>(recipe, hash);
    case EXTREME | RESULT: return extreme_result<F>(recipe, hash);
    case AVG: return avg_input<F>(recipe, hash);
    case AVG | RESULT: return avg_result<F>(recipe, hash);
    default: return copy_bits<F>(hash);
    }
}

// ---- loops ----
// Memory is read and written in aligned 8-byte words of several elements ("lanes"); the first and the last word of a
// buffer may belong to it only in part. The values do not depend on where a buffer starts.

template <class F> struct Words {
    typedef typename F::Word Word;
    enum { LANES = 8 / sizeof(Word) };
    u64* words;
    u32 lead;   // lanes of the first word that lie before the buffer
    u64 end;    // lanes from the start of the first word to the end of the buffer
    u64 count;  // words
};

template <class F> NB_FUNCTION Words<F> words_of(const void* buffer, u64 elements) {
    const u32 size = sizeof(typename F::Word);
    u64 address = (u64)buffer;
    Words<F> result;
    result.words = (u64*)(address & ~7ull);
    result.lead = (u32)(address & 7) / size;
    result.end = result.lead + elements;
    result.count = (result.end + Words<F>::LANES - 1) / Words<F>::LANES;
    return result;
}

template <class F, u32 KIND>
NB_FUNCTION void fill_words(void* buffer, u64 count, u64 first_index, const Recipe& recipe, u64 thread, u64 threads) {
    typedef typename F::Word Word;
    const u32 LANES = Words<F>::LANES;
    const Words<F> all = words_of<F>(buffer, count);
    for (u64 word = thread; word < all.count; word += threads) {
        const u64 start = word * LANES;
        const u64 index = first_index + start - all.lead;
        u64 bits = 0;
        NB_UNROLL_2
        for (u32 lane = 0; lane < LANES; ++lane)
            bits |= (u64)(Word)value_bits<F, KIND>(recipe, index + lane) << (lane * F::BITS);
        if (start >= all.lead && start + LANES <= all.end) {
            all.words[word] = bits;
        } else {
            NB_NO_UNROLL
            for (u32 lane = 0; lane < LANES; ++lane)
                if (start + lane >= all.lead && start + lane < all.end)
                    ((Word*)(all.words + word))[lane] = (Word)(bits >> (lane * F::BITS));
        }
    }
}

struct Findings {
    u64 wrong;
    u64 inverted_first;
};

template <class F, u32 KIND>
NB_FUNCTION Findings check_words(const void* buffer, u64 count, u64 first_index, u64 base, const Recipe& recipe,
                                 u64 thread, u64 threads) {
    typedef typename F::Word Word;
    const u32 LANES = Words<F>::LANES;
    const Words<F> all = words_of<F>(buffer, count);
    Findings findings = {0, 0};
    for (u64 word = thread; word < all.count; word += threads) {
        const u64 start = word * LANES;
        const u64 offset = start - all.lead;
        u32 from = 0, to = LANES;
        u64 bits = 0;
        if (start >= all.lead && start + LANES <= all.end) {
            bits = all.words[word];
        } else {
            if (start < all.lead) from = all.lead;
            if (start + LANES > all.end) to = (u32)(all.end - start);
            NB_NO_UNROLL
            for (u32 lane = from; lane < to; ++lane)
                bits |= (u64)((const Word*)(all.words + word))[lane] << (lane * F::BITS);
        }
        NB_UNROLL_2
        for (u32 lane = 0; lane < LANES; ++lane) {
            const Word expected = (Word)value_bits<F, KIND>(recipe, first_index + offset + lane);
            const Word found = (Word)(bits >> (lane * F::BITS));
            const Word difference = expected > found ? (Word)(expected - found) : (Word)(found - expected);
            if (difference > recipe.tolerance && lane >= from && lane < to) {
                if (findings.wrong++ == 0) findings.inverted_first = ~(base + offset + lane);
            }
        }
    }
    return findings;
}

template <class F>
NB_FUNCTION void fill_kind(void* buffer, u64 count, u64 first_index, const Recipe& recipe, u64 thread, u64 threads) {
    switch (recipe.kind) {
    case SUM: return fill_words<F, SUM>(buffer, count, first_index, recipe, thread, threads);
    case PROD: return fill_words<F, PROD>(buffer, count, first_index, recipe, thread, threads);
    case EXTREME: return fill_words<F, EXTREME>(buffer, count, first_index, recipe, thread, threads);
    case AVG: return fill_words<F, AVG>(buffer, count, first_index, recipe, thread, threads);
    default: return fill_words<F, COPY>(buffer, count, first_index, recipe, thread, threads);
    }
}

template <class F>
NB_FUNCTION Findings check_kind(const void* buffer, u64 count, u64 first_index, u64 base, const Recipe& recipe,
                                u64 thread, u64 threads) {
    switch (recipe.kind) {
#define NB_CASE(KIND) \
    case KIND: return check_words<F, (KIND)>(buffer, count, first_index, base, recipe, thread, threads);
        NB_CASE(SUM)
        NB_CASE(SUM | RESULT)
        NB_CASE(PROD)
        NB_CASE(PROD | RESULT)
        NB_CASE(EXTREME)
        NB_CASE(EXTREME | RESULT)
        NB_CASE(AVG)
        NB_CASE(AVG | RESULT)
#undef NB_CASE
    default: return check_words<F, COPY>(buffer, count, first_index, base, recipe, thread, threads);
    }
}

// ---- kernels ----
// Grids and blocks have one dimension; a block has a multiple of 32 threads. Any number of threads does the whole work.

#if defined(__CUDACC__) && defined(NB_FORMAT)

// Writes `count` elements to `buffer` (aligned to the element's size): the values of the global indices
// first_index .. first_index + count - 1.
extern "C" __global__ void fill(void* buffer, u64 count, u64 first_index, Recipe recipe) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    fill_kind<NB_FORMAT>(buffer, count, first_index, recipe, thread, (u64)gridDim.x * blockDim.x);
}

// Compares `count` elements of `buffer` (aligned to the element's size) with the values of the global indices
// first_index .. first_index + count - 1, and adds the wrong ones to `report`, where the first element of `buffer`
// has the index `base`.
extern "C" __global__ void check(const void* buffer, u64 count, u64 first_index, u64 base, Recipe recipe,
                                 Report* report) {
    const u64 thread = (u64)blockIdx.x * blockDim.x + threadIdx.x;
    const u64 threads = (u64)gridDim.x * blockDim.x;
    Findings findings = check_kind<NB_FORMAT>(buffer, count, first_index, base, recipe, thread, threads);
    if (!__any_sync(0xffffffffu, findings.wrong != 0)) return;
    for (u32 distance = 16; distance > 0; distance /= 2) {
        findings.wrong += __shfl_down_sync(0xffffffffu, findings.wrong, distance);
        const u64 other = __shfl_down_sync(0xffffffffu, findings.inverted_first, distance);
        if (other > findings.inverted_first) findings.inverted_first = other;
    }
    if (threadIdx.x % 32 == 0) {
        atomicAdd(&report->wrong, findings.wrong);
        atomicMax(&report->inverted_first, findings.inverted_first);
    }
}

#endif
