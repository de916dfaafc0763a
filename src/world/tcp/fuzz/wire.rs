//! Decoding of messages.

use super::MAX_INPUT;
use crate::world::call::{pack, unpack};
use crate::world::tcp::wire::{Frame, FrameDecoder, Hello, HelloReply};

/// Decodes the input as each of the messages, in one piece and in several.
///
/// # Panics
/// If the result depends on the pieces, or changes when it is encoded and decoded again.
pub fn wire(data: &[u8]) {
    let data = &data[..data.len().min(MAX_INPUT)];
    let hello = Hello::decode(data);
    if let Ok(Some(hello)) = &hello {
        assert_eq!(Hello::decode(&hello.encode()), Ok(Some(hello.clone())));
    }
    let reply = HelloReply::decode(data);
    if let Ok(Some((reply, used))) = &reply {
        assert!(*used <= data.len());
        let written = reply.encode();
        // Replacing invalid UTF-8 makes a text longer, so it may be truncated.
        if written.len() <= *used {
            assert_eq!(HelloReply::decode(&written), Ok(Some((reply.clone(), written.len()))));
        }
    }
    // All lengths around the headers, and some others.
    for end in (0..data.len()).filter(|end| *end < 64 || end % 37 == 0) {
        // Further bytes never change a result, except that bytes after a hello are an error.
        if let Err(malformed) = Hello::decode(&data[..end]) {
            assert_eq!(hello.as_ref().map_err(|later| later.0.is_empty()), Err(false), "{malformed:?}");
        }
        match HelloReply::decode(&data[..end]) {
            Ok(None) => {}
            known => assert_eq!(known, reply),
        }
    }
    let mut whole = FrameDecoder::default();
    whole.push(data);
    let (frames, end) = all_frames(&mut whole);
    let mut pieces = FrameDecoder::default();
    let (mut found, mut found_end) = (Vec::new(), None);
    let mut rest = data;
    while !rest.is_empty() && found_end.is_none() {
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
        if written.len() <= MAX_INPUT {
            let mut again = FrameDecoder::default();
            again.push(&written);
            assert_eq!(again.next().as_ref(), Ok(&Some(frame)));
        }
    }
    if let Some(messages) = unpack(data) {
        assert_eq!(pack(messages.iter().map(Vec::as_slice)), data);
    }
}

/// Decodes frames until more bytes are needed or an error occurs.
fn all_frames(stream: &mut FrameDecoder) -> (Vec<Frame>, Option<String>) {
    let mut frames = Vec::new();
    loop {
        match stream.next() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(malformed) => return (frames, Some(malformed.0)),
        }
    }
}
