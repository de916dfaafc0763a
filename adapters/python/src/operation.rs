//! Collectives over the memory of tensors.

use collectives::half::{bf16, f16};
use collectives::job::{Backend, Buffer, Group, HostMemory};
use collectives::{DataType, Element, Error, ReduceOp};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

use crate::device::{self, Streams};
use crate::error::exception;
use crate::tensor::{Place, Tensor};
use crate::work::{Pending, Running};

/// A collective and its arguments other than tensors.
#[derive(Clone, Copy)]
pub(crate) enum Operation {
    AllReduce(ReduceOp),
    /// From a root.
    Broadcast(usize),
    /// Gathers the parts of all ranks in the whole.
    AllGather,
    /// Divides the reduced whole into a part for each rank.
    ReduceScatter(ReduceOp),
    /// An all_reduce of any number of tensors of one type.
    AllReduceList(ReduceOp),
}

impl Operation {
    /// Checks the tensors together, and starts the operation.
    pub(crate) fn start(self, py: Python<'_>, group: &Group, tensors: Vec<Tensor>) -> PyResult<Pending> {
        // A list may be empty: the other ranks notice if theirs is not.
        let (data_type, stream) =
            tensors.first().map_or((DataType::Float32, None), |first| (first.data_type, first.stream));
        if tensors.iter().any(|tensor| (tensor.data_type, tensor.stream) != (data_type, stream)) {
            let reason =
                "the tensors of one operation must have the same type of elements, and the same stream";
            return Err(PyValueError::new_err(reason));
        }
        check_overlaps(&tensors)?;
        let started = py.detach(|| {
            let streams = stream.map(|stream| Streams::join(group, stream)).transpose()?;
            Ok((self.start_typed(data_type, group, &tensors)?, streams))
        });
        let (running, streams) = started.map_err(|error| exception(py, error))?;
        Ok(Pending::new(running, tensors, streams))
    }

    fn start_typed(self, data_type: DataType, group: &Group, tensors: &[Tensor]) -> Result<Running, Error> {
        match data_type {
            DataType::Int8 => self.start_of::<i8>(group, tensors),
            DataType::Uint8 => self.start_of::<u8>(group, tensors),
            DataType::Int32 => self.start_of::<i32>(group, tensors),
            DataType::Uint32 => self.start_of::<u32>(group, tensors),
            DataType::Int64 => self.start_of::<i64>(group, tensors),
            DataType::Uint64 => self.start_of::<u64>(group, tensors),
            DataType::Float16 => self.start_of::<f16>(group, tensors),
            DataType::Float32 => self.start_of::<f32>(group, tensors),
            DataType::Float64 => self.start_of::<f64>(group, tensors),
            DataType::Bfloat16 => self.start_of::<bf16>(group, tensors),
            other => Err(Error::Buffer(format!("tensors of {other} are not supported"))),
        }
    }

    fn start_of<T: Element>(self, group: &Group, tensors: &[Tensor]) -> Result<Running, Error> {
        if group.backend() == Backend::Gpu {
            return self.start_on(group, tensors, |tensor| device::memory::<T>(group, tensor));
        }
        self.start_on(group, tensors, |tensor| {
            // SAFETY: DLPack describes so many initialised elements of this type, aligned (`Tensor` checks
            // it). They stay allocated until `Pending` drops the tensor, after the operation. The program
            // leaves them alone until then (README.md).
            Ok(unsafe { HostMemory::from_raw(tensor.address as *mut T, tensor.len, ()) })
        })
    }

    /// With the tensors' memory as buffers of the group.
    fn start_on<B: Buffer>(
        self,
        group: &Group,
        tensors: &[Tensor],
        memory: impl Fn(&Tensor) -> Result<B, Error>,
    ) -> Result<Running, Error> {
        Ok(match (self, tensors) {
            (Self::AllReduce(op), [data]) => Box::new(group.all_reduce(memory(data)?, op)),
            (Self::Broadcast(root), [data]) => Box::new(group.broadcast(memory(data)?, root)),
            (Self::AllGather, [part, whole]) => Box::new(group.all_gather(memory(part)?, memory(whole)?)),
            (Self::ReduceScatter(op), [whole, part]) => {
                Box::new(group.reduce_scatter(memory(whole)?, memory(part)?, op))
            }
            (Self::AllReduceList(op), list) => {
                let buffers = list.iter().map(memory).collect::<Result<Vec<_>, _>>()?;
                Box::new(group.all_reduce_list(buffers, op))
            }
            (_, list) => return Err(Error::Job(format!("{} tensors do not fit the operation", list.len()))),
        })
    }
}

/// Refuses memory of a kind not used by the group's ranks.
pub(crate) fn check_place(group: &Group, place: Place) -> PyResult<()> {
    let reason = match (group.backend(), place, device::number(group)) {
        (Backend::Gpu, Place::Device(device), Some(own)) if device == own => return Ok(()),
        (Backend::Gpu, Place::Device(device), own) => format!(
            "the tensor is on CUDA device {device}, and this rank's group on device {}: move the tensor \
             there",
            own.map_or_else(|| "?".to_owned(), |own| own.to_string())
        ),
        (Backend::Gpu, Place::Host, _) => {
            "the tensor is in host memory, and the group's ranks use GPUs: move it to the device, or make a \
             group with job.group('host')"
                .to_owned()
        }
        (_, Place::Host, _) => return Ok(()),
        (_, Place::Device(device), _) => format!(
            "the tensor is on CUDA device {device}, and the group's ranks use host memory ({}): make a group \
             with job.group('gpu')",
            group.describe()
        ),
    };
    Err(PyValueError::new_err(reason))
}

/// Refuses tensors with common memory: one would be written while another is read.
fn check_overlaps(tensors: &[Tensor]) -> PyResult<()> {
    let bytes = |tensor: &Tensor| (tensor.address, tensor.address + tensor.len * tensor.data_type.size());
    let mut ranges = tensors.iter().filter(|tensor| tensor.len > 0).map(bytes).collect::<Vec<_>>();
    ranges.sort_unstable();
    let overlap = ranges.windows(2).find_map(|pair| match pair {
        [(_, end), (start, _)] if start < end => Some(*start),
        _ => None,
    });
    match overlap {
        Some(start) => Err(PyValueError::new_err(format!(
            "two tensors of the operation overlap in memory at {start:#x}: use separate ones"
        ))),
        None => Ok(()),
    }
}
