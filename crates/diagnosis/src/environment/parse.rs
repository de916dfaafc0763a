//! Reader of variables in a text, as JSON or by lines.

use super::json;
use super::submission::Submission;

/// Reads a text. A variable set twice has the last value.
pub(super) fn parse_submission(text: &str, file: &str) -> Submission {
    let mut all = Submission::default();
    all.is_mpi_job = text.contains("MPIJob");
    match json::parse_documents(text) {
        Some(documents) => {
            let mut walk = json::Walk::new(text, file);
            documents.iter().for_each(|document| walk.take_value(document, &mut all));
        }
        None => all.read_lines(text, file),
    }
    if text.contains("{{") {
        all.note_unseen(format!(
            "{file} is a template: its computed values were not read (helm template renders it)"
        ));
    }
    all.report_mentioned();
    for (name, place) in std::mem::take(&mut all.forwarded) {
        if all.settings.iter().all(|setting| setting.name != name) {
            all.note_unseen(format!("{name} ({place}) takes its value from the environment of the launcher"));
        }
        all.passed.insert(name);
    }
    if all.is_mpi_job {
        let passed = &all.passed;
        let lost = all.settings.iter().filter(|setting| !passed.contains(&setting.name));
        all.not_passed = lost.cloned().collect();
    }
    all.settings.sort_by(|one, other| one.name.cmp(&other.name));
    all
}
