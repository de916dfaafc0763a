//! The inline functions of libfabric's headers: calls through the objects' tables of function pointers.
//!
//! Each is `unsafe` for the requirements of the C function: objects must be live, of the right kind and opened with the
//! needed capabilities; buffers must outlive the operation; threads must keep to the domain's threading model. A slot
//! that a provider has left empty returns `-FI_ENOSYS`, as does every slot of a table that it has left out (some do for
//! capabilities that were not requested), and one that was added after libfabric 1.17 if the library's table is too
//! short for it. For the slots of 1.17 the table's size is not checked.

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

/// Return value of a call whose slot does not exist.
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
            // SAFETY: the caller vouches that the object is live, so its table, if it has one, is readable up to its
            // size, and that the arguments are what the slot's C function asks for.
            unsafe {
                let table = $table;
                if table.is_null() {
                    return <$result as $crate::inlines::Absent>::ABSENT;
                }
                $(
                    if (*table).size <= std::mem::offset_of!($crate::$late, $slot) {
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

#[cfg(test)]
mod tests {
    use std::ptr;

    use super::*;
    use crate::{FI_ENOSYS, Padded, fi_cq_err_entry, fid_cntr, fid_cq, fid_ep};

    #[test]
    fn what_a_provider_has_no_table_for_is_not_implemented() {
        // SAFETY: the objects are pointers and numbers: zero is a value.
        let (mut ep, mut cq, mut cntr): (fid_ep, fid_cq, fid_cntr) = unsafe { std::mem::zeroed() };
        let (none, missing) = (ptr::null_mut(), -(FI_ENOSYS as isize));
        // SAFETY: the objects are there, and without a table nothing is done with the rest.
        unsafe {
            assert_eq!(fi_read(&raw mut ep, none, 0, none, 0, 0, 0, none), missing);
            assert_eq!(fi_inject_write(&raw mut ep, none, 0, 0, 0, 0), missing);
            assert_eq!(fi_send(&raw mut ep, none, 0, none, 0, none), missing);
            assert_eq!(fi_trecv(&raw mut ep, none, 0, none, 0, 0, 0, none), missing);
            assert_eq!(fi_close(&raw mut ep.fid), -FI_ENOSYS);
            let mut entry = Padded::<fi_cq_err_entry>::zeroed();
            assert_eq!(fi_cq_readerr(&raw mut cq, entry.as_mut_ptr(), 0), missing);
            assert_eq!(fi_cntr_read(&raw mut cntr), 0);
        }
    }
}
