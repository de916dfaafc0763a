//! Lines of a text answer.

use std::sync::LazyLock;

use regex::{Captures, Regex};

use crate::job::status::{JobProcess, Kind, RankPlace, State};

/// A line with a fact.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AnswerLine {
    /// Version of NCCL.
    Version(String),
    /// Versions of the CUDA runtime and driver.
    Cuda(i64, i64),
    /// Time of the collection, in seconds.
    Collected(String),
    /// Communicators of one kind.
    Kind(Kind),
    /// The beginning of a part.
    Heading(Heading),
    /// The beginning of the facts about a communicator.
    Communicator {
        /// Number of its kind.
        kind: usize,
        /// Its hash.
        hash: u64,
    },
    /// Subject of the following lines.
    Topic(Topic),
    /// A process.
    Process(JobProcess),
    /// Number of processes given up by RAS.
    DeadProcesses(u32),
    /// Number of processes without data.
    SilentProcesses(u32),
    /// Number of ranks without data.
    MissingRanks(u32),
    /// Numbers of ranks without data.
    MissingList(Vec<u32>),
    /// A fact about several ranks. Some of them may follow.
    Group(u32, RankFact),
    /// A fact about a rank. Without its own fact, the previous group's applies.
    Rank(u32, Option<RankFact>, Option<RankPlace>),
    /// Number of timeouts.
    Timeouts(u64),
}

/// Part of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Heading {
    /// Processes without data.
    Silent,
    /// Processes given up by RAS.
    Dead,
    /// The last part.
    Warnings,
}

/// Subject of lines about ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Topic {
    /// Ranks without data.
    Incomplete,
    /// Errors of the initialization.
    InitErrors,
    /// Errors since then.
    AsyncErrors,
    /// States.
    States,
    /// Launched operations of a collective.
    Counts(String),
}

/// A fact about ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RankFact {
    /// Number of launched operations.
    Launched(u64),
    /// State.
    State(State),
    /// The rank's process does not have the communicator.
    NotAMember,
    /// An error.
    Error(String),
}

/// Reads a line. Returns `None` for a line without a fact.
pub(super) fn read_line(line: &str) -> Option<AnswerLine> {
    let line = line.trim_end();
    match line {
        "INCOMPLETE" => return Some(AnswerLine::Heading(Heading::Silent)),
        "DEAD" => return Some(AnswerLine::Heading(Heading::Dead)),
        "Warnings" => return Some(AnswerLine::Heading(Heading::Warnings)),
        "  Communicator ranks have different status" => return Some(AnswerLine::Topic(Topic::States)),
        _ => {}
    }
    if line.starts_with("  Rank ") {
        return parse_rank(line);
    }
    if let Some(rest) = line.strip_prefix("  Initialization error") {
        return rest.contains(" on ").then_some(AnswerLine::Topic(Topic::InitErrors));
    }
    if let Some(rest) = line.strip_prefix("  Asynchronous error") {
        return rest.contains(" on ").then_some(AnswerLine::Topic(Topic::AsyncErrors));
    }
    counts_topic(line)
        .or_else(|| parse_group(line))
        .or_else(|| parse_process(line))
        .or_else(|| parse_communicator(line))
        .or_else(|| parse_general(line))
}

fn counts_topic(line: &str) -> Option<AnswerLine> {
    let collective =
        line.strip_prefix("  Communicator ranks have different ")?.strip_suffix(" operation counts")?;
    Some(AnswerLine::Topic(Topic::Counts(collective.to_owned())))
}

/// Reads `  Rank 1 has launched up to operation 5 -- GPU 0 managed by process 4858 on node 192.0.2.2`.
fn parse_rank(line: &str) -> Option<AnswerLine> {
    static RANK: LazyLock<Regex> = LazyLock::new(|| compile_pattern(r"^  Rank (\d+) (.*?)(?: ?-- (.*))?$"));
    static PLACE: LazyLock<Regex> = LazyLock::new(|| {
        compile_pattern(r"^GPU (-?\d+)(?: \(NVML (-?\d+)\))? managed by process (-?\d+) on node (\S*)$")
    });
    let parts = RANK.captures(line)?;
    let place = parts.get(3).and_then(|place| PLACE.captures(place.as_str())).and_then(|place| {
        let cuda_dev = number_at(&place, 1)?;
        Some(RankPlace {
            host: place[4].to_owned(),
            pid: number_at(&place, 3)?,
            cuda_dev,
            nvml_dev: number_at(&place, 2).unwrap_or(cuda_dev),
        })
    });
    let said = parts[2].trim();
    let fact = if said.is_empty() { None } else { Some(parse_fact(said)?) };
    Some(AnswerLine::Rank(number_at(&parts, 1)?, fact, place))
}

/// Reads `  15 ranks have launched up to operation 6`.
fn parse_group(line: &str) -> Option<AnswerLine> {
    static GROUP: LazyLock<Regex> = LazyLock::new(|| compile_pattern(r"^  (\d+) ranks (.*)$"));
    let parts = GROUP.captures(line)?;
    Some(AnswerLine::Group(number_at(&parts, 1)?, parse_fact(&parts[2])?))
}

