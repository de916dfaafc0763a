// E0277

use collectives::nccl::Communicator;

fn main() {}

fn test(communicator: &Communicator) {
    std::thread::scope(|scope| {
        scope.spawn(|| communicator.async_error());
    });
}
