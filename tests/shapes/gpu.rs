//! Memory of GPUs.

use std::sync::Arc;

use collectives::Error;
use collectives::job::{Backend, Group, Work};
use collectives::train::{Parameter, Reducer, ReducerOptions};
use cudarc::driver::{CudaSlice, CudaStream, result};

use super::{Memory, Value};

/// Memory of a stream. Results are used on another one.
pub(crate) struct Gpu {
    memory: Arc<CudaStream>,
    results: Arc<CudaStream>,
}

impl Memory for Gpu {
    type Of<T: Value> = CudaSlice<T>;

    /// Memory of the group's stream, and of another one.
    fn all(group: &Group) -> Vec<Self> {
        assert_eq!(group.backend(), Backend::Gpu);
        let results = group.context().unwrap().new_stream().unwrap();
        let streams = [Arc::clone(group.stream().unwrap()), Arc::clone(&results)];
        streams.map(|memory| Self { memory, results: Arc::clone(&results) }).into()
    }

    fn upload<T: Value>(&self, values: &[T]) -> CudaSlice<T> {
        self.memory.clone_htod(values).unwrap()
    }

    fn download<T: Value>(&self, buffer: &CudaSlice<T>) -> Vec<T> {
        // A copy to pageable memory would hold the context's lock while it waits, and the operation of
        // another thread, for which another rank waits, could not begin.
        self.results.context().bind_to_thread().unwrap();
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.results.cu_stream()) }.unwrap();
        self.results.clone_dtoh(buffer).unwrap()
    }

    fn finish<B>(&self, work: Work<B>) -> Result<B, Error> {
        if Arc::ptr_eq(&self.memory, &self.results) { work.wait_on(&self.results) } else { work.wait() }
    }

    fn train(
        group: &Group,
        lens: &[usize],
        steps: usize,
        gradient: &dyn Fn(usize, usize) -> Vec<f32>,
        average: &dyn Fn(usize, usize, Vec<f32>),
    ) {
        let parameters: Vec<_> = lens.iter().map(|&len| Parameter::new(format!("p{len}"), [len])).collect();
        let options = ReducerOptions::default().first_bucket_bytes(400).bucket_bytes(4000);
        let mut reducer: Reducer<CudaSlice<f32>> = Reducer::new(group, &parameters, &options).unwrap();
        let compute = group.context().unwrap().new_stream().unwrap();
        for step in 0..steps {
            let mut under_way = reducer.step(step as u64).unwrap();
            for index in 0..lens.len() {
                let gradient = compute.clone_htod(&gradient(step, index)).unwrap();
                under_way.ready(index, gradient.as_view()).unwrap();
            }
            under_way.wait().unwrap();
            for index in 0..lens.len() {
                average(step, index, compute.clone_dtoh(&reducer.gradient(index).unwrap()).unwrap());
            }
        }
    }
}
