//! The reader of logs.

mod finish;

use std::collections::BTreeMap;
use std::io::Read;

use semver::Version;

use super::answers::{Answers, MessageKind, is_never_kept, is_of_communicator};
use super::channel::{ChannelLine, RankChannel};
use super::clean::Cleaner;
use super::communicators::Communicators;
use super::deferred::Deferred;
use super::digest::{Input, Position};
use super::headers::{Headers, INFO, KnownWriter};
use super::input;
use super::label;
use super::line::{
    CUDA_CALL, LinePart, LineParts, Splitter, find_warning_file, is_of_ras, parse_old_warning,
};
use super::message::{self, Message, ProcessFact};
use super::messages::{Messages, Place};
use super::output::Output;
use super::path::Paths;
use super::quote::{Quotes, is_warning_text};
use super::source::Level;
use super::text;
use super::variable;
use super::writers::{Membership, Writers};
use crate::finding::Role;
use crate::knowledge::rules::{Origin, Rule, Rules};

/// A reader of logs of one job. Its memory does not grow with their length.
#[derive(Debug)]
pub struct Reader<'a> {
    rules: &'a Rules,
    splitter: Splitter,
    inputs: Vec<Input>,
    headers: Headers,
    writers: Writers,
    communicators: Communicators,
    messages: Messages,
    answers: Answers<'a>,
    /// Versions on lines without writer, with their builds.
    versions: BTreeMap<Version, String>,
    paths: Paths,
    quotes: Quotes,
    output: Output,
    deferred: Deferred,
    /// Number of cut lines.
    cut: u64,
    has_program_lines: bool,
    /// Number of lines left out by Ray.
    repeated: u64,
}

/// Largest number of versions on lines without writer.
const VERSIONS: usize = 16;

impl<'a> Reader<'a> {
    /// Creates a reader with these rules.
    pub fn new(rules: &'a Rules) -> Self {
        Self {
            rules,
            splitter: Splitter::new(),
            inputs: Vec::new(),
            headers: Headers::default(),
            writers: Writers::default(),
            communicators: Communicators::default(),
            messages: Messages::default(),
            answers: Answers::default(),
            versions: BTreeMap::new(),
            paths: Paths::default(),
            quotes: Quotes::default(),
            output: Output::default(),
            deferred: Deferred::default(),
            cut: 0,
            has_program_lines: false,
            repeated: 0,
        }
    }

    /// Reads a log: a file of a job, or its standard output. Data of gzip and zstd are decompressed. An error
    /// while reading is noted as [`Input::problem`]; the data before it count.
    pub fn read_stream(&mut self, name: &str, stream: impl Read) {
        let input = self.inputs.len();
        self.quotes.begin_input();
        let mut cleaner = Cleaner::default();
        let mut nccl_lines = 0;
        let summary = input::read_lines(stream, |line, number, escapes| {
            let position = Position { input, line: number };
            let (text, has_several) = cleaner.clean_line(line, number, escapes);
            let is_of_nccl = match has_several {
                false => self.read_line(text, position),
                true => {
                    let lines = text.split(|byte| *byte == b'\n');
                    lines.filter(|line| self.read_line(line, position)).count() > 0
                }
            };
            self.has_program_lines |= !is_of_nccl && text.iter().any(u8::is_ascii_alphanumeric);
            nccl_lines += u64::from(is_of_nccl);
        });
        self.cut += summary.cut;
        self.inputs.push(Input {
            name: name.to_owned(),
            bytes: summary.bytes,
            lines: summary.lines,
            nccl_lines,
            problem: summary.problem,
        });
    }

