//! Segments with ranks driven one after the other, or in threads.

use std::fs;

use super::*;
use crate::fabric::shared_memory::shm;

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
        // The root waits until all have read a message. They show it by beginning the next operation.
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

/// Checks for many operations, on the processor of the test, the properties proved by `model.rs` for a few.
/// If an ordering is missing, weakly ordered processors (ARM) sometimes read incomplete messages.
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

/// A world whose all_gather changes the messages.
struct Lying<F>(world::Handle, usize, usize, F);

impl<F: Fn(&mut Vec<Vec<u8>>) + Send + Sync> World for Lying<F> {
    fn position(&self) -> world::Position {
        let Self(_, rank, size, _) = *self;
        world::Position { rank, size, local_rank: rank, local_size: size }
    }

    fn describe(&self) -> String {
        String::new()
    }

    fn barrier(&self) -> Result<(), world::Error> {
        self.0.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, world::Error> {
        let mut all = self.0.all_gather(mine)?;
        self.3(&mut all);
        Ok(all)
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.0.abort(code, message)
    }
}

#[test]
fn two_ranks_do_not_get_one_area() {
    // Two of three ranks claim to be rank 1, each in a world without the other.
    let made = world::on_ranks(3, |world| {
        let rank = world.rank();
        let left_out = if rank == 2 { 1 } else { 2 };
        let world = Lying(world, rank.min(1), 2, move |all: &mut Vec<_>| drop(all.remove(left_out)));
        SharedSegment::create(&world, true).map(|segment| segment.is_some())
    });
    let text = "two ranks of a world of 2 ranks report that they are rank 1";
    let failed = |rank: usize| made[rank].as_ref().is_err_and(|error| error.to_string() == text);
    // Rank 0 learns of it from its only peer.
    assert!(failed(1) ^ failed(2), "{made:?}");
    assert_eq!((failed(0), &made[2 - usize::from(failed(2))]), (failed(1), &Ok(true)), "{made:?}");
}

#[test]
fn only_the_files_of_segments_are_opened() {
    // A name of another process: other tests look for files of this one.
    let name = format!("collectives-1-1-{:016x}", shm::number_in(&shm::new_name()).unwrap());
    let elsewhere = tempfile::NamedTempFile::new().unwrap();
    let here = std::path::Path::new(shm::DIRECTORY).join(&name);
    for (path, told) in [
        // As long as a segment, with a name of ours.
        (here.as_path(), name.as_str()),
        (elsewhere.path(), elsewhere.path().to_str().unwrap()),
    ] {
        fs::write(path, vec![0x55; segment_len(2)]).unwrap();
        let made = world::on_ranks(2, |world| {
            let rank = world.rank();
            let rename = |all: &mut Vec<Vec<u8>>| {
                // Rank 1 gets this name.
                if rank == 1 && all[0].len() > 1 {
                    all[0] = told.as_bytes().to_vec();
                }
            };
            SharedSegment::create(&Lying(world, rank, 2, rename), true).map(|segment| segment.is_some())
        });
        let content = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        assert_eq!(made, [Ok(false), Ok(false)], "{told}");
        assert!(content.iter().all(|&byte| byte == 0x55), "{told}");
    }
}
