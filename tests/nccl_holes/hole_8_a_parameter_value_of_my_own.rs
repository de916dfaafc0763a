// E0277

use collectives::nccl::ParameterValue;

#[derive(Default)]
struct Mine(u64);

impl ParameterValue for Mine {
    const FUNCTION: &'static str = "ncclParamGetU64";
}

fn main() {}
