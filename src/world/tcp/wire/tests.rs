use super::codec::{Field, Malformed, put_text};
use super::frame::FRAME_HEADER;
use super::*;
use crate::world::call::{pack_messages, unpack_messages};
use crate::world::host::Host;
use crate::world::limits::{MAX_NAME, MAX_RANKS};
use crate::world::{Awaited, Called, Error, Mismatch, Reason, Timeout, Wait};
use proptest::prelude::*;

fn member(local: Option<(u32, u32)>) -> JobMember {
    JobMember { host: Host { name: "node1".to_owned(), id: "node1 5f0c".to_owned() }, local }
}

fn hello() -> Frame {
    Frame::Hello(3, 8, "slurm 1.0".to_owned(), member(Some((1, 2))))
}

/// Decodes the first frame of a connection.
fn first_frame(bytes: &[u8]) -> Result<Option<Frame>, Malformed> {
    let mut stream = FrameDecoder::new();
    stream.push_bytes(bytes);
    stream.next_frame()
}

fn called(place: u64, number: u64, what: &str) -> Called {
    Called { place, number, what: what.to_owned() }
}

fn wait() -> Wait {
    let awaited = |rank, place| Awaited { rank, place, number: 1 << 40 };
    Wait {
        rank: 3,
        topic: u64::MAX,
        operation: "all_reduce".to_owned(),
        limit: Duration::from_millis(1500),
        awaited: vec![awaited(0, 0), awaited(70_000, 1 << 62)],
    }
}

fn frames() -> Vec<Frame> {
    let failed = |reason| Error::RankFailed { rank: 3, host: "b".to_owned(), reason };
    let died = Reason::Died("it panicked".to_owned());
    let mismatch =
        |peer_called| Mismatch { rank: 1, called: "barrier".to_owned(), peer: 70_000, peer_called };
    let late = |late: &[usize]| {
        Reason::TimedOut(Timeout {
            operation: "all_reduce of 5 float, sum".to_owned(),
            limit: Duration::from_millis(1500),
            late: late.iter().map(|&rank| (rank, format!("node{rank}"))).collect(),
        })
    };
    vec![
        Frame::Heartbeat,
        Frame::Goodbye,
        Frame::Barrier(u64::MAX),
        Frame::Message(7, vec![1, 2, 3]),
        Frame::Message(8, Vec::new()),
        Frame::Released(9),
        Frame::Gathered(1, pack_messages([&b"ab"[..], b"", b"c"])),
        Frame::Failed(-1, failed(died)),
        Frame::Failed(1, failed(Reason::Aborted { code: -9, message: "the loss is NaN".to_owned() })),
        Frame::Failed(1, failed(Reason::left_early())),
        Frame::Failed(1, failed(Reason::Late("a barrier within 3 s".to_owned()))),
        Frame::Failed(1, failed(Reason::Other("sent a frame that is too long".to_owned()))),
        Frame::Failed(1, failed(late(&[0, 70_000]))),
        Frame::Failed(1, Error::CallMismatch(mismatch(Some(String::new())))),
        Frame::Failed(1, Error::Mismatch("ranks differ".to_owned())),
        Frame::Abort(130, None, "interrupted".into()),
        Frame::Abort(1, Some(3), late(&[])),
        Frame::Abort(1, None, Reason::Mismatch(mismatch(None))),
        Frame::Members(vec![member(None), member(Some((0, 1)))]),
        Frame::RendezvousFailed("rank 2 is missing".to_owned()),
        Frame::Note("rank 3: filling\nrank 4: filling".to_owned(), vec![1, 2]),
        Frame::Called(3, 5, vec![called(1, 7, "barrier"), called(0, 8, "")]),
        Frame::Called(0, 0, Vec::new()),
        Frame::AskShrink(2, "shrink 5f".to_owned()),
        Frame::NotCalling,
        Frame::Calling,
        Frame::HasLeft,
        Frame::NotKnown,
        Frame::Decided(1, 29500, "shrink 60".to_owned(), vec![0, 2, u32::MAX]),
        Frame::GoneOn(2, "shrink 5f".to_owned(), 3),
        Frame::TimedOut(wait()),
        Frame::TimedOut(Wait { operation: String::new(), awaited: Vec::new(), ..wait() }),
        Frame::WantCalls,
        Frame::Posted(vec![1, 2, 3]),
    ]
}

