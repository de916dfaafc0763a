//! The values of test data: pure functions of a [`Recipe`] and an element's index.
//!
//! kernels.cu has the same functions under the same names for the device; `lockstep.rs` compares them.
//!
//! Every element of a reduction starts from one 64-bit hash of its index. From it come the *result*
//! (directly: never by a loop over the ranks) and the ranks' shares of it. The ranks are rotated by a random
//! amount per element, and the rank at each position gets the share numbered *position*. Let *n* be the
//! number of ranks and `w(p)` a random word of position *p*, counted cyclically. So all `w(p + 1) - w(p)` add
//! up to zero.
//!
//! - **Copies** (no reduction, or one rank): random bits; a float's exponent is limited to the middle half of
//!   its range, so it is finite and normal.
//! - **Sum of integers**, wrapping: the share is `w(p + 1) - w(p)`, and position 0 adds the random total.
//! - **Sum of floats**: the total is `(q n + r) 2^e` with random q >= 0, 1 <= r <= n and
//!   `q n + r <= 2^significand`. The share is `q + (p < r) + u(p + 1) - u(p)` with random u in 0 ..= q:
//!   integers >= 0 with the total as their sum. So each partial sum in any order is an integer of at most
//!   `2^significand`, times `2^e`: exact. All shares of an element have one sign, and zeros are positive; the
//!   total is never zero. With more ranks than `2^significand`, q is 0 and r at most `2^significand`: most
//!   ranks contribute 0. With the chosen exponents, 1 is normal and the largest total finite, so flushing of
//!   subnormals changes nothing either.
//! - **Product of integers**, wrapping: odd numbers. The share is `w(p + 1) / w(p)` modulo a power of two
//!   (odd numbers have inverses), and position 0 multiplies the random odd total in.
//! - **Product of floats**: position 0 has a random significand, all others are powers of two, so no partial
//!   product is rounded. Signs are `s(p + 1) ^ s(p)`. The first min(n, 8) positions have exponents
//!   `g(p + 1) - g(p)` of bits g. Any subset of them adds up to between -4 and 4, so no partial product
//!   overflows or becomes subnormal.
//! - **Max, min**: the result is a random key of the totally ordered keys; position 0 has it, and the others
//!   have random keys below it (above it). Keys of floats are the finite normal floats of the copies: no
//!   zero, no NaN.
//! - **Average of integers**: bounded totals as for floats, so the sum cannot overflow in any order; it is
//!   `q` or, if r = n, `q + 1`, with the element's sign, which truncates toward zero.
//! - **Average of floats**, n a power of two up to 1024 (e4m3: 512): the sum's data; 1/n is a power of two
//!   and a number of the type, so scaling before or after the sum, or dividing, only changes exponents:
//!   exact.
//! - **Average of floats of 16 bits or more**, other n: NCCL multiplies each contribution by 1/n rounded to
//!   the type, then sums; others divide the sum. Positions 0 and 1 contribute a and b, all others +0. a and b
//!   have one sign, each is at least a quarter of T = a + b, and T has the format's significand, so it is
//!   exact. In units in the last place of the result's binade, whose values are below 2: the error of 1/n
//!   moves the result by less than 1 (its relative error is at most half a unit, and the result is below 2 =
//!   two units of relative size), rounding a/n and b/n by at most 1/2 and 1/4 (the smaller is below half of
//!   the binade), rounding their sum by 1/2, and rounding the expected value by 1/2: together below 2.75.
//!   Adding zeros is exact, so the order does not matter. Where the result lies next to a power of two the
//!   binades' units differ, but the errors shrink as well: 2 patterns still bound it (tested). Should 1/n be
//!   subnormal (f16, more than 2^14 ranks) its relative error grows, and the tolerance by n / 2^14 with it.
//!   Dividing a sum, or calculating more precisely inside, rounds less often, and stays within the same
//!   bound.
//! - **Average of floats of 8 bits**, other n: two units in the last place would be half of a value with two
//!   bits of fraction. So positions 0 and 1 contribute the same power of two, T / 2, and all others +0. Then
//!   T / n is 1/n with another exponent, and so is NCCL's result: its factor, rounded once, when it was made.
//!   (Its kernels calculate each step in half precision and round to the type. This is exact for powers of
//!   two, and for 1/n times powers of two.) Others divide the sum, or multiply it in half precision by 1/n of
//!   half precision, and round to the type: rounding 1/n to 11 bits first matters only where it reaches the
//!   middle m / 2^s between two numbers of the type, m < 2^(significand + 1). As n m is a whole number and
//!   not 2^s, 1/n differs from the middle by at least 1 / (n m) of it, and rounding to 11 bits moves 1/n by
//!   at most 2^-11 of it: exact up to 2^(10 - significand) ranks (64 for e4m3, 128 for e5m2). These are at
//!   most 2^(bias - 1), so 1/n is normal: as above. Beyond, the tolerance is 1 for the rounding to 11 bits,
//!   and n / 2^(bias - 1) more, since half a unit of a subnormal 1/n is as many units of the result. From
//!   2^(bias + significand - 1) ranks on (1024 and 131072) 1/n is 0 in the type, and so is NCCL's average of
//!   anything. T is then positive and so small that T / n is 0 in the type, so this average is right.
//! - **Mulsum** doubles the contributions of odd ranks before the sum. *Floats*: the sum's data, and odd
//!   ranks have half of their share: one exponent less, also normal. *Integers*, wrapping: odd ranks have
//!   their share shifted right (its lowest bit goes to the top, and doubling drops it), so twice the shifted
//!   share lacks the lowest bit; the next rank in the circle is even, and adds this bit to its own share.
//!   (The last of an odd number of ranks is even: after it, rank 0 adds nothing.)

