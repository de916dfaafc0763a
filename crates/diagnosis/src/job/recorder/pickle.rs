//! Values of Python's pickle format, as far as flight recorder dumps use it: no classes, no calls.
//!
//! Values lie in one list and refer to each other by index, since a pickle may contain a value many times, or
//! deep in other values. A reader that copies shared values, or descends without a limit, can be made to
//! exhaust memory or stack.

use std::borrow::Cow;
use std::cell::Cell;
use std::collections::BTreeMap;

use serde::de::value::{Error, MapDeserializer, SeqDeserializer};
use serde::de::{DeserializeOwned, Deserializer, Error as _, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use crate::job::malformed::Malformed;

/// Largest number of values taken from a pickle. Shared values count each time.
const MOST_VISITS: usize = 32 << 20;

/// Checks that bytes begin like a pickle of protocol 2 or later.
pub(super) fn is_pickle(bytes: &[u8]) -> bool {
    matches!(bytes, [0x80, 2..=5, ..])
}

/// Reads a value.
///
/// # Errors
/// The first operation without a plain value, or the missing field.
pub(super) fn read_pickle<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, Malformed> {
    let mut machine = PickleMachine {
        bytes,
        at: 0,
        values: Vec::new(),
        stack: Vec::new(),
        marks: Vec::new(),
        memo: BTreeMap::new(),
    };
    let root =
        machine.run_to_end().map_err(|fault| Malformed::new(format!("{fault} (byte {})", machine.at)))?;
    let visits = Cell::new(MOST_VISITS);
    let reference = Reference { values: &machine.values, index: root, visits: &visits };
    T::deserialize(reference).map_err(Malformed::new)
}

/// A value. Its parts are indices of other values.
#[derive(Debug)]
enum PickleValue<'a> {
    None,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(Cow<'a, str>),
    List(Vec<usize>),
    Dictionary(Vec<(usize, usize)>),
}

/// Stack machine for a pickle.
struct PickleMachine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Vec<PickleValue<'a>>,
    stack: Vec<usize>,
    marks: Vec<usize>,
    memo: BTreeMap<u32, usize>,
}

/// A fault in a pickle.
type PickleError = String;

impl<'a> PickleMachine<'a> {
    /// Runs to the end, and returns the index of the result.
    fn run_to_end(&mut self) -> Result<usize, PickleError> {
        loop {
            let operation = self.take_byte()?;
            match operation {
                b'.' => return self.pop_index(),
                0x80 => _ = self.take_byte()?,
                0x95 => _ = self.take_bytes(8)?,
                b'(' => self.marks.push(self.stack.len()),
                b'q' => {
                    let index = u32::from(self.take_byte()?);
                    self.remember_value(index)?;
                }
                b'r' => {
                    let index = self.take_unsigned()?;
                    self.remember_value(index)?;
                }
                0x94 => {
                    let index = u32::try_from(self.memo.len()).map_err(|_| "too many values".to_owned())?;
                    self.remember_value(index)?;
                }
                b'h' => {
                    let index = u32::from(self.take_byte()?);
                    self.recall_value(index)?;
                }
                b'j' => {
                    let index = self.take_unsigned()?;
                    self.recall_value(index)?;
                }
                _ if self.run_collection_operation(operation)? => {}
                _ => {
                    let value = self.read_plain_value(operation)?;
                    self.push_value(value);
                }
            }
        }
    }

