//! The environment variables that affect the measurement: those of nccl-tests, and one of this program.

use std::path::PathBuf;

use serde::Serialize;

use crate::data::traffic::{Matrix, Pattern};

/// Variable that turns off the fence of operations in symmetric windows.
pub const SYMMETRIC_FENCE: &str = "NCCL_BENCH_SYMMETRIC_FENCE";

/// Values of the variables ([`Variables::read_values`]).
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Variables {
    /// `NCCL_TESTS_SPLIT_MASK`, `NCCL_TESTS_SPLIT`: division of the processes into groups.
    #[serde(rename = "NCCL_TESTS_SPLIT")]
    pub split: Option<GroupSplit>,
    /// `NCCL_TESTS_DEVICE`: the first CUDA ordinal of every process.
    #[serde(skip)]
    pub device: Option<usize>,
    /// `NCCL_TESTS_MIN_BW`: requested mean bus bandwidth in GB/s, of which 90 % are enough.
    #[serde(rename = "NCCL_TESTS_MIN_BW")]
    pub min_bandwidth: Option<f64>,
    /// `NCCL_TESTS_ALLTOALLV_SPREAD`, `_MATRIX_FILE`, `_MATRIX_SCALE`.
    #[serde(flatten)]
    pub pattern: Pattern,
    /// `NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY`.
    #[serde(rename = "NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY")]
    pub traffic_summary: bool,
    /// `NCCL_BENCH_SYMMETRIC_FENCE=0`: operations in symmetric windows are not ordered after kernels that
    /// trigger programmatic launch early, where the loaded NCCL needs that.
    #[serde(rename = "NCCL_BENCH_SYMMETRIC_FENCE")]
    pub without_symmetric_fence: bool,
}

/// Division of the processes into groups that measure at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum GroupSplit {
    /// The process number, masked: `number & mask`.
    And(u64),
    /// The process number with bits set: `number | bits`.
    Or(u64),
    /// By the remainder of the process number.
    Modulo(u64),
    /// By the quotient of the process number.
    Divide(u64),
}

impl GroupSplit {
    /// The group of a process.
    pub fn group_color(self, process: usize) -> u64 {
        let process = process as u64;
        match self {
            Self::And(mask) => process & mask,
            Self::Or(bits) => process | bits,
            Self::Modulo(number) => process % number,
            Self::Divide(number) => process / number,
        }
    }

    fn from_mask(text: &str) -> Option<Self> {
        let digits = text.trim_start_matches("0x").trim_start_matches("0X");
        u64::from_str_radix(digits, 16).ok().map(Self::And)
    }

    fn parse(text: &str) -> Option<Self> {
        let start = text.find(|c: char| c.is_ascii_digit())?;
        let (operator, number) = text.split_at(start);
        let number = number_of_any_base(number.trim())?;
        match operator.trim().to_ascii_uppercase().as_str() {
            "AND" | "&" => Some(Self::And(number)),
            "OR" | "|" => Some(Self::Or(number)),
            "MOD" | "%" => (number > 0).then_some(Self::Modulo(number)),
            "DIV" | "/" => (number > 0).then_some(Self::Divide(number)),
            _ => None,
        }
    }
}

/// Parses a decimal, hexadecimal (0x), binary (0b) or octal (0) number.
fn number_of_any_base(text: &str) -> Option<u64> {
    let lower = text.to_ascii_lowercase();
    let (digits, base) = if let Some(digits) = lower.strip_prefix("0x") {
        (digits, 16)
    } else if let Some(digits) = lower.strip_prefix("0b") {
        (digits, 2)
    } else if lower.len() > 1 && lower.starts_with('0') {
        (&lower[1..], 8)
    } else {
        (&*lower, 10)
    };
    u64::from_str_radix(digits, base).ok()
}

