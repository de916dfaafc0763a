// E0277

use collectives::nccl::Window;

fn main() {}

fn test(window: Window<'_>) {
    std::thread::scope(|scope| {
        scope.spawn(move || window.is_active());
    });
}
