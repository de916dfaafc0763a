//! Messages between the processes of `doctor`, for a measurement that fails.

use diagnosis::examination::Health;
use engine::supervision::signal_code;

/// Bytes before the body of a frame: its kind, and the length of the body.
const HEADER: usize = 5;

/// Largest body: a log that cannot be compressed, with its header.
const MAX_BODY: usize = 13 << 20;

/// Number that distinguishes the processes of a job from strangers at the port.
pub(super) type Token = [u8; 16];

/// NCCL's log of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PackedLog {
    /// The number of the process.
    pub process: usize,
    /// True for a log without a cut.
    pub is_whole: bool,
    /// The text, in gzip.
    pub gzip: Vec<u8>,
}

/// The reason for which a measurement ends before it is complete.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Ending {
    /// It failed, with this message.
    Failed(String),
    /// This signal interrupted it: `SIGINT`.
    Interrupted(String),
}

impl Ending {
    /// The exit code of all processes.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => Health::Broken.code(),
            Self::Interrupted(signal) => signal.parse().map_or(Health::CannotTell.code(), signal_code),
        }
    }
}

/// A message to rank 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// The first one: the number of the sender.
    Hello(Token, usize),
    /// The end of the sender before the measurement is complete.
    Ended(Ending),
    /// A log, its own or that of another process of its host.
    Log(PackedLog),
    /// The end of the logs.
    End,
}

impl PackedLog {
    /// Returns the log as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let process = u32::try_from(self.process).unwrap_or(u32::MAX);
        [&process.to_le_bytes()[..], &[u8::from(self.is_whole)], &self.gzip].concat()
    }

    /// Reads what [`PackedLog::encode`] wrote.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let (process, rest) = split_number(bytes)?;
        let (&whole, gzip) = rest.split_first()?;
        Some(Self { process, is_whole: whole == 1, gzip: gzip.to_vec() })
    }
}

impl Frame {
    /// Returns the frame as bytes.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, body) = match self {
            Self::Hello(token, process) => {
                let process = u32::try_from(*process).unwrap_or(u32::MAX);
                (0, [&process.to_le_bytes()[..], token].concat())
            }
            Self::Ended(Ending::Failed(message)) => (1, cut(message)),
            Self::Ended(Ending::Interrupted(signal)) => (4, cut(signal)),
            Self::Log(log) => (2, log.encode()),
            Self::End => (3, Vec::new()),
        };
        let length = u32::try_from(body.len()).unwrap_or(u32::MAX);
        [&[kind][..], &length.to_le_bytes(), &body].concat()
    }

    fn decode(kind: u8, body: &[u8]) -> Option<Self> {
        match kind {
            0 => {
                let (process, token) = split_number(body)?;
                Some(Self::Hello(token.try_into().ok()?, process))
            }
            1 => Some(Self::Ended(Ending::Failed(String::from_utf8_lossy(body).into_owned()))),
            2 => PackedLog::decode(body).map(Self::Log),
            3 => Some(Self::End),
            4 => Some(Self::Ended(Ending::Interrupted(String::from_utf8_lossy(body).into_owned()))),
            _ => None,
        }
    }
}

/// A text as bytes, of which there are not too many.
fn cut(text: &str) -> Vec<u8> {
    text.as_bytes()[..text.len().min(MAX_BODY)].to_vec()
}

/// A number of four bytes at the beginning, and the rest.
fn split_number(bytes: &[u8]) -> Option<(usize, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((usize::try_from(u32::from_le_bytes(*number)).ok()?, rest))
}

/// Bytes that no process of this job has sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed;

/// Splits the bytes of a connection into frames.
#[derive(Debug, Default)]
pub(super) struct Decoder(Vec<u8>);

impl Decoder {
    /// Adds bytes that have arrived.
    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// Takes the next frame, if it is complete.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, Malformed> {
        let Some((&[kind, length @ ..], rest)) = self.0.split_first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let length = usize::try_from(u32::from_le_bytes(length)).map_err(|_| Malformed)?;
        if kind > 4 || length > MAX_BODY {
            return Err(Malformed);
        }
        let Some(body) = rest.get(..length) else { return Ok(None) };
        let frame = Frame::decode(kind, body).ok_or(Malformed)?;
        self.0.drain(..HEADER + length);
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written_however_they_are_split() {
        let log = PackedLog { process: 7, is_whole: false, gzip: vec![1, 2, 3] };
        let frames = [
            Frame::Hello([9; 16], 3),
            Frame::Ended(Ending::Failed("no way".to_owned())),
            Frame::Ended(Ending::Interrupted("SIGINT".to_owned())),
            Frame::Log(log),
            Frame::End,
        ];
        let bytes: Vec<u8> = frames.iter().flat_map(Frame::encode).collect();
        for size in [1, 2, 7, bytes.len()] {
            let mut decoder = Decoder::default();
            let mut read = Vec::new();
            for part in bytes.chunks(size) {
                decoder.push(part);
                while let Some(frame) = decoder.next().unwrap() {
                    read.push(frame);
                }
            }
            assert_eq!(read, frames);
        }
    }

    #[test]
    fn bytes_of_strangers_are_refused() {
        let next = |bytes: &[u8]| {
            let mut decoder = Decoder::default();
            decoder.push(bytes);
            decoder.next()
        };
        assert_eq!(next(b"GET / HTTP/1.1\r\n"), Err(Malformed));
        assert_eq!(next(&[1, 255, 255, 255, 255]), Err(Malformed));
        assert_eq!(next(&[5, 0, 0, 0, 0]), Err(Malformed));
        assert_eq!(next(&[0, 3, 0, 0, 0, 1, 2, 3]), Err(Malformed));
        assert_eq!(next(&[2, 9, 0, 0, 0, 1]), Ok(None));
    }
}
