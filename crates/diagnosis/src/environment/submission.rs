//! Variables in a text before its submission: the output of `env`, a shell script, a command line of mpirun,
//! srun or docker, a Dockerfile, a Kubernetes manifest, JSON, Python.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::Regex;

use super::names;
use super::setting::{Location, Setting, is_collected};
use super::words::{
    assigned_value, consumed_length, ends_in_list, is_comma_list, is_name_of_entry, is_output_of_env,
    parse_scalar, parse_shell_word, value_of_key,
};

/// A possible name of a variable.
static NAME: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(r"[A-Za-z_][A-Za-z0-9_]*").ok());

/// Texts of a shell script that starts programs.
const STARTS: [&str; 5] = ["#!/", "srun ", "mpirun ", "torchrun ", "export "];
/// Comments for a scheduler.
const DIRECTIVES: [&str; 4] = ["#SBATCH", "#PBS", "#BSUB", "#$ "];
/// Options and commands before a name, a space and the value.
const BEFORE_PAIR: [&str; 6] = ["-genv", "-env", "--genv", "--env", "ENV", "setenv"];
/// Options before a name with a value from the environment.
const BEFORE_NAME: [&str; 5] = ["-x", "-genvlist", "-e", "--env", "-envlist"];

/// Variables of a text.
#[derive(Debug, Default)]
pub(super) struct Submission {
    pub settings: Vec<Setting>,
    pub overridden: Vec<Setting>,
    pub unseen: Vec<String>,
    /// True if unseen variables may be set, or some values are unknown.
    pub is_partial: bool,
    /// Variables of an MPIJob in `env:`, not passed on by mpirun.
    pub not_passed: Vec<Setting>,
    /// The text has an MPIJob of Kubernetes.
    pub(super) is_mpi_job: bool,
    /// Variables passed on by the launcher with their values.
    pub(super) passed: BTreeSet<String>,
    /// Variables passed on by the launcher from its environment.
    pub(super) forwarded: Vec<(String, Location)>,
    /// True inside a list `[a, b]` of YAML that continues in the next line.
    in_list: bool,
    /// Variables in a form without a readable value.
    mentioned: Vec<(String, Location)>,
    /// Variables assigned in a shell script and never exported.
    unexported: Vec<(String, Location)>,
    previous: String,
    is_env: bool,
    /// True for a script with assignments that reach programs only by `export`.
    is_shell: bool,
}

/// Kind of text with an assignment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SettingOrigin {
    /// An entry of `env:`, or a mapping.
    Entry,
    /// A command or its arguments.
    Command,
}

/// An entry of a list `env:` of YAML.
#[derive(Default)]
struct EnvEntry {
    indent: usize,
    name: Option<(String, Location)>,
    value: Option<String>,
    is_elsewhere: bool,
}

impl Submission {
    /// Reads the variables of a text by lines.
    pub(super) fn read_lines(&mut self, text: &str, file: &str) {
        self.is_env = is_output_of_env(text);
        // Lines of a document in the script (`<<EOF`) go elsewhere, and `set -a` exports all assignments.
        self.is_shell = !self.is_env
            && STARTS.iter().any(|it| text.contains(it))
            && !text.contains("<<")
            && !text.contains("set -a")
            && !text.contains("allexport");
        let mut entry = EnvEntry::default();
        for (number, line) in (1..).zip(text.lines()) {
            let place = Location { name: file.to_owned(), line: Some(number) };
            let trimmed = line.trim();
            if trimmed.starts_with('#') && !DIRECTIVES.iter().any(|it| trimmed.starts_with(it))
                || trimmed.starts_with("//")
                || trimmed.is_empty()
            {
                continue;
            }
            if !self.take_entry_key(line, &place, &mut entry) {
                self.read_line(line, &place);
            }
        }
        self.finish_entry(&mut entry);
    }

