//! Storage formats: properties of element types with an effect on test data.

use collectives::DataType;

/// Exponents of the scaling powers of two for floats of one operator, from `low` to `low + mask`. `mask` is a
/// power of two minus one, for masking random bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exponents {
    pub(super) low: i32,
    pub(super) mask: u32,
}

/// Scaling powers of two for the data of a float format.
pub(super) struct Ranges {
    /// Range of a sum: all values from half of `2^low` (mulsum) to the largest total
    /// `2^(SIGNIFICAND + low + mask)` are normal floats.
    pub(super) sum: Exponents,
    /// Range of a product: every partial product lies at most 2^4 beside them, and is a normal float.
    pub(super) prod: Exponents,
    /// Range of an exact average (see [`FormatTag::exact_avg_ranks`]): as for a sum. The smallest share
    /// divided by the number of ranks is also normal.
    pub(super) exact_avg: Exponents,
    /// Range of any other average: the two shares are normal and their sum is finite; so are both divided by
    /// the number of ranks. The smallest average lies so far from zero that no NaN of the other sign comes
    /// within the tolerance. (Such a NaN is next to zero in the order of bit patterns.)
    pub(super) pair: Exponents,
    /// Range of an average of zero (see [`FormatTag::vanishing_avg_ranks`]): the two shares are normal, and
    /// their sum divided by so many ranks is below half of the smallest subnormal. Only for formats of 8
    /// bits.
    pub(super) vanishing: Exponents,
}

/// Storage format of an element type. Signed and unsigned integers of one size share a format.
pub(super) trait ElementFormat: 'static {
    /// Bits of an element: 8, 16, 32 or 64.
    const BITS: u32;
    const FLOAT: bool;
    /// Bits of a float's significand, with the hidden one. Without meaning for integers.
    const SIGNIFICAND: u32;
    /// Exponent bias of a float. Without meaning for integers.
    const BIAS: i32;

    /// Writes the low bits of `bits` to an element's memory.
    fn store(bits: u64, element: &mut [u8]);
    fn load(element: &[u8]) -> u64;
}

macro_rules! formats {
    ($($name:ident: $word:ty, $float:literal, $significand:literal, $bias:literal;)*) => {
    $(
        /// See [`ElementFormat`].
        pub(super) struct $name;

        impl ElementFormat for $name {
            const BITS: u32 = <$word>::BITS;
            const FLOAT: bool = $float;
            const SIGNIFICAND: u32 = $significand;
            const BIAS: i32 = $bias;

            #[inline(always)]
            #[allow(clippy::cast_possible_truncation)]
            fn store(bits: u64, element: &mut [u8]) {
                element.copy_from_slice(&(bits as $word).to_ne_bytes());
            }

            #[inline(always)]
            fn load(element: &[u8]) -> u64 {
                let mut word = [0; size_of::<$word>()];
                word.copy_from_slice(element);
                u64::from(<$word>::from_ne_bytes(word))
            }
        }
    )*

        /// A format chosen at run time.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(super) enum FormatTag {
            $($name),*
        }

        impl FormatTag {
            #[cfg(test)]
            pub(super) const ALL: &[Self] = &[$(Self::$name),*];

            pub(super) const fn bits(self) -> u32 {
                match self {
                    $(Self::$name => $name::BITS),*
                }
            }

            /// Returns the significand bits and bias of a float format.
            pub(super) const fn float(self) -> Option<(u32, i32)> {
                match self {
                    $(Self::$name if $float => Some(($significand, $bias)),)*
                    _ => None,
                }
            }

            /// Returns the kernels for the format, compiled from kernels.cu by `cargo xtask kernels`.
            pub(super) const fn ptx(self) -> &'static str {
                match self {
                    $(Self::$name => include_str!(concat!("ptx/", stringify!($name), ".ptx"))),*
                }
            }
        }
    };
}

formats! {
    Int8: u8, false, 24, 127;
    Int32: u32, false, 24, 127;
    Int64: u64, false, 24, 127;
    Float16: u16, true, 11, 15;
    Bfloat16: u16, true, 8, 127;
    Float32: u32, true, 24, 127;
    Float64: u64, true, 53, 1023;
    Float8E4M3: u8, true, 4, 7;
    Float8E5M2: u8, true, 3, 15;
}

impl FormatTag {
    /// Returns the format of a type; an error for a type of `collectives` without test data: today none.
    pub(super) fn from_data_type(data_type: DataType) -> anyhow::Result<Self> {
        Ok(match data_type {
            DataType::Int8 | DataType::Uint8 => Self::Int8,
            DataType::Int32 | DataType::Uint32 => Self::Int32,
            DataType::Int64 | DataType::Uint64 => Self::Int64,
            DataType::Float16 => Self::Float16,
            DataType::Bfloat16 => Self::Bfloat16,
            DataType::Float32 => Self::Float32,
            DataType::Float64 => Self::Float64,
            DataType::Float8E4M3 => Self::Float8E4M3,
            DataType::Float8E5M2 => Self::Float8E5M2,
            _ => anyhow::bail!("test data: type '{data_type}' is not supported"),
        })
    }

    /// Returns the ranges of a float format.
    pub(super) fn exponent_ranges(self) -> Ranges {
        let ranges = match self {
            Self::Float8E4M3 => [(-5, 7), (-1, 3), (3, 1), (2, 3), (-8, 3)],
            Self::Float8E5M2 => [(-9, 15), (-8, 15), (-4, 15), (4, 7), (-12, 7)],
            Self::Float16 => [(-11, 15), (-8, 15), (1, 3), (1, 3), (-12, 7)],
            _ => [(-32, 63), (-32, 63), (-32, 63), (-32, 63), (-12, 7)],
        };
        let [sum, prod, exact_avg, pair, vanishing] = ranges.map(|(low, mask)| Exponents { low, mask });
        Ranges { sum, prod, exact_avg, pair, vanishing }
    }

    /// Returns the largest number of ranks, a power of two, with an exact average. Only averages over powers
    /// of two of ranks are exact: 1/n is a number of the format, and the smallest share times 1/n is normal.
    pub(super) const fn exact_avg_ranks(self) -> u32 {
        match self {
            Self::Float8E4M3 => 1 << 9,
            _ => 1 << 10,
        }
    }

    /// Returns the smallest number of ranks n for which 1/n is zero in the format: at most half of the
    /// smallest subnormal. Only for formats of 8 bits is n within
    /// [`DataSpec::MAX_RANKS`](super::DataSpec::MAX_RANKS).
    pub(super) const fn vanishing_avg_ranks(self) -> Option<u32> {
        match self {
            Self::Float8E4M3 => Some(1 << (Float8E4M3::BIAS.cast_unsigned() + Float8E4M3::SIGNIFICAND - 1)),
            Self::Float8E5M2 => Some(1 << (Float8E5M2::BIAS.cast_unsigned() + Float8E5M2::SIGNIFICAND - 1)),
            _ => None,
        }
    }
}
