//! One rule about a message, with its pattern.

use std::sync::OnceLock;

use regex::bytes::{Regex, RegexBuilder};
use semver::{Version, VersionReq};

use crate::finding::{Action, Role, Severity};

/// Limit of a compiled pattern.
const PATTERN_BYTES: usize = 1 << 20;

/// Placeholder in a pattern for the start of a line, after spaces and the prefixes of launchers and loggers.
const START: &str = "{start}";

/// The expression for [`START`]: `[rank3]:`, `[1,0]<stderr>:`, `3: `, `2026-11-24T13:42:01Z stdout F `,
/// `Nov 24 13:42:01 vm python[12]: `, `<34>1 2026-11-24T13:42:01Z vm python 12 - - `,
/// `E1124 13:42:01.5 12 api.py:88] `, `ERROR 11-24 13:42:01 `, `WARN: Function: main Line: 4: `,
/// `(Worker pid=12, ip=192.0.2.1) `, `train-0 | `, `node1: `, `[1]+  `, `  what():  `.
pub(crate) const PREFIXES: &str = concat!(
    r"^(?-ux:\s|\[[^\]]*\][+-]?:?|<std(?:out|err)>:|std(?:out|err) [FP] ",
    r"|<\d{1,3}>(?:1 \S+ \S+ \S+ \S+ \S+ (?:-|\[[^\]]*\]) )?",
    r"|\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d[^\s\[]*(?: \S+ \S+\[\d+\]: )?",
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ \S+: ",
    r"|[EWIF]\d{4} \d\d:\d\d:\d\d\S* +\d+ \S+\] ",
    r"|(?:ERROR|WARNING|INFO) \d\d-\d\d \d\d:\d\d:\d\d|(?:WARN|INFO|TRACE): Function: \w+ Line: \d+: ",
    r"|\((?:\w[^()]* )?pid=[^()]*\)|[\w.-]+ +\| |[\w.-]*\d[\w.-]*: |what\(\): ",
    // Bars of progress, and text that a terminal overwrites.
    r"|\d{1,3}%\|[^\]]*\]|[^\r]*\r)*",
);

/// Lines of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Origin {
    /// Messages of NCCL and its plugins.
    Nccl,
    /// Messages of the kernel.
    Kernel,
    /// Lines of any program.
    Any,
}

/// Knowledge about one message.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Stable name.
    pub id: String,
    /// Lines of the rule.
    pub origin: Origin,
    /// Wordings of the message. A line has to contain one of them, in exactly these letters.
    pub contains: Vec<String>,
    /// Words shorter than `contains` allows, in the first 200 bytes of a line not matched through `contains`.
    pub short: Vec<String>,
    /// A further condition: a pattern for the line.
    pub pattern: Option<Pattern>,
    /// A pattern whose groups are the words of the message that follow the diagnosis.
    pub quote: Option<Pattern>,
    /// Versions of NCCL covered by the rule.
    pub nccl: Option<VersionReq>,
    /// Versions of aws-ofi-nccl covered by the rule.
    pub plugin: Option<VersionReq>,
    /// Place in the chain of cause and effect.
    pub role: Role,
    /// Effect on the health.
    pub severity: Severity,
    /// The diagnosis in one sentence.
    pub diagnosis: String,
    /// The cause.
    pub cause: Option<String>,
    /// The remedy.
    pub remedy: Option<String>,
    /// Action for the node.
    pub action: Action,
    /// True for a message of a launcher. It stands below the messages about its effects.
    pub reported_late: bool,
    /// True for a failed step after which a process can go on.
    pub step: bool,
    /// True for a message that says less than another one about the same failure.
    pub vague: bool,
    /// True for a message about the end of another process.
    pub aftermath: bool,
    /// True for a message of a rank that waited for others in vain.
    pub waits: bool,
    /// True for a message with only the class of NCCL's error, which says more than the end of a process.
    pub class: bool,
    /// Rules whose hits have this diagnosis in a log that fits `with` and `without`.
    pub case_of: Vec<String>,
    /// Rules with hits in the log, or facts: each is needed. `|` separates alternatives.
    pub with: Vec<String>,
    /// Rules without a hit in the log, or facts not in it.
    pub without: Vec<String>,
    /// Rules about a crash. The line is a frame of its stack, the pattern's first group a function of NCCL.
    pub frame_of: Vec<String>,
    /// The use that the diagnosis denies. A log that proves it refutes the rule.
    pub denies: Option<Use>,
    /// Source of the knowledge: documentation, source code or thread.
    pub source: String,
    /// Lines that it has to match.
    pub matches: Vec<String>,
    /// Lines that it must not match.
    pub not: Vec<String>,
}

/// A use of the hardware that a log can prove for all connections concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Use {
    /// Direct access between the GPUs of a host.
    P2p,
    /// NVLink between the GPUs of a host.
    Nvlink,
    /// GPUDirect RDMA between hosts.
    Gdr,
}

