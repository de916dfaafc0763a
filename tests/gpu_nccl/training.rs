//! Averages of gradients and sharded optimizers, against results computed on the host.

use std::sync::Arc;

use collectives::half::{bf16, f16};
use collectives::job::Group;
use collectives::train::{Gradient, Parameter, Reducer, ReducerOptions, Wire, Zero1};
use collectives::{Error, ReduceOp};
use cudarc::driver::{CudaSlice, CudaStream, DeviceRepr, ValidAsZeroBits};

use crate::gpus::Gpus;
use crate::jobs::on_groups;

const LENS: [usize; 6] = [1_000_003, 7, 300_000, 1, 4096, 129];
const STEPS: usize = 6;

fn parameters() -> Vec<Parameter> {
    LENS.iter().enumerate().map(|(index, &len)| Parameter::new(format!("p{index}"), [len])).collect()
}

/// Several buckets for [`LENS`].
fn options() -> ReducerOptions {
    ReducerOptions::default().first_bucket_bytes(10_000).bucket_bytes(500_000)
}

/// Whole numbers, whose sums are exact.
fn value(rank: usize, step: usize, index: usize, element: usize) -> f32 {
    ((rank + 1) * (step + 1) + (index + 3 * element) % 101) as f32
}

fn gradient(rank: usize, step: usize, index: usize) -> Vec<f32> {
    (0..LENS[index]).map(|element| value(rank, step, index, element)).collect()
}

/// The mean of the ranks' gradients, and how exact an average of single precision is.
fn assert_mean(found: &[f32], ranks: usize, step: usize, index: usize) {
    assert_eq!(found.len(), LENS[index]);
    for (element, &found) in found.iter().enumerate() {
        let sum: f32 = (0..ranks).map(|rank| value(rank, step, index, element)).sum();
        let mean = sum / ranks as f32;
        assert!((found - mean).abs() <= mean * 1e-6, "step {step}, parameter {index}: {found}, not {mean}");
    }
}

fn gradients(stream: &Arc<CudaStream>, rank: usize, step: usize) -> Vec<CudaSlice<f32>> {
    (0..LENS.len()).map(|index| stream.clone_htod(&gradient(rank, step, index)).unwrap()).collect()
}

fn compute(group: &Group) -> Arc<CudaStream> {
    group.context().unwrap().new_stream().unwrap()
}

/// Gradients become ready in another order on each rank, and are freed at once.
pub(crate) fn averages() {
    on_groups(Gpus::all(), |group| {
        let (rank, ranks, stream) = (group.rank(), group.size(), compute(group));
        let mut reducer: Reducer<CudaSlice<f32>> = Reducer::new(group, &parameters(), &options()).unwrap();
        assert!(reducer.buckets() > 2);
        for step in 0..STEPS {
            let mut current = reducer.step(step as u64).unwrap();
            for place in 0..LENS.len() {
                let index = (place + rank + step) % LENS.len();
                let gradient = stream.clone_htod(&gradient(rank, step, index)).unwrap();
                current.ready(index, gradient.as_view()).unwrap();
            }
            current.wait().unwrap();
            for index in 0..LENS.len() {
                let average = stream.clone_dtoh(&reducer.gradient(index).unwrap()).unwrap();
                assert_mean(&average, ranks, step, index);
            }
        }
        let mut mine = gradients(&stream, rank, 1);
        let mut views: Vec<_> = mine.iter_mut().map(|gradient| gradient.as_view_mut()).collect();
        reducer.average(STEPS as u64, &mut views).unwrap();
        for (index, average) in mine.iter().enumerate() {
            assert_mean(&stream.clone_dtoh(average).unwrap(), ranks, 1, index);
        }
    });
}

/// The maximum of equal gradients is the gradient itself, rounded to the nearest bfloat16.
pub(crate) fn gradients_that_travel_as_bfloat16() {
    on_groups(Gpus::all(), |group| {
        // Ties, their neighbours, the largest numbers, subnormal ones, and many others.
        let special =
            [0x3f80_8000, 0x3f81_8000, 0x3f80_8001, 0x7f7f_ffff, 0x0000_8000, 0x0001_8000, 0x7f80_0000];
        let special = special.into_iter().flat_map(|bits: u32| [bits, bits | 1 << 31]).map(f32::from_bits);
        let others = (0..3_000_000_u32).map(|index| f32::from_bits(index.wrapping_mul(0x9e37_79b9)));
        let singles: Vec<f32> = special.chain(others).filter(|value| !value.is_nan()).collect();
        let widened = |value: bf16| value.to_f32();
        check_rounding(group, &singles, bf16::from_f32, widened);

        // Slightly larger ones, which are ties if they are first rounded to single precision. An odd number
        // is no tie.
        let doubles: Vec<f64> = singles.iter().map(|&value| f64::from(value) * (1.0 + 1e-12)).collect();
        let round = |value: f64| {
            let single = value as f32;
            let is_exact = f64::from(single) == value;
            bf16::from_f32(f32::from_bits(single.to_bits() | u32::from(!is_exact)))
        };
        check_rounding(group, &doubles, round, |value| value.to_f64());

        let halves: Vec<f16> = (0..u16::MAX).map(f16::from_bits).filter(|value| !value.is_nan()).collect();
        let to_half = |value: bf16| f16::from_f32(value.to_f32());
        check_rounding(group, &halves, |value| bf16::from_f32(value.to_f32()), to_half);

        let found = reduce_as_bfloat16(group, &[f32::NAN, -f32::NAN]);
        assert!(found.iter().all(|value| value.is_nan()), "{found:?}");
    });
}