    /// Reads a line, and returns true if NCCL wrote it.
    fn read_line(&mut self, line: &[u8], position: Position) -> bool {
        let (line, repeated) = label::cut_repetition(line);
        self.repeated += repeated;
        let again = self.headers.of_same_length(line);
        let first = match again {
            Some((nccl, _)) => Some((nccl, Level::Info, nccl + INFO.len())),
            None => self.splitter.find_level(line, 0),
        };
        let Some((nccl, level, message)) = first else {
            return match self.splitter.without_mark(line) {
                LinePart::Version(text) => {
                    self.note_version(text);
                    // `DistBackendError: NCCL error in: ..., NCCL version 2.28.9`.
                    self.read_other_line(line, position);
                    true
                }
                _ => {
                    self.read_other_line(line, position);
                    false
                }
            };
        };
        self.messages.exceptions.note_nccl_line(line);
        let header = &line[..nccl];
        let rest = line[message..].trim_ascii();
        // A kept message has no other line in it.
        let answer = if level == Level::Info { self.known_answer(rest) } else { None };
        let is_single =
            level == Level::Info && (answer.is_some() || self.splitter.find_level(line, message).is_none());
        let mut kept = || again.map_or_else(|| self.headers.kept_writer(header), |(_, known)| Some(known));
        let known = if is_single { kept() } else { None };
        if let Some(KnownWriter { thread, start, .. }) =
            known.filter(|known| known.forgotten == self.writers.forgotten)
        {
            match thread {
                Some(thread) => self.writers.note_line(thread, position, &line[message..]),
                None => self.writers.lost += 1,
            }
            let place = self.place_of_thread(thread, position, &line[..start], b"");
            match answer {
                Some(rule) => {
                    self.note_rule_hit(rule, rest, place);
                }
                None => self.read_info(rest, thread, place),
            }
            return true;
        }
        let mut parts = LineParts::from_line(line);
        let mut is_of_nccl = true;
        while let Some(entry) = parts.next(&self.splitter, |source| self.writers.glued_length(source)) {
            match entry {
                LinePart::Nccl { source, level, message, before, file } => {
                    // Calls and diagnostics do not name the device, a part of a writer's identity.
                    let source = source.filter(|_| matches!(level, Level::Info | Level::Warn | Level::Error));
                    let thread = source
                        .and_then(|source| self.writers.thread_index(&source, position, message, before));
                    if is_single && source.is_some_and(|source| source.is_whole) {
                        let (forgotten, start) = (self.writers.forgotten, before.len());
                        self.headers.keep_writer(header, KnownWriter { thread, forgotten, start });
                    }
                    let file = if level == Level::Warn { find_warning_file(file, before) } else { b"" };
                    let place = self.place_of_thread(thread, position, before, file);
                    if level == Level::Warn && is_of_ras(file) {
                        self.of_ras(message, place);
                    } else if level == Level::Warn && message.starts_with(CUDA_CALL) {
                        self.cuda_call(message, place);
                    } else {
                        self.read_nccl_line(level, message, thread, place);
                    }
                }
                LinePart::Version(text) => self.note_version(text),
                LinePart::Other(line) => {
                    self.read_other_line(line, position);
                    is_of_nccl = false;
                }
            }
        }
        is_of_nccl
    }

