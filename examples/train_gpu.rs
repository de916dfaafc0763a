//! Trains a perceptron on GPUs, data-parallel, and measures how much of the communication the backward pass
//! hides.
//!
//! ```text
//! mpirun -np 2 cargo run --release --example train_gpu -- --width 4096 --layers 8 --batch 4096
//! ```
//!
//! Every rank has a batch of its own. Three loops run in turn, in several rounds: one that does not
//! communicate (`none`, whose replicas drift), one that averages all gradients after the backward pass
//! (`after`), and one that passes each gradient to the reducer as soon as it is queued (`overlap`). Needs
//! cuBLAS and NVRTC. `measurements/tools/train_ddp.py` does the same with PyTorch.
//!
//! With `--fail-at` the last rank ends itself before that step of the first loop, and the others go on
//! without it. Start the ranks with `NCCL_BENCH_RANK`, `_SIZE` and `_ADDR` then: `mpirun` ends all ranks of a
//! job that has lost one.

#![allow(clippy::disallowed_methods, reason = "an error ends the program")]

use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use clap::Parser;
use collectives::ReduceOp;
use collectives::job::{Backend, Group, Job};
use collectives::nccl::Library;
use collectives::train::{Parameter, Reducer, ReducerOptions, Wire};
use cudarc::cublas::{CudaBlas, Gemm as _, GemmConfig, sys as cublas};
use cudarc::driver::{CudaFunction, CudaSlice, CudaStream, LaunchConfig, PushKernelArg as _};
use cudarc::nvrtc::compile_ptx;

type Failure = Box<dyn std::error::Error>;

/// Trains on all GPUs of a job.
#[derive(Debug, Parser)]
struct Arguments {
    /// Neurons of a layer; its weights are a square matrix.
    #[arg(long, default_value_t = 2048)]
    width: usize,
    /// Layers.
    #[arg(long, default_value_t = 8)]
    layers: usize,
    /// Samples of each rank.
    #[arg(long, default_value_t = 2048)]
    batch: usize,
    /// Steps of each loop in a round.
    #[arg(long, default_value_t = 10)]
    steps: usize,
    /// Rounds; with 0, nothing is measured.
    #[arg(long, default_value_t = 7)]
    rounds: usize,
    /// Steps of the first loop, which prints the loss.
    #[arg(long, default_value_t = 5)]
    learn: usize,
    /// Send gradients as bfloat16.
    #[arg(long)]
    bf16: bool,
    /// Step of the first loop before which the last rank ends itself.
    #[arg(long)]
    fail_at: Option<usize>,
}

/// Number of partial sums of the loss: several, so that threads wait less for each other.
const SUMS: usize = 1024;

const KERNELS: &str = r#"
#define SUMS 1024
extern "C" __global__ void relu(float *x, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) x[i] = fmaxf(x[i], 0.0f);
}
extern "C" __global__ void relu_backward(float *d, const float *y, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n && y[i] <= 0.0f) d[i] = 0.0f;
}
extern "C" __global__ void loss(float *d, float *sum, const float *y, const float *target, float scale,
                                size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    float e = i < n ? y[i] - target[i] : 0.0f;
    if (i < n) d[i] = 2.0f * scale * e;
    float part = scale * e * e;
    for (int lanes = 16; lanes > 0; lanes /= 2) part += __shfl_down_sync(0xffffffff, part, lanes);
    if (threadIdx.x % 32 == 0) atomicAdd(sum + (blockIdx.x + threadIdx.x / 32) % SUMS, part);
}
extern "C" __global__ void descend(float *w, const float *g, float rate, size_t n) {
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    if (i < n) w[i] -= rate * g[i];
}
"#;

/// When gradients are communicated.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Communication {
    None,
    After,
    Overlap,
}

impl Communication {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::After => "after",
            Self::Overlap => "overlap",
        }
    }
}

struct Kernels {
    relu: CudaFunction,
    relu_backward: CudaFunction,
    loss: CudaFunction,
    descend: CudaFunction,
}

