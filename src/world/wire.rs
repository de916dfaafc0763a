//! What the ranks of a TCP rendezvous say to each other. All numbers are little-endian.
//!
//! Decoding never panics, never reads past its input, and never allocates by a length that a stranger claims
//! before that many bytes have come.

use super::host::Host;
use super::{Called, Error};

/// The longest name of a host, identity of a host or key of a job, in bytes.
pub(super) const MAX_NAME: usize = 255;
/// The most ranks of a job: more than any has, and a list of them still fits into a frame.
pub(super) const MAX_RANKS: usize = 1 << 18;
/// The longest message of one rank in an all_gather, in bytes.
pub(super) const MAX_MESSAGE: usize = 16 << 20;
/// The longest frame, in bytes: all messages of an all_gather together.
pub(super) const MAX_FRAME: usize = 1 << 30;

const MAGIC: [u8; 8] = *b"NCCLbnch";
const VERSION: u16 = 1;
/// Magic, version, length of what follows.
const GREETING_HEADER: usize = 12;
const MAX_GREETING: usize = 1024;
/// Magic, version, verdict, length of the text.
const ANSWER_HEADER: usize = 13;
const MAX_TEXT: usize = 16 << 10;
/// Kind, length of what follows.
const FRAME_HEADER: usize = 5;

/// Bytes that are not what they should be; says how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) String);

fn malformed<T>(what: impl Into<String>) -> Result<T, Malformed> {
    Err(Malformed(what.into()))
}

/// One rank as all others know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) host: Host,
    /// Number on its host and how many its host has, where its launcher said so.
    pub(super) local: Option<(u32, u32)>,
}

/// The first thing that a rank says to rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Greeting {
    pub(super) rank: u32,
    pub(super) size: u32,
    pub(super) key: String,
    pub(super) member: Member,
}

/// What rank 0 says to a greeting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    /// Wait for the others.
    Accepted,
    /// There is no place for you in this job.
    Refused(String),
    /// This is another job. Yours may come to listen here later.
    Stranger,
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let Some((bytes, rest)) = self.0.split_at_checked(count) else {
            return malformed("it ends too early");
        };
        self.0 = rest;
        Ok(bytes)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let Some((array, rest)) = self.0.split_first_chunk::<N>() else {
            return malformed("it ends too early");
        };
        self.0 = rest;
        Ok(*array)
    }

    fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    fn name(&mut self) -> Result<String, Malformed> {
        let length = usize::from(self.u16()?);
        if length > MAX_NAME {
            return malformed(format!("a name of {length} bytes"));
        }
        let bytes = self.bytes(length)?;
        // A name goes into messages: nothing that moves a terminal's cursor.
        match std::str::from_utf8(bytes) {
            Ok(name) if !name.chars().any(char::is_control) => Ok(name.to_owned()),
            _ => malformed("a name that is not text"),
        }
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let length = usize::from(self.u16()?);
        if length > MAX_TEXT {
            return malformed(format!("a text of {length} bytes"));
        }
        Ok(String::from_utf8_lossy(self.bytes(length)?).replace(|c: char| c.is_control() && c != '\n', " "))
    }

    fn member(&mut self) -> Result<Member, Malformed> {
        let local = (self.u32()?, self.u32()?);
        let local = (local.0 < local.1).then_some(local);
        Ok(Member { host: Host { name: self.name()?, id: self.name()? }, local })
    }

    fn end<T>(self, value: T) -> Result<T, Malformed> {
        if self.0.is_empty() { Ok(value) } else { malformed(format!("{} bytes too many", self.0.len())) }
    }
}

/// A text behind its length, cut to what a reader takes.
fn put_text(bytes: &mut Vec<u8>, text: &str, most: usize) {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // At most MAX_TEXT, which a u16 holds.
    bytes.extend_from_slice(&u16::try_from(end).unwrap_or(0).to_le_bytes());
    bytes.extend_from_slice(&text.as_bytes()[..end]);
}

