// E0499

use collectives::nccl::{Collectives, Communicator, Error, Memory, WindowKind, windows};

fn main() {}

fn test(first: &Communicator, second: &Communicator, mut memory: Memory) -> Result<(), Error> {
    let ranks = [(first, &mut memory), (second, &mut memory)];
    windows(first.library(), ranks, WindowKind::Plain).map(drop)
}
