//! Messages known to rules, unknown warnings, variables, and lines of the diagnostics.

use std::collections::BTreeSet;

use foldhash::HashMap;

use super::digest::{DiagnosticLine, Digest, EXAMPLES, Example, Hit, Position, Unknown, VariableSeen};
use super::exceptions::Exceptions;
use super::fold::fold_message;
use super::label;
use super::line;
use super::tasks::RankTasks;
use super::text;
use super::watchdog::Watchdog;
use crate::finding::Role;
use crate::knowledge::rules::Rule;

/// Largest number of different unknown warnings.
const UNKNOWN: usize = 512;
/// Largest number of variables with different values.
const VARIABLES: usize = 2048;
/// Largest number of rules with hits.
const HITS: usize = 4096;
/// Largest number of lines of the diagnostics.
const DIAGNOSTICS: usize = 4096;
/// Largest number of writers in all lists of writers.
const WRITERS: usize = 262_144;

/// A message with its place.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place<'a> {
    /// Position in the log.
    pub(super) position: Position,
    /// Index of the writer.
    pub(super) writer: Option<usize>,
    /// Number of the thread, and its number of lines so far.
    pub(super) thread: Option<(u64, u64)>,
    /// The whole line, or the text before the writer.
    pub(super) before: &'a [u8],
    /// File and line of NCCL's source, if the line has them.
    pub(super) file: &'a [u8],
}

/// All messages.
#[derive(Debug, Default)]
pub(super) struct Messages {
    hits: Vec<Hit>,
    by_rule: HashMap<String, usize>,
    unknown: Vec<Unknown>,
    by_text: HashMap<Vec<u8>, usize>,
    variables: Vec<VariableSeen>,
    by_variable: HashMap<(String, String, bool), usize>,
    diagnostics: Vec<DiagnosticLine>,
    pub(super) watchdog: Watchdog,
    pub(super) exceptions: Exceptions,
    writers: usize,
    /// True if a message has a rank beside the number of a task.
    pub(super) has_other_tasks: bool,
    /// Warnings, variables, lists and lines dropped at a limit.
    pub(super) lost: LostMessages,
}

/// Numbers of dropped items.
#[derive(Debug, Default)]
pub(super) struct LostMessages {
    pub(super) unknown: u64,
    pub(super) hits: u64,
    pub(super) variables: u64,
    pub(super) writers: u64,
    pub(super) diagnostics: u64,
}

impl Messages {
    /// Notes a message known to a rule.
    pub(super) fn note_hit(&mut self, rule: &Rule, message: &[u8], place: Place<'_>) {
        let (is_harmless, id) = (rule.role == Role::Harmless, rule.id.as_str());
        if id.starts_with("torch-") {
            self.watchdog.note_report(message, place.position);
        }
        self.exceptions.note_rule(rule, place.position);
        let index = match self.by_rule.get(id) {
            Some(index) => *index,
            None if self.hits.len() == HITS => {
                self.lost.hits += 1;
                return;
            }
            None => {
                self.hits.push(Hit { rule: id.to_owned(), ..Hit::default() });
                self.by_rule.insert(id.to_owned(), self.hits.len() - 1);
                self.hits.len() - 1
            }
        };
        let hit = &mut self.hits[index];
        hit.count += 1;
        hit.roll.note_message(rule, message);
        let message = &message[start_of_quote(rule, message)..];
        match hit.examples.len() {
            // Nothing needs the last harmless message, and most lines of a log are harmless.
            EXAMPLES.. if is_harmless => {}
            EXAMPLES.. => hit.last = Some(make_example(message, place, &mut self.has_other_tasks)),
            _ => hit.examples.push(make_example(message, place, &mut self.has_other_tasks)),
        }
        add_writer(place.writer, &mut hit.writers, &mut self.writers, &mut self.lost);
    }

    /// Notes a warning unknown to all rules.
    pub(super) fn note_unknown_warning(&mut self, message: &[u8], place: Place<'_>) {
        self.note_unknown(fold_message(message), message, place, false);
    }

    /// Notes a line of level ERROR, unknown to all rules.
    pub(super) fn unknown_error(&mut self, message: &[u8], place: Place<'_>) {
        self.note_unknown([b"ERROR ", &fold_message(message)[..]].concat(), message, place, true);
    }