use super::format::{
    Bfloat16, ElementFormat, Float8E4M3, Float8E5M2, Float16, Float32, Float64, FormatTag, Int8, Int32, Int64,
};
use super::hash::{mix, scramble};
use super::recipe::{AVG, COPY, DOUBLED, EXTREME, PROD, RESULT, Recipe, SIGNED, SUM, VANISHING};

const SUM_RESULT: u32 = SUM | RESULT;
const PROD_RESULT: u32 = PROD | RESULT;
const EXTREME_RESULT: u32 = EXTREME | RESULT;
const AVG_RESULT: u32 = AVG | RESULT;

#[inline(always)]
const fn low32(x: u64) -> u32 {
    (x & 0xffff_ffff) as u32
}

#[inline(always)]
const fn high32(x: u64) -> u32 {
    (x >> 32) as u32
}

#[inline(always)]
const fn multiply_high_32(a: u32, b: u32) -> u32 {
    high32(a as u64 * b as u64)
}

#[inline(always)]
const fn multiply_high_64(a: u64, b: u64) -> u64 {
    ((a as u128 * b as u128) >> 64) as u64
}

/// Returns a random word of the format's calculation width (64 bits for 64-bit formats, else 32).
#[inline(always)]
fn random_word<F: ElementFormat>(hash: u64) -> u64 {
    if F::BITS == 64 { hash.wrapping_mul(0x9e37_79b9_7f4a_7c15) } else { hash >> 32 }
}

