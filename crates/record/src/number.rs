//! Numbers in JSON: infinities and NaN are written as `null`, as by serde_json, and `null` is read as NaN.

use std::fmt;

use serde::de::{Error, Visitor};
use serde::{Deserialize, Deserializer};

/// A number in a file, including `null`, and words of nccl-tests such as `"nan"`.
struct FileNumber(f64);

impl<'de> Deserialize<'de> for FileNumber {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(AnyNumber).map(Self)
    }
}

struct AnyNumber;

impl Visitor<'_> for AnyNumber {
    type Value = f64;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a number or null")
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<f64, E> {
        Ok(value)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<f64, E> {
        Ok(value as f64)
    }

    fn visit_unit<E: Error>(self) -> Result<f64, E> {
        Ok(f64::NAN)
    }

    fn visit_str<E: Error>(self, word: &str) -> Result<f64, E> {
        let number = word.parse().ok().filter(|number: &f64| !number.is_finite());
        number.ok_or_else(|| E::custom(format_args!("'{word}' is text, not a number")))
    }
}

/// Reads a number; `null` as NaN.
pub(crate) fn or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(AnyNumber)
}

/// Reads an optional number; NaN as `None`.
pub(crate) fn if_any<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    or_nan(deserializer).map(|value| (!value.is_nan()).then_some(value))
}

/// Reads a list of numbers; `null` as NaN.
pub(crate) fn each_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<f64>, D::Error> {
    let numbers: Vec<FileNumber> = Vec::deserialize(deserializer)?;
    Ok(numbers.into_iter().map(|FileNumber(value)| value).collect())
}

/// Reads lists of numbers; `null` as NaN.
pub(crate) fn lists_or_nan<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<f64>>, D::Error> {
    let lists: Vec<Vec<FileNumber>> = Vec::deserialize(deserializer)?;
    Ok(lists.into_iter().map(|list| list.into_iter().map(|FileNumber(value)| value).collect()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct Numbers {
        #[serde(deserialize_with = "or_nan")]
        one: f64,
        #[serde(deserialize_with = "each_or_nan")]
        list: Vec<f64>,
        #[serde(deserialize_with = "lists_or_nan")]
        lists: Vec<Vec<f64>>,
    }

    #[test]
    fn null_and_words_are_read_as_nan_and_numbers_as_themselves() {
        let text = r#"{"one": "nan", "list": [1, 2.5, null], "lists": [[null], [-3e9]]}"#;
        let found: Numbers = serde_json::from_str(text).unwrap();
        assert!(found.one.is_nan() && found.list[2].is_nan() && found.lists[0][0].is_nan());
        assert_eq!((found.list[0], found.list[1], found.lists[1][0]), (1.0, 2.5, -3e9));
    }

    #[test]
    fn what_is_no_number_at_all_is_refused() {
        for wrong in ["[]", r#""fast""#, "{}", "true"] {
            let text = format!(r#"{{"one": {wrong}, "list": [], "lists": []}}"#);
            assert!(serde_json::from_str::<Numbers>(&text).is_err(), "{text}");
        }
    }
}
