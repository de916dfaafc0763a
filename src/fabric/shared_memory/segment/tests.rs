//! Segments whose ranks are driven one after the other, or are threads.

use super::*;

fn begin_call(shared: &mut SharedSegment) {
    shared.begin_call(CallSignature::BARRIER, CallHash::default());
}

/// Writes messages of `len` bytes, filled with the operation's number, until one has to wait. Returns their
/// number.
fn ahead(root: &mut SharedSegment, len: usize) -> usize {
    let mut waiting = |_| Err(Error::Closed { operation: "waiting" });
    begin_call(root);
    let message = |shared: &SharedSegment| vec![(shared.sequence + 1) as u8; len];
    // SAFETY: the message has `len` bytes.
    (0..).take_while(|_| unsafe { root.write(message(root).as_ptr(), len, &mut waiting) }.is_ok()).count()
}

/// Takes part in the next operation, and returns the root's message.
fn follow(shared: &mut SharedSegment, len: usize) -> Vec<u8> {
    begin_call(shared);
    // SAFETY: the written message has no bytes, and the root's have `len`.
    unsafe {
        shared.write(ptr::null(), 0, &mut |_| Ok(())).unwrap();
        std::slice::from_raw_parts(shared.read(0, &mut |_| Ok(())).unwrap(), len).to_vec()
    }
}

#[test]
fn a_root_is_ahead_as_far_as_there_is_room_and_no_message_is_lost() {
    let most = SLOTS as usize;
    for (len, room) in [
        (0, most),
        (8, most),
        (SLOT_CAPACITY, most),
        (SLOT_CAPACITY + 1, LONG_BUFFERS),
        (CAPACITY, LONG_BUFFERS),
    ] {
        let mut shared_segments = shared_segments(3);
        let [root, others @ ..] = &mut shared_segments[..] else { panic!("three segments") };
        assert_eq!(ahead(root, len), room, "{len}");
        // The root waits until all have read a message, which they show by beginning the next operation.
        assert_eq!(follow(&mut others[0], len), vec![1; len]);
        assert_eq!(follow(&mut others[0], len), vec![2; len]);
        assert_eq!(follow(&mut others[1], len), vec![1; len]);
        assert_eq!(ahead(root, len), 0, "{len}");
        assert_eq!(follow(&mut others[1], len), vec![2; len]);
        assert_eq!(ahead(root, len), 1, "{len}");
        for other in others {
            for number in 3..=room + 1 {
                assert_eq!(follow(other, len), vec![number as u8; len]);
            }
        }
    }
}

#[test]
fn long_messages_among_short_ones_keep_their_places() {
    let mut shared_segments = shared_segments(2);
    let [root, other] = &mut shared_segments[..] else { panic!("two segments") };
    let lens: Vec<usize> =
        (0..300).map(|number| [8, 1000, 0, SLOT_CAPACITY, CAPACITY, 1, 600][number * 5 % 7]).collect();
    let mut read = 0;
    for (number, &len) in lens.iter().enumerate() {
        let message = vec![number as u8; len];
        begin_call(root);
        let mut next_buffer = |_| {
            assert_eq!(follow(other, lens[read]), vec![read as u8; lens[read]]);
            read += 1;
            Ok(())
        };
        // SAFETY: the message has `len` bytes.
        unsafe { root.write(message.as_ptr(), len, &mut next_buffer).unwrap() };
    }
    assert!(read > 200, "{read}");
    for (number, &len) in lens.iter().enumerate().skip(read) {
        assert_eq!(follow(other, len), vec![number as u8; len]);
    }
}

/// Checks for many operations, on the processor that runs the test, what `model.rs` proves for a few. With an
/// ordering missing, weakly ordered processors (ARM) now and then read messages that are not complete.
#[test]
fn threads_read_whole_messages_of_every_length_while_others_write_the_next_ones() {
    const OPERATIONS: usize = 2000;
    const LENS: [usize; 8] = [8, SLOT_CAPACITY, 0, SLOT_CAPACITY + 1, 1, 24, CAPACITY, 100];
    // The writer's rank and the operation, in every byte.
    let byte = |rank: usize, operation: usize| (rank * 83 + operation) as u8;
    std::thread::scope(|scope| {
        for mut shared in shared_segments(3) {
            scope.spawn(move || {
                for operation in 0..OPERATIONS {
                    let len = LENS[operation * 5 % LENS.len()];
                    begin_call(&mut shared);
                    let message = vec![byte(shared.rank, operation); len];
                    // SAFETY: the message has `len` bytes.
                    unsafe { shared.write(message.as_ptr(), len, &mut |_| Ok(())).unwrap() };
                    let own = shared.rank;
                    for rank in (0..3).filter(|&rank| rank != own) {
                        let received = shared.read(rank, &mut |_| Ok(())).unwrap();
                        // SAFETY: the message has `len` bytes.
                        let received = unsafe { std::slice::from_raw_parts(received, len) };
                        let wrong = received.iter().position(|&found| found != byte(rank, operation));
                        assert_eq!(wrong, None, "byte of rank {rank}'s message {operation}");
                    }
                }
            });
        }
    });
}
