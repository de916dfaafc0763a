//! Messages between the processes of `doctor`.

use diagnosis::examination::Health;
use engine::supervision::signal_code;
use serde::{Deserialize, Serialize};

/// NCCL's log of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PackedLog {
    /// The number of the process.
    pub(super) process: usize,
    /// True for a log without a cut.
    pub(super) is_whole: bool,
    /// The text, in gzip. It follows the other fields unchanged.
    #[serde(skip)]
    pub(super) gzip: Vec<u8>,
}

/// The reason for the early end of a measurement.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Ending {
    /// It failed, with this message.
    Failed(String),
    /// It was interrupted by this signal: `SIGINT`.
    Interrupted(String),
}

impl Ending {
    /// Returns the exit code of all processes.
    pub(super) fn code(&self) -> u8 {
        match self {
            Self::Failed(_) => Health::Broken.exit_code(),
            Self::Interrupted(signal) => signal.parse().map_or(Health::CannotTell.exit_code(), signal_code),
        }
    }
}

/// A message. Rank 0 sends the first two; the others are for rank 0.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum DoctorMessage {
    /// A request to every process for all logs it holds.
    Ask,
    /// The report is written.
    Reported,
    /// The end of the sender before the measurement is complete.
    Ended(Ending),
    /// A log, of the sender or another process of its host.
    Log(PackedLog),
    /// The end of the logs.
    End,
}

impl PackedLog {
    /// Returns the log as bytes.
    pub(super) fn encode_log(self) -> Vec<u8> {
        DoctorMessage::Log(self).encode_message()
    }

    /// Decodes [`PackedLog::encode_log`].
    pub(super) fn decode_log(bytes: &[u8]) -> Option<Self> {
        match DoctorMessage::decode_message(bytes)? {
            DoctorMessage::Log(log) => Some(log),
            _ => None,
        }
    }
}

impl DoctorMessage {
    /// Returns the message as bytes: a line of JSON, and the bytes of a log.
    pub(super) fn encode_message(&self) -> Vec<u8> {
        let gzip = if let Self::Log(log) = self { &log.gzip[..] } else { &[] };
        // Serialising fails only for map keys that are not strings; there are none.
        let line = serde_json::to_vec(self).unwrap_or_default();
        [&line[..], b"\n", gzip].concat()
    }

    /// Decodes [`DoctorMessage::encode_message`].
    pub(super) fn decode_message(bytes: &[u8]) -> Option<Self> {
        let end = bytes.iter().position(|&byte| byte == b'\n')?;
        let mut message = serde_json::from_slice(&bytes[..end]).ok()?;
        if let Self::Log(log) = &mut message {
            log.gzip = bytes[end + 1..].to_vec();
        }
        Some(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_survive_encoding() {
        let log = PackedLog { process: 7, is_whole: false, gzip: b"1\n2\n".to_vec() };
        assert_eq!(PackedLog::decode_log(&log.clone().encode_log()), Some(log.clone()));
        for message in [
            DoctorMessage::Ask,
            DoctorMessage::Reported,
            DoctorMessage::Ended(Ending::Failed("no\nway".to_owned())),
            DoctorMessage::Ended(Ending::Interrupted("SIGINT".to_owned())),
            DoctorMessage::Log(log),
            DoctorMessage::End,
        ] {
            assert_eq!(DoctorMessage::decode_message(&message.encode_message()), Some(message));
        }
        for other in [&b""[..], b"\n", b"\"Ask\"", b"\"Other\"\n"] {
            assert_eq!(DoctorMessage::decode_message(other), None);
            assert_eq!(PackedLog::decode_log(other), None);
        }
        assert_eq!(PackedLog::decode_log(&DoctorMessage::Ask.encode_message()), None);
    }
}