    /// Runs an operation for a list or a dictionary. Returns false for another operation.
    fn run_collection_operation(&mut self, operation: u8) -> Result<bool, PickleError> {
        match operation {
            b'a' => {
                let item = self.pop_index()?;
                self.append_items(vec![item])?;
            }
            b'e' => {
                let items = self.since_mark()?;
                self.append_items(items)?;
            }
            b's' => {
                let value = self.pop_index()?;
                let key = self.pop_index()?;
                self.insert_items(&[key, value])?;
            }
            b'u' => {
                let items = self.since_mark()?;
                self.insert_items(&items)?;
            }
            b't' | b'l' => {
                let items = self.since_mark()?;
                self.push_value(PickleValue::List(items));
            }
            b'd' => {
                let items = self.since_mark()?;
                self.push_value(PickleValue::Dictionary(Vec::new()));
                self.insert_items(&items)?;
            }
            0x85..=0x87 => {
                let count = usize::from(operation - 0x84);
                let first = self.stack.len().checked_sub(count).ok_or("a tuple without its parts")?;
                let items = self.stack.split_off(first);
                self.push_value(PickleValue::List(items));
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Reads a plain value.
    fn read_plain_value(&mut self, operation: u8) -> Result<PickleValue<'a>, PickleError> {
        Ok(match operation {
            b'N' => PickleValue::None,
            0x88 => PickleValue::Bool(true),
            0x89 => PickleValue::Bool(false),
            b'}' => PickleValue::Dictionary(Vec::new()),
            b']' | b')' => PickleValue::List(Vec::new()),
            b'J' => PickleValue::Integer(i64::from(self.take_unsigned()?.cast_signed())),
            b'K' => PickleValue::Integer(i64::from(self.take_byte()?)),
            b'M' => PickleValue::Integer(i64::from(self.take_byte()?) | i64::from(self.take_byte()?) << 8),
            0x8a => {
                let length = self.take_byte()?;
                PickleValue::Integer(self.read_long(usize::from(length))?)
            }
            b'G' => {
                let bytes = <[u8; 8]>::try_from(self.take_bytes(8)?).map_err(|_| "the file ends early")?;
                PickleValue::Float(f64::from_be_bytes(bytes))
            }
            b'X' | b'T' => {
                let length = self.take_unsigned()?;
                self.read_text(u64::from(length))?
            }
            0x8c | b'U' => {
                let length = self.take_byte()?;
                self.read_text(u64::from(length))?
            }
            0x8d => {
                let bytes = <[u8; 8]>::try_from(self.take_bytes(8)?).map_err(|_| "the file ends early")?;
                self.read_text(u64::from_le_bytes(bytes))?
            }
            other => {
                return Err(format!(
                    "operation {other:#04x} does not make a plain value: this is not a flight recorder dump"
                ));
            }
        })
    }

    /// Reads an integer of at most 8 bytes in two's complement, lowest byte first.
    fn read_long(&mut self, length: usize) -> Result<i64, PickleError> {
        let bytes = self.take_bytes(length)?;
        let mut whole = match bytes.last() {
            Some(0x80..) => [0xff; 8],
            _ => [0; 8],
        };
        whole.get_mut(..length).ok_or("an integer of more than 8 bytes")?.copy_from_slice(bytes);
        Ok(i64::from_le_bytes(whole))
    }

    fn read_text(&mut self, length: u64) -> Result<PickleValue<'a>, PickleError> {
        let length = usize::try_from(length).map_err(|_| "the file ends early")?;
        Ok(PickleValue::Text(String::from_utf8_lossy(self.take_bytes(length)?)))
    }

    fn take_bytes(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let end = self.at.checked_add(length).ok_or("the file ends early")?;
        let taken = self.bytes.get(self.at..end).ok_or("the file ends early")?;
        self.at = end;
        Ok(taken)
    }

    fn take_byte(&mut self) -> Result<u8, PickleError> {
        Ok(self.take_bytes(1)?[0])
    }

    fn take_unsigned(&mut self) -> Result<u32, PickleError> {
        let bytes = <[u8; 4]>::try_from(self.take_bytes(4)?).map_err(|_| "the file ends early")?;
        Ok(u32::from_le_bytes(bytes))
    }

    fn push_value(&mut self, value: PickleValue<'a>) {
        self.values.push(value);
        self.stack.push(self.values.len() - 1);
    }

    fn pop_index(&mut self) -> Result<usize, PickleError> {
        self.stack.pop().ok_or_else(|| "a value is missing".to_owned())
    }

    fn since_mark(&mut self) -> Result<Vec<usize>, PickleError> {
        let mark = self.marks.pop().filter(|mark| *mark <= self.stack.len()).ok_or("a mark is missing")?;
        Ok(self.stack.split_off(mark))
    }

    fn remember_value(&mut self, index: u32) -> Result<(), PickleError> {
        let top = *self.stack.last().ok_or("a value is missing")?;
        self.memo.insert(index, top);
        Ok(())
    }

    fn recall_value(&mut self, index: u32) -> Result<(), PickleError> {
        let value = *self.memo.get(&index).ok_or_else(|| format!("value {index} was not stored"))?;
        self.stack.push(value);
        Ok(())
    }

    fn append_items(&mut self, items: Vec<usize>) -> Result<(), PickleError> {
        let top = *self.stack.last().ok_or("a list is missing")?;
        match &mut self.values[top] {
            PickleValue::List(list) => list.extend(items),
            _ => return Err("items are added to a value that is not a list".to_owned()),
        }
        Ok(())
    }

    fn insert_items(&mut self, items: &[usize]) -> Result<(), PickleError> {
        let top = *self.stack.last().ok_or("a dictionary is missing")?;
        let (pairs, []) = items.as_chunks::<2>() else { return Err("a key without a value".to_owned()) };
        match &mut self.values[top] {
            PickleValue::Dictionary(entries) => {
                entries.extend(pairs.iter().map(|[key, value]| (*key, *value)))
            }
            _ => return Err("items are added to a value that is not a dictionary".to_owned()),
        }
        Ok(())
    }
}

/// A value to take out.
#[derive(Clone, Copy)]
struct Reference<'a> {
    values: &'a [PickleValue<'a>],
    index: usize,
    visits: &'a Cell<usize>,
}

