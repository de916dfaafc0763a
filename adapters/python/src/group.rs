//! Jobs and groups.

use std::sync::Arc;
use std::time::Duration;

use collectives::ReduceOp;
use collectives::job::{self, Backend};
use pyo3::exceptions::{PySystemExit, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyType};

use crate::error::RankFailed;
use crate::operation::{Operation, check_place};
use crate::process::{Owned, interruptible};
use crate::tensor::Tensor;
use crate::work::Work;

/// One rank of a job.
#[pyclass(frozen, module = "nccl_collectives")]
pub(crate) struct Job(Owned<job::Job>);

#[pymethods]
impl Job {
    /// Joins the job of this process, started by torchrun, mpirun, Slurm or Kubernetes, or with
    /// NCCL_BENCH_RANK, NCCL_BENCH_SIZE and NCCL_BENCH_ADDR. Without any, a job of one rank.
    #[staticmethod]
    fn from_environment(py: Python<'_>) -> PyResult<Self> {
        interruptible(py, job::Job::from_environment).map(|job| Self(Owned::new(job)))
    }

    /// This rank, from 0.
    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.0.get()?.rank())
    }

    /// Number of ranks.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.0.get()?.size())
    }

    /// This rank's number among the ranks of its host.
    #[getter]
    fn local_rank(&self) -> PyResult<usize> {
        Ok(self.0.get()?.local_rank())
    }

    /// Number of ranks on this host.
    #[getter]
    fn local_size(&self) -> PyResult<usize> {
        Ok(self.0.get()?.local_size())
    }

    /// Makes a group of all ranks, together with them. `backend` is "host", "gpu", or "auto": GPUs if every
    /// rank has one.
    #[pyo3(signature = (backend = "auto"))]
    fn group(&self, py: Python<'_>, backend: &str) -> PyResult<Group> {
        let backend = backend.parse::<Backend>().map_err(|error| PyValueError::new_err(error.to_string()))?;
        let job = Arc::clone(self.0.get()?);
        interruptible(py, move || job.group(backend)).map(|group| Group(Owned::new(group)))
    }

    /// Reports a failure of this rank: the operations of the other ranks raise RankFailed with the reason.
    fn fail(&self, reason: &str) -> PyResult<()> {
        self.0.get()?.fail(reason);
        Ok(())
    }

    fn __enter__(this: Py<Self>) -> Py<Self> {
        this
    }

    /// Reports an exception that leaves the block to the other ranks, except RankFailed and SystemExit.
    #[pyo3(signature = (kind, value, _traceback))]
    fn __exit__(
        &self,
        kind: Option<&Bound<'_, PyType>>,
        value: Option<&Bound<'_, PyAny>>,
        _traceback: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<bool> {
        // Another rank's failure is known to all. SystemExit ends this process only, without a failure.
        if let (Some(kind), Some(value)) = (kind, value)
            && !value.is_instance_of::<RankFailed>()
            && !value.is_instance_of::<PySystemExit>()
        {
            self.0.get()?.fail(&format!("{}: {value}", kind.name()?));
        }
        Ok(false)
    }

    fn __repr__(&self) -> PyResult<String> {
        let job = self.0.get()?;
        Ok(format!("<nccl_collectives.Job rank {} of {}>", job.rank(), job.size()))
    }
}

/// Joins the job of this process: Job.from_environment().
#[pyfunction]
pub(crate) fn init(py: Python<'_>) -> PyResult<Job> {
    Job::from_environment(py)
}

/// Ranks that call the same operations in the same order.
#[pyclass(frozen, module = "nccl_collectives")]
pub(crate) struct Group(Owned<job::Group>);

impl Group {
    fn inner(&self) -> PyResult<&Arc<job::Group>> {
        self.0.get()
    }

    fn read(&self, tensor: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Tensor> {
        let group = self.inner()?;
        Tensor::read(tensor, stream, |place| check_place(group, place))
    }

    fn written(&self, tensor: &Bound<'_, PyAny>, stream: Option<usize>) -> PyResult<Tensor> {
        let group = self.inner()?;
        Tensor::written(tensor, stream, |place| check_place(group, place))
    }

    fn start(
        &self,
        py: Python<'_>,
        operation: Operation,
        tensors: Vec<Tensor>,
        async_op: bool,
    ) -> PyResult<Option<Work>> {
        let mut pending = operation.start(py, self.inner()?, tensors)?;
        if async_op {
            return Ok(Some(Work::new(pending)));
        }
        pending.wait(py, false).map(|()| None)
    }
}

fn operator(name: &str) -> PyResult<ReduceOp> {
    name.parse().map_err(|error: collectives::UnknownName| PyValueError::new_err(format!("op: {error}")))
}

#[pymethods]
impl Group {
    /// This rank in the group, from 0.
    #[getter]
    fn rank(&self) -> PyResult<usize> {
        Ok(self.inner()?.rank())
    }

    /// Number of ranks in the group.
    #[getter]
    fn size(&self) -> PyResult<usize> {
        Ok(self.inner()?.size())
    }

    /// "host" or "gpu".
    #[getter]
    fn backend(&self) -> PyResult<&'static str> {
        Ok(if self.inner()?.backend() == Backend::Gpu { "gpu" } else { "host" })
    }

