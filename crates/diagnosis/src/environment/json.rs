//! Variables in JSON: manifests of Kubernetes, the output of `docker inspect`, mappings of names to values.

use std::collections::BTreeMap;

use serde_json::{Deserializer, Map, Value};

use super::setting::{Location, is_collected};
use super::submission::{SettingOrigin, Submission};

/// An annotation of kubectl with an older state of the whole object, as text.
const OLD_STATE: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Reads the documents of a text, if all of it is JSON with objects or lists.
pub(super) fn parse_documents(text: &str) -> Option<Vec<Value>> {
    if !text.trim_start().starts_with(['{', '[']) {
        return None;
    }
    Deserializer::from_str(text).into_iter().collect::<Result<_, _>>().ok()
}

/// A walk through documents.
pub(super) struct Walk<'a> {
    text: &'a str,
    file: &'a str,
    /// Unused lines with a name.
    lines: BTreeMap<String, Vec<u64>>,
}

impl<'a> Walk<'a> {
    /// Creates a walk through the documents of a text.
    pub(super) fn new(text: &'a str, file: &'a str) -> Self {
        Self { text, file, lines: BTreeMap::new() }
    }

    /// Takes the variables of a value. The depth is limited by the parser.
    pub(super) fn take_value(&mut self, value: &Value, all: &mut Submission) {
        match value {
            Value::Object(object) => self.take_object(object, all),
            Value::Array(items) => {
                let mut previous = "";
                for item in items {
                    match item.as_str() {
                        Some(text) => {
                            self.take_words(text, previous, all);
                            previous = text;
                        }
                        None => self.take_value(item, all),
                    }
                }
            }
            Value::String(text) => self.take_words(text, "", all),
            _ => {}
        }
    }

    fn take_object(&mut self, object: &Map<String, Value>, all: &mut Submission) {
        let name = object.get("name").and_then(Value::as_str).filter(|name| is_collected(name));
        if let Some(name) = name {
            let place = self.next_place(name);
            match (object.get("value").and_then(scalar_text), object.contains_key("valueFrom")) {
                (Some(value), _) => all.set_variable(name, &value, place, SettingOrigin::Entry),
                (None, true) => all.note_value_elsewhere(name, &place),
                (None, false) => all.note_missing_value(name, &place),
            }
        }
        for (key, value) in object {
            let is_own = name.is_some() && matches!(key.as_str(), "name" | "value" | "valueFrom");
            if is_own || key == OLD_STATE {
                continue;
            }
            if key == "envFrom" {
                let place = self.next_place(key);
                all.env_from(&place);
            }
            match scalar_text(value).filter(|_| is_collected(key)) {
                Some(value) => {
                    let place = self.next_place(key);
                    all.set_variable(key, &value, place, SettingOrigin::Entry);
                }
                None => self.take_value(value, all),
            }
        }
    }

    /// Takes the variables of an argument or a script. `previous` is the argument before.
    fn take_words(&mut self, text: &str, previous: &str, all: &mut Submission) {
        match text.split_once('=') {
            Some((name, value)) if is_collected(name) => {
                let place = self.next_place(name);
                all.set_variable(name, value, place, SettingOrigin::Command);
            }
            None if previous == "-x" && is_collected(text) => {
                let place = self.next_place(text);
                all.note_forwarded(text, place);
            }
            _ => {
                let place = Location::without_line(self.file);
                text.lines().for_each(|line| all.read_line(line, &place));
            }
        }
    }

    /// Returns the next line with a name.
    fn next_place(&mut self, name: &str) -> Location {
        let numbered = || (1..).zip(self.text.lines());
        let lines = self.lines.entry(name.to_owned()).or_insert_with(|| {
            let found = numbered().filter(|(_, line)| line.contains(name));
            found.map(|(number, _)| number).collect::<Vec<u64>>().into_iter().rev().collect()
        });
        let line = if lines.len() > 1 { lines.pop() } else { lines.last().copied() };
        Location { name: self.file.to_owned(), line }
    }
}

/// Returns the text of a value other than a list or an object.
fn scalar_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(word) => Some(word.to_string()),
        _ => None,
    }
}