    fn note_unknown(&mut self, text: Vec<u8>, message: &[u8], place: Place<'_>, is_error: bool) {
        let index = match self.by_text.get(&text) {
            Some(index) => *index,
            None if self.unknown.len() == UNKNOWN => {
                self.lost.unknown += 1;
                return;
            }
            None => {
                self.unknown.push(Unknown { is_error, ..Unknown::default() });
                self.by_text.insert(text, self.unknown.len() - 1);
                self.unknown.len() - 1
            }
        };
        let unknown = &mut self.unknown[index];
        unknown.count += 1;
        match unknown.examples.len() {
            EXAMPLES.. => unknown.last = Some(make_example(message, place, &mut self.has_other_tasks)),
            _ => unknown.examples.push(make_example(message, place, &mut self.has_other_tasks)),
        }
        add_writer(place.writer, &mut unknown.writers, &mut self.writers, &mut self.lost);
    }

    /// Notes a variable.
    pub(super) fn note_variable(&mut self, name: &[u8], value: &[u8], by_plugin: bool, place: Place<'_>) {
        let key = (text::name(name), text::shorten_message(value), by_plugin);
        let index = match self.by_variable.get(&key) {
            Some(index) => *index,
            None if self.variables.len() == VARIABLES => {
                self.lost.variables += 1;
                return;
            }
            None => {
                self.variables.push(VariableSeen {
                    name: key.0.clone(),
                    value: key.1.clone(),
                    by_plugin,
                    first: place.position,
                    ..VariableSeen::default()
                });
                self.by_variable.insert(key, self.variables.len() - 1);
                self.variables.len() - 1
            }
        };
        add_writer(place.writer, &mut self.variables[index].writers, &mut self.writers, &mut self.lost);
    }

    /// Notes a line of the diagnostics.
    pub(super) fn note_diagnostic(&mut self, message: &[u8], position: Position) {
        if self.diagnostics.len() == DIAGNOSTICS {
            self.lost.diagnostics += 1;
            return;
        }
        let (status, rest) = match message.strip_prefix(b"[").and_then(|rest| {
            let end = memchr::memchr(b']', rest)?;
            Some((&rest[..end], &rest[end + 1..]))
        }) {
            Some((status, rest)) => (text::shorten_message(status), rest),
            None => (String::new(), message),
        };
        self.diagnostics.push(DiagnosticLine {
            status,
            text: text::shorten_message(rest.trim_ascii()),
            position,
        });
    }

    /// Moves everything into the digest. `places` has the final index of each writer.
    pub(super) fn move_into_digest(self, places: &[usize], tasks: RankTasks, digest: &mut Digest) {
        let Self { mut hits, mut unknown, mut variables, diagnostics, watchdog, exceptions, .. } = self;
        let of_hits = hits.iter_mut().map(|hit| (&mut hit.writers, &mut hit.examples, &mut hit.last));
        let of_unknown =
            unknown.iter_mut().map(|each| (&mut each.writers, &mut each.examples, &mut each.last));
        for (writers, examples, last) in of_hits.chain(of_unknown) {
            *writers = writers.iter().map(|writer| places[*writer]).collect();
            for example in examples.iter_mut().chain(last) {
                example.writer = example.writer.map(|writer| places[writer]);
                tasks.check_example(example);
            }
        }
        for variable in &mut variables {
            variable.writers = variable.writers.iter().map(|writer| places[*writer]).collect();
        }
        (digest.hits, digest.unknown) = (hits, unknown);
        (digest.variables, digest.diagnostics) = (variables, diagnostics);
        digest.watchdog = watchdog.into_reports();
        digest.tracebacks = exceptions.into_tracebacks();
    }
}

fn add_writer(
    writer: Option<usize>,
    writers: &mut BTreeSet<usize>,
    total: &mut usize,
    lost: &mut LostMessages,
) {
    let Some(writer) = writer else { return };
    if *total < WRITERS {
        *total += usize::from(writers.insert(writer));
    } else if !writers.contains(&writer) {
        lost.writers += 1;
    }
}

/// Returns where the quote of a message begins: before the words of the rule if these are far behind.
fn start_of_quote(rule: &Rule, message: &[u8]) -> usize {
    if message.len() <= text::TEXT {
        return 0;
    }
    let words = rule.contains.iter().filter_map(|words| memchr::memmem::find(message, words.as_bytes()));
    let words = words.min().filter(|words| words + 100 > text::TEXT).unwrap_or_default();
    (words.saturating_sub(100)..words).find(|&at| message[at] == b' ').unwrap_or(words)
}

fn make_example(message: &[u8], place: Place<'_>, has_other_tasks: &mut bool) -> Example {
    let label = label::parse_rank(place.before);
    *has_other_tasks |= label.is_other_task;
    Example {
        position: place.position,
        writer: place.writer,
        text: text::shorten_message(message),
        place: text::name(place.file),
        time: line::parse_time(place.before),
        thread: place.thread,
        rank: label.rank,
        is_task: label.is_task,
        is_bare_task: label.is_bare,
    }
}
