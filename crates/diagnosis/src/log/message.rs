//! NCCL's messages with facts.

use memchr::memmem;
use semver::Version;

use super::channel;
use super::text::{self, first_word, parse_small_number, text_between};
use super::trace::{self, Retry, Trace};
use super::variable;

/// A message of level INFO.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Message<'a> {
    /// A channel, or the order of a ring.
    Channel(channel::ChannelLine<'a>),
    /// A line of many, without facts of its own and without rules: rings and trees of a rank, calls.
    Bulk,
    /// Algorithm and protocol of an operation.
    Choice(&'a [u8], &'a [u8]),
    /// The beginning or end of a communicator's life.
    Communicator(Box<Life<'a>>),
    /// `comm 0x1 rank 0 nRanks 2 nNodes 1 localRanks 2 localRank 0 MNNVL 0`.
    Shape(Box<Life<'a>>),
    /// Seconds of the phases of the initialisation.
    InitTimings { rank: Option<u32>, ranks: Option<u32>, phases: &'a [u8] },
    /// Seconds of the phases of the bootstrap.
    BootstrapTimings(&'a [u8]),
    /// Numbers of channels for collectives, and for NVLS.
    Channels(u32, Option<u32>),
    /// `Trees`.
    Trees,
    /// `Connected all rings`, `Connected all trees`.
    Connected,
    /// A variable, its value, and true if a plugin set it.
    Variable(&'a [u8], &'a [u8], bool),
    /// A fact about the process.
    Fact(ProcessFact<'a>),
    /// A result code on its way through NCCL's functions.
    Trace(Trace<'a>),
    /// A repeated attempt to connect.
    Retry(Retry<'a>),
    /// Another message.
    Other,
}

/// A fact about a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessFact<'a> {
    /// Version of NCCL.
    Nccl(&'a [u8]),
    /// Commit of NCCL's build.
    Commit(&'a [u8]),
    /// CUDA version of the driver.
    Driver(u32),
    /// Version of aws-ofi-nccl.
    Plugin(&'a [u8]),
    /// Version of libfabric.
    Libfabric(&'a [u8]),
    /// aws-ofi-nccl looks for EFA.
    Efa,
    /// Network in use.
    Network(&'a [u8]),
    /// Interface of the bootstrap.
    Bootstrap(&'a [u8]),
    /// List of the network's devices.
    Devices(&'a [u8]),
}

/// An event in the life of a communicator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    Start,
    Complete,
    Destroyed,
    Aborted,
    Shape,
}

/// A line about a communicator: its numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Life<'a> {
    pub(super) event: Event,
    /// Creating function, or empty if the line has none.
    pub(super) made_by: &'a [u8],
    /// Address of the communicator in its process.
    pub(super) address: u64,
    pub(super) rank: u32,
    pub(super) ranks: u32,
    /// The CUDA device of the rank.
    pub(super) device: Option<u32>,
    pub(super) nvml: Option<u32>,
    pub(super) bus: Option<u64>,
    pub(super) id: Option<u64>,
    pub(super) parent: Option<u64>,
    /// `splitCount`, `childCount`.
    pub(super) split: Option<u32>,
    pub(super) color: Option<i64>,
    pub(super) nodes: Option<u32>,
    pub(super) mnnvl: Option<bool>,
}

/// Reads a message of level INFO.
pub(super) fn parse_message(message: &[u8]) -> Message<'_> {
    let [first, .., before, last] = message else { return Message::Bulk };
    if matches!((before, last), (b'T', b'E') | (b'R', b'T')) {
        let life = parse_life(message);
        if !matches!(life, Message::Other) {
            return life;
        }
    }
    let known = match first {
        b'C' => of_connections(message),
        b'R' if message.starts_with(b"Ring ") => Message::Bulk,
        b'T' if message.starts_with(b"Trees") => Message::Trees,
        b'T' if message.starts_with(b"Tree ") => Message::Bulk,
        b'I' if message.starts_with(b"Init timings") => init_timings(message),
        b'B' if message.starts_with(b"Bootstrap") => parse_bootstrap(message),
        b'U' => parse_fact(message, b"Using network ", ProcessFact::Network),
        b'N' => parse_network(message),
        b'c' if message.starts_with(b"comm 0x") => parse_shape(message),
        b'c' => match message.strip_prefix(b"cudaDriverVersion ").and_then(parse_small_number) {
            Some((version, _)) => Message::Fact(ProcessFact::Driver(version)),
            None => Message::Other,
        },
        b'0'..=b'9' => parse_numbers(message),
        _ => Message::Other,
    };
    known
        .or_else(|| parse_choice(message))
        .or_else(|| parse_variable(message))
        .or_else(|| trace::parse_trace(message).map_or(Message::Other, Message::Trace))
        .or_else(|| trace::parse_retry(message).map_or(Message::Other, Message::Retry))
}

impl<'a> Message<'a> {
    fn or_else(self, other: impl FnOnce() -> Self) -> Self {
        if matches!(self, Self::Other) { other() } else { self }
    }
}

fn parse_fact<'a>(
    message: &'a [u8],
    prefix: &[u8],
    fact: impl Fn(&'a [u8]) -> ProcessFact<'a>,
) -> Message<'a> {
    message.strip_prefix(prefix).map_or(Message::Other, |rest| Message::Fact(fact(rest.trim_ascii())))
}

fn of_connections(message: &[u8]) -> Message<'_> {
    if let Some(rest) = message.strip_prefix(b"Channel ") {
        return channel::parse_channel(rest).map_or(Message::Other, Message::Channel);
    }
    if message.starts_with(b"Connected ") { Message::Connected } else { Message::Other }
}

fn parse_network(message: &[u8]) -> Message<'_> {
    if let Some(rest) = message.strip_prefix(b"NET/") {
        if let Some(devices) = rest.strip_prefix(b"IB : Using").or(rest.strip_prefix(b"Socket : Using")) {
            return Message::Fact(ProcessFact::Devices(devices));
        }
        if let Some(rest) = rest.strip_prefix(b"OFI ") {
            return of_plugin(rest);
        }
        return Message::Other;
    }
    parse_fact(message, b"NCCL version ", ProcessFact::Nccl)
        .or_else(|| parse_fact(message, b"NCCL git version ", ProcessFact::Commit))
}

/// Reads messages of aws-ofi-nccl, after `NET/OFI `.
fn of_plugin(rest: &[u8]) -> Message<'_> {
    // Versions before 1.7.1 write `Using aws-ofi-nccl 1.5.0aws`.
    let loaded = rest.strip_prefix(b"Initializing aws-ofi-nccl ");
    if let Some(version) = loaded.or_else(|| rest.strip_prefix(b"Using aws-ofi-nccl ")) {
        return Message::Fact(ProcessFact::Plugin(version));
    }
    if let Some(version) = rest.strip_prefix(b"Using Libfabric version ") {
        return Message::Fact(ProcessFact::Libfabric(version));
    }
    let efa = [&b"Setting provider_filter to efa"[..], b"Configuring AWS-specific options"];
    if efa.iter().any(|text| rest.starts_with(text)) || is_aws(rest) {
        return Message::Fact(ProcessFact::Efa);
    }
    if let Some(assignment) = text_between(rest, b"Adding ", b" to environment")
        && let Some(equal) = memchr::memchr(b'=', assignment)
    {
        return Message::Variable(&assignment[..equal], &assignment[equal + 1..], true);
    }
    if let Some(after) = rest.strip_prefix(b"Setting ") {
        let name = first_word(after);
        let after = &after[name.len()..];
        let value = after.strip_prefix(b" environment variable to ").or(after.strip_prefix(b" to \""));
        if let Some(value) = value
            && variable::is_name(name)
        {
            return Message::Variable(
                name,
                first_word(value).trim_ascii_end().strip_suffix(b"\"").unwrap_or(first_word(value)),
                true,
            );
        }
    }
    Message::Other
}

/// Returns true for the line about the platform AWS.
fn is_aws(rest: &[u8]) -> bool {
    let platform = rest.strip_prefix(b"Plugin selected platform: ");
    platform.is_some_and(|platform| first_word(platform) == b"AWS")
}

/// Reads a variable of the environment.
fn parse_variable(message: &[u8]) -> Message<'_> {
    variable::parse_variable(message)
        .map_or(Message::Other, |(name, value)| Message::Variable(name, value, false))
}

/// Reads `AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}`, before 2.24 with numbers and
/// without the operation, and `AllReduce [Symmetric]: 8 Bytes -> Kernel AllReduce_AGxLL_R ...`.
fn parse_choice(message: &[u8]) -> Message<'_> {
    let operation = first_word(message);
    let rest = match operation.strip_suffix(b":") {
        Some(_) => message[operation.len()..].strip_prefix(b" "),
        None => message[operation.len()..].strip_prefix(b" [Symmetric]: ").or(Some(message)),
    };
    let Some(rest) = rest else { return Message::Other };
    if rest.starts_with(b"opCount ") {
        return Message::Bulk;
    }
    let Some(rest) = after_number(rest).and_then(|rest| rest.strip_prefix(b" Bytes -> ")) else {
        return Message::Other;
    };
    if let Some(rest) = rest.strip_prefix(b"Algo ") {
        let algorithm = first_word(rest);
        if let Some(rest) = rest[algorithm.len()..].strip_prefix(b" proto ") {
            return Message::Choice(algorithm, first_word(rest));
        }
    }
    match rest.strip_prefix(b"Kernel ") {
        Some(rest) => Message::Choice(b"symmetric", first_word(rest)),
        None => Message::Other,
    }
}

/// Returns the text after a number.
fn after_number(text: &[u8]) -> Option<&[u8]> {
    text::parse_number(text).map(|(_, rest)| rest)
}

fn parse_numbers(message: &[u8]) -> Message<'_> {
    let Some((channels, rest)) = parse_small_number(message) else { return Message::Other };
    if !rest.starts_with(b" coll channels") {
        return Message::Other;
    }
    let nvls = memmem::find(rest, b" nvls channels").and_then(|end| {
        let start = memchr::memrchr(b' ', &rest[..end])? + 1;
        parse_small_number(&rest[start..end])
    });
    Message::Channels(channels, nvls.map(|(channels, _)| channels))
}

fn parse_bootstrap(message: &[u8]) -> Message<'_> {
    if let Some(phases) = message.strip_prefix(b"Bootstrap timings ") {
        return Message::BootstrapTimings(phases);
    }
    parse_fact(message, b"Bootstrap : Using ", ProcessFact::Bootstrap)
        .or_else(|| parse_fact(message, b"Bootstrap: Using ", ProcessFact::Bootstrap))
}

/// Reads `Init timings - ncclCommInitRank: rank 0 nranks 2 total 0.07 (kernels 0.00, ...)`. The name is
/// missing in 2.22.
fn init_timings(message: &[u8]) -> Message<'_> {
    let Some(colon) = memmem::find(message, b": rank ") else { return Message::Other };
    let rest = &message[colon + 2..];
    let Some(total) = memmem::find(rest, b"total ") else { return Message::Other };
    let mut words = rest[..total].split(|byte| *byte == b' ');
    let mut value = |name: &[u8]| {
        words.find(|word| *word == name)?;
        parse_small_number(words.next()?).map(|(value, _)| value)
    };
    let (rank, ranks) = (value(b"rank"), value(b"nranks"));
    Message::InitTimings { rank, ranks, phases: &rest[total..] }
}

/// Returns the phases of `total 0.07 (kernels 0.00, alloc 0.02)`.
pub(super) fn parse_phases(text: &[u8]) -> impl Iterator<Item = (&str, f64)> {
    text.split(|byte| matches!(byte, b'(' | b',' | b')')).filter_map(|part| {
        let (name, seconds) = std::str::from_utf8(part).ok()?.trim().split_once(' ')?;
        let is_word =
            !name.is_empty() && name.len() <= 16 && name.bytes().all(|byte| byte.is_ascii_lowercase());
        let seconds: f64 = seconds.trim().parse().ok()?;
        (is_word && seconds.is_finite()).then_some((name, seconds))
    })
}

fn parse_life(message: &[u8]) -> Message<'_> {
    let events: [(&[u8], Event); 4] = [
        (b"- Init START", Event::Start),
        (b"- Init COMPLETE", Event::Complete),
        (b"- Destroy COMPLETE", Event::Destroyed),
        (b"- Abort COMPLETE", Event::Aborted),
    ];
    let found = events.iter().find_map(|(end, event)| Some((message.strip_suffix(*end)?, *event)));
    let life = found.and_then(|(numbers, event)| numbers_of(numbers, event));
    life.map_or(Message::Other, |life| Message::Communicator(Box::new(life)))
}