/// A perceptron with square layers, and what its passes compute.
struct Model {
    stream: Arc<CudaStream>,
    blas: CudaBlas,
    kernels: Kernels,
    width: usize,
    batch: usize,
    weights: Vec<CudaSlice<f32>>,
    gradients: Vec<CudaSlice<f32>>,
    /// The input, then each layer's output.
    outputs: Vec<CudaSlice<f32>>,
    /// The derivatives of the loss with respect to a layer's output, and to its input.
    derivatives: [CudaSlice<f32>; 2],
    target: CudaSlice<f32>,
    loss: CudaSlice<f32>,
}

impl Model {
    /// All ranks have the same weights, and each its own batch.
    fn new(stream: &Arc<CudaStream>, rank: usize, arguments: &Arguments) -> Result<Self, Failure> {
        let &Arguments { width, layers, batch, .. } = arguments;
        let module = stream.context().load_module(compile_ptx(KERNELS)?)?;
        let kernels = Kernels {
            relu: module.load_function("relu")?,
            relu_backward: module.load_function("relu_backward")?,
            loss: module.load_function("loss")?,
            descend: module.load_function("descend")?,
        };
        let blas = CudaBlas::new(Arc::clone(stream))?;
        // SAFETY: the handle is alive.
        unsafe {
            cublas::cublasSetMathMode(*blas.handle(), cublas::cublasMath_t::CUBLAS_TF32_TENSOR_OP_MATH)
        }
        .result()?;
        let scale = (6.0 / width as f32).sqrt();
        let matrix = |seed, count, scale| stream.clone_htod(&random(seed, count, scale));
        let many = |count| (0..layers).map(move |_| stream.alloc_zeros::<f32>(count));
        let mut outputs = vec![matrix(100 + rank as u64, batch * width, 1.0)?];
        outputs.extend(many(batch * width).collect::<Result<Vec<_>, _>>()?);
        Ok(Self {
            weights: (0..layers)
                .map(|layer| matrix(layer as u64, width * width, scale))
                .collect::<Result<_, _>>()?,
            gradients: many(width * width).collect::<Result<_, _>>()?,
            derivatives: [stream.alloc_zeros(batch * width)?, stream.alloc_zeros(batch * width)?],
            target: matrix(200 + rank as u64, batch * width, 0.1)?,
            loss: stream.alloc_zeros(SUMS)?,
            stream: Arc::clone(stream),
            blas,
            kernels,
            width,
            batch,
            outputs,
        })
    }

    /// Multiplies matrices that are stored by columns; `m x k` by `k x n`.
    fn multiply(
        blas: &CudaBlas,
        (transpose_a, transpose_b): (bool, bool),
        (m, n, k): (usize, usize, usize),
        a: &CudaSlice<f32>,
        b: &CudaSlice<f32>,
        c: &mut CudaSlice<f32>,
    ) -> Result<(), Failure> {
        let operation = |transposed| match transposed {
            true => cublas::cublasOperation_t::CUBLAS_OP_T,
            false => cublas::cublasOperation_t::CUBLAS_OP_N,
        };
        let config = GemmConfig {
            transa: operation(transpose_a),
            transb: operation(transpose_b),
            m: m as i32,
            n: n as i32,
            k: k as i32,
            alpha: 1.0,
            lda: if transpose_a { k } else { m } as i32,
            ldb: if transpose_b { n } else { k } as i32,
            beta: 0.0,
            ldc: m as i32,
        };
        // SAFETY: the matrices have these sizes.
        Ok(unsafe { blas.gemm(config, a, b, c) }?)
    }

    fn forward(&mut self) -> Result<(), Failure> {
        let (width, batch, last) = (self.width, self.batch, self.weights.len() - 1);
        for (layer, weights) in self.weights.iter().enumerate() {
            let (before, after) = self.outputs.split_at_mut(layer + 1);
            // A sample is a column, since matrices are stored by columns.
            Self::multiply(
                &self.blas,
                (false, false),
                (width, batch, width),
                weights,
                &before[layer],
                &mut after[0],
            )?;
            if layer < last {
                let count = width * batch;
                let mut launch = self.stream.launch_builder(&self.kernels.relu);
                launch.arg(&mut after[0]).arg(&count);
                // SAFETY: the kernel's arguments.
                unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;
            }
        }
        Ok(())
    }

