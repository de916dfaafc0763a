//! The operators with test data.

use std::fmt;
use std::str::FromStr;

use collectives::ReduceOp;

/// A reduction operator of nccl-tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
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
    /// Sum of inputs, each first multiplied by its rank's own number ([`Op::scale_of`]); integers wrap. The
    /// operator has to be created per communicator and type (`ncclRedOpCreatePreMulSum`).
    MulSum,
}

impl Op {
    /// Every operator, in nccl-tests' order.
    pub const ALL: [Self; 6] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg, Self::MulSum];

    /// Returns the name in nccl-tests.
    pub const fn operator_name(self) -> &'static str {
        match self.built_in() {
            Some(op) => op.name(),
            None => "mulsum",
        }
    }

    /// Returns the operator built into every backend; `None` for an operator created per communicator.
    pub const fn built_in(self) -> Option<ReduceOp> {
        match self {
            Self::Sum => Some(ReduceOp::Sum),
            Self::Prod => Some(ReduceOp::Prod),
            Self::Max => Some(ReduceOp::Max),
            Self::Min => Some(ReduceOp::Min),
            Self::Avg => Some(ReduceOp::Avg),
            Self::MulSum => None,
        }
    }

    /// Returns the factor of `rank`'s input in a [`MulSum`](Self::MulSum), as in nccl-tests: 1 on even ranks,
    /// 2 on odd ones. Both are exact in every element type.
    pub const fn scale_of(rank: u32) -> f64 {
        if rank.is_multiple_of(2) { 1.0 } else { 2.0 }
    }
}

impl FromStr for Op {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|op| op.operator_name() == text);
        found.ok_or_else(|| format!("'{text}' is none of {}", Self::ALL.map(Self::operator_name).join(", ")))
    }
}

impl fmt::Display for Op {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.operator_name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_parse_and_are_those_of_the_built_in_operators() {
        for op in Op::ALL {
            assert_eq!(op.operator_name().parse(), Ok(op));
            assert_eq!(format!("{op:>6}").trim_start(), op.operator_name());
        }
        for op in ReduceOp::ALL {
            let ours = Op::ALL.into_iter().find(|known| known.built_in() == Some(op)).unwrap();
            assert_eq!((ours.built_in(), ours.operator_name()), (Some(op), op.name()));
        }
        assert_eq!(Op::ALL.map(Op::built_in)[..5], ReduceOp::ALL.map(Some));
        assert_eq!(Op::MulSum.built_in(), None);
        let error = "mean".parse::<Op>().unwrap_err().to_string();
        assert_eq!(error, "'mean' is none of sum, prod, max, min, avg, mulsum");
    }

    #[test]
    fn mulsum_doubles_odd_ranks() {
        assert_eq!([0, 1, 2, 3, 16_777_215].map(Op::scale_of), [1.0, 2.0, 1.0, 2.0, 2.0]);
    }
}
