//! The parameters of test data other than the element's index, calculated once per call for host and device.

use anyhow::bail;
use collectives::DataType;

use super::format::{Exponents, FormatTag};
use super::hash::mix;
use super::{DataSpec, ElementSource, Op};

/// Kinds of values: see the enum of the same name in kernels.cu. [`RESULT`] is added for results.
pub(super) const COPY: u32 = 0;
pub(super) const SUM: u32 = 1;
pub(super) const PROD: u32 = 2;
pub(super) const EXTREME: u32 = 3;
pub(super) const AVG: u32 = 4;
pub(super) const RESULT: u32 = 8;

/// Bits of [`Recipe::flags`]: see the enum `Flags` in kernels.cu.
pub(super) const SIGNED: u32 = 1;
pub(super) const DOUBLED: u32 = 2;
pub(super) const VANISHING: u32 = 4;

/// The parameters of [`value_bits`](super::value::value_bits). Kernels get it by value. Its layout equals
/// `Recipe` in kernels.cu.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Recipe {
    /// Start of the pseudo-random sequence.
    pub(super) key: u64,
    /// Number of values of the quotient of a bounded total.
    pub(super) quota: u64,
    /// Exclusive-or of the keys of max and min.
    pub(super) flip: u64,
    /// Largest difference of bit patterns that still counts as equal.
    pub(super) tolerance: u64,
    pub(super) ranks: u32,
    /// The contributing rank; unused for a result.
    pub(super) rank: u32,
    /// Number of values of the remainder of a bounded total.
    pub(super) remainders: u32,
    /// Smallest power of two of a float.
    pub(super) exponent_low: i32,
    /// The exponent is `exponent_low + (random bits & exponent_mask)`.
    pub(super) exponent_mask: u32,
    /// [`COPY`], [`SUM`], ..., or one of them with [`RESULT`].
    pub(super) kind: u32,
    /// [`SIGNED`] for a signed integer type, [`DOUBLED`] for mulsum of integers, [`VANISHING`] for float
    /// averages of zero.
    pub(super) flags: u32,
    pub(super) reserved: u32,
}

const _: () = assert!(size_of::<Recipe>() == 64);

impl Recipe {
    /// Returns the recipe of the elements of `source`, and their format.
    pub(super) fn new(spec: &DataSpec, source: ElementSource) -> anyhow::Result<(Self, FormatTag)> {
        let DataSpec { seed, ranks, op, data_type } = *spec;
        let most = DataSpec::MAX_RANKS;
        anyhow::ensure!((1..=most).contains(&ranks), "test data: {ranks} ranks; give 1 to {most} ranks");
        let format = FormatTag::from_data_type(data_type)?;
        let rank = match source {
            ElementSource::Rank(rank) if rank >= ranks => {
                bail!("test data: rank {rank} does not exist; there are {ranks} ranks, counted from 0")
            }
            ElementSource::Rank(rank) => Some(rank),
            ElementSource::Reduced if op.is_none() => {
                bail!("test data: a reduced result needs an operator, and the problem has none")
            }
            ElementSource::Reduced => None,
        };
        let start = mix(seed.wrapping_add(0x6a09_e667_f3bc_c908));
        let recipe = match op {
            Some(op) if ranks > 1 => Self::reduction_recipe(format, data_type, op, ranks, rank, start),
            _ => {
                let rank = rank.unwrap_or(0);
                Self { key: mix(start.wrapping_add(u64::from(rank))), ranks, rank, ..Self::default() }
            }
        };
        Ok((recipe, format))
    }

    fn reduction_recipe(
        format: FormatTag,
        data_type: DataType,
        op: Op,
        ranks: u32,
        rank: Option<u32>,
        start: u64,
    ) -> Self {
        let is_signed = matches!(data_type, DataType::Int8 | DataType::Int32 | DataType::Int64);
        let all = u64::MAX >> (64 - format.bits());
        let sign = 1 << (format.bits() - 1);
        let float = format.float();
        // The largest total with exact partial sums (floats), or without overflow (integers).
        let largest_total = match float {
            Some((significand, _)) => 1 << significand,
            None if is_signed => sign - 1,
            None => all,
        };
        let mut recipe = Self {
            quota: (largest_total / u64::from(ranks)).max(1),
            remainders: u32::try_from(largest_total).map_or(ranks, |largest| largest.min(ranks)),
            ranks,
            rank: rank.unwrap_or(0),
            flags: if is_signed { SIGNED } else { 0 },
            ..Self::default()
        };
        let mut exponents = format.exponent_ranges().sum;
        let (kind, number) = match op {
            Op::Sum => (SUM, 1),
            Op::Prod => {
                exponents = format.exponent_ranges().prod;
                (PROD, 2)
            }
            Op::Max | Op::Min => {
                let is_min = op == Op::Min;
                let keys = if float.is_some() { all >> 1 } else { all };
                recipe.flip = if is_signed { sign } else { 0 } ^ if is_min { keys } else { 0 };
                (EXTREME, if is_min { 4 } else { 3 })
            }
            Op::Avg if float.is_none() => (AVG, 5),
            Op::Avg => {
                let kind;
                (kind, exponents) = recipe.set_float_average(format, ranks, rank);
                (kind, 5)
            }
            Op::MulSum => {
                match float {
                    // A sum; odd ranks have half of their share.
                    Some(_) => exponents.low -= i32::from(rank.is_some_and(|rank| Op::scale_of(rank) > 1.0)),
                    None => recipe.flags |= DOUBLED,
                }
                (SUM, 6)
            }
        };
        recipe.kind = if rank.is_none() { kind | RESULT } else { kind };
        recipe.exponent_low = exponents.low;
        recipe.exponent_mask = exponents.mask;
        recipe.key = mix(mix(start ^ (number << 32)).wrapping_add(u64::from(ranks)));
        recipe
    }

    /// Sets flags and tolerance of an average of floats. Returns its kind and exponents.
    fn set_float_average(&mut self, format: FormatTag, ranks: u32, rank: Option<u32>) -> (u32, Exponents) {
        if ranks.is_power_of_two() && ranks <= format.exact_avg_ranks() {
            // A sum whose division by the number of ranks only changes the exponent.
            let mut exponents = format.exponent_ranges().exact_avg;
            if rank.is_none() {
                exponents.low -= ranks.trailing_zeros().cast_signed();
            }
            return (SUM, exponents);
        }
        if format.vanishing_avg_ranks().is_some_and(|vanishing| ranks >= vanishing) {
            self.flags |= VANISHING;
            return (AVG, format.exponent_ranges().vanishing);
        }
        if let (Some((significand, bias)), None) = (format.float(), rank) {
            self.tolerance = average_tolerance(format.bits(), significand, bias, ranks);
        }
        (AVG, format.exponent_ranges().pair)
    }
}

/// Returns the tolerance of the bit patterns of float averages: see value.rs.
fn average_tolerance(bits: u32, significand: u32, bias: i32, ranks: u32) -> u64 {
    let of_subnormal_reciprocal = ranks.checked_shr(bias.cast_unsigned() - 1).unwrap_or(0);
    let of_rounding = match bits {
        8 if ranks <= 1 << (10 - significand) => 0,
        8 => 1,
        _ => 2,
    };
    u64::from(of_rounding + of_subnormal_reciprocal)
}
