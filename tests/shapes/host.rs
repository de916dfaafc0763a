//! Memory of hosts.

use collectives::Error;
use collectives::job::{Backend, Group, Job, Work};
use collectives::train::{Parameter, Reducer, ReducerOptions};

use super::{Memory, Value};

pub(crate) struct Host;

impl Memory for Host {
    type Of<T: Value> = Vec<T>;

    fn all(group: &Group) -> Vec<Self> {
        assert_eq!(group.backend(), Backend::Host);
        vec![Self]
    }

    fn upload<T: Value>(&self, values: &[T]) -> Vec<T> {
        values.to_vec()
    }

    fn download<T: Value>(&self, buffer: &Vec<T>) -> Vec<T> {
        buffer.clone()
    }

    fn finish<B>(&self, work: Work<B>) -> Result<B, Error> {
        work.wait()
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
        let mut reducer: Reducer<Vec<f32>> = Reducer::new(group, &parameters, &options).unwrap();
        for step in 0..steps {
            let mut under_way = reducer.step(step as u64).unwrap();
            for index in 0..lens.len() {
                under_way.ready(index, &gradient(step, index)).unwrap();
            }
            under_way.wait().unwrap();
            for index in 0..lens.len() {
                average(step, index, reducer.gradient(index).unwrap().to_vec());
            }
        }
    }
}

/// Makes the group of all ranks.
pub(crate) fn on_host(job: &Job) -> Group {
    job.group(Backend::Host).unwrap()
}