/// Returns the random word of a position, different from [`random_word`].
#[inline(always)]
fn position_word<F: ElementFormat>(hash: u64, position: u32) -> u64 {
    if F::BITS == 64 {
        mix(hash.wrapping_add(u64::from(position).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    } else {
        u64::from(scramble(low32(hash).wrapping_add(position.wrapping_mul(0x9e37_79b9))))
    }
}

/// Returns the topmost `count` bits of a random word.
#[inline(always)]
fn top_bits<F: ElementFormat>(word: u64, count: u32) -> u64 {
    word >> (if F::BITS == 64 { 64 } else { 32 } - count)
}

/// Scales a random word to `0..range`.
#[inline(always)]
fn scale<F: ElementFormat>(word: u64, range: u64) -> u64 {
    if F::BITS == 64 {
        multiply_high_64(word, range)
    } else {
        u64::from(multiply_high_32(low32(word), low32(range)))
    }
}

/// Returns the place of the rank in this element's rotation of the ranks.
#[inline(always)]
pub(super) fn position_of(recipe: &Recipe, hash: u64) -> u32 {
    let position = recipe.rank + multiply_high_32(high32(hash).rotate_left(16), recipe.ranks);
    if position >= recipe.ranks { position - recipe.ranks } else { position }
}

#[inline(always)]
fn next_of(position: u32, ranks: u32) -> u32 {
    if position + 1 == ranks { 0 } else { position + 1 }
}

#[inline(always)]
fn is_negative(hash: u64) -> bool {
    hash & 1 != 0
}

#[inline(always)]
fn exponent_of(recipe: &Recipe, hash: u64) -> i32 {
    recipe.exponent_low + (low32(hash >> 1) & recipe.exponent_mask).cast_signed()
}

#[inline(always)]
fn compose<F: ElementFormat>(negative: bool, exponent: i32, fraction: u64) -> u64 {
    u64::from(negative) << (F::BITS - 1)
        | u64::from((exponent + F::BIAS).cast_unsigned()) << (F::SIGNIFICAND - 1)
        | fraction
}

/// Rounds a positive float to the format, in which it is normal: to nearest, ties to even.
#[inline(always)]
fn narrow<F: ElementFormat>(value: f32) -> u64 {
    let mut bits = value.to_bits();
    if F::SIGNIFICAND == 24 {
        return u64::from(bits);
    }
    let shift = if F::SIGNIFICAND < 24 { 24 - F::SIGNIFICAND } else { 1 };
    bits += ((1 << (shift - 1)) - 1) + ((bits >> shift) & 1);
    u64::from((bits >> shift).wrapping_sub((127 - F::BIAS).cast_unsigned() << (F::SIGNIFICAND - 1)))
}

/// Returns `magnitude / divisor * 2^exponent`, rounded once; a zero is positive.
///
/// The quotient in single precision is correctly rounded. Rounding it to 11 bits or fewer gives the same
/// result as rounding the exact quotient (24 >= 2 * 11 + 2).
#[inline(always)]
#[allow(clippy::cast_precision_loss)] // magnitudes are exact in the target type
fn quotient_bits<F: ElementFormat>(magnitude: u64, divisor: u32, negative: bool, exponent: i32) -> u64 {
    if magnitude == 0 {
        return 0;
    }
    let bits = if F::BITS == 64 {
        let mut value = magnitude as f64;
        if divisor != 1 {
            value /= f64::from(divisor);
        }
        (value * f64::from_bits(u64::from((exponent + 1023).cast_unsigned()) << 52)).to_bits()
    } else {
        let mut value = low32(magnitude) as f32;
        if divisor != 1 {
            value /= divisor as f32;
        }
        narrow::<F>(value * f32::from_bits((exponent + 127).cast_unsigned() << 23))
    };
    bits | u64::from(negative) << (F::BITS - 1)
}

#[inline(always)]
fn copy_bits<F: ElementFormat>(hash: u64) -> u64 {
    let word = if F::BITS == 64 { hash } else { hash >> 32 };
    let bits = top_bits::<F>(word, F::BITS);
    if !F::FLOAT {
        return bits;
    }
    (bits & !(1 << (F::BITS - 2))) + (1 << (F::BITS - 3))
}

#[inline(always)]
fn bounded_quotient<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    scale::<F>(random_word::<F>(hash), recipe.quota)
}

#[inline(always)]
fn bounded_remainder(recipe: &Recipe, hash: u64) -> u32 {
    1 + multiply_high_32(low32(hash), recipe.remainders)
}

#[inline(always)]
fn bounded_share<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    let quotient = bounded_quotient::<F>(recipe, hash);
    let position = position_of(recipe, hash);
    let here = scale::<F>(position_word::<F>(hash, position), quotient + 1);
    let next = scale::<F>(position_word::<F>(hash, next_of(position, recipe.ranks)), quotient + 1);
    quotient + u64::from(position < bounded_remainder(recipe, hash)) + next - here
}

#[inline(always)]
fn signed_integer(recipe: &Recipe, hash: u64, magnitude: u64) -> u64 {
    if recipe.flags & SIGNED != 0 && is_negative(hash) { magnitude.wrapping_neg() } else { magnitude }
}

#[inline(always)]
fn wrapping_share<F: ElementFormat>(recipe: &Recipe, hash: u64, position: u32) -> u64 {
    let here = position_word::<F>(hash, position);
    let next = position_word::<F>(hash, next_of(position, recipe.ranks));
    let total = if position == 0 { random_word::<F>(hash) } else { 0 };
    total.wrapping_add(next).wrapping_sub(here)
}

/// Moves the lowest bit of a word of the calculation width to the top.
#[inline(always)]
fn rotate_right<F: ElementFormat>(word: u64) -> u64 {
    if F::BITS == 64 { word.rotate_right(1) } else { u64::from(low32(word).rotate_right(1)) }
}

