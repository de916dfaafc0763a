//! A reader of a JSON object, field by field, with only one measurement in memory at a time.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use super::error::ReadProblem;
use super::nccl_tests;
use crate::run::{Measurement, SCHEMA_VERSION};

/// Fields of native files and of nccl-tests' files to be kept unchanged. Other fields are skipped, except for
/// the two lists of measurements.
const KEPT: [&str; 22] = [
    "kind",
    "schema_version",
    "program",
    "command",
    "started_at",
    "ended_at",
    "outcome",
    "provenance",
    "settings",
    "ranks",
    "notes",
    "start_phases",
    "left_out", // native
    "version",
    "start_time",
    "args",
    "env",
    "nccl_version",
    "config",
    "errors",
    "out_of_bounds",
    "end_time", // nccl-tests'
];

/// The part of a JSON object read so far; after an error, the part before the error.
pub(super) struct FieldReader<'a> {
    pub(super) fields: Map<String, Value>,
    take: &'a mut dyn FnMut(Measurement),
    /// Number of measurements passed to `take`.
    pub(super) taken: usize,
    /// Number of rows in the file of nccl-tests.
    pub(super) rows: usize,
    /// See [`Measurement::has_uncounted_mismatch`].
    pub(super) has_uncounted_mismatch: bool,
    /// Name of the list found so far, `measurements` or `results`.
    pub(super) list: Option<&'static str>,
    /// The reason for the end of reading, if serde's error does not give it.
    pub(super) problem: Option<ReadProblem>,
}

impl<'a> FieldReader<'a> {
    pub(super) fn new(take: &'a mut dyn FnMut(Measurement)) -> Self {
        Self {
            fields: Map::new(),
            take,
            taken: 0,
            rows: 0,
            has_uncounted_mismatch: false,
            list: None,
            problem: None,
        }
    }

    pub(super) fn is_from_nccl_tests(&self) -> bool {
        self.fields.get("version").is_some_and(Value::is_u64) && self.list == Some("results")
    }

    pub(super) fn take_measurement(&mut self, measurement: Measurement) {
        self.taken += 1;
        self.has_uncounted_mismatch |= measurement.has_uncounted_mismatch();
        (self.take)(measurement);
    }

    /// Notes the beginning of a list of measurements. Fails for a second list, or an unknown version.
    fn begin_list<E: serde::de::Error>(&mut self, list: &'static str) -> Result<(), E> {
        if self.list.replace(list).is_some() {
            return Err(E::custom("it has two lists of measurements"));
        }
        let known = match list {
            "results" => nccl_tests::known_version(&self.fields),
            _ => known_version(&self.fields),
        };
        known.map_err(|problem| {
            self.problem = Some(problem);
            E::custom("the version is not known")
        })
    }

    fn read_field<'de, A: MapAccess<'de>>(&mut self, name: String, map: &mut A) -> Result<(), A::Error> {
        match name.as_str() {
            "measurements" => {
                self.begin_list("measurements")?;
                map.next_value_seed(Each::new(|measurement| self.take_measurement(measurement)))
            }
            "results" if nccl_tests::has_head(&self.fields) => {
                self.begin_list("results")?;
                let head = nccl_tests::read_head(&self.fields).map_err(A::Error::custom)?;
                map.next_value_seed(Each::new(|row| {
                    head.row_measurements(self.rows, &row)
                        .for_each(|measurement| self.take_measurement(measurement));
                    self.rows += 1;
                }))
            }
            name if KEPT.contains(&name) => {
                let value = map.next_value()?;
                self.fields.insert(name.to_owned(), value);
                Ok(())
            }
            _ => map.next_value::<IgnoredAny>().map(drop),
        }
    }
}

impl<'de> DeserializeSeed<'de> for &mut FieldReader<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for &mut FieldReader<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<String>()? {
            self.read_field(name, &mut map)?;
        }
        Ok(())
    }
}

/// Passes each element of a list to `give` as soon as it has been read.
struct Each<T, F> {
    give: F,
    element: PhantomData<T>,
}

impl<T, F: FnMut(T)> Each<T, F> {
    fn new(give: F) -> Self {
        Self { give, element: PhantomData }
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> DeserializeSeed<'de> for Each<T, F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, T: Deserialize<'de>, F: FnMut(T)> Visitor<'de> for Each<T, F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list")
    }

    fn visit_seq<A: SeqAccess<'de>>(mut self, mut list: A) -> Result<(), A::Error> {
        while let Some(element) = list.next_element()? {
            (self.give)(element);
        }
        Ok(())
    }
}

/// Fails for a native file in a version of the format unknown to this program; the first was 1.
pub(super) fn known_version(fields: &Map<String, Value>) -> Result<(), ReadProblem> {
    match fields.get("schema_version").and_then(Value::as_u64) {
        Some(0) => Err(ReadProblem::Damaged("it has version 0 of the format, and the first is 1".to_owned())),
        Some(found) if found > u64::from(SCHEMA_VERSION) => {
            Err(ReadProblem::Newer { found, known: SCHEMA_VERSION })
        }
        _ => Ok(()),
    }
}
