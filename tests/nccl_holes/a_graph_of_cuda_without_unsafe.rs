// E0133

use collectives::nccl::Graph;

fn main() {}

fn test(graph: Graph<'_>) -> usize {
    graph.cuda_graphs().len()
}
