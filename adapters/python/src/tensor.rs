//! Arrays and tensors of Python, through DLPack.

use collectives::DataType;
use dlpark::ffi::{DLDataType, DLDataTypeCode, DLDevice, DLDeviceType};
use dlpark::python::{ImportedDlpack, from_dlpack};
use dlpark::{DlpackFlags, tensor::TensorRef};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Supported versions of DLPack: 1.x, and earlier ones.
const NEWEST_DLPACK: (u32, u32) = (dlpark::ffi::DLPACK_MAJOR_VERSION, dlpark::ffi::DLPACK_MINOR_VERSION);

/// Memory of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Host,
    /// A CUDA device, by its number.
    Device(usize),
}

/// The memory of a contiguous tensor. It lives at least as long as this.
pub(crate) struct Tensor {
    /// Keeps the memory, and releases it when dropped, on any thread.
    _memory: ImportedDlpack,
    pub(crate) data_type: DataType,
    /// Number of elements.
    pub(crate) len: usize,
    /// Address of the first element; 0 if there are none.
    pub(crate) address: usize,
    /// The stream in whose order the tensor's framework uses it, for a tensor of a device.
    pub(crate) stream: Option<usize>,
}

impl Tensor {
    /// Returns the memory of `object`, to be read and written. `stream` is the CUDA stream of its use, as an
    /// address; without it, torch is asked. `check` may refuse the place of the memory.
    pub(crate) fn written(
        object: &Bound<'_, PyAny>,
        stream: Option<usize>,
        check: impl Fn(Place) -> PyResult<()>,
    ) -> PyResult<Self> {
        let tensor = Self::read(object, stream, check)?;
        let flags = tensor._memory.flags();
        if flags.contains(DlpackFlags::READ_ONLY) {
            return Err(PyValueError::new_err(
                "the array is read-only, and the result would be written to it: copy it first",
            ));
        }
        if flags.contains(DlpackFlags::IS_COPIED) {
            return Err(PyValueError::new_err(
                "the array's __dlpack__ exports a copy of its memory, and the result would be lost with it: \
                 pass an array or tensor that shares its memory, such as numpy's or torch's",
            ));
        }
        Ok(tensor)
    }

    /// Returns the memory of `object`, to be read only.
    pub(crate) fn read(
        object: &Bound<'_, PyAny>,
        stream: Option<usize>,
        check: impl Fn(Place) -> PyResult<()>,
    ) -> PyResult<Self> {
        if !object.hasattr("__dlpack__")? || !object.hasattr("__dlpack_device__")? {
            let kind = object.get_type().name()?;
            return Err(PyTypeError::new_err(format!(
                "a numpy array, a tensor of torch, or another object with __dlpack__ is needed, not {kind}"
            )));
        }
        let object = detached(object)?;
        let place = place(&object)?;
        // First, since torch exports no memory of another device than the thread's current one.
        check(place)?;
        let stream = match place {
            Place::Host => None,
            Place::Device(device) => Some(match stream {
                Some(stream) => stream,
                None => torch_stream(&object, device)?,
            }),
        };
        let capsule = export(&object, stream)?;
        let memory = from_dlpack(capsule.as_borrowed(), None, None)?;
        let described = described(&memory.validate().map_err(refused)?)?;
        if described.place != place {
            return Err(PyValueError::new_err("__dlpack__ and __dlpack_device__ name different devices"));
        }
        let Described { data_type, len, address, .. } = described;
        Ok(Self { _memory: memory, data_type, len, address, stream })
    }
}

fn refused(error: dlpark::tensor::Error) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// Returns the data of a tensor of torch without the gradient's history: a tensor that requires a gradient
/// cannot be exported.
///
/// # Errors
/// If its elements are the negatives of the numbers in memory: torch exports them without the sign.
fn detached<'py>(object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
    if let Some(is_negative) = object.getattr_opt("is_neg")?
        && is_negative.call0()?.is_truthy()?
    {
        return Err(PyValueError::new_err(
            "the tensor is a negative view of other memory: use a copy, for example from torch's \
             resolve_neg()",
        ));
    }
    match object.getattr_opt("requires_grad")? {
        Some(required) if required.is_truthy()? => object.call_method0("detach"),
        _ => Ok(object.clone()),
    }
}

fn place(object: &Bound<'_, PyAny>) -> PyResult<Place> {
    let (kind, device): (u32, i32) = object.call_method0("__dlpack_device__")?.extract()?;
    place_of(DLDevice { device_type: DLDeviceType(kind), device_id: device })
}

fn place_of(device: DLDevice) -> PyResult<Place> {
    match (device.device_type, usize::try_from(device.device_id)) {
        (DLDeviceType::CPU | DLDeviceType::CUDAHOST, _) => Ok(Place::Host),
        (DLDeviceType::CUDA, Ok(number)) => Ok(Place::Device(number)),
        (DLDeviceType(kind), _) => Err(PyTypeError::new_err(format!(
            "the tensor is on a device of DLPack's kind {kind}: tensors of host memory (1, 3) and of CUDA \
             (2) can be used"
        ))),
    }
}