fn put_member(bytes: &mut Vec<u8>, member: &Member) {
    let (rank, size) = member.local.unwrap_or((u32::MAX, 0));
    bytes.extend_from_slice(&rank.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    put_text(bytes, &member.host.name, MAX_NAME);
    put_text(bytes, &member.host.id, MAX_NAME);
}

/// Reads magic and version, as far as they have come.
fn check_magic(bytes: &[u8]) -> Result<(), Malformed> {
    let count = bytes.len().min(MAGIC.len());
    if bytes[..count] != MAGIC[..count] {
        return malformed("it does not speak this program's protocol");
    }
    if let Some(&[low, high]) = bytes.get(8..10).and_then(|version| version.first_chunk::<2>()) {
        let version = u16::from_le_bytes([low, high]);
        if version != VERSION {
            return malformed(format!(
                "it speaks version {version} of the protocol, this program version {VERSION}"
            ));
        }
    }
    Ok(())
}

impl Greeting {
    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend_from_slice(&self.rank.to_le_bytes());
        body.extend_from_slice(&self.size.to_le_bytes());
        put_text(&mut body, &self.key, MAX_NAME);
        put_member(&mut body, &self.member);
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&u16::try_from(body.len()).unwrap_or(u16::MAX).to_le_bytes());
        bytes.extend_from_slice(&body);
        bytes
    }

    /// From the first bytes of a connection; `None` while more must come.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<Self>, Malformed> {
        check_magic(bytes)?;
        let Some((header, body)) = bytes.split_at_checked(GREETING_HEADER) else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([header[10], header[11]]));
        if length > MAX_GREETING {
            return malformed(format!("a greeting of {length} bytes"));
        }
        let Some((body, behind)) = body.split_at_checked(length) else { return Ok(None) };
        if !behind.is_empty() {
            return malformed(format!("{} bytes too many", behind.len()));
        }
        let mut reader = Reader(body);
        let greeting =
            Self { rank: reader.u32()?, size: reader.u32()?, key: reader.name()?, member: reader.member()? };
        reader.end(Some(greeting))
    }
}

impl Answer {
    pub(super) fn encode(&self) -> Vec<u8> {
        let (verdict, text) = match self {
            Self::Accepted => (0_u8, ""),
            Self::Refused(text) => (1, text.as_str()),
            Self::Stranger => (2, ""),
        };
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.push(verdict);
        put_text(&mut bytes, text, MAX_TEXT);
        bytes
    }

    /// From the first bytes of a connection, with how many they were; `None` while more must come.
    pub(super) fn decode(bytes: &[u8]) -> Result<Option<(Self, usize)>, Malformed> {
        check_magic(bytes)?;
        let Some(header) = bytes.get(..ANSWER_HEADER) else { return Ok(None) };
        let length = usize::from(u16::from_le_bytes([header[11], header[12]]));
        if length > MAX_TEXT {
            return malformed(format!("an answer of {length} bytes"));
        }
        let Some(body) = bytes.get(11..ANSWER_HEADER + length) else { return Ok(None) };
        let text = Reader(body).text()?;
        let answer = match header[10] {
            0 => Self::Accepted,
            1 => Self::Refused(text),
            2 => Self::Stranger,
            verdict => return malformed(format!("an answer of unknown kind {verdict}")),
        };
        Ok(Some((answer, ANSWER_HEADER + length)))
    }
}

/// What ranks say once they have met.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// I live.
    Heartbeat,
    /// I leave in good order.
    Goodbye,
    /// I am at the barrier of this number.
    Barrier(u64),
    /// My message for the all_gather of this number.
    Message(u64, Vec<u8>),
    /// All are at the barrier of this number.
    Released(u64),
    /// All messages of the all_gather of this number, packed.
    Gathered(u64, Vec<u8>),
    /// The job has failed; processes that end with it use this exit code.
    Failed(i32, Error),
    /// I abort the job, with this exit code and for this reason. The rank is given when it is one of several
    /// in my process.
    Abort(i32, Option<u32>, String),
    /// The rendezvous is complete; these are all ranks, in order.
    Members(Vec<Member>),
    /// The rendezvous has failed.
    GivenUp(String),
    /// What I am doing, for messages about me.
    Note(String),
    /// What a rank of mine has called in a topic.
    Called(u32, u64, Vec<Called>),
}

