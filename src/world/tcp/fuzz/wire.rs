//! Decoding of messages.

use super::{MAX_INPUT, received};
use crate::world::call::{pack_messages, unpack_messages};
use crate::world::tcp::wire::{Frame, FrameDecoder};

/// Decodes the input as each of the messages, in one piece and in several.
///
/// # Panics
/// If the result depends on the pieces, or changes when it is encoded and decoded again.
pub fn wire(data: &[u8]) {
    let data = &data[..data.len().min(MAX_INPUT)];
    for begins in [false, true] {
        let decoder = || if begins { FrameDecoder::new() } else { FrameDecoder::default() };
        let mut whole = decoder();
        whole.push_bytes(data);
        let (frames, end) = all_frames(&mut whole);
        let mut pieces = decoder();
        let (mut found, mut found_end) = (Vec::new(), None);
        let mut rest = data;
        while !rest.is_empty() && found_end.is_none() {
            let (piece, others) = rest.split_at(rest.len().min(1 + usize::from(rest[0] % 32)));
            pieces.push_bytes(piece);
            rest = others;
            let (mut more, end) = all_frames(&mut pieces);
            found.append(&mut more);
            found_end = end;
        }
        assert_eq!((&found, &found_end), (&frames, &end));
        frames.into_iter().for_each(encode_again);
    }
    if let Some(messages) = unpack_messages(data) {
        assert_eq!(pack_messages(messages.iter().map(Vec::as_slice)), data);
    }
}

/// Replacing invalid UTF-8 makes a text longer, so it may be truncated.
fn encode_again(frame: Frame) {
    let written = frame.encode_first();
    if written.len() <= MAX_INPUT {
        assert_eq!(received(&written).next_frame(), Ok(Some(frame)));
    }
}

/// Decodes frames until more bytes are needed or an error occurs.
fn all_frames(stream: &mut FrameDecoder) -> (Vec<Frame>, Option<String>) {
    let mut frames = Vec::new();
    loop {
        match stream.next_frame() {
            Ok(Some(frame)) => frames.push(frame),
            Ok(None) => return (frames, None),
            Err(malformed) => return (frames, Some(malformed.0)),
        }
    }
}
