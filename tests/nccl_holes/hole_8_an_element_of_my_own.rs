// E0277

use collectives::{DataType, Element};

#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Byte(u8);

unsafe impl Element for Byte {
    const DATA_TYPE: DataType = DataType::Float64;
}

fn main() {}