impl Frame {
    /// The most bytes behind the header of what ends a rendezvous: the list of so many ranks, or why it failed.
    pub(super) fn longest_of_members(ranks: usize) -> usize {
        (2 + MAX_TEXT).max(ranks.saturating_mul(12 + 2 * MAX_NAME))
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        // The length is filled in at the end.
        let mut bytes = vec![0; FRAME_HEADER];
        let kind = match self {
            Self::Heartbeat => 1,
            Self::Goodbye => 2,
            Self::Barrier(number) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                3
            }
            Self::Message(number, message) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(message);
                4
            }
            Self::Released(number) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                5
            }
            Self::Gathered(number, messages) => {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(messages);
                6
            }
            Self::Failed(code, error) => {
                bytes.extend_from_slice(&code.to_le_bytes());
                match error {
                    Error::RankFailed { rank, host, reason } => {
                        bytes.extend_from_slice(&u32::try_from(*rank).unwrap_or(u32::MAX).to_le_bytes());
                        put_text(&mut bytes, host, MAX_NAME);
                        put_text(&mut bytes, reason, MAX_TEXT);
                    }
                    other => {
                        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
                        put_text(&mut bytes, "", MAX_NAME);
                        put_text(&mut bytes, &other.to_string(), MAX_TEXT);
                    }
                }
                7
            }
            Self::Abort(code, rank, reason) => {
                bytes.extend_from_slice(&code.to_le_bytes());
                bytes.extend_from_slice(&rank.unwrap_or(u32::MAX).to_le_bytes());
                put_text(&mut bytes, reason, MAX_TEXT);
                8
            }
            Self::Members(members) => {
                for member in members {
                    put_member(&mut bytes, member);
                }
                9
            }
            Self::GivenUp(reason) => {
                put_text(&mut bytes, reason, MAX_TEXT);
                10
            }
            Self::Note(text) => {
                put_text(&mut bytes, text, MAX_TEXT);
                11
            }
            Self::Called(rank, topic, calls) => {
                bytes.extend_from_slice(&rank.to_le_bytes());
                bytes.extend_from_slice(&topic.to_le_bytes());
                for Called { place, number, what } in calls {
                    bytes.extend_from_slice(&place.to_le_bytes());
                    bytes.extend_from_slice(&number.to_le_bytes());
                    put_text(&mut bytes, what, MAX_TEXT);
                }
                12
            }
        };
        // Callers keep frames below MAX_FRAME.
        let length = u32::try_from(bytes.len() - FRAME_HEADER).unwrap_or(u32::MAX);
        bytes[0] = kind;
        bytes[1..FRAME_HEADER].copy_from_slice(&length.to_le_bytes());
        bytes
    }

    fn decode(kind: u8, body: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(body);
        let frame = match kind {
            1 => Self::Heartbeat,
            2 => Self::Goodbye,
            3 => Self::Barrier(reader.u64()?),
            4 | 6 => {
                let number = reader.u64()?;
                let message = std::mem::take(&mut reader.0).to_vec();
                if kind == 4 { Self::Message(number, message) } else { Self::Gathered(number, message) }
            }
            5 => Self::Released(reader.u64()?),
            7 => {
                let code = i32::from_le_bytes(reader.array()?);
                let (rank, host, reason) = (reader.u32()?, reader.name()?, reader.text()?);
                let error = match rank {
                    u32::MAX => Error::Mismatch(reason),
                    rank => Error::RankFailed { rank: rank as usize, host, reason },
                };
                Self::Failed(code, error)
            }
            8 => {
                let (code, rank) = (i32::from_le_bytes(reader.array()?), reader.u32()?);
                Self::Abort(code, (rank != u32::MAX).then_some(rank), reader.text()?)
            }
            9 => {
                let mut members = Vec::new();
                while !reader.0.is_empty() {
                    members.push(reader.member()?);
                }
                Self::Members(members)
            }
            10 => Self::GivenUp(reader.text()?),
            11 => Self::Note(reader.text()?),
            12 => {
                let (rank, topic) = (reader.u32()?, reader.u64()?);
                let mut calls = Vec::new();
                while !reader.0.is_empty() {
                    let (place, number) = (reader.u64()?, reader.u64()?);
                    calls.push(Called { place, number, what: reader.text()? });
                }
                Self::Called(rank, topic, calls)
            }
            kind => return malformed(format!("a frame of unknown kind {kind}")),
        };
        reader.end(frame)
    }
}

