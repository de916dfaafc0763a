//! All rules about messages, and the search for the rule of a line.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use memchr::memmem::Finder;

pub use super::file::FileError;
use super::file::{FieldFault, check_lines, locate_fault, read_rules};
pub use super::rule::{Origin, Pattern, Rule, Use};
use super::words::Words;

/// The compiled-in files. An earlier rule wins, so the files with exact messages come first.
pub(super) const FILES: [(&str, &str); 12] = [
    ("knowledge/aws-ofi-nccl.toml", include_str!("../../knowledge/aws-ofi-nccl.toml")),
    ("knowledge/nccl.toml", include_str!("../../knowledge/nccl.toml")),
    ("knowledge/transfer.toml", include_str!("../../knowledge/transfer.toml")),
    ("knowledge/launchers.toml", include_str!("../../knowledge/launchers.toml")),
    ("knowledge/libfabric.toml", include_str!("../../knowledge/libfabric.toml")),
    ("knowledge/kernel.toml", include_str!("../../knowledge/kernel.toml")),
    ("knowledge/devices.toml", include_str!("../../knowledge/devices.toml")),
    ("knowledge/frameworks.toml", include_str!("../../knowledge/frameworks.toml")),
    ("knowledge/cuda.toml", include_str!("../../knowledge/cuda.toml")),
    ("knowledge/torch.toml", include_str!("../../knowledge/torch.toml")),
    ("knowledge/programs.toml", include_str!("../../knowledge/programs.toml")),
    ("knowledge/harmless.toml", include_str!("../../knowledge/harmless.toml")),
];

/// Facts of a log besides hits and variables, for `with` and `without`: connections, and one over P2P.
pub const FACTS: [&str; 2] = ["connections", "p2p"];

/// Number of bytes searched for short words at the beginning of a line. The prefixes of launchers and loggers
/// come before the words.
const BEGINNING: usize = 200;

