//! Exceptions of Python: tracebacks with their exceptions, and the exceptions with which processes ended.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use regex::bytes::Regex;

use super::digest::{Position, Traceback};
use super::label;
use super::text;
use crate::finding::Role;
use crate::knowledge::rule::PREFIXES;
use crate::knowledge::rules::Rule;

/// The rule about the heads of tracebacks.
pub(super) const HEAD_RULE: &str = "python-traceback";

/// Largest number of tracebacks kept, and of processes with one at the same time.
const TRACEBACKS: usize = 1024;

/// Largest number of lines from the head of a traceback to its exception.
const LINES: u64 = 60;

/// Length of the kept beginning of a line before a traceback.
const BEFORE: usize = 256;

/// Words before a traceback of an exception that does not end its process.
const IGNORED: &[&str] = &[
    "Exception ignored in",
    "Exception in thread",
    "Logging error",
    "never retrieved",
    "Exception in callback",
    "Error in atexit",
    "exception calling callback",
];

/// Files of Python that print tracebacks while a healthy process ends.
const CLEANUP: &[&str] = &["resource_tracker.py", "weakref.py", "/logging/__init__.py"];

/// Words of lines that follow the exception with which a process ends: continuations of its text, lines of
/// launchers, and lines about the end.
const AFTER: &[&str] = &[
    "exception",
    "Exception",
    "Error",
    "rror:",
    "frame #",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA kernel errors",
    "TORCH_USE_CUDA_DSA",
    "Device-side",
    "***",
    "====",
    "----",
    "ailed",
    "FAILED",
    "ailures:",
    "Root Cause",
    "exitcode",
    "return code",
    "ubprocess",
    "Sending process",
    "SIGTERM",
    "SIGKILL",
    "sigkill",
    "wandb",
    "srun",
    "slurm",
    "mpirun",
    "prterun",
    "torch/distributed/",
    "torch.distributed",
    "process_group",
    "ProcessGroup",
    "[c10d]",
    "resource_tracker",
    "leaked",
    "Aborted",
    "terminate",
    "what():",
    "warn",
    "shutting down",
    "hutdown",
    "core dumped",
    "Traceback",
];

/// Words of NCCL's lines that a process can write while it ends.
const NCCL_ENDS: &[&str] =
    &["Abort", "abort", "Destroy", "losed", " -> ", " WARN ", "Service thread", "Finalize", "finalize"];

static PREFIX: LazyLock<Option<Regex>> = LazyLock::new(|| Regex::new(PREFIXES).ok());

/// The label of a process: a rank, and the process in the label of Ray.
type Label = (Option<u32>, Option<u64>);

/// All tracebacks.
#[derive(Debug, Default)]
pub(super) struct Exceptions {
    open: BTreeMap<Label, ProcessTracebacks>,
    closed: Vec<Traceback>,
    input: usize,
    /// The last line of a rule, with the rule's name, and true for a line about a failure.
    known: Option<(Position, String, bool)>,
    /// The beginning of the last line.
    before: Vec<u8>,
}

/// The last tracebacks of a process.
#[derive(Debug, Default)]
struct ProcessTracebacks {
    /// The head of the traceback without an exception so far.
    head: Option<Position>,
    /// True if the open traceback does not end its process.
    is_ignored: bool,
    /// Tracebacks with their exceptions, without another line of the program below.
    done: Vec<Traceback>,
    /// True if KeyboardInterrupt or SystemExit ended the process.
    is_exit_wanted: bool,
}

impl Exceptions {
    /// Notes that a rule knows a line.
    pub(super) fn note_rule(&mut self, rule: &Rule, position: Position) {
        if !self.open.is_empty() || rule.id.starts_with("python-") {
            let is_failure = matches!(rule.role, Role::Root | Role::Cascade);
            self.known = Some((position, rule.id.clone(), is_failure));
        }
    }

    /// Reads a line of a program, after its rule was noted.
    pub(super) fn note_line(&mut self, line: &[u8], position: Position) {
        let known = self.known.take().filter(|(known, ..)| *known == position);
        if position.input != self.input {
            self.end_input();
            self.input = position.input;
        }
        if known.as_ref().is_some_and(|(_, rule, _)| rule == HEAD_RULE) {
            self.note_head(line, position);
            return;
        }
        self.before.clear();
        self.before.extend_from_slice(&line[..line.len().min(BEFORE)]);
        if self.open.is_empty() {
            return;
        }
        let label = parse_label(line);
        let Some(own) = self.open.get_mut(&label) else { return };
        if own.read_line(line, position, known) {
            let mut gone = self.open.remove(&label).unwrap_or_default();
            gone.mark_continued();
            self.close(gone.done);
        }
    }

