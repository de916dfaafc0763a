// E0499

use collectives::nccl::{Collectives, Communicator, Error, Memory};

fn main() {}

fn test(first: &Communicator, second: &Communicator, mut memory: Memory) -> Result<(), Error> {
    let one = first.register(&mut memory)?;
    let other = second.register(&mut memory)?;
    drop((one, other));
    Ok(())
}
