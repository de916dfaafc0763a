//! Reduction operators: NCCL's own, and sums that scale every rank's input first.

use std::ffi::c_void;
use std::fmt;
use std::ptr;
use std::sync::Arc;

use cudarc::driver::CudaStream;
use nccl_sys::{ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};

use super::submit::{self, Foreign, Scalar};
use super::{raw_op, raw_type, require_type};
use crate::nccl::allocation::Owner;
use crate::nccl::communicator::{Communicator, Handle};
use crate::nccl::cuda;
use crate::nccl::error::{Error, Needed};
use crate::nccl::memory::{Access, DeviceBuffer};
use crate::nccl::section;
use crate::{Element, ReduceOp};

const CREATE: &str = "ncclRedOpCreatePreMulSum";

mod sealed {
    pub trait Sealed {}
}

/// What a reduction of elements of type `T` can use: a [`ReduceOp`], or a [`ScaledSum`] by reference. Sealed.
pub trait Reduction<'b, T: Element>: sealed::Sealed {
    /// NCCL's number of the operator, and the memory that it reads while it runs.
    #[doc(hidden)]
    fn resolve(self, operation: &'static str, communicator: &Communicator) -> Result<Resolved<'b>, Error>;
}

/// An operator as NCCL takes it.
#[doc(hidden)]
pub struct Resolved<'b> {
    pub(crate) op: ncclRedOp_t,
    pub(crate) scalar: Option<&'b dyn Scalar>,
}

impl sealed::Sealed for ReduceOp {}
impl<'b, T: Element> Reduction<'b, T> for ReduceOp {
    #[inline]
    fn resolve(self, _: &'static str, _: &Communicator) -> Result<Resolved<'b>, Error> {
        Ok(Resolved { op: raw_op(self), scalar: None })
    }
}

/// The sum of all ranks' inputs, each multiplied by its rank's scalar first: an average with weights, or gradients
/// scaled on the way. Made by [`Communicator::scaled_sum`] and [`Communicator::scaled_sum_on_device`], for that
/// communicator and one element type. All ranks use one; their scalars may differ. NCCL 2.18 or older.
///
/// ```no_run
/// # use collectives::nccl::{Collectives, Communicator, Error, Memory};
/// # fn example(communicator: &Communicator, memory: &mut Memory) -> Result<(), Error> {
/// let mean = communicator.scaled_sum(1.0 / communicator.size() as f32)?;
/// communicator.all_reduce_in_place(&mut memory.slice_mut::<f32>(..1024)?, &mean)?;
/// # Ok(())
/// # }
/// ```
pub struct ScaledSum<'c, T> {
    communicator: &'c Communicator,
    operator: Arc<Operator>,
    scalar: Option<Box<dyn Scalar + 'c>>,
    element: std::marker::PhantomData<T>,
}