    /// Computes the gradients, the last layer's first, and passes each on.
    fn backward(
        &mut self,
        mut ready: impl FnMut(usize, &CudaSlice<f32>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let (width, batch, layers) = (self.width, self.batch, self.weights.len());
        let (count, scale) = (width * batch, 1.0 / (width * batch) as f32);
        let each = LaunchConfig::for_num_elems(count as u32);
        self.stream.memset_zeros(&mut self.loss)?;
        let mut launch = self.stream.launch_builder(&self.kernels.loss);
        launch.arg(&mut self.derivatives[0]).arg(&mut self.loss).arg(&self.outputs[layers]).arg(&self.target);
        launch.arg(&scale).arg(&count);
        // SAFETY: the kernel's arguments.
        unsafe { launch.launch(each) }?;
        for layer in (0..layers).rev() {
            let [by_output, by_input] = &mut self.derivatives;
            let (input, gradient) = (&self.outputs[layer], &mut self.gradients[layer]);
            Self::multiply(&self.blas, (false, true), (width, width, batch), by_output, input, gradient)?;
            ready(layer, gradient)?;
            if layer > 0 {
                let weights = &self.weights[layer];
                Self::multiply(
                    &self.blas,
                    (true, false),
                    (width, batch, width),
                    weights,
                    by_output,
                    by_input,
                )?;
                let mut launch = self.stream.launch_builder(&self.kernels.relu_backward);
                launch.arg(&mut *by_input).arg(input).arg(&count);
                // SAFETY: the kernel's arguments.
                unsafe { launch.launch(each) }?;
                self.derivatives.swap(0, 1);
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        reducer: &mut Reducer<CudaSlice<f32>>,
        number: u64,
        mode: Communication,
    ) -> Result<(), Failure> {
        self.forward()?;
        match mode {
            Communication::None => self.backward(|_, _| Ok(()))?,
            Communication::After => {
                self.backward(|_, _| Ok(()))?;
                let mut step = reducer.step(number)?;
                for (layer, gradient) in self.gradients.iter().enumerate().rev() {
                    // The first one waits for the whole backward pass.
                    step.ready(layer, gradient.as_view())?;
                }
                step.wait()?;
            }
            Communication::Overlap => {
                let mut step = reducer.step(number)?;
                self.backward(|layer, gradient| Ok(step.ready(layer, gradient.as_view())?))?;
                step.wait()?;
            }
        }
        let (count, rate) = (self.width * self.width, 0.01_f32);
        for (layer, weights) in self.weights.iter_mut().enumerate() {
            let own = self.gradients[layer].as_view();
            let gradient = if mode == Communication::None { own } else { reducer.gradient(layer)? };
            let mut launch = self.stream.launch_builder(&self.kernels.descend);
            launch.arg(weights).arg(&gradient).arg(&rate).arg(&count);
            // SAFETY: the kernel's arguments.
            unsafe { launch.launch(LaunchConfig::for_num_elems(count as u32)) }?;
        }
        Ok(())
    }

    fn loss(&self) -> Result<f32, Failure> {
        Ok(self.stream.clone_dtoh(&self.loss)?.iter().sum())
    }
}

/// Uniform numbers around 0.
fn random(seed: u64, count: usize, scale: f32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let next = |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale
    };
    (0..count).map(next).collect()
}

/// Milliseconds of a step in one loop: the time of the slowest rank.
fn measure(
    model: &mut Model,
    reducer: &mut Reducer<CudaSlice<f32>>,
    group: &Group,
    mode: Communication,
    numbers: Range<u64>,
) -> Result<f64, Failure> {
    model.stream.synchronize()?;
    group.barrier()?;
    let start = Instant::now();
    let steps = numbers.end - numbers.start;
    for number in numbers {
        model.step(reducer, number, mode)?;
    }
    model.stream.synchronize()?;
    let mut slowest = [start.elapsed().as_secs_f64() * 1e3 / steps as f64];
    group.all_reduce_in_place(&mut slowest, ReduceOp::Max)?;
    Ok(slowest[0])
}

/// A group of all ranks of a job on this rank's GPU, and the reducer of a model.
struct Replica {
    job: Job,
    group: Group,
    reducer: Reducer<CudaSlice<f32>>,
}

impl Replica {
    fn new(job: Job, group: Group, arguments: &Arguments) -> Result<Self, Failure> {
        let shape = [arguments.width, arguments.width];
        let parameters: Vec<_> =
            (0..arguments.layers).map(|layer| Parameter::new(format!("layer {layer}"), shape)).collect();
        let wire = if arguments.bf16 { Wire::Bf16 } else { Wire::Same };
        let reducer = Reducer::new(&group, &parameters, &ReducerOptions::default().wire(wire))?;
        Ok(Self { job, group, reducer })
    }

    /// Step `number`, and the mean loss of all ranks.
    fn learn(&mut self, model: &mut Model, number: u64) -> Result<f32, Failure> {
        model.step(&mut self.reducer, number, Communication::Overlap)?;
        let mut loss = [model.loss()?];
        self.group.all_reduce_in_place(&mut loss, ReduceOp::Avg)?;
        Ok(loss[0])
    }

    /// Goes on with the ranks that are left.
    fn shrink(self, model: &Model, arguments: &Arguments) -> Result<Self, Failure> {
        let job = self.job.shrink()?;
        drop((self.reducer, self.group));
        let group = job.group_on_gpu(Library::load()?, model.stream.context())?;
        Self::new(job, group, arguments)
    }
}

/// The first loop, which loses a rank if that is asked for.
fn learn(mut replica: Replica, model: &mut Model, arguments: &Arguments) -> Result<Replica, Failure> {
    for step in 0..arguments.learn {
        let (rank, size) = (replica.job.rank(), replica.job.size());
        if arguments.fail_at == Some(step) && size > 1 && rank == size - 1 {
            // SAFETY: a signal to this process.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        }
        // A step that fails may have changed some weights.
        let before = model.weights.clone();
        let since = Instant::now();
        let loss = match replica.learn(model, step as u64) {
            Ok(loss) => loss,
            Err(failure) => {
                eprintln!("step {step}: {failure}");
                replica = replica.shrink(model, arguments)?;
                model.weights = before;
                let loss = replica.learn(model, step as u64)?;
                println!(
                    "step {step}: {:.2} s later on {} ranks",
                    since.elapsed().as_secs_f64(),
                    replica.job.size()
                );
                loss
            }
        };
        if replica.job.rank() == 0 {
            println!("step {step}: loss {loss:.6} on {} ranks", replica.job.size());
        }
    }
    Ok(replica)
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let job = Job::from_environment()?;
    let group = job.group(Backend::Gpu)?;
    let stream = group.context().ok_or("no GPU")?.new_stream()?;
    let mut model = Model::new(&stream, job.rank(), &arguments)?;
    let replica = Replica::new(job, group, &arguments)?;
    let Replica { job, group, mut reducer } = learn(replica, &mut model, &arguments)?;

    let modes = [Communication::None, Communication::After, Communication::Overlap];
    let mut times = modes.map(|_| Vec::new());
    let mut next = arguments.learn as u64;
    for _ in 0..arguments.rounds {
        for (mode, times) in modes.into_iter().zip(&mut times) {
            let numbers = next..next + arguments.steps as u64;
            next = numbers.end;
            times.push(measure(&mut model, &mut reducer, &group, mode, numbers)?);
        }
    }
    if job.rank() == 0 && arguments.rounds > 0 {
        let megabytes = arguments.layers * arguments.width * arguments.width * 4 / 1_000_000;
        println!("{}; {megabytes} MB of gradients in {} buckets", group.describe(), reducer.buckets());
        let median = |times: &mut Vec<f64>| {
            times.sort_by(f64::total_cmp);
            times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
        };
        let [none, after, overlap] = times.each_mut().map(median);
        for (mode, time) in modes.into_iter().zip([none, after, overlap]) {
            let exposed = (time - none) / time * 100.0;
            println!(
                "{:<8} {time:8.3} ms per step, {exposed:5.1} % of it exposed communication",
                mode.name()
            );
        }
    }
    Ok(())
}
