//! Variables in JSON: manifests of Kubernetes, the output of `docker inspect`, mappings of names to values.

use std::collections::BTreeMap;

use serde_json::{Deserializer, Map, Value};

use super::setting::{Location, is_collected};
use super::submission::{Origin, Submission};

/// An annotation of kubectl with an older state of the whole object, as text.
const OLD_STATE: &str = "kubectl.kubernetes.io/last-applied-configuration";

/// Reads the documents of a text, if all of it is JSON with objects or lists.
pub(super) fn documents(text: &str) -> Option<Vec<Value>> {
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
    pub(super) fn take(&mut self, value: &Value, all: &mut Submission) {
        match value {
            Value::Object(object) => self.object(object, all),
            Value::Array(items) => {
                let mut previous = "";
                for item in items {
                    match item.as_str() {
                        Some(text) => {
                            self.words(text, previous, all);
                            previous = text;
                        }
                        None => self.take(item, all),
                    }
                }
            }
            Value::String(text) => self.words(text, "", all),
            _ => {}
        }
    }

    fn object(&mut self, object: &Map<String, Value>, all: &mut Submission) {
        let name = object.get("name").and_then(Value::as_str).filter(|name| is_collected(name));
        if let Some(name) = name {
            let place = self.place(name);
            match (object.get("value").and_then(scalar), object.contains_key("valueFrom")) {
                (Some(value), _) => all.set(name, &value, place, Origin::Entry),
                (None, true) => all.elsewhere(name, &place),
                (None, false) => all.valueless(name, &place),
            }
        }
        for (key, value) in object {
            let is_own = name.is_some() && matches!(key.as_str(), "name" | "value" | "valueFrom");
            if is_own || key == OLD_STATE {
                continue;
            }
            if key == "envFrom" {
                let place = self.place(key);
                all.env_from(&place);
            }
            match scalar(value).filter(|_| is_collected(key)) {
                Some(value) => {
                    let place = self.place(key);
                    all.set(key, &value, place, Origin::Entry);
                }
                None => self.take(value, all),
            }
        }
    }

    /// Takes the variables of an argument or a script. `previous` is the argument before.
    fn words(&mut self, text: &str, previous: &str, all: &mut Submission) {
        match text.split_once('=') {
            Some((name, value)) if is_collected(name) => {
                let place = self.place(name);
                all.set(name, value, place, Origin::Command);
            }
            None if previous == "-x" && is_collected(text) => {
                let place = self.place(text);
                all.forward(text, place);
            }
            _ => {
                let place = Location::named(self.file);
                text.lines().for_each(|line| all.line(line, &place));
            }
        }
    }

    /// Returns the next line with a name.
    fn place(&mut self, name: &str) -> Location {
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
fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Bool(word) => Some(word.to_string()),
        _ => None,
    }
}