impl Communicator {
    /// A sum of inputs that are multiplied by `scalar` first (`ncclRedOpCreatePreMulSum`, `ncclScalarHostImmediate`).
    ///
    /// # Errors
    /// [`Error::InsideGroup`]; [`Error::TooOld`] for 8-bit floating-point numbers before NCCL 2.24; [`Error::Nccl`];
    /// [`Error::Aborted`] and [`Error::Unusable`].
    pub fn scaled_sum<T: Element>(&self, scalar: T) -> Result<ScaledSum<'_, T>, Error> {
        let mut scalar = scalar;
        let residence = ncclScalarResidence_t::ncclScalarHostImmediate;
        let operator = self.create_op::<T>(ptr::from_mut(&mut scalar).cast(), residence, None)?;
        Ok(ScaledSum { communicator: self, operator, scalar: None, element: std::marker::PhantomData })
    }

    /// As [`scaled_sum`](Self::scaled_sum), with a scalar in device memory that is read whenever a collective with the
    /// operator runs (`ncclScalarDevice`).
    ///
    /// # Errors
    /// As [`scaled_sum`](Self::scaled_sum); [`Error::Length`] unless the buffer has exactly one element;
    /// [`Error::WrongDevice`]; [`Error::Stream`].
    pub fn scaled_sum_on_device<'c, B>(&'c self, scalar: &'c B) -> Result<ScaledSum<'c, B::Element>, Error>
    where
        B: DeviceBuffer + ?Sized,
    {
        if scalar.len() != 1 {
            let (needed, found) = (Needed::Exactly(1), scalar.len());
            return Err(Error::Length { operation: CREATE, buffer: "scalar", needed, found });
        }
        section::forbid(CREATE)?;
        cuda::bind(&self.handle.context)?;
        let mut foreign = Foreign::new();
        self.admit(CREATE, "scalar", scalar.stream(), &mut foreign)?;
        let access = scalar.read(&self.stream);
        if access.ordered()
            && let Err(error) = self.check_accesses(CREATE, false)
        {
            std::mem::forget(access);
            return Err(error);
        }
        let residence = ncclScalarResidence_t::ncclScalarDevice;
        let operator =
            self.create_op::<B::Element>(access.address() as *mut c_void, residence, scalar.owner())?;
        drop(access);
        submit::released(&self.stream)?;
        foreign.iter().try_for_each(|home| self.lead(home))?;
        let scalar = Some(Box::new(scalar) as Box<dyn Scalar + 'c>);
        Ok(ScaledSum { communicator: self, operator, scalar, element: std::marker::PhantomData })
    }

    fn create_op<T: Element>(
        &self,
        scalar: *mut c_void,
        residence: ncclScalarResidence_t,
        owner: Option<Owner>,
    ) -> Result<Arc<Operator>, Error> {
        section::forbid(CREATE)?;
        require_type::<T>(self.library())?;
        cuda::bind(&self.handle.context)?;
        let mut op = ncclRedOp_t::ncclSum;
        let data_type = const { raw_type(T::DATA_TYPE) };
        self.handle.call(CREATE, |raw, handle| {
            // SAFETY: `call` holds the guard, and the handle is alive; the scalar is one element of this type, on the
            // host for the length of the call or in device memory that the operator borrows; writes one number.
            Ok(unsafe { raw.ncclRedOpCreatePreMulSum(&mut op, scalar, data_type, residence, handle) })
        })?;
        Ok(Arc::new(Operator { communicator: Arc::clone(&self.handle), op, _scalar: owner }))
    }
}

impl<T> sealed::Sealed for &ScaledSum<'_, T> {}
impl<'b, T: Element> Reduction<'b, T> for &'b ScaledSum<'_, T> {
    #[inline]
    fn resolve(self, operation: &'static str, communicator: &Communicator) -> Result<Resolved<'b>, Error> {
        if !ptr::eq(self.communicator, communicator) {
            return Err(Error::WrongCommunicator { operation, object: "scaled sum" });
        }
        Ok(Resolved { op: self.operator.op, scalar: Some(self) })
    }
}

impl<T> fmt::Debug for ScaledSum<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScaledSum").field("op", &self.operator.op.0).finish_non_exhaustive()
    }
}

impl<T> Scalar for ScaledSum<'_, T> {
    fn home(&self) -> &Arc<CudaStream> {
        self.scalar.as_ref().map_or(&self.communicator.stream, |scalar| scalar.home())
    }

    fn read_scalar<'a>(&'a self, stream: &'a CudaStream) -> Access<'a> {
        // NCCL has a scalar of the host.
        self.scalar.as_ref().map_or(Access::new(0, None), |scalar| scalar.read_scalar(stream))
    }

    fn owner(&self) -> Option<Owner> {
        self.scalar.as_ref().map_or_else(|| Some(Arc::new(()) as Owner), |scalar| scalar.owner())
    }

    fn operator(&self) -> Option<Owner> {
        Some(Arc::clone(&self.operator) as Owner)
    }
}

/// An operator of NCCL's, which copies it into every operation that uses it.
#[derive(Debug)]
struct Operator {
    communicator: Arc<Handle>,
    op: ncclRedOp_t,
    /// Of the scalar in device memory, if it has one.
    _scalar: Option<Owner>,
}

impl Drop for Operator {
    fn drop(&mut self) {
        let handle = &*self.communicator;
        let state = handle.lock();
        let Ok(communicator) = handle.existing(*state, "ncclRedOpDestroy") else { return };
        // SAFETY: the operator belongs to this communicator, which is alive; nobody uses it afterwards.
        let code = unsafe { handle.raw().ncclRedOpDestroy(self.op, communicator) };
        if code != ncclResult_t::ncclSuccess {
            tracing::warn!("{}", handle.library.failure("ncclRedOpDestroy", code));
        }
    }
}
