//! Element types and reduction operators, shared by all backends.

use std::fmt;
use std::str::FromStr;

use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

use crate::name::{UnknownName, named};

/// Defines [`DataType`] and the [`Element`]s: a variant, the Rust type, and the name in nccl-tests.
macro_rules! elements {
    ($($(#[$doc:meta])* $data_type:ident: $type:ident, $name:literal;)*) => {
        /// Type of a buffer's elements, in the order of `ncclDataType_t` and with its numbers.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum DataType {
            $(
                #[doc = concat!("`", stringify!($type), "`.")]
                $(#[$doc])*
                $data_type,
            )*
        }

        impl DataType {
            /// All types, in NCCL's order.
            pub const ALL: [Self; 12] = [$(Self::$data_type),*];

            /// Returns the size of one element in bytes.
            pub const fn size(self) -> usize {
                match self { $(Self::$data_type => size_of::<$type>(),)* }
            }

            /// Returns the name in nccl-tests: `float`, `half`, `bfloat16`, `int8`, ...
            pub const fn name(self) -> &'static str {
                match self { $(Self::$data_type => $name,)* }
            }

            /// Returns the name in Rust, also accepted by parsing: `f32`, `f16`, `bf16`, `i8`, ...
            pub const fn rust_name(self) -> &'static str {
                match self { $(Self::$data_type => stringify!($type),)* }
            }
        }

        $(
            impl sealed::Sealed for $type {}
            // SAFETY: the tag names this very type; numbers have no invalid bit patterns.
            unsafe impl Element for $type {
                const DATA_TYPE: DataType = DataType::$data_type;
            }
        )*
    };
}

elements! {
    Int8: i8, "int8";
    Uint8: u8, "uint8";
    Int32: i32, "int32";
    Uint32: u32, "uint32";
    Int64: i64, "int64";
    Uint64: u64, "uint64";
    /// IEEE 754 binary16, of the crate `half`.
    Float16: f16, "half";
    Float32: f32, "float";
    Float64: f64, "double";
    /// bfloat16, of the crate `half`.
    Bfloat16: bf16, "bfloat16";
    /// 4 bits of exponent, 3 of fraction, no infinities, of the crate `float8`. NCCL 2.24 or newer.
    Float8E4M3: F8E4M3, "f8e4m3";
    /// 5 bits of exponent, 2 of fraction, of the crate `float8`. NCCL 2.24 or newer.
    Float8E5M2: F8E5M2, "f8e5m2";
}

impl DataType {
    /// Returns true for floating-point types.
    pub const fn is_float(self) -> bool {
        !matches!(self, Self::Int8 | Self::Uint8 | Self::Int32 | Self::Uint32 | Self::Int64 | Self::Uint64)
    }
}

/// A reduction operator of all backends, in the order of `ncclRedOp_t` and with its numbers and nccl-tests'
/// names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ReduceOp {
    /// Sum; integers wrap.
    Sum,
    /// Product; integers wrap.
    Prod,
    /// Largest value.
    Max,
    /// Smallest value.
    Min,
    /// Sum divided by the number of ranks; integers truncate toward zero.
    Avg,
}

named! {
    ReduceOp:
    Sum = "sum",
    Prod = "prod",
    Max = "max",
    Min = "min",
    Avg = "avg",
}

impl FromStr for DataType {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let found = Self::ALL.into_iter().find(|each| [each.name(), each.rust_name()].contains(&text));
        found.ok_or_else(|| UnknownName::new(text, &Self::ALL.map(Self::name)))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

mod sealed {
    pub trait Sealed {}
}

/// A Rust type with values that collectives can transfer and reduce.
///
/// # Safety
/// Sealed: `DATA_TYPE` describes exactly the memory of `Self`, and every bit pattern is a valid value.
pub unsafe trait Element:
    sealed::Sealed + Copy + Default + fmt::Debug + PartialEq + Send + Sync + 'static
{
    /// Tag of the type.
    const DATA_TYPE: DataType;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bit_floats_have_the_names_of_nccl_tests_and_of_rust() {
        for (names, data_type) in
            [(["f8e4m3", "F8E4M3"], DataType::Float8E4M3), (["f8e5m2", "F8E5M2"], DataType::Float8E5M2)]
        {
            assert_eq!(names.map(str::parse), [Ok(data_type), Ok(data_type)]);
            assert_eq!(data_type.to_string(), names[0]);
            assert_eq!((data_type.size(), data_type.is_float()), (1, true));
        }
        let error = "f8".parse::<DataType>().unwrap_err().to_string();
        assert!(error.ends_with("double, bfloat16, f8e4m3, f8e5m2"), "{error}");
    }

    #[test]
    fn both_names_parse_and_unknown_names_list_the_known_ones() {
        for data_type in DataType::ALL {
            assert_eq!(data_type.name().parse(), Ok(data_type));
            assert_eq!(data_type.rust_name().parse(), Ok(data_type));
        }
        for op in ReduceOp::ALL {
            assert_eq!(op.name().parse(), Ok(op));
        }
        let error = "nonsense".parse::<ReduceOp>().unwrap_err();
        assert_eq!(error.to_string(), "'nonsense' is none of sum, prod, max, min, avg");
    }
}