/// All rules, ready to be matched. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Arc<[Rule]>,
    /// Words in lines of each origin, with the indices of their rules.
    nccl: Arc<Words>,
    kernel: Arc<Words>,
    any: Arc<Words>,
    /// Short words, with the indices of their rules, in the order of these.
    short: Arc<[(Finder<'static>, usize)]>,
}

impl Rules {
    /// Returns the compiled-in rules.
    pub fn built_in() -> Self {
        static RULES: OnceLock<Rules> = OnceLock::new();
        // The tests check the files.
        RULES.get_or_init(|| Self::new(built_in_files().unwrap_or_default())).clone()
    }

    /// Returns the rules of these files, in their order, before the compiled-in rules.
    ///
    /// # Errors
    /// An unreadable file, or a rule with a fault. The error contains file, line, rule and field.
    pub fn with_files(paths: &[PathBuf]) -> Result<Self, FileError> {
        let mut files = Vec::new();
        for path in paths {
            let text = fs::read_to_string(path).map_err(|error| FileError::unreadable_file(path, &error))?;
            files.push((path.display().to_string(), text));
        }
        let mut rules: Vec<Rule> = Vec::new();
        let mut origins = Vec::new();
        for (name, text) in &files {
            for rule in read_rules(name, text)? {
                let checked = match rules.iter().any(|other| other.id == rule.id) {
                    true => Err(("id", "another rule has this name".to_owned())),
                    false => check_lines(&rule),
                };
                checked.map_err(|fault| locate_fault(name, text, &rule.id, fault))?;
                rules.push(rule);
                origins.push((name, text));
            }
        }
        // A site's own rule replaces the compiled-in one of the same name.
        let own = rules.len();
        for rule in Self::built_in().rules.iter() {
            if !rules[..own].iter().any(|other| other.id == rule.id) {
                rules.push(rule.clone());
            }
        }
        let rules = Self::new(rules);
        for (rule, (name, text)) in rules.iter().zip(origins) {
            rules.check_search(rule).map_err(|fault| locate_fault(name, text, &rule.id, fault))?;
        }
        Ok(rules)
    }

    /// Checks that the search finds a rule for its own lines, and for none of its excluded lines.
    pub(super) fn check_search(&self, rule: &Rule) -> Result<(), FieldFault> {
        let is_known = |name: &&str| {
            self.rule_by_id(name).is_some() || FACTS.contains(name) || name.starts_with("NCCL_")
        };
        for (field, names) in [
            ("case_of", &rule.case_of),
            ("with", &rule.with),
            ("without", &rule.without),
            ("frame_of", &rule.frame_of),
        ] {
            if let Some(name) = names.iter().flat_map(|name| name.split('|')).find(|name| !is_known(name)) {
                return Err((field, format!("no rule has the name `{name}`")));
            }
        }
        if !rule.case_of.is_empty() {
            return Ok(());
        }
        let find = |line| {
            self.find_rule(rule.message_of_example(line).as_bytes(), rule.origin)
                .map_or("none", |found| &found.id)
        };
        if let Some(line) = rule.matches.iter().find(|line| find(line) != rule.id) {
            return Err((
                "matches",
                format!("`{line}` is taken by the rule `{}`, which comes first", find(line)),
            ));
        }
        match rule.not.iter().find(|line| find(line) == rule.id) {
            Some(line) => Err(("not", format!("the rule matches `{line}`, but must not match it"))),
            None => Ok(()),
        }
    }

    /// Returns all rules, in the order of the search.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// Returns the rule with this name.
    pub fn rule_by_id(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// Returns the cases of a rule, in their order.
    pub fn cases_of(&self, id: &str) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.case_of.iter().any(|name| name == id))
    }

    /// Returns the first rule for this line. A site's own rules come before the compiled-in ones.
    ///
    /// Lines of any program are also searched for messages of the kernel, and lines of NCCL for messages of
    /// any program.
    ///
    /// The reader of logs passes lines without their end, the colours of a terminal and the wrapping of
    /// Docker:
    ///
    /// - with [`Origin::Nccl`], the message of a line of NCCL or a plugin: the text after `NCCL INFO `, `NCCL
    ///   WARN ` or `NCCL DIAG `, without time, host, process, device, file and function. Very frequent
    ///   messages are not passed: channels and rings (`Channel 00/0 : 0[0] -> 1[1] via ...`, `Ring `, `Tree`)
    ///   and operations (`AllReduce: opCount`, `8 Bytes -> Algo`);
    /// - with [`Origin::Any`], the whole line of another program or of the kernel, with the prefixes of
    ///   launchers.
    ///
    /// A line can be cut after 16 KiB, and can have bytes outside UTF-8. Nearly every line of a log comes
    /// here: the search must cost less than a microsecond and must not allocate.
    pub fn find_rule(&self, line: &[u8], origin: Origin) -> Option<&Rule> {
        let words = match origin {
            Origin::Nccl => &self.nccl,
            Origin::Kernel => &self.kernel,
            Origin::Any => &self.any,
        };
        let mut first = self.rules.len();
        words.find_all(line, |rule| {
            if rule < first && self.rules[rule].confirms_line(line) {
                first = rule;
            }
        });
        if first == self.rules.len() && origin == Origin::Any {
            return self.find_short(line);
        }
        self.rules.get(first)
    }

    /// Returns the first rule for this line with a short word at its beginning.
    fn find_short(&self, line: &[u8]) -> Option<&Rule> {
        let beginning = &line[..line.len().min(BEGINNING)];
        let known = self.short.iter().filter(|(word, _)| word.find(beginning).is_some());
        known.map(|&(_, rule)| &self.rules[rule]).find(|rule| rule.confirms_line(line))
    }

    /// Prepares the search.
    fn new(rules: Vec<Rule>) -> Self {
        let words = |origin: Origin| {
            let chosen = rules.iter().enumerate().filter(|(_, rule)| origin.includes_rule_of(rule.origin));
            let words =
                chosen.flat_map(|(index, rule)| rule.contains.iter().map(move |word| (word.as_str(), index)));
            Arc::new(Words::new(words))
        };
        let short = rules.iter().enumerate().flat_map(|(index, rule)| {
            rule.short.iter().map(move |word| (Finder::new(word).into_owned(), index))
        });
        Self {
            short: short.collect(),
            nccl: words(Origin::Nccl),
            kernel: words(Origin::Kernel),
            any: words(Origin::Any),
            rules: rules.into(),
        }
    }
}

/// Reads the compiled-in files.
fn built_in_files() -> Result<Vec<Rule>, FileError> {
    let mut rules = Vec::new();
    for (file, text) in FILES {
        rules.extend(read_rules(file, text)?);
    }
    Ok(rules)
}