/// Cuts a stream of bytes into frames.
#[derive(Debug, Default)]
pub(super) struct Frames {
    bytes: Vec<u8>,
    /// How many of the bytes are used up.
    used: usize,
}

impl Frames {
    /// How many bytes are kept that no frame has used.
    #[cfg(any(test, fuzzing))]
    pub(super) fn kept(&self) -> usize {
        self.bytes.len() - self.used
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// The next frame; `None` while more bytes must come.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        self.next_within(MAX_FRAME)
    }

    /// The next frame, which may have so many bytes behind its header; `None` while more bytes must come.
    pub(super) fn next_within(&mut self, most: usize) -> Result<Option<Frame>, Malformed> {
        let Some((&[kind, l0, l1, l2, l3], body)) = self.bytes[self.used..].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > most {
            return malformed(format!("a frame of {length} bytes"));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let frame = Frame::decode(kind, body)?;
        self.used += FRAME_HEADER + length;
        Ok(Some(frame))
    }
}

/// Messages one after the other, each behind its length.
pub(super) fn pack<'a>(messages: impl IntoIterator<Item = &'a [u8]>) -> Vec<u8> {
    let mut bytes = Vec::new();
    for message in messages {
        bytes.extend_from_slice(&(message.len() as u64).to_le_bytes());
        bytes.extend_from_slice(message);
    }
    bytes
}