    /// Takes a key of an entry of `env:`. Returns true for a line with nothing but the name of a variable.
    fn take_entry_key(&mut self, line: &str, place: &Location, entry: &mut EnvEntry) -> bool {
        let body = line.trim_start();
        let rest = body.strip_prefix("- ").map_or(body, str::trim_start);
        let indent = line.len() - rest.len();
        if rest.len() < body.len() || indent < entry.indent || rest.starts_with(['{', '}']) {
            self.finish_entry(entry);
        }
        if value_of_key(rest, "envFrom").is_some() {
            self.env_from(place);
        }
        let has_keys = entry.name.is_some() || entry.value.is_some() || entry.is_elsewhere;
        if has_keys && indent != entry.indent {
            return false;
        }
        if let Some(name) = value_of_key(rest, "name") {
            entry.indent = indent;
            let name = parse_scalar(name);
            let is_name = is_collected(&name);
            entry.name = Some((name, place.clone()));
            return is_name;
        }
        if let Some(value) = value_of_key(rest, "value") {
            entry.indent = indent;
            entry.value = Some(match value.trim() {
                "|" | "|-" | "|+" | ">" | ">-" | ">+" => "$".to_owned(),
                _ => parse_scalar(value),
            });
        } else if value_of_key(rest, "valueFrom").is_some() {
            entry.indent = indent;
            entry.is_elsewhere = true;
        }
        false
    }

    fn finish_entry(&mut self, entry: &mut EnvEntry) {
        let EnvEntry { name, value, is_elsewhere, .. } = std::mem::take(entry);
        let Some((name, place)) = name.filter(|(name, _)| is_collected(name)) else { return };
        match value {
            Some(value) => self.set_variable(&name, &value, place, SettingOrigin::Entry),
            None if is_elsewhere => self.note_value_elsewhere(&name, &place),
            None => self.note_missing_value(&name, &place),
        }
    }

    /// Takes the variables of a line.
    pub(super) fn read_line(&mut self, line: &str, place: &Location) {
        let Some(pattern) = NAME.as_ref() else { return };
        let mut from = 0;
        while let Some(found) = pattern.find_at(line, from) {
            from = found.end();
            let (before, name, after) = (&line[..found.start()], found.as_str(), &line[found.end()..]);
            if !is_collected(name) {
                continue;
            }
            if before.ends_with(['$', '{', '/', '.', '%']) && !before.ends_with("- {") {
                // A default (`${NAME:=value}`) or a path (`--set env.NAME=value`) sets it.
                if after.starts_with(":=") || after.starts_with('=') {
                    self.note_mention(name, line, place);
                }
                continue;
            }
            let mut last = before.split_whitespace().last().unwrap_or_default();
            if last == "-" {
                last = &self.previous;
            }
            let last = last.trim_matches(['"', '\'', ',', '[']).to_owned();
            let in_list = self.in_list || ends_in_list(before);
            if is_name_of_entry(before) {
                self.take_flow_entry(name, before, after, place);
            } else if last == "unset" {
                self.settings.retain(|setting| setting.name != name);
            } else if is_printed(before) {
                self.note_print(name, after, place);
            } else if let Some(value) = assigned_value(before, after, in_list, self.is_env) {
                let origin =
                    if after.starts_with('=') { SettingOrigin::Command } else { SettingOrigin::Entry };
                self.set_variable(name, &value, place.clone(), origin);
                from = line.len() - after.len() + consumed_length(after, &value);
                if origin == SettingOrigin::Command {
                    self.note_export(name, before, &line[from..], place);
                    self.note_cut_value(name, before, &value, &line[from..], place);
                }
            } else if BEFORE_PAIR.contains(&last.as_str())
                && after.starts_with(' ')
                && !after.trim().is_empty()
            {
                self.set_variable(
                    name,
                    &parse_shell_word(after.trim_start()),
                    place.clone(),
                    SettingOrigin::Command,
                );
            } else if before.split_whitespace().next() == Some("export") {
                self.unexported.retain(|(own, _)| own != name);
            } else if BEFORE_NAME.contains(&last.as_str()) {
                self.note_forwarded(name, place.clone());
            } else {
                self.note_mention(name, line, place);
            }
        }
        self.in_list = ends_in_list(line) || self.in_list && !line.contains(']');
        self.previous = line.split_whitespace().last().unwrap_or_default().to_owned();
    }

