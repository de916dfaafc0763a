//! Texts of the findings that are drawn from facts.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::sync::OnceLock;

use serde::Deserialize;

use crate::finding::{Action, Finding, Severity};

/// The compiled-in files.
const FILES: [&str; 5] = [
    include_str!("../../knowledge/findings.toml"),
    include_str!("../../knowledge/findings-host.toml"),
    include_str!("../../knowledge/findings-topology.toml"),
    include_str!("../../knowledge/findings-job.toml"),
    include_str!("../../knowledge/findings-environment.toml"),
];

/// A file of texts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TextFile {
    finding: Vec<FindingText>,
}

/// The texts of a finding, or of one case of it (`name/case`). A case has the missing texts of its finding.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FindingText {
    id: String,
    severity: Option<Severity>,
    diagnosis: Option<String>,
    cause: Option<String>,
    remedy: Option<String>,
    action: Option<Action>,
    source: Option<String>,
}

fn load_texts() -> &'static BTreeMap<String, FindingText> {
    static TEXTS: OnceLock<BTreeMap<String, FindingText>> = OnceLock::new();
    // A test fails for a file that cannot be read.
    TEXTS.get_or_init(|| {
        let files = FILES.iter().filter_map(|file| toml::from_str::<TextFile>(file).ok());
        files.flat_map(|file| file.finding).map(|entry| (entry.id.clone(), entry)).collect()
    })
}

/// Returns the finding with this name, or with the texts of a case of it: `ranks-share-gpu/refused`. The
/// values replace `{name}` in the texts.
pub(crate) fn compose_finding(id: &str, values: &[(&str, &dyn Display)]) -> Finding {
    let (name, _) = id.split_once('/').unwrap_or((id, ""));
    let entries = || [load_texts().get(id), load_texts().get(name)].into_iter().flatten();
    let text =
        |select: fn(&FindingText) -> Option<&String>| Some(fill_in(entries().find_map(select)?, values));
    let severity = entries().find_map(|entry| entry.severity).unwrap_or(Severity::Unknown);
    Finding {
        cause: text(|entry| entry.cause.as_ref()).filter(|text| !text.is_empty()),
        remedy: text(|entry| entry.remedy.as_ref()).filter(|text| !text.is_empty()),
        action: entries().find_map(|entry| entry.action).unwrap_or_default(),
        source: text(|entry| entry.source.as_ref()),
        ..Finding::new(name, severity, text(|entry| entry.diagnosis.as_ref()).unwrap_or_default())
    }
}

/// Returns the text with values in the place of `{name}`. Braces in a value stay as they are.
fn fill_in(text: &str, values: &[(&str, &dyn Display)]) -> String {
    let mut parts = text.split('{');
    let mut filled = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once('}').unwrap_or_default();
        match values.iter().find(|(known, _)| *known == name) {
            Some((_, value)) => filled.extend([&value.to_string(), rest]),
            None => filled.extend(["{", part]),
        }
    }
    filled
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    #[test]
    fn every_entry_has_its_own_name_and_all_texts() {
        let files = FILES.map(|file| toml::from_str::<TextFile>(file).unwrap());
        let count: usize = files.iter().map(|file| file.finding.len()).sum();
        assert_eq!(count, load_texts().len(), "two entries have one name");
        for id in load_texts().keys() {
            let finding = compose_finding(id, &[]);
            assert!(!finding.diagnosis.is_empty(), "{id}");
            let has_advice = finding.cause.is_some() || finding.remedy.is_some();
            assert!(has_advice || finding.severity == Severity::Advice, "{id}");
        }
    }

    #[test]
    fn values_are_filled_in_once() {
        let values: [(&str, &dyn Display); 2] = [("one", &"{two}"), ("two", &2)];
        assert_eq!(fill_in("{one} of {two}; awk '{print}' {two", &values), "{two} of 2; awk '{print}' {two");
    }

    #[test]
    fn the_code_names_entries_that_exist_and_all_of_them() {
        let mut used = BTreeSet::new();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let pattern = regex::Regex::new(r#""([a-z0-9]+(?:-[a-z0-9]+)*(?:/[a-z]+(?:-[a-z]+)*)?)""#).unwrap();
        let call =
            regex::Regex::new(r#"(?:compose_finding\(|name_case_of_host\(system, )\s*"([^"]+)""#).unwrap();
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(folder).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    folders.push(path);
                } else if !path.iter().any(|part| part == "tests" || part == "tests.rs") {
                    let text = std::fs::read_to_string(&path).unwrap();
                    let text = text.split("#[cfg(test)]\nmod tests {").next().unwrap();
                    used.extend(pattern.captures_iter(text).map(|found| found[1].to_owned()));
                    for found in call.captures_iter(text) {
                        assert!(load_texts().contains_key(&found[1]), "{}: {}", path.display(), &found[1]);
                    }
                }
            }
        }
        // `name_case_of_host` adds these cases.
        let base = |id: &str| id.trim_end_matches("/container").trim_end_matches("/kubernetes").to_owned();
        let unused: Vec<&String> = load_texts().keys().filter(|id| !used.contains(&base(id))).collect();
        assert_eq!(unused, [""; 0]);
    }
}
