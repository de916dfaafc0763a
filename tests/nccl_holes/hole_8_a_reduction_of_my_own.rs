// E0046 E0277

use collectives::nccl::Reduction;

struct Mine;

impl Reduction<'_, f32> for Mine {}

fn main() {}