    /// Takes an entry in one line: `{name: NCCL_DEBUG, value: INFO}`, in any order.
    fn take_flow_entry(&mut self, name: &str, before: &str, after: &str, place: &Location) {
        let start = before.rfind('{').map_or(0, |start| start + 1);
        let inside = after.split('}').next().unwrap_or_default();
        // The value may have a comma in quotes, so it is read from its beginning.
        let whole = format!("{}{name}{inside}", &before[start..]);
        let mut offset = 0;
        let mut is_elsewhere = false;
        for part in whole.split_inclusive(',') {
            let text = part.trim_start();
            if let Some(value) = value_of_key(text, "value") {
                let from = offset + part.len() - value.len();
                let value = whole[from..].trim_start();
                let value = match value.starts_with(['"', '\'']) {
                    true => parse_scalar(value),
                    false => parse_scalar(value.split(',').next().unwrap_or_default()),
                };
                return self.set_variable(name, &value, place.clone(), SettingOrigin::Entry);
            }
            is_elsewhere |= value_of_key(text, "valueFrom").is_some();
            offset += part.len();
        }
        if is_elsewhere {
            self.note_value_elsewhere(name, place)
        } else {
            self.note_missing_value(name, place)
        }
    }

    /// Sets a variable.
    pub(super) fn set_variable(&mut self, name: &str, value: &str, place: Location, origin: SettingOrigin) {
        if value.contains('$') || value.contains('`') || value.contains("{{") {
            self.note_unseen(format!("{name} ({place}) is computed when the text is used"));
            return;
        }
        let setting = Setting::new(name, value, place);
        // Variables passed on by mpirun are in effect in the ranks, independent of the order in the text.
        let is_passed = self.is_mpi_job && self.passed.contains(name);
        if origin == SettingOrigin::Command {
            self.passed.insert(name.to_owned());
        }
        match self.settings.iter_mut().find(|own| own.name == name) {
            Some(own) if own.value == setting.value => {}
            Some(_) if is_passed && origin == SettingOrigin::Entry => self.overridden.push(setting),
            Some(own) => self.overridden.push(std::mem::replace(own, setting)),
            None => self.settings.push(setting),
        }
    }

    /// Notes a variable passed on by the launcher from its environment.
    pub(super) fn note_forwarded(&mut self, name: &str, place: Location) {
        self.forwarded.push((name.to_owned(), place));
    }

    /// Notes a known variable in a form without a readable value, unless the command of the line sets none.
    fn note_mention(&mut self, name: &str, line: &str, place: &Location) {
        /// Commands that set no variable, or pass on a variable set elsewhere.
        const HARMLESS: [&str; 9] =
            ["unset", "export", "echo", "grep", "egrep", "cd", "module", "printenv", "declare"];
        let is_harmless =
            line.split_whitespace().any(|word| HARMLESS.contains(&word.trim_matches(['"', '\''])));
        if names::find_name(name).is_some() && !is_harmless {
            self.mentioned.push((name.to_owned(), place.clone()));
        }
    }

    /// Notes an assignment alone in its line. A shell passes it on to programs only if a line exports the
    /// variable.
    fn note_export(&mut self, name: &str, before: &str, rest: &str, place: &Location) {
        self.unexported.retain(|(own, _)| own != name);
        let rest = rest.trim_matches([' ', '\t', '"', '\'', ';']);
        let is_alone = before.trim().is_empty() && (rest.is_empty() || rest.starts_with('#'));
        if is_alone && self.is_shell {
            self.unexported.push((name.to_owned(), place.clone()));
        }
    }

