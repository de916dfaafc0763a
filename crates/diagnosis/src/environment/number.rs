//! Numbers, as C's `strtoll` with base 0 reads them.

/// A number at the beginning of a text, and the rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number<'a> {
    /// The text does not begin with a number, and is read as 0.
    None,
    /// The number is too large.
    TooLarge,
    /// The number, and the ignored text behind it.
    Read {
        /// The value.
        value: i64,
        /// The rest, without spaces.
        rest: &'a str,
        /// True for numbers with a leading zero: they are octal.
        is_octal: bool,
    },
}

/// Reads the number at the beginning.
pub(super) fn read_number(text: &str) -> Number<'_> {
    let trimmed = text.trim_start();
    let (negative, unsigned) = match trimmed.strip_prefix(['-', '+']) {
        Some(rest) => (trimmed.starts_with('-'), rest),
        None => (false, trimmed),
    };
    let hexadecimal = unsigned
        .strip_prefix("0x")
        .or_else(|| unsigned.strip_prefix("0X"))
        .filter(|rest| rest.starts_with(|digit: char| digit.is_ascii_hexdigit()));
    let has_zero = unsigned.len() > 1 && unsigned.starts_with('0');
    let (digits, radix) = match hexadecimal {
        Some(rest) => (rest, 16),
        None => (unsigned, if has_zero { 8 } else { 10 }),
    };
    let length = digits.find(|digit: char| !digit.is_digit(radix)).unwrap_or(digits.len());
    if length == 0 {
        return Number::None;
    }
    let (digits, rest) = digits.split_at(length);
    match i64::from_str_radix(digits, radix) {
        Err(_) => Number::TooLarge,
        Ok(value) => Number::Read {
            value: if negative { -value } else { value },
            rest: rest.trim(),
            is_octal: radix == 8 && length > 1,
        },
    }
}

/// Returns the number read by `strtoll`, if nothing follows it. Returns 0 for words with the meaning no: they
/// get their own advice.
pub(super) fn read_whole_number(text: &str) -> Option<i64> {
    match read_number(text) {
        Number::Read { value, rest: "", .. } => Some(value),
        _ => is_no(text).then_some(0),
    }
}

/// Returns true for words with the meaning no.
pub(super) fn is_no(text: &str) -> bool {
    let word = text.trim();
    ["false", "no", "off", "disable"].iter().any(|no| no.eq_ignore_ascii_case(word))
}

/// Returns the value of a number with a unit, in its usual meaning: `4M`, `512KiB`.
pub(super) fn with_unit(value: i64, unit: &str) -> Option<i64> {
    let unit = unit.to_ascii_uppercase();
    let factor: i64 = match unit.trim_end_matches("IB").trim_end_matches('B') {
        "K" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        _ => return None,
    };
    value.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        let read_as = |value, rest| Number::Read { value, rest, is_octal: false };
        assert_eq!(read_number("4194304"), read_as(4_194_304, ""));
        assert_eq!(read_number(" -1 "), read_as(-1, ""));
        assert_eq!(read_number("0x10"), read_as(16, ""));
        assert_eq!(read_number("4M"), read_as(4, "M"));
        assert_eq!(read_number("0"), read_as(0, ""));
        assert_eq!(read_number("0xg"), read_as(0, "xg"));
        assert_eq!(read_number("010"), Number::Read { value: 8, rest: "", is_octal: true });
        assert_eq!(read_number("true"), Number::None);
        assert_eq!(read_number(""), Number::None);
        assert_eq!(read_number("-"), Number::None);
        assert_eq!(read_number("99999999999999999999"), Number::TooLarge);
        assert_eq!(
            ["0x1", "+1", "01", "0", "off", "on", "1M", ""].map(read_whole_number).map(|it| it.unwrap_or(-9)),
            [1, 1, 1, 0, 0, -9, -9, -9]
        );
        assert_eq!(with_unit(8, "MiB"), Some(8 << 20));
        assert_eq!(with_unit(8, "m"), Some(8 << 20));
        assert_eq!(with_unit(8, "x"), None);
        assert_eq!(with_unit(i64::MAX, "K"), None);
    }
}