#[inline(always)]
fn sum_input<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    if F::FLOAT {
        let share = bounded_share::<F>(recipe, hash);
        return quotient_bits::<F>(share, 1, is_negative(hash), exponent_of(recipe, hash));
    }
    let position = position_of(recipe, hash);
    let share = wrapping_share::<F>(recipe, hash, position);
    if recipe.flags & DOUBLED == 0 {
        return share;
    }
    if !recipe.rank.is_multiple_of(2) {
        return rotate_right::<F>(share);
    }
    let before = if recipe.rank == 0 { recipe.ranks } else { recipe.rank } - 1;
    if before.is_multiple_of(2) {
        return share;
    }
    let before = if position == 0 { recipe.ranks } else { position } - 1;
    share.wrapping_add(wrapping_share::<F>(recipe, hash, before) & 1)
}

#[inline(always)]
fn sum_result<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    if !F::FLOAT {
        return random_word::<F>(hash);
    }
    let total = bounded_quotient::<F>(recipe, hash) * u64::from(recipe.ranks)
        + u64::from(bounded_remainder(recipe, hash));
    quotient_bits::<F>(total, 1, is_negative(hash), exponent_of(recipe, hash))
}

/// Returns the inverse of an odd number modulo two to the calculation width: each step doubles the number of
/// right bits, from 5.
#[inline(always)]
fn inverse_of_odd<F: ElementFormat>(odd: u64) -> u64 {
    let mut inverse = odd.wrapping_mul(3) ^ 2;
    for _ in 0..if F::BITS == 64 { 4 } else { 3 } {
        inverse = inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse)));
    }
    inverse
}

#[inline(always)]
fn sign_pattern(hash: u64, position: u32) -> u32 {
    (hash >> (32 + (position & 31))) as u32 & 1
}

#[inline(always)]
fn exponent_pattern(hash: u64, position: u32) -> i32 {
    (low32(hash) >> (8 + position) & 1).cast_signed()
}

#[inline(always)]
fn prod_result<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    if !F::FLOAT {
        return random_word::<F>(hash) | 1;
    }
    let fraction = top_bits::<F>(random_word::<F>(hash), F::SIGNIFICAND - 1);
    compose::<F>(is_negative(hash), exponent_of(recipe, hash), fraction)
}

#[inline(always)]
fn prod_input<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    let position = position_of(recipe, hash);
    let next = next_of(position, recipe.ranks);
    if !F::FLOAT {
        let ratio = (position_word::<F>(hash, next) | 1)
            .wrapping_mul(inverse_of_odd::<F>(position_word::<F>(hash, position) | 1));
        return if position == 0 { ratio.wrapping_mul(prod_result::<F>(recipe, hash)) } else { ratio };
    }
    let negative = sign_pattern(hash, position) != sign_pattern(hash, next);
    let scaling_ranks = recipe.ranks.min(8);
    let mut exponent = 0;
    if position < scaling_ranks {
        exponent =
            exponent_pattern(hash, next_of(position, scaling_ranks)) - exponent_pattern(hash, position);
    }
    if position != 0 {
        return compose::<F>(negative, exponent, 0);
    }
    let sign = u64::from(negative) << (F::BITS - 1);
    let scaling = i64::from(exponent) << (F::SIGNIFICAND - 1);
    (prod_result::<F>(recipe, hash) ^ sign).wrapping_add(scaling.cast_unsigned())
}

#[inline(always)]
fn extreme_key<F: ElementFormat>(hash: u64) -> u64 {
    top_bits::<F>(if F::BITS == 64 { hash } else { hash >> 32 }, F::BITS - u32::from(F::FLOAT))
}

#[inline(always)]
fn bits_of_key<F: ElementFormat>(key: u64) -> u64 {
    if !F::FLOAT {
        return key;
    }
    let half = 1 << (F::BITS - 2);
    let low = 1 << (F::BITS - 3);
    if key >= half { low + (key - half) } else { (1 << (F::BITS - 1)) + low + (half - 1 - key) }
}

#[inline(always)]
fn extreme_input<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    let position = position_of(recipe, hash);
    let mut key = extreme_key::<F>(hash);
    if position != 0 {
        key = scale::<F>(position_word::<F>(hash, position), key);
    }
    bits_of_key::<F>(key ^ recipe.flip)
}

#[inline(always)]
fn extreme_result<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    bits_of_key::<F>(extreme_key::<F>(hash) ^ recipe.flip)
}

#[inline(always)]
fn pair_total<F: ElementFormat>(hash: u64) -> u64 {
    let highest = 1 << (F::SIGNIFICAND - 1);
    if F::BITS == 8 { highest } else { highest | top_bits::<F>(random_word::<F>(hash), F::SIGNIFICAND - 1) }
}

