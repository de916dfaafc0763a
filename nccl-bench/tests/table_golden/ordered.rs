//! JSON values with the order of their keys.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};

/// JSON with the order of its keys.
#[derive(Debug, PartialEq)]
pub(crate) enum Ordered {
    Object(Vec<(String, Self)>),
    List(Vec<Self>),
    Number(f64),
    Text(String),
    Null,
}

impl<'de> Deserialize<'de> for Ordered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Any)
    }
}

pub(crate) struct Any;

impl<'de> Visitor<'de> for Any {
    type Value = Ordered;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("what nccl-tests writes, which are no booleans")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Ordered, A::Error> {
        let mut entries = Vec::new();
        while let Some(entry) = map.next_entry()? {
            entries.push(entry);
        }
        Ok(Ordered::Object(entries))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Ordered, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(Ordered::List(items))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Ordered, E> {
        Ok(Ordered::Number(value as f64))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Ordered, E> {
        Ok(Ordered::Number(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Ordered, E> {
        Ok(Ordered::Text(value.to_owned()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Ordered, E> {
        Ok(Ordered::Null)
    }
}

pub(crate) fn assert_same(place: &str, found: &Ordered, expected: &Ordered) {
    match (found, expected) {
        // The environment of one file was left out, and the other's has what was asked for.
        (Ordered::List(_), Ordered::List(_)) if place == ".env" => {}
        (Ordered::Object(found), Ordered::Object(expected)) => {
            let keys = |entries: &[(String, Ordered)]| {
                entries.iter().map(|(key, _)| key.clone()).collect::<Vec<_>>()
            };
            assert_eq!(keys(found), keys(expected), "{place}");
            for ((key, found), (_, expected)) in found.iter().zip(expected) {
                assert_same(&format!("{place}.{key}"), found, expected);
            }
        }
        (Ordered::List(found), Ordered::List(expected)) => {
            assert_eq!(found.len(), expected.len(), "{place}");
            for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
                assert_same(&format!("{place}[{index}]"), found, expected);
            }
        }
        // Made from times and bandwidths, of which the file has six decimals.
        (Ordered::Number(found), Ordered::Number(expected))
            if ["bandwidth", "avg_us", "stdev_us", "cv_pct"].iter().any(|name| place.ends_with(name)) =>
        {
            assert!((found - expected).abs() <= 2e-6, "{place}: {found} {expected}");
        }
        _ => assert_eq!(found, expected, "{place}"),
    }
}