/// A regular expression, compiled at its first use.
#[derive(Clone, Debug)]
pub struct Pattern {
    text: String,
    has_groups: bool,
    compiled: OnceLock<Option<Regex>>,
}

impl Rule {
    /// Returns true if the rule holds for this version of NCCL. It holds for an unknown version.
    pub fn applies_to(&self, nccl: Option<&Version>) -> bool {
        range_holds(self.nccl.as_ref(), nccl)
    }

    /// Returns true if the rule holds for this version of aws-ofi-nccl. It holds for an unknown version.
    pub fn applies_to_plugin(&self, plugin: Option<&Version>) -> bool {
        range_holds(self.plugin.as_ref(), plugin)
    }

    /// Matches a line with one of the wordings against the pattern.
    pub(super) fn confirms_line(&self, line: &[u8]) -> bool {
        self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(line))
    }

    /// Matches a whole line, without an automaton.
    pub(super) fn matches_line(&self, line: &str) -> bool {
        let mut words = self.contains.iter().chain(&self.short);
        words.any(|words| line.contains(words.as_str())) && self.confirms_line(line.as_bytes())
    }

    /// Returns the part of an example line for the search: for NCCL, the message after `NCCL INFO `. A failed
    /// CUDA call keeps the file of the source before it.
    pub fn message_of_example<'a>(&self, line: &'a str) -> &'a str {
        if self.origin == Origin::Nccl
            && let Some((before, _)) = line.split_once(" NCCL WARN Cuda failure")
        {
            return &line[before.rfind(' ').map_or(0, |space| space + 1)..];
        }
        match self.origin {
            Origin::Nccl => ["NCCL INFO ", "NCCL WARN "]
                .iter()
                .find_map(|level| line.split_once(level))
                .map_or(line, |(_, message)| message),
            Origin::Kernel | Origin::Any => line,
        }
    }
}

impl Pattern {
    /// Creates a pattern, not yet compiled.
    pub(super) fn new(text: String) -> Self {
        Self { has_groups: text.contains("(?<"), text, compiled: OnceLock::new() }
    }

    /// Compiles the pattern, and returns its fault.
    pub(super) fn check(&self) -> Result<(), regex::Error> {
        self.build_regex().map(drop)
    }

    /// Searches the line. An invalid pattern is found nowhere.
    pub fn is_match(&self, line: &[u8]) -> bool {
        self.compiled
            .get_or_init(|| self.build_regex().ok())
            .as_ref()
            .is_some_and(|regex| regex.is_match(line))
    }

    /// Returns the first group of the expression in the text.
    pub fn first_group<'a>(&self, text: &'a str) -> Option<&'a str> {
        let found =
            self.compiled.get_or_init(|| self.build_regex().ok()).as_ref()?.captures(text.as_bytes())?;
        std::str::from_utf8(found.get(1)?.as_bytes()).ok()
    }

    /// Returns the text of each group where the expression first matches.
    pub fn groups<'a>(&self, text: &'a str) -> Vec<&'a str> {
        let regex = self.compiled.get_or_init(|| self.build_regex().ok()).as_ref();
        let found = regex.and_then(|regex| regex.captures(text.as_bytes()));
        let groups = found.iter().flat_map(|found| found.iter().skip(1).flatten());
        groups.filter_map(|group| std::str::from_utf8(group.as_bytes()).ok()).collect()
    }

    /// Passes the name and text of each named group, for all places where the expression matches.
    pub fn read_groups(&self, line: &[u8], mut note: impl FnMut(&str, &[u8])) {
        if !self.has_groups {
            return;
        }
        let Some(regex) = self.compiled.get_or_init(|| self.build_regex().ok()) else { return };
        for found in regex.captures_iter(line) {
            for name in regex.capture_names().flatten() {
                if let Some(text) = found.name(name) {
                    note(name, text.as_bytes());
                }
            }
        }
    }

    /// Returns the expression.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    fn build_regex(&self) -> Result<Regex, regex::Error> {
        RegexBuilder::new(&self.text.replace(START, PREFIXES)).size_limit(PATTERN_BYTES).build()
    }
}

impl Origin {
    /// Returns true if a rule of the other origin can match lines of this origin. A line of unknown origin
    /// can be a line of the kernel, and a line of NCCL can repeat a program's line.
    pub(super) fn includes_rule_of(self, rule: Self) -> bool {
        match self {
            Self::Nccl => matches!(rule, Self::Nccl | Self::Any),
            Self::Kernel => rule == Self::Kernel,
            Self::Any => matches!(rule, Self::Any | Self::Kernel),
        }
    }
}

/// Returns true unless both range and version are known and do not fit.
fn range_holds(range: Option<&VersionReq>, version: Option<&Version>) -> bool {
    match (range, version) {
        (Some(range), Some(version)) => range.matches(version),
        _ => true,
    }
}
