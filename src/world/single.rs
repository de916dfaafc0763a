//! A world of one process.

use super::{Error, Handle, Position, World, process_exit};
use std::sync::Arc;

#[derive(Debug)]
struct Single;

/// Creates a world of one process: rank 0 of 1. [`threads`](super::threads) makes it a rank per GPU.
pub fn single() -> Handle {
    Arc::new(Single)
}

impl World for Single {
    fn position(&self) -> Position {
        Position { rank: 0, size: 1, local_rank: 0, local_size: 1 }
    }

    fn describe(&self) -> String {
        "one process".to_owned()
    }

    fn barrier(&self) -> Result<(), Error> {
        Ok(())
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        Ok(vec![mine.to_vec()])
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        process_exit::claim_end();
        process_exit::report_once(message);
        process_exit::exit_now(code)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_single_rank_gathers_its_own_message() {
        let world = single();
        assert_eq!((world.rank(), world.size(), world.local_rank(), world.local_size()), (0, 1, 0, 1));
        assert_eq!(world.all_gather(b"abc").unwrap(), [b"abc"]);
        world.barrier().unwrap();
        world.check().unwrap();
    }
}