impl<'de> Deserializer<'de> for Reference<'_> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        let left = self.visits.get().checked_sub(1).ok_or_else(|| Error::custom("the dump is too large"))?;
        self.visits.set(left);
        let at = |index: usize| Reference { index, ..self };
        match &self.values[self.index] {
            PickleValue::None => visitor.visit_unit(),
            PickleValue::Bool(value) => visitor.visit_bool(*value),
            PickleValue::Integer(value) => visitor.visit_i64(*value),
            PickleValue::Float(value) => visitor.visit_f64(*value),
            PickleValue::Text(text) => visitor.visit_str(text),
            PickleValue::List(items) => {
                visitor.visit_seq(SeqDeserializer::new(items.iter().map(|&item| at(item))))
            }
            PickleValue::Dictionary(pairs) => visitor
                .visit_map(MapDeserializer::new(pairs.iter().map(|&(key, value)| (at(key), at(value))))),
        }
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self.values[self.index] {
            PickleValue::None => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    /// Skips values without a receiver.
    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_unit()
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 u8 u16 u32 u64 f32 f64 char str string bytes byte_buf unit unit_struct seq tuple
        tuple_struct map struct enum identifier
    }
}

impl IntoDeserializer<'_> for Reference<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_values_are_read() {
        // {'a': [1, -2, 2**40, True, None, 1.5]}, protocol 2.
        let bytes = b"\x80\x02}q\x00X\x01\x00\x00\x00aq\x01]q\x02(K\x01J\xfe\xff\xff\xff\
                      \x8a\x06\x00\x00\x00\x00\x00\x01\x88NG?\xf8\x00\x00\x00\x00\x00\x00es.";
        let value: serde_json::Value = read_pickle(bytes).unwrap();
        assert_eq!(value, serde_json::json!({ "a": [1, -2, 1_i64 << 40, true, null, 1.5] }));
    }

    #[test]
    fn classes_and_calls_are_refused() {
        // os.system('true')
        let fault =
            read_pickle::<serde_json::Value>(b"\x80\x02cos\nsystem\nq\x00X\x04\x00\x00\x00true\x85R.")
                .unwrap_err();
        assert!(fault.to_string().contains("operation 0x63"), "{fault}");
    }

    #[test]
    fn a_list_that_contains_a_list_many_times_ends() {
        // Each of 60 lists contains the one before twice: 2^60 values if they were copied.
        let mut bytes = b"\x80\x02]q\x00".to_vec();
        for index in 0..60_u8 {
            bytes.extend([b']', b'(', b'h', index, b'h', index, b'e', b'q', index + 1]);
        }
        bytes.push(b'.');
        assert!(read_pickle::<Vec<i64>>(&bytes).is_err());
        assert!(read_pickle::<serde::de::IgnoredAny>(&bytes).is_ok());
    }

    #[test]
    fn a_deep_value_does_not_exhaust_the_stack() {
        let mut bytes = b"\x80\x02".to_vec();
        bytes.extend(std::iter::repeat_n(b']', 1_000_000));
        bytes.extend(std::iter::repeat_n(b'a', 999_999));
        bytes.push(b'.');
        assert!(read_pickle::<serde::de::IgnoredAny>(&bytes).is_ok());
    }
}
