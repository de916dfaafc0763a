// E0277

use collectives::nccl::ScaledSum;

fn main() {}

fn test(sum: ScaledSum<'_, f32>) {
    std::thread::scope(|scope| {
        scope.spawn(move || drop(sum));
    });
}
