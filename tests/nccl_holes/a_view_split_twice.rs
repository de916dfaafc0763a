// E0382

use collectives::nccl::{Error, Memory};

fn main() {}

fn test(memory: &mut Memory) -> Result<(), Error> {
    let mut view = memory.slice_mut::<f32>(..8)?;
    let (first, second) = view.split_at_mut(4)?;
    let (third, fourth) = view.split_at_mut(2)?;
    println!("{} {}", first.address(), second.address());
    println!("{} {}", third.address(), fourth.address());
    Ok(())
}
