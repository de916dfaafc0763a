// E0277

use collectives::nccl::Registration;

fn main() {}

fn test(registration: Registration<'_>) {
    std::thread::scope(|scope| {
        scope.spawn(move || registration.bytes());
    });
}