#[test]
fn first_frames_survive_encoding_and_need_all_bytes() {
    for frame in [hello(), Frame::Accepted, Frame::Rejected("no".to_owned()), Frame::OtherJob] {
        let bytes = frame.encode_first();
        for end in 0..bytes.len() {
            assert_eq!(first_frame(&bytes[..end]), Ok(None), "{end} bytes");
        }
        let mut stream = FrameDecoder::new();
        stream.push_bytes(&[&bytes[..], b"more"].concat());
        assert_eq!((stream.next_frame(), stream.buffered_len()), (Ok(Some(frame)), 4));
        stream.push_bytes(&Frame::Heartbeat.encode()[..1]);
        assert_eq!(stream.buffered_len(), 5);
    }
}

#[test]
fn frames_survive_encoding_in_pieces_of_any_length() {
    let expected = frames();
    let bytes: Vec<u8> = expected.iter().flat_map(Frame::encode).collect();
    for piece in [1, 2, 3, 7, 64, bytes.len()] {
        let mut stream = FrameDecoder::default();
        let mut read = Vec::new();
        for piece in bytes.chunks(piece) {
            stream.push_bytes(piece);
            while let Some(frame) = stream.next_frame().unwrap() {
                read.push(frame);
            }
        }
        assert_eq!(read, expected, "pieces of {piece} bytes");
    }
}

#[test]
fn other_versions_and_protocols_are_refused_early() {
    let mut bytes = hello().encode_first();
    bytes[8] = 9;
    assert!(first_frame(&bytes[..10]).unwrap_err().0.contains("version 9"));
    assert!(first_frame(b"GET").unwrap_err().0.contains("does not speak"));
    let mut stream = FrameDecoder::new();
    stream.push_bytes(b"NCCLbnch\x03\x00\x0d\xff\xff\x00\x00");
    assert!(stream.next_within(MAX_HELLO).unwrap_err().0.contains("65535 bytes"));
}

#[test]
fn a_frame_that_claims_too_many_bytes_is_refused_before_it_arrives() {
    let mut stream = FrameDecoder::default();
    stream.push_bytes(&[4, 0xff, 0xff, 0xff, 0xff]);
    assert!(stream.next_frame().is_err());
}

#[test]
fn the_longest_list_of_ranks_fits_into_a_frame() {
    assert!(Frame::max_members_len(MAX_RANKS) <= MAX_FRAME);
    // With names of any length: they are cut.
    let long = JobMember { host: Host { name: "n".repeat(999), id: "i".repeat(999) }, local: Some((1, 2)) };
    let frame = Frame::Members(vec![long; 40]).encode();
    assert_eq!(frame.len() - FRAME_HEADER, Frame::max_members_len(40));
}

#[test]
fn control_characters_in_names_are_refused() {
    let mut evil = member(None);
    evil.host.name = "a\x1b[2Jb".to_owned();
    assert!(first_frame(&Frame::Hello(1, 2, String::new(), evil).encode_first()).is_err());
    let text = Frame::RendezvousFailed("a\x1b[2Jb".to_owned()).encode();
    let mut stream = FrameDecoder::default();
    stream.push_bytes(&text);
    assert_eq!(stream.next_frame(), Ok(Some(Frame::RendezvousFailed("a [2Jb".to_owned()))));
}

#[test]
fn long_texts_are_truncated_between_characters() {
    let mut bytes = Vec::new();
    put_text(&mut bytes, &"ä".repeat(200), MAX_NAME);
    assert_eq!(String::decode(&mut &bytes[..]).unwrap(), "ä".repeat(127));
}

#[test]
fn packed_messages_survive_unpacking() {
    assert_eq!(
        unpack_messages(&pack_messages([&b"ab"[..], b"", b"c"])),
        Some(vec![b"ab".to_vec(), Vec::new(), b"c".to_vec()])
    );
    assert_eq!(unpack_messages(&[]), Some(Vec::new()));
    assert_eq!(unpack_messages(&[1, 0, 0, 0, 0, 0, 0, 0]), None);
    assert_eq!(unpack_messages(&[0xff; 9]), None);
}

proptest! {
    #[test]
    fn damaged_messages_are_refused_or_decoded(
        which in 0..frames().len() + 2,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in any::<prop::sample::Index>(),
    ) {
        let frames = frames();
        let mut bytes = match which.checked_sub(frames.len()) {
            None => frames[which].encode(),
            Some(0) => hello().encode_first(),
            Some(_) => Frame::Rejected("no".to_owned()).encode_first(),
        };
        for (index, byte) in damage {
            let index = index.index(bytes.len());
            bytes[index] = byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        let _ = first_frame(&bytes);
        let mut stream = FrameDecoder::default();
        stream.push_bytes(&bytes);
        while let Ok(Some(frame)) = stream.next_frame() {
            // A frame is not longer than its input.
            prop_assert!(frame.encode().len() <= bytes.len() + 16);
        }
    }
}
