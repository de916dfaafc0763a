//! Decoding.

use super::LONGEST;
use crate::world::call::{pack, unpack};
use crate::world::tcp::wire::{Answer, Frame, Frames, Greeting};

/// Decodes the input as each of the messages, whole and in pieces.
///
/// # Panics
/// When what is understood depends on how it was cut, or is not the same when it is written and read again.
pub fn wire(data: &[u8]) {
    let data = &data[..data.len().min(LONGEST)];
    let greeting = Greeting::decode(data);
    if let Ok(Some(greeting)) = &greeting {
        assert_eq!(Greeting::decode(&greeting.encode()), Ok(Some(greeting.clone())));
    }
    let answer = Answer::decode(data);
    if let Ok(Some((answer, used))) = &answer {
        assert!(*used <= data.len());
        let written = answer.encode();
        // What is no text gets longer when it is made one, and may be cut.
        if written.len() <= *used {
            assert_eq!(Answer::decode(&written), Ok(Some((answer.clone(), written.len()))));
        }
    }
    // Every length around the headers, and some of the others.
    for end in (0..data.len()).filter(|end| *end < 64 || end % 37 == 0) {
        // More bytes never change a judgement, but those behind a greeting, which are an error.
        if let Err(malformed) = Greeting::decode(&data[..end]) {
            assert_eq!(greeting.as_ref().map_err(|later| later.0.is_empty()), Err(false), "{malformed:?}");
        }
        match Answer::decode(&data[..end]) {
            Ok(None) => {}
            known => assert_eq!(known, answer),
        }
    }
    let mut whole = Frames::default();
    whole.push(data);
    let (frames, end) = all_frames(&mut whole);
    let mut pieces = Frames::default();
    let (mut found, mut found_end) = (Vec::new(), None);
    let mut rest = data;
    while !rest.is_empty() && found_end.is_none() {
        // Pieces of lengths that depend on the input.
        let (piece, others) = rest.split_at(rest.len().min(1 + usize::from(rest[0] % 32)));
        pieces.push(piece);
        rest = others;
        let (mut more, end) = all_frames(&mut pieces);
        found.append(&mut more);
        found_end = end;
    }
    assert_eq!((&found, &found_end), (&frames, &end));
    for frame in frames {
        let written = frame.encode();
        if written.len() <= LONGEST {
            let mut again = Frames::default();
            again.push(&written);
            assert_eq!(again.next().as_ref(), Ok(&Some(frame)));
        }
    }
    if let Some(messages) = unpack(data) {
        assert_eq!(pack(messages.iter().map(Vec::as_slice)), data);
    }
}

/// The frames until more bytes must come, or until an error.
fn all_frames(stream: &mut Frames) -> (Vec<Frame>, Option<String>) {
    let mut frames = Vec::new();
    loop {
        match stream.next() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(malformed) => return (frames, Some(malformed.0)),
        }
    }
}
