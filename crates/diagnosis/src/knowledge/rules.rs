//! All rules about messages, and the search for the one that knows a line.

use std::fs;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock};

use aho_corasick::automaton::OverlappingState;
use aho_corasick::{AhoCorasick, AhoCorasickKind, MatchKind};

pub use super::file::FileError;
use super::file::{check_lines, located, read_rules};
pub use super::rule::{Origin, Pattern, Rule};

/// The files that are compiled in. An earlier rule wins, so that the files with exact messages come first.
pub(super) const FILES: [(&str, &str); 2] = [
    ("knowledge/nccl.toml", include_str!("../../knowledge/nccl.toml")),
    ("knowledge/programs.toml", include_str!("../../knowledge/programs.toml")),
];

/// All rules, ready to be matched. Cloning is cheap.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Arc<[Rule]>,
    nccl: Arc<Index>,
    kernel: Arc<Index>,
    any: Arc<Index>,
}

/// The words of the rules for lines of one origin.
#[derive(Debug, Default)]
struct Index {
    /// Finds all words in one pass.
    automaton: Option<AhoCorasick>,
    /// Index of the rule of each word.
    rules: Vec<usize>,
}

impl Rules {
    /// The rules that are compiled in.
    pub fn built_in() -> Self {
        static RULES: OnceLock<Rules> = OnceLock::new();
        // The tests check the files.
        RULES.get_or_init(|| Self::new(built_in_files().unwrap_or_default())).clone()
    }

    /// The rules of these files, in their order, before those that are compiled in.
    ///
    /// # Errors
    /// A file that cannot be read, or a rule with a fault: the error names file, line, rule and field.
    pub fn with_files(paths: &[PathBuf]) -> Result<Self, FileError> {
        let mut rules: Vec<Rule> = Vec::new();
        for path in paths {
            let text = fs::read_to_string(path).map_err(|error| FileError::unreadable(path, &error))?;
            let name = path.display().to_string();
            for rule in read_rules(&name, &text)? {
                let fault = |fault| located(&name, &text, &rule.id, fault);
                check_lines(&rule).map_err(fault)?;
                if rules.iter().any(|other| other.id == rule.id) {
                    return Err(fault(("id", "another rule has this name".to_owned())));
                }
                rules.push(rule);
            }
        }
        // A site's own rule replaces the compiled-in one of the same name.
        let own = rules.len();
        for rule in Self::built_in().rules.iter() {
            if !rules[..own].iter().any(|other| other.id == rule.id) {
                rules.push(rule.clone());
            }
        }
        Ok(Self::new(rules))
    }

    /// All rules, in the order in which they are tried.
    pub fn iter(&self) -> impl Iterator<Item = &Rule> {
        self.rules.iter()
    }

    /// The rule with this name.
    pub fn get(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// The first rule that knows this line. A site's own rules come before those that are compiled in.
    ///
    /// For [`Origin::Nccl`], the line is the message after `NCCL INFO ` or `NCCL WARN `, otherwise the whole line.
    /// Lines of any program are also searched for messages of the kernel, and NCCL's for those of any program.
    ///
    /// The reader of logs passes lines without their end, the colours of a terminal and the wrapping of Docker:
    ///
    /// - with [`Origin::Nccl`], the message of a line of NCCL or a plugin: the text after `NCCL INFO `, `NCCL WARN `
    ///   or `NCCL DIAG `, without time, host, process, device, file and function. Not passed are messages that come
    ///   by the thousand: channels and rings (`Channel 00/0 : 0[0] -> 1[1] via ...`, `Ring `, `Tree`) and operations
    ///   (`AllReduce: opCount`, `8 Bytes -> Algo`);
    /// - with [`Origin::Any`], the whole line of another program or of the kernel, with the prefixes of launchers.
    ///
    /// A line can be cut after 16 KiB, and can have bytes that are not UTF-8. Nearly every line of a log comes here:
    /// the search must cost less than a microsecond and must not allocate.
    pub fn find(&self, line: &[u8], origin: Origin) -> Option<&Rule> {
        let index = match origin {
            Origin::Nccl => &self.nccl,
            Origin::Kernel => &self.kernel,
            Origin::Any => &self.any,
        };
        let automaton = index.automaton.as_ref()?;
        let mut state = OverlappingState::start();
        let mut first = self.rules.len();
        loop {
            automaton.find_overlapping(line, &mut state);
            let Some(found) = state.get_match() else { break };
            let rule = index.rules[found.pattern().as_usize()];
            if rule < first && self.rules[rule].confirms(line) {
                first = rule;
            }
        }
        self.rules.get(first)
    }

    /// Prepares the search.
    fn new(rules: Vec<Rule>) -> Self {
        let index = |origin| Arc::new(Index::new(&rules, origin));
        Self {
            nccl: index(Origin::Nccl),
            kernel: index(Origin::Kernel),
            any: index(Origin::Any),
            rules: rules.into(),
        }
    }
}

impl Index {
    /// Collects the words of the rules that are about lines of this origin.
    fn new(all: &[Rule], origin: Origin) -> Self {
        let mut words: Vec<&str> = Vec::new();
        let mut rules = Vec::new();
        for (index, rule) in all.iter().enumerate().filter(|(_, rule)| origin.includes(rule.origin)) {
            for text in &rule.contains {
                words.push(text);
                rules.push(index);
            }
        }
        // The table of a deterministic automaton is some MB, and several times faster than the others. The build fails only
        // for more words than a file can have.
        let automaton = AhoCorasick::builder()
            .kind(Some(AhoCorasickKind::DFA))
            .match_kind(MatchKind::Standard)
            .build(&words)
            .ok();
        Self { automaton, rules }
    }
}

/// Reads the files that are compiled in.
fn built_in_files() -> Result<Vec<Rule>, FileError> {
    let mut rules = Vec::new();
    for (file, text) in FILES {
        rules.extend(read_rules(file, text)?);
    }
    Ok(rules)
}