    fn place_of_thread<'b>(
        &self,
        thread: Option<usize>,
        position: Position,
        before: &'b [u8],
        file: &'b [u8],
    ) -> Place<'b> {
        let writer = thread.map(|thread| self.writers.thread_at(thread).writer);
        let line = thread.map(|thread| self.writers.last_line(thread, position));
        Place { position, writer, thread: line.map(|line| (line.thread, line.number)), before, file }
    }

    /// Notes the version of a line without writer.
    fn note_version(&mut self, text: &[u8]) {
        let version = message::parse_version(text).filter(|_| self.versions.len() < VERSIONS);
        self.versions.extend(version.map(|(version, build)| (version, text::name(build.trim_ascii()))));
    }

    fn read_nccl_line(&mut self, level: Level, message: &[u8], thread: Option<usize>, place: Place<'_>) {
        match level {
            Level::Info => self.read_info_line(message, thread, place),
            Level::Warn => {
                if let Some((name, value)) = variable::parse_variable(message) {
                    self.messages.note_variable(name, value, false, place);
                }
                if !self.note_known_message(message, Origin::Nccl, place) {
                    self.messages.note_unknown_warning(message, place);
                }
            }
            // Frameworks write these words also before their own messages.
            Level::Error => {
                if !self.note_known_message(message, Origin::Nccl, place)
                    && !self.note_known_message(message, Origin::Any, place)
                {
                    self.messages.unknown_error(message, place);
                }
            }
            Level::Diagnostics => {
                self.messages.note_diagnostic(message, place.position);
                self.note_known_message(message, Origin::Nccl, place);
            }
            Level::Trace => {}
        }
    }

    /// Notes the warning of a failed CUDA call. Its cause depends on the file of the source, so rules see the
    /// file before the message.
    fn cuda_call(&mut self, message: &[u8], place: Place<'_>) {
        let text = [place.file, b" NCCL WARN ", message].concat();
        if !self.note_rule_hit(self.rules.find_rule(&text, Origin::Nccl), message, place) {
            self.messages.note_unknown_warning(message, place);
        }
    }

    /// Notes a warning of RAS, about connections other than the job's.
    fn of_ras(&mut self, message: &[u8], place: Place<'_>) {
        let rule = self.rules.find_rule(message, Origin::Nccl).filter(|rule| {
            let names = ["ras-", "harmless-ras"];
            names.iter().any(|name| rule.id.starts_with(name))
        });
        if !self.note_rule_hit(rule.or_else(|| self.rules.rule_by_id("ras-fault")), message, place) {
            self.messages.note_unknown_warning(message, place);
        }
    }

    fn read_other_line(&mut self, line: &[u8], position: Position) {
        if line.trim_ascii().is_empty() {
            self.quotes.note_gap();
            return;
        }
        self.output.note_line(line, position);
        let place = Place { position, writer: None, thread: None, before: line, file: b"" };
        if let Some((file, message)) = parse_old_warning(line) {
            return self.read_nccl_line(Level::Warn, message, None, Place { file, ..place });
        }
        if let Some((quote, is_whole)) = self.quotes.next_warning(line) {
            if let Some(rule) = self.rules.find_rule(quote, Origin::Nccl) {
                self.note_rule_hit(Some(rule), line, place);
                return;
            }
            if is_whole && self.rules.find_rule(line, Origin::Any).is_none() {
                self.messages.note_unknown_warning(quote, place);
                return;
            }
        }
        self.note_known_message(line, Origin::Any, place);
        self.messages.exceptions.note_line(line, position);
    }

    /// Notes a hit, and returns true, if a rule for the writer's versions knows the message.
    fn note_known_message(&mut self, message: &[u8], origin: Origin, place: Place<'_>) -> bool {
        let kind = if origin == Origin::Any { MessageKind::Line } else { MessageKind::Message };
        let rules = self.rules;
        let quote = if origin == Origin::Any { self.quotes.quoted_warning(message) } else { None };
        let rule = self.answers.kept_rule(message, kind).unwrap_or_else(|| {
            let rule = quote.and_then(|quote| rules.find_rule(quote, Origin::Nccl));
            let rule = rule.or_else(|| rules.find_rule(message, origin));
            self.answers.keep_rule(message, kind, rule);
            rule
        });
        if let Some(quote) = quote.filter(|quote| is_warning_text(quote))
            && rules.find_rule(quote, Origin::Nccl).is_none()
        {
            self.messages.note_unknown_warning(quote, place);
        }
        self.note_rule_hit(rule, message, place)
    }

    /// Notes a hit of the rule, and returns true, if the rule holds for the writer's versions.
    fn note_rule_hit(&mut self, rule: Option<&'a Rule>, message: &[u8], place: Place<'_>) -> bool {
        let Some(rule) = rule else { return false };
        let (nccl, plugin) = place.writer.map_or((None, None), |writer| self.writers.loaded_versions(writer));
        if !rule.applies_to(nccl) || !rule.applies_to_plugin(plugin) {
            return false;
        }
        self.messages.note_hit(rule, message, place);
        true
    }

    fn read_info_line(&mut self, message: &[u8], thread: Option<usize>, place: Place<'_>) {
        match self.known_answer(message) {
            Some(rule) => {
                self.note_rule_hit(rule, message, place);
            }
            None => self.read_info(message, thread, place),
        }
    }

    /// Returns the rule of a message kept as one without facts, if any.
    fn known_answer(&mut self, message: &[u8]) -> Option<Option<&'a Rule>> {
        if is_never_kept(message) { None } else { self.answers.kept_rule(message, MessageKind::WithoutFacts) }
    }

    /// Reads a message unknown to [`known_answer`](Self::known_answer).
    fn read_info(&mut self, message: &[u8], thread: Option<usize>, place: Place<'_>) {
        if let Some(writer) = place.writer.filter(|_| message.starts_with(b"GPU/")) {
            self.paths.note_paths(self.writers.host_of(writer), message);
            return;
        }
        let parsed = message::parse_message(message);
        let has_rules =
            !matches!(parsed, Message::Channel(_) | Message::Bulk | Message::Choice(..) | Message::Trees);
        if matches!(parsed, Message::Other | Message::Bulk) {
            if is_of_communicator(message) {
                // A cut line about a communicator.
                self.output.note_cut_line(message);
            }
            let rule = if has_rules { self.rules.find_rule(message, Origin::Nccl) } else { None };
            if !is_never_kept(message) {
                self.answers.keep_rule(message, MessageKind::WithoutFacts, rule);
            }
            self.note_rule_hit(rule, message, place);
            return;
        }
        match (parsed, thread) {
            (Message::Trace(trace), Some(thread)) => {
                let rule = self.rules.find_rule(message, Origin::Nccl);
                let is_of_end = rule.is_some_and(|rule| rule.role == Role::Harmless);
                self.writers.note_trace(thread, trace, is_of_end, place.position);
            }
            (parsed, Some(thread)) => self.learn_message(parsed, message, thread, place),
            (_, None) => {}
        }
        if has_rules {
            self.note_known_message(message, Origin::Nccl, place);
        }
    }

    fn learn_message(&mut self, parsed: Message<'_>, message: &[u8], thread: usize, place: Place<'_>) {
        if matches!(
            parsed,
            Message::Channel(_)
                | Message::Communicator(_)
                | Message::Connected
                | Message::Fact(ProcessFact::Network(_) | ProcessFact::Devices(_))
        ) {
            self.writers.note_progress(thread, place.position);
        }
        let current = self.writers.current_communicator(thread);
        match (parsed, current) {
            (Message::Channel(ChannelLine::Channel(channel)), _) => {
                self.connect_channel(thread, &channel, place.position)
            }
            (Message::Retry(retry), _) => self.writers.note_retry(thread, retry, place.position),
            (Message::Communicator(life) | Message::Shape(life), _) => {
                let process = self.writers.process_of(thread);
                let writer = self.writers.of_device(thread, life.device, place.position);
                let line = self.writers.last_line(thread, place.position);
                let membership = self.communicators.note_event(process, writer, &life, line);
                self.writers.note_start_or_end(process, life.address, life.event);
                if let Some(membership) = membership {
                    self.assign_communicator(thread, writer, membership);
                }
            }
            (Message::Variable(name, value, by_plugin), _) => {
                self.messages.note_variable(name, value, by_plugin, place);
            }
            (Message::Fact(fact), _) => self.writers.learn_fact(thread, fact),
            (parsed, Some(current)) if !self.is_open(thread, current) => {
                let is_known = self.writers.is_current_known(thread);
                self.of_communicator(parsed, current, is_known);
            }
            (_, _) => self.deferred.keep_message(self.writers.number_of_thread(thread), message),
        }
    }

    /// Returns true if a later line may name another communicator of this thread: the log has no start.
    fn is_open(&self, thread: usize, current: Membership) -> bool {
        self.writers.thread_at(thread).current.is_none() && self.communicators.is_without_start(current)
    }

    /// Notes that a thread works for a communicator. The order of the lines of a communicator without a start
    /// does not matter.
    fn assign_communicator(&mut self, thread: usize, writer: usize, membership: Membership) {
        let is_first = self.writers.thread_at(thread).current.is_none();
        self.writers.assign_communicator(thread, writer, membership);
        if is_first {
            self.learn_deferred(self.writers.number_of_thread(thread), membership);
        }
    }

    /// Learns from the messages of a thread before its communicator was known. Those before a start are of
    /// another one.
    fn learn_deferred(&mut self, number: u64, membership: Membership) {
        let messages = self.deferred.take_messages(number);
        if self.communicators.is_without_start(membership) {
            for message in messages {
                self.of_communicator(message::parse_message(&message), membership, true);
            }
        }
    }

    /// Learns from a line about a communicator. If `is_known` is false, it may be about another one.
    fn of_communicator(&mut self, parsed: Message<'_>, current: Membership, is_known: bool) {
        match parsed {
            Message::Channel(ChannelLine::Ring(order)) => self.communicators.note_ring(current, order),
            Message::Choice(algorithm, protocol) => {
                let (algorithm, protocol) =
                    (message::algorithm_name(algorithm), message::protocol_name(protocol));
                self.communicators.note_choice(current, algorithm, protocol);
                if let Some(member) = self.communicators.member_mut(current) {
                    member.operated |= is_known;
                }
            }
            Message::InitTimings { rank, ranks, phases } => {
                if let (Some(rank), Some(ranks)) = (rank, ranks) {
                    self.communicators.note_size(current, rank, ranks);
                }
                let own = self.communicators.number_of_ranks(current.communicator);
                if rank.is_none_or(|rank| rank == current.rank) && ranks.is_none_or(|ranks| ranks == own) {
                    self.communicators.note_phases(current, phases, false);
                }
            }
            Message::BootstrapTimings(phases) => self.communicators.note_phases(current, phases, true),
            Message::Connected => {
                let is_without_start = self.communicators.is_without_start(current);
                if let Some(member) = self.communicators.member_mut(current) {
                    member.connected = true;
                    member.connected_late |= member.complete && is_known && !is_without_start;
                }
            }
            Message::Channels(channels, nvls) => {
                if let Some(digest) = self.communicators.communicator_mut(current) {
                    digest.channels = Some(channels).max(digest.channels);
                    digest.nvls_channels = nvls.max(digest.nvls_channels);
                }
            }
            Message::Trees => {
                if let Some(digest) = self.communicators.communicator_mut(current) {
                    digest.trees = true;
                }
            }
            _ => {}
        }
    }

    /// Notes a channel in the thread's communicator. A thread does not name its communicator when it starts
    /// on connections: it is the writer's last one that fits the line and does not have it yet.
    fn connect_channel(&mut self, thread: usize, channel: &RankChannel<'_>, position: Position) {
        let current = self.writers.thread_at(thread).current;
        if let Some(current) = current
            && self.communicators.connect_member(current, channel, false)
        {
            return;
        }
        let writer = self.writers.thread_at(thread).writer;
        let mut found = None;
        for membership in self.writers.last_memberships(thread) {
            if self.communicators.connect_member(membership, channel, false) {
                found = Some(membership);
                break;
            }
        }
        if found.is_none() {
            // The line is a repetition.
            let mut all = current.into_iter().chain(self.writers.last_memberships(thread));
            if all.any(|membership| self.communicators.connect_member(membership, channel, true)) {
                return;
            }
            found = self.communicators.connect_unseen(writer, channel, position);
        }
        if let Some(found) = found {
            self.assign_communicator(thread, writer, found);
        }
    }
}