/// Returns the contribution of position 0 to a total; position 1 has the rest.
#[inline(always)]
fn first_of_pair<F: ElementFormat>(hash: u64, total: u64) -> u64 {
    if F::BITS == 8 { total / 2 } else { total / 4 + scale::<F>(position_word::<F>(hash, 0), total / 2) }
}

#[inline(always)]
fn avg_input<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    if !F::FLOAT {
        return signed_integer(recipe, hash, bounded_share::<F>(recipe, hash));
    }
    let position = position_of(recipe, hash);
    if position > 1 {
        return 0;
    }
    let total = pair_total::<F>(hash);
    let first = first_of_pair::<F>(hash, total);
    let share = if position == 0 { first } else { total - first };
    let negative = is_negative(hash) && recipe.flags & VANISHING == 0;
    quotient_bits::<F>(share, 1, negative, exponent_of(recipe, hash))
}

#[inline(always)]
fn avg_result<F: ElementFormat>(recipe: &Recipe, hash: u64) -> u64 {
    if F::FLOAT {
        if recipe.flags & VANISHING != 0 {
            return 0;
        }
        let (negative, exponent) = (is_negative(hash), exponent_of(recipe, hash));
        return quotient_bits::<F>(pair_total::<F>(hash), recipe.ranks, negative, exponent);
    }
    let quotient =
        bounded_quotient::<F>(recipe, hash) + u64::from(bounded_remainder(recipe, hash) == recipe.ranks);
    signed_integer(recipe, hash, quotient)
}

/// Returns the value of one element. Bits beyond the format's width are not defined.
#[inline(always)]
pub(super) fn value_bits<F: ElementFormat, const KIND: u32>(recipe: &Recipe, index: u64) -> u64 {
    let hash = mix(recipe.key.wrapping_add(index));
    match KIND {
        SUM => sum_input::<F>(recipe, hash),
        SUM_RESULT => sum_result::<F>(recipe, hash),
        PROD => prod_input::<F>(recipe, hash),
        PROD_RESULT => prod_result::<F>(recipe, hash),
        EXTREME => extreme_input::<F>(recipe, hash),
        EXTREME_RESULT => extreme_result::<F>(recipe, hash),
        AVG => avg_input::<F>(recipe, hash),
        AVG_RESULT => avg_result::<F>(recipe, hash),
        _ => copy_bits::<F>(hash),
    }
}

/// A task on many values, compiled for each format and kind.
pub(super) trait FormatTask {
    type Output;

    fn run_task<F: ElementFormat, const KIND: u32>(self) -> Self::Output;
}

/// Runs `work` for the format and the kind (see [`Recipe::kind`]).
pub(super) fn dispatch_format<W: FormatTask>(format: FormatTag, kind: u32, work: W) -> W::Output {
    match format {
        FormatTag::Int8 => dispatch_kind::<Int8, W>(kind, work),
        FormatTag::Int32 => dispatch_kind::<Int32, W>(kind, work),
        FormatTag::Int64 => dispatch_kind::<Int64, W>(kind, work),
        FormatTag::Float16 => dispatch_kind::<Float16, W>(kind, work),
        FormatTag::Bfloat16 => dispatch_kind::<Bfloat16, W>(kind, work),
        FormatTag::Float32 => dispatch_kind::<Float32, W>(kind, work),
        FormatTag::Float64 => dispatch_kind::<Float64, W>(kind, work),
        FormatTag::Float8E4M3 => dispatch_kind::<Float8E4M3, W>(kind, work),
        FormatTag::Float8E5M2 => dispatch_kind::<Float8E5M2, W>(kind, work),
    }
}

fn dispatch_kind<F: ElementFormat, W: FormatTask>(kind: u32, work: W) -> W::Output {
    match kind {
        SUM => work.run_task::<F, SUM>(),
        SUM_RESULT => work.run_task::<F, SUM_RESULT>(),
        PROD => work.run_task::<F, PROD>(),
        PROD_RESULT => work.run_task::<F, PROD_RESULT>(),
        EXTREME => work.run_task::<F, EXTREME>(),
        EXTREME_RESULT => work.run_task::<F, EXTREME_RESULT>(),
        AVG => work.run_task::<F, AVG>(),
        AVG_RESULT => work.run_task::<F, AVG_RESULT>(),
        _ => work.run_task::<F, COPY>(),
    }
}
