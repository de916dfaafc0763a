//! Test data on a GPU: the kernels, compiled by the driver, agree with the host's implementation.

#![allow(clippy::unwrap_used, reason = "all of this is tests, though not marked as such")]
#![allow(clippy::disallowed_methods, reason = "an error ends the test")]

#[path = "../../../tests/gpu/mod.rs"]
mod gpu;

use std::ops::{Add, Mul};
use std::sync::Arc;
use std::time::{Duration, Instant};

use collectives::DataType;
use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr as _};
use engine::data::{self, DataSpec, DeviceData, ExpectedSegment, Mismatches, Op, Tally};
use float8::{F8E4M3, F8E5M2};
use half::{bf16, f16};

fn main() {
    let mut tests = gpu::tests! {
        1 => [
            device_fills_what_the_host_fills,
            device_accepts_what_the_host_reduced_and_finds_each_corrupted_element,
            device_checks_averages_as_the_host_does,
            device_counts_many_wrong_elements_and_gives_the_first,
            several_checks_add_up_until_they_are_cleared,
            a_kernel_that_triggers_early_inverts_every_byte,
            bad_buffers_are_errors,
        ],
    };
    // A measurement, not a test: only when asked for.
    tests.push(gpu::test("throughput", 1, throughput).with_ignored_flag(true));
    gpu::run(tests);
}

/// A buffer on the device, at an offset to the allocation's alignment, between guard bytes.
struct Buffer {
    stream: Arc<CudaStream>,
    memory: CudaSlice<u8>,
    offset: usize,
    length: usize,
}

const GUARD: u8 = 0xa5;

impl Buffer {
    fn new(context: &Arc<CudaContext>, offset: usize, length: usize) -> Self {
        let stream = context.new_stream().unwrap();
        let memory = stream.clone_htod(&vec![GUARD; offset + length + 32]).unwrap();
        Self { stream, memory, offset, length }
    }

    fn address(&self) -> CUdeviceptr {
        self.memory.device_ptr(&self.stream).0 + self.offset as u64
    }

    fn fill(&self, data: &mut DeviceData, spec: &DataSpec, rank: u32, first_index: u64) {
        let (address, length) = (self.address(), self.length as u64);
        // SAFETY: the memory of this buffer, used on its stream only.
        unsafe { data.fill_buffer(&self.stream, spec, rank, first_index, address, length) }.unwrap();
    }

    fn check(
        &self,
        data: &mut DeviceData,
        spec: &DataSpec,
        segments: &[ExpectedSegment],
    ) -> anyhow::Result<Mismatches> {
        // SAFETY: the memory of this buffer, initialised, used on its stream only.
        unsafe { data.check_buffer(&self.stream, spec, segments, self.address(), self.length as u64) }
    }

    /// Reads the buffer, and asserts that the guards are unchanged.
    fn read(&self) -> Vec<u8> {
        let bytes = self.stream.clone_dtoh(&self.memory).unwrap();
        self.stream.synchronize().unwrap();
        let (before, rest) = bytes.split_at(self.offset);
        let (inside, behind) = rest.split_at(self.length);
        assert!(before.iter().chain(behind).all(|&byte| byte == GUARD), "wrote outside of the buffer");
        inside.to_vec()
    }

    fn write(&mut self, position: usize, bytes: &[u8]) {
        let start = self.offset + position;
        let mut view = self.memory.slice_mut(start..start + bytes.len());
        self.stream.memcpy_htod(bytes, &mut view).unwrap();
        self.stream.synchronize().unwrap();
    }
}

const RANKS: [u32; 7] = [1, 2, 3, 8, 17, 300, 1025];

/// Every type and operator, with every number of ranks.
fn problems(ops: &[Option<Op>]) -> Vec<DataSpec> {
    let mut all = Vec::new();
    for data_type in DataType::ALL {
        for &op in ops {
            all.extend(RANKS.map(|ranks| DataSpec { seed: 77, ranks, op, data_type }));
        }
    }
    all
}

/// The low bytes of an element's bits.
fn element(bits: u64, data_type: DataType) -> Vec<u8> {
    bits.to_le_bytes()[..data_type.size()].to_vec()
}

/// The bits of an element's bytes.
fn bits(element: &[u8]) -> u64 {
    element.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte))
}