fn parse_shape(message: &[u8]) -> Message<'_> {
    match numbers_of(message, Event::Shape) {
        Some(life) if life.nodes.is_some() => Message::Shape(Box::new(life)),
        _ => Message::Other,
    }
}

/// Reads the names and numbers of a line about a communicator, in any order.
fn numbers_of(message: &[u8], event: Event) -> Option<Life<'_>> {
    let mut life = Life {
        event,
        made_by: b"",
        address: 0,
        rank: 0,
        ranks: 0,
        device: None,
        nvml: None,
        bus: None,
        id: None,
        parent: None,
        split: None,
        color: None,
        nodes: None,
        mnnvl: None,
    };
    let (mut rank, mut ranks, mut address) = (None, None, None);
    let mut words = message.split(|byte| *byte == b' ').filter(|word| !word.is_empty());
    while let Some(name) = words.next() {
        let number = |value: Option<&[u8]>| value.and_then(parse_small_number).map(|(value, _)| value);
        match name {
            b"comm" => address = text::parse_hexadecimal(words.next()?),
            b"rank" => rank = number(words.next()),
            b"nranks" | b"nRanks" => ranks = number(words.next()),
            b"cudaDev" => life.device = number(words.next()),
            b"nvmlDev" => life.nvml = number(words.next()),
            b"busId" => life.bus = text::parse_hexadecimal(words.next()?),
            b"commId" => life.id = text::parse_hexadecimal(words.next()?),
            b"parent" => life.parent = text::parse_hexadecimal(words.next()?),
            b"splitCount" | b"childCount" => life.split = number(words.next()),
            b"color" => life.color = std::str::from_utf8(words.next()?).ok()?.parse().ok(),
            b"nNodes" => life.nodes = number(words.next()),
            b"MNNVL" => life.mnnvl = number(words.next()).map(|value| value != 0),
            name if name.starts_with(b"nccl") => life.made_by = name,
            _ => {}
        }
    }
    (life.address, life.rank, life.ranks) = (address?, rank?, ranks?);
    (life.rank < life.ranks && life.ranks <= channel::MOST_RANKS).then_some(life)
}

