// E0277

use collectives::nccl::Launch;

#[derive(Clone, Copy)]
struct Mine;

impl Launch<'_> for Mine {}

fn main() {}