/// Reduces the inputs of all ranks on the host, in the order of the ranks.
fn reduced(spec: &DataSpec, first_index: u64, count: usize) -> Vec<u8> {
    macro_rules! reduce {
        ($type:ty, $add:expr, $multiply:expr, $load:expr, $store:expr) => {{
            let combine = |left: $type, right: $type| match spec.op {
                Some(Op::Sum | Op::MulSum) => $add(left, right),
                Some(Op::Prod) => $multiply(left, right),
                Some(Op::Max) => {
                    if left > right {
                        left
                    } else {
                        right
                    }
                }
                Some(Op::Min) => {
                    if left < right {
                        left
                    } else {
                        right
                    }
                }
                _ => unreachable!(),
            };
            let inputs = |rank| {
                let mut bytes = vec![0; count * size_of::<$type>()];
                data::fill_input(spec, rank, first_index, &mut bytes).unwrap();
                let doubled = spec.op == Some(Op::MulSum) && Op::scale_of(rank) == 2.0;
                let value = |element: &[u8]| {
                    let value = $load(element);
                    if doubled { $add(value, value) } else { value }
                };
                bytes.chunks_exact(size_of::<$type>()).map(value).collect::<Vec<_>>()
            };
            let mut all = inputs(0);
            for rank in 1..spec.ranks {
                for (left, right) in all.iter_mut().zip(inputs(rank)) {
                    *left = combine(*left, right);
                }
            }
            all.iter().flat_map($store).collect()
        }};
        ($type:ty, $add:expr, $multiply:expr) => {
            reduce!(
                $type,
                $add,
                $multiply,
                |element: &[u8]| <$type>::from_ne_bytes(element.try_into().unwrap()),
                |value: &$type| value.to_ne_bytes()
            )
        };
    }
    match spec.data_type {
        DataType::Int8 => reduce!(i8, i8::wrapping_add, i8::wrapping_mul),
        DataType::Uint8 => reduce!(u8, u8::wrapping_add, u8::wrapping_mul),
        DataType::Int32 => reduce!(i32, i32::wrapping_add, i32::wrapping_mul),
        DataType::Uint32 => reduce!(u32, u32::wrapping_add, u32::wrapping_mul),
        DataType::Int64 => reduce!(i64, i64::wrapping_add, i64::wrapping_mul),
        DataType::Uint64 => reduce!(u64, u64::wrapping_add, u64::wrapping_mul),
        DataType::Float16 => reduce!(f16, f16::add, f16::mul),
        DataType::Bfloat16 => reduce!(bf16, bf16::add, bf16::mul),
        DataType::Float32 => reduce!(f32, f32::add, f32::mul),
        DataType::Float64 => reduce!(f64, f64::add, f64::mul),
        DataType::Float8E4M3 => reduce!(
            F8E4M3,
            |left: F8E4M3, right: F8E4M3| F8E4M3::from_f32(left.to_f32() + right.to_f32()),
            |left: F8E4M3, right: F8E4M3| F8E4M3::from_f32(left.to_f32() * right.to_f32()),
            |element: &[u8]| F8E4M3::from_bits(element[0]),
            |value: &F8E4M3| [value.to_bits()]
        ),
        DataType::Float8E5M2 => reduce!(
            F8E5M2,
            |left: F8E5M2, right: F8E5M2| F8E5M2::from_f32(left.to_f32() + right.to_f32()),
            |left: F8E5M2, right: F8E5M2| F8E5M2::from_f32(left.to_f32() * right.to_f32()),
            |element: &[u8]| F8E5M2::from_bits(element[0]),
            |value: &F8E5M2| [value.to_bits()]
        ),
        _ => unreachable!(),
    }
}

fn device_fills_what_the_host_fills() {
    let context = CudaContext::new(0).unwrap();
    let mut data = DeviceData::new(&context).unwrap();
    let ops: Vec<_> = [None].into_iter().chain(Op::ALL.map(Some)).collect();
    for spec in problems(&ops) {
        let size = spec.data_type.size();
        // Buffers at every element boundary of an 8-byte word, with partial words at both ends.
        for lead in 0..8 / size {
            let count = 4099 + lead;
            let rank = lead as u32 % spec.ranks;
            let first_index = (1 << 32) - 100;
            let buffer = Buffer::new(&context, 256 + lead * size, count * size);
            buffer.fill(&mut data, &spec, rank, first_index);
            let mut expected = vec![0; count * size];
            data::fill_input(&spec, rank, first_index, &mut expected).unwrap();
            assert!(buffer.read() == expected, "{spec:?}, rank {rank}");
            let segments = [ExpectedSegment::copied(rank, first_index, count as u64)];
            assert_eq!(buffer.check(&mut data, &spec, &segments).unwrap(), Mismatches::default());
        }
    }
}