    /// Notes the head of a traceback.
    fn note_head(&mut self, line: &[u8], position: Position) {
        let label = parse_label(line);
        if self.open.len() < TRACEBACKS || self.open.contains_key(&label) {
            let own = self.open.entry(label).or_default();
            own.head = Some(position);
            own.is_ignored = has_words(&self.before, IGNORED) || has_words(line, IGNORED);
        }
        self.before.clear();
    }

    /// Reads a line of NCCL.
    pub(super) fn note_nccl_line(&mut self, line: &[u8]) {
        if self.open.is_empty() || has_words(line, NCCL_ENDS) {
            return;
        }
        if let Some(mut gone) = self.open.remove(&parse_label(line)) {
            gone.mark_continued();
            self.close(gone.done);
        }
    }

    fn close(&mut self, done: Vec<Traceback>) {
        let free = TRACEBACKS.saturating_sub(self.closed.len());
        self.closed.extend(done.into_iter().take(free));
    }

    fn end_input(&mut self) {
        for (_, mut own) in std::mem::take(&mut self.open) {
            if own.is_exit_wanted {
                own.mark_continued();
            }
            self.close(own.done);
        }
    }

    /// Returns the tracebacks with an exception, in the order of their lines.
    pub(super) fn into_tracebacks(mut self) -> Vec<Traceback> {
        self.end_input();
        self.closed.sort_by_key(|traceback| traceback.head);
        self.closed
    }
}

impl ProcessTracebacks {
    /// Notes that the process went on after its tracebacks.
    fn mark_continued(&mut self) {
        self.done.iter_mut().for_each(|traceback| traceback.is_end = false);
    }

    /// Reads a line of the process, and returns true for one that shows that it goes on.
    fn read_line(
        &mut self,
        line: &[u8],
        position: Position,
        known: Option<(Position, String, bool)>,
    ) -> bool {
        let body = cut_prefix(line);
        let indent = text::count_at_end(&line[..line.len() - body.len()], 2, |byte| byte == b' ');
        if let Some(head) = self.head.filter(|head| position.line - head.line <= LINES) {
            self.is_ignored |= has_words(body, CLEANUP) && body.starts_with(b"File ");
            if indent == 2 || !is_exception(body) {
                return false;
            }
            self.head = None;
            if body.starts_with(b"KeyboardInterrupt") || body.starts_with(b"SystemExit") {
                self.is_exit_wanted = true;
            } else if self.done.len() < TRACEBACKS {
                let rule = known.map(|(_, rule, _)| rule);
                let text = text::shorten_message(body.trim_ascii());
                let is_end = !self.is_ignored;
                self.done.push(Traceback { head, exception: position, text, rule, is_end });
            }
            return false;
        }
        self.head = None;
        let is_known = known.is_some_and(|(.., is_failure)| is_failure);
        let is_bar = body.is_empty() && line.contains(&b'%');
        !is_known && indent < 2 && (is_bar || !body.is_empty()) && !has_words(body, AFTER)
    }
}

/// Returns the line without the labels of launchers and loggers before it.
fn cut_prefix(line: &[u8]) -> &[u8] {
    let end = PREFIX.as_ref().and_then(|prefix| prefix.find(line)).map_or(0, |found| found.end());
    &line[end..]
}

fn parse_label(line: &[u8]) -> Label {
    let start = &line[..line.len().min(100)];
    let pid = memchr::memmem::find(start, b"pid=").and_then(|at| text::parse_number(&start[at + 4..]));
    (label::parse_rank(line).rank, pid.map(|(pid, _)| pid))
}

fn has_words(line: &[u8], words: &[&str]) -> bool {
    words.iter().any(|words| memchr::memmem::find(line, words.as_bytes()).is_some())
}

/// Returns true for `ValueError: ...`, `subprocess.TimeoutExpired: ...`, `AssertionError`.
fn is_exception(body: &[u8]) -> bool {
    let end = body.iter().position(|byte| !byte.is_ascii_alphanumeric() && !b"._".contains(byte));
    let (name, rest) = body.split_at(end.unwrap_or(body.len()));
    let last = name.rsplit(|byte| *byte == b'.').next().unwrap_or_default();
    let is_end = rest.trim_ascii().is_empty() || rest.starts_with(b":");
    is_end && last.len() > 3 && last[0].is_ascii_uppercase() && last.iter().any(u8::is_ascii_lowercase)
}
