//! Tests that docs/results.md documents all fields of the files.

use std::collections::BTreeSet;

use serde_json::Value;

use super::{csv, json_lines};
use crate::pairs::{Completion, Messages, Until};
use crate::run::{LeftOut, Placement, Run, RunOutcome};
use crate::settings::{Average, Blocking, Registration};
use crate::{provenance, sample};

const DOCUMENTATION: &str = include_str!("../../../../docs/results.md");

/// Words in backticks.
fn documented_words() -> BTreeSet<&'static str> {
    DOCUMENTATION.lines().flat_map(|line| line.split('`').skip(1).step_by(2)).collect()
}

/// The names of all fields, at any depth, but not those of environment variables.
fn collect_names(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.insert(name.clone());
                if name != "environment" {
                    collect_names(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| collect_names(value, found)),
        _ => {}
    }
}

#[track_caller]
fn assert_documented(names: impl IntoIterator<Item = impl AsRef<str>>) {
    let documented = documented_words();
    let missing: Vec<String> = names
        .into_iter()
        .map(|name| name.as_ref().to_owned())
        .filter(|name| !documented.contains(name.as_str()))
        .collect();
    assert!(missing.is_empty(), "docs/results.md does not have {missing:?}");
}

#[test]
fn every_field_of_json_is_documented() {
    let left_out = LeftOut { measurements: 2, wrong_measurements: 1 };
    let run = Run { left_out: Some(left_out), ..sample::full_run() };
    let mut found = BTreeSet::new();
    collect_names(&serde_json::to_value(&run).unwrap(), &mut found);
    // Otherwise a new field that the sample leaves empty would go unnoticed.
    let declared: Vec<&str> = [
        include_str!("../run.rs"),
        include_str!("../settings.rs"),
        include_str!("../pairs.rs"),
        include_str!("../statistics.rs"),
    ]
    .iter()
    .flat_map(|source| source.lines())
    .filter_map(|line| line.strip_prefix("    pub ")?.split_once(": "))
    .map(|(name, _)| name)
    .filter(|name| name.chars().all(|letter| letter.is_ascii_lowercase() || "_0123456789".contains(letter)))
    .collect();
    assert!(declared.len() > 80, "{declared:?}");
    let not_in_sample: Vec<_> = declared.iter().filter(|name| !found.contains(**name)).collect();
    assert!(not_in_sample.is_empty(), "the sample has no {not_in_sample:?}");
    for line in json_lines::tests::whole(&run).lines() {
        collect_names(&serde_json::from_str(line).unwrap(), &mut found);
    }
    assert_documented(found);
}

#[test]
fn every_choice_is_documented() {
    let text = |value: serde_json::Result<Value>| value.unwrap().as_str().unwrap().to_owned();
    let mut choices: Vec<String> = Vec::new();
    choices.extend(
        [Average::Rank0, Average::Mean, Average::Min, Average::Max]
            .map(|each| text(serde_json::to_value(each))),
    );
    let blocking = [Blocking::No, Blocking::WaitAndBarrier, Blocking::Wait, Blocking::Outer];
    choices.extend(blocking.map(|each| text(serde_json::to_value(each))));
    let registration = [Registration::None, Registration::Local, Registration::Symmetric];
    choices.extend(registration.map(|each| text(serde_json::to_value(each))));
    choices.extend([Messages::Tagged, Messages::Plain].map(|each| text(serde_json::to_value(each))));
    choices.extend([Until::Arrived, Until::Completed].map(|each| text(serde_json::to_value(each))));
    choices.extend([Completion::Poll, Completion::Block].map(|each| text(serde_json::to_value(each))));
    choices.extend([Placement::OutOfPlace, Placement::InPlace].map(|each| text(serde_json::to_value(each))));
    let outcomes = [
        RunOutcome::Running,
        RunOutcome::Complete,
        RunOutcome::Interrupted { signal: "SIGINT".to_owned() },
        RunOutcome::Failed { message: "it is gone".to_owned() },
    ];
    for outcome in outcomes {
        let value = serde_json::to_value(outcome).unwrap();
        choices.push(value["state"].as_str().unwrap().to_owned());
        choices.extend(value.as_object().unwrap().keys().cloned());
    }
    assert_documented(choices);
}

#[test]
fn every_column_of_csv_is_documented() {
    assert_documented(csv::list_columns().into_iter().map(|(name, _)| name));
}

#[test]
fn the_variables_that_are_recorded_are_documented() {
    assert_documented(provenance::PREFIXES.iter().chain(&provenance::NAMES));
    assert_documented([provenance::LEFT_OUT]);
    for part in provenance::SECRET {
        assert!(DOCUMENTATION.contains(part), "{part}");
    }
}
