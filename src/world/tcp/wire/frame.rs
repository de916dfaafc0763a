//! Frames: messages between ranks. Each direction of a connection begins with a preamble.

use super::MAX_FRAME;
use super::codec::{Field, JobMember, MAX_TEXT, Malformed, malformed};
use crate::world::limits::MAX_NAME;
use crate::world::{Called, Error, Reason, Wait};

const MAGIC: [u8; 8] = *b"NCCLbnch";
const VERSION: u16 = 3;
/// Magic, version.
const PREAMBLE: usize = 10;
/// Kind, length of the body.
pub(crate) const FRAME_HEADER: usize = 5;

/// Defines the frames, each with its kind and fields.
macro_rules! frames {
    ($($(#[$attribute:meta])* $kind:literal => $name:ident $(($($field:ident: $type:ty),*))?;)*) => {
        /// A message between ranks.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub(crate) enum Frame {
            $($(#[$attribute])* $name $(($($type),*))?,)*
        }

        impl Frame {
            pub(crate) fn encode(&self) -> Vec<u8> {
                let mut bytes = vec![0; FRAME_HEADER];
                match self {
                    $(Self::$name $(($($field),*))? => {
                        bytes[0] = $kind;
                        $($($field.encode(&mut bytes);)*)?
                    })*
                }
                // Callers keep frames below MAX_FRAME.
                let length = u32::try_from(bytes.len() - FRAME_HEADER).unwrap_or(u32::MAX);
                bytes[1..FRAME_HEADER].copy_from_slice(&length.to_le_bytes());
                bytes
            }

            fn decode(kind: u8, mut body: &[u8]) -> Result<Self, Malformed> {
                let frame = match kind {
                    $($kind => Self::$name $(($(<$type>::decode(&mut body)?),*))?,)*
                    _ => return malformed(format!("a frame of unknown kind {kind}")),
                };
                if body.is_empty() { Ok(frame) } else { malformed(format!("{} bytes too many", body.len())) }
            }
        }
    };
}

frames! {
    /// The sender is alive.
    1 => Heartbeat;
    /// The sender leaves the job without a failure.
    2 => Goodbye;
    /// The sender has entered the barrier with this call number.
    3 => Barrier(number: u64);
    /// Message for the all_gather with this call number.
    4 => Message(number: u64, message: Vec<u8>);
    /// All ranks have entered the barrier with this call number.
    5 => Released(number: u64);
    /// Packed messages of the all_gather with this call number.
    6 => Gathered(number: u64, messages: Vec<u8>);
    /// The job has failed. Processes that exit because of it use this exit code.
    7 => Failed(code: i32, error: Error);
    /// The sender aborts the job: exit code, the failed rank if its process has several, and reason.
    8 => Abort(code: i32, rank: Option<u32>, reason: Reason);
    /// The rendezvous is complete; all ranks in order.
    9 => Members(members: Vec<JobMember>);
    /// The rendezvous has failed, for the given reason.
    10 => RendezvousFailed(reason: String);
    /// Activity of the sender, for messages about it, and data for the program.
    11 => Note(text: String, data: Vec<u8>);
    /// Calls of one rank of the sender: rank, topic and calls.
    12 => Called(rank: u32, topic: u64, calls: Vec<Called>);
    /// First frame of a rank to rank 0: its rank, the number of ranks, and the key of its job.
    13 => Hello(rank: u32, size: u32, key: String, member: JobMember);
    /// Reply to a hello: the rank has joined and waits for the others.
    14 => Accepted;
    /// Reply to a hello: the rank cannot join this job, for the given reason.
    15 => Rejected(reason: String);
    /// Reply to a hello: the rank belongs to another job. Its rank 0 may listen at this address later.
    16 => OtherJob;
    /// Asks a process of the job with this key if it calls `Recovery::shrink`.
    17 => AskShrink(process: u32, key: String);
    /// Answer: the process lives and has not called it.
    18 => NotCalling;
    /// Answer: it has called and waits for a decision.
    19 => Calling;
    /// Answer: it has left the job for good.
    20 => HasLeft;
    /// Answer: the process has no such part of such a job.
    21 => NotKnown;
    /// Answer: it continues in the world with this port and key, with these processes, 1 if the world has
    /// formed.
    22 => Decided(formed: u32, port: u16, key: String, members: Vec<u32>);
    /// Informs a process of the job with this key: so many others continue without it.
    23 => GoneOn(process: u32, key: String, members: u32);
    /// A rank of the sender has waited too long in an operation. Rank 0 ends the job for it.
    24 => TimedOut(wait: Wait);
    /// Waiting ranks are to report their calls.
    25 => WantCalls;
    /// A message of the program ([`World::post`](crate::world::World::post)).
    26 => Posted(message: Vec<u8>);
}

impl Frame {
    /// Encodes the first frame of a connection, with the preamble.
    pub(crate) fn encode_first(&self) -> Vec<u8> {
        [&MAGIC[..], &VERSION.to_le_bytes(), &self.encode()].concat()
    }

    /// Maximum body length of the last frame in a rendezvous of `ranks` ranks.
    pub(crate) fn max_members_len(ranks: usize) -> usize {
        (2 + MAX_TEXT).max(ranks.saturating_mul(12 + 2 * MAX_NAME))
    }
}

/// Splits a byte stream into frames.
#[derive(Debug, Default)]
pub(crate) struct FrameDecoder {
    bytes: Vec<u8>,
    /// Length of the decoded prefix of `bytes`.
    used: usize,
    /// True until the preamble has been decoded.
    begins: bool,
}

impl FrameDecoder {
    /// Creates the decoder of a new connection. The decoder of [`Default`] expects no preamble.
    pub(crate) fn new() -> Self {
        Self { begins: true, ..Self::default() }
    }

    pub(crate) fn buffered_len(&self) -> usize {
        self.bytes.len() - self.used
    }

    pub(crate) fn push_bytes(&mut self, bytes: &[u8]) {
        if self.used > 0 {
            self.bytes.drain(..self.used);
            self.used = 0;
        }
        self.bytes.extend_from_slice(bytes);
    }

    /// Decodes the next frame; `None` if more bytes are needed.
    pub(crate) fn next_frame(&mut self) -> Result<Option<Frame>, Malformed> {
        self.next_within(MAX_FRAME)
    }

    /// Decodes the next frame, with a body of at most `max` bytes; `None` if more bytes are needed.
    pub(crate) fn next_within(&mut self, max: usize) -> Result<Option<Frame>, Malformed> {
        if self.begins {
            if !has_preamble(&self.bytes)? {
                return Ok(None);
            }
            (self.begins, self.used) = (false, PREAMBLE);
        }
        let Some((&[kind, l0, l1, l2, l3], body)) = self.bytes[self.used..].split_first_chunk() else {
            return Ok(None);
        };
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > max {
            return malformed(format!("a frame of {length} bytes"));
        }
        let Some(body) = body.get(..length) else { return Ok(None) };
        let frame = Frame::decode(kind, body)?;
        self.used += FRAME_HEADER + length;
        Ok(Some(frame))
    }
}

/// Checks the preamble; returns `false` if it is incomplete.
fn has_preamble(bytes: &[u8]) -> Result<bool, Malformed> {
    let count = bytes.len().min(MAGIC.len());
    if bytes[..count] != MAGIC[..count] {
        return malformed("it does not speak this program's protocol");
    }
    let Some(&[low, high]) = bytes.get(MAGIC.len()..PREAMBLE).and_then(<[u8]>::first_chunk) else {
        return Ok(false);
    };
    let version = u16::from_le_bytes([low, high]);
    if version != VERSION {
        return malformed(format!(
            "it speaks version {version} of the protocol, this program version {VERSION}"
        ));
    }
    Ok(true)
}