/// Reads the version at the beginning, with zeros for missing parts. Also returns the rest.
pub(super) fn parse_version(text: &[u8]) -> Option<(Version, &[u8])> {
    let (major, mut rest) = text::parse_number(text)?;
    let mut parts = [0, 0];
    for part in &mut parts {
        let Some((value, after)) = rest.strip_prefix(b".").and_then(text::parse_number) else { break };
        (*part, rest) = (value, after);
    }
    Some((Version::new(major, parts[0], parts[1]), rest))
}

/// Formats NCCL's number of a PCI device as `0000:1b:00.0`.
pub(super) fn bus_id(bus: u64) -> String {
    format!("{:04x}:{:02x}:{:02x}.{:x}", bus >> 20, bus >> 12 & 0xff, bus >> 4 & 0xff, bus & 0xf)
}

/// Returns the devices of ` [0]mlx5_0:1/RoCE [1]mlx5_1:1/RoCE [RO]; OOB eth0:192.0.2.2<0>`.
pub(super) fn parse_devices(list: &[u8]) -> impl Iterator<Item = &[u8]> {
    let list = &list[..memmem::find(list, b"; OOB").unwrap_or(list.len())];
    list.split(|byte| *byte == b' ').filter_map(|word| {
        let name = match word.strip_prefix(b"[") {
            Some(rest) => {
                let (_, rest) = parse_small_number(rest)?;
                rest.strip_prefix(b"]")?
            }
            None => word,
        };
        let name = name.strip_prefix(b"={").unwrap_or(name);
        let name = name.strip_suffix(b"}").unwrap_or(name);
        let name = name.strip_suffix(b",").unwrap_or(name);
        (!name.is_empty() && !name.starts_with(b"[")).then_some(name)
    })
}

/// Returns the algorithm's name for its number in versions before 2.24.
pub(super) fn algorithm_name(name: &[u8]) -> &[u8] {
    match name {
        b"0" => b"TREE",
        b"1" => b"RING",
        b"2" => b"COLLNET_DIRECT",
        b"3" => b"COLLNET_CHAIN",
        b"4" => b"NVLS",
        b"5" => b"NVLS_TREE",
        b"6" => b"PAT",
        name => name,
    }
}

/// Returns the protocol's name for its number in versions before 2.24.
pub(super) fn protocol_name(name: &[u8]) -> &[u8] {
    match name {
        b"0" => b"LL",
        b"1" => b"LL128",
        b"2" => b"SIMPLE",
        name => name,
    }
}
