//! A world whose answers are checked. Any safe program can implement [`World`], and communicators rely on ranks and lengths.

use std::sync::Arc;
use std::time::Duration;

use super::{Error, Handle, Position, World};

struct Checked {
    world: Handle,
    /// The world's first answer, since later ones may differ.
    position: Position,
}

/// Wraps a world: its position does not change, and it gathers a message of every rank, or fails.
///
/// # Errors
/// If the rank is outside of the world.
pub(crate) fn checked(world: Handle) -> Result<Handle, Error> {
    let position = world.position();
    if position.rank >= position.size {
        let Position { rank, size, .. } = position;
        return Err(Error::Mismatch(format!(
            "a world says that it has {size} ranks, and that this is rank {rank}"
        )));
    }
    Ok(Arc::new(Checked { world, position }))
}

impl World for Checked {
    fn position(&self) -> Position {
        self.position
    }

    fn describe(&self) -> String {
        self.world.describe()
    }

    fn barrier(&self) -> Result<(), Error> {
        self.world.barrier()
    }

    fn all_gather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let all = self.world.all_gather(mine)?;
        if all.len() != self.position.size {
            let (ranks, messages) = (self.position.size, all.len());
            return Err(Error::Mismatch(format!(
                "a world of {ranks} ranks has gathered {messages} messages"
            )));
        }
        Ok(all)
    }

    fn monitor(&self) -> Option<&dyn World> {
        Some(&*self.world)
    }

    fn set_limit(&self, limit: Option<Duration>) {
        self.world.set_limit(limit);
    }

    fn abort(&self, code: i32, message: &str) -> ! {
        self.world.abort(code, message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A world whose answers contradict each other.
    struct Lying(Position, usize);

    impl World for Lying {
        fn position(&self) -> Position {
            self.0
        }

        fn rank(&self) -> usize {
            7
        }

        fn describe(&self) -> String {
            String::new()
        }

        fn barrier(&self) -> Result<(), Error> {
            Ok(())
        }

        fn all_gather(&self, _: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
            Ok(vec![Vec::new(); self.1])
        }

        fn abort(&self, code: i32, _: &str) -> ! {
            std::process::exit(code)
        }
    }

    #[test]
    fn ranks_and_messages_are_checked() {
        let position = |rank, size| Position { rank, size, local_rank: 0, local_size: 1 };
        for (rank, size) in [(5, 1), (2, 2), (0, 0)] {
            let error = checked(Arc::new(Lying(position(rank, size), size))).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("a world says that it has {size} ranks, and that this is rank {rank}")
            );
        }
        let world = checked(Arc::new(Lying(position(1, 2), 3))).unwrap();
        assert_eq!((world.rank(), world.size()), (1, 2));
        assert_eq!(
            world.all_gather(&[]).unwrap_err().to_string(),
            "a world of 2 ranks has gathered 3 messages"
        );
        let world = checked(Arc::new(Lying(position(1, 2), 2))).unwrap();
        assert_eq!(world.all_gather(&[]).unwrap().len(), 2);
    }
}
