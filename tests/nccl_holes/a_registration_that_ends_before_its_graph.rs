// E0505

use collectives::nccl::{Collectives, Communicator, Error, Graph, Memory};

fn main() {}

fn test(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
    let registration = communicator.register(memory)?;
    let view = registration.slice::<f32>(..1)?;
    let graph = Graph::capture(|capture| capture.on(communicator).send(&view, 1))?;
    drop(registration);
    graph.launch()
}