    /// Notes a value with a probably unintended end: `export NAME=a, b`, `--export=NAME=a,b`.
    fn note_cut_value(&mut self, name: &str, before: &str, value: &str, rest: &str, place: &Location) {
        let first_word =
            |text: &str| text.split([' ', '\t', ',', '"', '\'']).next().unwrap_or_default().to_owned();
        let is_name = |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        let is_variable = |word: &str| {
            word.contains('=')
                || word.bytes().all(is_name) && !word.starts_with(|first: char| first.is_ascii_digit())
        };
        let rest = rest.strip_prefix('=').filter(|_| value.is_empty()).unwrap_or(rest);
        let after_comma = rest.strip_prefix(',').filter(|_| is_comma_list(before)).map(first_word);
        if let Some(word) = after_comma {
            if !is_variable(&word) {
                self.note_unseen(format!("the value of {name} ({place}) ends at the comma before `{word}`"));
            }
            return;
        }
        let swallowed = value.split_once(',').map(|(_, after)| after).filter(|after| {
            after.split_once('=').is_some_and(|(name, _)| !name.is_empty() && is_variable(name))
        });
        if let Some(swallowed) = swallowed {
            return self.note_unseen(format!(
                "`{swallowed}` is a part of the value of {name} ({place}), not another variable"
            ));
        }
        let word = first_word(rest.trim_start());
        let is_exported = before.split_whitespace().next() == Some("export");
        let is_cut = rest.starts_with([' ', '\t'])
            && (value.ends_with(',') || is_exported)
            && word.starts_with(char::is_alphanumeric)
            && !is_variable(&word);
        if is_cut {
            self.note_unseen(format!("the value of {name} ({place}) ends at the space before `{word}`"));
        }
    }

    /// Notes a known variable in the output of a command: the output may go into a file that is read later.
    fn note_print(&mut self, name: &str, after: &str, place: &Location) {
        if names::find_name(name).is_some() && after.contains(['>', '|']) {
            self.mentioned.push((name.to_owned(), place.clone()));
        }
    }

    /// Notes variables in the text without a readable value.
    pub(super) fn report_mentioned(&mut self) {
        for (name, place) in std::mem::take(&mut self.unexported) {
            self.note_unseen(format!(
                "{name} ({place}) is not exported: programs that the script starts do not get it"
            ));
        }
        for (name, place) in std::mem::take(&mut self.mentioned) {
            if self.settings.iter().all(|setting| setting.name != name) {
                self.note_missing_value(&name, &place);
            }
        }
    }

    /// Notes a variable with `valueFrom`.
    pub(super) fn note_value_elsewhere(&mut self, name: &str, place: &Location) {
        self.note_unseen(format!("{name} ({place}) takes its value from another object"));
    }

    /// Notes a variable without value.
    pub(super) fn note_missing_value(&mut self, name: &str, place: &Location) {
        self.note_unseen(format!("{name} ({place}) has no value that could be read"));
    }

    /// Notes variables of another object.
    pub(super) fn env_from(&mut self, place: &Location) {
        self.note_unseen(format!(
            "envFrom ({place}) sets the variables of another object: these were not read"
        ));
    }

    pub(super) fn note_unseen(&mut self, text: String) {
        self.is_partial = true;
        self.unseen.push(text);
    }
}

/// Returns true behind a command that prints or searches a text: `echo "NCCL_ALGO=Ring"`, `RUN echo
/// NCCL_ALGO=Ring`.
fn is_printed(before: &str) -> bool {
    const COMMANDS: [&str; 5] = ["echo", "printf", "grep", "egrep", "logger"];
    const BEFORE_COMMAND: [&str; 6] = ["RUN", "then", "do", "else", "sudo", "-"];
    let command = before.rsplit([';', '&', '|', '(', '{']).next().unwrap_or_default();
    let mut words = command.split_whitespace().skip_while(|word| BEFORE_COMMAND.contains(word));
    // `printf -v NAME` sets a variable.
    words.next().is_some_and(|first| COMMANDS.contains(&first)) && words.next() != Some("-v")
}

#[cfg(test)]
mod tests;