impl Variables {
    /// Reads the variables through `variable`, which returns the value of a variable that is set.
    ///
    /// # Errors
    /// When a value is invalid. The message names the variable and the allowed values.
    pub fn read_values(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let set = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let mask = parse_variable(
            &set,
            "NCCL_TESTS_SPLIT_MASK",
            GroupSplit::from_mask,
            "a hexadecimal mask, as in 0x7",
        )?;
        let split = match mask {
            None => parse_variable(
                &set,
                "NCCL_TESTS_SPLIT",
                GroupSplit::parse,
                "AND, OR, MOD or DIV and a number, as in MOD 8 or AND 0x7",
            )?,
            mask => mask,
        };
        let number = |name, good: fn(&f64) -> bool, expected| {
            parse_variable(&set, name, |text| text.parse().ok().filter(good), expected)
        };
        let spread = number(
            "NCCL_TESTS_ALLTOALLV_SPREAD",
            |value| (0.0..=1.0).contains(value),
            "a number from 0 (even) to 1 (nothing to itself)",
        )?;
        let scale = number(
            "NCCL_TESTS_ALLTOALLV_MATRIX_SCALE",
            |value| *value >= 0.0 && value.is_finite(),
            "a number from 0 on",
        )?;
        let pattern = match set("NCCL_TESTS_ALLTOALLV_MATRIX_FILE") {
            Some(path) => Pattern::Matrix(
                Matrix::read_file(&PathBuf::from(path), scale.unwrap_or(1.0))
                    .map_err(|problem| format!("NCCL_TESTS_ALLTOALLV_MATRIX_FILE: {problem}"))?,
            ),
            None => Pattern::Spread(spread.unwrap_or(1.0)),
        };
        let number_of_gpu = |text: &str| text.parse().ok();
        let device =
            parse_variable(&set, "NCCL_TESTS_DEVICE", number_of_gpu, "the number of a GPU, from 0 on")?;
        let switch = |text: &str| ["0", "1"].into_iter().position(|value| value == text);
        let fence = parse_variable(&set, SYMMETRIC_FENCE, switch, "0 (off) or 1 (on, the default)")?;
        Ok(Self {
            split,
            device,
            min_bandwidth: number(
                "NCCL_TESTS_MIN_BW",
                |value| *value >= 0.0 && value.is_finite(),
                "GB/s from 0 on, as in 350",
            )?,
            pattern,
            traffic_summary: set("NCCL_TESTS_ALLTOALLV_PRINT_SUMMARY")
                .is_some_and(|value| value.trim() != "0"),
            without_symmetric_fence: fence == Some(0),
        })
    }
}

/// The value of a variable that is set, without surrounding white space, through `parse`.
fn parse_variable<T>(
    set: &impl Fn(&str) -> Option<String>,
    name: &str,
    parse: impl Fn(&str) -> Option<T>,
    expected: &str,
) -> Result<Option<T>, String> {
    let Some(text) = set(name) else { return Ok(None) };
    parse(text.trim()).map(Some).ok_or_else(|| format!("{name}={text}: write {expected}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Variables, String> {
        Variables::read_values(|name| {
            variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn processes_are_split_as_in_nccl_tests() {
        let colors = |name, value| {
            let split = read(&[(name, value)]).unwrap().split.unwrap();
            (0..6).map(|process| split.group_color(process)).collect::<Vec<_>>()
        };
        assert_eq!(colors("NCCL_TESTS_SPLIT_MASK", "0x3"), [0, 1, 2, 3, 0, 1]);
        assert_eq!(colors("NCCL_TESTS_SPLIT_MASK", "10"), [0; 6]);
        assert_eq!(colors("NCCL_TESTS_SPLIT", "MOD 4"), [0, 1, 2, 3, 0, 1]);
        assert_eq!(colors("NCCL_TESTS_SPLIT", "div2"), [0, 0, 1, 1, 2, 2]);
        assert_eq!(colors("NCCL_TESTS_SPLIT", "& 0b1"), [0, 1, 0, 1, 0, 1]);
        assert_eq!(colors("NCCL_TESTS_SPLIT", "| 010"), [8, 9, 10, 11, 12, 13]);
    }

    #[test]
    fn only_0_turns_the_fence_off() {
        let off = |value| read(&[("NCCL_BENCH_SYMMETRIC_FENCE", value)]).unwrap().without_symmetric_fence;
        assert_eq!([" 0 ", "1", ""].map(off), [true, false, false]);
    }

    #[test]
    fn what_cannot_be_understood_is_refused() {
        for (name, value, words) in [
            ("NCCL_TESTS_SPLIT", "MOD 0", "AND, OR, MOD or DIV"),
            ("NCCL_TESTS_SPLIT", "XOR 2", "AND, OR, MOD or DIV"),
            ("NCCL_TESTS_SPLIT_MASK", "seven", "hexadecimal mask"),
            ("NCCL_TESTS_DEVICE", "-1", "number of a GPU"),
            ("NCCL_TESTS_MIN_BW", "fast", "GB/s"),
            ("NCCL_TESTS_MIN_BW", "-1", "GB/s from 0 on"),
            ("NCCL_TESTS_ALLTOALLV_SPREAD", "2", "from 0 (even) to 1"),
            ("NCCL_BENCH_SYMMETRIC_FENCE", "off", "0 (off) or 1"),
            ("NCCL_TESTS_ALLTOALLV_MATRIX_FILE", "/nowhere/matrix", "cannot be read"),
        ] {
            let error = read(&[(name, value)]).unwrap_err();
            assert!(error.contains(name) && error.contains(words), "{error}");
        }
        let nothing = read(&[("NCCL_TESTS_SPLIT", "")]).unwrap();
        assert_eq!(nothing, Variables::default());
        assert_eq!(nothing.pattern, Pattern::Spread(1.0));
    }
}
