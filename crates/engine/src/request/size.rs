//! Message sizes: parsing them, printing them, and stepping through a sweep.

use std::fmt;
use std::str::FromStr;

const UNITS: [(char, u64); 4] = [('K', 1 << 10), ('M', 1 << 20), ('G', 1 << 30), ('T', 1 << 40)];

/// A number of bytes on the command line: `8`, `64K`, `1.5M`, `8G`, `1T`; K, M, G and T are binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl FromStr for Size {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = |reason| {
            format!(
                "'{text}' is not a size: {reason}; write bytes, or a number with K, M, G or T (binary), as \
                 in 8, 64K, 1.5M, 8G"
            )
        };
        let trimmed = text.trim();
        if trimmed.starts_with('-') {
            return Err(invalid("it is negative"));
        }
        if let Some(digits) = trimmed.strip_prefix("0x").or_else(|| trimmed.strip_prefix("0X")) {
            let bytes = u64::from_str_radix(digits, 16).map_err(|_| invalid("it is not a number"))?;
            return if bytes > 0 { Ok(Self(bytes)) } else { Err(invalid("it must be at least one byte")) };
        }
        let digits = trimmed.trim_end_matches(|c: char| c.is_ascii_alphabetic()).trim_end();
        let unit = trimmed[digits.len()..].trim_start();
        let plain = |c: char| c.is_ascii_digit() || matches!(c, '.' | 'e' | 'E' | '+');
        if digits.is_empty() || !digits.chars().all(plain) {
            return Err(invalid("it is not a number"));
        }
        let value: f64 = digits.parse().map_err(|_| invalid("it is not a number"))?;
        let upper = unit.to_ascii_uppercase();
        let factor = match upper.as_str() {
            "" => 1,
            unit => UNITS
                .iter()
                .find(|(letter, _)| {
                    unit.strip_prefix(*letter).is_some_and(|rest| matches!(rest, "" | "B" | "IB"))
                })
                .map(|&(_, factor)| factor)
                .ok_or_else(|| invalid("its unit is unknown"))?,
        };
        let bytes = value * factor as f64;
        if bytes >= 2f64.powi(53) {
            return Err(invalid("it is too large"));
        }
        if bytes < 1.0 {
            return Err(invalid("it must be at least one byte"));
        }
        Ok(Self(bytes as u64))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().rev().find(|&&(_, factor)| self.0 >= factor) {
            Some(&(letter, factor)) if self.0.is_multiple_of(factor) => {
                write!(formatter, "{}{letter}", self.0 / factor)
            }
            Some(&(letter, factor)) => write!(formatter, "{:.1}{letter}", self.0 as f64 / factor as f64),
            None => write!(formatter, "{}", self.0),
        }
    }
}

/// Step of a sweep from one size to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeStep {
    /// Multiply by this factor, at least 2.
    Factor(u64),
    /// Add this many bytes, at least 1.
    Bytes(u64),
}

impl SizeStep {
    /// Returns true if the step leads to a larger size.
    pub(crate) fn is_advancing(self) -> bool {
        matches!(self, Self::Factor(2..) | Self::Bytes(1..))
    }
}

/// The sizes of a sweep: from `min` to `max` inclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sweep {
    /// Smallest size in bytes.
    pub min: u64,
    /// Largest size in bytes; the last size of the sweep may be smaller.
    pub max: u64,
    /// Step from one size to the next.
    pub step: SizeStep,
}

impl Sweep {
    /// The requested sizes, in bytes. Each collective rounds them to what it can move.
    pub fn list_sizes(self) -> impl Iterator<Item = u64> {
        let next = move |&size: &u64| match self.step {
            SizeStep::Factor(factor) => size.checked_mul(factor),
            SizeStep::Bytes(bytes) => size.checked_add(bytes),
        };
        std::iter::successors(Some(self.min), next).take_while(move |&size| size <= self.max)
    }

    /// The sizes of the warm-up: powers of two times the smallest, whatever the sweep's own step, as in
    /// nccl-tests. In descending order, so that the sweep's first size is the last one warmed up.
    pub fn warm_up_sizes(self) -> impl Iterator<Item = u64> {
        let ladder: Vec<u64> = Self { step: SizeStep::Factor(2), ..self }.list_sizes().collect();
        ladder.into_iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_parse_as_in_nccl_tests() {
        for (text, bytes) in [
            ("8", 8),
            ("64K", 65536),
            ("64k", 65536),
            ("1.5M", 1_572_864),
            ("8G", 8 << 30),
            ("64 k", 65536),
            ("1GB", 1 << 30),
            ("1GiB", 1 << 30),
            ("1T", 1 << 40),
            ("0.5TiB", 1 << 39),
            ("1e3", 1000),
            ("1.5e1K", 15 << 10),
            ("0x40", 64),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_with_its_reason() {
        for (text, reason) in [
            ("1P", "unit is unknown"),
            ("-5", "negative"),
            ("0", "at least one byte"),
            ("8Q", "unit"),
            ("", "not a number"),
            ("K", "not a number"),
            ("1e", "unit is unknown"),
            ("0xg", "not a number"),
            ("1..5M", "not a number"),
            ("nan", "not a number"),
            ("99999999999999999999G", "too large"),
        ] {
            let message = text.parse::<Size>().unwrap_err().to_string();
            assert!(message.contains(reason), "{text}: {message}");
        }
    }

    #[test]
    fn sizes_print_in_the_largest_unit() {
        assert_eq!(Size(8).to_string(), "8");
        assert_eq!(Size(64 << 20).to_string(), "64M");
        assert_eq!(Size(3 << 29).to_string(), "1.5G");
    }

    #[test]
    fn a_sweep_ends_at_its_largest_size_without_overflow() {
        let sweep = |min, max, step| Sweep { min, max, step }.list_sizes().collect::<Vec<_>>();
        assert_eq!(sweep(8, 64, SizeStep::Factor(2)), [8, 16, 32, 64]);
        assert_eq!(sweep(8, 63, SizeStep::Factor(2)), [8, 16, 32]);
        assert_eq!(sweep(10, 40, SizeStep::Bytes(15)), [10, 25, 40]);
        assert_eq!(sweep(u64::MAX - 1, u64::MAX, SizeStep::Bytes(8)), [u64::MAX - 1]);
        let ladder = Sweep { min: 8, max: 100, step: SizeStep::Bytes(90) };
        assert_eq!(ladder.warm_up_sizes().collect::<Vec<_>>(), [64, 32, 16, 8]);
    }
}
