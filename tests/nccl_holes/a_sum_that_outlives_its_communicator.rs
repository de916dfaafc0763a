// E0505

use collectives::nccl::{Collectives, Communicator, Error};

fn main() {}

fn test(communicator: Communicator) -> Result<(), Error> {
    let sum = communicator.scaled_sum(0.5)?;
    communicator.close()?;
    drop(sum);
    Ok(())
}