/// Reads a fact about one rank (`has ...`) or several (`have ...`).
fn parse_fact(text: &str) -> Option<RankFact> {
    let text = text.strip_prefix("has ").or_else(|| text.strip_prefix("have ")).unwrap_or(text);
    if text == "not launched any operations" {
        return Some(RankFact::Launched(0));
    }
    if let Some(count) = text.strip_prefix("launched up to operation ") {
        return count.parse().ok().map(RankFact::Launched);
    }
    if let Some(name) = text.strip_prefix("status ") {
        // NCCL 2.24 and 2.25 print UNKNOWN, later ones NOCOMM.
        let absent = matches!(name, "NOCOMM" | "UNKNOWN");
        return Some(if absent { RankFact::NotAMember } else { RankFact::State(State::of_name(name)) });
    }
    text.strip_prefix("reported ").map(|error| RankFact::Error(error.to_owned()))
}

/// Reads `  Process 4603 on node 192.0.2.2 managing GPU 0`, and numbers of processes and ranks.
fn parse_process(line: &str) -> Option<AnswerLine> {
    static PROCESS: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^  Process (\d+) on node (\S*) managing GPUs? (.*)$"));
    static DEAD: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^  (\d+) job process(?: is|es are) considered dead"));
    static SILENT: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^  Missing communicator data from (\d+) job process(?:es)?$"));
    static MISSING: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^  Missing communicator data from (\d+) ranks?$"));
    static LIST: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^  The (?:missing|unknown) ranks?: (\d+(?:,\d+)*)$"));
    if let Some(parts) = PROCESS.captures(line) {
        let pid = number_at(&parts, 1)?;
        return Some(AnswerLine::Process(JobProcess {
            host: parts[2].to_owned(),
            pid,
            gpus: parts[3].to_owned(),
        }));
    }
    if let Some(parts) = DEAD.captures(line) {
        return Some(AnswerLine::DeadProcesses(number_at(&parts, 1)?));
    }
    if let Some(parts) = SILENT.captures(line) {
        return Some(AnswerLine::SilentProcesses(number_at(&parts, 1)?));
    }
    if let Some(parts) = MISSING.captures(line) {
        return Some(AnswerLine::MissingRanks(number_at(&parts, 1)?));
    }
    let parts = LIST.captures(line)?;
    Some(AnswerLine::MissingList(parts[1].split(',').filter_map(|rank| rank.parse().ok()).collect()))
}

/// Reads `#0-0 (b67645b31b895d33) MISMATCH`.
fn parse_communicator(line: &str) -> Option<AnswerLine> {
    static COMMUNICATOR: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^#(\d+)-\d+ \(([0-9a-f]{1,16})\) (?:INCOMPLETE|ERROR|MISMATCH)$"));
    let parts = COMMUNICATOR.captures(line)?;
    Some(AnswerLine::Communicator {
        kind: number_at(&parts, 1)?,
        hash: u64::from_str_radix(&parts[2], 16).ok()?,
    })
}

fn parse_general(line: &str) -> Option<AnswerLine> {
    static VERSION: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^NCCL version (\S+)(?: compiled with CUDA .*)?$"));
    static CUDA: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^CUDA runtime version (-?\d+), driver version (-?\d+)$"));
    static COLLECTED: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^(?:Communicators\.\.\.)? \((\d+\.\d+)s\)$"));
    static TIMEOUTS: LazyLock<Regex> =
        LazyLock::new(|| compile_pattern(r"^  Encountered (\d+) communication timeouts? while gathering"));
    static KIND: LazyLock<Regex> = LazyLock::new(|| {
        compile_pattern(r"^ *\d+  +(\d+)  +\d+  +\d+(?:-\d+)?  +(\d+)  +\d+  +([A-Z]+)  +([A-Z,]+)$")
    });
    if let Some(parts) = KIND.captures(line) {
        let errors = parts[4].split(',').filter(|error| *error != "OK").map(str::to_owned).collect();
        return Some(AnswerLine::Kind(Kind {
            communicators: number_at(&parts, 1)?,
            size: number_at(&parts, 2)?,
            state: State::of_name(&parts[3]),
            errors,
        }));
    }
    if let Some(parts) = VERSION.captures(line) {
        return Some(AnswerLine::Version(parts[1].to_owned()));
    }
    if let Some(parts) = CUDA.captures(line) {
        return Some(AnswerLine::Cuda(number_at(&parts, 1)?, number_at(&parts, 2)?));
    }
    if let Some(parts) = COLLECTED.captures(line) {
        return Some(AnswerLine::Collected(parts[1].to_owned()));
    }
    Some(AnswerLine::Timeouts(number_at(&TIMEOUTS.captures(line)?, 1)?))
}

fn number_at<T: std::str::FromStr>(parts: &Captures<'_>, index: usize) -> Option<T> {
    parts.get(index)?.as_str().parse().ok()
}

/// Compiles a constant pattern.
#[expect(clippy::unwrap_used, reason = "the patterns are constants, which the tests compile")]
fn compile_pattern(text: &str) -> Regex {
    Regex::new(text).unwrap()
}
