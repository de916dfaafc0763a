//! Reduction operators: NCCL's own, and sums with a scalar factor per rank.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::{ffi::c_void, fmt, marker::PhantomData, ptr};

use nccl_sys::{ncclRedOp_t, ncclResult_t, ncclScalarResidence_t};

use super::kind::{is_fp8, raw_op, raw_type, require_type};
use crate::log;
use crate::nccl::communicator::{Communicator, CommunicatorState, Handle, Object};
use crate::nccl::error::{Error, Needed};
use crate::nccl::memory::{DeviceBuffer, OwnedBuffer};
use crate::nccl::{cuda, nccl_group};
use crate::{Element, ReduceOp};

const CREATE: &str = "ncclRedOpCreatePreMulSum";
pub(super) const SCALAR: &str = "scalar";

mod sealed {
    pub trait Sealed {}
}

/// An operator for elements of type `T`: a [`ReduceOp`], or a [`ScaledSum`] by reference. Sealed.
pub trait Reduction<'b, T: Element>: sealed::Sealed {
    /// NCCL's number of the operator for a communicator, and the object of a program-defined operator.
    #[doc(hidden)]
    fn resolve(self, communicator: &Communicator) -> (ncclRedOp_t, Option<&'b Arc<Operator>>);
}

impl sealed::Sealed for ReduceOp {}
impl<'b, T: Element> Reduction<'b, T> for ReduceOp {
    #[inline]
    fn resolve(self, communicator: &Communicator) -> (ncclRedOp_t, Option<&'b Arc<Operator>>) {
        // The average over a single rank is a copy. NCCL would run a scaling kernel: it lacks one for 8-bit
        // floating-point numbers, and the kernel skips elements of some lengths.
        let copies = self == Self::Avg && communicator.size() == 1;
        (raw_op(if copies { Self::Sum } else { self }), None)
    }
}

/// Sum of all ranks' inputs, each multiplied by its rank's scalar: for weighted averages or gradient scaling.
/// Created by [`Communicator::scaled_sum`] and [`Communicator::scaled_sum_on_device`], for the communicator
/// and one element type. All ranks use a scaled sum; their scalars may differ.
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
    operator: Arc<Operator>,
    /// The communicator lives, and nothing writes the scalar, as long as this object.
    borrowed: PhantomData<(&'c Communicator, T)>,
}

impl Communicator {
    /// Creates a sum of inputs multiplied by `scalar` (`ncclRedOpCreatePreMulSum`,
    /// `ncclScalarHostImmediate`).
    ///
    /// # Errors
    /// [`Error::InsideGroup`]; for 8-bit floating-point numbers, [`Error::TooOld`] before NCCL 2.24 and
    /// [`Error::Argument`] on a communicator of one rank; [`Error::Nccl`]; [`Error::Aborted`] and
    /// [`Error::Unusable`].
    pub fn scaled_sum<T: Element>(&self, mut scalar: T) -> Result<ScaledSum<'_, T>, Error> {
        let residence = ncclScalarResidence_t::ncclScalarHostImmediate;
        self.create_op::<T>(ptr::from_mut(&mut scalar).cast(), residence, None)
    }

    /// Like [`scaled_sum`](Self::scaled_sum), with a scalar in device memory, read whenever a collective with
    /// the operator runs (`ncclScalarDevice`): a view of a [`Memory`](crate::nccl::Memory).
    ///
    /// # Errors
    /// The errors of [`scaled_sum`](Self::scaled_sum); [`Error::Length`] unless the buffer has exactly one
    /// element; [`Error::NotOwned`]; [`Error::WrongDevice`]; [`Error::Stream`].
    pub fn scaled_sum_on_device<'c, B>(&'c self, scalar: &'c B) -> Result<ScaledSum<'c, B::Element>, Error>
    where
        B: DeviceBuffer + ?Sized,
    {
        if scalar.len() != 1 {
            let (needed, found) = (Needed::Exactly(1), scalar.len());
            return Err(Error::Length { operation: CREATE, buffer: SCALAR, needed, found });
        }
        let scalar = OwnedBuffer::new(self, CREATE, SCALAR, scalar)?;
        let residence = ncclScalarResidence_t::ncclScalarDevice;
        self.create_op::<B::Element>(scalar.addresses.start as *mut c_void, residence, Some(scalar))
    }

    fn create_op<T: Element>(
        &self,
        address: *mut c_void,
        residence: ncclScalarResidence_t,
        scalar: Option<OwnedBuffer>,
    ) -> Result<ScaledSum<'_, T>, Error> {
        nccl_group::forbid_group(CREATE)?;
        require_type::<T>(self.library())?;
        if is_fp8(T::DATA_TYPE) && self.size() == 1 {
            let data_type = T::DATA_TYPE;
            let reason =
                format!("NCCL does not scale {data_type} over a single rank: scale in a kernel of your own");
            return Err(Error::bad_argument(CREATE, reason));
        }
        cuda::bind_context(&self.handle.context)?;
        let mut op = ncclRedOp_t::ncclSum;
        let data_type = const { raw_type(T::DATA_TYPE) };
        self.handle.call_in_state(CREATE, CommunicatorState::is_alive, |raw, handle| {
            // SAFETY: `call_in_state` holds the guard, and the handle is alive; the scalar is one element of
            // this type, on the host for the length of the call or in device memory owned by the operator;
            // writes one number.
            Ok(unsafe { raw.ncclRedOpCreatePreMulSum(&mut op, address, data_type, residence, handle) })
        })?;
        let (communicator, ended) = (Arc::clone(&self.handle), AtomicBool::new(false));
        let operator = Arc::new(Operator { communicator, op, scalar, ended });
        self.handle.add_object(Arc::downgrade(&operator) as Weak<dyn Object>);
        Ok(ScaledSum { operator, borrowed: PhantomData })
    }
}

impl<T> sealed::Sealed for &ScaledSum<'_, T> {}
impl<'b, T: Element> Reduction<'b, T> for &'b ScaledSum<'_, T> {
    #[inline]
    fn resolve(self, _: &Communicator) -> (ncclRedOp_t, Option<&'b Arc<Operator>>) {
        (self.operator.op, Some(&self.operator))
    }
}

impl<T> fmt::Debug for ScaledSum<'_, T> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("ScaledSum").field("op", &self.operator.op.0).finish_non_exhaustive()
    }
}

/// A program-defined operator. NCCL copies it into every operation that uses it.
#[doc(hidden)]
#[derive(Debug)]
pub struct Operator {
    pub(super) communicator: Arc<Handle>,
    op: ncclRedOp_t,
    /// Scalar in device memory; `None` for a host scalar.
    pub(super) scalar: Option<OwnedBuffer>,
    ended: AtomicBool,
}

impl Object for Operator {
    fn release_object(&self) {
        if self.ended.swap(true, Ordering::AcqRel) {
            return;
        }
        let handle = &*self.communicator;
        let state = handle.lock_state();
        let Ok(communicator) =
            handle.comm_in_state(*state, CommunicatorState::allows_queries, "ncclRedOpDestroy")
        else {
            return;
        };
        // SAFETY: the operator belongs to this communicator, which is alive; nobody uses it afterwards.
        let code = unsafe { handle.library.raw().ncclRedOpDestroy(self.op, communicator) };
        // Unlocked first: a subscriber of the log is the program's code, and may use the communicator.
        drop(state);
        if code != ncclResult_t::ncclSuccess {
            log::warn(format_args!("{}", handle.library.code_error("ncclRedOpDestroy", code)));
        }
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.release_object();
    }
}