fn reduce_as_bfloat16<T: Gradient + DeviceRepr + ValidAsZeroBits>(group: &Group, gradient: &[T]) -> Vec<T> {
    let stream = compute(group);
    let options = ReducerOptions::default().wire(Wire::Bf16).op(ReduceOp::Max);
    let mut reducer: Reducer<CudaSlice<T>> =
        Reducer::new(group, &[Parameter::new("p", [gradient.len()])], &options).unwrap();
    let mut step = reducer.step(0).unwrap();
    step.ready(0, stream.clone_htod(gradient).unwrap().as_view()).unwrap();
    step.wait().unwrap();
    stream.clone_dtoh(&reducer.gradient(0).unwrap()).unwrap()
}

fn check_rounding<T: Gradient + DeviceRepr + ValidAsZeroBits + PartialEq>(
    group: &Group,
    gradient: &[T],
    round: impl Fn(T) -> bf16,
    widen: impl Fn(bf16) -> T,
) {
    let found = reduce_as_bfloat16(group, gradient);
    assert_eq!(found.len(), gradient.len());
    for (&found, &value) in found.iter().zip(gradient) {
        let expected = widen(round(value));
        assert!(found == expected, "{value:?}: {found:?}, not {expected:?}");
    }
}

/// The update replaces parameters by averaged gradients, each rank those of its shard.
pub(crate) fn sharded_steps() {
    on_groups(Gpus::all(), |group| {
        let (rank, ranks, stream) = (group.rank(), group.size(), compute(group));
        let mut zero: Zero1<CudaSlice<f32>> = Zero1::new(group, &parameters(), &options()).unwrap();
        assert_eq!(zero.shard_len(), LENS.iter().sum::<usize>().div_ceil(ranks));
        let mut model = gradients(&stream, 0, 0);
        let mut expected: Vec<f32> = (0..LENS.len()).flat_map(|index| gradient(0, 0, index)).collect();
        for step in 0..STEPS {
            let mine = gradients(&stream, rank, step);
            let views: Vec<_> = mine.iter().map(|gradient| gradient.as_view()).collect();
            let mut targets: Vec<_> = model.iter_mut().map(|parameter| parameter.as_view_mut()).collect();
            let own = zero.shard();
            zero.step(step as u64, &views, &mut targets, |mut shard, gradients| {
                let before = stream.clone_dtoh(&shard).unwrap();
                assert!(before[..own.len()] == expected[own.clone()], "step {step}");
                stream.memcpy_dtod(&gradients, &mut shard)?;
                Ok(())
            })
            .unwrap();
            expected.clear();
            for (index, parameter) in model.iter().enumerate() {
                let found = stream.clone_dtoh(parameter).unwrap();
                assert_mean(&found, ranks, step, index);
                expected.extend(found);
            }
        }
    });
}

/// The last rank leaves out step 2. Its next step has the same lengths as that of the others.
pub(crate) fn a_rank_that_leaves_out_a_step() {
    on_groups(Gpus::all(), |group| {
        let (last, stream) = (group.size() - 1, compute(group));
        let mut reducer: Reducer<CudaSlice<f32>> = Reducer::new(group, &parameters(), &options()).unwrap();
        let mine = gradients(&stream, group.rank(), 0);
        let steps = if group.rank() == last { [0, 1, 3] } else { [0, 1, 2] };
        let checks = steps.map(|number| {
            let mut step = reducer.step(number).unwrap();
            for (index, gradient) in mine.iter().enumerate() {
                step.ready(index, gradient.as_view())?;
            }
            step.wait()?;
            stream.synchronize()?;
            group.check()
        });
        let [Ok(()), Ok(()), Err(error)] = &checks else { panic!("{checks:?}") };
        let Error::Mismatch { rank: 0, called, peer, peer_called: Some(other) } = error else {
            panic!("{error:?}")
        };
        assert!(*peer == last && called.ends_with("in step 2") && other.ends_with("in step 3"), "{error}");
    });
}
