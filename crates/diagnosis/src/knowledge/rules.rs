//! Rules about messages in logs.

use regex::bytes::Regex;
use semver::{Version, VersionReq};

use crate::finding::{Action, Role, Severity};

/// Lines that a rule is about.
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
    /// Lines that it is about.
    pub origin: Origin,
    /// Words that the line contains.
    pub contains: String,
    /// A pattern that the line matches as well.
    pub pattern: Option<Regex>,
    /// Versions of NCCL that it holds for.
    pub nccl: Option<VersionReq>,
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
    /// The thing to do with the node.
    pub action: Action,
    /// Documentation, source or thread that the knowledge is from.
    pub source: String,
}

/// All rules, ready to be matched.
#[derive(Clone, Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
}

impl Rules {
    /// The rules that are compiled in.
    pub fn built_in() -> Self {
        Self::default()
    }

    /// The rule with this name.
    pub fn get(&self, id: &str) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.id == id)
    }

    /// The first rule that knows this line. A site's own rules come before those that are compiled in.
    ///
    /// The reader of logs passes, without the line's end, the colours of a terminal and the wrapping of Docker:
    ///
    /// - with [`Origin::Nccl`], the message of a line of NCCL or its plugin: the text after `NCCL INFO `,
    ///   `NCCL WARN ` or `NCCL DIAG `, without time, host, process, device, file and function. Rules for
    ///   [`Origin::Any`] count as well. Not passed are the messages that come by the thousand: those that begin with
    ///   `Channel `, `Ring `, `Tree `, and those of operations (`AllReduce: opCount`, `8 Bytes -> Algo`);
    /// - with [`Origin::Kernel`], a whole line that looks like the kernel's: `[  123.456] ...`, `... kernel: ...`, and
    ///   any with `NVRM: `. Rules for [`Origin::Any`] count as well;
    /// - with [`Origin::Any`], the whole line of another program, with the prefixes of launchers. Rules for
    ///   [`Origin::Nccl`] and [`Origin::Kernel`] do not count.
    ///
    /// A line can be cut after 16 KiB, and can have bytes that are not UTF-8. This is called for nearly every line of
    /// a log: it must cost less than a microsecond, and must not allocate.
    pub fn find(&self, line: &[u8], origin: Origin) -> Option<&Rule> {
        let _ = (line, origin);
        None
    }
}

impl Rule {
    /// Returns true for a version that the rule holds for; an unknown version counts.
    pub fn applies_to(&self, nccl: Option<&Version>) -> bool {
        match (&self.nccl, nccl) {
            (Some(range), Some(version)) => range.matches(version),
            _ => true,
        }
    }
}