fn device_accepts_what_the_host_reduced_and_finds_each_corrupted_element() {
    let context = CudaContext::new(0).unwrap();
    let mut data = DeviceData::new(&context).unwrap();
    let exact = [Op::Sum, Op::Prod, Op::Max, Op::Min, Op::MulSum].map(Some);
    for spec in problems(&exact) {
        let count = 1003;
        let right = reduced(&spec, 5, count);
        let size = spec.data_type.size();
        let mut buffer = Buffer::new(&context, size, count * size);
        buffer.write(0, &right);
        let segments = [
            ExpectedSegment::reduced(5, 3),
            ExpectedSegment::reduced(8, 0),
            ExpectedSegment::reduced(8, count as u64 - 3),
        ];
        let found = buffer.check(&mut data, &spec, &segments).unwrap();
        assert_eq!(found, Mismatches::default(), "{spec:?}");
        for index in [0, 1, 2, 3, 500, count - 2, count - 1] {
            let element = &right[index * size..][..size];
            let mut spoilt = element.to_vec();
            spoilt[size - 1] ^= 0x10;
            buffer.write(index * size, &spoilt);
            let found = buffer.check(&mut data, &spec, &segments).unwrap();
            let first = found.first.unwrap();
            assert_eq!((found.wrong, first.index), (1, index as u64), "{spec:?}");
            let values = (bits(element), bits(&spoilt));
            assert_eq!((first.expected_bits, first.found_bits), values, "{spec:?}");
            buffer.write(index * size, element);
        }
    }
}

fn device_checks_averages_as_the_host_does() {
    let context = CudaContext::new(0).unwrap();
    let mut data = DeviceData::new(&context).unwrap();
    for spec in problems(&[Some(Op::Avg)]) {
        let DataSpec { data_type, .. } = spec;
        let size = data_type.size();
        let count = 999;
        // The host says what it expects when it is asked about zeros: no float average is near zero.
        let expected = |index| {
            let zero = element(0, data_type);
            let found = data::check(&spec, &[ExpectedSegment::reduced(index, 1)], &zero).unwrap();
            found.first.map_or(0, |first| first.expected_bits)
        };
        let right: Vec<u8> = (0..count).flat_map(|index| element(expected(index), data_type)).collect();
        let mut buffer = Buffer::new(&context, 0, right.len());
        let segments = [ExpectedSegment::reduced(0, count)];
        buffer.write(0, &right);
        let found = buffer.check(&mut data, &spec, &segments).unwrap();
        assert_eq!(found, Mismatches::default(), "{spec:?}");
        let tolerance = spec.bit_tolerance().unwrap();
        for index in [0, 40, 998] {
            for (difference, wrong) in [(tolerance, 0), (tolerance + 1, 1)] {
                let right_bits = expected(index);
                // Away from where the low byte would overflow.
                let add = right_bits & 0x80 == 0;
                let spoilt = if add { right_bits + difference } else { right_bits - difference };
                let mut changed = right.clone();
                changed[index as usize * size..][..size].copy_from_slice(&element(spoilt, data_type));
                buffer.write(0, &changed);
                let found = buffer.check(&mut data, &spec, &segments).unwrap();
                assert_eq!(found, data::check(&spec, &segments, &changed).unwrap(), "{spec:?}");
                assert_eq!(found.wrong, wrong, "{spec:?}");
            }
        }
    }
}

fn device_counts_many_wrong_elements_and_gives_the_first() {
    let context = CudaContext::new(0).unwrap();
    let mut data = DeviceData::new(&context).unwrap();
    let count = 3_000_001;
    for data_type in [DataType::Uint8, DataType::Float32, DataType::Float64] {
        let spec = DataSpec { seed: 1, ranks: 8, op: None, data_type };
        let size = data_type.size();
        let mut buffer = Buffer::new(&context, size, count * size);
        buffer.fill(&mut data, &spec, 3, 0);
        let mut bytes = buffer.read();
        for index in [17, 4096, 1_000_003, 2_999_999, 3_000_000] {
            bytes[index * size] ^= 0xff;
        }
        buffer.write(0, &bytes);
        let segments = [ExpectedSegment::copied(3, 0, count as u64)];
        let found = buffer.check(&mut data, &spec, &segments).unwrap();
        assert_eq!((found.wrong, found.first.unwrap().index), (5, 17));
        assert_eq!(found, data::check(&spec, &segments, &bytes).unwrap());
        // Another rank's data: nearly everything is wrong.
        let segments = [ExpectedSegment::copied(4, 0, count as u64)];
        let found = buffer.check(&mut data, &spec, &segments).unwrap();
        assert_eq!(found, data::check(&spec, &segments, &bytes).unwrap());
        assert!(found.wrong > count as u64 * 98 / 100);
    }
}

