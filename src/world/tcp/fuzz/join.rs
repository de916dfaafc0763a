//! A rank that joins.

use super::{KEY, SIZE, Script, member};
use crate::world::Place;
use crate::world::tcp::rendezvous::{Failure, Joining};
use crate::world::tcp::wire::{Answer, Frame, Frames, Member};

/// Plays the input as what listens at rank 0's address says to a rank that wants to join, in pieces: what became of it.
///
/// # Panics
/// When the rank takes something for its job that is not, depends on how the bytes are cut, keeps more than it may, or
/// gives up for good because of what is not rank 0.
pub fn join(data: &[u8]) -> String {
    let mut script = Script::new(data);
    let cut = script.number();
    let mut said = Vec::new();
    while !script.0.is_empty() {
        let action = script.number();
        let number = action / 8;
        match action % 8 {
            0 => said.extend(Answer::Accepted.encode()),
            1 => said.extend(Answer::Refused("there is no place".to_owned()).encode()),
            2 => said.extend(Answer::Stranger.encode()),
            3 => {
                let members = (0..number % 6).map(|rank| member(&format!("node{rank}"))).collect();
                said.extend(Frame::Members(members).encode());
            }
            4 => said.extend(Frame::GivenUp("rank 2 is missing".to_owned()).encode()),
            5 => said.extend(Frame::Heartbeat.encode()),
            // The head of a frame of any length.
            6 => said.extend([&[9][..], script.bytes(4)].concat()),
            _ => said.extend_from_slice(script.bytes(number)),
        }
    }
    let mut place = Place::new(1, SIZE, "127.0.0.1:29500").unwrap();
    place.key = KEY.to_owned();
    let whole = hear(&place, &said, said.len().max(1));
    let (outcome, left) = hear(&place, &said, 1 + cut % 64);
    assert_eq!(outcome, whole.0, "it depends on how it is cut");
    let answer = Answer::decode(&said);
    let accepted = matches!(answer, Ok(Some((Answer::Accepted, _))));
    match &outcome {
        Ok(members) => {
            assert!(accepted && members.len() == SIZE);
            let Ok(Some((_, used))) = answer else { panic!("no answer") };
            let mut frames = Frames::default();
            frames.push(&said[used..]);
            assert_eq!(frames.next(), Ok(Some(Frame::Members(members.clone()))));
            // What came right behind is still there, as far as it was read.
            assert!(left <= frames.kept() && whole.1 == frames.kept());
            "met".to_owned()
        }
        Err(Failure::Retry(reason)) => {
            assert!(!accepted && !matches!(answer, Ok(Some((Answer::Refused(_), _)))), "{reason}");
            reason.clone()
        }
        Err(Failure::Final(error)) => {
            assert!(accepted || matches!(answer, Ok(Some((Answer::Refused(_), _)))), "{error}");
            error.to_string()
        }
    }
}

/// What a rank that joins makes of these bytes, in pieces of this length, and how many it then keeps.
fn hear(place: &Place, said: &[u8], piece: usize) -> (Result<Vec<Member>, Failure>, usize) {
    let mut joining = Joining::new(place, "127.0.0.1:29500");
    for bytes in said.chunks(piece) {
        match joining.hear(bytes) {
            Ok(None) => {
                let most = Frame::longest_of_members(SIZE) + 64 + piece;
                assert!(joining.frames.kept() <= most, "{} bytes are kept", joining.frames.kept());
            }
            Ok(Some(members)) => return (Ok(members), joining.frames.kept()),
            Err(failure) => return (Err(failure), 0),
        }
    }
    (Err(joining.ended()), 0)
}
