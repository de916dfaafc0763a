// E0277

use collectives::nccl::Graph;

fn main() {}

fn test(graph: Graph<'_>) {
    std::thread::scope(|scope| {
        scope.spawn(move || graph.launch());
    });
}
