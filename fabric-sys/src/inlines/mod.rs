//! The inline functions of libfabric's headers: calls through the objects' tables of function pointers.
//!
//! Each is `unsafe` for the reasons that the C function has: objects must be live, of the right kind and opened
//! with what the call needs; buffers must outlive the operation; threads must keep to the domain's threading
//! model. A slot that a provider has left empty answers `-FI_ENOSYS`, and so does one that came after libfabric
//! 1.17 and that the library's table is too short for. For the slots of 1.17 the table's size is not looked at.

mod address;
mod completion;
mod counter;
mod domain;
mod endpoint;
mod event;
mod memory;
mod message;
mod object;
mod rma;
mod tagged;

pub use address::*;
pub use completion::*;
pub use counter::*;
pub use domain::*;
pub use endpoint::*;
pub use event::*;
pub use memory::*;
pub use message::*;
pub use object::*;
pub use rma::*;
pub use tagged::*;

use std::ffi::{c_char, c_int};

/// What a call answers whose slot is not there.
pub(crate) trait Absent {
    const ABSENT: Self;
}

impl Absent for c_int {
    const ABSENT: Self = -crate::FI_ENOSYS;
}

impl Absent for isize {
    const ABSENT: Self = -(crate::FI_ENOSYS as isize);
}

impl Absent for u64 {
    const ABSENT: Self = 0;
}

impl Absent for *const c_char {
    const ABSENT: Self = std::ptr::null();
}

/// Defines inline functions as `table.slot(arguments)`.
///
/// `late in Type` after the call marks a slot that the oldest accepted library may lack: the table's `size` says.
macro_rules! inlines {
    ($(
        $(#[$attribute:meta])*
        fn $name:ident($($parameter:ident: $type:ty),* $(,)?) -> $result:ty
            = $table:expr, $slot:ident($($argument:expr),* $(,)?) $(, late in $late:ident)?;
    )*) => {$(
        $(#[$attribute])*
        ///
        /// # Safety
        /// As in C: see this crate's list of inline functions.
        #[inline]
        #[allow(clippy::too_many_arguments)]
        pub unsafe fn $name($($parameter: $type),*) -> $result {
            // SAFETY: the caller vouches that the object is live, so its table is readable up to its size, and that
            // the arguments are what the slot's C function asks for.
            unsafe {
                let table = $table;
                $(
                    if table.is_null() || (*table).size <= std::mem::offset_of!($crate::$late, $slot) {
                        return <$result as $crate::inlines::Absent>::ABSENT;
                    }
                )?
                match (*table).$slot {
                    Some(function) => function($($argument),*),
                    None => <$result as $crate::inlines::Absent>::ABSENT,
                }
            }
        }
    )*};
}
use inlines;
