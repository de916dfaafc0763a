//! A joining rank.

use super::{KEY, SIZE, Script, member, received};
use crate::world::RendezvousConfig;
use crate::world::tcp::rendezvous::{Handshake, JoinError};
use crate::world::tcp::wire::{Frame, JobMember};

/// Plays the input as the bytes of a server at rank 0's address to a joining rank, in pieces. Returns the
/// outcome.
///
/// # Panics
/// If the rank joins another job, the outcome depends on the pieces, too much is buffered, or a server other
/// than rank 0 causes a fatal error.
pub fn join(data: &[u8]) -> String {
    let mut script = Script::new(data);
    let cut = script.number();
    let mut sent = Vec::new();
    while !script.0.is_empty() {
        let action = script.number();
        let number = action / 8;
        match action % 8 {
            0 => sent.extend(Frame::Accepted.encode_first()),
            1 => sent.extend(Frame::Rejected("there is no place".to_owned()).encode_first()),
            2 => sent.extend(Frame::OtherJob.encode_first()),
            3 => {
                let members = (0..number % 6).map(|rank| member(&format!("node{rank}"))).collect();
                sent.extend(Frame::Members(members).encode());
            }
            4 => sent.extend(Frame::RendezvousFailed("rank 2 is missing".to_owned()).encode()),
            5 => sent.extend(Frame::Heartbeat.encode()),
            // Header of a frame of any length.
            6 => sent.extend([&[9][..], script.bytes(4)].concat()),
            _ => sent.extend_from_slice(script.bytes(number)),
        }
    }
    let mut config = RendezvousConfig::new(1, SIZE, "127.0.0.1:29500").unwrap();
    config.key = KEY.to_owned();
    let whole = play(&config, &sent, sent.len().max(1));
    let (outcome, left) = play(&config, &sent, 1 + cut % 64);
    assert_eq!(outcome, whole.0, "the outcome depends on the pieces");
    let mut decoder = received(&sent);
    let reply = decoder.next_frame();
    let accepted = matches!(reply, Ok(Some(Frame::Accepted)));
    match &outcome {
        Ok(members) => {
            assert!(accepted && members.len() == SIZE);
            assert_eq!(decoder.next_frame(), Ok(Some(Frame::Members(members.clone()))));
            // Bytes after the list of ranks are kept.
            assert!(left <= decoder.buffered_len() && whole.1 == decoder.buffered_len());
            "met".to_owned()
        }
        Err(JoinError::Retry(reason)) => {
            assert!(!accepted && !matches!(reply, Ok(Some(Frame::Rejected(_)))), "{reason}");
            reason.clone()
        }
        Err(JoinError::Fatal(error)) => {
            assert!(accepted || matches!(reply, Ok(Some(Frame::Rejected(_)))), "{error}");
            error.to_string()
        }
    }
}

/// Feeds the bytes to a joining rank, in pieces of the given length. Returns the outcome and the number of
/// buffered bytes.
fn play(config: &RendezvousConfig, sent: &[u8], piece: usize) -> (Result<Vec<JobMember>, JoinError>, usize) {
    let mut handshake = Handshake::new(config, "127.0.0.1:29500");
    for bytes in sent.chunks(piece) {
        match handshake.receive_bytes(bytes) {
            Ok(None) => {
                let max = Frame::max_members_len(SIZE) + 64 + piece;
                assert!(
                    handshake.decoder.buffered_len() <= max,
                    "{} bytes are buffered",
                    handshake.decoder.buffered_len()
                );
            }
            Ok(Some(members)) => return (Ok(members), handshake.decoder.buffered_len()),
            Err(failure) => return (Err(failure), 0),
        }
    }
    (Err(handshake.ended_error()), 0)
}