/// torch's current stream of the device.
fn torch_stream(object: &Bound<'_, PyAny>, device: usize) -> PyResult<usize> {
    let modules = object.py().import("sys")?.getattr("modules")?;
    let torch = modules.call_method1("get", ("torch",))?;
    if torch.is_none() || !object.is_instance(&torch.getattr("Tensor")?)? {
        return Err(PyTypeError::new_err(
            "the CUDA stream of this array is not known: pass the stream's address as stream=",
        ));
    }
    torch.getattr("cuda")?.call_method1("current_stream", (device,))?.getattr("cuda_stream")?.extract()
}

/// Calls `__dlpack__`, for a tensor used on `stream`. Objects of before DLPack 1.0 do not know `max_version`.
fn export<'py>(object: &Bound<'py, PyAny>, stream: Option<usize>) -> PyResult<Bound<'py, PyAny>> {
    let arguments = PyDict::new(object.py());
    if let Some(stream) = stream {
        // DLPack's number of the legacy default stream: its address is 0.
        arguments.set_item("stream", stream.max(1))?;
    }
    let without_version = arguments.copy()?;
    arguments.set_item("max_version", NEWEST_DLPACK)?;
    match object.call_method("__dlpack__", (), Some(&arguments)) {
        Err(error) if error.is_instance_of::<PyTypeError>(object.py()) => {
            object.call_method("__dlpack__", (), Some(&without_version))
        }
        result => result,
    }
}

struct Described {
    place: Place,
    data_type: DataType,
    len: usize,
    address: usize,
}

fn described(tensor: &TensorRef<'_>) -> PyResult<Described> {
    let data_type = data_type(tensor.dtype())?;
    if !is_contiguous(tensor) {
        let (shape, strides) = (tensor.shape(), tensor.strides().unwrap_or_default());
        return Err(PyValueError::new_err(format!(
            "the tensor is not contiguous (shape {shape:?}, strides {strides:?}): use a contiguous copy, \
             for example from numpy.ascontiguousarray or torch's contiguous()"
        )));
    }
    let len = tensor.num_elements();
    let address = match len {
        0 => 0,
        // SAFETY: the address is computed, not used.
        _ => unsafe { tensor.offset_bytes_ptr() }.map_err(refused)?.addr(),
    };
    if !address.is_multiple_of(data_type.size()) {
        return Err(PyValueError::new_err(format!(
            "the tensor's memory at {address:#x} is not aligned to its elements of {} bytes: use a copy",
            data_type.size()
        )));
    }
    Ok(Described { place: place_of(tensor.device())?, data_type, len, address })
}

/// True if the elements are in C order without gaps. A dimension of one element may have any stride, as in
/// numpy and torch: their copies of such tensors are the tensors themselves.
fn is_contiguous(tensor: &TensorRef<'_>) -> bool {
    let Some(strides) = tensor.strides() else { return true };
    if tensor.shape().contains(&0) {
        return true;
    }
    let mut expected = 1;
    tensor.shape().iter().zip(strides).rev().filter(|&(&dimension, _)| dimension != 1).all(
        |(&dimension, &stride)| {
            let is_expected = stride == expected;
            expected *= dimension;
            is_expected
        },
    )
}

fn data_type(dtype: DLDataType) -> PyResult<DataType> {
    let found = match (dtype.code, dtype.bits, dtype.lanes) {
        (DLDataTypeCode::INT, 8, 1) => Some(DataType::Int8),
        (DLDataTypeCode::INT, 32, 1) => Some(DataType::Int32),
        (DLDataTypeCode::INT, 64, 1) => Some(DataType::Int64),
        (DLDataTypeCode::UINT, 8, 1) => Some(DataType::Uint8),
        (DLDataTypeCode::UINT, 32, 1) => Some(DataType::Uint32),
        (DLDataTypeCode::UINT, 64, 1) => Some(DataType::Uint64),
        (DLDataTypeCode::FLOAT, 16, 1) => Some(DataType::Float16),
        (DLDataTypeCode::FLOAT, 32, 1) => Some(DataType::Float32),
        (DLDataTypeCode::FLOAT, 64, 1) => Some(DataType::Float64),
        (DLDataTypeCode::BFLOAT, 16, 1) => Some(DataType::Bfloat16),
        _ => None,
    };
    found.ok_or_else(|| {
        let bits = dtype.bits;
        let name = match dtype.code {
            DLDataTypeCode::INT => format!("int{bits}"),
            DLDataTypeCode::UINT => format!("uint{bits}"),
            DLDataTypeCode::FLOAT => format!("float{bits}"),
            DLDataTypeCode::COMPLEX => format!("complex{bits}"),
            DLDataTypeCode::BOOL => "bool".to_owned(),
            DLDataTypeCode(code) => format!("DLPack's type code {code} with {bits} bits"),
        };
        let name = if dtype.lanes == 1 { name } else { format!("{} lanes of {name}", dtype.lanes) };
        PyTypeError::new_err(format!(
            "elements of {name} cannot be reduced: float16, float32, float64, bfloat16, int8, int32, int64, \
             uint8, uint32 and uint64 can"
        ))
    })
}