/// The messages that were packed; `None` when they were not.
pub(super) fn unpack(mut bytes: &[u8]) -> Option<Vec<Vec<u8>>> {
    let mut messages = Vec::new();
    while !bytes.is_empty() {
        let (length, rest) = bytes.split_first_chunk::<8>()?;
        let (message, rest) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
        messages.push(message.to_vec());
        bytes = rest;
    }
    Some(messages)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn member(local: Option<(u32, u32)>) -> Member {
        Member { host: Host { name: "node1".to_owned(), id: "node1 5f0c".to_owned() }, local }
    }

    fn greeting() -> Greeting {
        Greeting { rank: 3, size: 8, key: "slurm 1.0".to_owned(), member: member(Some((1, 2))) }
    }

    fn called(place: u64, number: u64, what: &str) -> Called {
        Called { place, number, what: what.to_owned() }
    }

    fn frames() -> Vec<Frame> {
        let died =
            Error::RankFailed { rank: 3, host: "b".to_owned(), reason: "died: it panicked".to_owned() };
        vec![
            Frame::Heartbeat,
            Frame::Goodbye,
            Frame::Barrier(u64::MAX),
            Frame::Message(7, vec![1, 2, 3]),
            Frame::Message(8, Vec::new()),
            Frame::Released(9),
            Frame::Gathered(1, pack([&b"ab"[..], b"", b"c"])),
            Frame::Failed(-1, died),
            Frame::Failed(1, Error::Mismatch("ranks differ".to_owned())),
            Frame::Abort(130, None, "interrupted".to_owned()),
            Frame::Members(vec![member(None), member(Some((0, 1)))]),
            Frame::GivenUp("rank 2 is missing".to_owned()),
            Frame::Note("rank 3: filling\nrank 4: filling".to_owned()),
            Frame::Called(3, 5, vec![called(1, 7, "barrier"), called(0, 8, "")]),
            Frame::Called(0, 0, Vec::new()),
        ]
    }

    #[test]
    fn a_greeting_is_read_as_it_was_written_and_not_before_its_end() {
        let bytes = greeting().encode();
        for end in 0..bytes.len() {
            assert_eq!(Greeting::decode(&bytes[..end]), Ok(None), "{end} bytes");
        }
        assert_eq!(Greeting::decode(&bytes), Ok(Some(greeting())));
        assert!(Greeting::decode(&[&bytes[..], b"x"].concat()).is_err());
    }

    #[test]
    fn an_answer_is_read_as_it_was_written_and_not_before_its_end() {
        for answer in [Answer::Accepted, Answer::Refused("no".to_owned()), Answer::Stranger] {
            let bytes = answer.encode();
            for end in 0..bytes.len() {
                assert_eq!(Answer::decode(&bytes[..end]), Ok(None), "{end} bytes");
            }
            let behind = [&bytes[..], b"more"].concat();
            assert_eq!(Answer::decode(&behind), Ok(Some((answer, bytes.len()))));
        }
    }

    #[test]
    fn frames_are_read_as_they_were_written_however_they_are_cut() {
        let expected = frames();
        let bytes: Vec<u8> = expected.iter().flat_map(Frame::encode).collect();
        for piece in [1, 2, 3, 7, 64, bytes.len()] {
            let mut stream = Frames::default();
            let mut read = Vec::new();
            for piece in bytes.chunks(piece) {
                stream.push(piece);
                while let Some(frame) = stream.next().unwrap() {
                    read.push(frame);
                }
            }
            assert_eq!(read, expected, "pieces of {piece} bytes");
        }
    }

    #[test]
    fn other_versions_and_other_protocols_are_refused_at_once() {
        let mut bytes = greeting().encode();
        bytes[8] = 9;
        assert!(Greeting::decode(&bytes[..10]).unwrap_err().0.contains("version 9"));
        assert!(Greeting::decode(b"GET").unwrap_err().0.contains("does not speak"));
        assert!(Greeting::decode(b"NCCLbnch\x01\x00\xff\xff").unwrap_err().0.contains("65535 bytes"));
    }

    #[test]
    fn a_frame_that_claims_too_much_is_refused_before_it_comes() {
        let mut stream = Frames::default();
        stream.push(&[4, 0xff, 0xff, 0xff, 0xff]);
        assert!(stream.next().is_err());
    }

    #[test]
    fn the_longest_list_of_ranks_fits_into_a_frame() {
        assert!(Frame::longest_of_members(MAX_RANKS) <= MAX_FRAME);
        // With names of any length, which are cut.
        let long = Member { host: Host { name: "n".repeat(999), id: "i".repeat(999) }, local: Some((1, 2)) };
        let frame = Frame::Members(vec![long; 40]).encode();
        assert_eq!(frame.len() - FRAME_HEADER, Frame::longest_of_members(40));
    }

    #[test]
    fn names_that_could_play_with_a_terminal_are_refused() {
        let mut evil = greeting();
        evil.member.host.name = "a\x1b[2Jb".to_owned();
        assert!(Greeting::decode(&evil.encode()).is_err());
        let text = Frame::GivenUp("a\x1b[2Jb".to_owned()).encode();
        let mut stream = Frames::default();
        stream.push(&text);
        assert_eq!(stream.next(), Ok(Some(Frame::GivenUp("a [2Jb".to_owned()))));
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        let mut bytes = Vec::new();
        put_text(&mut bytes, &"ä".repeat(200), MAX_NAME);
        assert_eq!(Reader(&bytes).name().unwrap(), "ä".repeat(127));
    }

    #[test]
    fn packed_messages_are_the_same_unpacked() {
        assert_eq!(
            unpack(&pack([&b"ab"[..], b"", b"c"])),
            Some(vec![b"ab".to_vec(), Vec::new(), b"c".to_vec()])
        );
        assert_eq!(unpack(&[]), Some(Vec::new()));
        assert_eq!(unpack(&[1, 0, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(unpack(&[0xff; 9]), None);
    }

    proptest! {
        #[test]
        fn random_bytes_are_refused_or_understood(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            // What is understood is written the same again.
            if let Ok(Some(greeting)) = Greeting::decode(&bytes) {
                prop_assert_eq!(greeting.encode(), bytes.clone());
            }
            let _ = Answer::decode(&bytes);
            let _ = unpack(&bytes);
            let mut stream = Frames::default();
            stream.push(&bytes);
            while let Ok(Some(_)) = stream.next() {}
        }

        #[test]
        fn damaged_words_are_refused_or_understood(
            which in 0..15_usize,
            damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut bytes = match which {
                13 => greeting().encode(),
                14 => Answer::Refused("no".to_owned()).encode(),
                frame => frames()[frame].encode(),
            };
            for (index, byte) in damage {
                let index = index.index(bytes.len());
                bytes[index] = byte;
            }
            bytes.truncate(cut.index(bytes.len()) + 1);
            let _ = Greeting::decode(&bytes);
            let _ = Answer::decode(&bytes);
            let mut stream = Frames::default();
            stream.push(&bytes);
            while let Ok(Some(frame)) = stream.next() {
                // A frame never holds more than came.
                prop_assert!(frame.encode().len() <= bytes.len() + 16);
            }
        }
    }
}