    /// The transport; where "auto" has chosen hosts, also the reason.
    fn describe(&self) -> PyResult<String> {
        Ok(self.inner()?.describe())
    }

    /// Limits the time of every operation, in seconds. None, as at the beginning, waits forever.
    #[pyo3(signature = (seconds))]
    fn set_timeout(&self, seconds: Option<f64>) -> PyResult<()> {
        let limit = seconds.map(Duration::try_from_secs_f64).transpose();
        let limit = limit.map_err(|error| {
            PyValueError::new_err(format!("the timeout is not a number of seconds: {error}"))
        })?;
        self.inner()?.set_timeout(limit);
        Ok(())
    }

    /// Returns once all ranks have called it.
    fn barrier(&self, py: Python<'_>) -> PyResult<()> {
        let group = Arc::clone(self.inner()?);
        interruptible(py, move || group.barrier())
    }

    /// Replaces the tensor on every rank by the reduction of all: op is "sum", "avg", "prod", "max" or "min".
    #[pyo3(signature = (tensor, op = "sum", *, async_op = false, stream = None))]
    fn all_reduce(
        &self,
        tensor: &Bound<'_, PyAny>,
        op: &str,
        async_op: bool,
        stream: Option<usize>,
    ) -> PyResult<Option<Work>> {
        let operation = Operation::AllReduce(operator(op)?);
        self.start(tensor.py(), operation, vec![self.written(tensor, stream)?], async_op)
    }

    /// Reduces all tensors of a list in one operation. They have one type.
    #[pyo3(signature = (tensors, op = "sum", *, async_op = false, stream = None))]
    fn all_reduce_list(
        &self,
        py: Python<'_>,
        tensors: &Bound<'_, PyAny>,
        op: &str,
        async_op: bool,
        stream: Option<usize>,
    ) -> PyResult<Option<Work>> {
        let operation = Operation::AllReduceList(operator(op)?);
        let tensors =
            tensors.try_iter()?.map(|tensor| self.written(&tensor?, stream)).collect::<PyResult<_>>()?;
        self.start(py, operation, tensors, async_op)
    }

    /// Replaces the tensor on every rank by rank `root`'s.
    #[pyo3(signature = (tensor, root = 0, *, async_op = false, stream = None))]
    fn broadcast(
        &self,
        tensor: &Bound<'_, PyAny>,
        root: i64,
        async_op: bool,
        stream: Option<usize>,
    ) -> PyResult<Option<Work>> {
        let root = usize::try_from(root).map_err(|_| {
            PyValueError::new_err(format!("broadcast: the root is a rank from 0, not {root}"))
        })?;
        let tensors = vec![self.written(tensor, stream)?];
        self.start(tensor.py(), Operation::Broadcast(root), tensors, async_op)
    }

    /// Writes the parts of all ranks to `whole`, in rank order. `whole` has `size` times as many elements as
    /// `part`.
    #[pyo3(signature = (part, whole, *, async_op = false, stream = None))]
    fn all_gather(
        &self,
        part: &Bound<'_, PyAny>,
        whole: &Bound<'_, PyAny>,
        async_op: bool,
        stream: Option<usize>,
    ) -> PyResult<Option<Work>> {
        let tensors = vec![self.read(part, stream)?, self.written(whole, stream)?];
        self.start(part.py(), Operation::AllGather, tensors, async_op)
    }

    /// Writes this rank's part of the reduction of `whole` to `part`. `whole` has `size` times as many
    /// elements as `part`.
    #[pyo3(signature = (whole, part, op = "sum", *, async_op = false, stream = None))]
    fn reduce_scatter(
        &self,
        whole: &Bound<'_, PyAny>,
        part: &Bound<'_, PyAny>,
        op: &str,
        async_op: bool,
        stream: Option<usize>,
    ) -> PyResult<Option<Work>> {
        let operation = Operation::ReduceScatter(operator(op)?);
        let tensors = vec![self.read(whole, stream)?, self.written(part, stream)?];
        self.start(whole.py(), operation, tensors, async_op)
    }

    /// The messages of all ranks, in rank order. Lengths may differ.
    fn all_gather_bytes<'py>(&self, py: Python<'py>, message: &[u8]) -> PyResult<Vec<Bound<'py, PyBytes>>> {
        let group = Arc::clone(self.inner()?);
        let message = message.to_vec();
        let gathered = interruptible(py, move || group.all_gather_bytes(&message))?;
        Ok(gathered.iter().map(|message| PyBytes::new(py, message)).collect())
    }

    /// The group of the ranks with the same color, in rank order; None for a rank without a color.
    #[pyo3(signature = (color))]
    fn split(&self, py: Python<'_>, color: Option<u32>) -> PyResult<Option<Self>> {
        let group = Arc::clone(self.inner()?);
        let part = interruptible(py, move || group.split(color))?;
        Ok(part.map(|part| Self(Owned::new(part))))
    }

    fn __repr__(&self) -> PyResult<String> {
        let group = self.inner()?;
        Ok(format!(
            "<nccl_collectives.Group rank {} of {}, {}>",
            group.rank(),
            group.size(),
            group.describe()
        ))
    }
}