fn several_checks_add_up_until_they_are_cleared() {
    let context = CudaContext::new(0).unwrap();
    let mut data = DeviceData::new(&context).unwrap();
    let spec = DataSpec { seed: 5, ranks: 2, op: None, data_type: DataType::Uint64 };
    let mut buffer = Buffer::new(&context, 0, 1000 * 8);
    buffer.fill(&mut data, &spec, 0, 0);
    let segments = [ExpectedSegment::copied(0, 0, 1000)];
    let tally = |data: &mut DeviceData, buffer: &Buffer, checks: usize| {
        for _ in 0..checks {
            // SAFETY: the memory of this buffer, initialised, used on its stream only.
            unsafe { data.count_wrong(&buffer.stream, &spec, &segments, buffer.address(), 8000) }.unwrap();
        }
        data.read_tally(&buffer.stream).unwrap()
    };
    data.clear_findings(&buffer.stream).unwrap();
    assert_eq!(tally(&mut data, &buffer, 3), None);
    let right = buffer.read();
    let spoil = |buffer: &mut Buffer, index: usize| buffer.write(index * 8, &[right[index * 8] ^ 1]);
    spoil(&mut buffer, 900);
    assert_eq!(tally(&mut data, &buffer, 2), Some(Tally { wrong: 2, lowest: 900 }));
    spoil(&mut buffer, 17);
    assert_eq!(tally(&mut data, &buffer, 1), Some(Tally { wrong: 4, lowest: 17 }));
    data.clear_findings(&buffer.stream).unwrap();
    assert_eq!(tally(&mut data, &buffer, 0), None);
    assert_eq!(tally(&mut data, &buffer, 1), Some(Tally { wrong: 2, lowest: 17 }));
}

fn a_kernel_that_triggers_early_inverts_every_byte() {
    let context = CudaContext::new(0).unwrap();
    let mut data = DeviceData::new(&context).unwrap();
    if !data.triggers_early {
        assert!(data.load_invert().is_err(), "the driver loads a kernel that the GPU cannot run");
        return;
    }
    data.load_invert().unwrap();
    let delay = Duration::from_millis(2);
    for (offset, length) in [(0, 8), (3, 1), (1, 6), (5, 11), (8, 4096), (7, 3_000_001), (2, 70_000_000)] {
        let mut buffer = Buffer::new(&context, offset, length);
        let before: Vec<u8> = (0..length).map(|index| (index * 7 % 251) as u8).collect();
        buffer.write(0, &before);
        let inverted: Vec<u8> = before.iter().map(|byte| !byte).collect();
        for (early, expected) in
            [(None, &inverted), (Some(Duration::ZERO), &before), (Some(delay), &inverted)]
        {
            let start = Instant::now();
            // SAFETY: the memory of this buffer, used on its stream only.
            unsafe { data.invert_bits(&buffer.stream, buffer.address(), length as u64, early) }.unwrap();
            buffer.stream.synchronize().unwrap();
            assert!(start.elapsed() >= early.unwrap_or_default() / 2, "{:?}", start.elapsed());
            assert!(buffer.read() == *expected, "{length} bytes at {offset}, {early:?}");
        }
    }
}

fn bad_buffers_are_errors() {
    let context = CudaContext::new(0).unwrap();
    let mut data = DeviceData::new(&context).unwrap();
    let spec = DataSpec { seed: 1, ranks: 2, op: None, data_type: DataType::Float32 };
    let buffer = Buffer::new(&context, 2, 8);
    let mut check = |count| {
        buffer.check(&mut data, &spec, &[ExpectedSegment::copied(0, 0, count)]).unwrap_err().to_string()
    };
    let (unaligned, short) = (check(2), check(3));
    assert!(unaligned.contains("is not aligned to its elements of 4 bytes"), "{unaligned}");
    assert!(short.contains("has 8 bytes, but must have 12"), "{short}");
}

/// Prints how fast the kernels are: `cargo test --release --test gpu_data -- --ignored --nocapture`.
fn throughput() {
    let context = CudaContext::new(0).unwrap();
    let mut data = DeviceData::new(&context).unwrap();
    let bytes = 1 << 30;
    let buffer = Buffer::new(&context, 0, bytes);
    for data_type in DataType::ALL {
        for op in [None].into_iter().chain(Op::ALL.map(Some)) {
            let spec = DataSpec { seed: 77, ranks: 8, op, data_type };
            let count = (bytes / data_type.size()) as u64;
            let segment = if op.is_some() {
                ExpectedSegment::reduced(0, count)
            } else {
                ExpectedSegment::copied(0, 0, count)
            };
            let mut seconds = [f64::INFINITY; 2];
            for _ in 0..3 {
                let start = Instant::now();
                buffer.fill(&mut data, &spec, 0, 0);
                buffer.stream.synchronize().unwrap();
                seconds[0] = seconds[0].min(start.elapsed().as_secs_f64());
                let start = Instant::now();
                buffer.check(&mut data, &spec, &[segment]).unwrap();
                seconds[1] = seconds[1].min(start.elapsed().as_secs_f64());
            }
            let [fill, check] = seconds.map(|seconds| bytes as f64 / seconds / 1e9);
            let name = op.map_or("copy", Op::operator_name);
            println!("{data_type:>8} {name:>4}: fill {fill:6.0} GB/s, check {check:6.0} GB/s");
        }
    }
}
